"""Evidences of a long series and a large field: seconds and memory.

Stochastic volatility of T days (x_t = .97 x_{t-1} + .2 e_t, y_t ~ N(0, e^(x_t))), simulated, at
its true theta, by 8 legs of 256 particles in 16 steps whatever T. And a Poisson field of 100 x 100
cells whose prior has a sparse precision (kappa^2 and the Laplacian of the grid, neighbours only),
by `jalax.log_evidence` as a user would call it. Float32; a process of its own for each size.
Seconds are those of the second call, the first's less these the compilation; memory is the largest
resident set. The error is that of log p by the spread of the legs: it grows with the root of T.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import machine, write

import jalax
from jalax._evidence.rounds import average_in_z
from jalax._model import checks
from jalax._reference import leg, legs
from jalax._reference.compressed import checked_plan
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import LEVEL_2_OLD_EMITTERS, Jit
from jalax.cli.book_child import peak_memory

SIZES = (1_000, 10_000, 100_000)
SIDE, KAPPA = 100, 0.3
PHI, SD = 0.97, 0.2
LEGS, STEPS = 8, 16
LOG_2PI = float(np.log(2 * np.pi))


def volatility(theta, x, y):
    first = -0.5 * (1 - PHI**2) * (x[0] / SD) ** 2 + 0.5 * np.log(1 - PHI**2)
    steps = -0.5 * jnp.sum((x[1:] - PHI * x[:-1]) ** 2) / SD**2
    log_var = theta + x
    likelihood = -0.5 * jnp.sum(y**2 * jnp.exp(-log_var) + log_var + LOG_2PI)
    return first + steps - x.size * (np.log(SD) + 0.5 * LOG_2PI) + likelihood


def series(days: int) -> jalax.Model:
    rng = np.random.default_rng(0)
    noise = SD * rng.standard_normal(days)
    x = np.empty(days)
    x[0] = noise[0] / np.sqrt(1 - PHI**2)
    for t in range(1, days):
        x[t] = PHI * x[t - 1] + noise[t]
    y = np.exp(x / 2) * rng.standard_normal(days)
    neighbours = np.arange(1, days), np.arange(days - 1)
    return jalax.Model(volatility, jnp.zeros(days), jnp.asarray(y), structure=neighbours)


def field(theta, x, data):
    """The constant of the prior is left out: it does not depend on x or on the counts."""
    x = x.reshape(SIDE, SIDE)
    apart = jnp.sum((x[1:] - x[:-1]) ** 2) + jnp.sum((x[:, 1:] - x[:, :-1]) ** 2)
    prior = -0.5 * jnp.exp(-2 * theta["log_sd"]) * (apart + KAPPA**2 * jnp.sum(x**2))
    eta = theta["mean"] + x
    return prior + jnp.sum(data * eta - jnp.exp(eta))


def grid() -> jalax.Model:
    rng = np.random.default_rng(0)
    place = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    smooth = np.sin(np.arange(SIDE) / 9.0)
    counts = rng.poisson(np.exp(1.0 + 0.8 * smooth[:, None] * smooth))
    rows = np.concatenate([place[1:].ravel(), place[:, 1:].ravel()])
    cols = np.concatenate([place[:-1].ravel(), place[:, :-1].ravel()])
    data = jnp.asarray(counts, jnp.float32)
    return jalax.Model(field, jnp.zeros(SIDE * SIDE), data, structure=(rows, cols))


def by_legs(days: int) -> dict[str, Any]:
    """Always as many legs, particles and steps."""
    model = checks.prepare_model(series(days))
    theta = jnp.zeros(())
    model = model.replace(plan=checked_plan(model, theta), structure=None)
    path = leg.Path(jnp.asarray(STEPS, jnp.int32), jnp.zeros((), jnp.int32))
    program = Jit(legs.several, LEVEL_2_OLD_EMITTERS)

    def run(seed: int) -> Any:
        keys = jax.random.split(jax.random.key(seed), (1, LEGS))
        return jax.block_until_ready(program(keys, model, theta, jnp.zeros((1, days)), path, LEGS))

    with one_thread():
        times = []
        for seed in (0, 1):
            began = time.perf_counter()
            found = run(seed)
            times.append(time.perf_counter() - began)
    groups, variance, _ = average_in_z(np.asarray(found.log_p[..., 0].T, float))
    return row(f"series of {days:,}", times, float(groups.sum()), float(variance.sum() ** 0.5))


def by_log_evidence() -> dict[str, Any]:
    model, theta, times = grid(), {"mean": 1.0, "log_sd": -0.5}, []
    for seed in (0, 1):
        began = time.perf_counter()
        evidence = jalax.log_evidence(model, theta, key=jax.random.key(seed))
        times.append(time.perf_counter() - began)
    return row(f"field of {SIDE} x {SIDE}", times, evidence.value, evidence.error)


def row(what: str, times: list[float], value: float, error: float) -> dict[str, Any]:
    first, second = times
    return {
        "what": what,
        "seconds": second,
        "compilation (s)": max(first - second, 0.0),
        "memory (MB)": peak_memory() / 1e6,
        "log p": value,
        "error": error,
    }


def exponent(rows: list[dict[str, Any]], name: str) -> float:
    """From one size to the next, ten times as large: the steepest."""
    values = np.array([row[name] for row in rows])
    return float(np.max(np.diff(np.log10(values))))


def main() -> None:
    rows = []
    for size in (*SIZES, "field"):
        child = subprocess.run(
            [sys.executable, __file__, "--size", str(size)], capture_output=True, text=True
        )
        if child.returncode:
            sys.exit(child.stderr)
        rows.append(json.loads(child.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    said = (
        f"From T to 10 T the seconds grow with an exponent of {exponent(rows[:3], 'seconds'):.2f} "
        f"at most, from 10,000 to 100,000 of {exponent(rows[1:3], 'seconds'):.2f}; the memory, "
        f"Python and compiler included, of {exponent(rows[:3], 'memory (MB)'):.2f}."
    )
    write("long_series", [__doc__.strip(), said, rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    if "--size" in sys.argv:
        asked = sys.argv[-1]
        print(json.dumps(by_log_evidence() if asked == "field" else by_legs(int(asked))))
    else:
        main()
