"""The toy model of the interacting-particle papers, with everything in closed form."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import Model

from . import _checks
from ._gaussian import Gaussian, isotropic_log_density


def _log_joint(
    theta: Float[Array, ""], x: Float[Array, " n"], data: dict[str, Array]
) -> Float[Array, ""]:
    unit = jnp.zeros((), x.dtype)
    return isotropic_log_density(x - theta, unit) + isotropic_log_density(data["y"] - x, unit)


class HierarchicalNormal(Model):
    """A `Model` with `exact_log_evidence` and `exact_posterior`; see `hierarchical_normal`."""

    def exact_log_evidence(self, theta: Float[Array, ""]) -> Float[Array, ""]:
        """log p_theta(y), y_i ~ N(theta, 2)."""
        y = self.data["y"]
        return isotropic_log_density(y - theta, jnp.log(jnp.asarray(2.0, y.dtype)))

    def exact_posterior(self, theta: Float[Array, ""]) -> Gaussian:
        """p_theta(x | y) = N((y + theta) / 2, I / 2)."""
        y = self.data["y"]
        return Gaussian((y + theta) / 2, jnp.eye(y.shape[0], dtype=y.dtype) / 2)


def hierarchical_normal(y: ArrayLike) -> HierarchicalNormal:
    r"""Normal means with a common centre, $\theta \in \mathbb{R}$:

    $$x_i \sim \mathcal{N}(\theta, 1), \qquad y_i \mid x_i \sim \mathcal{N}(x_i, 1),$$

    so that $y_i \sim \mathcal{N}(\theta, 2)$ and the maximum likelihood estimate is the mean of y.

    Args:
        y: n observations.

    Returns:
        A model whose theta is a scalar (start value 0) and whose latent is x in R^n, with
        `exact_log_evidence(theta)` and `exact_posterior(theta)`.

    >>> from jalax import models
    >>> model = models.hierarchical_normal([1.0, 2.0, 3.0])
    >>> print(f"{model.exact_log_evidence(2.0):.4f}")
    -4.2965
    >>> model.exact_posterior(2.0).mean.tolist()
    [1.5, 2.0, 2.5]
    """
    hint = "Pass one number for each observation."
    data = _checks.to_jax({"y": _checks.real_array("y", y, ndim=1, hint=hint)})
    return HierarchicalNormal(
        _log_joint, latent=jnp.zeros_like(data["y"]), data=data, theta=jnp.zeros(())
    )
