"""The two simulated crossed problems, by the nested scheme both ways round and by annealing."""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
from _annealed import annealed, logistic
from _crossed import crossed, simulated
from _crossed_fit import Sizes, evidence, fit
from _files import record

NAMES = ("intercept", "log_sd_a", "log_sd_b")
TRUTH = np.array([0.0, 0.0, np.log(0.7)])


class Plan(NamedTuple):
    """Levels of the two factors, rows, and how much to spend on each route."""

    a: int
    b: int
    rows: int
    sizes: Sizes
    swapped: Sizes
    legs: int
    temperatures: int


def routes_at(plan: Plan, theta: np.ndarray, jobs: int) -> dict[str, Any]:
    """Other routes to log p at one theta."""
    ia, ib, y = simulated(plan.a, plan.b, plan.rows)
    swapped = crossed(ib, ia, y, w=np.ones((plan.a, 1)))
    effects = [(ia, plan.a, np.exp(theta[1])), (ib, plan.b, np.exp(theta[2]))]
    return {
        "a sampled, b inside": evidence([swapped], theta[[0, 2, 1]], plan.swapped, jobs),
        "annealed importance sampling of all effects": annealed(
            logistic(y, np.full(y.size, theta[0]), effects), plan.legs, plan.temperatures, jobs
        ),
    }


def run(name: str, plan: Plan, options: argparse.Namespace) -> None:
    """Fit with b sampled and a inside, and write the entry."""
    began, jobs = time.time(), options.jobs
    ia, ib, y = simulated(plan.a, plan.b, plan.rows)
    # The intercept goes with the factor whose mean is known less well: the other's is then small.
    problem = crossed(ia, ib, y, z=np.ones((plan.a, 1)))
    estimate, share = fit([problem], TRUTH, plan.sizes, jobs)
    fewer = plan.sizes._replace(rounds=max(plan.sizes.rounds // 4, 2))
    routes = {
        "b sampled, a inside": {
            "log_evidence": estimate.log_evidence, "error": estimate.error,
            "effective_share": share,
        },
        "the same, Student t, more points inside": evidence(
            [problem],
            estimate.theta,
            fewer._replace(points=2 * fewer.points - 1, freedom=60.0),
            jobs,
        ),
        **routes_at(plan, estimate.theta, jobs),
        "the first, at the generating theta": evidence([problem], TRUTH, fewer, jobs),
    }  # fmt: skip
    entry = {
        "theta": dict(zip(NAMES, estimate.theta, strict=True)),
        "standard_errors": dict(zip(NAMES, estimate.standard_errors, strict=True)),
        "log_evidence": estimate.log_evidence,
        "error": estimate.error,
        "theta_error": estimate.theta_error,
        "standard_errors_error": estimate.halves_apart,
        "method": "importance sampling of factor b on Sobol points, factor a by quadrature",
        "routes": routes,
    }
    record(name, entry, options, began)
