"""Points of randomised quasi-Monte-Carlo, and what several randomisations say together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from _newton import standard_errors
from _quadrature import LOG_2PI
from scipy.special import gammaln, logsumexp, ndtri, stdtrit
from scipy.stats import qmc

SMALLEST = 2.0**-40  # keeps a point off 0 and 1, where the normal quantile is infinite


def sobol(dimension: int, power: int, rng: np.random.Generator) -> np.ndarray:
    """2^power scrambled Sobol points in (0, 1)^dimension."""
    points = qmc.Sobol(dimension, scramble=True, rng=rng).random_base2(power)
    return np.clip(points, SMALLEST, 1 - SMALLEST)


def quantiles(points: np.ndarray, freedom: float | None) -> np.ndarray:
    """Of Student's t, or of the normal if `freedom` is none, at points in (0, 1)."""
    if freedom is None:
        return ndtri(points)
    if freedom != 4:
        return stdtrit(freedom, points)
    # Four degrees of freedom have a closed form (Shaw 2006), faster by far.
    alpha = 4 * points * (1 - points)
    root = np.cos(np.arccos(np.sqrt(alpha)) / 3) / np.sqrt(alpha)
    return np.sign(points - 0.5) * 2 * np.sqrt(np.maximum(root - 1, 0))


def log_density(draws: np.ndarray, freedom: float | None) -> np.ndarray:
    """Of independent draws of these, summed over the last axis."""
    if freedom is None:
        return (-0.5 * draws**2 - 0.5 * LOG_2PI).sum(-1)
    half = freedom / 2
    constant = gammaln(half + 0.5) - gammaln(half) - 0.5 * np.log(freedom * np.pi)
    return (constant - (half + 0.5) * np.log1p(draws**2 / freedom)).sum(-1)


class Pooled(NamedTuple):
    """log p with its error, the score, the score with each randomisation left out, the weights."""

    log_p: float
    error: float
    score: np.ndarray
    left_out: np.ndarray
    weights: np.ndarray


def pool(log_p: np.ndarray, score: np.ndarray) -> Pooled:
    """From the estimates (randomisation, group) of log p and of the score (last axis).

    The likelihoods of a group are averaged, not their logarithms, and the mean of the logarithm's
    remaining bias, minus half the variance, is taken off. The score of a group is the ratio of the
    averages of p times score and of p.
    """
    rounds = log_p.shape[0]
    mean = logsumexp(log_p, axis=0) - np.log(rounds)
    weights = np.exp(log_p - mean)
    variance = weights.var(axis=0, ddof=1) / rounds
    upper, lower = (weights[..., None] * score).sum(0), weights.sum(0)[:, None]
    total = (upper / lower).sum(0)
    less_upper = upper - weights[..., None] * score
    left_out = (less_upper / (lower - weights[..., None])).sum(1)
    log_p_total, error = float((mean + variance / 2).sum()), float(np.sqrt(variance.sum()))
    return Pooled(log_p_total, error, total, left_out, weights / weights.sum(0))


class Estimate(NamedTuple):
    """theta, its covariance as an estimate, and the covariance of its error of simulation."""

    theta: np.ndarray
    covariance: np.ndarray
    noise: np.ndarray
    log_evidence: float
    error: float
    step: float  # how long the last step was, in standard errors
    halves_apart: float = np.nan  # see errors_apart

    @property
    def standard_errors(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def theta_error(self) -> float:
        """The largest error of simulation, in standard errors."""
        return float(np.sqrt(np.max(np.diag(self.noise) / np.diag(self.covariance))))

    def mapped(self, linear: np.ndarray) -> Estimate:
        """The same for linear @ theta."""
        covariance, noise = (linear @ part @ linear.T for part in (self.covariance, self.noise))
        return self._replace(theta=linear @ self.theta, covariance=covariance, noise=noise)


def last_step(theta: np.ndarray, matrix: np.ndarray, pooled: Pooled) -> Estimate:
    """One Newton step from a theta next to the maximum, with the jackknife's error of theta."""
    rounds = pooled.left_out.shape[0]
    move = np.linalg.solve(matrix, pooled.score)
    moves = np.linalg.solve(matrix, pooled.left_out.T).T
    away = moves - moves.mean(0)
    noise = (rounds - 1) / rounds * away.T @ away
    gain = 0.5 * pooled.score @ move
    step = float(np.sqrt(2 * gain))
    log_p, covariance = float(pooled.log_p + gain), np.linalg.inv(matrix)
    return Estimate(theta + move, covariance, noise, log_p, pooled.error, step)


def errors_apart(matrices: tuple[np.ndarray, np.ndarray]) -> float:
    """How far standard errors from two halves of the randomisations are from their mean, relative.

    The mean of the halves is about that near to the limit.
    """
    one, two = (standard_errors(matrix) for matrix in matrices)
    return float(np.max(np.abs(one - two) / (one + two)))
