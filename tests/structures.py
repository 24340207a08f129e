"""Patterns of large Hessians, random matrices with them, and their compressed values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy import sparse

from jalax._model.structure import Pattern
from jalax._reference.plan import Plan


def series(size: int) -> Pattern:
    i = np.arange(size - 1)
    return Pattern.of(i + 1, i, size)


def with_global(size: int) -> Pattern:
    """A series, and one latent that meets all of it, in the middle."""
    part = series(size)
    rows, cols = (np.where(side < size // 2, side, side + 1) for side in (part.rows, part.cols))
    every = np.arange(size + 1)
    return Pattern.of(
        np.concatenate([rows, every]),
        np.concatenate([cols, np.full(size + 1, size // 2)]),
        size + 1,
    )


def grid(a: int, b: int) -> Pattern:
    k = np.arange(a * b).reshape(a, b)
    rows = np.concatenate([k[1:].ravel(), k[:, 1:].ravel()])
    return Pattern.of(rows, np.concatenate([k[:-1].ravel(), k[:, :-1].ravel()]), a * b)


def levels(sizes: tuple[int, ...], rows: int, seed: int = 0) -> list[np.ndarray]:
    """A level of each factor for every row; every level has a row."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.arange(rows) % size) for size in sizes]


def crossed(sizes: tuple[int, ...], rows: int, seed: int = 0) -> Pattern:
    first = np.cumsum([0, *sizes])
    places = [of + begin for of, begin in zip(levels(sizes, rows, seed), first, strict=False)]
    pairs = [(a, b) for k, a in enumerate(places) for b in places[:k]]
    found = [np.concatenate(side) for side in zip(*pairs, strict=True)]
    return Pattern.of(*found, sum(sizes))


def shuffled(pattern: Pattern, seed: int = 0) -> Pattern:
    to = np.random.default_rng(seed).permutation(pattern.size)
    return Pattern.of(to[pattern.rows], to[pattern.cols], pattern.size)


def matrix(pattern: Pattern, seed: int = 0) -> np.ndarray:
    """Random and positive definite, with every entry of the pattern."""
    rng = np.random.default_rng(seed)
    lower = np.zeros((pattern.size, pattern.size))
    lower[pattern.rows, pattern.cols] = rng.uniform(0.5, 1.5, pattern.rows.size)
    lower *= rng.choice([-1, 1], lower.shape)
    H = np.tril(lower, -1) + np.tril(lower, -1).T
    return H + np.diag(np.abs(H).sum(axis=1) + rng.uniform(0.2, 1.0, pattern.size))


def compressed(plan: Plan, H: np.ndarray, dtype=float):
    """What `compressed_hessian` finds of this Hessian."""
    colour = np.asarray(plan.colour)
    ones = sparse.csr_array(
        (np.ones(colour.size), (colour, np.arange(colour.size))),
        shape=(plan.num_colours, colour.size),
    )
    return jnp.asarray(ones @ H, dtype)
