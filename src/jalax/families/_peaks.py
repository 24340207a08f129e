"""Sums over whole numbers whose terms rise to one peak and fall: where to look, and how.

Both sums here have terms near $e^{-c D(k; m)}$ with $D(k; m) = k \\log(k/m) - k + m$, half the
deviance of a Poisson count: a peak at m of width $\\sqrt{m / c}$. Written so, nothing cancels in
float32, where $\\log k!$ and $k \\log m$ would lose four digits at a count of a thousand.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._family import Arithmetic

STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
LARGE = 8.0  # from here on Stirling's series has all digits of float64
NEAR = 0.1  # of |k - m| / m, below which D is summed as a series


def remainder(x: Any, xp: Arithmetic) -> Any:
    r"""$\log\Gamma(x + 1) - x \log x + x$ of $x \ge 0$: about $\frac12 \log 2 \pi x$."""
    is_large = x > LARGE
    few = xp.where(is_large, 1.0, x)
    near = xp.gammaln(few + 1) - few * xp.log(xp.where(few > 0, few, 1.0)) + few
    return xp.where(is_large, remainder_of_large(xp.where(is_large, x, LARGE), xp), near)


def remainder_of_large(x: Any, xp: Arithmetic) -> Any:
    """The same of numbers from 8 on, by Stirling's series."""
    total, inverse = 0.0 * x, 1 / (x * x)
    for term in reversed(STIRLING):
        total = total * inverse + term
    return 0.5 * xp.log(2 * np.pi * x) + total / x


@jax.custom_jvp
def distance(k: Array, log_m: Array) -> Array:
    r"""$D(k; m) = k \log(k / m) - k + m$ of $k \ge 0$, to relative accuracy near m."""
    m = jnp.exp(log_m)
    away = (k - m) / jnp.maximum(m, jnp.finfo(m.dtype).tiny)
    is_near = jnp.abs(away) < NEAR
    u = jnp.where(is_near, away, 0.0)
    total = jnp.zeros_like(u)
    for i in reversed(range(7 if jnp.finfo(u.dtype).bits <= 32 else 15)):
        total = (-1) ** i / ((i + 1) * (i + 2)) + total * u
    # A small m may be zero in float32, and log k - log m of a large one loses digits.
    scale = jnp.where(m > 1, m, 1.0)
    ratio = jnp.log(jnp.where(k > 0, k, scale) / scale) - jnp.where(m > 1, 0.0, log_m)
    far = k * ratio - (k - m)
    return jnp.where(is_near, m * u**2 * total, far)


@distance.defjvp
def _(primals, tangents):
    """k is a known number."""
    k, log_m = primals
    return distance(k, log_m), tangents[1] * (jnp.exp(log_m) - k)


def negligible(dtype: Any) -> float:
    """How far below the largest term another one, in logarithms, counts for nothing."""
    return 18.0 if jnp.finfo(dtype).bits <= 32 else 38.0


def below(m: Any, c: Any, drop: float) -> Any:
    r"""How far below m $c D$ is `drop`, or more: $D(m - d; m) \ge d^2 / 2m$."""
    return (2 * drop * m / c) ** 0.5


def above(m: Any, c: Any, drop: float) -> Any:
    r"""How far above m: $D(m + d; m) \ge d^2 / 2(m + d/3)$."""
    third = drop / (3 * c)
    return third + (third**2 + 2 * drop * m / c) ** 0.5
