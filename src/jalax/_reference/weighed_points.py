"""The points of one group, weighed: log p, the score and the information about theta."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jalax._model import batching
from jalax._particles import weight_math
from jalax._reference.flow import Flow

# I_c is visited in so many blocks, no smaller than this.
CURVATURE_BLOCKS, SMALLEST_BLOCK = 16, 16


def weighed(
    density: Callable,
    theta: Float[Array, " P"],
    draw: Callable,
    u: Float[Array, "B n D"],
    flow: Flow | None,
    curvature_points: int,
    blocks: Int[Array, ""] | int,
    curvature_blocks: Int[Array, ""] | int,
) -> tuple:
    """x, log-weights, log p, score, I_c, M and the number of dead points of one group.

    `draw` takes points of the unit cube to those of the group, x and before they are scaled, with
    their log-densities. What is not visited has no weight. Where a flow informs only I_c - M is the
    information: its parts are others.
    """

    def visit(part):
        x, z, log_q = draw(part)
        values, scores, steady, slopes = _seen(density, theta, x, flow)
        alive = jnp.isfinite(values) & jnp.all(jnp.isfinite(steady), axis=1)
        log_weights = jnp.where(alive, values - log_q, -jnp.inf)
        scores, steady, slopes = (
            jnp.where(alive[:, None], s, 0.0) for s in (scores, steady, slopes)
        )
        other = scores if flow is None else jnp.where(flow.informs, steady, scores)
        moments = _moments(log_weights, scores, other, steady)
        return (x, z, slopes, log_weights), moments

    def add_block(k, carry):
        rows, moments = visit(lax.dynamic_index_in_dim(u, k, keepdims=False))
        every, before = carry
        every = jax.tree.map(
            lambda row, new: lax.dynamic_update_index_in_dim(row, new, k, 0), every, rows
        )
        return every, _merged(before, moments)

    blocks = jnp.minimum(blocks, len(u))
    if len(u) == 1:
        (x, z, slopes, log_weights), moments = visit(u[0])
    else:
        zero = batching.zero_of(u)
        none = jnp.full(u.shape[:2], -jnp.inf, u.dtype) + zero
        matrix = jnp.zeros((theta.size,) * 2, u.dtype) + zero
        first = _Moments(none[0, 0], matrix[0], matrix[0], matrix[0], matrix)
        wide = jnp.zeros_like(u) + zero
        rows, moments = lax.fori_loop(0, blocks, add_block, ((wide, wide, wide, none), first))
        x, z, slopes, log_weights = (row.reshape(-1, *row.shape[2:]) for row in rows)
    alive, weights = jnp.isfinite(log_weights), weight_math.normalise(log_weights)
    # A dead point must not be visited again: zero times NaN is NaN.
    x = jnp.where(alive[:, None], x, x[jnp.argmax(log_weights)])
    some = slice(curvature_points)
    few = weights[some] / jnp.sum(weights[some])
    if flow is not None:
        few = flow.calibrated(few, z[some], slopes[some], curvature_blocks > 0)
    complete = _complete(density, theta, x[some], few, flow, curvature_blocks)
    visited = blocks * u.shape[1]
    log_p = moments.log_total - jnp.log(jnp.asarray(visited, u.dtype))
    dead = visited - jnp.sum(alive, dtype=jnp.int32)
    return x, log_weights, log_p, moments.steady, complete, moments.covariance, dead


def _seen(density: Callable, theta: Float[Array, " P"], x: Float[Array, "N D"], flow: Flow | None):
    """log p, the scores, those that the flow has steadied, and x-gradients, of every point."""
    if flow is None:
        values, scores = jax.vmap(jax.value_and_grad(density), in_axes=(None, 0))(theta, x)
        return values, scores, scores, jnp.zeros_like(x)
    visit = jax.value_and_grad(density, argnums=(0, 1))
    values, (scores, slopes) = jax.vmap(visit, in_axes=(None, 0))(theta, x)
    return values, scores, flow.steadied(scores, x, slopes), slopes


class _Moments(NamedTuple):
    """Of the scores s of some weighted points, and of the steadied ones s^J."""

    log_total: Float[Array, ""]  # log of the sum of the weights
    mean: Float[Array, " P"]  # of s
    other: Float[Array, " P"]  # of s^J where the flow informs, else of s
    steady: Float[Array, " P"]  # of s^J
    covariance: Float[Array, "P P"]  # of the first two


def _moments(
    log_weights: Float[Array, " N"],
    scores: Float[Array, "N P"],
    other: Float[Array, "N P"],
    steady: Float[Array, "N P"],
) -> _Moments:
    weights = weight_math.normalise(log_weights)
    means = weights @ scores, weights @ other, weights @ steady
    parts = scores - means[0], other - means[1]
    covariance = jnp.einsum("n,np,nq->pq", weights, *parts, precision="highest")
    log_total = weight_math.log_mean_exp(log_weights) + float(np.log(log_weights.size))
    return _Moments(log_total, *means, covariance)


def _merged(a: _Moments, b: _Moments) -> _Moments:
    """Of both together. Nothing is subtracted: a small covariance keeps its digits."""
    top = jnp.maximum(a.log_total, b.log_total)
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    first, second = jnp.exp(a.log_total - top), jnp.exp(b.log_total - top)
    total = first + second
    share = second / jnp.where(total > 0, total, 1.0)
    apart, other = b.mean - a.mean, b.other - a.other
    within = a.covariance + share * (b.covariance - a.covariance)
    covariance = within + share * (1 - share) * jnp.outer(apart, other)
    steady = a.steady + share * (b.steady - a.steady)
    means = a.mean + share * apart, a.other + share * other, steady
    return _Moments(top + jnp.log(total), *means, covariance)


def curvature_blocks_of(points: int) -> int:
    """In how many blocks so many points are visited for I_c."""
    return max(1, min(CURVATURE_BLOCKS, points // SMALLEST_BLOCK))


def _complete(
    density: Callable,
    theta: Float[Array, " P"],
    x: Float[Array, "M D"],
    weights: Float[Array, " M"],
    flow: Flow | None,
    blocks: Int[Array, ""] | int,
) -> Float[Array, "P P"]:
    """I_c by the first so many blocks of these points, which the flow moves along with theta."""
    number = curvature_blocks_of(len(x))
    # Of mean one: in float32 small ones times the derivatives of a small density would be zero.
    weights = (weights / jnp.mean(weights)).reshape(number, -1)
    x = x.reshape(*weights.shape, -1)

    def block(k, carry):
        def total(t, x):
            return jnp.sum(weights[k] * jax.vmap(lambda x: density(t, x))(x))

        def score(by):
            moved = x[k] if flow is None else flow.moved(x[k], by)
            return jax.grad(total)(theta + by, moved)

        matrix, weight = carry
        slope = jax.jacfwd(score)(jnp.zeros_like(theta))
        return matrix - slope, weight + jnp.sum(weights[k])

    zero = batching.zero_of(weights)
    none = jnp.zeros((theta.size,) * 2, theta.dtype) + zero, zero
    matrix, weight = lax.fori_loop(0, jnp.minimum(blocks, number), block, none)
    return matrix / jnp.where(weight > 0, weight, 1.0)


def weighed_only(
    density: Callable, theta: Float[Array, " P"], draw: Callable, u: Float[Array, "B n D"]
) -> tuple:
    """As `weighed`, with zeros for what only a fit wants to know."""
    x, _, log_q = draw(u.reshape(-1, u.shape[2]))
    values = jax.vmap(lambda x: density(theta, x))(x)
    alive = jnp.isfinite(values)
    log_weights = jnp.where(alive, values - log_q, -jnp.inf)
    log_p = weight_math.log_mean_exp(log_weights)
    matrix = jnp.zeros((theta.size,) * 2, theta.dtype)
    dead = jnp.sum(~alive, dtype=jnp.int32)
    return x, log_weights, log_p, jnp.zeros_like(theta), matrix, matrix, dead
