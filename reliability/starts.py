"""Does a fit arrive from anywhere? Three models from zeros, one from its published start, and all
of them from ten random starts.

Kidney infections and the pound against the dollar, of the book, and an AR(1) series of 200 counts
(phi 0.8, mean e; simulated), both precisions. The random starts are N(0, 1) in every number of
theta. Theophylline, which has other maxima, from the start of saemix's guide and around it: with a
standard deviation of 0.5, and of 0.01 in the coefficient of a weight of 70 kg.

The maximum is the book's, of the counts that of a forward recursion on a grid, in NumPy. A fit is
right if it says "converged", every number of theta is within 0.05 standard errors of the maximum,
and log p within 4.5 errors. Where log_joint is not finite at the start, as where a coefficient of
age is 1.6 and the exponential overflows in float32, the fit must say so: "refused".
Writes starts.json and starts.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
PROBLEMS = ("kidney", "counts", "pound_dollar", "theophylline")
DAYS, PHI, SD, MEAN = 200, 0.8, 0.4, 1.0
GRID = 600
WRONG = 0.05  # standard errors


class Maximum(NamedTuple):
    theta: np.ndarray
    errors: np.ndarray
    log_p: float


def simulated() -> np.ndarray:
    rng = np.random.default_rng(0)
    x = SD / np.sqrt(1 - PHI**2) * rng.standard_normal()
    y = []
    for _ in range(DAYS):
        y.append(rng.poisson(np.exp(MEAN + x)))
        x = PHI * x + SD * rng.standard_normal()
    return np.array(y, float)


def exact(theta: np.ndarray, y: np.ndarray) -> float:
    """log p of the counts at (atanh phi, log sd, mu)."""
    from scipy.special import gammaln

    phi, sd, mu = np.tanh(theta[0]), np.exp(theta[1]), theta[2]
    stationary = sd / np.sqrt(1 - phi**2)
    grid = np.linspace(-7, 7, GRID) * stationary
    width = (grid[1] - grid[0]) / np.sqrt(2 * np.pi)
    move = np.exp(-0.5 * ((grid[:, None] - phi * grid) / sd) ** 2) * width / sd
    now = np.exp(-0.5 * (grid / stationary) ** 2) * width / stationary
    rows = y[:, None] * (mu + grid) - np.exp(mu + grid) - gammaln(y[:, None] + 1)
    total = 0.0
    for t, row in enumerate(rows):
        now = (move @ now if t else now) * np.exp(row - row.max())
        total += np.log(now.sum()) + row.max()
        now = now / now.sum()
    return total


def maximum_of_counts() -> Maximum:
    from scipy.optimize import minimize
    from statuses import hessian

    y = simulated()
    tight = {"xatol": 1e-6, "fatol": 1e-9}
    first = np.array([np.arctanh(PHI), np.log(SD), MEAN])
    found = minimize(lambda t: -exact(t, y), first, method="Nelder-Mead", options=tight)
    covariance = np.linalg.inv(-hessian(lambda t: exact(t, y), found.x))
    return Maximum(found.x, np.sqrt(np.diagonal(covariance)), -found.fun)


def counts(theta, x, y):
    import jax.numpy as jnp
    from jax.scipy.special import gammaln
    from jax.scipy.stats import norm

    phi, sd = jnp.tanh(theta["atanh_phi"]), jnp.exp(theta["log_sd"])
    prior = norm.logpdf(x[0], 0, sd / jnp.sqrt(1 - phi**2))
    prior += jnp.sum(norm.logpdf(x[1:], phi * x[:-1], sd))
    eta = theta["mu"] + x
    return prior + jnp.sum(y * eta - jnp.exp(eta) - gammaln(y + 1))


class Task(NamedTuple):
    model: Any
    start: Any  # zeros, or what was published
    spread: Any  # of the random starts around it
    maximum: Maximum  # in the order of jax.flatten_util


def task_of(name: str) -> Task:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    import jalax

    if name == "counts":
        model = jalax.Model(counts, jnp.zeros(DAYS), jnp.asarray(simulated()))
        names = ("atanh_phi", "log_sd", "mu")
        ones = dict.fromkeys(names, 1.0)
        return Task(model, dict.fromkeys(names, 0.0), ones, maximum_of_counts())
    found = getattr(jalax.problems, name)()
    known = found.reference
    parts = (
        np.asarray(ravel_pytree(part)[0], float) for part in (known.theta, known.standard_errors)
    )
    maximum = Maximum(*parts, known.log_evidence)
    if name == "theophylline":
        spread = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), found.theta)
        return Task(found.model, found.theta, spread | {"beta_weight": jnp.array(0.01)}, maximum)
    zeros = jax.tree.map(jnp.zeros_like, found.theta)
    return Task(found.model, zeros, jax.tree.map(jnp.ones_like, found.theta), maximum)


def fits(name: str, number: int) -> list[dict[str, Any]]:
    """From its start and `number` random ones, in this process."""
    import jax
    from jax.flatten_util import ravel_pytree

    task = task_of(name)
    (middle, unravel), (spread, _) = ravel_pytree(task.start), ravel_pytree(task.spread)
    rng, rows = np.random.default_rng(1), []
    for k in range(1 + number):
        away = spread * rng.standard_normal(middle.size) if k else np.zeros(middle.size)
        start = unravel(middle + away.astype(middle.dtype))
        began = time.perf_counter()
        row = judged(task.model, start, jax.random.key(k), task.maximum)
        rows.append({"start": k} | row | {"seconds": time.perf_counter() - began})
    return rows


def judged(model: Any, start: Any, key: Any, known: Maximum) -> dict[str, Any]:
    from jax.flatten_util import ravel_pytree

    import jalax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fit = jalax.fit(model, start, key=key, progress=jalax.callbacks.Callback())
        except ValueError as error:
            said = "log_joint" in str(error) and "finite" in str(error)
            return {"status": "refused" if said else f"error: {error}"}
    theta = np.asarray(ravel_pytree(fit.theta)[0], float)
    # log p of the fit's own theta: what its distance costs is no error of log p.
    z = (theta - known.theta) / known.errors
    error = max(fit.evidence.error, 1e-4)
    log_p_off = fit.evidence.value - known.log_p
    off, errors_off = float(np.abs(z).max()), float(abs(log_p_off) / error)
    is_right = str(fit.status) == "converged" and off < WRONG and errors_off < 4.5
    status = str(fit.status)
    return {
        "status": status,
        "off": off,
        "log p off": log_p_off,
        "errors": errors_off,
        "right": is_right,
    }


def child(name: str, bits: int, number: int) -> list[dict[str, Any]]:
    environment = os.environ | {"JAX_ENABLE_X64": str(int(bits == 64))}
    command = [sys.executable, __file__, "--child", name, "--starts", str(number)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [{"problem": name, "bits": bits} | row for row in json.loads(done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--child", choices=PROBLEMS)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(fits(asked.child, asked.starts)))
        return
    began = time.perf_counter()
    tasks = [(name, bits, asked.starts) for name in PROBLEMS for bits in (32, 64)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = list(pool.map(lambda task: child(*task), tasks))
    rows = [row for some in found for row in some]
    write(rows, asked.out, time.perf_counter() - began)


def write(rows: list[dict[str, Any]], out: Path, seconds: float) -> None:
    def largest(some: list[dict[str, Any]], name: str) -> str:
        return f"{max((row[name] for row in some if name in row), default=np.nan):.3g}"

    heads = (
        "problem",
        "bits",
        "fits",
        "right",
        "refused",
        "theta off (s.e.)",
        "log p off (errors)",
    )
    lines = ["| " + " | ".join((*heads, "seconds again")) + " |", "|---" * 8 + "|"]
    for name, bits in dict.fromkeys((row["problem"], row["bits"]) for row in rows):
        some = [row for row in rows if (row["problem"], row["bits"]) == (name, bits)]
        right = sum(row.get("right", False) for row in some)
        refused = sum(row["status"] == "refused" for row in some)
        again = np.median([row["seconds"] for row in some[1:] if "off" in row])
        cells = (name, bits, len(some), right, refused, largest(some, "off"))
        lines.append(
            "| " + " | ".join(map(str, (*cells, largest(some, "errors"), f"{again:.2g}"))) + " |"
        )
    page = [f"`python reliability/starts.py`, {seconds:.0f} s.", "", *lines, ""]
    out.mkdir(exist_ok=True)
    (out / "starts.md").write_text("\n".join(page))
    (out / "starts.json").write_text("[" + ",\n".join(map(json.dumps, rows)) + "]\n")
    print("\n".join(page))
    for row in rows:
        if not row.get("right") and row["status"] != "refused":
            print(row)


if __name__ == "__main__":
    main()
