r"""The random effects given the data, at the theta of a fit.

Of a Gaussian model $b \mid y$ is Gaussian, with a mean and a covariance in closed form; of the
others they are those of the weighted particles. Both also tell how the mean moves with theta,
which an interval needs: $\partial E[b \mid y] / \partial\theta = \mathrm{Cov}(b,\, \partial \log
p_\theta(b, y) / \partial\theta \mid y)$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence.record import SavedState
from jalax._fit.result import FitResult
from jalax._frontends.mixed_exact import Exact
from jalax._frontends.mixed_parts import Levels, Parts, Posterior, Theta, size_of
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.weight_math import normalise
from jalax._reference.points import LATENTS_UP_TO
from jalax._runtime.compilation import LEVEL_1, jit
from jalax._runtime.layouts import use_mesh
from jalax.families import Gaussian, Identity
from jalax.models._effects import Laws, whiten
from jalax.models._mixed import MixedDesign, rebuilt, with_all_effects

MOST = (
    40_000_000  # numbers of the covariances of all groups, 0.3 GB: beyond, the particles are used
)
AT_ONCE = 4_000_000  # numbers of rows times particles
GROUPS_AT_ONCE = 64
BLOCKS = 8  # of quasi-random points, for the error of a mean


def posterior(result: FitResult, mixed: MixedDesign) -> Posterior:
    groups = 1 if mixed.outer is None else len(next(iter(mixed.levels.values())))
    if is_linear(mixed) and groups * size_of(mixed) ** 2 <= MOST:
        return Exact(result, mixed)
    return Weighted(result, mixed)


def is_linear(mixed: MixedDesign) -> bool:
    """Gaussian given the random effects, with one sigma, and linear in them."""
    family, design = mixed.family, mixed.design
    plain = isinstance(family, Gaussian) and isinstance(family.link, Identity)
    normal = all(law.is_normal for _, law in mixed.laws)
    return plain and normal and design.dispersion is None


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
            found[rows] = np.sum(w * of(base[rows, None] + random, rows), axis=1)
        return found

    def joint_average(self, of: Callable, base: np.ndarray, parts: list[Parts]) -> np.ndarray:
        found = np.zeros((len(base), base.shape[1] + 1))
        for chunks in zip(*(self._chunks(part) for part in parts), strict=True):
            rows, w = chunks[0][0], chunks[0][2]
            random = np.stack([chunk[1] for chunk in chunks], axis=-1)
            found[rows] = np.einsum("nm,nmj->nj", w, of(base[rows, None] + random))
        return found

    def draw(self, key: jax.Array) -> np.ndarray:
        index = jax.random.categorical(key, jnp.log(jnp.asarray(self.weights)), axis=1)
        return self.values[np.arange(len(self.values)), np.asarray(index)]

    def slopes(self, parts: Parts) -> np.ndarray:
        model, result = whole_model_of(self.result, self.mixed), self.result
        weights = jnp.asarray(self.weights, result.log_weights.dtype)
        with use_mesh(model.layout):
            weights = weights if model.grouped else weights[0]
            latents = _latents(model, self.mixed, result)
            found = _slopes(model, result.theta, latents, weights)
        slopes = np.asarray(found, float)
        return np.einsum("nk,nkp->np", parts.z, slopes[parts.group[:, None], parts.position])


def model_of(result: FitResult, mixed: MixedDesign) -> Model:
    """The model of the fit; of a result from a file it is built again."""
    if result.origin is not None:
        return result.origin.model
    return rebuilt(mixed)


def whole_model_of(result: FitResult, mixed: MixedDesign) -> Model:
    """The same with all random effects as latents, where some are integrated within log p."""
    return with_all_effects(model_of(result, mixed), mixed)


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
        there = trees.with_numbers(result.free, seen.theta)
    with use_mesh(model.layout):
        latents = _latents(model, mixed, result)
        moved = _moved(model, result.theta, model.constrained(there), latents)
    return normalise(result.log_weights + moved)


def effects_of(model: Model, theta: Theta, x: Any, data: Any) -> Any:
    """The random effects from the latents of the model, which may be white."""
    of = model.latent_outside
    return x if of is None else of(theta, x, data)


def _latents(model: Model, mixed: MixedDesign, result: FitResult) -> Any:
    """The particles as the model has them: the random effects, or white numbers."""
    if not model.is_white:
        return result.particles
    return _whitened(mixed.laws, result.theta, result.particles)


@jit(LEVEL_1, static_argnames="laws")
def _whitened(laws: Laws, theta: Theta, particles: Any) -> Any:
    one = partial(whiten, laws, theta)
    for _ in range(jax.tree.leaves(particles)[0].ndim - 2):  # of groups, and of particles
        one = jax.vmap(one)
    return one(particles)


@jit(LEVEL_1)
def _moved(model: Model, to: Theta, there: Theta, particles: Any) -> jax.Array:
    """The change of log p(x, y) between two thetas at every particle."""

    def of_group(group):
        x, data = group
        return jax.vmap(lambda x: model.log_joint(to, x, data) - model.log_joint(there, x, data))(x)

    if not model.grouped:
        return of_group((particles, model.data))
    groups = particles, model.data
    return jax.lax.map(of_group, groups, batch_size=min(GROUPS_AT_ONCE, model.num_groups))


@jit(LEVEL_1)
def _slopes(model: Model, theta: Theta, particles: Any, weights: jax.Array) -> jax.Array:
    """(G, D, P): the covariance of b with d log p(x, y) / d theta, and the mean of d b / d theta.

    The latter is zero where x is b itself.
    """
    flat, unravel = ravel_pytree(theta)

    def score(x, data):
        return ravel_pytree(jax.grad(model.log_joint)(theta, x, data))[0]

    def of_group(group):
        x, w, data = group

        def effects(t, one):
            return ravel_pytree(effects_of(model, unravel(t), one, data))[0]

        values = jax.vmap(partial(effects, flat))(x)
        scores = jax.vmap(lambda one: score(one, data))(x)
        alive = w[:, None] > 0
        values, scores = jnp.where(alive, values, 0.0), jnp.where(alive, scores, 0.0)
        scores = scores - jnp.matmul(w, scores, precision="highest")
        values = values - jnp.matmul(w, values, precision="highest")
        covariance = jnp.matmul((w[:, None] * values).T, scores, precision="highest")

        def mean(t):
            each = jax.vmap(partial(effects, t))(x)
            return jnp.matmul(w, jnp.where(alive, each, 0.0), precision="highest")

        return covariance + jax.jacfwd(mean)(flat)

    if not model.grouped:
        return of_group((particles, weights, model.data))[None]
    groups = particles, weights, model.data
    return jax.lax.map(of_group, groups, batch_size=min(GROUPS_AT_ONCE, weights.shape[0]))
