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
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jalax._model.groups import by_group
from jalax._model.model import GroupedModel, Model, Outside
from jalax.families._catalogue import find
from jalax.families._continuous import Gaussian
from jalax.families._family import HOST, JAX, Family
from jalax.families._multinomial import Multinomial
from jalax.families._ordinal import Ordinal
from jalax.families._zeros import LOG_ODDS, WithZeros

from . import _checks, _effects
from ._categories import per_category
from ._contrasts import Contrasts, check
from ._covariances import Covariance, Placed
from ._design import NOTHING, Asked, Design, parse
from ._effects import COVARIANCE, WHITE, Laws
from ._first_theta import first_theta
from ._formula import Block
from ._kept_rows import Drop, Missing
from ._places import places_of, structure_of
from ._r_words import named_options
from ._restricted import (
    REML,
    Compressed,
    check_restricted,
    compressed,
    plus_restricted,
    root_of,
    shapes_of,
)

Theta = dict[str, Any]
Blocks = tuple[tuple[str, int], ...]  # the names of blocks, and the levels of each in a group


class MixedDesign(NamedTuple):
    """What a fitted mixed model is reported by."""

    design: Design
    family: Family
    outer: str | None  # the factor whose levels are the groups; None: one joint latent
    levels: dict[str, np.ndarray]  # block: (G, L) or (L,), level of each latent row; -1: none
    placed: dict[str, Placed]  # block: the law of its random effects, and what that knows
    restricted: Compressed | None = None  # of REML, columns X and y less the offset

    @property
    def num_rows(self) -> int:
        return self.design.y.size

    @property
    def laws(self) -> Laws:
        return tuple((block.name, self.placed[block.name].law) for block in self.design.blocks)


DROP = Drop()


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
    mask = jnp.reshape(data["mask"], data["mask"].shape + (1,) * (eta.ndim - data["mask"].ndim))
    return jnp.where(mask, eta, 0.0)  # nothing can overflow in the padding


def own_parameters(family: Family, theta: Theta, data: dict) -> dict[str, Any]:
    """The family's own parameters: numbers of theta, or one for each row by a formula."""
    own = {name: theta[name] for name in family.own if name in theta}
    if "dispersion" in theta:
        own[str(family.dispersion)] = jnp.exp(_of_side("dispersion", theta, data))
    if "precision" in data:
        own["sigma"] = own["sigma"] / jnp.sqrt(jnp.where(data["mask"], data["precision"], 1.0))
    if "zero" in theta:
        own[LOG_ODDS] = _of_side("zero", theta, data)
    return own


def _of_side(what: str, theta: Theta, data: dict) -> Array:
    return jnp.matmul(data[f"X of {what}"], theta[what], precision="highest")


def _log_joint(
    family: Family, blocks: Blocks, laws: Laws, theta: Theta, x: dict, data: dict
) -> Array:
    total = _effects.log_prior(laws, theta, x, data, jnp.zeros((), theta["beta"].dtype))
    eta = linear_predictor(blocks, theta, _effects.random_effects(laws, theta, x, data), data)
    rows = family.log_density(own_parameters(family, theta, data), eta, data)
    if "weight" in data:
        rows = data["weight"] * rows
    return total + jnp.sum(jnp.where(data["mask"], rows, 0.0))


def from_white(laws: Laws, theta: Theta, white: dict) -> dict:
    """The random effects of white latents."""
    return _effects.random_effects(laws, theta, white, {WHITE: 1})


def _simulate(
    family: Family, blocks: Blocks, laws: Laws, key: Any, theta: Theta, x: dict | None, data: dict
) -> dict:
    """New responses; x None: with new random effects, too."""
    key_x, key_y = jax.random.split(key)
    if x is None:
        x = _effects.draw_effects(laws, key_x, theta, dict(blocks), data)
    eta = linear_predictor(blocks, theta, x, data)
    drawn = family.draw(key_y, own_parameters(family, theta, data), eta, data)
    y = jnp.where(data["mask"], drawn, data["y"])
    return data | responses(family, y, data)


def responses(family: Family, y: Array, data: dict) -> dict[str, Array]:
    """The parts of the data that are other with other responses."""
    safe = jnp.where(data["mask"], y, 0.0 if family.has_zero else 1.0)
    return {"y": y} | family.constants(safe, data.get("size"), JAX)


def _constrain(family: Family, laws: Laws, theta: Theta) -> Theta:
    """What the optimiser sees as the user does: standard deviations, correlations and so on."""
    own = {n: kind.constrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return _effects.constrain(laws, theta) | own


def _unconstrain(family: Family, laws: Laws, theta: Theta) -> Theta:
    own = {n: kind.unconstrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return _effects.unconstrain(laws, theta) | own


@named_options("jalax.models.mixed")
def mixed(
    formula: str,
    data: Any,
    *,
    family: Any = "gaussian",
    dispersion: str | None = None,
    zero: str | None = None,
    weights: Any = None,
    precision_weights: Any = None,
    offset: str | None = None,
    contrasts: Mapping[str, Contrasts] | None = None,
    covariances: Mapping[str, Covariance] | None = None,
    subset: Any = None,
    missing: Missing = DROP,
    likelihood: REML | None = None,
) -> Model:
    """A mixed model from a formula; see `jalax.mixed`, which also fits it.

    The arguments are as there: formula, data, family, dispersion, zero, weights,
    precision_weights, offset, contrasts, covariances, subset, missing and likelihood.

    >>> from jalax import datasets, models
    >>> model = models.mixed("yield_ ~ 1 + (1|batch)", datasets.dyestuff().to_frame())
    >>> model.num_groups, sorted(model.theta)
    (6, ['beta', 'cor', 'sd', 'sigma'])
    """
    asked = Asked(
        dispersion=dispersion,
        zero=zero,
        weights=weights,
        precision_weights=precision_weights,
        offset=offset,
        contrasts=check(contrasts),
        covariances=covariances,
        subset=subset,
        missing=missing,
        likelihood=likelihood,
    )
    model, design = build(formula, data, family, asked)
    if design.design.left_out is not None:
        warnings.warn(design.design.left_out.sentence, stacklevel=3)
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
    kinds = isinstance(family, Ordinal), isinstance(family, Multinomial)
    design = parse(formula, data, asked, *kinds)
    if isinstance(family, Multinomial):
        design = per_category(design)
    if asked.zero is not None:
        family = WithZeros(family)
    if asked.dispersion is not None and family.dispersion is None:
        raise ValueError(f"{family!r} has no parameter that a formula for dispersion is about.")
    rows = _rows(design, family)
    outer = None if _effects.has_joint_levels(design) else outer_factor(design.blocks)
    groups, index = (1, np.zeros(design.y.size, int)) if outer is None else _groups(design, outer)
    latent, levels = {}, {}
    for block in design.blocks:
        local, known = _local_levels(block, index, groups)
        rows["Z"][block.name], rows["level"][block.name] = block.matrix, beside(local, design)
        latent[block.name] = jnp.zeros((known.shape[1], len(block.effects)))
        levels[block.name] = known if outer is not None else known[0]
    names = tuple((block.name, latent[block.name].shape[0]) for block in design.blocks)
    found = MixedDesign(design, family, outer, levels, _placed(design, levels))
    laws = found.laws
    log_joint: Any = functools.partial(_log_joint, family, names, laws)
    if asked.likelihood is not None:
        check_restricted(asked.likelihood, family, design.dispersion is not None, latent)
        restricted = _restricted(found, rows, index, latent)
        found = found._replace(restricted=restricted)
        of_X, root = restricted.of_first(design.X.shape[1]), restricted_root(found, latent)
        log_joint = functools.partial(plus_restricted, log_joint, of_X, root)
    theta = first_theta(design, family, found.placed)
    constrain = functools.partial(_constrain, family, laws)
    if outer is None:
        known_of = _effects.known_arrays(found.placed)
        arrays = _checks.to_jax(rows | ({COVARIANCE: known_of} if known_of else {}))
        pairs = _effects.joint_pairs(latent, found.placed)
        structure = structure_of(latent, rows["level"], pairs)
        model = Model(
            log_joint, latent, arrays, theta=theta, constrain=constrain, structure=structure
        )
    else:
        arrays = _checks.to_jax(jax.tree.map(lambda leaf: by_group(leaf, index, groups), rows))
        model = GroupedModel(log_joint, latent, arrays, theta=theta, constrain=constrain)
    simulate = functools.partial(_simulate, family, names, laws)
    model.outside = Outside(
        unconstrain=functools.partial(_unconstrain, family, laws),
        labels=_labels(found, theta),
        groups=None if outer is None else _group_labels(design, outer),
        observed=("y", "size"),
        simulate=simulate if can_simulate(design) else None,
        switch=WHITE,
        white=functools.partial(_effects.random_effects, laws),
    )
    if not all(law.is_normal for _, law in laws):  # these have lighter tails
        model = model.whitened() or model
    return model, found


def _restricted(found: MixedDesign, rows: dict, group: np.ndarray, latent: dict) -> Compressed:
    for name, (law, known, _) in found.placed.items():
        if law.is_joint or known or not law.is_normal:
            raise ValueError(
                f"REML is for normal random effects whose levels are independent, not for those of "
                f"covariances={{{name!r}: ...}}: leave likelihood= out."
            )
    design = found.design
    z = np.concatenate([rows["Z"][name] for name in sorted(latent)], axis=1)
    columns = np.column_stack([design.X, design.y - design.offset])
    return compressed(
        columns, design.precisions, z, places_of(latent, rows["level"]), group, latent
    )


def restricted_root(found: MixedDesign, latent: dict) -> Any:
    """theta to the root of Sigma, see `root_of`; `latent` has the shapes of the random effects."""
    return functools.partial(root_of, shapes_of(latent), functools.partial(from_white, found.laws))


def _placed(design: Design, levels: dict[str, np.ndarray]) -> dict[str, Placed]:
    """Of independent groups there is none whose law asks for its levels."""
    labels = {
        block.name: [block.labels[i] for i in np.ravel(levels[block.name]) if i >= 0]
        for block in design.blocks
    }
    return _effects.placed_blocks(design, labels)


def can_simulate(design: Design) -> bool:
    """Not where times are censored, since it is not known when the others would have been.

    Nor where a row counts otherwise than once: it would stand for several responses.
    """
    censored = design.response.event is not None and not design.response.event.all()
    return not censored and (design.weights is None or bool((design.weights == 1).all()))


def _rows(design: Design, family: Family) -> dict[str, Any]:
    y, size, event = design.y, design.size, design.response.event
    family.check(design.response.name, y, size)
    if event is not None and not hasattr(family, "survival"):
        raise ValueError(
            f"{design.response.name} has censored times, which family={family.name!r} cannot have: "
            "use 'weibull', 'exponential' or 'lognormaltime'."
        )
    rows: dict[str, Any] = {"X": design.X, "Z": {}, "level": {}, "y": y}
    rows |= {"offset": beside(design.offset, design), "mask": np.ones(y.shape, bool)}
    if hasattr(family, "survival"):
        rows["event"] = np.ones_like(y) if event is None else event
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            rows[f"X of {what}"] = side.X
    if design.weights is not None:
        rows["weight"] = design.weights
    if design.precision is not None:
        if not isinstance(family, Gaussian):
            raise ValueError(
                f"precision_weights divide the variance of a Gaussian response, not of {family!r}: "
                "weights= says how often a row counts, of any family."
            )
        rows["precision"] = design.precision
    if size is not None:
        rows["size"] = size
    return rows | family.constants(y, size, HOST)


def beside(column: np.ndarray, design: Design) -> np.ndarray:
    """One value a row, the same for all linear predictors of that row."""
    return column[:, None] if design.predictors is not None else column


def outer_factor(blocks: tuple[Block, ...]) -> str | None:
    """The factor that every other one is nested in; None: they are crossed."""
    for block in blocks:
        if all(_nested(other.index, block.index) for other in blocks):
            return block.factor
    return None


def _nested(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Every level of `inner` lies within one level of `outer`."""
    pairs = np.unique(np.stack([inner, outer]), axis=1)
    return bool(pairs.shape[1] == np.unique(inner).size)


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


def _labels(mixed: MixedDesign, theta: Theta) -> tuple[str, ...]:
    """A name for each number of theta, whose parts are in the order of the alphabet."""
    design = mixed.design
    known = {"beta": list(design.fixed)} | _effects.labels_of(design, mixed.placed)
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            known[what] = [f"{what} {name}" for name in side.names]
    if design.response.categories is not None:
        labels = design.response.categories
        known["thresholds"] = [f"{a}|{b}" for a, b in itertools.pairwise(labels)]
    return tuple(name for part in sorted(theta) for name in known.get(part, [part]))
