"""Counts without an upper limit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import Family
from ._links import LOG, Link, Log, PositiveLink, Sqrt
from ._parameters import Above, Positive


class _Counts(Family):
    def constants(self, y, size, xp):
        return {"constant": -xp.gammaln(y + 1)}


@dataclasses.dataclass(frozen=True, repr=False)
class Poisson(_Counts):
    r"""$y \sim \text{Poisson}(\mu)$ with $g(\mu) = \eta$.

    Args:
        link: `Log()` or `Sqrt()`.

    >>> from jalax import families
    >>> families.Poisson()
    Poisson(link=Log())
    """

    name: ClassVar = "poisson"
    links: ClassVar = (Log, Sqrt)

    link: PositiveLink = LOG

    def log_density(self, own, eta, data):
        mean = self.link.inverse(eta)
        return data["y"] * self.link.log_mean(eta) - mean + data["constant"]

    def draw(self, key, own, eta, data):
        return jax.random.poisson(key, self.link.inverse(eta)).astype(eta.dtype)

    def variance(self, mean, own, size):
        return mean

    def deviance(self, y, mean, own, size):
        from scipy.special import xlogy

        return 2 * (xlogy(y, y / mean) - (y - mean))

    def cdf(self, y, eta, own, size):
        from scipy.special import gammaincc

        y, mean = np.broadcast_arrays(np.floor(y), self.link.mean(eta))
        return np.where(y < 0, 0.0, gammaincc(np.maximum(y, 0) + 1, mean))


@dataclasses.dataclass(frozen=True, repr=False)
class NegativeBinomial(_Counts):
    r"""Counts with mean $\mu = e^\eta$ and variance $\mu + \mu^2 / k$; `shape` is k.

    glmmTMB's `nbinom2`.

    >>> from jalax import families
    >>> families.NegativeBinomial()
    NegativeBinomial(link=Log())
    """

    name: ClassVar = "negativebinomial"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "shape"

    link: Link = LOG

    @property
    def own(self):
        return {"shape": Positive()}

    def log_density(self, own, eta, data):
        k, y = own["shape"], data["y"]
        log_k = jnp.log(k)
        choose = jax.scipy.special.gammaln(y + k) - jax.scipy.special.gammaln(k)
        return choose + data["constant"] + k * log_k + y * eta - (y + k) * jnp.logaddexp(log_k, eta)

    def draw(self, key, own, eta, data):
        key_rate, key_count = jax.random.split(key)
        shape = jnp.broadcast_to(own["shape"], eta.shape).astype(eta.dtype)
        rate = jnp.exp(eta) * jax.random.gamma(key_rate, shape, dtype=eta.dtype) / shape
        return jax.random.poisson(key_count, rate).astype(eta.dtype)

    def variance(self, mean, own, size):
        return mean + mean**2 / own["shape"]

    def deviance(self, y, mean, own, size):
        from scipy.special import xlogy

        k = own["shape"]
        return 2 * (xlogy(y, y / mean) - (y + k) * np.log((y + k) / (mean + k)))

    def cdf(self, y, eta, own, size):
        from scipy.special import betainc, expit

        y, eta = np.broadcast_arrays(np.floor(y), eta)
        k = own["shape"]
        return np.where(y < 0, 0.0, betainc(k, np.maximum(y, 0) + 1, expit(np.log(k) - eta)))


@dataclasses.dataclass(frozen=True, repr=False)
class NegativeBinomial1(_Counts):
    r"""Counts with mean $\mu = e^\eta$ and variance $\mu (1 + \phi)$; `excess` is $\phi$.

    glmmTMB's `nbinom1`.

    >>> from jalax import families
    >>> families.NegativeBinomial1()
    NegativeBinomial1(link=Log())
    """

    name: ClassVar = "negativebinomial1"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "excess"

    link: Link = LOG

    @property
    def own(self):
        return {"excess": Positive()}

    def log_density(self, own, eta, data):
        phi, y = own["excess"], data["y"]
        k = jnp.exp(eta) / phi
        choose = jax.scipy.special.gammaln(y + k) - jax.scipy.special.gammaln(k)
        return choose + data["constant"] + y * jnp.log(phi) - (y + k) * jnp.log1p(phi)

    def draw(self, key, own, eta, data):
        key_rate, key_count = jax.random.split(key)
        phi = own["excess"]
        rate = phi * jax.random.gamma(key_rate, jnp.exp(eta) / phi, dtype=eta.dtype)
        return jax.random.poisson(key_count, rate).astype(eta.dtype)

    def variance(self, mean, own, size):
        return mean * (1 + own["excess"])

    def cdf(self, y, eta, own, size):
        from scipy.special import betainc

        phi = own["excess"]
        y, k = np.broadcast_arrays(np.floor(y), np.exp(eta) / phi)
        return np.where(y < 0, 0.0, betainc(k, np.maximum(y, 0) + 1, 1 / (1 + phi)))


@dataclasses.dataclass(frozen=True, repr=False)
class GeneralizedPoisson(_Counts):
    r"""Counts with mean $\mu = e^\eta$ and variance $\mu \phi$, $\phi > 1$ (Consul and Jain 1973).

    `scale` is $\phi$. glmmTMB's `genpois`, which also lets $\phi$ be less than one: there the law
    ends at some count, and what it has beyond is left out.

    >>> from jalax import families
    >>> families.GeneralizedPoisson()
    GeneralizedPoisson(link=Log())
    """

    name: ClassVar = "generalizedpoisson"
    links: ClassVar = (Log,)

    link: Link = LOG

    @property
    def own(self):
        return {"scale": Above(1.0, 1.5)}

    def log_density(self, own, eta, data):
        root, y = jnp.sqrt(own["scale"]), data["y"]
        first, share = jnp.exp(eta) / root, 1 - 1 / root
        total = first + share * y
        return (y - 1) * jnp.log(total) + eta - jnp.log(root) - total + data["constant"]

    def draw(self, key, own, eta, data):
        # The total of a family whose first generation is Poisson, and of whom each has a Poisson
        # number of children.
        root = jnp.sqrt(own["scale"])
        share = jnp.broadcast_to(1 - 1 / root, eta.shape)
        key_first, key_children = jax.random.split(key)
        born = jax.random.poisson(key_first, jnp.exp(eta) / root).astype(eta.dtype)

        def generation(carry):
            k, born, total = carry
            key = jax.random.fold_in(key_children, k)
            born = jax.random.poisson(key, born * share).astype(eta.dtype)
            return k + 1, born, total + born

        def alive(carry):
            return jnp.any(carry[1] > 0)

        return jax.lax.while_loop(alive, generation, (0, born, born))[2]

    def variance(self, mean, own, size):
        return mean * own["scale"]

    def cdf(self, y, eta, own, size):
        y, eta = np.broadcast_arrays(np.floor(y), eta)
        total, most = np.zeros(y.shape), int(max(y.max(), -1))
        lgamma = _log_factorials(most)
        root = np.sqrt(own["scale"])
        first, share = np.exp(eta) / root, 1 - 1 / root
        for count in range(most + 1):
            rate = first + share * count
            log_p = (count - 1) * np.log(rate) + np.log(first) - rate - lgamma[count]
            total += np.where(count <= y, np.exp(log_p), 0.0)
        return np.minimum(total, 1.0)


def _log_factorials(most: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, max(most, 0) + 1)))])
