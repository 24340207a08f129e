"""Pareto k-hat of importance weights: do they have a variance?

The estimate of Vehtari, Gelman and Gabry (2017), by the fit of Zhang and Stephens (2009), as in
blackjax's `psis_weights`, which a test compares it with. It is written out here because every fit
needs it, and importing blackjax takes half as long as importing jax.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def host_pareto_k(log_weights: np.ndarray) -> float:
    """The same of one array on the host, where nothing is compiled for it."""
    values = np.maximum(np.ravel(log_weights).astype(float), np.finfo(np.float32).min / 4)
    with np.errstate(all="ignore"):
        k_hat = float(_k_of_tail(values, np))
    return np.inf if np.isnan(k_hat) else k_hat


def _k_of_tail(log_weights: Any, xp: Any = jnp) -> Any:
    """k-hat of the M largest weights, beyond the largest of those that are smaller.

    Without ties that is the largest of the others. Counts of descendants, as resampling makes them,
    have ties, and numbers of zero would look like the centre of a law with a heavy tail.
    """
    n = log_weights.shape[0]
    tail = min(max(int(3.0 * n**0.5), 5), n // 5)
    if tail < 5:
        return xp.asarray(xp.inf)
    weights = xp.exp(xp.sort(log_weights - xp.max(log_weights)))
    largest = weights[n - tail :]
    beyond = xp.max(xp.where(weights < largest[0], weights, 0.0))
    k_hat = _zhang_stephens(largest - beyond, xp)
    return xp.where(largest[0] == largest[-1], 0.0, k_hat)  # no tail


def _zhang_stephens(excess: Any, xp: Any) -> Any:
    """The shape k of a generalised Pareto distribution, fitted to ascending positive numbers."""
    n, x = excess.shape[0], excess
    # A grid of candidates b = k / sigma around the quartile, averaged by their profile likelihood.
    num = 30 + int(n**0.5)
    b = 1.0 - xp.sqrt(num / (xp.arange(1, num + 1) - 0.5))
    b = b / (3 * x[int(n / 4 + 0.5) - 1]) + 1.0 / x[-1]
    k = xp.mean(xp.log1p(-b[:, None] * x), axis=1)
    profile = n * (xp.log(-b / k) - k - 1.0)
    likelihood = xp.exp(profile - xp.max(profile))
    mean = xp.sum(b * likelihood) / xp.sum(likelihood)
    k_hat = xp.mean(xp.log1p(-mean * x))
    return (n * k_hat + 10 * 0.5) / (n + 10)  # a weak prior at a half
