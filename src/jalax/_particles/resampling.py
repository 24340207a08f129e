"""Resampling schemes and the resampling of groups whose ESS is low.

A scheme is a function `(key, weights, num_samples) -> ancestors` of one group's normalised
weights. They are a few lines each, and compared with blackjax's in the tests: to depend on it would
cost a user more than they do (importing it takes half as long as importing jax).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jalax._particles import exchange, trees, weight_math
from jalax._particles.trees import Tree
from jalax._runtime.layouts import Layout

Ancestors = Int[Array, " N"]


def systematic(key: Key[Array, ""], weights: Float[Array, " N"], num_samples: int) -> Ancestors:
    """One uniform number for all: the lowest variance, and the paper's choice.

    A scheme of your own has the same arguments: `key`, one group's normalised `weights`, and
    `num_samples`, how many to draw. It returns the index of each draw.
    """
    return _at_even_points(weights, jax.random.uniform(key), num_samples)


def stratified(key: Key[Array, ""], weights: Float[Array, " N"], num_samples: int) -> Ancestors:
    """One uniform number in each stratum; (key, weights, num_samples) as of `systematic`."""
    return _at_even_points(weights, jax.random.uniform(key, (num_samples,)), num_samples)


def multinomial(key: Key[Array, ""], weights: Float[Array, " N"], num_samples: int) -> Ancestors:
    """Independent draws: the noisiest, and the one with a genealogy variance estimate.

    The arguments (key, weights, num_samples) are those of `systematic`.
    """
    # The times of a Poisson process, as fractions of the last one, are uniform numbers in order.
    times = jnp.cumsum(-jnp.log(jax.random.uniform(key, (num_samples + 1,))))
    return _at(weights, times[:-1] / times[-1])


def residual(key: Key[Array, ""], weights: Float[Array, " N"], num_samples: int) -> Ancestors:
    """floor(N w) copies of each particle, the rest multinomial.

    The arguments (key, weights, num_samples) are those of `systematic`.
    """
    copies = jnp.floor(num_samples * weights)
    rest, ends = num_samples * weights - copies, jnp.cumsum(copies)
    place = jnp.arange(num_samples)
    copied = jnp.searchsorted(ends, place.astype(ends.dtype), side="right")
    total = jnp.sum(rest)
    # Not in order: only the last of these draws are used.
    drawn = _at(rest / jnp.where(total > 0, total, 1.0), jax.random.uniform(key, (num_samples,)))
    return jnp.where(place < ends[-1], copied, drawn)


def _at_even_points(weights: Float[Array, " N"], offset: Array, num_samples: int) -> Ancestors:
    points = (jnp.arange(num_samples, dtype=weights.dtype) + offset) / num_samples
    return _at(weights, points)


def _at(weights: Float[Array, " N"], points: Float[Array, " M"]) -> Ancestors:
    """Whose share of [0, 1] the points fall into."""
    return jnp.clip(jnp.searchsorted(jnp.cumsum(weights), points), 0, weights.shape[0] - 1)


def check_scheme(name: str, scheme: Any) -> None:
    """A function like those above; found out by tracing one of the user's."""
    if not callable(scheme):
        raise TypeError(f"{name} must be a function such as jalax.systematic, got {scheme!r}.")
    if getattr(scheme, "function", scheme) in (systematic, stratified, multinomial, residual):
        return
    weights = jax.ShapeDtypeStruct((8,), jnp.result_type(float))
    try:
        key = jax.eval_shape(lambda: jax.random.key(0))
        found = jax.eval_shape(lambda key, weights: scheme(key, weights, 8), key, weights)
    except Exception as error:
        error.add_note(f"raised inside {name}(key, weights, num_samples)")
        raise
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", float)
    if shape != (8,) or not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"{name} must return num_samples whole numbers, the ancestors; for 8 it returned "
            f"{trees.describe(found)}."
        )


def draw_ancestors(
    key: Key[Array, ""], scheme: Callable, weights: Float[Array, " N"], num_samples: int
) -> Ancestors:
    """A scheme's ancestors, without those of weight 0 that rounding in its sums may bring back."""
    ancestors = scheme(key, weights, num_samples)
    return jnp.where(weights[ancestors] > 0, ancestors, jnp.argmax(weights))


def ancestors_of_groups(
    key: Key[Array, ""], scheme: Callable, weights: Float[Array, "G N"], num_samples: int
) -> Int[Array, "G M"]:
    """Ancestors for every group; one group alone gets along without a batch of keys.

    Random numbers under a vmap over keys take XLA three times as long to compile (1 s here).
    """
    keys = jax.random.split(key, weights.shape[0])
    draw = partial(draw_ancestors, scheme=scheme, num_samples=num_samples)
    if weights.shape[0] == 1:
        return draw(keys[0], weights=weights[0])[None]
    return jax.vmap(lambda k, w: draw(k, weights=w))(keys, weights)


class Weighted(NamedTuple):
    """What resampling touches. Everything cached at the particles has to move with them."""

    particles: Tree
    cached: Tree  # leaves (G, N, ...): log p, grad_x
    log_weights: Float[Array, "G N"]
    log_evidence_base: Float[Array, " G"]


def is_low(
    weights: Float[Array, "G N"], resample_below: float | Float[Array, ""]
) -> Bool[Array, " G"]:
    """Which groups have an ESS below a fraction of N; not those with nobody left to copy."""
    ess = weight_math.effective_sample_size(weights)
    return (ess < resample_below * weights.shape[1]) & (ess > 0)


def resample_low(
    key: Key[Array, ""],
    scheme: Callable,
    resample_below: float | Float[Array, ""],
    cloud: Weighted,
    layout: Layout | None = None,
) -> tuple[Weighted, Bool[Array, ""]]:
    r"""Resample the groups with ESS below a fraction of N; the rest stay as they are.

    The open segment $\log \frac1N \sum_i e^{A^i}$ of a resampled group goes into its
    evidence base, and its log-weights start again from 0 (paper, appendix C.1). `layout` says how
    the particles lie on many devices.
    """
    weights = weight_math.normalise(cloud.log_weights)
    num_particles = weights.shape[1]
    low = is_low(weights, resample_below)

    def resample(cloud: Weighted) -> Weighted:
        ancestors = ancestors_of_groups(key, scheme, weights, num_particles)
        banked = cloud.log_evidence_base + weight_math.log_mean_exp(cloud.log_weights)
        particles, cached = exchange.gather(layout, (cloud.particles, cloud.cached), ancestors)
        fresh = Weighted(
            particles=particles,
            cached=cached,
            log_weights=jnp.zeros_like(cloud.log_weights),
            log_evidence_base=banked,
        )
        return trees.select(low, fresh, cloud)

    return trees.run_if(jnp.any(low), resample, cloud), jnp.any(low)


def equalise(key: Key[Array, ""], particles: Tree, log_weights: Float[Array, "G N"]) -> Tree:
    """Particles of equal weight from weighted ones, for algorithms without weights."""
    weighted = jnp.any(log_weights != log_weights[:, :1])
    cloud = Weighted(particles, (), log_weights, jnp.zeros_like(log_weights[:, 0]))
    # Any ESS short of N counts as low; equal weights are left alone, to the bit.
    above_all = jnp.where(weighted, 2.0, 0.0).astype(log_weights.dtype)
    return resample_low(key, systematic, above_all, cloud)[0].particles
