"""Conway and Maxwell's law in NumPy, for tables: every count is summed, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ._conway_law import bracket
from ._peaks import above

AT_ONCE = 2_000_000  # probabilities that are held
DROP = 40.0


def cdf(y: np.ndarray, eta: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """P(Y <= y) of whole numbers y."""
    y, eta, scale = np.broadcast_arrays(y, eta, scale)
    # Many responses of one row: its law is summed once.
    pairs, back = np.unique(np.stack([eta.ravel(), scale.ravel()]), axis=1, return_inverse=True)
    flat, value, back = y.ravel(), np.zeros(y.size), back.ravel()
    order = np.argsort(back, kind="stable")
    begins = np.searchsorted(back[order], np.arange(pairs.shape[1] + 1))
    for some, p in _probabilities(*pairs):
        mine = order[begins[some.start] : begins[some.stop]]
        upto = np.minimum(np.cumsum(p, axis=1), 1.0)
        at = np.clip(flat[mine], 0, p.shape[1] - 1).astype(int)
        value[mine] = upto[back[mine] - some.start, at]
    return np.where(y < 0, 0.0, value.reshape(y.shape))


def variance(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    mean, scale = np.broadcast_arrays(mean, scale)
    pairs, back = np.unique(np.stack([mean.ravel(), scale.ravel()]), axis=1, return_inverse=True)
    found = np.zeros(pairs.shape[1])
    for some, p in _probabilities(np.log(pairs[0]), pairs[1]):
        away = np.arange(p.shape[1]) - pairs[0][some, None]
        found[some] = np.sum(p * away**2, axis=1)
    return found[back.ravel()].reshape(mean.shape)


def _probabilities(eta: np.ndarray, scale: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """(laws, counts) of some laws at a time, whose means do not fall."""
    nu = 1 / np.asarray(scale, float)
    low, high = bracket(eta, nu, np)
    most = np.exp(high)
    ends = np.ceil(most + above(most, nu, DROP)) + 2
    first = 0
    while first < len(eta):
        widest = np.maximum.accumulate(ends[first:])
        count = max(1, int(np.sum(widest * np.arange(1, len(widest) + 1) <= AT_ONCE)))
        some = slice(first, min(first + count, len(eta)))
        k = np.arange(widest[min(count, len(widest)) - 1])
        yield some, _solved(k, eta[some], nu[some], low[some], high[some])
        first += count


def _solved(k, eta, nu, low, high) -> np.ndarray:
    """Newton's steps for log m, and halves of its interval where one would leave it."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, len(k))))])
    z = 0.5 * (low + high)
    for _ in range(200):
        terms = nu[:, None] * (k * z[:, None] - log_factorial)
        p = np.exp(terms - terms.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = p @ k
        slope = nu * np.maximum(np.sum(p * (k - mean[:, None]) ** 2, axis=1), 1e-300)
        gap = np.log(np.maximum(mean, 1e-300)) - eta
        if np.all((np.abs(gap) < 1e-13) | (high - low < 1e-15 * np.abs(z))):
            break
        low, high = np.where(gap < 0, z, low), np.where(gap < 0, high, z)
        newton = z - gap * mean / slope
        z = np.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return p
