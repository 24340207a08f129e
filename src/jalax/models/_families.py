"""Response distributions of the mixed models, each with the log-joint of one group."""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax.families._softplus import softplus

from . import _checks
from ._gaussian import isotropic_log_density

Group = dict[str, Array]

gammaln = np.vectorize(math.lgamma, otypes=[float])  # NumPy has none; once a model, not a step


@runtime_checkable
class Family(Protocol):
    """What `random_intercept` asks of a response distribution."""

    def log_joint(self, theta: dict[str, Array], b: Array, data: Group) -> Array:
        """log p_theta(b_i, y_i) of one group."""

    def rows(self, y: np.ndarray) -> dict[str, np.ndarray]:
        """The checked data of each observation, y among them."""


def _linear_predictor(theta: dict[str, Array], b: Array, data: Group) -> Float[Array, " rows"]:
    """x' beta + b; 0 in the padding, so that nothing can overflow there."""
    fixed = jnp.matmul(data["covariates"], theta["beta"], precision="highest")
    return jnp.where(data["mask"], fixed + b, 0.0)


def _total(log_likelihood: Array, theta: dict[str, Array], b: Array, data: Group) -> Array:
    """The sum over the group's observations, with the density of its intercept."""
    observed = jnp.where(data["mask"], log_likelihood + data["log_constant"], 0.0)
    return jnp.sum(observed) + isotropic_log_density(b, 2 * theta["log_sd"])


def binomial_log_joint(theta: dict[str, Array], b: Array, data: Group) -> Float[Array, ""]:
    eta = _linear_predictor(theta, b, data)
    return _total(data["y"] * eta - data["size"] * softplus(eta), theta, b, data)


def poisson_log_joint(theta: dict[str, Array], b: Array, data: Group) -> Float[Array, ""]:
    eta = _linear_predictor(theta, b, data) + data["log_exposure"]
    return _total(data["y"] * eta - jnp.exp(eta), theta, b, data)


class Binomial:
    r"""Counts out of `size` trials, with a logit link:
    $y \sim \text{Binomial}(n, 1 / (1 + e^{-\eta}))$.

    Args:
        size: the number of trials n, one for each observation, or one for all (1: 0/1 data).

    >>> from jalax import models
    >>> models.Binomial([14, 12, 9])
    Binomial(size=[14, 12, 9])
    """

    log_joint = staticmethod(binomial_log_joint)

    def __init__(self, size: ArrayLike | int):
        self.size = size

    def __repr__(self) -> str:
        return f"Binomial(size={self.size!r})"

    def rows(self, y: np.ndarray) -> dict[str, np.ndarray]:
        """The checked data of each observation, with the log binomial coefficient."""
        size = _checks.counts("size", _per_row("size", self.size, y))
        _checks.counts("y", y)
        if (y > size).any():
            row = int(np.argmax(y > size))
            raise ValueError(
                f"y must not exceed size, but in row {row} there are {y[row]:g} successes out of "
                f"{size[row]:g} trials. size counts all trials, successes and failures together."
            )
        coefficient = gammaln(size + 1) - gammaln(y + 1) - gammaln(size - y + 1)
        return {"y": y, "size": size, "log_constant": coefficient}


class Poisson:
    r"""Counts, with a log link: $y \sim \text{Poisson}(t e^{\eta})$.

    Args:
        exposure: the exposure t (time, area, population) of each observation, or one for all;
            None is 1.

    >>> from jalax import models
    >>> models.Poisson()
    Poisson(exposure=None)
    """

    log_joint = staticmethod(poisson_log_joint)

    def __init__(self, exposure: ArrayLike | int | float | None = None):
        self.exposure = exposure

    def __repr__(self) -> str:
        return f"Poisson(exposure={self.exposure!r})"

    def rows(self, y: np.ndarray) -> dict[str, np.ndarray]:
        """The checked data of each observation, with -log y!."""
        exposure = _per_row("exposure", 1.0 if self.exposure is None else self.exposure, y)
        _checks.counts("y", y)
        if (exposure <= 0).any():
            raise ValueError(
                f"exposure must be positive, found {exposure.min():g}. Drop observations that "
                "were never exposed; exposure is t itself, not its logarithm."
            )
        return {"y": y, "log_exposure": np.log(exposure), "log_constant": -gammaln(y + 1)}


def _per_row(name: str, value: Any, y: np.ndarray) -> np.ndarray:
    """One number for each observation; a scalar holds for all."""
    if np.ndim(value) == 0:
        value = np.full(y.shape, value)
    value = _checks.real_array(name, value, ndim=1, hint="Pass one number for each observation.")
    _checks.same_rows(**{name: value, "y": y})
    return value
