"""The end of a fit by an algorithm that has measured the likelihood itself: nothing is drawn again.

Each measurement has points with shifts of their own: log p of a group is their mean, and half the
variance of one is added, because the logarithm of an average is too low by that.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence.log_evidence import Evidence
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
from jalax._model.model import Model
from jalax._particles.pareto import NO_VARIANCE, pareto_k
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, Program

# Shares of the complete-data information: nothing is known of what is less than rounding, and
# where less than the second is left, a standard error as large as theta is that of a boundary.
LEAST_SHARE, SMALL_SHARE = 50, 1e-3  # the first in units of the last place
LEAST_ESS = 0.05  # of the points in the worst group


def finished(model: Model, theta: Tree, seen: Measurement) -> Finished:
    """The evidence and the standard errors of what was measured one short step before theta."""
    score, noise, complete, missing = (
        np.asarray(part, float) for part in (seen.score, seen.noise, seen.complete, seen.missing)
    )
    there = np.asarray(ravel_pytree(seen.theta)[0], float)
    metric = information.host_metric(complete, missing)
    eps = np.finfo(np.asarray(seen.complete).dtype).eps
    wide = np.where(metric.share < SMALL_SHARE, is_wide(metric, there, 1.0), is_wide(metric, there))
    known = (metric.share > LEAST_SHARE * eps) & ~wide
    inverse, lost = inverse_information(metric, known, complete)
    step = inverse @ score
    length = float(np.sqrt(max(score @ step, 0.0)))
    covariance, simulation = inverse.copy(), inverse @ noise @ inverse
    # What the last step leaves behind because log p is no exact parabola, and rounding.
    simulation = simulation + 0.01 * np.outer(step, step) + 1e-6 * covariance
    for matrix in (covariance, simulation):
        matrix[lost], matrix[:, lost] = np.nan, np.nan
    uncertainty = Uncertainty(
        names_of(theta),
        covariance,
        simulation,
        float(seen.num_measured) - 1,
        metric.basis.T[~known],
        jacobian_of(model, theta),
    )
    settled = length <= 0.03 * np.sqrt(score.size)
    uphill = uncertainty.describe_flat(uphill_of(score, noise, metric, known))
    evidence = _evidence(seen, gain=float(score @ step) / 2)
    return Finished(theta, evidence, uncertainty, settled and not uphill, uphill)


def _evidence(seen: Measurement, gain: float) -> Evidence:
    number = int(seen.num_measured)
    groups = np.asarray(seen.groups, float)
    each = np.asarray(seen.variance, float)
    log_weights = np.asarray(seen.log_weights)
    error, freedom = _error(groups, each, number, float(np.finfo(log_weights.dtype).eps))
    k_hat, ess = _quality(log_weights)
    messages = _doubts(k_hat, ess)
    groups = groups + each / 2 + gain / groups.size
    num_points = number * log_weights.shape[1]
    value = float(groups.sum())
    return Evidence(
        value, error, freedom, "points", k_hat, ess, num_points, number, 1, groups, messages
    )


def _error(groups: np.ndarray, each: np.ndarray, number: int, eps: float) -> tuple[float, float]:
    """Of the sum over groups, with its degrees of freedom by Satterthwaite, and for rounding.

    Rounding has the same sign in every group, in the worst case: half a unit in the last place.
    """
    variance = each / number
    total = variance.sum()
    floor = eps / 2 * np.abs(groups).sum()
    if total == 0:
        return float(floor), np.inf
    freedom = (number - 1) * total**2 / np.sum(variance**2)
    error = np.hypot(np.sqrt(total), floor)
    return float(error), float(freedom * (error**2 / total) ** 2)


def _quality(log_weights: Any) -> tuple[float, float]:
    """The Pareto k-hat of the weights, groups pooled, and the lowest ESS as a share of N."""
    k_hat, ess = _compiled_quality(jnp.asarray(log_weights))
    return float(k_hat), float(ess)


def _look(log_weights):
    relative = log_weights - jnp.max(log_weights, axis=1, keepdims=True)
    weights = jnp.exp(relative)
    mean = jnp.mean(weights, axis=1, keepdims=True)
    ess = jnp.min(mean[:, 0] ** 2 / jnp.mean(weights**2, axis=1))
    return pareto_k((relative - jnp.log(mean)).reshape(1, -1))[0], ess


_compiled_quality = Program(_look, small=LEVEL_0_OLD_EMITTERS, large={})


def _doubts(k_hat: float, ess: float) -> tuple[str, ...]:
    doubts = []
    if k_hat > NO_VARIANCE:
        doubts.append(
            f"the weights of the points have a heavy tail (Pareto k-hat {k_hat:.2f}): part of the "
            "posterior may be missing. Fit with algorithm=jalax.JALAEM()"
        )
    if ess < LEAST_ESS:
        doubts.append(
            f"in one group {100 * ess:.0f} % of the points carry the weight: its posterior is far "
            "from a bell. Fit with algorithm=jalax.JALAEM(), or with more num_particles"
        )
    return tuple(doubts)
