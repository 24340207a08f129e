"""Two results that rivals have published: the one of CoinEM's paper, the one of saemix's guide.

    python benchmarks/published.py [--quick]        # published.md and .json

CoinEM (Sharrock, Dodd and Nemeth, arXiv 2305.14916), figure 1 (a): y_d ~ N(x_d, 1) with
x_d ~ N(theta, 1), d = 1..100, data drawn with theta = 1, 50 particles, 500 steps, ten data sets.
The figure draws the mean squared error of theta, against its exact maximum mean(y), over the step
size of those that need one, and a level line for CoinEM. Settings as in the authors' notebook
(experiments/toy_model), but for PGD: theta and particles move by the same step size, as in its own
paper, where the notebook gives it Adagrad. The figure goes on to 1e3; above 0.03 the two diverge.
The figure has no numbers beside it: its settings are what is reproduced, and who ends where.

SAEM: theophylline of the R package saemix, whose guide (version 3, pages 64 and 65) ends with
-2 log L = 344.8896 by importance sampling. Here SAEM with the settings of the guide: ka 1, V 20,
CL 0.5 and deviations of one to start with, 300 steps that move freely and 100 with averages of
weight 1/k, five chains a subject (saemix takes as many as make fifty). Ten keys; log L at the theta
where each ends, by jalax.log_evidence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).parent))

from _common import Row, machine, quick, write

import jalax
from jalax import rivals

LATENTS, PARTICLES, STEPS = 100, 50, 500
SIZES = np.logspace(-5, -1, 5 if quick() else 17)
DATA_SETS = KEYS = 2 if quick() else 10
CHAINS, FREE, AVERAGED = 5, 300, 100
PUBLISHED = -344.8896 / 2


def log_joint(theta, x, y):
    return -0.5 * jnp.sum((y - x) ** 2) - 0.5 * jnp.sum((x - theta) ** 2)


def squared_errors(seed: int) -> dict[str, np.ndarray]:
    """Of the last theta, by method: one for each step size, or one."""
    draw = np.random.default_rng(seed)
    y = 1 + draw.normal(size=LATENTS) + draw.normal(size=LATENTS)
    model = jalax.Model(log_joint, jnp.zeros(LATENTS), jnp.asarray(y))
    theta = 0.1 * draw.normal()
    start = jalax.Given(jnp.asarray(draw.normal(size=(PARTICLES, LATENTS))))
    how: dict[str, Any] = {"key": jax.random.key(seed), "start": start}
    how |= {"num_particles": PARTICLES, "num_steps": STEPS}
    sizes = jnp.asarray(SIZES)

    def over_sizes(algorithm, *axes):
        fits = jalax.fit_many(model, theta, algorithm=algorithm, axes=dict.fromkeys(axes, 0), **how)
        return np.array([last(fit) for fit in fits])

    def last(fit):
        path = np.asarray(fit.history.get("theta", np.nan), float)
        return np.ravel(path)[-1] if np.size(path) == STEPS else np.nan

    soul = jalax.SOUL(step_size=sizes, optimizer=jalax.Optax(optax.sgd, learning_rate=sizes))
    coin = jalax.fit(model, theta, algorithm=rivals.CoinEM(), **how)
    found = {
        "PGD": over_sizes(jalax.PGD(step_size=sizes), "step_size"),
        "SOUL": over_sizes(soul, "step_size", "optimizer"),
        "CoinEM": np.array([last(coin)]),
    }
    return {name: (theta - y.mean()) ** 2 for name, theta in found.items()}


def toy() -> list[Row]:
    every = [squared_errors(seed) for seed in range(DATA_SETS)]
    errors = {name: np.mean([one[name] for one in every], axis=0) for name in every[0]}
    rows: list[Row] = [
        {"step size": f"{size:.2g}"}
        | {name: f"{errors[name][k]:.2g}" for name in ("PGD", "SOUL")}
        | {"CoinEM": f"{errors['CoinEM'][0]:.2g}"}
        for k, size in enumerate(SIZES)
    ]
    return rows


def theophylline() -> list[Row]:
    problem = jalax.problems.theophylline()
    saem = rivals.SAEM(burn_in=FREE, exponent=1.0, num_inner=6)
    rows: list[Row] = []
    for seed in range(KEYS):
        fit = jalax.fit(
            problem.model,
            problem.theta,
            key=jax.random.key(seed),
            algorithm=saem,
            num_particles=CHAINS,
            num_steps=FREE + AVERAGED,
        )
        found = jalax.log_evidence(problem.model, fit.theta, key=jax.random.key(seed))
        rows.append({"key": seed, "log L": f"{float(found.value):.3f}", "+-": f"{found.error:.3f}"})
    return rows


def main() -> None:
    coin, saem = toy(), theophylline()
    ends = np.array([float(row["log L"]) for row in saem])
    exact = jalax.problems.theophylline().reference.log_evidence
    about = (
        f"SAEM on theophylline, {KEYS} keys: log L at its theta {ends.mean():.4f}, from "
        f"{ends.min():.4f} to {ends.max():.4f}; saemix's guide {PUBLISHED:.4f}; the maximum is "
        f"{exact:.4f}."
    )
    toys = f"CoinEM's figure 1 (a), mean squared error of theta over {DATA_SETS} data sets:"
    write("published", [about, saem, toys, coin], machine=machine(), saem=saem, coin=coin)


if __name__ == "__main__":
    main()
