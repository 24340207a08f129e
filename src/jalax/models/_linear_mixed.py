"""Linear mixed models with random effects in one grouping factor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.groups import by_group, positions
from jalax._runtime.arrays import as_array

from . import _checks
from ._gaussian import Gaussian, isotropic_log_density
from ._random_intercept import RandomIntercept, check_covariates

Theta = dict[str, Array]


def _cholesky(theta: Theta) -> Float[Array, "q q"]:
    """L of the random effects' covariance L L': its diagonal in logs, what is below as it is."""
    size = theta["log_scale"].shape[0]
    lower = jnp.zeros((size, size), theta["log_scale"].dtype)
    below = lower.at[np.tril_indices(size, -1)].set(theta["below"])
    return below + jnp.diag(jnp.exp(theta["log_scale"]))


def _log_joint(theta: Theta, b: Float[Array, " q"], data: dict[str, Array]) -> Float[Array, ""]:
    mean = jnp.matmul(data["covariates"], theta["beta"], precision="highest")
    mean = mean + jnp.matmul(data["random"], b, precision="highest")
    residual = jnp.where(data["mask"], data["y"] - mean, 0.0)
    log_variance = 2 * theta["log_sd"]
    count = jnp.sum(data["mask"])
    noise = -0.5 * (
        count * (jnp.log(2 * jnp.pi) + log_variance) + jnp.sum(residual**2) * jnp.exp(-log_variance)
    )
    z = jax.scipy.linalg.solve_triangular(_cholesky(theta), b, lower=True)
    return noise + isotropic_log_density(z, jnp.zeros((), b.dtype)) - jnp.sum(theta["log_scale"])


class LinearMixed(RandomIntercept):
    """A `GroupedModel` with `exact_log_evidence` and `exact_posterior`; see `linear_mixed`."""

    def exact_log_evidence(self, theta: Theta) -> Float[Array, ""]:
        """log p_theta(y): the groups' y are independent Gaussian vectors."""

        def group(data):
            root = data["random"] @ _cholesky(theta)
            # Rows of the padding: variance 1 and residual 0 add only their constant.
            noise = jnp.where(data["mask"], jnp.exp(2 * theta["log_sd"]), 1.0)
            root = jnp.where(data["mask"][:, None], root, 0.0)
            residual = jnp.where(data["mask"], data["y"] - data["covariates"] @ theta["beta"], 0.0)
            zero = jnp.zeros_like(residual)
            covariance = root @ root.T + jnp.diag(noise)
            density = jax.scipy.stats.multivariate_normal.logpdf(residual, zero, covariance)
            return density + jnp.sum(~data["mask"]) * jnp.log(2 * jnp.pi) / 2

        return jnp.sum(jax.vmap(group)(self.data))

    def exact_posterior(self, theta: Theta) -> Gaussian:
        """p_theta(b_i | y_i) of every group, (G, q) means and (G, q, q) covariances."""
        prior = _cholesky(theta) @ _cholesky(theta).T

        def group(data):
            z = jnp.where(data["mask"][:, None], data["random"], 0.0)
            residual = jnp.where(data["mask"], data["y"] - data["covariates"] @ theta["beta"], 0.0)
            precision = z.T @ z * jnp.exp(-2 * theta["log_sd"]) + jnp.linalg.inv(prior)
            covariance = jnp.linalg.inv(precision)
            return covariance @ z.T @ residual * jnp.exp(-2 * theta["log_sd"]), covariance

        return Gaussian(*jax.vmap(group)(self.data))


def linear_mixed(
    y: ArrayLike, covariates: ArrayLike, groups: ArrayLike, random: ArrayLike | None = None
) -> LinearMixed:
    r"""A linear model with random effects, $\theta = (\beta, L, \log \sigma)$:

    $$b_i \sim \mathcal{N}(0, L L^\top), \qquad
      y_{ij} \mid b_i \sim \mathcal{N}(x_{ij}^\top \beta + z_{ij}^\top b_i, \sigma^2).$$

    Args:
        y: n observations.
        covariates: the features x, (n, p). No intercept is added: include a column of ones.
        groups: n labels, integers or strings; groups may have different sizes.
        random: the features z of the random effects, (n, q); by default a random intercept.

    Returns:
        A grouped model whose theta is {"beta": (p,), "log_scale": (q,), "below": (q(q-1)/2,),
        "log_sd": scalar}: L has e^log_scale on its diagonal and `below` under it. It starts from
        least squares, half of the residual variance going to the random effects. The latent is
        b of one group; `groups` holds the labels in the model's order.

    >>> from jalax import datasets, models
    >>> data = datasets.dyestuff()
    >>> model = models.linear_mixed(data.yield_, data.covariates, data.batch)
    >>> model.num_groups, sorted(model.theta)
    (6, ['below', 'beta', 'log_scale', 'log_sd'])
    """
    response = _checks.real_array("y", y, ndim=1, hint="Pass one number for each observation.")
    features = check_covariates(covariates)
    given = np.ones((response.size, 1)) if random is None else random
    effects = _checks.real_array("random", given, ndim=2, hint="Pass one row an observation.")
    labels, index = positions(groups)
    _checks.same_rows(y=response, covariates=features, groups=index, random=effects)
    rows = {"y": response, "covariates": features, "random": effects}
    rows["mask"] = np.ones(response.shape, bool)
    data = {name: by_group(values, index, labels.size) for name, values in rows.items()}
    size = effects.shape[1]
    model = LinearMixed(
        _log_joint,
        latent=jnp.zeros(size),
        data=_checks.to_jax(data),
        theta=_least_squares(response, features, effects),
    )
    model.groups = labels
    return model


def _least_squares(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Theta:
    """A start on the scale of the data."""
    beta = np.linalg.lstsq(x, y, rcond=None)[0]
    spread = max(float(np.std(y - x @ beta)), 1e-8 * (1.0 + float(np.abs(y).max())))
    scale = spread / np.sqrt(2 * z.shape[1]) / np.sqrt(np.mean(z**2, axis=0) + 1e-30)
    theta = {
        "beta": beta,
        "log_scale": np.log(scale),
        "below": np.zeros(z.shape[1] * (z.shape[1] - 1) // 2),
        "log_sd": np.log(spread / np.sqrt(2)),
    }
    return {name: as_array(value, float) for name, value in theta.items()}
