"""Newton's method on a score, with the information by central differences of the score."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Score = Callable[[np.ndarray], np.ndarray]


def information(score: Score, theta: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Minus the derivative of the score, made symmetric."""
    columns = [
        (score(theta - step * unit) - score(theta + step * unit)) / (2 * step)
        for unit in np.eye(theta.size)
    ]
    return 0.5 * (np.array(columns) + np.array(columns).T)


def positive(matrix: np.ndarray) -> np.ndarray:
    """The matrix with its eigenvalues' absolute values: far from a maximum they may be negative."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(np.abs(values), 1e-3 * np.abs(values).max())) @ vectors.T


def maximise(
    score: Score, theta: np.ndarray, tolerance: float = 1e-9, rounds: int = 30, step: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """The root of the score and the information there.

    Steps are kept below two standard errors; it ends when one is below `tolerance` of them. The
    information is computed anew while steps are long and kept when they are short.
    """
    matrix = information(score, theta, step)
    for _ in range(rounds):
        slope = score(theta)
        # Only near the maximum is the matrix itself trusted.
        definite = np.linalg.eigvalsh(matrix)[0] > 0
        move = np.linalg.solve(matrix if definite else positive(matrix), slope)
        size = float(np.sqrt(slope @ move))
        theta = theta + move * min(1.0, 2.0 / max(size, 1e-300))
        if size < tolerance:
            return theta, information(score, theta, step)
        if size > 0.05:
            matrix = information(score, theta, step)
    raise RuntimeError(f"Newton's method did not arrive: the last step was {size:.2g} errors long.")


def standard_errors(matrix: np.ndarray) -> np.ndarray:
    """Square roots of the diagonal of the inverse information."""
    return np.sqrt(np.diag(np.linalg.inv(matrix)))
