"""A multivariate Gaussian: what `exact_posterior` returns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

LOG_2PI = 1.8378770664093453


class Gaussian(NamedTuple):
    r"""The density $\mathcal{N}(x; m, C)$.

    Attributes:
        mean: $m$, of length d.
        covariance: $C$, (d, d), positive definite.

    >>> import jax, jax.numpy as jnp
    >>> from jalax import models
    >>> gaussian = models.Gaussian(mean=jnp.zeros(2), covariance=jnp.eye(2))
    >>> gaussian.sample(jax.random.key(0), 1000).shape
    (1000, 2)
    >>> print(f"{gaussian.log_density(jnp.ones(2)):.4f}")
    -2.8379
    """

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]

    def sample(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "num_samples d"]:
        """Independent draws, one a row."""
        scale, factor = self._factor()
        noise = jax.random.normal(key, (num_samples, *self.mean.shape), self.mean.dtype)
        return self.mean + scale * jnp.matmul(noise, factor.T, precision="highest")

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """log N(x; mean, covariance), normalised; vmap it over many points."""
        scale, factor = self._factor()
        white = solve_triangular(factor, (x - self.mean) / scale, lower=True)
        log_det = jnp.sum(jnp.log(scale)) + jnp.sum(jnp.log(jnp.diag(factor)))
        return -0.5 * jnp.sum(white**2) - log_det - 0.5 * self.mean.shape[0] * LOG_2PI

    def _factor(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Standard deviations s and the Cholesky factor L of the correlations.

        The correlations and not C itself: coefficients on very different scales (x against
        x^10) would leave C numerically indefinite in single precision.
        """
        scale = jnp.sqrt(jnp.diag(self.covariance))
        return scale, jnp.linalg.cholesky(self.covariance / (scale[:, None] * scale))


def isotropic_log_density(
    x: Float[Array, " ..."], log_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """log N(x; 0, e^log_variance I), summed over every entry of x."""
    # The squares are added up before they meet the variance: its derivative needs their sum only.
    # The exponential comes in two halves, each of which overflows half as early.
    root = jnp.exp(-0.5 * log_variance)
    squares = root * (root * jnp.sum(x**2))
    return -0.5 * squares - 0.5 * jnp.size(x) * (LOG_2PI + log_variance)
