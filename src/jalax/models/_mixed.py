r"""Mixed models by formula: fixed effects, random effects in one or several factors.

$$b_k \sim \mathcal{N}(0, \Sigma_{f(k)}), \qquad
  \eta = X \beta + o + \sum_f Z_f b_f, \qquad y \mid b \sim \text{family}(\eta).$$

Where all grouping factors are nested in one, its levels are independent groups; where they are
crossed, all random effects are one joint latent. Latents are the random effects or, where
$\Sigma$ comes near a singular one, white: $b = \Lambda x$ with $\Lambda \Lambda' = \Sigma$.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jalax._model.groups import by_group
from jalax._model.model import GroupedModel, Model, Outside
from jalax._model.structure import meeting

from . import _checks
from ._families import gammaln
from ._formula import Block, Design, parse
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
from ._responses import BINOMIAL, draw
from ._softplus import softplus

Theta = dict[str, Any]
Blocks = tuple[tuple[str, int], ...]  # the names of blocks, and the levels of each in a group


class MixedDesign(NamedTuple):
    """What a fitted mixed model is reported by."""

    design: Design
    family: str
    outer: str | None  # the factor whose levels are the groups; None: one joint latent
    levels: dict[str, np.ndarray]  # block: (G, L) or (L,), level of each latent row; -1: none

    @property
    def num_rows(self) -> int:
        return self.design.y.size


# --- families: log p(y | eta) of each row --------------------------------------------------------


def _gaussian(theta: Theta, eta: Array, data: dict) -> Array:
    sigma = theta["sigma"]
    return -0.5 * (LOG_2PI + ((data["y"] - eta) / sigma) ** 2) - jnp.log(sigma)


def _binomial(theta: Theta, eta: Array, data: dict) -> Array:
    return data["y"] * eta - data["size"] * softplus(eta) + data["constant"]


def _poisson(theta: Theta, eta: Array, data: dict) -> Array:
    return data["y"] * eta - jnp.exp(eta) + data["constant"]


def _negative_binomial(theta: Theta, eta: Array, data: dict) -> Array:
    """Mean e^eta, variance mu + mu^2 / k with the shape k."""
    k, y = theta["shape"], data["y"]
    log_k = jnp.log(k)
    choose = jax.scipy.special.gammaln(y + k) - jax.scipy.special.gammaln(k)
    return choose + data["constant"] + k * log_k + y * eta - (y + k) * jnp.logaddexp(log_k, eta)


FAMILIES = {
    "gaussian": _gaussian,
    "binomial": _binomial,
    "bernoulli": _binomial,
    "poisson": _poisson,
    "negativebinomial": _negative_binomial,
}
WHITE = "white"  # an entry of the data of a model whose latents are white, see Model.whitened
DISPERSION = ("shape", "sigma")  # a parameter of the family besides beta


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


def _log_joint(family: str, blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    total = jnp.zeros((), theta["beta"].dtype)
    for name, _ in blocks:
        if WHITE in data:
            total = total - 0.5 * (jnp.sum(x[name] ** 2) + x[name].size * LOG_2PI)
        else:
            total = total + log_prior(theta["sd"][name], theta["cor"][name], x[name])
    eta = linear_predictor(blocks, theta, random_effects(theta, x, data), data)
    return total + jnp.sum(jnp.where(data["mask"], FAMILIES[family](theta, eta, data), 0.0))


def random_effects(theta: Theta, x: dict, data: dict) -> dict:
    """The random effects b: x itself or, where x is white, the root of Sigma times x."""
    if WHITE not in data:
        return x
    return {n: effects(theta["sd"][n], theta["cor"][n], white) for n, white in x.items()}


def whiten(theta: Theta, b: dict) -> dict:
    """x of a model whose latents are white, from the random effects."""
    return {name: whitened(theta["sd"][name], theta["cor"][name], one) for name, one in b.items()}


def _simulate(
    family: str, blocks: Blocks, key: Any, theta: Theta, x: dict | None, data: dict
) -> dict:
    """New responses; x None: with new random effects, too."""
    key_x, key_y = jax.random.split(key)
    if x is None:
        sd, cor, keys = theta["sd"], theta["cor"], jax.random.split(key_x, len(blocks))
        pairs = zip(blocks, keys, strict=True)
        x = {name: draw_effects(k, sd[name], cor[name], levels) for (name, levels), k in pairs}
    eta = linear_predictor(blocks, theta, x, data)
    y = jnp.where(data["mask"], draw(key_y, family, theta, eta, data), data["y"])
    return data | responses(family, y, data)


def responses(family: str, y: Array, data: dict) -> dict[str, Array]:
    """The parts of the data that are other with other responses."""
    log_factorial = jax.scipy.special.gammaln
    if family == "gaussian":
        return {"y": y}
    if family in BINOMIAL:
        size = data["size"]
        left = log_factorial(size + 1) - log_factorial(size - y + 1)
        return {"y": y, "constant": left - log_factorial(y + 1)}
    return {"y": y, "constant": -log_factorial(y + 1)}


def _constrain(theta: Theta) -> Theta:
    """Standard deviations and correlations from what the optimiser sees."""
    out = dict(theta, sd=jax.tree.map(jnp.exp, theta["sd"]), cor={})
    for name, z in theta["cor"].items():
        root = root_of_numbers(z, theta["sd"][name].shape[0])
        out["cor"][name] = correlations(root, z)
    return out | {name: jnp.exp(theta[name]) for name in DISPERSION if name in theta}


def _unconstrain(theta: Theta) -> Theta:
    out = dict(theta, sd=jax.tree.map(jnp.log, theta["sd"]), cor={})
    for name, cor in theta["cor"].items():
        root = root_of_correlations(cor, theta["sd"][name].shape[0])
        out["cor"][name] = numbers(root, cor)
    return out | {name: jnp.log(theta[name]) for name in DISPERSION if name in theta}


def mixed(formula: str, data: Any, *, family: str = "gaussian") -> Model:
    """A mixed model from a formula; see `jalax.mixed`, which also fits it.

    `formula`, `data` and `family` are as there.

    >>> from jalax import datasets, models
    >>> model = models.mixed("yield_ ~ 1 + (1|batch)", datasets.dyestuff().to_frame())
    >>> model.num_groups, sorted(model.theta)
    (6, ['beta', 'cor', 'sd', 'sigma'])
    """
    model, _ = build(formula, data, family)
    return model


def build(formula: str, data: Any, family: str) -> tuple[Model, MixedDesign]:
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}.")
    design = parse(formula, data)
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
    theta = _first_theta(design, family)
    if outer is None:
        arrays = _checks.to_jax(rows)
        structure = _structure(latent, rows["level"])
        model = Model(
            log_joint, latent, arrays, theta=theta, constrain=_constrain, structure=structure
        )
    else:
        arrays = _checks.to_jax(jax.tree.map(lambda leaf: by_group(leaf, index, groups), rows))
        model = GroupedModel(log_joint, latent, arrays, theta=theta, constrain=_constrain)
    model.outside = Outside(
        unconstrain=_unconstrain,
        labels=_labels(design, family),
        groups=None if outer is None else _group_labels(design, outer),
        observed=("y", "size"),
        simulate=functools.partial(_simulate, family, names),
        switch=WHITE,
        white=random_effects,
    )
    return model, MixedDesign(design, family, outer, levels)


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


def _rows(design: Design, family: str) -> dict[str, Any]:
    y, size = design.y, design.size
    rows: dict[str, Any] = {"X": design.X, "offset": design.offset, "Z": {}, "level": {}}
    rows["mask"] = np.ones(y.shape, bool)
    _check_response(design, family)
    if family == "gaussian":
        return rows | {"y": y}
    if family in ("binomial", "bernoulli"):
        size = np.ones_like(y) if size is None else size
        constant = gammaln(size + 1) - gammaln(y + 1) - gammaln(size - y + 1)
        return rows | {"y": y, "size": size, "constant": constant}
    return rows | {"y": y, "constant": -gammaln(y + 1)}


def _check_response(design: Design, family: str) -> None:
    y, size, name = design.y, design.size, design.response
    if size is not None and family != "binomial":
        raise ValueError(f"{name} is a count out of trials: use family='binomial', not {family!r}.")
    if family == "gaussian":
        if np.ptp(y) == 0:
            raise ValueError(f"the response {name!r} is {y[0]:g} in every row: nothing varies.")
        return
    if family in ("binomial", "bernoulli") and size is None:
        if not np.isin(y, (0, 1)).all():
            wrong = y[~np.isin(y, (0, 1))][0]
            raise ValueError(
                f"family={family!r} needs a response of 0 and 1, or p(successes, trials); "
                f"{name!r} has {wrong:g}."
            )
        return
    wrong = (y < 0) | (y != np.floor(y))
    if wrong.any():
        raise ValueError(
            f"family={family!r} needs counts, whole numbers from 0 upwards; {name!r} has "
            f"{y[wrong][0]:g}. For measurements use family='gaussian'."
        )


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


def _labels(design: Design, family: str) -> tuple[str, ...]:
    """In the order of theta: beta, cor, sd, and shape or sigma."""
    blocks = sorted(design.blocks, key=lambda block: block.name)
    names = list(design.fixed)
    for block in blocks:
        pairs = [(i, j) for i in range(len(block.effects)) for j in range(i)]
        names += [f"cor {block.effects[j]}, {block.effects[i]} | {block.name}" for i, j in pairs]
    for block in blocks:
        names += [f"sd {effect} | {block.name}" for effect in block.effects]
    # sigma and shape come after sd, by the alphabet
    last = {"gaussian": ["sigma"], "negativebinomial": ["shape"]}
    return tuple(names + last.get(family, []))


def _first_theta(design: Design, family: str) -> Theta:
    """A generalised linear model without random effects, and deviations on its scale."""
    beta, spread = _glm(design, family)
    count = sum(len(block.effects) for block in design.blocks)
    sd, cor = {}, {}
    for block in design.blocks:
        scale = np.sqrt((block.matrix**2).mean(axis=0)) + 1e-30
        sd[block.name] = spread / np.sqrt(2 * count) / scale
        cor[block.name] = np.zeros(len(block.effects) * (len(block.effects) - 1) // 2)
    theta = {"beta": beta, "sd": sd, "cor": cor}
    if family == "gaussian":
        theta["sigma"] = spread / np.sqrt(2)
    if family == "negativebinomial":
        theta["shape"] = np.ones(())
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=float), theta)


def _glm(design: Design, family: str) -> tuple[np.ndarray, float]:
    """beta by iterated least squares, and a spread on the scale of eta."""
    X, y, offset = design.X, design.y, design.offset
    if family == "gaussian":
        beta = np.linalg.lstsq(X, y - offset, rcond=None)[0]
        spread = float(np.std(y - offset - X @ beta))
        return beta, max(spread, 1e-8 * (1.0 + float(np.abs(y).max())))
    size = np.ones_like(y) if design.size is None else design.size
    beta = np.zeros(X.shape[1])
    ridge = 1e-4 * (X**2).sum(axis=0) / y.size + 1e-12  # separable data would send beta away
    for _ in range(25):
        eta = np.clip(X @ beta + offset, -15, 15)
        if family in ("binomial", "bernoulli"):
            mean = size / (1 + np.exp(-eta))
            weight = mean * (1 - mean / size)
        else:
            mean = weight = np.exp(eta)
        score = X.T @ (y - mean) - ridge * beta
        beta = beta + np.linalg.solve((X.T * weight) @ X + np.diag(ridge), score)
    return beta, 1.0
