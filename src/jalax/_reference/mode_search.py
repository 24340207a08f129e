"""The mode of p_theta(x, y) in x and the curvature there, for every group.

Small latents: damped Newton on the dense Hessian, which also survives where the Hessian is
not positive definite. Larger ones: L-BFGS, and one dense Hessian at its end. The largest: L-BFGS,
and the diagonal of the Hessian by random probes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jalax._model.evaluation import log_joint_of_vectors, over_groups, ravel_latent
from jalax._model.model import Model
from jalax._particles.trees import Tree

EIGEN_UP_TO = 400  # latents of one group; eigenvectors beyond are slow to find
DENSE_UP_TO = 2000  # a Cholesky factor is still fast
COLUMNS = 64  # of a Hessian at a time: each is a pass over the data
NUM_PROBES = 64


class Mode(NamedTuple):
    """A maximum of log p in x, group by group, with the inverse Hessian of -log p as R R^T."""

    x: Float[Array, "G D"]
    log_joint: Float[Array, " G"]
    root: Float[Array, "G D *D"]  # R: (G, D, D), or (G, D): a diagonal
    inverse: Float[Array, "G D *D"]  # R^{-1}
    log_det_root: Float[Array, " G"]
    positive: Bool[Array, " G"]  # the Hessian was positive definite at x
    converged: Bool[Array, " G"]


def find_mode(model: Model, theta: Tree, first: Float[Array, "G D"] | None = None) -> Mode:
    """The mode nearest to `first`, by default to the model's example latent."""
    example, _ = ravel_latent(model)
    if first is None:
        first = jnp.broadcast_to(example, (model.num_groups, example.size))
    log_p = log_joint_of_vectors(model, theta)
    one = _newton if example.size <= EIGEN_UP_TO else _lbfgs
    return over_groups(model, lambda x, data: one(lambda v: log_p(v, data), x), first)


def _newton(log_p, x: Float[Array, " D"]) -> Mode:
    """Newton with eigenvalues made positive and a damping that grows when a step fails."""
    eps = jnp.finfo(x.dtype).eps
    tolerance = eps**0.75
    curvature = jax.hessian(lambda v: -log_p(v))
    slope = jax.value_and_grad(log_p)

    def look(x):
        value, gradient = slope(x)
        return value, gradient, *scaled_eigh(curvature(x))

    def body(carry):
        k, x, (value, gradient, eigenvalues, vectors, scale), damping, _ = carry
        # Levenberg's damping in the metric of |H|: 0 is Newton, large is a short ascent step.
        size = jnp.maximum(jnp.abs(eigenvalues), 1e-8 * jnp.max(jnp.abs(eigenvalues)) + 1e-30)
        coordinates = vectors.T @ (scale * gradient)
        step = scale * (vectors @ (coordinates / (size * (1.0 + damping))))
        gain = jnp.sum(coordinates**2 / size)  # twice what a quadratic would still gain
        new = look(x + step)
        better = jnp.isfinite(new[0]) & (new[0] >= value)
        here = jax.tree.map(lambda a, b: jnp.where(better, a, b), (x + step, new), (x, carry[2]))
        damping = jnp.where(better, jnp.where(damping > 1e-2, damping / 8, 0.0), 8 * damping + 1)
        # A step that fails with nothing left to gain has met the precision of log p.
        done = (gain < tolerance * (1.0 + jnp.abs(value))) | (damping > 1e12)
        return k + 1, *here, damping, done

    def go_on(carry):
        return (carry[0] < 200) & ~carry[4]

    first = (jnp.zeros((), jnp.int32), x, look(x), jnp.zeros((), x.dtype), jnp.zeros((), bool))
    end = lax.while_loop(go_on, body, first)
    _, x, (value, _, eigenvalues, vectors, scale), _, done = end
    basis = scale[:, None] * vectors
    width = _width(log_p, x, value, basis)  # one to two standard deviations, were it Gaussian
    none = eigenvalues <= 8 * eps * jnp.max(jnp.abs(eigenvalues))
    flat = none | (width**2 * eigenvalues < 1 / 16**2)
    positive = ~jnp.any(flat)
    # Where the Hessian says nothing, the distance at which log p has fallen by a half does.
    size = jnp.where(flat, width**-2, eigenvalues)
    log_det = jnp.sum(jnp.log(scale)) - 0.5 * jnp.sum(jnp.log(size))
    root = scale[:, None] * symmetric(vectors, 1 / jnp.sqrt(size))
    inverse = symmetric(vectors, jnp.sqrt(size)) / scale
    return Mode(x, value, root, inverse, log_det, positive, done)


def symmetric(vectors: Float[Array, "D D"], size: Float[Array, " D"]) -> Float[Array, "D D"]:
    """V diag(size) V^T: unlike V, whose signs are LAPACK's whim, it hardly feels rounding."""
    return jnp.matmul(vectors * size, vectors.T, precision="highest")


def scaled_eigh(
    H: Float[Array, "D D"],
) -> tuple[Float[Array, " D"], Float[Array, "D D"], Float[Array, " D"]]:
    """Eigenvalues and vectors of S H S, scaled to a diagonal of ones, and S.

    Latents in very different units (the powers of a polynomial) would otherwise look like
    directions without curvature.
    """
    diagonal = jnp.abs(jnp.diagonal(H))
    top = jnp.where(jnp.max(diagonal) > 0, jnp.max(diagonal), 1.0)
    least = jnp.finfo(H.dtype).eps ** 2 * top
    scale = 1 / jnp.sqrt(jnp.where(diagonal > least, diagonal, top))
    scaled = scale[:, None] * H * scale
    if H.shape[0] == 1:  # most random effects: no call of LAPACK for each of many groups
        return scaled[0], jnp.ones_like(scaled), scale
    return *jnp.linalg.eigh(scaled), scale


def _width(log_p, x: Float[Array, " D"], value, vectors: Float[Array, "D D"]):
    """For each column v: the least 2^k with log p(x + 2^k v) or log p(x - 2^k v) down by 1/2."""
    scales = 2.0 ** jnp.arange(-20, 21).astype(x.dtype)

    def width(v):
        points = x + scales[:, None] * v
        mirrored = x - scales[:, None] * v
        drop = value - jnp.minimum(jax.vmap(log_p)(points), jax.vmap(log_p)(mirrored))
        fallen = ~(drop < 0.5)  # NaN counts as fallen
        return jnp.where(jnp.any(fallen), scales[jnp.argmax(fallen)], scales[-1])

    return jax.vmap(width)(vectors.T)


def _lbfgs(log_p, x: Float[Array, " D"]) -> Mode:
    """L-BFGS with a line search."""
    import optax

    def loss(v):
        return -log_p(v)

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def body(carry):
        k, x, state, _ = carry
        value, gradient = value_and_grad(x, state=state)
        updates, state = solver.update(
            gradient, state, x, value=value, grad=gradient, value_fn=loss
        )
        small = jnp.linalg.norm(gradient) < 1e-5 * (1.0 + jnp.abs(value))
        return k + 1, x + updates, state, small

    first = (jnp.zeros((), jnp.int32), x, solver.init(x), jnp.zeros((), bool))
    _, x, _, done = lax.while_loop(lambda c: (c[0] < 500) & ~c[3], body, first)
    if x.size <= DENSE_UP_TO:
        root, inverse, positive = cholesky_roots(hessian(loss, x))
        x = x + root @ (root.T @ jax.grad(log_p)(x))  # Newton's step: L-BFGS stops a little short
        log_det = jnp.sum(jnp.log(jnp.diagonal(root)))
        return Mode(x, log_p(x), root, inverse, log_det, positive, done)

    diagonal = hessian_diagonal(loss, x)
    top = jnp.max(jnp.abs(diagonal))
    size = jnp.maximum(diagonal, 1e-6 * top)
    positive = jnp.all(diagonal > 0)
    root, log_det = 1 / jnp.sqrt(size), -0.5 * jnp.sum(jnp.log(size))
    return Mode(x, log_p(x), root, 1 / root, log_det, positive, done)


def hessian(loss, x: Float[Array, " D"]) -> Float[Array, "D D"]:
    """Some columns at a time, to save memory."""

    def column(v):
        return jax.jvp(jax.grad(loss), (x,), (v,))[1]

    H = lax.map(column, jnp.eye(x.size, dtype=x.dtype), batch_size=COLUMNS)
    return (H + H.T) / 2


def cholesky_roots(
    H: Float[Array, "D D"],
) -> tuple[Float[Array, "D D"], Float[Array, "D D"], Bool[Array, ""]]:
    """R with R R^T = H^{-1}, R^{-1}, and whether H is positive definite; if not, its diagonal."""
    diagonal = jnp.abs(jnp.diagonal(H))
    scale = 1 / jnp.sqrt(jnp.maximum(diagonal, 1e-6 * jnp.max(diagonal) + 1e-30))
    one = jnp.eye(H.shape[0], dtype=H.dtype)
    factor = jnp.linalg.cholesky(scale[:, None] * H * scale)
    positive = jnp.all(jnp.isfinite(factor))
    factor = jnp.where(positive, factor, one)
    root = scale[:, None] * jax.scipy.linalg.solve_triangular(factor, one, lower=True).T
    return root, factor.T / scale, positive


def hessian_diagonal(loss, x: Float[Array, " D"]) -> Float[Array, " D"]:
    """diag(H) = E[z * H z] over random signs z."""

    def probe(key):
        z = jax.random.rademacher(key, x.shape, x.dtype)
        return z * jax.jvp(jax.grad(loss), (x,), (z,))[1]

    # The probes are part of the method, not of the user's randomness.
    return jnp.mean(jax.vmap(probe)(jax.random.split(jax.random.key(0), NUM_PROBES)), axis=0)
