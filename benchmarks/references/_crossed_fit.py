"""The maximum and its evidence for blocks of crossed effects; used by four of the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from _crossed import Crossed, Proposal, Summary, complete_information, proposal, summarise, weigh
from _files import parallel
from _newton import positive
from _pool import Estimate, Pooled, errors_apart, last_step, pool


class Sizes(NamedTuple):
    """`rounds` randomisations of 2^power points, and 2^first where few points will do."""

    first: int
    power: int
    rounds: int
    points: int = 11
    freedom: float | None = None  # of the proposal, none: normal


class Task(NamedTuple):
    """One randomisation of all blocks at one theta."""

    problems: Sequence[Crossed]
    theta: np.ndarray
    centres: Sequence[Proposal]
    power: int
    seed: int
    points: int


def randomisation(task: Task) -> list[Summary]:
    """What one randomisation says of each block."""
    found = []
    for number, (problem, at) in enumerate(zip(task.problems, task.centres, strict=True)):
        rng = np.random.default_rng([task.seed, number])
        draws = at.draws(task.power, rng)
        found.append(summarise(*weigh(problem, task.theta, at, draws, task.points)))
    return found


class Look(NamedTuple):
    """At one theta: the pooled estimates, the observed information, and the lowest share.

    `halves`: the information with the first and with the second half of the randomisations.
    """

    pooled: Pooled
    matrix: np.ndarray
    share: float
    halves: tuple[np.ndarray, np.ndarray]


def look(
    problems: Sequence[Crossed], theta: np.ndarray, sizes: Sizes, seed: int, jobs: int
) -> Look:
    """Several randomisations around the modes at theta, and the information by Louis' identity."""
    centres = [proposal(problem, theta, sizes.points, sizes.freedom) for problem in problems]
    tasks = [
        Task(problems, theta, centres, sizes.power, seed + r, sizes.points)
        for r in range(sizes.rounds)
    ]
    found = parallel(randomisation, tasks, jobs)
    log_p = np.array([[block.log_p for block in row] for row in found])
    scores = np.array([[block.score for block in row] for row in found])
    seconds = np.array([[block.second for block in row] for row in found])
    pooled = pool(log_p, scores)
    complete = np.zeros((theta.size, theta.size))
    for number, (problem, at) in enumerate(zip(problems, centres, strict=True)):
        draws = at.draws(sizes.first, np.random.default_rng([seed, 1, number]))
        complete += complete_information(problem, theta, at, draws, sizes.points)
    whole, first, second = (
        complete - spread(pooled.weights[part], scores[part], seconds[part])
        for part in (slice(None), slice(0, None, 2), slice(1, None, 2))
    )
    share = min(block.share for row in found for block in row)
    return Look(pooled, whole, share, (first, second))


def spread(weights: np.ndarray, scores: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Posterior variance of the score, summed over blocks, from several randomisations."""
    weights = weights / weights.sum(0)
    means = np.einsum("rb,rbk->bk", weights, scores)
    return np.einsum("rb,rbkl->kl", weights, seconds) - means.T @ means


def usable(matrix: np.ndarray) -> np.ndarray:
    """The information itself where it is definite, as it is near a maximum."""
    return matrix if np.linalg.eigvalsh(matrix)[0] > 0 else positive(matrix)


def fit(
    problems: Sequence[Crossed], theta: np.ndarray, sizes: Sizes, jobs: int
) -> tuple[Estimate, float]:
    """The estimate and the lowest effective share over blocks and randomisations.

    Newton's method with a sixteenth of the points and new proposals at each theta, then with all of
    them until the last step is short enough for the expansion around it.
    """
    rough = sizes._replace(power=max(sizes.power - 2, 6), rounds=max(sizes.rounds // 4, 2))
    step = np.inf
    for number in range(40):
        enough = step < 0.1
        # The last rounds use the same points, so that the steps shrink whatever their noise.
        size, seed = (sizes, 100) if enough else (rough, 1000 * (number + 1))
        found = look(problems, theta, size, seed, jobs)
        estimate = last_step(theta, usable(found.matrix), found.pooled)
        step = estimate.step
        print(f"log p {found.pooled.log_p:.4f}, step {step:.4f}", flush=True)
        if enough and step < 0.05:
            return estimate._replace(halves_apart=errors_apart(found.halves)), found.share
        theta = theta + (estimate.theta - theta) * min(1.0, 1.5 / max(step, 1e-300))
    raise RuntimeError(f"Newton's method did not arrive: the last step was {step:.2g} errors long.")


def evidence(
    problems: Sequence[Crossed], theta: np.ndarray, sizes: Sizes, jobs: int, seed: int = 50_000
) -> dict[str, float]:
    """log p at one theta, with other points than `fit` uses, and the step it would take."""
    found = look(problems, theta, sizes, seed, jobs)
    estimate = last_step(theta, usable(found.matrix), found.pooled)
    return {
        "log_evidence": found.pooled.log_p,
        "error": found.pooled.error,
        "effective_share": found.share,
        "step_to_its_maximum": float(
            np.max(np.abs(estimate.theta - theta) / estimate.standard_errors)
        ),
        "theta_error": estimate.theta_error,
    }
