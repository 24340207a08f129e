"""Pareto k-hat of importance weights: do they have a variance?

The estimate of Vehtari, Gelman and Gabry (2017), by the fit of Zhang and Stephens (2009), as in
blackjax's `psis_weights`, which a test compares it with. It is written out here because every fit
needs it, and importing blackjax takes half as long as importing jax.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# From a k-hat of a half on weights have no variance: an error computed from them would lie.
NO_VARIANCE = 0.5
# An estimate of k has an error of 0.1 itself: below this its weights can be relied upon.
SURE_VARIANCE = 0.4
# What is usually asked of weights; one round of many does not reach it by chance.
USUAL_LIMIT = 0.7


def pareto_k(log_weights: Float[Array, "G N"]) -> Float[Array, " G"]:
    """Pareto k-hat of the importance weights of each group."""
    floor = jnp.finfo(log_weights.dtype).min / 4
    k_hat = jax.vmap(_k_of_tail)(jnp.maximum(log_weights, floor)).astype(log_weights.dtype)
    return jnp.where(jnp.isnan(k_hat), jnp.inf, k_hat)  # weights without a tail to fit


def _k_of_tail(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    """k-hat of the M largest weights, beyond the largest of those that are smaller.

    Without ties that is the largest of the others. Counts of descendants, as resampling makes them,
    have ties, and numbers of zero would look like the centre of a law with a heavy tail.
    """
    n = log_weights.shape[0]
    tail = min(max(int(3.0 * n**0.5), 5), n // 5)
    if tail < 5:
        return jnp.asarray(jnp.inf)
    weights = jnp.exp(jnp.sort(log_weights - jnp.max(log_weights)))
    largest = weights[n - tail :]
    beyond = jnp.max(jnp.where(weights < largest[0], weights, 0.0))
    k_hat = _zhang_stephens(largest - beyond)
    return jnp.where(largest[0] == largest[-1], 0.0, k_hat)  # no tail


def _zhang_stephens(excess: Float[Array, " M"]) -> Float[Array, ""]:
    """The shape k of a generalised Pareto distribution, fitted to ascending positive numbers."""
    n, x = excess.shape[0], excess
    # A grid of candidates b = k / sigma around the quartile, averaged by their profile likelihood.
    num = 30 + int(n**0.5)
    b = 1.0 - jnp.sqrt(num / (jnp.arange(1, num + 1) - 0.5))
    b = b / (3 * x[int(n / 4 + 0.5) - 1]) + 1.0 / x[-1]
    k = jnp.mean(jnp.log1p(-b[:, None] * x), axis=1)
    profile = n * (jnp.log(-b / k) - k - 1.0)
    mean = jnp.sum(b * jax.nn.softmax(profile))
    k_hat = jnp.mean(jnp.log1p(-mean * x))
    return (n * k_hat + 10 * 0.5) / (n + 10)  # a weak prior at a half
