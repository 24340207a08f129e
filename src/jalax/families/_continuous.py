"""Measurements: any number, a positive one, or a share."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import (
    Family,
    no_trials,
    positive_numbers,
    varying_numbers,
)
from ._links import IDENTITY, LOG, LOGIT, CLogLog, Identity, Link, Log, Logit, Probit, ShareLink
from ._parameters import Positive

LOG_2PI = float(np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Family):
    r"""$y \sim N(\mu, \sigma^2)$ with $g(\mu) = \eta$; `sigma` is its own parameter.

    Args:
        link: `Identity()` or `Log()`.

    >>> from jalax import families
    >>> families.Gaussian()
    Gaussian(link=Identity())
    """

    name: ClassVar = "gaussian"
    links: ClassVar = (Identity, Log)
    dispersion: ClassVar = "sigma"
    is_discrete: ClassVar = False

    link: Link = IDENTITY

    @property
    def own(self):
        return {"sigma": Positive()}

    def check(self, name, y, size):
        no_trials(self, name, size)
        varying_numbers(name, y)

    def log_density(self, own, eta, data):
        sigma = own["sigma"]
        away = (data["y"] - self.link.inverse(eta)) / sigma
        return -0.5 * (LOG_2PI + away**2) - jnp.log(sigma)

    def draw(self, key, own, eta, data):
        return self.link.inverse(eta) + own["sigma"] * jax.random.normal(key, eta.shape, eta.dtype)

    def first(self, y, size):
        return np.maximum(y, 1e-3 * np.abs(y).max()) if isinstance(self.link, Log) else y

    def working(self, mean):
        return np.ones_like(mean)

    def variance(self, mean, own, size):
        return np.broadcast_to(np.square(own["sigma"]), mean.shape)

    def deviance(self, y, mean, own, size):
        return (y - mean) ** 2

    def cdf(self, y, eta, own, size):
        from scipy.special import ndtr

        return ndtr((y - self.link.mean(eta)) / own["sigma"])


@dataclasses.dataclass(frozen=True, repr=False)
class StudentT(Family):
    r"""$y = \eta + \sigma t$ with t of Student's distribution: a Gaussian with heavy tails.

    `sigma` is its own parameter and so, unless they are given, are the degrees of freedom `df`.

    Args:
        df: the degrees of freedom; None estimates them.

    >>> from jalax import families
    >>> families.StudentT(df=4.0)
    StudentT(link=Identity(), df=4.0)
    """

    name: ClassVar = "student"
    links: ClassVar = (Identity,)
    dispersion: ClassVar = "sigma"
    is_discrete: ClassVar = False

    link: Link = IDENTITY
    df: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.df is not None and not self.df > 0:
            raise ValueError(f"StudentT(df=...) must be positive, got {self.df!r}.")

    @property
    def own(self):
        return {"sigma": Positive()} | ({"df": Positive(5.0)} if self.df is None else {})

    def check(self, name, y, size):
        no_trials(self, name, size)
        varying_numbers(name, y)

    def _df(self, own):
        return own["df"] if self.df is None else self.df

    def log_density(self, own, eta, data):
        gammaln = jax.scipy.special.gammaln
        df, sigma = jnp.asarray(self._df(own), eta.dtype), own["sigma"]
        away = (data["y"] - eta) / sigma
        scale = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * np.pi)
        return scale - jnp.log(sigma) - (df + 1) / 2 * jnp.log1p(away**2 / df)

    def draw(self, key, own, eta, data):
        return eta + own["sigma"] * jax.random.t(key, self._df(own), eta.shape, eta.dtype)

    def first(self, y, size):
        return y

    def working(self, mean):
        return np.ones_like(mean)

    def variance(self, mean, own, size):
        df = self._df(own)
        factor = df / (df - 2) if df > 2 else np.inf
        return np.broadcast_to(np.square(own["sigma"]) * factor, mean.shape)

    def cdf(self, y, eta, own, size):
        from scipy.special import stdtr

        return stdtr(self._df(own), (y - eta) / own["sigma"])


class _Amounts(Family):
    """Positive numbers, of which the logarithm is read."""

    is_discrete = False
    has_zero = False

    def check(self, name, y, size):
        no_trials(self, name, size)
        positive_numbers(self, name, y)
        varying_numbers(name, y)

    def constants(self, y, size, xp):
        return {"log_y": xp.log(y)}

    def first(self, y, size):
        return y


@dataclasses.dataclass(frozen=True, repr=False)
class LogNormal(_Amounts):
    r"""$\log y \sim N(\eta, \sigma^2)$: eta is the mean of the logarithm.

    `sigma`, the standard deviation of the logarithm, is its own parameter. The mean of the response
    is $e^{\eta + \sigma^2 / 2}$.

    >>> from jalax import families
    >>> families.LogNormal()
    LogNormal(link=Log())
    """

    name: ClassVar = "lognormal"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "sigma"

    link: Link = LOG

    @property
    def own(self):
        return {"sigma": Positive()}

    def log_density(self, own, eta, data):
        sigma, log_y = own["sigma"], data["log_y"]
        return -0.5 * (LOG_2PI + ((log_y - eta) / sigma) ** 2) - jnp.log(sigma) - log_y

    def draw(self, key, own, eta, data):
        return jnp.exp(eta + own["sigma"] * jax.random.normal(key, eta.shape, eta.dtype))

    def working(self, mean):
        return mean**2

    def mean(self, eta, own):
        return np.exp(eta + np.square(own["sigma"]) / 2)

    def slope(self, eta, own):
        return self.mean(eta, own)

    def variance(self, mean, own, size):
        return mean**2 * np.expm1(np.square(own["sigma"]))

    def cdf(self, y, eta, own, size):
        from scipy.special import ndtr

        return ndtr((np.log(y) - eta) / own["sigma"])


@dataclasses.dataclass(frozen=True, repr=False)
class Gamma(_Amounts):
    r"""Positive numbers with mean $\mu = e^\eta$ and variance $\mu^2 / k$; `shape` is k.

    >>> from jalax import families
    >>> families.Gamma()
    Gamma(link=Log())
    """

    name: ClassVar = "gamma"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "shape"

    link: Link = LOG

    @property
    def own(self):
        return {"shape": Positive()}

    def log_density(self, own, eta, data):
        k, log_y = own["shape"], data["log_y"]
        # k (log k + z - e^z) - log y - log Gamma(k), with z = log y - eta: e^z - 1 - z is small
        # where k is large, and Stirling's k log k - k cancels in Gamma(k).
        z = log_y - eta
        return -k * (jnp.expm1(z) - z) - log_y + k * jnp.log(k) - k - jax.scipy.special.gammaln(k)

    def draw(self, key, own, eta, data):
        k = jnp.broadcast_to(own["shape"], eta.shape).astype(eta.dtype)
        return jnp.exp(eta) * jax.random.gamma(key, k, dtype=eta.dtype) / k

    def working(self, mean):
        return mean**2

    def variance(self, mean, own, size):
        return mean**2 / own["shape"]

    def deviance(self, y, mean, own, size):
        return 2 * (y / mean - 1 - np.log(y / mean))

    def cdf(self, y, eta, own, size):
        from scipy.special import gammainc

        return gammainc(own["shape"], own["shape"] * y * np.exp(-eta))


@dataclasses.dataclass(frozen=True, repr=False)
class InverseGaussian(_Amounts):
    r"""Positive numbers with mean $\mu = e^\eta$ and variance $\mu^3 / \lambda$; `shape` is
    $\lambda$.

    >>> from jalax import families
    >>> families.InverseGaussian()
    InverseGaussian(link=Log())
    """

    name: ClassVar = "inversegaussian"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "shape"

    link: Link = LOG

    @property
    def own(self):
        return {"shape": Positive()}

    def log_density(self, own, eta, data):
        rate, log_y = own["shape"], data["log_y"]
        away = jnp.expm1(log_y - eta) ** 2 * jnp.exp(-log_y)
        return 0.5 * (jnp.log(rate) - LOG_2PI - 3 * log_y - rate * away)

    def draw(self, key, own, eta, data):
        # Michael, Schucany and Haas (1976): one root of a quadratic equation, or the other.
        key_root, key_side = jax.random.split(key)
        mean, rate = jnp.exp(eta), own["shape"]
        v = mean * jax.random.normal(key_root, eta.shape, eta.dtype) ** 2 / (2 * rate)
        small = mean / (1 + v + jnp.sqrt(v * (v + 2)))
        first = jax.random.uniform(key_side, eta.shape, eta.dtype) <= mean / (mean + small)
        return jnp.where(first, small, mean**2 / small)

    def working(self, mean):
        return mean**3

    def variance(self, mean, own, size):
        return mean**3 / own["shape"]

    def deviance(self, y, mean, own, size):
        return (y - mean) ** 2 / (mean**2 * y)

    def cdf(self, y, eta, own, size):
        from scipy.special import log_ndtr, ndtr

        mean, root = np.exp(eta), np.sqrt(own["shape"] / y)
        far = 2 * own["shape"] / mean + log_ndtr(-root * (y / mean + 1))
        return ndtr(root * (y / mean - 1)) + np.exp(far)


@dataclasses.dataclass(frozen=True, repr=False)
class Beta(Family):
    r"""Shares between 0 and 1 with mean m, $g(m) = \eta$, and variance $m (1 - m) / (1 + \phi)$.

    `precision`, $\phi$, is its own parameter.

    Args:
        link: `Logit()`, `Probit()` or `CLogLog()`.

    >>> from jalax import families
    >>> families.Beta()
    Beta(link=Logit())
    """

    name: ClassVar = "beta"
    links: ClassVar = (Logit, Probit, CLogLog)
    dispersion: ClassVar = "precision"
    is_discrete: ClassVar = False
    has_zero: ClassVar = False

    link: ShareLink = LOGIT

    @property
    def own(self):
        return {"precision": Positive(5.0)}

    def check(self, name, y, size):
        no_trials(self, name, size)
        wrong = (y <= 0) | (y >= 1)
        if wrong.any():
            raise ValueError(
                f"family='beta' needs shares between 0 and 1, and neither; {name!r} has "
                f"{y[wrong][0]:g}. Shares of 0 are a model of their own: zero='~ 1'."
            )
        varying_numbers(name, y)

    def constants(self, y, size, xp):
        return {"log_y": xp.log(y), "log_rest": xp.log(1 - y)}

    def log_density(self, own, eta, data):
        gammaln, phi = jax.scipy.special.gammaln, own["precision"]
        a, b = phi * jnp.exp(self.link.log_below(eta)), phi * jnp.exp(self.link.log_above(eta))
        powers = (a - 1) * data["log_y"] + (b - 1) * data["log_rest"]
        return gammaln(a + b) - gammaln(a) - gammaln(b) + powers

    def draw(self, key, own, eta, data):
        share, phi = self.link.inverse(eta), own["precision"]
        return jax.random.beta(key, phi * share, phi * (1 - share), dtype=eta.dtype)

    def first(self, y, size):
        return y

    def working(self, mean):
        return mean * (1 - mean)

    def variance(self, mean, own, size):
        return mean * (1 - mean) / (1 + own["precision"])

    def cdf(self, y, eta, own, size):
        from scipy.special import betainc

        mean, phi = self.link.mean(eta), own["precision"]
        return betainc(phi * mean, phi * (1 - mean), y)
