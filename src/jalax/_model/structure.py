"""Which pairs of latents the Hessian of log p in x has: what the user says about it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """The entries of the Hessian that may differ from zero, over the ravelled latent.

    It stays on the host. Its lower triangle, column by column, without repeats; the diagonal is
    always in it.
    """

    rows: np.ndarray
    cols: np.ndarray
    size: int

    @classmethod
    def of(cls, rows: Any, cols: Any, size: int) -> Pattern:
        """From entries of either triangle, with or without the diagonal."""
        every = np.arange(size)
        rows = np.concatenate([np.asarray(rows, np.int64), every])
        cols = np.concatenate([np.asarray(cols, np.int64), every])
        # One number an entry: its column, then its row below the diagonal.
        entries = np.unique(np.minimum(rows, cols) * size + np.maximum(rows, cols))
        return cls(entries % size, entries // size, size)

    @classmethod
    def dense(cls, size: int) -> Pattern:
        rows, cols = np.tril_indices(size)
        return cls.of(rows, cols, size)

    def matrix(self) -> Any:
        """Both triangles as a SciPy matrix of ones."""
        from scipy import sparse

        off = self.rows != self.cols
        rows = np.concatenate([self.rows, self.cols[off]])
        cols = np.concatenate([self.cols, self.rows[off]])
        ones = np.ones(rows.size, np.int32)
        return sparse.csr_array((ones, (rows, cols)), shape=(self.size, self.size))

    def __repr__(self) -> str:
        return f"Pattern({self.size} latents, {self.rows.size} entries on and below the diagonal)"


def meeting(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of latents that meet in a row of the data, as `structure=` takes them.

    Each row of `positions` has those of its latents in the ravelled latent.
    """
    first, second = np.tril_indices(positions.shape[1])
    return positions[:, first].ravel(), positions[:, second].ravel()


def as_pattern(value: Any, size: int) -> Pattern:
    """The pattern that `structure=` stands for, of a latent of so many numbers."""
    if isinstance(value, Pattern):
        _check_shape((value.size, value.size), size)
        return value
    if hasattr(value, "tocoo"):  # the entries it stores, be they zero
        _check_shape(value.shape, size)
        entries = value.tocoo()
        return Pattern.of(entries.row, entries.col, size)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return _of_pair(np.asarray(value[0]), np.asarray(value[1]), size)
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        _check_shape(value.shape, size)
        rows, cols = np.nonzero(np.asarray(value))
        return Pattern.of(rows, cols, size)
    raise TypeError(
        "structure must be a pair (rows, cols) of integer arrays, a scipy.sparse matrix or a "
        f"boolean matrix, got {type(value).__name__}."
    )


def _check_shape(shape: tuple[int, ...], size: int) -> None:
    if tuple(shape) != (size, size):
        raise ValueError(
            f"structure has shape {tuple(shape)}, and the latent has {size} numbers: it must be "
            f"({size}, {size}), in the order of jax.flatten_util.ravel_pytree(latent)."
        )


def _of_pair(rows: np.ndarray, cols: np.ndarray, size: int) -> Pattern:
    if rows.ndim != 1 or rows.shape != cols.shape:
        raise ValueError(
            "structure=(rows, cols) must be two arrays of the same length, got shapes "
            f"{rows.shape} and {cols.shape}."
        )
    for name, index in (("rows", rows), ("cols", cols)):
        if index.size and index.dtype.kind not in "iu":
            raise TypeError(
                f"the {name} of structure must be integers, got {index.dtype.name}: they are "
                "positions in the ravelled latent."
            )
        if index.size and (index.min() < 0 or index.max() >= size):
            worst = index.max() if index.max() >= size else index.min()
            raise ValueError(
                f"the {name} of structure must lie in 0..{size - 1}, the latent having {size} "
                f"numbers; found {worst}."
            )
    return Pattern.of(rows, cols, size)
