"""Zeros of their own: inflated ones, hurdles, and counts that cannot be zero."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._conway import ConwayMaxwellPoisson
from ._counts import NegativeBinomial, NegativeBinomial1, Poisson
from ._family import Arithmetic, Family
from ._links import Link
from ._softplus import softplus

POISSON = Poisson()
COUNTED = (Poisson, NegativeBinomial, NegativeBinomial1, ConwayMaxwellPoisson)
LOG_ODDS = "log_odds_of_zero"  # of each row, beside a family's own parameters


@dataclasses.dataclass(frozen=True, repr=False)
class _Around(Family):
    """A family made of another one, with its link and its own parameters."""

    family: Family = POISSON
    link: Link = dataclasses.field(init=False, compare=False)

    def __post_init__(self):
        for name in ("link", "dispersion", "is_discrete"):
            object.__setattr__(self, name, getattr(self.family, name))
        object.__setattr__(self, "name", self._name())

    def _name(self) -> str:
        raise NotImplementedError

    @property
    def own(self):
        return self.family.own

    def constants(self, y, size, xp: Arithmetic):
        # What y = 0 has no use for must be finite there.
        return self.family.constants(xp.where(y > 0, y, 1 + 0 * y), size, xp)

    def first(self, y, size):
        return self.family.first(np.where(y > 0, y, 1.0) if not self.family.has_zero else y, size)

    def working(self, mean):
        return self.family.working(mean)

    def log_zero(self, own, eta, data):
        """log of the other family's probability of 0."""
        zero = jnp.zeros_like(eta)
        constants = self.family.constants(zero, data.get("size"), _JAX)
        return self.family.log_density(own, eta, dict(data) | {"y": zero} | constants)


_JAX = Arithmetic(jnp.log, jax.scipy.special.gammaln, jnp.where)


@dataclasses.dataclass(frozen=True, repr=False)
class Truncated(_Around):
    r"""Counts of a family, given that they are not zero.

    With a formula for zeros (`jalax.mixed(..., zero="~ 1")`) it is a hurdle model.

    Args:
        family: `Poisson()`, `NegativeBinomial()`, `NegativeBinomial1()` or
            `ConwayMaxwellPoisson()`.

    >>> from jalax import families
    >>> families.Truncated(families.Poisson())
    Truncated(family=Poisson(link=Log()))
    """

    has_zero: ClassVar = False

    def __post_init__(self):
        if not isinstance(self.family, COUNTED):
            raise ValueError(
                "Truncated is for families.Poisson(), NegativeBinomial(), NegativeBinomial1() and "
                f"ConwayMaxwellPoisson(), got {self.family!r}."
            )
        super().__post_init__()

    def _name(self):
        return f"truncated {self.family.name}"

    def __repr__(self):
        return f"Truncated(family={self.family!r})"

    def check(self, name, y, size):
        self.family.check(name, y, size)
        if (y == 0).any():
            raise ValueError(
                f"{name!r} has zeros, which a truncated family cannot have: with zero='~ 1' they "
                "are a model of their own."
            )

    def constants(self, y, size, xp):
        return self.family.constants(y, size, xp)

    def log_density(self, own, eta, data):
        none = self.log_zero(own, eta, data)
        # log(1 - p_0), by p_0's logarithm, which is near zero where counts are few.
        rest = jnp.log(-jnp.expm1(jnp.minimum(none, -jnp.finfo(none.dtype).tiny)))
        return self.family.log_density(own, eta, data) - rest

    def draw(self, key, own, eta, data):
        def again(carry):
            k, y = carry
            new = self.family.draw(jax.random.fold_in(key, k), own, eta, data)
            return k + 1, jnp.where(y > 0, y, new)

        first = self.family.draw(key, own, eta, data)
        return jax.lax.while_loop(lambda carry: jnp.any(carry[1] == 0), again, (1, first))[1]

    def mean(self, eta, own):
        return self.link.mean(eta) / (1 - self._none(eta, own))

    def slope(self, eta, own):
        step = 1e-5  # of a smooth function in float64
        return (self.mean(eta + step, own) - self.mean(eta - step, own)) / (2 * step)

    def _none(self, eta, own):
        return self.family.cdf(np.zeros_like(eta), eta, own, None)

    def cdf(self, y, eta, own, size):
        none = self._none(np.broadcast_arrays(y, eta)[1] * 1.0, own)
        return np.maximum(self.family.cdf(y, eta, own, size) - none, 0.0) / (1 - none)


@dataclasses.dataclass(frozen=True, repr=False)
class WithZeros(_Around):
    r"""A family with more zeros: $0$ with probability $\pi$, else the family's response.

    Where the family cannot be zero itself that is a hurdle. `own` has $\log \pi - \log(1 - \pi)$ of
    each row. Made by `jalax.mixed(..., zero=...)`.
    """

    def _name(self):
        return f"{self.family.name} with zeros"

    def __repr__(self):
        return f"{self.family!r} with zeros"

    def check(self, name, y, size):
        if not (y == 0).any():
            raise ValueError(
                f"{name!r} has no zeros: a formula for zeros has nothing to be fitted to."
            )
        self.family.check(name, y if self.family.has_zero else y[y > 0], size)

    def log_density(self, own, eta, data):
        odds = own[LOG_ODDS]
        log_zero, log_rest = -softplus(-odds), -softplus(odds)
        is_zero = data["y"] == 0
        away = dict(data) | {"y": jnp.where(is_zero, 1.0, data["y"])}
        positive = log_rest + self.family.log_density(own, eta, away)
        if self.family.has_zero:
            log_zero = jnp.logaddexp(log_zero, log_rest + self.log_zero(own, eta, data))
        return jnp.where(is_zero, log_zero, positive)

    def draw(self, key, own, eta, data):
        key_zero, key_y = jax.random.split(key)
        odds = jnp.broadcast_to(own[LOG_ODDS], eta.shape)
        is_zero = jax.random.bernoulli(key_zero, jax.nn.sigmoid(odds))
        return jnp.where(is_zero, 0.0, self.family.draw(key_y, own, eta, data))

    def mean(self, eta, own):
        return self._share(own) * self.family.mean(eta, own)

    def slope(self, eta, own):
        return self._share(own) * self.family.slope(eta, own)

    @staticmethod
    def _share(own):
        from scipy.special import expit

        return expit(-own[LOG_ODDS])

    def jump(self, y, eta, own, size):
        is_zero = np.broadcast_to(y == 0, np.broadcast_shapes(np.shape(y), np.shape(eta)))
        safe = y if self.family.has_zero else np.where(y > 0, y, 1.0)
        below, upto = self.family.jump(safe, eta, own, size)
        if not self.family.has_zero:
            upto = np.where(is_zero, 0.0, upto)
        share = self._share(own)
        lower = np.where(is_zero, 0.0, 1 - share + share * below)
        return lower, 1 - share + share * upto
