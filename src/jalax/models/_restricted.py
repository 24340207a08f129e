r"""REML: the likelihood of a Gaussian mixed model with beta integrated out, too.

log p(y | beta) is a parabola in beta, with the curvature $X'V^{-1}X$ whatever y is. So

$$\log \int p_{\beta, \psi}(y)\, d\beta = \max_\beta \log p_{\beta, \psi}(y)
  + \tfrac p2 \log 2\pi - \tfrac12 \log\det X' V_\psi^{-1} X.$$

The last two terms do not depend on the random effects. Added to `log_joint`, a share in each group,
they make its maximum that of REML, with beta at its generalised least squares.

$V = Z \Sigma Z' + \sigma^2 W^{-1}$ has a row for each observation. Of a group with $Z'WZ = FF'$
only $F'\Sigma F + \sigma^2$ is needed, which has one for each random effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax.families._continuous import Gaussian
from jalax.families._family import Family
from jalax.families._links import Identity

Shapes = tuple[tuple[str, int, int], ...]  # blocks in order: name, levels, effects
MOST_EFFECTS = 500  # of a group: beyond, elimination step by step takes too long
STEP_BY_STEP = 64  # effects, up to which elimination is fast enough where there is one group
LOST = 1e-10  # of the largest eigenvalue of Z'WZ: rounding


@dataclasses.dataclass(frozen=True)
class REML:
    """Restricted maximum likelihood, lme4's default for Gaussian models.

    The fixed effects are integrated out under a flat prior, with lme4's constant, so that standard
    deviations are not too small with few groups. The log-likelihood is -1/2 of lme4's "REML
    criterion", and tells nothing about models with other fixed effects.

    >>> import jax, jalax
    >>> data = jalax.datasets.dyestuff().to_frame()
    >>> result = jalax.mixed("yield_ ~ 1 + (1|batch)", data, key=jax.random.key(0),
    ...                      likelihood=jalax.REML())
    >>> round(-2 * result.log_evidence, 3)  # lme4's
    319.654
    """


class Compressed(NamedTuple):
    """What REML needs of the rows: NumPy's, in float64.

    Of columns X, W^{1/2} X = basis triangle.
    """

    F: np.ndarray  # (G, D, D), Z'WZ = F F'
    Q: np.ndarray  # (G, D, p), of the basis what F sees
    rest: np.ndarray  # (p, p), of the basis what it does not, over all groups
    triangle: np.ndarray  # (p, p)

    def of_first(self, count: int) -> Compressed:
        """Of the first columns of X."""
        some = slice(count)
        Q, rest, triangle = self.Q[:, :, some], self.rest[some, some], self.triangle[some, some]
        return Compressed(self.F, Q, rest, triangle)


def check_restricted(likelihood: Any, family: Family, dispersion: bool, latent: Any) -> None:
    if not isinstance(likelihood, REML):
        raise TypeError(
            f"likelihood must be jalax.REML(), or None for maximum likelihood, got {likelihood!r}."
        )
    if not isinstance(family, Gaussian) or not isinstance(family.link, Identity):
        raise ValueError(
            f"REML is for Gaussian responses with the identity link, not {family!r}: leave "
            "likelihood= out, and the fit is by maximum likelihood."
        )
    if dispersion:
        raise ValueError("REML has one sigma: leave dispersion= out, or likelihood=jalax.REML().")
    if (size := _size(shapes_of(latent))) > MOST_EFFECTS:
        raise ValueError(
            f"REML is for up to {MOST_EFFECTS} random effects that depend on each other, and here "
            f"are {size}: leave likelihood= out, and the fit is by maximum likelihood."
        )


def shapes_of(latent: dict[str, Any]) -> Shapes:
    return tuple((name, *latent[name].shape) for name in sorted(latent))


def _size(shapes: Shapes) -> int:
    return sum(levels * effects for _, levels, effects in shapes)


def root_of(shapes: Shapes, effects: Callable, theta: Any) -> Float[Array, "D D"]:
    """The random effects that each white latent stands for, a row each."""
    ends = np.cumsum([levels * count for _, levels, count in shapes])[:-1]

    def one(white: Array) -> Array:
        pieces = zip(shapes, jnp.split(white, ends), strict=True)
        return ravel_pytree(effects(theta, {s[0]: piece.reshape(s[1:]) for s, piece in pieces}))[0]

    return jax.vmap(one)(jnp.eye(_size(shapes), dtype=theta["sigma"].dtype))


def compressed(
    X: np.ndarray,
    weight: np.ndarray,
    z: np.ndarray,
    place: np.ndarray,
    group: np.ndarray,
    latent: dict[str, Any],
) -> Compressed:
    """Of rows with random effects z (n, K) at these places among those of their group."""
    size = _size(shapes_of(latent))
    groups, root = group.max() + 1, np.sqrt(weight)
    basis, triangle = np.linalg.qr(root[:, None] * X)
    z = root[:, None] * z
    square, cross = np.zeros((groups, size, size)), np.zeros((groups, size, X.shape[1]))
    np.add.at(square, (group[:, None, None], place[:, :, None], place[:, None, :]), _outer(z, z))
    np.add.at(cross, (group[:, None], place), _outer(z, basis))
    # Effects on any scale: what is lost to rounding must not depend on it.
    scale = np.sqrt(np.einsum("gdd->d", square))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(square / np.outer(scale, scale))
    there = values > LOST * values.max(axis=1, keepdims=True)
    length = np.sqrt(np.where(there, values, 1.0))
    F = scale[:, None] * vectors * np.where(there, length, 0.0)[:, None, :]
    seen = np.swapaxes(vectors, 1, 2) @ (cross / scale[:, None])
    Q = np.where(there, 1 / length, 0.0)[:, :, None] * seen
    return Compressed(F, Q, np.eye(X.shape[1]) - np.einsum("gdp,gdq->pq", Q, Q), triangle)


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, :, None] * b[:, None, :]


def plus_restricted(
    log_joint: Callable, rows: Compressed, root_of: Callable, theta: Any, x: Any, data: Any
) -> Array:
    """log_joint with the share of one group in what integrates beta out."""
    return log_joint(theta, x, data) + _log_term(rows, root_of, theta) / len(rows.F)


def _log_term(rows: Compressed, root_of: Callable, theta: Any) -> Array:
    """(p/2) log 2 pi - (1/2) log det X'V^{-1}X.

    Its derivatives are forward ones: theta has few numbers, and the steps of an elimination are
    not kept.
    """
    count = len(rows.rest)
    flat, unravel = ravel_pytree({name: theta[name] for name in theta if name != "beta"})

    def half_log_det(flat: Array) -> Array:
        matrix, _ = curvature(rows, root_of, unravel(flat))
        return jnp.sum(jnp.log(_eliminated(matrix, count)[1])) / 2

    @jax.custom_jvp
    def term(flat: Array) -> Array:
        return -half_log_det(flat)

    @term.defjvp
    def _forwards(primals, tangents):
        (flat,), (moved,) = primals, tangents
        slope = -jax.jacfwd(half_log_det)(flat)
        return term(flat), jnp.sum(slope * moved)

    constant = count / 2 * np.log(2 * np.pi) - np.sum(np.log(np.abs(np.diagonal(rows.triangle))))
    return term(flat) + float(constant)


def curvature(rows: Compressed, root_of: Callable, theta: Any) -> tuple[Array, Array]:
    """X'V^{-1}X in the coordinates of the basis (p, p), and log det (F'Sigma F + sigma^2).

    `root_of(theta)` is (D, D), Sigma = root' root.
    """
    variance = theta["sigma"] ** 2
    F, Q, rest = (jnp.asarray(part, variance.dtype) for part in rows[:3])
    size, count = Q.shape[1:]
    scaled = jnp.einsum("ij,gjr->gir", root_of(theta), F, precision="highest")
    V = jnp.einsum("gir,gis->grs", scaled, scaled, precision="highest")
    V = V + variance * jnp.eye(size, dtype=V.dtype)
    if len(V) == 1 and size > STEP_BY_STEP:
        return rest / variance + _product(V[0], Q[0]), _log_det(V[0])
    lower = jnp.concatenate([jnp.swapaxes(Q, 1, 2), jnp.zeros((len(Q), count, count), V.dtype)], 2)
    whole = jnp.concatenate([jnp.concatenate([V, Q], axis=2), lower], axis=1)
    left, pivots = _eliminated(whole, size)
    matrix = rest / variance - jnp.sum(left[:, size:, size:], axis=0)
    return matrix, jnp.sum(jnp.log(pivots))


def restricted_likelihood(
    rows: Compressed, root_of: Callable, theta: Any, count: Any, log_precision: Any
) -> Array:
    """log p(y) with beta integrated out, of rows whose last column is y less its offset.

    `count` is how many rows there are, and `log_precision` the sum of the logarithms of W.
    """
    matrix, log_det = curvature(rows, root_of, theta)
    pivots = _eliminated(matrix, len(matrix))[1]
    scale = jnp.abs(jnp.diagonal(rows.triangle))
    square = pivots[-1] * scale[-1] ** 2
    log_det = log_det + jnp.sum(jnp.log(pivots[:-1] * scale[:-1] ** 2))
    others = count - rows.F.shape[0] * rows.F.shape[1]  # of V's eigenvalues, sigma^2
    log_det = log_det + 2 * others * jnp.log(theta["sigma"]) - log_precision
    return -(square + log_det + (count - len(matrix) + 1) * np.log(2 * np.pi)) / 2


def _eliminated(matrix: Array, count: int) -> tuple[Array, Array]:
    """What Gauss's elimination leaves of symmetric matrices, and the first `count` pivots.

    LAPACK's factors of many small matrices at once would get in the way of those that find modes.
    """

    def step(matrix: Array, k: Array) -> tuple[Array, Array]:
        column = lax.dynamic_index_in_dim(matrix, k, axis=-1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, axis=-1)
        return matrix - column[..., :, None] * (column / pivot)[..., None, :], pivot[..., 0]

    return lax.scan(step, matrix, jnp.arange(count))


# --- one large matrix ----------------------------------------------------------------------------
# Its inverse root is found once, not once a derivative.


@jax.custom_batching.sequential_vmap
def _inverse_root(V: Array) -> Array:
    """L^{-1} of V = L L'; of several V one after the other, since LAPACK's calls of several at once
    can wait for each other for ever (docs/architecture.md)."""
    root = jnp.linalg.cholesky(V)
    one = jnp.eye(len(V), dtype=V.dtype)
    return jax.scipy.linalg.solve_triangular(root, one, lower=True)


@jax.custom_jvp
def _solved(V: Array, B: Array) -> Array:
    """V^{-1} B."""
    root = _inverse_root(V)
    return _times(root.T, _times(root, B))


@_solved.defjvp
def _(primals, tangents):
    (V, B), (dV, dB) = primals, tangents
    found = _solved(V, B)
    return found, _solved(V, dB - _times(dV, found))


@jax.custom_jvp
def _product(V: Array, Q: Array) -> Array:
    """Q'V^{-1}Q; Q is constant."""
    half = _times(_inverse_root(V), Q)
    return _times(half.T, half)


@_product.defjvp
def _(primals, tangents):
    (V, Q), (dV, _) = primals, tangents
    found = _solved(V, Q)
    return _product(V, Q), -_times(found.T, _times(dV, found))


@jax.custom_jvp
def _log_det(V: Array) -> Array:
    return -2 * jnp.sum(jnp.log(jnp.diagonal(_inverse_root(V))))


@_log_det.defjvp
def _(primals, tangents):
    (V,), (dV,) = primals, tangents
    inverse = _solved(V, jnp.eye(len(V), dtype=V.dtype))
    return _log_det(V), jnp.sum(inverse * dV)


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
