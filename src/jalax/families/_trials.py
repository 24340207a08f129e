"""Counts of successes out of trials."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import Family, no_trials, whole_numbers
from ._links import LOGIT, Cauchit, CLogLog, Link, Logit, Probit, ShareLink
from ._parameters import Positive


@dataclasses.dataclass(frozen=True, repr=False)
class Binomial(Family):
    r"""$y \sim \text{Binomial}(n, p)$ with $g(p) = \eta$; without trials n is 1.

    Args:
        link: `Logit()`, `Probit()`, `CLogLog()` or `Cauchit()`.

    >>> from jalax import families
    >>> families.Binomial(link=families.Probit())
    Binomial(link=Probit())
    """

    name: ClassVar = "binomial"
    links: ClassVar[tuple[type, ...]] = (Logit, Probit, CLogLog, Cauchit)

    link: ShareLink = LOGIT

    def check(self, name, y, size):
        if size is not None:
            return whole_numbers(self, name, y)
        if not np.isin(y, (0, 1)).all():
            wrong = y[~np.isin(y, (0, 1))][0]
            raise ValueError(
                f"family={self.name!r} needs a response of 0 and 1, or p(successes, trials); "
                f"{name!r} has {wrong:g}."
            )

    def constants(self, y, size, xp):
        size = _trials(y, size)
        choose = xp.gammaln(size + 1) - xp.gammaln(y + 1) - xp.gammaln(size - y + 1)
        return {"size": size, "constant": choose}

    def log_density(self, own, eta, data):
        return self.link.log_binomial(data["y"], data["size"], eta) + data["constant"]

    def draw(self, key, own, eta, data):
        size = jnp.broadcast_to(jnp.asarray(data["size"], eta.dtype), eta.shape)
        return jax.random.binomial(key, size, self.link.inverse(eta), dtype=eta.dtype)

    def first(self, y, size):
        size = _trials(y, size)
        return (y + 0.5) / (size + 1)

    def working(self, mean):
        return mean * (1 - mean)

    def observed(self, y, size):
        return y / _trials(y, size)

    def variance(self, mean, own, size):
        return mean * (1 - mean) / (1.0 if size is None else size)

    def deviance(self, y, mean, own, size):
        from scipy.special import xlogy

        trials = np.ones_like(mean) if size is None else size
        share = y / trials
        failed = xlogy(1 - share, (1 - share) / (1 - mean))
        return 2 * trials * (xlogy(share, share / mean) + failed)

    def cdf(self, y, eta, own, size):
        from scipy.special import betainc

        y, eta = np.broadcast_arrays(np.floor(y), eta)
        at = np.maximum(y, 0.0)
        trials = np.broadcast_to(np.asarray(1.0 if size is None else size), at.shape)
        left = np.maximum(trials - at, 1.0)  # all trials: the answer is one, put in below
        value = np.where(at >= trials, 1.0, betainc(left, at + 1, failure(self.link, eta)))
        return np.where(y < 0, 0.0, value)


def failure(link: Link, eta: np.ndarray) -> np.ndarray:
    """1 - p, with its digits where p is near one."""
    symmetric = isinstance(link, (Logit, Probit, Cauchit))
    return link.mean(-eta) if symmetric else np.exp(-np.exp(eta))


def _trials(y, size):
    return y * 0 + 1.0 if size is None else size


@dataclasses.dataclass(frozen=True, repr=False)
class Bernoulli(Binomial):
    """`Binomial` of 0 and 1.

    >>> from jalax import families
    >>> families.Bernoulli()
    Bernoulli(link=Logit())
    """

    name: ClassVar = "bernoulli"

    def check(self, name, y, size):
        no_trials(self, name, size)
        super().check(name, y, size)


@dataclasses.dataclass(frozen=True, repr=False)
class BetaBinomial(Binomial):
    r"""Counts out of trials whose probability varies: $p \sim \text{Beta}(m \phi, (1 - m) \phi)$.

    The mean m has $g(m) = \eta$; `precision`, $\phi$, is its own parameter. It is infinite where
    the counts are binomial.

    >>> from jalax import families
    >>> families.BetaBinomial()
    BetaBinomial(link=Logit())
    """

    name: ClassVar = "betabinomial"
    links: ClassVar = (Logit, Probit, CLogLog)
    dispersion: ClassVar = "precision"

    @property
    def own(self):
        return {"precision": Positive(5.0)}

    def check(self, name, y, size):
        if size is None:
            raise ValueError(
                f"family='betabinomial' needs p(successes, trials) on the left; {name!r} has no "
                "trials, and of one trial each nothing tells beta-binomial from binomial."
            )
        super().check(name, y, size)

    def log_density(self, own, eta, data):
        gammaln, phi = jax.scipy.special.gammaln, own["precision"]
        a, b = phi * jnp.exp(self.link.log_below(eta)), phi * jnp.exp(self.link.log_above(eta))
        y, size = data["y"], data["size"]
        successes = gammaln(y + a) - gammaln(a)
        failures = gammaln(size - y + b) - gammaln(b)
        return successes + failures - gammaln(size + phi) + gammaln(phi * 1.0) + data["constant"]

    def draw(self, key, own, eta, data):
        key_share, key_count = jax.random.split(key)
        share, phi = self.link.inverse(eta), own["precision"]
        share = jax.random.beta(key_share, phi * share, phi * (1 - share), dtype=eta.dtype)
        size = jnp.broadcast_to(jnp.asarray(data["size"], eta.dtype), eta.shape)
        return jax.random.binomial(key_count, size, share, dtype=eta.dtype)

    def variance(self, mean, own, size):
        phi = own["precision"]
        return mean * (1 - mean) / size * (1 + (size - 1) / (1 + phi))

    def deviance(self, y, mean, own, size):
        return Family.deviance(self, y, mean, own, size)

    def cdf(self, y, eta, own, size):
        from scipy.stats import betabinom

        mean, phi = self.link.mean(eta), own["precision"]
        return betabinom.cdf(y, size, phi * mean, phi * failure(self.link, eta))
