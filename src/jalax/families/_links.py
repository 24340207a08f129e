"""How the mean of a response depends on its linear predictor eta.

`mean`, `slope` and `of` are NumPy, for tables and predictions; the others are JAX, and are written
so that nothing of a probability near 0 or 1 is lost in float32.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._softplus import softplus

STEEPEST = 60.0  # of eta where exp(exp(eta)) is gone in float32, and exp(eta) is not


@dataclasses.dataclass(frozen=True)
class Link:
    """g with eta = g(mean)."""

    name: ClassVar[str]

    def of(self, mean: np.ndarray) -> np.ndarray:
        """g itself."""
        raise NotImplementedError

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Its inverse."""
        raise NotImplementedError

    def slope(self, eta: np.ndarray) -> np.ndarray:
        """The derivative of `mean`."""
        raise NotImplementedError

    def inverse(self, eta: Array) -> Array:
        """`mean` in JAX."""
        raise NotImplementedError


class Identity(Link):
    """The mean is eta.

    >>> from jalax import families
    >>> families.Gaussian(link=families.Identity())
    Gaussian(link=Identity())
    """

    name = "identity"

    def of(self, mean):
        return mean

    def mean(self, eta):
        return eta

    def slope(self, eta):
        return np.ones_like(eta)

    def inverse(self, eta):
        return eta


class PositiveLink(Link):
    """Of a mean that is positive whatever eta is."""

    def log_mean(self, eta: Array) -> Array:
        raise NotImplementedError


class Log(PositiveLink):
    """The mean is $e^\\eta$."""

    name = "log"

    def of(self, mean):
        return np.log(mean)

    def mean(self, eta):
        return np.exp(eta)

    def slope(self, eta):
        return np.exp(eta)

    def inverse(self, eta):
        return jnp.exp(eta)

    def log_mean(self, eta):
        return eta


class Sqrt(PositiveLink):
    """The mean is $\\eta^2$."""

    name = "sqrt"

    def of(self, mean):
        return np.sqrt(mean)

    def mean(self, eta):
        return eta**2

    def slope(self, eta):
        return 2 * eta

    def inverse(self, eta):
        return eta**2

    def log_mean(self, eta):
        tiny = jnp.finfo(eta.dtype).tiny ** 0.25
        return 2 * jnp.log(jnp.maximum(jnp.abs(eta), tiny))


class ShareLink(Link):
    """Of a mean between 0 and 1: a distribution function F, with F(eta) = mean."""

    def log_below(self, eta: Array) -> Array:
        """log F."""
        raise NotImplementedError

    def log_above(self, eta: Array) -> Array:
        """log(1 - F)."""
        raise NotImplementedError

    def log_between(self, low: Array, high: Array) -> Array:
        """log(F(high) - F(low)), low < high."""
        raise NotImplementedError

    def log_binomial(self, y: Array, size: Array, eta: Array) -> Array:
        """y log F + (size - y) log(1 - F)."""
        return y * self.log_below(eta) + (size - y) * self.log_above(eta)

    def inverse(self, eta):
        return jnp.exp(self.log_below(eta))


class Logit(ShareLink):
    """The mean is $1 / (1 + e^{-\\eta})$."""

    name = "logit"

    def of(self, mean):
        return np.log(mean) - np.log1p(-mean)

    def mean(self, eta):
        from scipy.special import expit

        return expit(eta)

    def slope(self, eta):
        value = self.mean(eta)
        return value * (1 - value)

    def inverse(self, eta):
        return jax.nn.sigmoid(eta)

    def log_below(self, eta):
        return -softplus(-eta)

    def log_above(self, eta):
        return -softplus(eta)

    def log_between(self, low, high):
        return log_one_minus_exp(low - high) - softplus(-high) - softplus(low)

    def log_binomial(self, y, size, eta):
        return y * eta - size * softplus(eta)


class Probit(ShareLink):
    """The mean is the distribution function of a standard normal variable at eta."""

    name = "probit"

    def of(self, mean):
        from scipy.special import ndtri

        return ndtri(mean)

    def mean(self, eta):
        from scipy.special import ndtr

        return ndtr(eta)

    def slope(self, eta):
        return np.exp(-0.5 * eta**2) / np.sqrt(2 * np.pi)

    def inverse(self, eta):
        return jax.scipy.special.ndtr(eta)

    def log_below(self, eta):
        return jax.scipy.special.log_ndtr(eta)

    def log_above(self, eta):
        return jax.scipy.special.log_ndtr(-eta)

    def log_between(self, low, high):
        # On the side of zero where both are small and keep their digits.
        upper = low + high > 0
        low, high = jnp.where(upper, -high, low), jnp.where(upper, -low, high)
        below, above = self.log_below(low), self.log_below(high)
        return above + log_one_minus_exp(below - above)


class CLogLog(ShareLink):
    """The mean is $1 - \\exp(-e^\\eta)$: proportional hazards in grouped time."""

    name = "cloglog"

    def of(self, mean):
        return np.log(-np.log1p(-mean))

    def mean(self, eta):
        return -np.expm1(-np.exp(eta))

    def slope(self, eta):
        return np.exp(eta - np.exp(eta))

    def log_below(self, eta):
        # A probability like e^eta where that is small.
        rate = jnp.exp(jnp.clip(eta, -10, STEEPEST))
        return jnp.where(eta < -10, eta - jnp.exp(jnp.minimum(eta, 0)) / 2, _log_share(rate))

    def log_above(self, eta):
        return -jnp.exp(jnp.minimum(eta, STEEPEST))

    def log_between(self, low, high):
        start = jnp.exp(jnp.minimum(low, STEEPEST))
        wide = start * jnp.expm1(jnp.minimum(high - low, STEEPEST))
        return _log_share(jnp.maximum(wide, jnp.finfo(low.dtype).tiny)) - start


class Cauchit(ShareLink):
    """The mean is the distribution function of a Cauchy variable at eta."""

    name = "cauchit"

    def of(self, mean):
        return np.tan(np.pi * (mean - 0.5))

    def mean(self, eta):
        return np.arctan2(1.0, -eta) / np.pi

    def slope(self, eta):
        return 1 / (np.pi * (1 + eta**2))

    def inverse(self, eta):
        return jnp.arctan2(jnp.ones_like(eta), -eta) / np.pi

    def log_below(self, eta):
        return jnp.log(self.inverse(eta))

    def log_above(self, eta):
        return jnp.log(self.inverse(-eta))

    def log_between(self, low, high):
        # The angle between the two directions (1, low) and (1, high).
        return jnp.log(jnp.arctan2(high - low, 1 + low * high)) - np.log(np.pi)


def log_one_minus_exp(x: Array) -> Array:
    """log(1 - e^x) for x < 0."""
    near = x > -0.7
    safe = jnp.minimum(jnp.where(near, x, -1.0), -jnp.finfo(x.dtype).tiny)
    far = jnp.where(near, -1.0, x)
    return jnp.where(near, jnp.log(-jnp.expm1(safe)), jnp.log1p(-jnp.exp(far)))


def _log_share(rate: Array) -> Array:
    """log(1 - e^(-rate)) for rate > 0."""
    return log_one_minus_exp(-rate)


IDENTITY, LOG, LOGIT = Identity(), Log(), Logit()
LINKS: dict[str, Link] = {
    link.name: link for link in (IDENTITY, LOG, Sqrt(), LOGIT, Probit(), CLogLog(), Cauchit())
}
