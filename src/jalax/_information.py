r"""Louis' observed information about theta, from weighted particles of the posterior.

$$I(\theta) = E[-\nabla^2_\theta \log p_\theta(x, y)]
  - \mathrm{Cov}[\nabla_\theta \log p_\theta(x, y)],$$
expectations over $p_\theta(x \mid y)$, group by group: scores are centred within each group, and
each group's covariance is multiplied by $1 / (1 - \sum_i w_i^2)$.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax import _model, _weights
from jalax._model import Model
from jalax._tree import Tree

LIMIT = 300  # parameters: the information is a dense matrix, and N scores of this size are held


def observed_information(
    model: Model, theta: Tree, particles: Tree, log_weights: Float[Array, "G N"]
) -> Float[Array, "P P"]:
    flat, unravel = ravel_pytree(theta)
    weights = _weights.normalise(log_weights)

    def values(t):
        return _model.log_joint(model, unravel(t), particles)

    scores = jax.jacfwd(values)(flat)  # (G, N, P)
    scores = jnp.where(weights[..., None] > 0, scores, 0.0)
    complete = -jax.hessian(lambda t: jnp.sum(weights * values(t)))(flat)
    centred = scores - jnp.einsum("gn,gnp->gp", weights, scores)[:, None]
    spread = jnp.einsum("gn,gnp,gnq->gpq", weights, centred, centred)
    correction = 1 - jnp.sum(weights**2, axis=1)
    missing = jnp.sum(spread / jnp.maximum(correction, 1e-6)[:, None, None], axis=0)
    return complete - missing
