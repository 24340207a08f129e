"""The families of a mixed model as responses: mean, variance, distribution function, draws.

`draw` is in JAX, to be compiled and mapped; everything else is NumPy on the host. A binomial
response is a share of its trials here, as in R: its mean is a probability and its variance
p (1 - p) / trials. Counts are counts again in `cdf` and in `draw`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

DISPERSION = {"gaussian": "sigma", "negativebinomial": "shape"}  # a family's own parameter
BINOMIAL = ("binomial", "bernoulli")
LINKS = {
    "gaussian": "identity",
    "binomial": "logit",
    "bernoulli": "logit",
    "poisson": "log",
    "negativebinomial": "log",
}


def draw(key: jax.Array, family: str, theta: dict[str, Any], eta: Array, data: dict) -> Array:
    """One response a row, y ~ family(eta), shaped like `eta`.

    Args:
        key: `jax.random.key(seed)`.
        family: its name, as in `jalax.mixed`.
        theta: on the user's scale; "sigma" of a Gaussian family and "shape" of a negative
            binomial one are read.
        eta: the linear predictor.
        data: the rows of the model; "size", the trials, of a binomial family is read.
    """
    if family == "gaussian":
        return eta + theta["sigma"] * jax.random.normal(key, eta.shape, eta.dtype)
    if family in BINOMIAL:
        size = jnp.broadcast_to(jnp.asarray(data["size"], eta.dtype), eta.shape)
        return jax.random.binomial(key, size, jax.nn.sigmoid(eta), dtype=eta.dtype)
    key_rate, key_count = jax.random.split(key)
    rate = jnp.exp(eta)
    if family == "negativebinomial":  # a Poisson count whose rate is mu times Gamma(k) / k
        shape = jnp.broadcast_to(jnp.asarray(theta["shape"], eta.dtype), eta.shape)
        rate = rate * jax.random.gamma(key_rate, shape, dtype=eta.dtype) / shape
    return jax.random.poisson(key_count, rate).astype(eta.dtype)


def dispersion(family: str, theta: dict[str, Any]) -> float:
    """sigma, shape, or 1 where the family has neither."""
    return float(theta[DISPERSION[family]]) if family in DISPERSION else 1.0


def observed(family: str, y: np.ndarray, size: np.ndarray | None) -> np.ndarray:
    """The response on the scale of its mean: of a binomial one the share of successes."""
    return y / size if family in BINOMIAL and size is not None else y


def mean(family: str, eta: np.ndarray) -> np.ndarray:
    """The inverse link."""
    from scipy.special import expit

    link = LINKS[family]
    return eta if link == "identity" else expit(eta) if link == "logit" else np.exp(eta)


def mean_slope(family: str, eta: np.ndarray) -> np.ndarray:
    """The derivative of the inverse link."""
    value = mean(family, eta)
    link = LINKS[family]
    if link == "logit":
        return value * (1 - value)
    return np.ones_like(value) if link == "identity" else value


def variance(
    family: str, value: np.ndarray, own: float, size: np.ndarray | None = None
) -> np.ndarray:
    """Of the observed response with the mean `value`; `own` is the family's `dispersion`."""
    if family == "gaussian":
        return np.full_like(value, own**2)
    if family in BINOMIAL:
        return value * (1 - value) / (1.0 if size is None else size)
    return value if family == "poisson" else value + value**2 / own


def deviance(
    family: str, y: np.ndarray, value: np.ndarray, own: float, size: np.ndarray | None = None
) -> np.ndarray:
    """2 (log p(y | saturated) - log p(y | value)), times sigma^2 of a Gaussian family."""
    from scipy.special import xlogy

    if family == "gaussian":
        return (y - value) ** 2
    if family in BINOMIAL:
        trials = np.ones_like(value) if size is None else size
        share = y / trials
        failed = xlogy(1 - share, (1 - share) / (1 - value))
        return 2 * trials * (xlogy(share, share / value) + failed)
    if family == "poisson":
        return 2 * (xlogy(y, y / value) - (y - value))
    return 2 * (xlogy(y, y / value) - (y + own) * np.log((y + own) / (value + own)))


def cdf(
    family: str, y: np.ndarray, eta: np.ndarray, own: float, size: np.ndarray | None = None
) -> np.ndarray:
    """P(Y <= y), y a count (of successes) where the family counts; 0 below zero."""
    from scipy.special import betainc, expit, gammaincc, ndtr

    if family == "gaussian":
        return ndtr((y - eta) / own)
    y, eta = np.broadcast_arrays(np.floor(y), eta)
    below, at = y < 0, np.maximum(y, 0.0)
    if family in BINOMIAL:
        trials = np.broadcast_to(np.asarray(1.0 if size is None else size), at.shape)
        left = np.maximum(trials - at, 1.0)  # all trials: the answer is one, put in below
        value = np.where(at >= trials, 1.0, betainc(left, at + 1, expit(-eta)))
    elif family == "poisson":
        value = gammaincc(at + 1, np.exp(eta))
    else:
        value = betainc(own, at + 1, expit(np.log(own) - eta))
    return np.where(below, 0.0, value)
