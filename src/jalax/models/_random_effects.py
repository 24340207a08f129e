"""Random effects of one factor: standard deviations and correlations, densities and draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._gaussian import LOG_2PI

Root = list[list[Any]]  # the rows of a lower triangle


def root_of_numbers(z: Float[Array, " pairs"], size: int) -> Root:
    """C with C C' a correlation matrix, from any real numbers."""
    numbers = iter([z[i] for i in range(z.shape[0])])
    rows = []
    for i in range(size):
        row, left = [], jnp.ones((), z.dtype)  # the row has length one
        for _ in range(i):
            part = jnp.tanh(next(numbers))
            row.append(part * jnp.sqrt(left))
            left = left * (1 - part**2)
        rows.append([*row, jnp.sqrt(left)])
    return rows


def root_of_correlations(cor: Float[Array, " pairs"], size: int) -> Root:
    """Cholesky's C of the correlations, given row by row below the diagonal."""
    given = iter([cor[i] for i in range(cor.shape[0])])
    rows: Root = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i):
            row.append((next(given) - sum(row[k] * rows[j][k] for k in range(j))) / rows[j][j])
        rows.append([*row, jnp.sqrt(1 - sum((c**2 for c in row), jnp.zeros((), cor.dtype)))])
    return rows


def correlations(root: Root, like: Float[Array, " pairs"]) -> Float[Array, " pairs"]:
    """C C' below its diagonal."""
    pairs = [
        sum(root[i][k] * root[j][k] for k in range(j + 1))
        for i in range(len(root))
        for j in range(i)
    ]
    return jnp.stack(pairs) if pairs else like


def numbers(root: Root, like: Float[Array, " pairs"]) -> Float[Array, " pairs"]:
    """The inverse of `root_of_numbers`."""
    numbers = []
    for row in root:
        left = jnp.ones((), like.dtype)
        for c in row[:-1]:
            numbers.append(jnp.arctanh(c / jnp.sqrt(left)))
            left = left - c**2
    return jnp.stack(numbers) if numbers else like


def log_prior(sd: Array, cor: Array, b: Float[Array, "L q"]) -> Array:
    """log N(b; 0, Sigma) of all levels, by forward substitution."""
    size = sd.shape[0]
    root = root_of_correlations(cor, size)
    scaled = b / sd
    white: list[Array] = []
    for j in range(size):
        rest = scaled[:, j] - sum(root[j][k] * white[k] for k in range(j))
        white.append(rest / root[j][j])
    square = sum(jnp.sum(w**2) for w in white)
    log_det = jnp.sum(jnp.log(sd)) + sum(jnp.log(root[j][j]) for j in range(size))
    return -0.5 * (square + b.size * LOG_2PI) - b.shape[0] * log_det


def draw_effects(key, sd: Array, cor: Array, levels: int) -> Float[Array, "L q"]:
    """b ~ N(0, Sigma) of so many levels."""
    size = sd.shape[0]
    root = root_of_correlations(cor, size)
    white = jax.random.normal(key, (levels, size), sd.dtype)
    columns = [sum(root[j][k] * white[:, k] for k in range(j + 1)) for j in range(size)]
    return sd * jnp.stack(columns, axis=-1)
