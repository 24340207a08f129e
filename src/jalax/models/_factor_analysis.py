"""Factor analysis: a few latent factors behind many variables, in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import GroupedModel

from . import _checks
from ._gaussian import LOG_2PI, Gaussian, isotropic_log_density

Theta = dict[str, Array]


def _matrix(free: Float[Array, " m"], num_variables: int, num_factors: int) -> Float[Array, "p k"]:
    """The loadings, from their free entries row by row: none above the diagonal.

    A rotation of the factors changes nothing that is observed; the zeros fix one.
    """
    loadings = jnp.zeros((num_variables, num_factors), free.dtype)
    return loadings.at[np.tril_indices(num_variables, 0, num_factors)].set(free)


def _log_joint(theta: Theta, x: Float[Array, " k"], data: dict[str, Array]) -> Float[Array, ""]:
    y, log_sd = data["y"], theta["log_sd"]
    loadings = _matrix(theta["loadings"], y.shape[-1], x.shape[-1])
    residual = (y - theta["mean"] - jnp.matmul(loadings, x, precision="highest")) * jnp.exp(-log_sd)
    noise = isotropic_log_density(residual, jnp.zeros((), x.dtype)) - jnp.sum(log_sd)
    return noise + isotropic_log_density(x, jnp.zeros((), x.dtype))


class FactorAnalysis(GroupedModel):
    """A `GroupedModel` with `exact_log_evidence` and `exact_posterior`; see `factor_analysis`."""

    def loadings(self, theta: Theta) -> Float[Array, "p k"]:
        """The matrix of loadings, zero above its diagonal."""
        return _matrix(theta["loadings"], self.data["y"].shape[1], self.latent.shape[0])

    def exact_log_evidence(self, theta: Theta) -> Float[Array, ""]:
        """log p_theta(y), y_i ~ N(mean, loadings loadings' + diag(e^(2 log_sd)))."""
        y = self.data["y"]
        loadings = self.loadings(theta)
        covariance = loadings @ loadings.T + jnp.diag(jnp.exp(2 * theta["log_sd"]))
        root = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(root, (y - theta["mean"]).T, lower=True)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return -0.5 * (jnp.sum(white**2) + len(y) * (log_det + y.shape[1] * LOG_2PI))

    def exact_posterior(self, theta: Theta) -> Gaussian:
        """p_theta(x_i | y_i) of every row, (n, k) means and (n, k, k) covariances."""
        y = self.data["y"]
        scaled = self.loadings(theta) * jnp.exp(-2 * theta["log_sd"])[:, None]
        precision = jnp.eye(self.latent.shape[0]) + self.loadings(theta).T @ scaled
        covariance = jnp.linalg.inv(precision)
        means = (y - theta["mean"]) @ scaled @ covariance
        return Gaussian(means, jnp.broadcast_to(covariance, (len(y), *covariance.shape)))


def factor_analysis(y: ArrayLike, num_factors: int) -> FactorAnalysis:
    r"""Factor analysis, $\theta = (m, \Lambda, \log \psi)$, one group a row:

    $$x_i \sim \mathcal{N}(0, I_k), \qquad
      y_i \mid x_i \sim \mathcal{N}(m + \Lambda x_i, \mathrm{diag}(\psi^2)).$$

    Args:
        y: (n, p), one row for each observation of p variables.
        num_factors: k, fewer than p.

    Returns:
        A grouped model whose theta is {"mean": (p,), "loadings": (pk - k(k-1)/2,), "log_sd": (p,)},
        starting from principal components; `loadings(theta)` is the matrix, zero above its
        diagonal, without which the factors could be rotated. With `exact_log_evidence(theta)` and
        `exact_posterior(theta)`.

    >>> import numpy as np
    >>> from jalax import models
    >>> y = np.random.default_rng(0).normal(size=(30, 5))
    >>> model = models.factor_analysis(y, 2)
    >>> model.num_groups, model.loadings(model.theta).shape
    (30, (5, 2))
    """
    hint = "Pass one row for each observation, one column for each variable."
    rows = _checks.real_array("y", y, ndim=2, hint=hint)
    size = _checks.whole_number("num_factors", num_factors, at_least=1)
    if size >= rows.shape[1]:
        raise ValueError(
            f"num_factors must be smaller than the {rows.shape[1]} variables of y, got {size}."
        )
    data = _checks.to_jax({"y": rows})
    theta = _checks.to_jax(_principal_components(rows, size))
    return FactorAnalysis(_log_joint, latent=jnp.zeros(size), data=data, theta=theta)


def _principal_components(y: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """A start: the leading components, rotated to be zero above the diagonal, and what is left."""
    centred = y - y.mean(axis=0)
    variances, vectors = np.linalg.eigh(centred.T @ centred / len(y))
    total = np.maximum(np.diagonal(centred.T @ centred / len(y)), 1e-12)
    rest = max(float(variances[:-size].mean()), 0.0)
    loadings = vectors[:, -size:] * np.sqrt(np.maximum(variances[-size:] - rest, 0.01 * rest))
    loadings = loadings @ np.linalg.qr(loadings[:size].T)[0]
    own = np.maximum(total - np.sum(loadings**2, axis=1), 0.05 * total)
    return {
        "mean": y.mean(axis=0),
        "loadings": loadings[np.tril_indices(y.shape[1], 0, size)],
        "log_sd": np.log(own) / 2,
    }
