"""Annealed importance sampling of all effects of a logistic model at once: the second route.

It shares nothing with the nested scheme: no factor is integrated out. The path runs from the
Laplace approximation of all standardised effects to their posterior, with one Langevin move a
temperature and resampling. The move z' = z + h g(z) + sqrt(h (2 - h)) xi leaves N(0, I) as it is,
so that a normal posterior would cost no weight; the weights are exact for any h (Jarzynski's
identity).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from _files import parallel
from _quadrature import LOG_2PI
from scipy.sparse import csr_matrix
from scipy.special import logsumexp


class Logistic(NamedTuple):
    """logit P(y = 1) = offset + loading x, x ~ N(0, I)."""

    y: np.ndarray
    offset: np.ndarray
    loading: csr_matrix


def logistic(
    y: np.ndarray, offset: np.ndarray, factors: list[tuple[np.ndarray, int, float]]
) -> Logistic:
    """`factors`: the level of each row, the number of levels, and the standard deviation."""
    firsts = np.cumsum([0, *(size for _, size, _ in factors)])
    columns = np.stack([level + first for (level, *_), first in zip(factors, firsts, strict=False)])
    values = np.stack([np.full(y.size, sd) for *_, sd in factors])
    rows = np.tile(np.arange(y.size), len(factors))
    shape = (y.size, int(firsts[-1]))
    return Logistic(y, offset, csr_matrix((values.ravel(), (rows, columns.ravel())), shape))


def value_and_slope(model: Logistic, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p(y, x) of each column of x, its gradient, and the chances of the rows."""
    eta = model.offset[:, None] + model.loading @ x
    odds = np.exp(eta)  # |eta| is far below 700 everywhere the path goes
    value = model.y @ eta - np.log1p(odds).sum(0)
    value = value - 0.5 * (x**2).sum(0) - 0.5 * LOG_2PI * x.shape[0]
    chance = odds / (1 + odds)
    return value, model.loading.T @ (model.y[:, None] - chance) - x, chance


class Centre(NamedTuple):
    mode: np.ndarray
    root: np.ndarray
    log_det: float
    laplace: float


def centre(model: Logistic) -> Centre:
    """The mode of all effects, the root of the inverse curvature, and Laplace's log p."""
    d = model.loading.shape[1]
    x = np.zeros(d)
    for _ in range(50):
        value, slope, chance = value_and_slope(model, x[:, None])
        spread = model.loading.multiply(chance * (1 - chance))
        bend = (model.loading.T @ spread).toarray() + np.eye(d)
        step = np.linalg.solve(bend, slope[:, 0])
        if np.abs(step).max() < 1e-9:
            break
        x = x + step * min(1.0, 2.0 / np.abs(step).max())
    root = np.linalg.inv(np.linalg.cholesky(bend)).T
    log_det = float(np.log(np.diag(root)).sum())
    return Centre(x, root, log_det, float(value[0] + 0.5 * d * LOG_2PI + log_det))


class Task(NamedTuple):
    model: Logistic
    centre: Centre
    temperatures: int
    particles: int
    step: float
    seed: int


def resampled(logs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Systematic resampling: the indices of the survivors."""
    weights = np.exp(logs - logsumexp(logs))
    marks = (rng.random() + np.arange(logs.size)) / logs.size
    return np.minimum(np.searchsorted(np.cumsum(weights), marks), logs.size - 1)


def leg(task: Task) -> float:
    """One unbiased estimate of p(y), as its logarithm."""
    rng = np.random.default_rng(task.seed)
    d, n, k, h = task.centre.mode.size, task.particles, task.temperatures, task.step
    root, variance = task.centre.root, task.step * (2 - task.step)

    def visit(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope, _ = value_and_slope(task.model, task.centre.mode[:, None] + root @ z)
        base = -0.5 * (z**2).sum(0) - 0.5 * d * LOG_2PI
        return value + task.centre.log_det - base, root.T @ slope + z

    z = rng.normal(size=(d, n))
    # `value` and `slope` are of the log-ratio of posterior and N(0, I), which a temperature scales.
    value, slope = visit(z)
    logs, total = np.zeros(n), 0.0
    for i in range(k):
        low, high = i / k, (i + 1) / k
        pull = low * slope - z
        new = z + h * pull + np.sqrt(variance) * rng.normal(size=z.shape)
        new_value, new_slope = visit(new)
        back = high * new_slope - new
        forward_cost = ((new - z - h * pull) ** 2).sum(0)
        back_cost = ((z - new - h * back) ** 2).sum(0)
        density = high * new_value - low * value - 0.5 * ((new**2).sum(0) - (z**2).sum(0))
        logs = logs + density + (forward_cost - back_cost) / (2 * variance)
        z, value, slope = new, new_value, new_slope
        if np.exp(2 * logsumexp(logs) - logsumexp(2 * logs)) < n / 2:
            keep = resampled(logs, rng)
            total += logsumexp(logs) - np.log(n)
            z, value, slope, logs = z[:, keep], value[keep], slope[:, keep], np.zeros(n)
    return float(total + logsumexp(logs) - np.log(n))


def annealed(
    model: Logistic,
    legs: int,
    temperatures: int,
    jobs: int,
    particles: int = 64,
    h: float = 0.2,
    first_seed: int = 9000,
) -> dict[str, float]:
    """log p by the mean of the legs' estimates, with half the variance taken off its bias."""
    at = centre(model)
    tasks = [Task(model, at, temperatures, particles, h, first_seed + i) for i in range(legs)]
    logs = np.array(parallel(leg, tasks, jobs))
    mean = logsumexp(logs) - np.log(legs)
    variance = np.exp(logs - mean).var(ddof=1) / legs
    return {
        "log_evidence": float(mean + variance / 2),
        "error": float(np.sqrt(variance)),
        "laplace": at.laplace,
    }
