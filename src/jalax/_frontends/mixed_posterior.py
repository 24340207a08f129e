r"""The random effects given the data, at the theta of a fit.

Of a Gaussian model $b \mid y$ is Gaussian, with a mean and a covariance in closed form; of the
others they are those of the weighted particles. Both also tell how the mean moves with theta,
which an interval needs: $\partial E[b \mid y] / \partial\theta = \mathrm{Cov}(b,\, \partial \log
p_\theta(b, y) / \partial\theta \mid y)$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence.record import SavedState
from jalax._evidence.uncertainty import Uncertainty
from jalax._fit.result import FitResult
from jalax._model.model import Model
from jalax._particles.weight_math import normalise
from jalax._reference.points import LATENTS_UP_TO
from jalax._runtime.compilation import LEVEL_1, jit
from jalax._runtime.layouts import use_mesh
from jalax.models import _new_rows
from jalax.models._formula import Block
from jalax.models._mixed import MixedDesign, build

MOST = (
    40_000_000  # numbers of the covariances of all groups, 0.3 GB: beyond, the particles are used
)
AT_ONCE = 4_000_000  # numbers of rows times particles
GROUPS_AT_ONCE = 64
BLOCKS = 8  # of quasi-random points, for the error of a mean

Theta = dict[str, Any]


class Parts(NamedTuple):
    """Random effects in the linear predictor of rows: sum_k z[k] b[group, position[k]]."""

    group: np.ndarray  # (n,)
    position: np.ndarray  # (n, K), among the flat latents of the group
    z: np.ndarray  # (n, K)


class Levels(NamedTuple):
    """Of every random effect, (G, D)."""

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray  # of the mean, by Monte Carlo


class Posterior(Protocol):
    def levels(self) -> Levels: ...

    def moments(self, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the random part of each row."""

    def slopes(self, parts: Parts) -> np.ndarray:
        """(n, P): how these means move with theta, on the user's scale."""

    def average(self, of: Callable, base: np.ndarray, parts: Parts) -> np.ndarray:
        """The mean of `of(base + random part)`."""

    def draw(self, key: jax.Array) -> np.ndarray:
        """(G, D): one draw of all random effects."""


def posterior(result: FitResult, mixed: MixedDesign) -> Posterior:
    groups = 1 if mixed.outer is None else len(next(iter(mixed.levels.values())))
    if mixed.family == "gaussian" and groups * size_of(mixed) ** 2 <= MOST:
        return Exact(result, mixed)
    return Weighted(result, mixed)


# --- where a random effect is --------------------------------------------------------------------


def _first_positions(mixed: MixedDesign) -> dict[str, int]:
    """Of each block among the flat latents of a group, which are in the order of the names."""
    first, begin = {}, 0
    for block in sorted(mixed.design.blocks, key=lambda block: block.name):
        first[block.name] = begin
        begin += mixed.levels[block.name].shape[-1] * len(block.effects)
    return first


def size_of(mixed: MixedDesign) -> int:
    """Latents of a group."""
    blocks = mixed.design.blocks
    return sum(mixed.levels[block.name].shape[-1] * len(block.effects) for block in blocks)


def homes(mixed: MixedDesign, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """The group of each level, and its first position there; -1: a level without rows."""
    known = np.atleast_2d(mixed.levels[block.name])
    group = np.full(len(block.labels), -1)
    position = np.zeros(len(block.labels), int)
    g, place = np.nonzero(known >= 0)
    level = known[g, place]
    group[level] = g
    position[level] = _first_positions(mixed)[block.name] + place * len(block.effects)
    return group, position


def parts_of(mixed: MixedDesign, random: _new_rows.Random) -> list[Parts]:
    """The known random effects of rows; the second of the list where a row meets two groups.

    New rows may join levels of nested factors that were apart in the data. Groups are
    independent, so what they add to a row is added up.
    """
    groups, positions, zs = [], [], []
    for block in mixed.design.blocks:
        group, position = homes(mixed, block)
        level, effects = random.level[block.name], len(block.effects)
        own = np.where(level >= 0, group[level], -1)
        groups.append(np.repeat(own[:, None], effects, axis=1))
        positions.append(position[level][:, None] + np.arange(effects))
        zs.append(random.Z[block.name])
    group, position, z = (np.concatenate(columns, axis=1) for columns in (groups, positions, zs))
    found: list[Parts] = []
    left = group >= 0
    while not found or left.any():
        first = np.argmax(left, axis=1)
        lead = np.where(left.any(axis=1), group[np.arange(len(group)), first], 0)
        here = left & (group == lead[:, None])
        found.append(Parts(lead, np.where(here, position, 0), np.where(here, z, 0.0)))
        left = left & ~here
    return found


# --- theta ---------------------------------------------------------------------------------------


def numbers(theta: Theta) -> Theta:
    """theta in NumPy and float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), theta)


def covariance_of(theta: Theta, block: Block) -> np.ndarray:
    """Sigma of a block."""
    sd, size = np.asarray(theta["sd"][block.name], float), len(block.effects)
    correlation = np.eye(size)
    correlation[np.tril_indices(size, -1)] = np.asarray(theta["cor"][block.name], float)
    correlation = correlation + np.tril(correlation, -1).T
    return correlation * np.outer(sd, sd)


def theta_covariance(known: Uncertainty) -> np.ndarray:
    """(P, P) on the user's scale; numbers without a standard error are taken as known."""
    free = np.where(np.isfinite(known.covariance), known.covariance, 0.0)
    return known.jacobian @ free @ known.jacobian.T


# --- in closed form ------------------------------------------------------------------------------


class Exact:
    """Of a Gaussian model: b | y is Gaussian."""

    def __init__(self, result: FitResult, mixed: MixedDesign):
        self.theta, self.mixed = numbers(result.theta), mixed
        self.mean, self.covariance, self.of_beta = _solved(self.theta, mixed)

    def levels(self) -> Levels:
        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        sd = np.sqrt(np.maximum(variance, 0.0))
        return Levels(self.mean, sd, np.zeros_like(sd))

    def moments(self, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
        group, position, z = parts
        mean = np.sum(z * self.mean[group[:, None], position], axis=1)
        pairs = self.covariance[group[:, None, None], position[:, :, None], position[:, None, :]]
        return mean, np.einsum("nk,nkl,nl->n", z, pairs, z)

    def slopes(self, parts: Parts) -> np.ndarray:
        group, position, z = parts
        return np.einsum("nk,nkp->np", z, self._slopes()[group[:, None], position])

    def average(self, of: Callable, base: np.ndarray, parts: Parts) -> np.ndarray:
        return base + self.moments(parts)[0]  # the link is the identity

    def draw(self, key: jax.Array) -> np.ndarray:
        noise = np.asarray(jax.random.normal(key, self.mean.shape), float)
        return self.mean + np.einsum("gij,gj->gi", root_of(self.covariance), noise)

    def _slopes(self) -> np.ndarray:
        """(G, D, P): of beta exactly, of the others by central differences in float64."""
        flat, unravel = ravel_float64(self.theta)
        fixed = self.of_beta.shape[2]
        columns = [self.of_beta]
        for i in range(fixed, flat.size):
            step = 1e-4 * max(abs(flat[i]), 1e-4)
            ends = []
            for side in (1, -1):
                moved = flat.copy()
                moved[i] += side * step
                ends.append(_solved(unravel(moved), self.mixed)[0])
            columns.append(((ends[0] - ends[1]) / (2 * step))[:, :, None])
        return np.concatenate(columns, axis=2)


def ravel_float64(theta: Theta) -> tuple[np.ndarray, Callable[[np.ndarray], Theta]]:
    """As `ravel_pytree`, which would round to JAX's precision."""
    leaves, tree = jax.tree.flatten(theta)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unravel(flat: np.ndarray) -> Theta:
        pieces = zip(np.split(flat, ends), leaves, strict=True)
        return tree.unflatten([piece.reshape(leaf.shape) for piece, leaf in pieces])

    return np.concatenate([leaf.ravel() for leaf in leaves]), unravel


def _solved(theta: Theta, mixed: MixedDesign) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean (G, D), covariance (G, D, D) and d mean / d beta (G, D, p) of b given y.

    With b = Lambda u, u standard normal: Lambda' Z'Z Lambda / sigma^2 + I is well conditioned
    where a standard deviation is zero, too.
    """
    design = mixed.design
    fixed, random = _new_rows.same_rows(design)
    roots = {block.name: root_of(covariance_of(theta, block)) for block in design.blocks}
    scaled = {name: z @ roots[name] for name, z in random.Z.items()}
    (parts,) = parts_of(mixed, random._replace(Z=scaled))
    groups = 1 if mixed.outer is None else len(mixed.levels[design.blocks[0].name])
    size, variance = size_of(mixed), float(theta["sigma"]) ** 2
    group, position, z = parts
    inverse = np.tile(np.eye(size), (groups, 1, 1))
    where = group[:, None, None], position[:, :, None], position[:, None, :]
    np.add.at(inverse, where, z[:, :, None] * z[:, None, :] / variance)
    residual = design.y - fixed.offset - fixed.X @ theta["beta"]
    right = np.column_stack([residual, -fixed.X])
    sums = np.zeros((groups, size, right.shape[1]))
    np.add.at(sums, (group[:, None], position), z[:, :, None] * right[:, None, :] / variance)
    covariance = np.linalg.inv(inverse)
    means = covariance @ sums
    _multiply(mixed, roots, covariance, 1)
    _multiply(mixed, roots, covariance, 2)
    _multiply(mixed, roots, means, 1)
    return means[:, :, 0], covariance, means[:, :, 1:]


def root_of(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _multiply(mixed: MixedDesign, roots: dict, of: np.ndarray, axis: int) -> None:
    """u to b along an axis of latents, in place."""
    first = _first_positions(mixed)
    moved = np.moveaxis(of, axis, -1)
    for block in mixed.design.blocks:
        levels, effects = mixed.levels[block.name].shape[-1], len(block.effects)
        own = slice(first[block.name], first[block.name] + levels * effects)
        split = moved[..., own].reshape(*moved.shape[:-1], levels, effects)
        moved[..., own] = (split @ roots[block.name].T).reshape(*moved.shape[:-1], -1)


# --- by the particles ----------------------------------------------------------------------------


class Weighted:
    """By the weighted particles of the fit."""

    def __init__(self, result: FitResult, mixed: MixedDesign):
        self.result, self.mixed = result, mixed
        grouped = mixed.outer is not None
        leaves = [np.asarray(result.particles[name]) for name in sorted(result.particles)]
        weights = np.asarray(weights_of(result, mixed), float)
        if not grouped:
            leaves, weights = [leaf[None] for leaf in leaves], weights[None]
        flat = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2)
        # A particle of weight zero may hold anything.
        self.values = np.where(weights[:, :, None] > 0, flat, 0.0)
        self.weights = weights

    def levels(self) -> Levels:
        w = self.weights[:, :, None]
        mean = np.sum(w * self.values, axis=1)
        away = self.values - mean[:, None]
        sd = np.sqrt(np.sum(w * away**2, axis=1))
        # Every eighth of quasi-random points is a lattice or a net itself. Their spread is that of
        # an eighth of the points, and larger than what it is taken for.
        quasi = not self.result.followed_a_path and size_of(self.mixed) <= LATENTS_UP_TO
        blocks = BLOCKS if quasi and away.shape[1] % BLOCKS == 0 else away.shape[1]
        sums = (w * away).reshape(len(away), blocks, -1, away.shape[2]).sum(axis=2)
        return Levels(mean, sd, np.sqrt(np.sum(sums**2, axis=1)))

    def _chunks(self, parts: Parts) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Some rows at a time: their random part at every particle, and the weights."""
        step = max(1, AT_ONCE // self.weights.shape[1])
        for first in range(0, len(parts.group), step):
            rows = slice(first, first + step)
            group, position, z = (array[rows] for array in parts)
            random = np.zeros((len(group), self.weights.shape[1]))
            for k in range(z.shape[1]):
                random += z[:, k, None] * self.values[group, :, position[:, k]]
            yield rows, random, self.weights[group]

    def moments(self, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = np.zeros((2, len(parts.group)))
        for rows, random, w in self._chunks(parts):
            mean[rows] = np.sum(w * random, axis=1)
            variance[rows] = np.sum(w * (random - mean[rows, None]) ** 2, axis=1)
        return mean, variance

    def average(self, of: Callable, base: np.ndarray, parts: Parts) -> np.ndarray:
        found = np.zeros(len(base))
        for rows, random, w in self._chunks(parts):
            found[rows] = np.sum(w * of(base[rows, None] + random), axis=1)
        return found

    def draw(self, key: jax.Array) -> np.ndarray:
        index = jax.random.categorical(key, jnp.log(jnp.asarray(self.weights)), axis=1)
        return self.values[np.arange(len(self.values)), np.asarray(index)]

    def slopes(self, parts: Parts) -> np.ndarray:
        model, result = model_of(self.result, self.mixed), self.result
        weights = jnp.asarray(self.weights, result.log_weights.dtype)
        with use_mesh(model.layout):
            weights = weights if model.grouped else weights[0]
            found = _slopes(model, result.theta, result.particles, weights)
        slopes = np.asarray(found, float)
        return np.einsum("nk,nkp->np", parts.z, slopes[parts.group[:, None], parts.position])


def model_of(result: FitResult, mixed: MixedDesign) -> Model:
    """The model of the fit; of a result from a file it is built again."""
    if result.origin is not None:
        return result.origin.model
    model, _ = build(mixed.design.formula, mixed.design.frame, mixed.family)
    return model


def weights_of(result: FitResult, mixed: MixedDesign) -> jax.Array:
    """The weights of the particles at the theta of the result.

    They were weighted where an algorithm had last looked: of Scoring one step before, of JALA-EM
    at its last step. beta and b move against each other, so that a small difference is seen in
    their sum. Of a result from a file it is not known where.
    """
    origin = result.origin
    if origin is None or isinstance(result.state, SavedState):
        return result.weights
    model, there = origin.model, result.state.theta
    seen = origin.algorithm.measurement(result.state)
    if seen is not None and bool(origin.algorithm.is_done(result.state)):
        flat, unravel = ravel_pytree(result.free)
        there = unravel(jnp.asarray(seen.theta, flat.dtype))
    with use_mesh(model.layout):
        moved = _moved(model, result.theta, model.constrained(there), result.particles)
    return normalise(result.log_weights + moved)


@jit(LEVEL_1)
def _moved(model: Model, to: Theta, there: Theta, particles: Any) -> jax.Array:
    """The change of log p(b, y) between two thetas at every particle."""

    def of_group(group):
        x, data = group
        return jax.vmap(lambda b: model.log_joint(to, b, data) - model.log_joint(there, b, data))(x)

    if not model.grouped:
        return of_group((particles, model.data))
    groups = particles, model.data
    return jax.lax.map(of_group, groups, batch_size=min(GROUPS_AT_ONCE, model.num_groups))


@jit(LEVEL_1)
def _slopes(model: Model, theta: Theta, particles: Any, weights: jax.Array) -> jax.Array:
    """(G, D, P): the covariance of b with d log p(b, y) / d theta."""

    def score(x, data):
        return ravel_pytree(jax.grad(model.log_joint)(theta, x, data))[0]

    def of_group(group):
        x, w, data = group
        values = jax.vmap(lambda one: ravel_pytree(one)[0])(x)
        scores = jax.vmap(lambda one: score(one, data))(x)
        alive = w[:, None] > 0
        values, scores = jnp.where(alive, values, 0.0), jnp.where(alive, scores, 0.0)
        scores = scores - jnp.matmul(w, scores, precision="highest")
        values = values - jnp.matmul(w, values, precision="highest")
        return jnp.matmul((w[:, None] * values).T, scores, precision="highest")

    if not model.grouped:
        return of_group((particles, weights, model.data))[None]
    groups = particles, weights, model.data
    return jax.lax.map(of_group, groups, batch_size=min(GROUPS_AT_ONCE, weights.shape[0]))
