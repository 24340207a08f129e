r"""Conway and Maxwell's law in JAX: its sum, the location that has a mean, draws.

$p(k) = e^{-\nu F(k)} / S$ with $F(k) = D(k; m) + \log k! - k \log k + k$ (`_peaks.py`). The sum S
has the first counts one by one, and of those beyond every h-th, where they are many: the
trapezoidal rule, with Euler and Maclaurin's correction where it begins. It has all digits where
h = 1 or where the terms at its beginning are negligible, and seven or more elsewhere: where the
variance is some twenty times the mean.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._family import HOST, JAX
from ._peaks import above, below, distance, negligible, remainder, remainder_of_large

HEAD = 16  # counts that are summed one by one
MOST_STEPS = 60  # of a search that halves its interval where Newton's step leaves it
REMAINDERS = remainder(np.arange(HEAD, dtype=float), HOST)
# The derivatives of log x! at x = 16, from zeta(2), ..., zeta(5).
ZETA = (math.pi**2 / 6, 1.2020569031595942, math.pi**4 / 90, 1.0369277551433699)
POLYGAMMAS = [
    (-1) ** (n + 1) * math.factorial(n) * (zeta - sum(k ** -(n + 1) for k in range(1, HEAD + 1)))
    for n, zeta in enumerate(ZETA, start=1)
]
SLOPES = (sum(1 / k for k in range(1, HEAD + 1)) - 0.5772156649015329, *POLYGAMMAS)


# --- the sum -------------------------------------------------------------------------------------


def _terms(k: Array, remainders: Any, log_m: Array) -> Array:
    """-F(k), up to a number that is the same for all k.

    In log m it is linear, with slope k - c. With c near the mode no digits are lost in the mean,
    c plus a derivative.
    """
    known = jax.lax.stop_gradient(log_m)
    away = (k - _centre(log_m)) * (log_m - known)
    return away - jax.lax.stop_gradient(distance(k, known)) - remainders


def _centre(log_m: Array) -> Array:
    return jnp.floor(jnp.exp(jax.lax.stop_gradient(log_m)))


def _log_sum(log_m: Array, nu: Array) -> Array:
    nodes = _nodes(log_m.dtype)
    log_m, nu = log_m[..., None], nu[..., None]
    first, stride = jax.lax.stop_gradient(_grid(log_m, nu))
    tail = first + stride * jnp.arange(nodes, dtype=log_m.dtype)
    head = jnp.broadcast_to(jnp.arange(HEAD, dtype=log_m.dtype), (*tail.shape[:-1], HEAD))
    remainders = jnp.broadcast_to(jnp.asarray(REMAINDERS, log_m.dtype), head.shape)
    remainders = jnp.concatenate([remainders, remainder_of_large(tail, JAX)], axis=-1)
    exponents = nu * _terms(jnp.concatenate([head, tail], axis=-1), remainders, log_m)
    # Where the points begin further on, the terms there are nothing, and nothing is corrected.
    begin = stride + _correction(jnp.where(first == HEAD, stride, 1.0), log_m, nu)
    rest = jnp.broadcast_to(stride, (*stride.shape[:-1], nodes - 1))
    weights = jnp.concatenate([jnp.ones_like(head), begin, rest], axis=-1)
    top = jax.lax.stop_gradient(jnp.max(exponents, axis=-1, keepdims=True))
    return jnp.log(jnp.sum(weights * jnp.exp(exponents - top), axis=-1)) + top[..., 0]


def _nodes(dtype: Any) -> int:
    """Points beyond the first counts."""
    return 40 if jnp.finfo(dtype).bits <= 32 else 96


def _grid(log_m: Array, nu: Array) -> tuple[Array, Array]:
    """Where the points begin, and how far apart they are."""
    m, drop = jnp.exp(log_m), negligible(log_m.dtype)
    first = jnp.maximum(jnp.floor(m - below(m, nu, drop)), HEAD)
    fall = nu * (math.log(HEAD) - log_m)  # the slope at the head's end, and at least that beyond
    end = HEAD + drop / jnp.where(fall > 0, fall, jnp.finfo(m.dtype).tiny)
    end = jnp.minimum(jnp.minimum(m + above(m, nu, drop), end), 1e9)
    return first, jnp.maximum((end - first) / (_nodes(m.dtype) - 1), 1.0)


def _correction(h: Array, log_m: Array, nu: Array) -> Array:
    """The sum from `HEAD` on less h times that of every h-th term, over the first term."""
    a = nu * (log_m - SLOPES[0])
    b, c, d, e = (-nu * slope for slope in SLOPES[1:])
    third = a**3 + 3 * a * b + c
    fifth = a**5 + 10 * a**3 * b + 10 * a**2 * c + 15 * a * b**2 + 5 * a * d + 10 * b * c + e
    ends = (h**2 - 1) / 12 * a - (h**4 - 1) / 720 * third + (h**6 - 1) / 30240 * fifth
    return ends - (h - 1) / 2


def log_sum(log_m: Array, nu: Array) -> Array:
    """log S itself, with its own derivatives."""
    known, m = jax.lax.stop_gradient(log_m), jnp.exp(log_m)
    moved = m - jax.lax.stop_gradient(m) - _centre(log_m) * (log_m - known)
    return _log_sum(log_m, nu) - nu * moved


def log_p(y: Array, remainder_of_y: Array, log_m: Array, nu: Array) -> Array:
    return nu * _terms(y, remainder_of_y, log_m) - _log_sum(log_m, nu)


# --- the mean ------------------------------------------------------------------------------------


def mean(log_m: Array, nu: Array) -> Array:
    slope = jax.jvp(lambda z: _log_sum(z, nu), (log_m,), (jnp.ones_like(log_m),))[1]
    return _centre(log_m) + slope / nu


@jax.custom_jvp
def location(eta: Array, nu: Array) -> Array:
    r"""log m of the law with mean $e^\eta$, by Newton's method for the logarithm of the mean."""
    tolerance = 16 * jnp.finfo(eta.dtype).eps

    def is_open(carry):
        step, _, gap, _, _ = carry
        return (step < MOST_STEPS) & jnp.any(jnp.abs(gap) > tolerance)

    def closer(carry):
        step, z, _, low, high = carry
        value, slope = jax.jvp(lambda z: mean(z, nu), (z,), (jnp.ones_like(z),))
        tiny = jnp.finfo(z.dtype).tiny
        gap = jnp.log(jnp.maximum(value, tiny)) - eta
        low, high = jnp.where(gap < 0, z, low), jnp.where(gap < 0, high, z)
        newton = z - gap * value / jnp.maximum(slope, tiny)
        inside = (newton >= low) & (newton <= high)
        new = jnp.where(inside, newton, 0.5 * (low + high))
        is_done = jnp.abs(gap) <= tolerance
        stuck = (new == z) | (high - low <= tolerance * jnp.abs(z))
        gap = jnp.where(is_done | stuck, 0.0, gap)
        return step + 1, jnp.where(is_done, z, new), gap, low, high

    low, high = bracket(eta, nu, jnp)
    begin = jnp.clip(_guess(eta, nu), low, high)
    return jax.lax.while_loop(is_open, closer, (0, begin, jnp.ones_like(eta), low, high))[1]


def bracket(eta: Any, nu: Any, xp: Any) -> tuple[Any, Any]:
    """Bounds of log m: m is between the mean and one more or, where nu < 1, below the mean.

    There m to the nu is between mean / (1 + mean), of a geometric law, and the mean.
    """
    more, slack = xp.log1p(xp.exp(eta)), 1e-3
    low = xp.where(nu < 1, (eta - more) / nu, eta)
    return low - slack, xp.where(nu < 1, xp.minimum(eta, eta / nu), more) + slack


def _guess(eta: Array, nu: Array) -> Array:
    mu = jnp.exp(eta)
    apart = mu - (1 / nu - 1) / 2  # of a large mean
    geometric = (eta - jnp.log1p(mu)) / nu
    far = jnp.log(jnp.where(apart > 0.5 * mu, apart, 1.0))
    return jnp.where(apart > 0.5 * mu, far, geometric)


@location.defjvp
def _(primals, tangents):
    """By the implicit function: the mean stays e^eta."""
    eta, nu = primals
    z = location(eta, nu)
    slope = jax.jvp(lambda z: mean(z, nu), (z,), (jnp.ones_like(z),))[1]
    by_nu = jax.jvp(lambda nu: mean(z, nu), (nu,), (tangents[1],))[1]
    slope = jnp.maximum(slope, jnp.finfo(z.dtype).tiny)
    return z, (jnp.exp(eta) * tangents[0] - by_nu) / slope


# --- draws ---------------------------------------------------------------------------------------


def draw(key: jax.Array, log_m: Array, nu: Array) -> Array:
    """Devroye's rejection (1987) for any discrete law whose logarithm is concave.

    A proposal is taken one time in five, whatever the law is.
    """
    mode = jnp.floor(jnp.exp(log_m))
    log_sum = _log_sum(log_m, nu)

    def log_mass(k):
        return nu * _terms(k, remainder(k, JAX), log_m) - log_sum

    top = jnp.exp(log_mass(mode))
    width = 1 + top / 2
    shape, dtype = mode.shape, mode.dtype

    def again(carry):
        step, k, is_open = carry
        keys = jax.random.split(jax.random.fold_in(key, step), 4)
        tiny = jnp.finfo(dtype).tiny
        u, v, w = (jax.random.uniform(one, shape, dtype, minval=tiny) for one in keys[:3])
        flat = u <= width / (1 + width)
        far = jnp.where(flat, v * width, width - jnp.log(v)) / top
        new = mode + jnp.where(jax.random.bernoulli(keys[3], shape=shape), 1, -1) * jnp.round(far)
        ratio = jnp.exp(log_mass(jnp.maximum(new, 0.0))) / top
        good = (new >= 0) & (w * jnp.exp(jnp.minimum(width - top * far, 0.0)) <= ratio)
        return step + 1, jnp.where(is_open & good, new, k), is_open & ~good

    begin = 0, mode, jnp.ones(shape, bool)
    return jax.lax.while_loop(lambda carry: jnp.any(carry[2]), again, begin)[1]
