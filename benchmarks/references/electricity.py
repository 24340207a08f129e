"""Electricity suppliers: a panel mixed logit with six independent normal coefficients.

361 households choose 12 times among 4 offers; utilities are x'b_i with independent coefficients
b_ik ~ N(mu_k, exp(log_sd_k)^2). Each household's integral is by importance sampling: its mode by
Newton's method, a product of Student t's with 4 degrees of freedom on scrambled Sobol points with a
random shift a household. In the coefficients themselves the likelihood does not depend on theta:
the score (Fisher) and the information (Louis) need the prior's derivatives alone. The second route
is a normal proposal, wider than the curvature says, with other points.

    python benchmarks/references/electricity.py --jobs 16
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _files import arguments, codes, parallel, read, record
from _importance import Centres, Shape, draws
from _pool import Estimate, errors_apart, last_step, pool, sobol
from _quadrature import LOG_2PI

NAMES = ("pf", "cl", "loc", "wk", "tod", "seas")
# The book's approximate answer, where the maximisation starts.
START = np.concatenate([
    [-1.0008, -0.2324, 2.3456, 1.6715, -9.6390, -9.7954],
    np.log([0.2212, 0.4097, 1.8814, 1.2448, 2.4906, 1.5986]),
])  # fmt: skip
STUDENT, NORMAL = Shape(4.0), Shape(None, 1.25)
BATCH = 60_000  # draws at a time in one process, 36 differences each


def load(folder: Path | None) -> list[np.ndarray]:
    """For each household the attributes of the 3 offers not taken less those of the one taken."""
    table = read("electricity_long", folder)
    household, occasion = codes(table["id"]), codes(table["id"], table["chid"])
    order = np.lexsort((table["alt"].astype(int), occasion, household))
    values = np.stack([table[name][order].astype(float) for name in NAMES], 1).reshape(-1, 4, 6)
    taken = table["choice"][order].reshape(-1, 4) == "1"
    others = values[~taken].reshape(-1, 3, 6) - values[taken][:, None]
    owner = household[order].reshape(-1, 4)[:, 0]
    return [others[owner == i] for i in range(owner.max() + 1)]


def log_likelihood(differences: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of one household at the rows of b: minus the log of one plus the sum of the odds."""
    occasions = differences.shape[0]
    odds = np.exp(np.minimum(b @ differences.reshape(-1, 6).T, 500.0))
    odds = odds.reshape(-1, occasions, 3).sum(2)
    return -np.log1p(odds).sum(1)


def centre(differences: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode of one household's coefficients and the root of the inverse curvature there."""
    mu, sd = theta[:6], np.exp(theta[6:])
    b = mu.copy()
    for _ in range(100):
        odds = np.exp(differences @ b)
        chance = odds / (1 + odds.sum(1, keepdims=True))
        means = np.einsum("ta,tak->tk", chance, differences)
        slope = -means.sum(0) - (b - mu) / sd**2
        bend = np.einsum("ta,tak,tal->kl", chance, differences, differences)
        bend += np.diag(sd**-2.0) - means.T @ means
        step = np.linalg.solve(bend, slope)
        size = np.sqrt(step @ bend @ step)
        b = b + step * min(1.0, 1.0 / max(size, 1e-300))
        if size < 1e-8:
            break
    return b, np.linalg.inv(np.linalg.cholesky(bend)).T


class Task(NamedTuple):
    """One randomisation of all households at one theta."""

    households: list[np.ndarray]
    centres: Centres
    theta: np.ndarray
    power: int
    seed: int
    shape: Shape


def posterior(
    values: np.ndarray, logs: np.ndarray, theta: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """log p of one household, its score, and its share of the observed information (Louis).

    `logs` is the log-likelihood less the proposal's log-density at `values`.
    """
    mu, sd = theta[:6], np.exp(theta[6:])
    scaled = (values - mu) / sd
    logs = logs - 0.5 * (scaled**2).sum(1) - np.log(sd).sum() - 3 * LOG_2PI
    weights = np.exp(logs - logs.max())
    log_p = float(logs.max() + np.log(weights.mean()))
    weights = weights / weights.sum()
    scores = np.concatenate([scaled / sd, scaled**2 - 1], 1)
    score = weights @ scores
    first, second = weights @ scaled, weights @ scaled**2
    cross = np.diag(2 * first / sd)
    complete = np.block([[np.diag(sd**-2.0), cross], [cross, np.diag(2 * second)]])
    spread = (weights[:, None] * scores).T @ scores - np.outer(score, score)
    return log_p, score, complete - spread


def randomisation(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p, score, and information of each household."""
    rng = np.random.default_rng(task.seed)
    base = sobol(6, task.power, rng)
    found = []
    # The likelihood of a batch of households at a time keeps the memory small.
    width = max(BATCH // len(base), 1)
    for first in range(0, len(task.households), width):
        part = slice(first, first + width)
        at = Centres(task.centres.modes[part], task.centres.roots[part])
        values, densities = draws(at, base, rng, task.shape)
        for group, b, density in zip(task.households[part], values, densities, strict=True):
            found.append(posterior(b, log_likelihood(group, b) - density, task.theta))
    log_p, scores, matrices = (np.array(part) for part in zip(*found, strict=True))
    return log_p, scores, matrices


def around(
    households: list[np.ndarray],
    theta: np.ndarray,
    shape: Shape,
    power: int,
    seeds: range,
    jobs: int,
) -> Estimate:
    """One Newton step from theta with several randomisations."""
    modes, roots = zip(*(centre(group, theta) for group in households), strict=True)
    centres = Centres(np.array(modes), np.array(roots))
    tasks = [Task(households, centres, theta, power, seed, shape) for seed in seeds]
    log_p, scores, matrices = zip(*parallel(randomisation, tasks, jobs), strict=True)
    pooled = pool(np.array(log_p), np.array(scores))
    whole, first, second = (
        np.mean(matrices[part], axis=0).sum(0)
        for part in (slice(None), slice(0, None, 2), slice(1, None, 2))
    )
    found = last_step(theta, whole, pooled)
    return found._replace(halves_apart=errors_apart((first, second)))


def main() -> None:
    options, began = arguments(__doc__ or ""), time.time()
    households = load(options.data)
    power = 14 + int(np.round(np.log2(options.effort)))
    theta, jobs = START, options.jobs
    for _ in range(30):
        rough = around(households, theta, STUDENT, 9, range(2), jobs=1)
        theta = rough.theta
        print(f"step {rough.step:.3g}, log p {rough.log_evidence:.3f}", flush=True)
        if rough.step < 0.1:
            break
    # Another step with more points first, so that the last one is short enough to be straight.
    near = around(households, theta, STUDENT, power - 2, range(10, 14), jobs)
    theta = near.theta
    last = around(households, theta, STUDENT, power, range(100, 116), jobs)
    other = around(households, theta, NORMAL, power, range(200, 208), jobs)
    entry = {
        "theta": {"mu": last.theta[:6], "log_sd": last.theta[6:]},
        "standard_errors": {"mu": last.standard_errors[:6], "log_sd": last.standard_errors[6:]},
        "names": {"mu": list(NAMES), "log_sd": list(NAMES)},
        "log_evidence": last.log_evidence,
        "error": last.error,
        "theta_error": last.theta_error,
        "standard_errors_error": last.halves_apart,
        "method": "importance sampling of each household from Student's t on Sobol points",
        "routes": {
            f"{label} x 2^{power} points": {
                "log_evidence": route.log_evidence,
                "error": route.error,
                "theta": {"mu": route.theta[:6], "log_sd": route.theta[6:]},
                "theta_error": route.theta_error,
                "theta_apart": float(
                    np.max(np.abs(route.theta - last.theta) / last.standard_errors)
                ),
            }
            for label, route in (("Student t, 16", last), ("wide normal, 8", other))
        },
        "last_step": last.step,
    }
    record("electricity", entry, options, began)


if __name__ == "__main__":
    main()
