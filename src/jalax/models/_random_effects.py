"""Random effects of one factor: standard deviations and correlations, densities and draws."""

from __future__ import annotations

import operator
from collections.abc import Callable
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
        rows.append([*row, _root(left)])
    return rows


def root_of_correlations(cor: Float[Array, " pairs"], size: int) -> Root:
    """Cholesky's C of the correlations, given row by row below the diagonal."""
    given = iter([cor[i] for i in range(cor.shape[0])])
    rows: Root = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i):
            row.append((next(given) - sum(row[k] * rows[j][k] for k in range(j))) / rows[j][j])
        rows.append([*row, _root(1 - sum((c**2 for c in row), jnp.zeros((), cor.dtype)))])
    return rows


def _root(left: Array) -> Array:
    """The square root of what is left of a row, whose slope at 0 is not infinite but 0."""
    positive = left > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, left, 1.0)), 0.0)


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


def effects(sd: Array, cor: Array, white: Float[Array, "L q"]) -> Float[Array, "L q"]:
    """b of all levels from standard normal numbers: the root of Sigma times these."""
    size = sd.shape[0]
    root = root_of_correlations(cor, size)
    columns = [sum(root[j][k] * white[:, k] for k in range(j + 1)) for j in range(size)]
    return sd * jnp.stack(columns, axis=-1)


def whitened(sd: Array, cor: Array, b: Float[Array, "L q"]) -> Float[Array, "L q"]:
    """The inverse of `effects`; nothing where Sigma has nothing."""

    def divided(a, by):
        return jnp.where(by == 0, 0.0, a / jnp.where(by == 0, 1.0, by))

    root = root_of_correlations(cor, sd.shape[0])
    return jnp.stack(substituted(root, divided(b, sd), divided), axis=-1)


def substituted(root: Root, scaled: Array, divided: Callable = operator.truediv) -> list[Array]:
    """The columns of C^{-1} scaled, by forward substitution."""
    white: list[Array] = []
    for j, row in enumerate(root):
        rest = scaled[:, j] - sum(row[k] * white[k] for k in range(j))
        white.append(divided(rest, row[j]))
    return white


def log_prior(sd: Array, cor: Array, b: Float[Array, "L q"]) -> Array:
    """log N(b; 0, Sigma) of all levels."""
    root = root_of_correlations(cor, sd.shape[0])
    square = sum(jnp.sum(w**2) for w in substituted(root, b / sd))
    log_det = jnp.sum(jnp.log(sd)) + sum(jnp.log(row[-1]) for row in root)
    return -0.5 * (square + b.size * LOG_2PI) - b.shape[0] * log_det


def draw_effects(key, sd: Array, cor: Array, levels: int) -> Float[Array, "L q"]:
    """b ~ N(0, Sigma) of so many levels."""
    return effects(sd, cor, jax.random.normal(key, (levels, sd.shape[0]), sd.dtype))
