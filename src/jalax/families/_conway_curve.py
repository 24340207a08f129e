r"""Conway and Maxwell's law as two curves over $\eta$, for many random effects and one $\nu$.

The location and the sum depend on $\eta$ and $\nu$ alone. With one $\nu$ for all rows they are
found once a theta, at knots of $\eta$, with two derivatives each; between them they are polynomials
of degree five. So they are at a few $\nu$ beside it, through which a polynomial in $\log \nu$ has
the derivatives. Of larger means there are expansions.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _conway_law
from ._peaks import distance

LOW, HIGH = -14.0, 10.0  # of eta: means from a millionth to 22,000
BESIDE = np.arange(-3, 4)  # steps of log nu


def log_p(y: Array, remainder_of_y: Array, eta: Array, nu: Array) -> Array:
    """`nu` is one number."""
    nu = nu.astype(eta.dtype)
    table = _table(jax.lax.stop_gradient(nu), eta.dtype)
    log_nu = jnp.log(nu)
    moved = log_nu - jax.lax.stop_gradient(log_nu)
    curves = _curves(eta, moved, table, 0, 0)
    is_large = (eta > HIGH)[..., None]
    curves = jnp.where(is_large, _of_large_means(jnp.maximum(eta, HIGH), nu), curves)
    inside = -nu * (distance(y, curves[..., 0]) + remainder_of_y) - curves[..., 1]
    # With a mean below a millionth the law is Poisson's, but for counts that it never has.
    log_factorial = remainder_of_y + y * jnp.log(jnp.where(y > 0, y, 1.0)) - y
    rare = y * eta - nu * log_factorial - jnp.exp(jnp.minimum(eta, LOW))
    return jnp.where(eta < LOW, rare, inside)


def _of_large_means(eta: Array, nu: Array) -> Array:
    """Both curves by their expansions in 1 / m (Gaunt and others 2019)."""
    rest = jnp.exp(-eta)
    log_m = eta + jnp.log1p(rest * ((nu - 1) / 2 / nu + rest * (nu**2 - 1) / (24 * nu**2)))
    total = (1 - nu) / 2 * (np.log(2 * np.pi) + log_m) - 0.5 * jnp.log(nu)
    return jnp.stack([log_m, total + (nu**2 - 1) / (24 * nu) * jnp.exp(-log_m)], axis=-1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _curves(eta: Array, moved: Array, table: Array, by_eta: int, by_nu: int) -> Array:
    """(..., 2): log m and the logarithm of the sum, or derivatives in eta and log nu.

    `moved` is zero: what log nu is differentiated by.
    """
    return _between(table[by_nu], eta, by_eta)


@_curves.defjvp
def _(by_eta, by_nu, primals, tangents):
    eta, moved, table = primals
    value = _curves(eta, moved, table, by_eta, by_nu)
    change = _curves(eta, moved, table, by_eta + 1, by_nu) * tangents[0][..., None]
    if by_nu + 1 < len(BESIDE):
        change = change + _curves(eta, moved, table, by_eta, by_nu + 1) * tangents[1]
    return value, change


def _steps(dtype: Any) -> int:
    """Knots to one of eta: more of them would lose digits of the second derivative in float32."""
    return 16 if jnp.finfo(dtype).bits <= 32 else 32


def _table(nu: Array, dtype: Any) -> Array:
    """(orders, intervals, 2, 6): polynomials in eta, and their derivatives in log nu."""
    step = 0.12 if jnp.finfo(dtype).bits <= 32 else 0.06
    powers = np.vander(step * BESIDE, increasing=True)  # values at the nu beside are these times
    factorials = np.array([math.factorial(k) for k in range(len(BESIDE))])
    derivatives = jnp.asarray(factorials[:, None] * np.linalg.inv(powers), dtype)
    beside = nu * jnp.exp(jnp.asarray(step * BESIDE, dtype))
    # Differences of values lose no digits that those of coefficients would not.
    values = jnp.einsum("kj,j...->k...", derivatives, _knots(beside, dtype), precision="highest")
    return jax.lax.stop_gradient(_polynomials(values))


def _knots(nu: Array, dtype: Any) -> Array:
    """(nu, knots, 2, 3): log m and the logarithm of the sum, with two derivatives in eta."""
    points = jnp.linspace(LOW, HIGH, int(HIGH - LOW) * _steps(dtype) + 1, dtype=dtype)
    eta, nu = jnp.broadcast_arrays(points, nu[:, None])
    z = _conway_law.location(eta, nu)
    one = jnp.ones_like(z)

    def spread(z):  # the variance times nu
        return jax.jvp(lambda z: _conway_law.mean(z, nu), (z,), (one,))[1]

    m, mu = jnp.exp(z), jnp.exp(eta)
    spread_here, skew = jax.jvp(spread, (z,), (one,))
    spread_here = jnp.maximum(spread_here, jnp.finfo(dtype).tiny)
    first = mu / spread_here
    second = first * (1 - first * skew / spread_here)
    # nu times the mean less m, which loses its digits where both are large, were it so computed.
    total, slope = jax.jvp(lambda z: _conway_law.log_sum(z, nu), (z,), (one,))
    bend = nu * (spread_here - m) * first**2 + slope * second
    total = jnp.stack([total, slope * first, bend], axis=-1)
    return jnp.stack([jnp.stack([z, first, second], axis=-1), total], axis=-2)


def _polynomials(knots: Array) -> Array:
    """(..., intervals, 2, 6): coefficients that have the values and derivatives of both ends."""
    steps = _steps(knots.dtype)
    knots = knots * jnp.array([1.0, 1 / steps, 1 / steps**2], knots.dtype)
    near, end = knots[:, :-1], knots[:, 1:]
    (a, b, c), (far, slope, bend) = (jnp.moveaxis(of, -1, 0) for of in (near, end))
    # What is left at the far end of the Taylor polynomial of the near one.
    left, slope, bend = far - a - b - c / 2, slope - b - c, bend - c
    third = 10 * left - 4 * slope + bend / 2
    fourth = -15 * left + 7 * slope - bend
    fifth = 6 * left - 3 * slope + bend / 2
    return jnp.stack([a, b, c / 2, third, fourth, fifth], axis=-1)


def _between(polynomials: Array, eta: Array, order: int) -> Array:
    place = (eta - LOW) * _steps(eta.dtype)
    inside = jnp.clip(place, 0.0, float(len(polynomials)))
    interval = jnp.clip(jnp.floor(inside), 0, len(polynomials) - 1)
    known, t = polynomials[interval.astype(int)], (inside - interval)[..., None]
    return _horner(known, t, order) * _steps(eta.dtype) ** order


def _horner(coefficients: Array, t: Array, order: int) -> Array:
    """The derivative of that order of polynomials, at t."""
    value = jnp.zeros_like(coefficients[..., 0])
    for k in reversed(range(order, coefficients.shape[-1])):
        value = value * t + math.perm(k, order) * coefficients[..., k]
    return value
