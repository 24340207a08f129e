"""Binary responses with two crossed factors: one factor by importance sampling, the other inside.

logit P(y = 1) = X b + a_i + c_j with a_i ~ N(Z g, s_a^2), the inner factor, and
c_j ~ N(W d, s_c^2), the outer one. Given all c the a_i are independent, and each integral over an
a_i is done by adaptive Gauss-Hermite. What remains is an integral over the c alone, a density much
nearer to a normal one than that of all effects: importance sampling from the normal at its mode
works.

theta is b, g, d, log s_a, log s_c in this order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from _newton import information
from _pool import log_density, quantiles, sobol
from _quadrature import LOG_2PI, gauss_hermite
from scipy.special import logsumexp

BLOCK = 400_000  # rows times samples of the outer effects at a time: they fit into the cache


def simulated(a: int = 700, b: int = 300, rows: int = 12_000) -> tuple[np.ndarray, ...]:
    """Rows (level of a, level of b, y) drawn with standard deviations 1 and 0.7, no intercept."""
    rng = np.random.default_rng(0)
    ia, ib = rng.integers(0, a, rows), rng.integers(0, b, rows)
    ea, eb = rng.normal(size=a), 0.7 * rng.normal(size=b)
    y = (rng.random(rows) < 1 / (1 + np.exp(-(ea[ia] + eb[ib])))).astype(float)
    return ia, ib, y


class Crossed(NamedTuple):
    """Rows sorted by the inner factor, and the three designs."""

    y: np.ndarray
    inner: np.ndarray
    starts: np.ndarray
    outer: np.ndarray
    x: np.ndarray
    z: np.ndarray
    w: np.ndarray

    def split(self, theta: np.ndarray) -> tuple[np.ndarray, ...]:
        """X b, Z g, W d, s_a, s_c."""
        at = np.cumsum([self.x.shape[1], self.z.shape[1], self.w.shape[1]])
        b, g, d, sizes = np.split(theta, at)
        return self.x @ b, self.z @ g, self.w @ d, *np.exp(sizes)


def crossed(
    inner: np.ndarray,
    outer: np.ndarray,
    y: np.ndarray,
    x: np.ndarray | None = None,
    z: np.ndarray | None = None,
    w: np.ndarray | None = None,
) -> Crossed:
    """x, z, w: the designs of rows, of inner levels, and of outer levels; none: no columns.

    Levels of the inner factor without rows integrate to one and are left out; z must have none.
    """
    levels, inner = np.unique(inner, return_inverse=True)
    order = np.argsort(inner, kind="stable")
    inner, starts = inner[order], np.unique(inner[order], return_index=True)[1]
    designs = [
        np.zeros((n, 0)) if part is None else part
        for n, part in ((y.size, x), (levels.size, z), (int(outer.max()) + 1, w))
    ]
    return Crossed(y[order], inner, starts, outer[order], designs[0][order], *designs[1:])


class Inner(NamedTuple):
    """Sum of the inner log-integrals, E[v] and E[v^2] of v = (a - Zg) / s_a, nodes, weights."""

    log_p: np.ndarray
    first: np.ndarray
    second: np.ndarray
    at: np.ndarray
    weights: np.ndarray


def inner_integrals(problem: Crossed, theta: np.ndarray, c: np.ndarray, points: int) -> Inner:
    """Over the inner effects, for each column of c, by adaptive Gauss-Hermite."""
    fixed, centre, _, sd, _ = problem.split(theta)
    offset = fixed[:, None] + c[problem.outer]
    factor = np.exp(offset)
    successes = np.add.reduceat(problem.y, problem.starts)[:, None]
    linear = np.add.reduceat(problem.y[:, None] * offset, problem.starts)
    mode = np.zeros(linear.shape)
    for _ in range(25):
        odds = factor * np.exp(centre[:, None] + sd * mode)[problem.inner]
        chance = odds / (1 + odds)
        slope = sd * (successes - np.add.reduceat(chance, problem.starts)) - mode
        bend = sd**2 * np.add.reduceat(chance * (1 - chance), problem.starts) + 1
        step = np.clip(slope / bend, -1.5, 1.5)
        mode = mode + step
        # The rule is exact to many digits from any centre near the mode.
        if np.abs(step).max() < 1e-2:
            break
    nodes, log_weights = gauss_hermite(points)
    at = mode + nodes[:, None, None] / np.sqrt(bend)
    parts = np.empty(at.shape)
    for node, log_weight, v, part in zip(nodes, log_weights, at, parts, strict=True):
        a = centre[:, None] + sd * v
        odds = factor * np.exp(a)[problem.inner]
        part[:] = successes * a + linear - np.add.reduceat(np.log1p(odds), problem.starts)
        part += log_weight + 0.5 * node**2 - 0.5 * v**2 - 0.5 * np.log(bend) - 0.5 * LOG_2PI
    logs = logsumexp(parts, axis=0)
    weights = np.exp(parts - logs)
    return Inner(
        logs.sum(0), (weights * at).sum(0), (weights * at**2).sum(0), at, weights
    )  # fmt: skip


def chances(problem: Crossed, theta: np.ndarray, c: np.ndarray, inner: Inner) -> np.ndarray:
    """P(y = 1) of each row at each node: (node, row, column of c)."""
    fixed, centre, _, sd, _ = problem.split(theta)
    factor = np.exp(fixed[:, None] + c[problem.outer])
    a = np.exp(centre[:, None] + sd * inner.at)
    odds = factor * a[:, problem.inner]
    return odds / (1 + odds)


def log_joint_and_score(
    problem: Crossed, theta: np.ndarray, c: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """log p(y, c) of each column of c and its derivative in theta, (parameter, column).

    Derivatives of the inner integrals are expectations under the posterior of the inner effects.
    """
    _, _, mean, sd, sd_outer = problem.split(theta)
    inner = inner_integrals(problem, theta, c, points)
    scaled = (c - mean[:, None]) / sd_outer
    prior = -0.5 * (scaled**2).sum(0) - c.shape[0] * (np.log(sd_outer) + 0.5 * LOG_2PI)
    rows = np.zeros((0, c.shape[1]))
    if problem.x.shape[1]:
        chance = chances(problem, theta, c, inner)
        expected = (chance * inner.weights[:, problem.inner]).sum(0)
        rows = problem.x.T @ (problem.y[:, None] - expected)
    score = [rows, problem.z.T @ inner.first / sd, problem.w.T @ scaled / sd_outer]
    score += [(inner.second - 1).sum(0)[None], (scaled**2 - 1).sum(0)[None]]
    return inner.log_p + prior, np.concatenate(score)


def outer_slope_and_bend(
    problem: Crossed, theta: np.ndarray, c: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of log p(y, c) in one vector c, and minus its Hessian."""
    _, _, mean, _, sd_outer = problem.split(theta)
    inner = inner_integrals(problem, theta, c[:, None], points)
    chance = chances(problem, theta, c[:, None], inner)[..., 0]
    weights = inner.weights[:, :, 0]
    of_rows = weights[:, problem.inner]
    shape = (weights.shape[1], c.size)
    cell = problem.inner * c.size + problem.outer

    def cells(values: np.ndarray) -> np.ndarray:
        return np.bincount(cell, values, shape[0] * shape[1]).reshape(shape)

    average = cells(problem.y - (of_rows * chance).sum(0))
    bend = -average.T @ average
    for weight, row in zip(weights, chance, strict=True):
        residual = cells(problem.y - row)
        bend += residual.T @ (weight[:, None] * residual)
    own = np.bincount(problem.outer, (of_rows * chance * (1 - chance)).sum(0), c.size)
    precision = np.diag(own + sd_outer**-2) - bend
    return average.sum(0) - (c - mean) / sd_outer**2, precision


class Proposal(NamedTuple):
    """The proposal for the outer effects: c = mode + root z.

    z is normal, or of independent Student t's: a logistic likelihood falls off slower than its
    curvature says, so that the weights are bounded with the t's only.
    """

    mode: np.ndarray
    root: np.ndarray
    log_det: float
    freedom: float | None = None

    def draws(self, power: int, rng: np.random.Generator) -> np.ndarray:
        """2^power values of z."""
        return quantiles(sobol(self.mode.size, power, rng), self.freedom)


def proposal(
    problem: Crossed, theta: np.ndarray, points: int, freedom: float | None = None
) -> Proposal:
    """The mode of p(c | y) and the inverse of the curvature there, by Newton's method."""
    c = np.zeros(problem.w.shape[0])
    for _ in range(50):
        slope, precision = outer_slope_and_bend(problem, theta, c, points)
        step = np.linalg.solve(precision, slope)
        c = c + step * min(1.0, 2.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-7:
            break
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    return Proposal(c, root, float(np.log(np.diag(root)).sum()), freedom)


def weigh(
    problem: Crossed, theta: np.ndarray, at: Proposal, draws: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log-weights and scores (draw, parameter) at draws of z (draw, outer level)."""
    logs, scores = [], []
    size = max(BLOCK // problem.y.size, 1)
    for z in np.split(draws, range(size, len(draws), size)):
        c = at.mode[:, None] + at.root @ z.T
        log_joint, score = log_joint_and_score(problem, theta, c, points)
        logs.append(log_joint - log_density(z, at.freedom) + at.log_det)
        scores.append(score.T)
    return np.concatenate(logs), np.concatenate(scores)


class Summary(NamedTuple):
    """log p, its derivative, the second moment of the draws' scores, and the effective share."""

    log_p: float
    score: np.ndarray
    second: np.ndarray
    share: float


def summarise(logs: np.ndarray, scores: np.ndarray) -> Summary:
    """What the weighted draws say."""
    weights = np.exp(logs - logs.max())
    log_p = float(logs.max() + np.log(weights.mean()))
    share = weights.sum() ** 2 / (weights**2).sum() / weights.size
    weights = weights / weights.sum()
    second = scores.T @ (weights[:, None] * scores)
    return Summary(log_p, weights @ scores, second, float(share))


def complete_information(
    problem: Crossed,
    theta: np.ndarray,
    at: Proposal,
    draws: np.ndarray,
    points: int,
    step: float = 1e-3,
) -> np.ndarray:
    """Posterior mean of minus the second derivative of log p(y, c) in theta.

    Weights stay those at theta. Less the variance of the score this is the observed information
    (Louis), and it needs few draws: the variance is what needs many.
    """
    logs, _ = weigh(problem, theta, at, draws, points)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()

    def slope(value: np.ndarray) -> np.ndarray:
        return weights @ weigh(problem, value, at, draws, points)[1]

    return information(slope, theta, step)
