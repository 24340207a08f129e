"""Times until something happens, some of them censored on the right."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import Family, no_trials, positive_numbers
from ._links import LOG, Link, Log
from ._parameters import Positive

LOG_2PI = float(np.log(2 * np.pi))


class _Times(Family):
    """The response is `Surv(time, event)`, or a column of times that were all observed."""

    links = (Log,)
    is_discrete = False
    has_zero = False

    def check(self, name, y, size):
        no_trials(self, name, size)
        positive_numbers(self, name, y)

    def constants(self, y, size, xp):
        return {"log_y": xp.log(y)}

    def first(self, y, size):
        return y

    def working(self, mean):
        return None

    def survival(self, y: np.ndarray, eta: np.ndarray, own) -> np.ndarray:
        raise NotImplementedError

    def cdf(self, y, eta, own, size):
        return 1 - self.survival(y, eta, own)


@dataclasses.dataclass(frozen=True, repr=False)
class Weibull(_Times):
    r"""Times with the hazard $k t^{k-1} e^\eta$: proportional hazards, `shape` is k.

    A coefficient is the logarithm of a ratio of hazards. The response is `Surv(time, event)` with
    an event of 0 where the time is censored on the right.

    >>> from jalax import families
    >>> families.Weibull()
    Weibull(link=Log())
    """

    name: ClassVar = "weibull"
    dispersion: ClassVar[str | None] = "shape"

    link: Link = LOG

    @property
    def own(self):
        return {"shape": Positive()}

    def log_density(self, own, eta, data):
        k, log_t = own["shape"], data["log_y"]
        hazard = jnp.log(k) + (k - 1) * log_t + eta
        return data["event"] * hazard - jnp.exp(k * log_t + eta)

    def draw(self, key, own, eta, data):
        log_hazard = jnp.log(jax.random.exponential(key, eta.shape, eta.dtype))
        return jnp.exp((log_hazard - eta) / own["shape"])

    def first(self, y, size):
        return 1 / y

    def mean(self, eta, own):
        from scipy.special import gamma

        k = own["shape"]
        return np.exp(-eta / k) * gamma(1 + 1 / k)

    def slope(self, eta, own):
        return -self.mean(eta, own) / own["shape"]

    def survival(self, y, eta, own):
        return np.exp(-(y ** own["shape"]) * np.exp(eta))


@dataclasses.dataclass(frozen=True, repr=False)
class Exponential(Weibull):
    r"""Times with the hazard $e^\eta$: `Weibull` with a shape of one.

    >>> from jalax import families
    >>> families.Exponential()
    Exponential(link=Log())
    """

    name: ClassVar = "exponential"
    dispersion: ClassVar = None

    @property
    def own(self):
        return {}

    def log_density(self, own, eta, data):
        return super().log_density({"shape": jnp.ones((), eta.dtype)}, eta, data)

    def draw(self, key, own, eta, data):
        return super().draw(key, {"shape": 1.0}, eta, data)

    def mean(self, eta, own):
        return np.exp(-eta)

    def slope(self, eta, own):
        return -np.exp(-eta)

    def variance(self, mean, own, size):
        return mean**2

    def survival(self, y, eta, own):
        return super().survival(y, eta, {"shape": 1.0})


@dataclasses.dataclass(frozen=True, repr=False)
class LogNormalTime(_Times):
    r"""Times with $\log t \sim N(\eta, \sigma^2)$, censored on the right where `event` is 0.

    `sigma` is its own parameter; a coefficient is the logarithm of a ratio of times. As R's
    `survreg(dist = "lognormal")`.

    >>> from jalax import families
    >>> families.LogNormalTime()
    LogNormalTime(link=Log())
    """

    name: ClassVar = "lognormaltime"
    dispersion: ClassVar = "sigma"

    link: Link = LOG

    @property
    def own(self):
        return {"sigma": Positive()}

    def log_density(self, own, eta, data):
        sigma, log_t, event = own["sigma"], data["log_y"], data["event"]
        away = (log_t - eta) / sigma
        seen = -0.5 * (LOG_2PI + away**2) - jnp.log(sigma) - log_t
        return jnp.where(event > 0, seen, jax.scipy.special.log_ndtr(-away))

    def draw(self, key, own, eta, data):
        return jnp.exp(eta + own["sigma"] * jax.random.normal(key, eta.shape, eta.dtype))

    def mean(self, eta, own):
        return np.exp(eta + np.square(own["sigma"]) / 2)

    def slope(self, eta, own):
        return self.mean(eta, own)

    def survival(self, y, eta, own):
        from scipy.special import ndtr

        return ndtr((eta - np.log(y)) / own["sigma"])
