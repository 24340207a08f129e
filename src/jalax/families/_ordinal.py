"""Ordered categories: cumulative link models."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import Family, no_trials
from ._links import LOGIT, Cauchit, CLogLog, Logit, Probit, ShareLink
from ._parameters import Increasing


@dataclasses.dataclass(frozen=True, repr=False)
class Ordinal(Family):
    r"""Ordered categories 1..J: $P(y \le j) = F(\kappa_j - \eta)$.

    Its own parameters are the `thresholds` $\kappa_1 < \dots < \kappa_{J-1}$, which take the place
    of an intercept. The response is an ordered Categorical, or numbers, whose order counts. As R's
    `ordinal::clmm`.

    Args:
        link: `Logit()`, `Probit()`, `CLogLog()` or `Cauchit()`; F is its distribution function.

    >>> from jalax import families
    >>> families.Ordinal(link=families.Probit())
    Ordinal(link=Probit())
    """

    name: ClassVar = "ordinal"
    links: ClassVar = (Logit, Probit, CLogLog, Cauchit)
    has_zero: ClassVar = False
    has_mean: ClassVar = False

    link: ShareLink = LOGIT

    @property
    def own(self):
        return {"thresholds": Increasing()}

    def check(self, name, y, size):
        no_trials(self, name, size)

    def constants(self, y, size, xp):
        return {}

    def log_density(self, own, eta, data):
        thresholds, y = own["thresholds"], data["y"].astype(int)  # 1..J
        last = thresholds.shape[0]
        # At the ends a number in range, whose value does not count.
        high = thresholds[jnp.clip(y - 1, 0, last - 1)] - eta
        low = thresholds[jnp.clip(y - 2, 0, last - 1)] - eta
        inside = (y > 1) & (y <= last)
        between = self.link.log_between(jnp.where(inside, low, high - 1.0), high)
        ends = jnp.where(y <= 1, self.link.log_below(high), self.link.log_above(high))
        return jnp.where(inside, between, ends)

    def draw(self, key, own, eta, data):
        u = jax.random.uniform(key, eta.shape, eta.dtype)
        below = self.link.inverse(own["thresholds"] - eta[..., None])
        return 1 + jnp.sum(u[..., None] > below, axis=-1).astype(eta.dtype)

    def thresholds(self, y: np.ndarray, count: int) -> np.ndarray:
        """To begin with: those of the shares of the categories."""
        shares = np.bincount(y.astype(int) - 1, minlength=count) + 0.5
        below = np.cumsum(shares)[:-1] / shares.sum()
        return self.link.of(below)

    def probabilities(self, eta: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """(..., J): those of the categories."""
        below = self.link.mean(thresholds - eta[..., None])
        ends = np.zeros((*eta.shape, 1))
        return np.diff(np.concatenate([ends, below, ends + 1], axis=-1))

    def cdf(self, y, eta, own, size):
        y, eta = np.broadcast_arrays(np.floor(y).astype(int), eta)
        ends = np.concatenate([own["thresholds"], [np.inf]])
        last = len(ends) - 1
        below = self.link.mean(ends[np.clip(y - 1, 0, last)] - eta)
        return np.where(y < 1, 0.0, np.where(y > last, 1.0, below))
