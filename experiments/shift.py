"""What the shift of the particles and the limiter of the theta-step are good for.

    python experiments/shift.py [experiments/shift.md]

The automatic fit with and without each, from the models' usual start, five seeds: the lowest
effective sample size on the way (of 500), the steps until it stops by itself (at most 300), and
how far the averaged theta is from the answer before the finish mends it. Then the evidence along
a path whose end has a closed form: that of the fit itself, which is biased because theta follows
its own particles, and the same path replayed with fresh ones.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import jalax
from jalax import datasets, models

SEEDS = 5
VARIANTS = {
    "shift and limiter": {},
    "no shift": {"shift": jalax.options.Shift(0.0)},
    "no limiter": {"limiter": jalax.options.Limiter(cess=0.0)},
    "neither": {"shift": jalax.options.Shift(0.0), "limiter": jalax.options.Limiter(cess=0.0)},
}


def cbpp() -> jalax.Model:
    data = datasets.cbpp()
    family = models.Binomial(data.size)
    return models.random_intercept(data.incidence, data.covariates, data.herd, family=family)


def poisson() -> jalax.Model:
    """59 subjects with four counts each, as in the epilepsy data; simulated."""
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(59), 4)
    x = np.column_stack([np.ones(236), rng.normal(size=236), np.tile([0.0, 0, 0, 1], 59)])
    eta = x @ [1.8, 0.3, -0.2] + 0.8 * rng.normal(size=59)[subject]
    return models.random_intercept(rng.poisson(np.exp(eta)), x, subject, family=models.Poisson())


def sleepstudy():
    data = datasets.sleepstudy()
    return models.linear_mixed(data.reaction, data.covariates, data.subject)


def fit(model, seed, options):
    key, algorithm = jax.random.key(seed), jalax.JALAEM(**options)
    return jalax.fit(
        model, key=key, algorithm=algorithm, num_steps=300, progress=jalax.callbacks.Callback()
    )


def row(model, options) -> list[str]:
    """Lowest ESS, steps, and distance of the loop's theta from the answer in standard errors."""
    best = jalax.fit(model, key=jax.random.key(1000), progress=jalax.callbacks.Callback())
    answer = np.asarray(ravel_pytree(best.free)[0], float)
    errors = np.sqrt(np.diagonal(best.uncertainty.covariance))
    lowest, steps, off = [], [], []
    for seed in range(SEEDS):
        result = fit(model, seed, options)
        lowest.append(result.history["ess"].min())
        steps.append(len(result.history["ess"]))
        phase = result.state.memory.phase
        last = phase.mean if int(phase.averaged) else ravel_pytree(result.state.theta)[0]
        off.append(np.abs((np.asarray(last, float) - answer) / errors).max())
    return [f"{np.median(lowest):.0f}", f"{np.median(steps):.0f}", f"{np.median(off):.2f}"]


def evidence_rows(options) -> list[str]:
    """Mean error of the fit's own path evidence, and Z-hat / Z of one path replayed."""
    with jax.enable_x64(True):
        model = sleepstudy()
        apart = []
        for seed in range(SEEDS):
            result = fit(model, seed, options)
            apart.append(
                result.path_log_evidence - float(model.exact_log_evidence(result.state.theta))
            )
        exact = float(model.exact_log_evidence(result.state.theta))
        replayed = result.replay(jax.random.key(7), num_replicates=400)
    ratio = np.exp(replayed.value - exact)
    spread = np.std(apart, ddof=1) / np.sqrt(SEEDS)
    return [
        f"{np.mean(apart):+.2f} +- {spread:.2f}",
        f"{ratio:.3f} +- {ratio * replayed.error:.3f}",
    ]


def main() -> None:
    lines = ["| model | variant | lowest ESS | steps | theta off (s.e.) |", "|---|---|---|---|---|"]
    for name, model in (("cbpp", cbpp()), ("Poisson, 59 subjects", poisson())):
        for variant, options in VARIANTS.items():
            lines.append(f"| {name} | {variant} | " + " | ".join(row(model, options)) + " |")
            print(lines[-1], flush=True)
    lines += [
        "",
        "| sleepstudy, random intercept | path - exact | replayed Z-hat / Z |",
        "|---|---|---|",
    ]
    for variant in ("shift and limiter", "no shift"):
        lines.append(f"| {variant} | " + " | ".join(evidence_rows(VARIANTS[variant])) + " |")
        print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(
                f"`python experiments/shift.py`, {SEEDS} seeds each.\n\n" + "\n".join(lines) + "\n"
            )


if __name__ == "__main__":
    main()
