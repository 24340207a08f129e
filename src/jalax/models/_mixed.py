r"""Mixed models by formula: fixed effects, random effects in one or several factors.

$$b_k \sim \mathcal{N}(0, \Sigma_{f(k)}), \qquad
  \eta = X \beta + o + \sum_f Z_f b_f, \qquad y \mid b \sim \text{family}(\eta).$$

Where all grouping factors are nested in one, its levels are independent groups; where they are
crossed, all random effects are one joint latent. Latents are the random effects or, where
$\Sigma$ comes near a singular one, white: $b = \Lambda x$ with $\Lambda \Lambda' = \Sigma$.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jalax._model.groups import Slots, by_group
from jalax._model.model import GroupedModel, Model, Outside
from jalax._model.structure import meeting
from jalax.families._catalogue import find
from jalax.families._family import HOST, JAX, Family
from jalax.families._ordinal import Ordinal
from jalax.families._zeros import LOG_ODDS, WithZeros

from . import _checks
from . import _nested as nested
from ._design import NOTHING, Asked, Design, parse
from ._first_theta import first_theta
from ._formula import Block
from ._gaussian import LOG_2PI
from ._random_effects import (
    correlations,
    draw_effects,
    effects,
    log_prior,
    numbers,
    root_of_correlations,
    root_of_numbers,
    whitened,
)

Theta = dict[str, Any]
Blocks = tuple[tuple[str, int], ...]  # the names of blocks, and the levels of each in a group


class MixedDesign(NamedTuple):
    """What a fitted mixed model is reported by."""

    design: Design
    family: Family
    outer: str | None  # the factor whose levels are the groups; None: one joint latent
    levels: dict[str, np.ndarray]  # block: (G, L) or (L,), level of each latent row; -1: none
    slots: Slots | None = None  # where the rows stand in their groups, if not in their order

    @property
    def num_rows(self) -> int:
        return self.design.y.size


WHITE = "white"  # an entry of the data of a model whose latents are white, see Model.whitened


# --- the model -----------------------------------------------------------------------------------


def linear_predictor(blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    eta = jnp.matmul(data["X"], theta["beta"], precision="highest") + data["offset"]
    for name, levels in blocks:
        b, z = x[name], data["Z"][name]
        if levels == 1:
            effect = jnp.matmul(z, b[0], precision="highest")
        else:
            effect = jnp.sum(z * b[data["level"][name]], axis=-1)
        eta = eta + effect
    return jnp.where(data["mask"], eta, 0.0)  # nothing can overflow in the padding


def own_parameters(family: Family, theta: Theta, data: dict) -> dict[str, Any]:
    """The family's own parameters: numbers of theta, or one for each row by a formula."""
    own = {name: theta[name] for name in family.own if name in theta}
    if "dispersion" in theta:
        own[str(family.dispersion)] = jnp.exp(_of_side("dispersion", theta, data))
    if "zero" in theta:
        own[LOG_ODDS] = _of_side("zero", theta, data)
    return own


def _of_side(what: str, theta: Theta, data: dict) -> Array:
    return jnp.matmul(data[f"X of {what}"], theta[what], precision="highest")


def _log_joint(family: Family, blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    eta = linear_predictor(blocks, theta, random_effects(theta, x, data), data)
    rows = _row_densities(family, theta, eta, data)
    return _log_prior(blocks, theta, x, data) + jnp.sum(rows)


def _log_prior(blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    total = jnp.zeros((), theta["beta"].dtype)
    for name, _ in blocks:
        if WHITE in data:
            total = total - 0.5 * (jnp.sum(x[name] ** 2) + x[name].size * LOG_2PI)
        else:
            total = total + log_prior(theta["sd"][name], theta["cor"][name], x[name])
    return total


def _row_densities(family: Family, theta: Theta, eta: Array, data: dict) -> Array:
    rows = family.log_density(own_parameters(family, theta, data), eta, data)
    if "weight" in data:
        rows = data["weight"] * rows
    return jnp.where(data["mask"], rows, 0.0)


def random_effects(theta: Theta, x: dict, data: dict) -> dict:
    """The random effects b: x itself or, where x is white, the root of Sigma times x."""
    if WHITE not in data:
        return x
    return {n: effects(theta["sd"][n], theta["cor"][n], white) for n, white in x.items()}


def whiten(theta: Theta, b: dict) -> dict:
    """x of a model whose latents are white, from the random effects."""
    return {name: whitened(theta["sd"][name], theta["cor"][name], one) for name, one in b.items()}


def _simulate(
    family: Family, blocks: Blocks, key: Any, theta: Theta, x: dict | None, data: dict
) -> dict:
    """New responses; x None: with new random effects, too."""
    key_x, key_y = jax.random.split(key)
    if x is None:
        sd, cor, keys = theta["sd"], theta["cor"], jax.random.split(key_x, len(blocks))
        pairs = zip(blocks, keys, strict=True)
        x = {name: draw_effects(k, sd[name], cor[name], levels) for (name, levels), k in pairs}
    eta = linear_predictor(blocks, theta, x, data)
    drawn = family.draw(key_y, own_parameters(family, theta, data), eta, data)
    y = jnp.where(data["mask"], drawn, data["y"])
    return data | responses(family, y, data)


def responses(family: Family, y: Array, data: dict) -> dict[str, Array]:
    """The parts of the data that are other with other responses."""
    safe = jnp.where(data["mask"], y, 0.0 if family.has_zero else 1.0)
    return {"y": y} | family.constants(safe, data.get("size"), JAX)


def _constrain(family: Family, theta: Theta) -> Theta:
    """Standard deviations and correlations from what the optimiser sees."""
    out = dict(theta, sd=jax.tree.map(jnp.exp, theta["sd"]), cor={})
    for name, z in theta["cor"].items():
        root = root_of_numbers(z, theta["sd"][name].shape[0])
        out["cor"][name] = correlations(root, z)
    own = {n: kind.constrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return out | own


def _unconstrain(family: Family, theta: Theta) -> Theta:
    out = dict(theta, sd=jax.tree.map(jnp.log, theta["sd"]), cor={})
    for name, cor in theta["cor"].items():
        root = root_of_correlations(cor, theta["sd"][name].shape[0])
        out["cor"][name] = numbers(root, cor)
    own = {n: kind.unconstrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return out | own


def mixed(
    formula: str,
    data: Any,
    *,
    family: Any = "gaussian",
    dispersion: str | None = None,
    zero: str | None = None,
    weights: str | None = None,
) -> Model:
    """A mixed model from a formula; see `jalax.mixed`, which also fits it.

    The arguments are as there: formula, data, family, dispersion, zero and weights.

    >>> from jalax import datasets, models
    >>> model = models.mixed("yield_ ~ 1 + (1|batch)", datasets.dyestuff().to_frame())
    >>> model.num_groups, sorted(model.theta)
    (6, ['beta', 'cor', 'sd', 'sigma'])
    """
    model, _ = build(formula, data, family, Asked(dispersion, zero, weights))
    return model


def rebuilt(mixed: MixedDesign) -> Model:
    """The model of a fit, made again."""
    design = mixed.design
    model, _ = build(design.formula, design.frame, unwrapped(mixed.family), design.asked)
    return model


def unwrapped(family: Family) -> Family:
    """The family that was asked for."""
    return family.family if isinstance(family, WithZeros) else family


def build(
    formula: str, data: Any, family: Any, asked: Asked = NOTHING
) -> tuple[Model, MixedDesign]:
    family = find(family)
    design = parse(formula, data, asked, isinstance(family, Ordinal))
    if asked.zero is not None:
        family = WithZeros(family)
    if asked.dispersion is not None and family.dispersion is None:
        raise ValueError(f"{family!r} has no parameter that a formula for dispersion is about.")
    rows = _rows(design, family)
    outer = outer_factor(design.blocks)
    groups, index = (1, np.zeros(design.y.size, int)) if outer is None else _groups(design, outer)
    latent, levels = {}, {}
    for block in design.blocks:
        local, known = _local_levels(block, index, groups)
        rows["Z"][block.name], rows["level"][block.name] = block.matrix, local
        latent[block.name] = jnp.zeros((known.shape[1], len(block.effects)))
        levels[block.name] = known if outer is not None else known[0]
    names = tuple((block.name, latent[block.name].shape[0]) for block in design.blocks)
    log_joint = functools.partial(_log_joint, family, names)
    pieces = None if outer is None else _pieces(family, names, design, log_joint)
    if pieces is not None:
        log_joint = functools.partial(nested.log_joint, pieces)
        latent = {name: latent[name] for name, levels_of in names if levels_of == 1}
    slots = None if pieces is None else nested.slots(pieces.chain, rows["level"], index)
    theta, constrain = first_theta(design, family), functools.partial(_constrain, family)
    if outer is None:
        arrays = _checks.to_jax(rows)
        structure = _structure(latent, rows["level"])
        model = Model(
            log_joint, latent, arrays, theta=theta, constrain=constrain, structure=structure
        )
    else:
        grouped = jax.tree.map(lambda leaf: by_group(leaf, index, groups, slots), rows)
        if pieces is not None:
            grouped["parent"] = nested.parents(pieces.chain, rows["level"], index)
        arrays = _checks.to_jax(grouped)
        model = GroupedModel(log_joint, latent, arrays, theta=theta, constrain=constrain)
    model.outside = Outside(
        unconstrain=functools.partial(_unconstrain, family),
        labels=_labels(design, family, theta),
        groups=None if outer is None else _group_labels(design, outer),
        observed=("y", "size"),
        simulate=None if _is_censored(design) else functools.partial(_simulate, family, names),
        switch=WHITE,
        white=random_effects,
        within=None if pieces is None else functools.partial(nested.drawn, pieces),
        finer=None if pieces is None else functools.partial(nested.finer, pieces),
    )
    return model, MixedDesign(design, family, outer, levels, slots)


def _pieces(family: Family, names: Blocks, design: Design, whole: Callable) -> nested.Pieces | None:
    """Of a model whose inner factors are integrated out level by level; None: they are latents."""
    chain = nested.chain_of(design.blocks, dict(names))
    if not chain:
        return None
    outer = tuple((name, levels) for name, levels in names if levels == 1)
    return nested.Pieces(
        whole=whole,
        prior=functools.partial(_log_prior, outer),
        predictor=functools.partial(_outer_predictor, outer),
        rows=functools.partial(_row_densities, family),
        effects=_effects_of,
        chain=chain,
    )


def _outer_predictor(blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    return linear_predictor(blocks, theta, random_effects(theta, x, data), data)


def _effects_of(theta: Theta, name: str, white: Array) -> Array:
    return effects(theta["sd"][name], theta["cor"][name], white)


def with_all_effects(model: Model, mixed: MixedDesign) -> Model:
    """The model with the random effects of all factors as its latents."""
    if model.outside.within is None:
        return model
    shapes = ((b.name, mixed.levels[b.name].shape[-1], len(b.effects)) for b in mixed.design.blocks)
    latent = {name: jnp.zeros((levels, size)) for name, levels, size in shapes}
    return model.replace(latent=latent)


def _is_censored(design: Design) -> bool:
    """When the others would have been is not known, so that such data cannot be simulated."""
    return design.response.event is not None and not design.response.event.all()


def _structure(latent: dict[str, Any], level: dict[str, np.ndarray]) -> Any:
    """Of crossed factors: effects meet where their levels are in the same row."""
    positions, begin = [], 0
    for name in sorted(latent):  # the order of the ravelled latent
        levels, effects = latent[name].shape
        index = np.asarray(level[name])[:, None] if levels > 1 else 0
        rows = len(level[name])
        positions.append(
            np.broadcast_to(begin + index * effects + np.arange(effects), (rows, effects))
        )
        begin += levels * effects
    return meeting(np.concatenate(positions, axis=1))


def _rows(design: Design, family: Family) -> dict[str, Any]:
    y, size, event = design.y, design.size, design.response.event
    family.check(design.response.name, y, size)
    if event is not None and not hasattr(family, "survival"):
        raise ValueError(
            f"{design.response.name} has censored times, which family={family.name!r} cannot have: "
            "use 'weibull', 'exponential' or 'lognormaltime'."
        )
    rows: dict[str, Any] = {"X": design.X, "offset": design.offset, "Z": {}, "level": {}, "y": y}
    rows["mask"] = np.ones(y.shape, bool)
    if hasattr(family, "survival"):
        rows["event"] = np.ones_like(y) if event is None else event
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            rows[f"X of {what}"] = side.X
    if design.weights is not None:
        rows["weight"] = design.weights
    if size is not None:
        rows["size"] = size
    return rows | family.constants(y, size, HOST)


def outer_factor(blocks: tuple[Block, ...]) -> str | None:
    """The factor that every other one is nested in; None: they are crossed."""
    for block in blocks:
        if all(nested.is_nested(other.index, block.index) for other in blocks):
            return block.factor
    return None


def _groups(design: Design, outer: str) -> tuple[int, np.ndarray]:
    block = next(block for block in design.blocks if block.factor == outer)
    return len(block.labels), block.index


def _group_labels(design: Design, outer: str) -> tuple[str, ...]:
    return next(block.labels for block in design.blocks if block.factor == outer)


def _local_levels(block: Block, group: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The level of each row counted within its group, and (G, L) the levels so counted."""
    pairs = np.unique(np.stack([group, block.index]), axis=1)
    sizes = np.bincount(pairs[0], minlength=groups)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    position = np.arange(pairs.shape[1]) - first
    known = np.full((groups, sizes.max()), -1)
    known[pairs[0], position] = pairs[1]
    local = np.zeros(len(block.labels), int)
    local[pairs[1]] = position  # a level belongs to one group
    return local[block.index], known


def _labels(design: Design, family: Family, theta: Theta) -> tuple[str, ...]:
    """A name for each number of theta, whose parts are in the order of the alphabet."""
    blocks = sorted(design.blocks, key=lambda block: block.name)
    pairs = [
        f"cor {block.effects[j]}, {block.effects[i]} | {block.name}"
        for block in blocks
        for i in range(len(block.effects))
        for j in range(i)
    ]
    deviations = [f"sd {effect} | {block.name}" for block in blocks for effect in block.effects]
    known = {"beta": list(design.fixed), "cor": pairs, "sd": deviations}
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            known[what] = [f"{what} {name}" for name in side.names]
    if design.response.categories is not None:
        labels = design.response.categories
        known["thresholds"] = [f"{a}|{b}" for a, b in itertools.pairwise(labels)]
    return tuple(name for part in sorted(theta) for name in known.get(part, [part]))
