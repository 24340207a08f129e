"""The end of a fit by an algorithm that has measured the likelihood: nothing is drawn again."""

from __future__ import annotations

import numpy as np

from jalax._evidence.by_points import total_of
from jalax._evidence.log_evidence import Evidence, report
from jalax._evidence.rounding import rounding
from jalax._evidence.rounds import LEAST_ESS, Total
from jalax._evidence.uncertainty import (
    Finished,
    Uncertainty,
    inverse_information,
    is_wide,
    jacobian_of,
    names_of,
    uphill_of,
)
from jalax._model import information
from jalax._model.algorithm import Measurement
from jalax._model.frequencies import counted_measurement
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.pareto import NO_VARIANCE
from jalax._particles.trees import Tree
from jalax._reference.legs import LAST_STEP

# Shares of the complete-data information: nothing is known of what is less than rounding, and
# where less than the second is left, a standard error as large as theta is that of a boundary.
LEAST_SHARE, SMALL_SHARE = 50, 1e-3  # the first in units of the last place
LOST = 2e-6  # what points cannot tell from zero
UPWARDS = 0.05  # of the complete-data information, by which log p may seem to curve upwards
REACH, LEVEL = 10, 0.01  # times one more than theta; a change of log p that does not matter
LEFT_BY_DIFFERENCES = 3e-5  # of the variance: scores by differences over a fifth of an error


def finished(model: Model, theta: Tree, seen: Measurement) -> Finished:
    """The evidence and the standard errors of what was measured one short step before theta."""
    idle = _is_idle(seen)
    rest = np.flatnonzero(~idle)
    score, noise, complete, missing, there = _of_these(seen, rest)
    metric = information.host_metric(complete, missing)
    eps = np.finfo(seen.modes.dtype).eps
    wide = np.where(metric.share < SMALL_SHARE, is_wide(metric, there, 1.0), is_wide(metric, there))
    least = _least_left(seen) if _is_noise(seen) else LEAST_SHARE * eps
    known = (metric.share > least) & ~wide
    inverse, lost = inverse_information(metric, known, complete)
    step = inverse @ score
    length = float(np.sqrt(max(score @ step, 0.0)))
    covariance, simulation = inverse.copy(), inverse @ noise @ inverse
    # What the last step leaves behind because log p is no exact parabola, and rounding.
    left = 1e-6 if seen.num_temperatures == 1 else LEFT_BY_DIFFERENCES
    simulation = simulation + 0.01 * np.outer(step, step) + left * covariance
    # And where little of the information is left, the last step was not taken.
    untaken = np.where(known & (metric.share < SMALL_SHARE), metric.share, np.inf)
    not_taken = np.asarray(metric.solve(score, untaken))
    simulation = simulation + np.outer(not_taken, not_taken)
    for matrix in (covariance, simulation):
        matrix[lost], matrix[:, lost] = np.nan, np.nan
    whole = np.eye(idle.size)
    uncertainty = Uncertainty(
        names_of(model, theta),
        _with_gaps(covariance, rest, idle.size),
        _with_gaps(simulation, rest, idle.size),
        float(seen.num_measured) - 1,
        np.concatenate([metric.basis.T[~known] @ whole[rest], whole[idle]]),
        jacobian_of(model, theta),
    )
    # The climb ended where the points of one measurement have their maximum, not all together.
    one = seen.num_measured * float(np.einsum("ij,ji->", inverse, noise))
    short = 0.03 if seen.num_temperatures == 1 else LAST_STEP
    settled = length <= max(short * np.sqrt(score.size), 3 * np.sqrt(max(one, 0.0)))
    # At a maximum no share is negative: it is a saddle, or derivatives beyond the range of float32.
    settled = settled and not np.any(metric.share < -UPWARDS)
    rising = uphill_of(score, noise, metric, known) @ whole[rest]
    uphill = uncertainty.describe_flat(rising)
    # Where they were measured: one step on the terms of log_joint are rounded otherwise.
    there = trees.with_numbers(theta, seen.theta)
    seen = counted_measurement(model, seen)
    total = total_of(seen, rounding(model, there, seen.modes))
    rise = float(score @ (step - not_taken)) / 2  # by the last step, as far as it was taken
    total.groups = total.groups + rise / total.groups.size
    # The score is known up to `left`, and no better is what it adds.
    total.rounding = float(np.hypot(total.rounding, length * np.sqrt(left)))
    evidence = report(total, _doubts(total), seen.num_temperatures, asked=np.inf)
    return Finished(theta, evidence, uncertainty, settled and not uphill, uphill)


def _is_idle(seen: Measurement) -> np.ndarray:
    """Numbers of theta that log p does not depend on, as far as anybody would change them.

    A few powers of ten away from where it matters a parameter has no information in the complete
    data either, and what little rounding leaves of it must not be taken for a curvature.
    """
    far = REACH * (1 + np.abs(seen.theta))
    bend = np.maximum(np.abs(np.diagonal(seen.complete)), np.abs(np.diagonal(seen.missing)))
    idle = np.abs(seen.score) * far + bend * far**2 / 2 < LEVEL
    return idle & ~idle.all()  # one must be left to look at


def _of_these(seen: Measurement, rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """Score, its noise, both parts of the information, and theta, of some numbers of theta."""
    part = np.ix_(rest, rest)
    matrices = (matrix[part] for matrix in (seen.noise, seen.complete, seen.missing))
    return seen.score[rest], *matrices, seen.theta[rest]


def _with_gaps(matrix: np.ndarray, rest: np.ndarray, size: int) -> np.ndarray:
    whole = np.full((size, size), np.nan)
    whole[np.ix_(rest, rest)] = matrix
    return whole


def is_lost(seen: Measurement) -> bool:
    """The climb may have gone where nothing tells it the way back."""
    return bool(_is_idle(seen).any()) or _is_noise(seen)


def _is_noise(seen: Measurement) -> bool:
    """So much information is missing that what is left may be noise, along two directions or more.

    A standard deviation on its way to zero takes that about the mean of its groups along: there
    the score says nothing about it any more. Alone it does no harm.
    """
    _, _, complete, missing, _ = _of_these(seen, np.flatnonzero(~_is_idle(seen)))
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(complete)), 1e-300))
    left = (complete - missing) * np.outer(scale, scale)
    if not np.isfinite(left).all():
        return False
    least = _least_left(seen)
    rounding = (np.abs(left) < least) & ~np.eye(len(left), dtype=bool)
    return int(np.sum(np.linalg.eigvalsh(np.where(rounding, 0.0, left)) < least)) > 1


def _least_left(seen: Measurement) -> float:
    """The share of the complete-data information that can be told from none."""
    return max(LOST, 100 * float(np.finfo(seen.modes.dtype).eps))


def _doubts(total: Total) -> list[str]:
    if total.ess > LEAST_ESS:
        return []
    return [
        f"in one group {100 * total.ess:.0f} % of the points carry the weight: its posterior is "
        "far from a bell. Fit with algorithm=jalax.JALAEM(), or with more num_particles"
    ]


def what_is_wrong(evidence: Evidence) -> str:
    """The doubts about the points in few words, for a fit that goes on without them."""
    if evidence.k_hat >= NO_VARIANCE:
        return (
            f"Scoring's points have weights with a heavy tail (Pareto k-hat {evidence.k_hat:.2f})"
        )
    return f"in one group {100 * evidence.ess:.0f} % of Scoring's points carry the weight"
