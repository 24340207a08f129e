"""Amounts with zeros: Tweedie's laws with a power between 1 and 2, sums of Gamma amounts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._family import JAX, Family, no_trials, varying_numbers
from ._links import LOG, Link, Log
from ._parameters import Between, Positive
from ._peaks import above, below, distance, negligible, remainder

NODES = 128  # terms of the series, or every h-th of them


@dataclasses.dataclass(frozen=True, repr=False)
class Tweedie(Family):
    r"""Amounts from 0 upwards with mean $\mu = e^\eta$ and variance $\phi \mu^p$, $1 < p < 2$.

    A Poisson number of Gamma amounts. `scale` is $\phi$ and `power` is p, between 1.001 and 1.999.
    glmmTMB's `tweedie`; the density is Dunn and Smyth's series (2005).

    >>> from jalax import families
    >>> families.Tweedie()
    Tweedie(link=Log())
    """

    name: ClassVar = "tweedie"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "scale"
    is_discrete: ClassVar = False

    link: Link = LOG

    @property
    def own(self):
        return {"power": Between(1.001, 1.999, 1.5), "scale": Positive()}

    def check(self, name, y, size):
        no_trials(self, name, size)
        if (y < 0).any():
            raise ValueError(
                f"family='tweedie' needs amounts from 0 upwards; {name!r} has {y.min():g}."
            )
        varying_numbers(name, y)

    def constants(self, y, size, xp):
        return {"log_y": xp.log(xp.where(y > 0, y, 1.0))}

    def log_density(self, own, eta, data):
        log_y, phi, p = data["log_y"], own["scale"], own["power"]
        # The series does not know the mean: it is summed once for all random effects.
        log_rate = (2 - p) * log_y - jnp.log(phi) - jnp.log(2 - p)
        at_mean = _log_series(log_rate, jnp.broadcast_to(_shape(p), log_rate.shape)) - log_y
        away = eta - log_y
        half = jnp.expm1((1 - p) * away) / (p - 1) + jnp.expm1((2 - p) * away) / (2 - p)
        positive = at_mean - jnp.exp((2 - p) * log_y) * half / phi
        return jnp.where(data["y"] > 0, positive, -_rate(eta, phi, p))

    def draw(self, key, own, eta, data):
        phi, p = own["scale"], own["power"]
        key_count, key_amount = jax.random.split(key)
        count = jax.random.poisson(key_count, _rate(eta, phi, p)).astype(eta.dtype)
        shape = _shape(p) * jnp.maximum(count, 1)
        amount = jax.random.gamma(key_amount, shape, dtype=eta.dtype) * _unit(eta, phi, p)
        return jnp.where(count > 0, amount, 0.0)

    def first(self, y, size):
        return y + 0.1 * y.mean()

    def working(self, mean):
        return mean**1.5

    def variance(self, mean, own, size):
        return own["scale"] * mean ** own["power"]

    def deviance(self, y, mean, own, size):
        p = own["power"]
        positive = np.where(y > 0, y, 1.0) ** (1 - p)
        first = y * (np.where(y > 0, positive, 0.0) - mean ** (1 - p)) / (1 - p)
        return 2 * (first - (y ** (2 - p) - mean ** (2 - p)) / (2 - p))

    def cdf(self, y, eta, own, size):
        from scipy.special import gammainc, gammaln

        phi, p = own["scale"], own["power"]
        rate, unit = _rate(eta, phi, p, np), _unit(eta, phi, p, np)
        y, rate, unit, shape = np.broadcast_arrays(y, rate, unit, _shape(p))
        total, at = np.exp(-rate), np.maximum(y, 0.0) / unit
        drop = 45.0
        first = max(1, int(np.min(rate - below(rate, 1.0, drop))))
        for count in range(first, int(np.max(rate + above(rate, 1.0, drop))) + 2):
            log_p = count * np.log(rate) - rate - gammaln(count + 1.0)
            total = total + np.exp(log_p) * gammainc(count * shape, at)
        return np.where(y < 0, 0.0, np.minimum(total, 1.0))

    def jump(self, y, eta, own, size):
        upper = self.cdf(y, eta, own, size)
        return np.where(y > 0, upper, 0.0), upper


def _rate(eta, phi, p, xp=jnp):
    """How many amounts there are."""
    return xp.exp((2 - p) * eta) / (phi * (2 - p))


def _shape(p):
    """Of the Gamma law of one amount."""
    return (2 - p) / (p - 1)


def _unit(eta, phi, p, xp=jnp):
    """The scale of that law."""
    return phi * (p - 1) * xp.exp((p - 1) * eta)


def _log_series(log_rate: Array, shape: Array) -> Array:
    r"""log y p(y) where the mean is y, with L amounts and the shape a of each.

    $\sum_j e^{-(1 + a) D(j; L)}\, a j / (R(j) R(a j))$, with D and $\log R$ of `_peaks.py`: the
    j-th term is the probability of j amounts times the density of their sum. The terms are summed
    one by one or, where the peak is broad and far from zero, every h-th of them.
    """
    log_rate, shape = log_rate[..., None], shape[..., None]
    first, stride = jax.lax.stop_gradient(_grid(jnp.exp(log_rate), 1 + shape))
    j = first + stride * jnp.arange(NODES, dtype=log_rate.dtype)
    terms = jnp.log(shape * j) - remainder(shape * j, JAX) - remainder(j, JAX)
    terms = terms - (1 + shape) * distance(j, log_rate)
    top = jax.lax.stop_gradient(jnp.max(terms, axis=-1, keepdims=True))
    total = jnp.sum(jnp.exp(terms - top), axis=-1)
    return jnp.log(total) + top[..., 0] + jnp.log(stride[..., 0])


def _grid(rate: Array, c: Array) -> tuple[Array, Array]:
    drop = negligible(rate.dtype)
    first = jnp.maximum(jnp.floor(rate - below(rate, c, drop)), 1.0)
    end = jnp.maximum(rate + above(rate, c, drop), first)
    return first, jnp.maximum((end - first) / (NODES - 1), 1.0)
