"""What `jalax.mixed` asks of the distribution of a response."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._links import LINKS, Link

Own = Mapping[str, Any]  # a family's own parameters, one number or one for each row


class Arithmetic(NamedTuple):
    """NumPy's, for constants of the data, or JAX's, for those of simulated data."""

    log: Callable
    gammaln: Callable
    where: Callable


HOST = Arithmetic(np.log, np.vectorize(math.lgamma, otypes=[float]), np.where)
JAX = Arithmetic(jnp.log, jax.scipy.special.gammaln, jnp.where)


@dataclasses.dataclass(frozen=True)
class Family:
    """The distribution of a response, given its linear predictor eta.

    `own` has the parameters besides eta, by name; each is one number or, with a `dispersion=`
    formula, one for each row. Methods of JAX and of NumPy are apart: `log_density` and `draw` are
    compiled, everything else is for tables.
    """

    name: ClassVar[str]
    links: ClassVar[tuple[type, ...]]  # those that it may have, the usual one first
    dispersion: ClassVar[str | None] = None  # the own parameter that a dispersion formula is about
    is_discrete: ClassVar[bool] = True
    has_zero: ClassVar[bool] = True  # may the response be 0?
    has_mean: ClassVar[bool] = True
    has_order: ClassVar[bool] = True  # and with it a distribution function

    link: Link

    def __post_init__(self):
        link = LINKS.get(self.link.lower()) if isinstance(self.link, str) else self.link
        if not isinstance(link, self.links):
            known = ", ".join(f"jalax.families.{kind.__name__}()" for kind in self.links)
            raise ValueError(f"{type(self).__name__} has no link {self.link!r}: use {known}.")
        object.__setattr__(self, "link", link)

    @property
    def own(self) -> dict[str, Any]:
        """Its parameters besides eta: name to support, see `_parameters.py`."""
        return {}

    # --- the data -------------------------------------------------------------------------------

    def check(self, name: str, y: np.ndarray, size: np.ndarray | None) -> None:
        """Refuse a response that it cannot have."""
        no_trials(self, name, size)
        whole_numbers(self, name, y)

    def constants(self, y: Any, size: Any, xp: Arithmetic) -> dict[str, Any]:
        """What `log_density` reads of each row besides y and the trials."""
        return {}

    # --- compiled -------------------------------------------------------------------------------

    def log_density(self, own: Own, eta: Array, data: Mapping[str, Array]) -> Array:
        """log p(y | eta) of each row."""
        raise NotImplementedError

    def draw(self, key: jax.Array, own: Own, eta: Array, data: Mapping[str, Array]) -> Array:
        """One response a row."""
        raise NotImplementedError

    # --- tables ---------------------------------------------------------------------------------

    def first(self, y: np.ndarray, size: np.ndarray | None) -> np.ndarray:
        """What the inverse link is of each row to begin with, where eta is finite."""
        return y + 0.1

    def working(self, mean: np.ndarray) -> np.ndarray | None:
        """The variance of a row up to a factor, for a first beta; None: least squares will do."""
        return mean

    def mean(self, eta: np.ndarray, own: Own) -> np.ndarray:
        """Of the response; of a binomial one, of its share."""
        return self.link.mean(eta)

    def slope(self, eta: np.ndarray, own: Own) -> np.ndarray:
        """The derivative of `mean`."""
        return self.link.slope(eta)

    def observed(self, y: np.ndarray, size: np.ndarray | None) -> np.ndarray:
        """The response on the scale of its mean."""
        return y

    def variance(self, mean: np.ndarray, own: Own, size: np.ndarray | None) -> np.ndarray:
        """Of the observed response with that mean."""
        raise ValueError(f"there are no Pearson residuals of {self.name} responses: {QUANTILE}")

    def deviance(
        self, y: np.ndarray, mean: np.ndarray, own: Own, size: np.ndarray | None
    ) -> np.ndarray:
        """2 (log p(y | saturated) - log p(y | mean)), times sigma^2 of a Gaussian family."""
        raise ValueError(f"there are no deviance residuals of {self.name} responses: {QUANTILE}")

    def cdf(self, y: np.ndarray, eta: np.ndarray, own: Own, size: np.ndarray | None) -> np.ndarray:
        """P(Y <= y)."""
        raise NotImplementedError

    def jump(
        self, y: np.ndarray, eta: np.ndarray, own: Own, size: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y <= y)."""
        upper = self.cdf(y, eta, own, size)
        return (self.cdf(y - 1, eta, own, size) if self.is_discrete else upper), upper

    def __repr__(self) -> str:
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = ", ".join(f"{name}={value!r}" for name, value in own.items())
        return f"{type(self).__name__}({shown})"


QUANTILE = "use jalax.residuals.Quantile(key)."


def no_trials(family: Family, name: str, size: np.ndarray | None) -> None:
    if size is not None:
        raise ValueError(
            f"{name} is a count out of trials: use family='binomial' or 'betabinomial', not "
            f"{family.name!r}."
        )


def whole_numbers(family: Family, name: str, y: np.ndarray) -> None:
    wrong = (y < 0) | (y != np.floor(y))
    if wrong.any():
        raise ValueError(
            f"family={family.name!r} needs counts, whole numbers from 0 upwards; {name!r} has "
            f"{y[wrong][0]:g}. For measurements use family='gaussian' or 'gamma'."
        )


def positive_numbers(family: Family, name: str, y: np.ndarray) -> None:
    if (y <= 0).any():
        hint = " Zeros beside it are a model of their own: zero='~ 1'." if (y == 0).any() else ""
        raise ValueError(
            f"family={family.name!r} needs positive numbers; {name!r} has {y[y <= 0][0]:g}.{hint}"
        )


def varying_numbers(name: str, y: np.ndarray) -> None:
    if np.ptp(y) == 0:
        raise ValueError(f"the response {name!r} is {y[0]:g} in every row: nothing varies.")
