r"""The Langevin move and the Jarzynski increment of its log-weight.

With the potential $U_k(x) = -\log p_{\theta_k}(x, y)$, a constant preconditioner P and one
step size h for the forward and the backward kernel of a move:

    X_{k+1} = X_k - h P \nabla U_k(X_k) + \sqrt{2h} P^{1/2} \xi_{k+1}             (paper, eq. 2)
    A_{k+1} = A_k - \alpha_{k+1}(X_{k+1}, X_k) + \alpha_k(X_k, X_{k+1})           (paper, eq. 2)
    \alpha_k(x_l, x_r) = U_k(x_l) + (x_r - x_l) \cdot \nabla U_k(x_l) / 2
                         + (h/4) \nabla U_k(x_l)^T P \nabla U_k(x_l)              (paper, eq. 3)

The move uses theta_k; alpha_{k+1} uses theta_{k+1}. Where the particles move along with theta by
a shift c, forwards by +c and backwards by -c, X_{k+1} - X_k - c takes the place of X_{k+1} - X_k.

That is the kernel `Unadjusted`. `GaussianExact` has less noise, for 0 < h < 2:

    X_{k+1} = X_k - h P \nabla U_k(X_k) + \sqrt{h (2 - h)} P^{1/2} \xi_{k+1}
    \alpha_k(x_l, x_r) = U_k(x_l) + [(x_r - x_l) \cdot \nabla U_k(x_l)
                         + (h/2) \nabla U_k(x_l)^T P \nabla U_k(x_l)] / (2 - h)

Of noise with any variance v P, forwards and backwards, the bracket is divided by v / h. With v of
h (2 - h) a Gaussian of covariance P stays what it is, at every h, and none of its moves does work.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass


class Diagonal(NamedTuple):
    """P = diag(d), as a tree of one latent (or, leading with G, one a group)."""

    diagonal: Tree  # leaves (1 or G, 1, ...)


class Dense(NamedTuple):
    """P over the ravelled latent, with a root R, P = R R^T."""

    matrix: Float[Array, "G D D"]
    root: Float[Array, "G D D"]


Preconditioner = Diagonal | Dense | None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Unadjusted:
    """The paper's Langevin move, with noise of variance 2h P: exact weights at every h."""

    def noise_variance(self, h: Array) -> Array:
        """In units of P."""
        return 2 * h

    def work_divisor(self, h: Array) -> Array | int:
        """The variance again, in units of h P."""
        return 2

    def tuned(self, h: Array) -> Array:
        """What a rule that has found h may choose."""
        return h

    def check_step_size(self, name: str, value: Any) -> None:
        """A sentence for a number that is no step size of this kernel."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GaussianExact:
    """The Langevin move with noise of variance h (2 - h) P, 0 < h < 2: exact weights, too.

    Of a Gaussian with covariance P it leaves every particle's weight as it is. So with P near the
    posterior's covariance (`jalax.options.InverseHessian`, or the reference's in tempered legs)
    h may be larger, up to 1, at which a Gaussian's particles are drawn afresh.

    A number h of 2 or more is refused. Where a schedule gives one nevertheless, there is no such
    move, and `Unadjusted` takes its place for that step: its weights are exact at every h.
    """

    def noise_variance(self, h: Array) -> Array:
        return jnp.where(h < 2, h * (2 - h), 2 * h)

    def work_divisor(self, h: Array) -> Array:
        return jnp.where(h < 2, 2 - h, 2)

    def tuned(self, h: Array) -> Array:
        return jnp.minimum(h, 1)  # beyond, the particles jump to the other side of the mode

    def check_step_size(self, name: str, value: Any) -> None:
        if callable(value) or isinstance(value, jax.core.Tracer):
            return  # a schedule, or a caller that is traced itself: there is no number to look at
        if np.max(np.asarray(value)) >= 2:
            raise ValueError(
                f"{name} must be below 2 with kernel=jalax.GaussianExact(), whose noise has "
                f"variance h (2 - h), got {np.asarray(value)}: take 1 or less, or "
                "kernel=jalax.Unadjusted()."
            )


Kernel = Unadjusted | GaussianExact
UNADJUSTED = Unadjusted()


def check_kernel(name: str, kernel: Any) -> None:
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"{name} must be jalax.Unadjusted() or jalax.GaussianExact(), got {kernel!r}."
        )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class InverseHessian:
    """As `preconditioner=`: the inverse Hessian of -log p at the particles' mean, by group.

    Taken anew while theta moves, then frozen. Dense up to two thousand latents, diagonal beyond.
    """


def as_preconditioner(latent: Tree, groups: int, value: Any) -> Preconditioner:
    """None, a latent-shaped tree (diagonal), or a matrix over the ravelled latent."""
    if value is None:
        return None
    size = trees.size(latent)
    if isinstance(value, jax.Array) and value.shape in ((size, size), (groups, size, size)):
        matrix = value.reshape((-1, size, size))
        return Dense(matrix, jnp.linalg.cholesky(matrix))
    shared = jax.tree.map(lambda p, x: p.reshape((-1, 1, *jnp.shape(x))), value, latent)
    return Diagonal(shared)


def check_preconditioner(latent: Tree, groups: int, value: Any) -> None:
    """A sentence for a preconditioner whose shape fits neither reading, or is not positive."""
    if value is None or isinstance(value, InverseHessian):
        return
    size = trees.size(latent)
    shapes = (size, size), (groups, size, size)
    dense = isinstance(value, (jax.Array, np.ndarray)) and value.shape in shapes
    if not dense and (
        jax.tree.structure(value) != jax.tree.structure(latent)
        or any(
            p.shape not in (jnp.shape(x), (groups, *jnp.shape(x)))
            for p, x in zip(jax.tree.leaves(value), jax.tree.leaves(latent), strict=True)
        )
    ):
        raise ValueError(
            f"preconditioner must be shaped like one latent, {trees.describe(latent)} (a "
            f"diagonal), or be a ({size}, {size}) matrix over the ravelled latent, each optionally "
            f"with a leading axis of {groups} group(s); got {trees.describe(value)}."
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return  # the caller is traced itself: there are no numbers to look at
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(value)):
        raise ValueError("a preconditioner must be positive and finite; this one has NaN or inf.")
    if not dense:
        least = min(float(np.min(np.asarray(leaf))) for leaf in jax.tree.leaves(value))
        if not least > 0:
            raise ValueError(
                f"a diagonal preconditioner must be positive in every entry, found {least:g}."
            )
        return
    matrix = np.asarray(value).reshape((-1, size, size))
    if not np.allclose(matrix, np.swapaxes(matrix, 1, 2), rtol=1e-4):
        apart = np.max(np.abs(matrix - np.swapaxes(matrix, 1, 2)))
        raise ValueError(
            f"a dense preconditioner must be symmetric; two entries differ by {apart:g}: pass "
            "(P + P.T) / 2."
        )
    least = np.min(np.linalg.eigvalsh(matrix))
    if not least > 0:
        raise ValueError(
            f"a dense preconditioner must be positive definite; its least eigenvalue is {least:g}."
        )


def apply(preconditioner: Preconditioner, tree: Tree) -> Tree:
    """P v for every particle."""
    if preconditioner is None:
        return tree
    if isinstance(preconditioner, Diagonal):
        return jax.tree.map(lambda d, v: (d * v).astype(v.dtype), preconditioner.diagonal, tree)
    return _multiply(preconditioner.matrix, tree)


def apply_root(preconditioner: Preconditioner, tree: Tree) -> Tree:
    """P^{1/2} v for every particle."""
    if preconditioner is None:
        return tree
    if isinstance(preconditioner, Diagonal):
        return jax.tree.map(
            lambda d, v: (jnp.sqrt(d) * v).astype(v.dtype), preconditioner.diagonal, tree
        )
    return _multiply(preconditioner.root, tree)


def _multiply(matrix: Float[Array, "G D D"], tree: Tree) -> Tree:
    vectors = trees.ravel_particles(tree)
    matrix = jnp.broadcast_to(matrix, (vectors.shape[0], *matrix.shape[1:]))
    return trees.unravel_particles(jnp.einsum("gij,gnj->gni", matrix, vectors), tree)


def with_step_sizes(
    preconditioner: Preconditioner, step_size: Float[Array, "..."], particles: Tree
) -> tuple[Preconditioner, Float[Array, ""]]:
    """P and h, of one h for all. Of one h a group, (G,): h P in the place of P, and 1."""
    if jnp.ndim(step_size) == 0:
        return preconditioner, step_size
    if preconditioner is None:
        ones = jax.tree.map(lambda leaf: jnp.ones((1, 1, *leaf.shape[2:]), leaf.dtype), particles)
        preconditioner = Diagonal(ones)
    if isinstance(preconditioner, Dense):
        h = step_size[:, None, None]
        scaled = Dense(h * preconditioner.matrix, jnp.sqrt(h) * preconditioner.root)
        return scaled, jnp.ones(())
    diagonal = jax.tree.map(
        lambda d: d * step_size.reshape((-1,) + (1,) * (d.ndim - 1)), preconditioner.diagonal
    )
    return Diagonal(diagonal), jnp.ones(())


class Moved(NamedTuple):
    particles: Tree  # X'
    path: Tree  # X' - X - c


def move(
    key: Key[Array, ""],
    particles: Tree,
    grad_x: Tree,
    step_size: Float[Array, "..."],
    preconditioner: Preconditioner = None,
    shift: Tree = None,
    kernel: Kernel = UNADJUSTED,
) -> Moved:
    """X' = X + c + h P grad log p(X) + sqrt(v) P^{1/2} xi, with the kernel's v, 2h by default.

    One step size h, or one a group, (G,).
    """
    xi = trees.normal_like(key, particles)
    return moved_by(xi, particles, grad_x, step_size, preconditioner, shift, kernel)


def moved_by(
    xi: Tree,
    particles: Tree,
    grad_x: Tree,
    step_size: Float[Array, "..."],
    preconditioner: Preconditioner = None,
    shift: Tree = None,
    kernel: Kernel = UNADJUSTED,
) -> Moved:
    """`move` with this noise; without a dense P, also of a part of the particles."""
    preconditioner, one_h = with_step_sizes(preconditioner, step_size, particles)
    noise = apply_root(preconditioner, xi)
    drift = apply(preconditioner, grad_x)

    def one(x, g, xi):
        h = jnp.asarray(one_h, x.dtype)
        return x + h * g + _deviation(kernel, step_size, x) * xi

    if shift is not None:
        particles = jax.tree.map(jnp.add, particles, shift)
    new = jax.tree.map(one, particles, drift, noise)
    # The difference and not the summand: in float32 the step that was taken is a rounded one.
    return Moved(new, jax.tree.map(jnp.subtract, new, particles))


def _deviation(kernel: Kernel, step_size: Float[Array, "..."], x: Array) -> Array:
    """Of the noise, in units of P^{1/2}; of one h a group, in units of (h P)^{1/2}."""
    h = jnp.asarray(step_size, x.dtype)
    if h.ndim == 0:
        return jnp.sqrt(kernel.noise_variance(h))
    variance = jnp.asarray(kernel.work_divisor(h), x.dtype)
    return jnp.sqrt(variance.reshape(variance.shape + (1,) * (x.ndim - 1)))


def work(
    grad_x: Tree,
    path: Tree,
    step_size: Float[Array, "..."],
    preconditioner: Preconditioner = None,
) -> Tree:
    r"""Twice what $\alpha(x_l, x_r)$ of eq. 3 has besides U, entry by entry.

    With g = grad log p = -grad U at $x_l$ and path $x_r - x_l$,
    $\alpha = U - \frac12 g \cdot (x_r - x_l - \frac h2 P g)$, of which these are the terms of the
    product. `trees.total` adds them up. Of `GaussianExact` they are not divided by 2, but by 2 - h.
    """
    preconditioner, step_size = with_step_sizes(preconditioner, step_size, path)

    def one(g, d, pg):
        return g * (d - jnp.asarray(step_size, d.dtype) / 2 * pg)

    return jax.tree.map(one, grad_x, path, apply(preconditioner, grad_x))


def jarzynski_increment(
    old: Any,
    new: Any,
    path: Tree,
    step_size: Float[Array, "..."],
    preconditioner: Preconditioner = None,
    forwards: Tree = None,
    kernel: Kernel = UNADJUSTED,
) -> Float[Array, "G N"]:
    r"""$\alpha_k(X, X') - \alpha_{k+1}(X', X)$.

    `old` is what is known at (theta_k, X), `new` at (theta_{k+1}, X').
    They have `log_joint` and `grad_x`; the path is that of `move`, without the shift; `forwards`
    is its work, where `gpu_kernel.move_and_work` has found it already. Step size, P and kernel are
    those of the move.

    The two log p, which may be large, meet each other before they meet anything small. Their
    difference is then exact (Sterbenz), and the rounding of each log p goes out again with the
    next step's: over K steps float32 is off by the rounding of two log p, not of 2 K.
    """
    if forwards is None:
        forwards = work(old.grad_x, path, step_size, preconditioner)
    back = jax.tree.map(jnp.negative, path)
    backwards = work(new.grad_x, back, step_size, preconditioner)

    def apart(b, f):  # entry by entry, where both are
        return b - f if b.shape == f.shape else (b, -f)

    total = trees.total(jax.tree.map(apart, backwards, forwards))
    h = jnp.asarray(step_size, total.dtype)
    net = total / kernel.work_divisor(h[:, None] if h.ndim else h)
    return (new.log_joint - old.log_joint) + net
