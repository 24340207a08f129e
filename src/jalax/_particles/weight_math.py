"""Log-weights (G, N): means, normalisation, effective sample size, evidence.

Every evidence in jalax is `log_evidence`, here: what earlier resamplings have
banked plus the log-mean-exp of the segment still open (the main-text
formula of the paper forgets the latter).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def log_mean_exp(log_weights: Float[Array, "... N"]) -> Float[Array, "..."]:
    """log of the mean of e^{A^i}; -inf when every particle is dead."""
    top, shifted = _shifted(log_weights)
    return top[..., 0] + jnp.log(jnp.mean(shifted, axis=-1))


def normalise(log_weights: Float[Array, "... N"]) -> Float[Array, "... N"]:
    """w^i = e^{A^i} / sum_j e^{A^j}; all zero, not NaN, when every particle is dead."""
    _, shifted = _shifted(log_weights)
    total = jnp.sum(shifted, axis=-1, keepdims=True)
    return shifted / jnp.where(total > 0, total, 1.0)


def _shifted(log_weights: Float[Array, "... N"]) -> tuple[Array, Array]:
    """The largest log-weight (0 if it is not finite), and e^A without it.

    A step needs the weights and their mean: written alike, XLA takes the exponentials once.
    """
    top = jnp.max(log_weights, axis=-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return top, jnp.exp(log_weights - top)


def effective_sample_size(weights: Float[Array, "... N"]) -> Float[Array, "..."]:
    """1 / sum_i (w^i)^2 of normalised weights; 0 when every particle is dead."""
    squares = jnp.sum(jnp.square(weights), axis=-1)
    return jnp.where(squares > 0, 1.0 / jnp.where(squares > 0, squares, 1.0), 0.0)


def conditional_ess(
    weights: Float[Array, "G N"], increments: Float[Array, "G N"]
) -> Float[Array, " G"]:
    """(sum W v)^2 / sum W v^2 with v = exp(increments): 1 if the next weights are these again.

    As a fraction of N. Increments that are not finite count as -inf; a group without any other has
    0.
    """
    a = jnp.where((weights > 0) & jnp.isfinite(increments), increments, -jnp.inf)
    v = jnp.exp(a - jnp.max(a, axis=1, keepdims=True))
    v = jnp.where(jnp.isnan(v), 0.0, v)
    second = jnp.sum(weights * v**2, axis=1)
    return jnp.sum(weights * v, axis=1) ** 2 / jnp.where(second > 0, second, 1.0)


def log_evidence(base: Float[Array, " G"], log_weights: Float[Array, "G N"]) -> Float[Array, ""]:
    """log Z_k = sum over groups of log Z_(last resampling) + log mean e^{A_k}."""
    return jnp.sum(base + log_mean_exp(log_weights))
