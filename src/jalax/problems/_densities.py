"""Densities that several problems share.

The latents of the random effects are standardised, u ~ N(0, 1), and theta has the logarithms of
their standard deviations.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jalax.families._softplus import softplus
from jalax.models._gaussian import LOG_2PI
from jalax.models._rows import sum_over_rows

Theta = dict[str, Array]


def standard_normal(u: Float[Array, "*any"]) -> Float[Array, ""]:
    """log N(u; 0, I)."""
    return -0.5 * (jnp.sum(u**2) + u.size * LOG_2PI)


def normal(x: Array, mean: Array, log_sd: Array) -> Array:
    """log N(x; mean, e^(2 log_sd)) of each entry."""
    return -0.5 * (((x - mean) * jnp.exp(-log_sd)) ** 2 + LOG_2PI) - log_sd


def bernoulli(y: Array, logit: Array) -> Array:
    """log p(y) of answers 0 and 1, term by term: two separate sums would cancel."""
    return y * logit - softplus(logit)


def random_intercept(theta: Theta, u: Float[Array, ""], data: Any) -> Float[Array, ""]:
    """One group of binomial counts with one standardised intercept."""
    eta = jnp.matmul(data["X"], theta["beta"], precision="highest") + jnp.exp(theta["log_sd"]) * u
    rows = data["y"] * eta - data["size"] * softplus(eta) + data["constant"]
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + standard_normal(u)


def _predictor(theta: Theta, u: dict[str, Array], rows: Any) -> Array:
    eta = jnp.matmul(rows["X"], theta["beta"], precision="highest")
    for factor, effects in u.items():
        eta = eta + jnp.exp(theta[f"log_sd_{factor}"]) * effects[rows["level"][factor]]
    return eta


def _prior(u: dict[str, Array]) -> Array:
    return sum((standard_normal(effects) for effects in u.values()), jnp.zeros(()))


def logistic_effects(theta: Theta, u: dict[str, Array], data: Any) -> Float[Array, ""]:
    """Answers 0 and 1 with standardised effects of some factors; theta has a log_sd of each."""

    def rows(part: Any) -> Array:
        return bernoulli(part["y"], _predictor(theta, u, part))

    return sum_over_rows(rows, data) + _prior(u)


def padded_logistic_effects(theta: Theta, u: dict[str, Array], data: Any) -> Float[Array, ""]:
    """The same for one group of several, whose last rows may be padding."""
    rows = bernoulli(data["y"], _predictor(theta, u, data))
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + _prior(u)


def gaussian_effects(theta: Theta, u: dict[str, Array], data: Any) -> Float[Array, ""]:
    """Measurements with standardised effects of some factors, and log_sigma of the noise."""

    def rows(part: Any) -> Array:
        return normal(part["y"], _predictor(theta, u, part), theta["log_sigma"])

    return sum_over_rows(rows, data) + _prior(u)
