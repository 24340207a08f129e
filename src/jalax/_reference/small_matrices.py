"""Cholesky's factor of a small matrix, written out: no call of LAPACK for each of many groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

WRITTEN_OUT_UP_TO = 3


def cholesky(H: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """L with L L^T = H; NaN where H is not positive definite."""
    size = H.shape[0]
    if size > WRITTEN_OUT_UP_TO:
        return jnp.linalg.cholesky(H)
    zero = jnp.zeros((), H.dtype)
    rows = [[zero] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = H[i, j] - sum((rows[i][k] * rows[j][k] for k in range(j)), zero)
            rows[i][j] = jnp.sqrt(rest) if i == j else rest / rows[j][j]
    return jnp.stack([jnp.stack(row) for row in rows])


def inverse_of_lower(L: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """L^{-1}, by substitution."""
    size = L.shape[0]
    if size > WRITTEN_OUT_UP_TO:
        return jax.scipy.linalg.solve_triangular(L, jnp.eye(size, dtype=L.dtype), lower=True)
    zero = jnp.zeros((), L.dtype)
    rows = [[zero] * size for _ in range(size)]
    for i in range(size):
        rows[i][i] = 1 / L[i, i]
        for j in range(i):
            rows[i][j] = -sum((L[i, k] * rows[k][j] for k in range(j, i)), zero) / L[i, i]
    return jnp.stack([jnp.stack(row) for row in rows])
