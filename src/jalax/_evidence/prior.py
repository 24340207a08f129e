"""A prior on theta: taken off what a fit that maximises a posterior has measured, and theta
integrated out under it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jalax._evidence.log_evidence import Evidence
from jalax._evidence.uncertainty import Uncertainty
from jalax._model.model import Model
from jalax._particles.trees import Tree


def at(model: Model, theta: Tree) -> float:
    """log_prior at a theta of the optimiser's; 0 without one."""
    log_prior = model.outside.log_prior
    return 0.0 if log_prior is None else float(log_prior(model.constrained(theta)))


def taken_off(evidence: Evidence, model: Model, theta: Tree) -> Evidence:
    """log p_theta(y) from log p_theta(y) + log_prior(theta), which such a fit has measured."""
    if model.outside.log_prior is None:
        return evidence
    value = at(model, theta)
    laplace = None if evidence.laplace is None else evidence.laplace - value
    groups = evidence.groups - value / evidence.groups.size
    return dataclasses.replace(
        evidence, value=evidence.value - value, groups=groups, laplace=laplace
    )


def integrated(log_p: float, log_prior: float, known: Uncertainty) -> float:
    r"""log of the integral of p_theta(y) pi(theta) over theta, by Laplace's method.

    $\log p + \log \pi + \frac p2 \log 2\pi + \frac12 \log\det V$ at the posterior's mode,
    V its inverse curvature on the user's scale, $J C J^\top$: there the Jacobian comes in.
    """
    free = known.jacobian[known.jacobian.any(axis=1)]  # without numbers that are held
    if free.shape[0] != free.shape[1]:
        raise ValueError(
            "theta has more numbers than the optimiser moves (a simplex, say): there is no density "
            "of all of them, and theta is not integrated out."
        )
    sign, log_det = np.linalg.slogdet(free @ known.covariance @ free.T)
    if not sign > 0:
        raise ValueError(
            "theta is not integrated out: some of its numbers have no standard error, because they "
            "are at a boundary or not identified even under this prior."
        )
    return log_p + log_prior + len(free) / 2 * math.log(2 * math.pi) + log_det / 2
