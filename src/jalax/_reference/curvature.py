r"""The curvature of log p in x where the particles are, group by group.

At the weighted mean of a group's particles, with U = -log p: the preconditioner
$P = \nabla^2_x U^{-1}$, and the shift of the posterior when theta changes by $\Delta$ (implicit
function theorem), $c = -(\nabla^2_x U)^{-1} \nabla_x \nabla_\theta U\, \Delta$.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax._model.evaluation import log_joint_of_vectors, over_groups
from jalax._model.information import Expansion
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.langevin import (
    Dense,
    Diagonal,
    InverseHessian,
    Preconditioner,
    as_preconditioner,
)
from jalax._particles.trees import Tree
from jalax._reference.mode_search import (
    DENSE_UP_TO,
    EIGEN_UP_TO,
    cholesky_roots,
    hessian,
    hessian_diagonal,
    scaled_eigh,
    symmetric,
)
from jalax._reference.references import unravel

# Up to so many latents of a group the score of theta is expanded around their mode; of a few
# parameters, up to so many pairs of latent and parameter.
EXPAND_UP_TO = 64
PAIRS_UP_TO = 1000


def expands(latents: int, parameters: int) -> bool:
    """The (D, D, P) derivatives of a group cost no more than its particles do."""
    few_pairs = latents <= EIGEN_UP_TO and latents * parameters <= PAIRS_UP_TO
    return latents <= EXPAND_UP_TO or few_pairs


def centre(particles: Tree, log_weights: Float[Array, "G N"]) -> Float[Array, "G D"]:
    """The weighted mean of each group's particles."""
    weights = weight_math.normalise(log_weights)[..., None]
    vectors = trees.ravel_particles(particles)
    return jnp.sum(jnp.where(weights > 0, weights * vectors, 0.0), axis=1)


def inverse_hessian(model: Model, theta: Tree, at: Float[Array, "G D"]) -> Dense | Diagonal:
    """P at one point a group: dense up to two thousand latents, diagonal beyond."""
    log_p = log_joint_of_vectors(model, theta)

    def dense(x, data):
        size, axes, scale = scaled_eigh(-jax.hessian(log_p)(x, data))
        # Where log p curves upwards, its size still tells how far a move may go.
        size = jnp.maximum(jnp.abs(size), 10 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(size)))
        return scale[:, None] * symmetric(axes, 1 / jnp.sqrt(size))

    def large(x, data):
        return cholesky_roots(hessian(lambda v: -log_p(v, data), x))[0]

    if at.shape[1] <= DENSE_UP_TO:
        root = over_groups(model, dense if at.shape[1] <= EIGEN_UP_TO else large, at)
        return Dense(jnp.einsum("gij,gkj->gik", root, root), root)

    def diagonal(x, data):
        size = hessian_diagonal(lambda v: -log_p(v, data), x)
        return 1 / jnp.maximum(jnp.abs(size), 1e-6 * jnp.max(jnp.abs(size)))

    vectors = over_groups(model, diagonal, at)[:, None]
    return Diagonal(unravel(model, vectors))


def as_metric(model: Model, theta: Tree, value: Any, at: Float[Array, "G D"]) -> Preconditioner:
    """The preconditioner an option stands for, `at` being where the particles are."""
    if isinstance(value, InverseHessian):
        return inverse_hessian(model, theta, at)
    return as_preconditioner(model.latent, model.num_groups, value)


def newton(
    model: Model, theta: Tree, at: Float[Array, "G D"], matrix: Float[Array, "G D D"]
) -> Float[Array, "G D"]:
    """One Newton step to the mode, of at most one standard deviation.

    The mean of N particles is off the mode by chance; expanding there would bias scores by 1/N.
    """
    gradient = over_groups(model, jax.grad(log_joint_of_vectors(model, theta)), at)
    step = jnp.einsum("gde,ge->gd", matrix, gradient)
    length = jnp.sqrt(jnp.sum(step * gradient, axis=1, keepdims=True))
    return at + step / jnp.maximum(length, 1.0)


def expansion(
    model: Model, theta: Tree, at: Float[Array, "G D"], matrix: Float[Array, "G D D"]
) -> Expansion:
    """The score of theta to second order in x, at one point a group with covariance `matrix`."""
    flat, back = ravel_pytree(theta)

    def group(x, data):
        def slope(z):
            return jax.jacfwd(lambda t: jax.grad(log_joint_of_vectors(model, back(t)))(z, data))(
                flat
            )

        # d/dx of (D, P), derivative last: (D, P, D)
        return slope(x), jnp.moveaxis(jax.jacfwd(slope)(x), 1, 2)

    slopes, curves = over_groups(model, group, at)
    return Expansion(at, slopes, curves, matrix)


def shift(
    model: Model,
    theta: Tree,
    at: Float[Array, "G D"],
    metric: Dense | Diagonal,
    change: Float[Array, " P"],
    cross: Float[Array, "G D P"] | None = None,
) -> Tree:
    """c for a change of theta, one configuration a group, leaves (G, 1, ...).

    `cross` is the mixed derivative of log p, where it is at hand.
    """
    flat, back = ravel_pytree(theta)

    def slope(t, x, data):
        return jax.grad(log_joint_of_vectors(model, back(t)))(x, data)

    def along(x, data):
        return jax.jvp(lambda t: slope(t, x, data), (flat,), (change,))[1]

    if cross is None:
        pull = over_groups(model, along, at)  # of log p: minus that of U
    else:
        pull = jnp.einsum("gdp,p->gd", cross, change)
    if isinstance(metric, Dense):
        c = jnp.einsum("gij,gj->gi", metric.matrix, pull)
    else:
        rough = trees.ravel_particles(metric.diagonal)[:, 0]
        rough = jnp.broadcast_to(rough, pull.shape)

        def conjugate(x, b, d, data):
            def curvature(v):
                return -jax.jvp(lambda z: slope(flat, z, data), (x,), (v,))[1]

            return jax.scipy.sparse.linalg.cg(curvature, b, M=lambda v: d * v, maxiter=50)[0]

        c = over_groups(model, conjugate, at, pull, rough)
    return unravel(model, c[:, None])
