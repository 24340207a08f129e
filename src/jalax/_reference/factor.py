r"""Cholesky's factor of a Hessian with a plan: H = L L^T up to the order of the latents.

With the border last, $H = \begin{pmatrix} R & F \\ F^\top & S \end{pmatrix}$ has

$$L = \begin{pmatrix} L_R & 0 \\ W^\top & L_S \end{pmatrix}, \qquad
W = L_R^{-1} F, \qquad L_S L_S^\top = S - W^\top W.$$

R is diagonal, or has blocks $D_k$ on its diagonal and $E_k$ left of them, and then
$C_k = E_k L_{k-1}^{-\top}$ and $L_k L_k^\top = D_k - C_k C_k^\top$, one block after the other. A
dense matrix is all border, and a diagonal one has none.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._reference.compressed import Parts, compressed_hessian, parts
from jalax._reference.plan import Plan
from jalax._runtime.compilation import LEVEL_2_OLD_EMITTERS, jit
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.processes import to_host, to_host_in_double

INVERTED_UP_TO = 1024  # numbers of a border; an inverse of more takes longer than its solves
FIRST_RIDGE, LAST_RIDGE = 1e-3, 1e6  # of the diagonal; grows eightfold


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Band:
    """L_R of a block-tridiagonal R, as what its solves take."""

    diagonal: Float[Array, "K b"]  # of L_k
    inverse: Float[Array, "K b b"]  # L_k^{-1}
    forward: Float[Array, "K b b"]  # L_k^{-1} C_k
    backward: Float[Array, "K b b"]  # L_k^{-T} C_{k+1}^T

    def solve(self, v: Float[Array, "Kb N"]) -> Float[Array, "Kb N"]:
        """L_R^{-1} v."""
        own = _each(self.inverse, self._blocks(v))
        return _one_by_one(self.forward, own, reverse=False).reshape(v.shape)

    def solve_transposed(self, v: Float[Array, "Kb N"]) -> Float[Array, "Kb N"]:
        """L_R^{-T} v."""
        own = _each(self.inverse.swapaxes(1, 2), self._blocks(v))
        return _one_by_one(self.backward, own, reverse=True).reshape(v.shape)

    def pivots(self) -> Float[Array, " Kb"]:
        return self.diagonal.ravel()

    def _blocks(self, v: Float[Array, "Kb N"]) -> Float[Array, "K b N"]:
        return v.reshape(*self.diagonal.shape, v.shape[1])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Line:
    """L_R of a diagonal R."""

    root: Float[Array, " n"]

    def solve(self, v: Float[Array, "n N"]) -> Float[Array, "n N"]:
        return v / self.root[:, None]

    solve_transposed = solve

    def pivots(self) -> Float[Array, " n"]:
        return self.root


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Factor:
    """L of one Hessian, for arrays (..., d) in the order of the ravelled latent.

    It solves by products with inverses: those of many groups at once, solved by LAPACK, can wait
    for each other for ever in XLA's pool of two threads (docs/architecture.md). Only a border of
    more than 1,024, of which there are hardly many groups, has solves. Nothing is differentiated
    through it. Where `positive` is false its numbers mean nothing.
    """

    plan: Plan
    rest: Band | Line  # L_R
    beside: Float[Array, "n m"]  # W
    corner: Float[Array, "m m"]  # L_S^{-1}, or L_S where it is large
    pivots: Float[Array, " d"]  # the diagonal of L
    positive: Bool[Array, ""]  # H, with the ridge, is positive definite
    log_det: Float[Array, ""]  # of H; in float32 see `log_det_in_double`
    ridge: Float[Array, ""]  # this share of its diagonal was added to H

    def solve(self, v: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """H^{-1} v."""
        return _solve(self, v)

    def from_white(self, z: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L^{-T} z: x ~ N(0, H^{-1}) of z ~ N(0, I)."""
        return _from_white(self, z)

    def to_white_gradient(self, g: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L^{-1} g, the transpose of `from_white`: a gradient in x becomes that in z."""
        return _to_white_gradient(self, g)

    def _enter(self, v: Float[Array, "... d"]) -> tuple[Float[Array, "n N"], Float[Array, "m N"]]:
        rows = v.reshape(-1, v.shape[-1])
        rest = rows[:, self.plan.rest].T
        missing = self.beside.shape[0] - rest.shape[0]
        return jnp.pad(rest, ((0, missing), (0, 0))), rows[:, self.plan.border].T

    def _leave(self, like: Array, rest: Array, border: Array) -> Array:
        both = jnp.concatenate([rest[: self.plan.rest.shape[0]], border])
        # Turned before it is put in order: XLA is slow the other way round.
        return both.T[:, self.plan.place].reshape(like.shape)

    def _down(self, rest: Array, border: Array) -> tuple[Array, Array]:
        """L^{-1}."""
        rest = self.rest.solve(rest)
        return rest, self._in_corner(border - _product(self.beside.T, rest))

    def _up(self, rest: Array, border: Array) -> tuple[Array, Array]:
        """L^{-T}."""
        border = self._in_corner(border, transposed=True)
        return self.rest.solve_transposed(rest - _product(self.beside, border)), border

    def _in_corner(self, v: Float[Array, "m N"], transposed: bool = False) -> Float[Array, "m N"]:
        """L_S^{-1} v, or L_S^{-T} v."""
        if self.corner.shape[0] <= INVERTED_UP_TO:
            return _product(self.corner.T if transposed else self.corner, v)
        return solve_triangular(self.corner, v, lower=True, trans="T" if transposed else "N")


@jit(LEVEL_2_OLD_EMITTERS)
def _solve(factor: Factor, v: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return factor._leave(v, *factor._up(*factor._down(*factor._enter(v))))


@jit(LEVEL_2_OLD_EMITTERS)
def _from_white(factor: Factor, z: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return factor._leave(z, *factor._up(*factor._enter(z)))


@jit(LEVEL_2_OLD_EMITTERS)
def _to_white_gradient(factor: Factor, g: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return factor._leave(g, *factor._down(*factor._enter(g)))


@jit(LEVEL_2_OLD_EMITTERS)
def factorise(
    plan: Plan, values: Float[Array, "C d"], ridge: Float[Array, ""] | float = 0.0
) -> Factor:
    """The factor of the Hessian with these values, `ridge` times its diagonal's size added."""
    ridge = jnp.asarray(ridge, values.dtype)
    H = _with_ridge(plan, parts(plan, values), ridge)
    rest: Band | Line = Line(jnp.sqrt(H.inside)) if H.below is None else _band(H.inside, H.below)
    beside, corner, last = H.beside, H.corner, jnp.diagonal(H.corner)
    if plan.border.shape[0]:
        beside = rest.solve(beside)
        corner = _cholesky(corner - _product(beside.T, beside))
        last = jnp.diagonal(corner)
        corner = _inverse(corner) if corner.shape[0] <= INVERTED_UP_TO else corner
    pivots = jnp.concatenate([rest.pivots()[: plan.rest.shape[0]], last])[plan.place]
    positive = jnp.all(jnp.isfinite(pivots) & (pivots > 0))
    log_det = 2 * jnp.sum(jnp.log(pivots))
    return Factor(plan, rest, beside, corner, pivots, positive, log_det, ridge)


@jit(LEVEL_2_OLD_EMITTERS)
def factorise_positive(plan: Plan, values: Float[Array, "C d"]) -> Factor:
    """With the smallest ridge of 0, 1/1000, 8/1000, ... that makes it positive definite.

    For a search that is not at the mode yet; `Factor.ridge` says which.
    """

    def body(carry):
        ridge, _ = carry
        found = factorise(plan, values, ridge)
        return jnp.where(ridge > 0, 8 * ridge, FIRST_RIDGE).astype(ridge.dtype), found

    def go_on(carry):
        ridge, found = carry
        return ~found.positive & (ridge < LAST_RIDGE)

    shapes = jax.eval_shape(factorise, plan, values)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    first = jnp.zeros((), values.dtype), dataclasses.replace(nothing, plan=plan)
    return lax.while_loop(go_on, body, first)[1]


def _with_ridge(plan: Plan, H: Parts, ridge: Float[Array, ""]) -> Parts:
    inside = H.inside if H.below is None else jnp.diagonal(H.inside, axis1=1, axis2=2)
    n, corner = plan.rest.shape[0], jnp.diagonal(H.corner)
    size = jnp.abs(jnp.concatenate([inside.ravel()[:n], corner]))
    least = 1e-6 * jnp.max(size) + 1e-30  # for a latent without curvature
    inside, corner = (ridge * jnp.maximum(jnp.abs(of), least) for of in (inside, corner))
    if H.below is not None:
        inside = inside[:, :, None] * jnp.eye(plan.block, dtype=inside.dtype)
    return H._replace(inside=H.inside + inside, corner=H.corner + jnp.diag(corner))


def _band(inside: Float[Array, "K b b"], below: Float[Array, "K b b"]) -> Band:
    def step(before, blocks):
        own, left = blocks
        lower = _product(left, before.T)
        root = _cholesky(own - _product(lower, lower.T))
        inverse = _inverse(root)
        return inverse, (jnp.diagonal(root), lower, inverse)

    none = jnp.zeros_like(inside[0])
    _, (diagonal, lower, inverse) = lax.scan(step, none, (inside, below))
    forward = _each(inverse, lower)
    after = jnp.roll(lower, -1, axis=0)  # of the last one nothing is left: C_0 is zero
    backward = _each(inverse.swapaxes(1, 2), after.swapaxes(1, 2))
    return Band(diagonal, inverse, forward, backward)


def _one_by_one(
    links: Float[Array, "K b b"], own: Float[Array, "K b N"], reverse: bool
) -> Float[Array, "K b N"]:
    """y_k = own_k - links_k y_{k-1}; in reverse with y_{k+1}."""

    def step(before, block):
        link, value = block
        value = value - _product(link, before)
        return value, value

    zero = jnp.zeros(own.shape[1:], own.dtype)
    return lax.scan(step, zero, (links, own), reverse=reverse)[1]


def _cholesky(H: Float[Array, "b b"]) -> Float[Array, "b b"]:
    return lax.linalg.cholesky(H, symmetrize_input=False)  # it reads the lower triangle


def _inverse(L: Float[Array, "b b"]) -> Float[Array, "b b"]:
    return solve_triangular(L, jnp.eye(L.shape[0], dtype=L.dtype), lower=True)


def _product(a: Float[Array, "i j"], b: Float[Array, "j k"]) -> Float[Array, "i k"]:
    return jnp.matmul(a, b, precision="highest")


def _each(a: Float[Array, "K i j"], b: Float[Array, "K j k"]) -> Float[Array, "K i k"]:
    return jnp.matmul(a, b, precision="highest")


# ---------------------------------------------------------------- log det H in 64 bits


def log_det_in_double(factor: Factor) -> float:
    """The log-determinant of the L L^T that this factor is, without the rounding of a long sum.

    Right for the density of x = from_white(z). That of H itself is `log_det_of_model`.
    """
    return 2 * float(np.sum(np.log(np.asarray(to_host(factor.pivots), np.float64))))


def log_det_of_model(model: Model, theta: Tree, x: Float[Array, " d"], plan: Plan) -> float:
    """log det H at x with log_joint, its derivatives and the factor in float64.

    In float32 the entries of a long series are all rounded alike, and the error adds up.
    """
    theta, latent, data, x = to_host_in_double((theta, model.latent, model.data, x))
    with jax.enable_x64(True):
        model = model.replace(latent=latent, data=data, theta=None)
        return log_det_in_double(factorise(plan, compressed_hessian(model, theta, x, plan)))
