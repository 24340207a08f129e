"""What follows a fit of `jalax.mixed`, beside R: python benchmarks/after_the_fit.py

Each row of the table is one quantity of one problem: its size, the largest difference from R, and
where R puts modes of the random effects in and we take means, that from quadrature at our theta.

To add a row: an entry of QUANTITIES (all problems) or of a problem's `more`.
"""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from _common import Row, machine, write
from scipy.special import expit, logsumexp
from scipy.stats import binom

import jalax
from jalax import predictions, residuals

HERE = Path(__file__).parent
MEAN, MODE = predictions.Mean(), predictions.Mode()
RANEF = "as.matrix(ranef(m)[[1]])[, 1]"
CONDITIONAL_SD = "sqrt(attr(ranef(m, condVar = TRUE)[[1]], 'postVar')[1, 1, ])"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A row of the table."""

    name: str
    r: str  # an expression in `m` (lme4), `t` (glmmTMB), `data`, `new`, and rows before
    ours: Callable[[Any, pd.DataFrame], Any]  # of the result and the new rows
    exact: Callable[[dict[str, np.ndarray]], Any] | None = None  # of what quadrature found


@dataclasses.dataclass(frozen=True)
class Problem:
    formula: str
    family: str
    data: Callable[[], pd.DataFrame]
    fits: dict[str, str]  # of R: names, and calls
    factors: tuple[str, ...]  # columns that are no numbers
    new: dict[str, list]
    more: tuple[Quantity, ...] = ()


def columns(name: str, **options) -> Callable[[Any, pd.DataFrame], np.ndarray]:
    """A column of `predict` for the rows of the fit."""
    return lambda m, new: m.predict(**options)[name]


def effects(name: str, at: Any = MEAN) -> Callable[[Any, pd.DataFrame], np.ndarray]:
    """A column of `random_effects`, level by level as R sorts them."""

    def of(m, new):
        frame = next(iter(m.random_effects(at=at).values()))
        return frame[name].loc[sorted(frame.index, key=_as_r)]

    return of


def _as_r(label: str) -> tuple[int, str]:
    """R reads numbers as numbers, and sorts them so."""
    return (int(label), "") if label.isdigit() else (0, label)


def limits(*names: str) -> Quantity:
    """Profile limits of these numbers of theta, as R orders them, in widths of their interval."""

    def ours(m, new):
        ends = np.array([m.profile(name).interval() for name in names])
        return (ends / np.diff(ends)).T.ravel()

    r = "{ci <- confint(m, quiet = TRUE); as.vector(ci / (ci[, 2] - ci[, 1]))}"
    return Quantity("profile limits, in widths", r, ours)


def ratio(without: str, formula: str) -> Quantity:
    """Of the fit without a term and the fit itself."""

    def ours(m, new):
        asked = {"family": m.mixed.family, "key": jax.random.key(1)}
        return [jalax.anova(jalax.mixed(formula, m.mixed.design.frame, **asked), m).rows[1].ratio]

    r = f"anova(update(m, . ~ . - {without}), m)$Chisq[2]"
    return Quantity(f"anova without {without}", r, ours)


def counts() -> pd.DataFrame:
    """Data of our own: 40 plots of six counts with a covariate."""
    rng = np.random.default_rng(0)
    plot, x = np.repeat(np.arange(40), 6), rng.normal(size=240)
    mean = np.exp(0.5 + 0.6 * rng.normal(size=40)[plot] + 0.3 * x)
    return pd.DataFrame({"y": rng.poisson(mean), "x": x, "plot": [f"p{i}" for i in plot]})


def seconds(m: Any, new: Any) -> list[float]:
    """Of 500 bootstraps, once they are compiled."""
    m.bootstrap(jax.random.key(2), 500)
    began = time.perf_counter()
    m.bootstrap(jax.random.key(3), 500)
    return [time.perf_counter() - began]


LINK, POPULATION, NEW = predictions.Link(), predictions.Population(), predictions.ConditionalOrNew()
QUANTITIES = (
    Quantity("theta: beta", "fixef(m)", lambda m, new: m.theta["beta"]),
    Quantity(
        "standard errors of beta",
        "sqrt(diag(as.matrix(vcov(m))))",
        lambda m, new: np.asarray(m.standard_errors()["beta"]),
    ),
    Quantity("random effects, modes", RANEF, effects("Intercept", MODE)),
    Quantity("sd by their curvature", CONDITIONAL_SD, effects("Intercept sd", MODE)),
    Quantity("random effects, means", RANEF, effects("Intercept"), lambda q: q["mean"]),
    Quantity("their sd", CONDITIONAL_SD, effects("Intercept sd"), lambda q: q["sd"]),
    Quantity("predict, link", "predict(m)", columns("estimate", scale=LINK), lambda q: q["eta"]),
    Quantity(
        "predict, link: its error",
        "predict(t, se.fit = TRUE)$se.fit",
        columns("std. error", scale=LINK),
    ),
    Quantity(
        "predict, response",
        "predict(m, type = 'response')",
        columns("estimate"),
        lambda q: q["share"],
    ),
    Quantity(
        "predict, re.form = NA",
        "predict(m, re.form = NA, type = 'response')",
        columns("estimate", effects=POPULATION),
    ),
    Quantity(
        "predict, re.form = NA: its error",
        "sqrt(rowSums((model.matrix(m) %*% as.matrix(vcov(m))) * model.matrix(m)))",
        columns("std. error", effects=POPULATION, scale=LINK),
    ),
    Quantity(
        "predict, a new level, link",
        "predict(m, new, allow.new.levels = TRUE)",
        lambda m, new: m.predict(new, effects=NEW, scale=LINK)["estimate"],
    ),
    Quantity(
        "predict, a new level: its error",
        "predict(t, new, allow.new.levels = TRUE, se.fit = TRUE)$se.fit",
        lambda m, new: m.predict(new, effects=NEW, scale=LINK)["std. error"],
    ),
    Quantity(
        "residuals, response",
        "residuals(m, 'response')",
        lambda m, new: m.residuals(),
        lambda q: q["residual"],
    ),
    Quantity(
        "residuals, Pearson",
        "residuals(m, 'pearson') / sigma(m)",
        lambda m, new: m.residuals(residuals.Pearson()),
    ),
    Quantity(
        "residuals, deviance",
        "residuals(m, 'deviance')",
        lambda m, new: m.residuals(residuals.Deviance()),
    ),
)


PROBLEMS = {
    "sleepstudy": Problem(
        "reaction ~ days + (days|subject)", "gaussian",
        lambda: jalax.datasets.sleepstudy().to_frame(),
        {"m": "lmer(reaction ~ days + (days | subject), data, REML = FALSE)",
         "t": "glmmTMB(reaction ~ days + (days | subject), data)"},
        ("subject",), {"subject": ["308", "999"], "days": [3.0, 11.0]},
        (Quantity("random slopes", "as.matrix(ranef(m)[[1]])[, 2]", effects("days")),
         Quantity("their sd", "sqrt(attr(ranef(m, condVar = TRUE)[[1]], 'postVar')[2, 2, ])",
                  effects("days sd")),
         limits("sd Intercept | subject", "cor Intercept, days | subject", "sd days | subject",
                "sigma", "Intercept", "days"),
         ratio("days", "reaction ~ 1 + (days|subject)")),
    ),
    "cbpp": Problem(
        "p(incidence, size) ~ period + (1|herd)", "binomial",
        lambda: jalax.datasets.cbpp().to_frame(),
        {"m": "glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), data, "
              "binomial, nAGQ = 25)",
         "t": "glmmTMB(cbind(incidence, size - incidence) ~ period + (1 | herd), data, "
              "binomial)"},
        ("herd", "period"), {"herd": ["1", "99"], "period": ["2", "3"]},
        (Quantity("marginal means, logit", "c(b <- fixef(m)[1], b + fixef(m)[-1])",
                  lambda m, new: m.marginal_means("period", scale=LINK)["estimate"]),
         Quantity("their errors", "{L <- cbind(1, rbind(0, diag(3))); "
                  "sqrt(diag(L %*% as.matrix(vcov(m)) %*% t(L)))}",
                  lambda m, new: m.marginal_means("period", scale=LINK)["std. error"]),
         limits("sd Intercept | herd", "Intercept", "period[2]", "period[3]", "period[4]"),
         ratio("period", "p(incidence, size) ~ 1 + (1|herd)"),
         Quantity("seconds of 500 bootstraps", "system.time(bootMer(m, fixef, nsim = 500))[[3]]",
                  seconds)),
    ),
    "seeds": Problem(
        "p(n, N) ~ x1 * x2 + (1|plate)", "binomial",
        lambda: jalax.problems.seeds().formula.frame(),
        {"m": "glmer(cbind(n, N - n) ~ x1 * x2 + (1 | plate), data, binomial, nAGQ = 25)",
         "t": "glmmTMB(cbind(n, N - n) ~ x1 * x2 + (1 | plate), data, binomial)"},
        ("plate",), {"plate": ["1", "99"], "x1": [0, 1], "x2": [1, 1]},
        (limits("sd Intercept | plate", "Intercept", "x1", "x2", "x1:x2"),
         ratio("x1:x2", "p(n, N) ~ x1 + x2 + (1|plate)")),
    ),
    "toenail": Problem(
        "outcome ~ treated * time + (1|patientID)", "binomial",
        lambda: jalax.problems.toenail().formula.frame(),
        {"m": "glmer(outcome ~ treated * time + (1 | patientID), data, binomial, nAGQ = 25)",
         "t": "glmmTMB(outcome ~ treated * time + (1 | patientID), data, binomial)"},
        ("patientID",), {"patientID": ["1", "9999"], "treated": [0.0, 1.0], "time": [3.0, 3.0]},
        (limits("sd Intercept | patientID", "Intercept", "treated", "time", "treated:time"),
         ratio("treated:time", "outcome ~ treated + time + (1|patientID)")),
    ),
    "counts": Problem(
        "y ~ x + (1|plot)", "poisson", counts,
        {"m": "glmer(y ~ x + (1 | plot), data, poisson, nAGQ = 25)",
         "t": "glmmTMB(y ~ x + (1 | plot), data, poisson)"},
        ("plot",), {"plot": ["p1", "p99"], "x": [0.5, -1.0]},
        (limits("sd Intercept | plot", "Intercept", "x"), ratio("x", "y ~ 1 + (1|plot)")),
    ),
}  # fmt: skip


def quadrature(m: Any) -> dict[str, np.ndarray]:
    """Of binomial rows with one random intercept: the posterior on a grid, at our theta."""
    design, theta = m.mixed.design, m.theta
    (block,) = design.blocks
    grid = np.linspace(-9, 9, 1801) * float(theta["sd"][block.name][0])
    eta = (design.X @ np.asarray(theta["beta"], float))[:, None] + grid
    size = np.ones_like(design.y) if design.size is None else design.size
    rows = binom.logpmf(design.y[:, None], size[:, None], expit(eta))
    log_p = np.tile(-0.5 * (grid / float(theta["sd"][block.name][0])) ** 2, (len(block.labels), 1))
    np.add.at(log_p, block.index, rows)
    p = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))
    mean = p @ grid
    order = sorted(range(len(block.labels)), key=lambda i: _as_r(block.labels[i]))
    share = np.sum(p[block.index] * expit(eta), axis=1)
    sd = np.sqrt(p @ grid**2 - mean**2)
    at_mean = eta[:, 0] - grid[0] + mean[block.index]
    of_rows = {"eta": at_mean, "share": share, "residual": design.y / size - share}
    return {"mean": mean[order], "sd": sd[order], **of_rows}


def answers_of_r(frames: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> dict[tuple, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, problem in PROBLEMS.items():
            data, new = frames[name]
            data.to_csv(Path(folder, f"{name}.csv"), index=False)
            new.to_csv(Path(folder, f"{name}-new.csv"), index=False)
            quantities = (*QUANTITIES, *problem.more)
            calls = {f"f{i}": _as_factor(column) for i, column in enumerate(problem.factors)}
            calls |= problem.fits | {f"q{i}": q.r for i, q in enumerate(quantities)}
            lines += [f"{name}\t{key}\t{call}" for key, call in calls.items()]
        Path(folder, "calls.txt").write_text("\n".join(lines) + "\n")
        subprocess.run(["Rscript", str(HERE / "after_the_fit.R"), folder], check=True)
        with Path(folder, "answers.csv").open() as file:
            return {(p, q): np.array(values, float) for p, q, *values in _rows(file)}


def _as_factor(column: str) -> str:
    """R reads labels as numbers; new rows may have levels of their own."""
    both = f"factor(c(as.character(data${column}), as.character(new${column})))"
    new = f"new${column} <- {both}[-seq_len(nrow(data))]"
    return f"{{data${column} <- factor(data${column}); {new}}}"


def _rows(file) -> list[list[str]]:
    return [["nan" if cell == "NA" else cell for cell in row] for row in csv.reader(file)]


def row_of(name: str, quantity: Quantity, ours: np.ndarray, r: np.ndarray, known: dict) -> Row:
    row = {"problem": name, "quantity": quantity.name, "size": np.sqrt(np.mean(ours**2))}
    row["off R"] = np.max(np.abs(ours - r)) if r.shape == ours.shape else np.nan  # R failed
    if quantity.ours is seconds:
        row["off R"] = f"R: {r[0]:.3g} s"
    row["off quadrature"] = ""
    if known and quantity.exact is not None:
        row["off quadrature"] = np.max(np.abs(ours - quantity.exact(known)))
    return {key: cell if isinstance(cell, str) else f"{cell:.2g}" for key, cell in row.items()}


def main() -> None:
    frames = {n: (p.data(), pd.DataFrame(p.new)) for n, p in PROBLEMS.items()}
    theirs, rows = answers_of_r(frames), []
    for name, problem in PROBLEMS.items():
        data, new = frames[name]
        m = jalax.mixed(problem.formula, data, family=problem.family, key=jax.random.key(0))
        known = quadrature(m) if problem.family == "binomial" else {}
        for i, quantity in enumerate((*QUANTITIES, *problem.more)):
            ours = np.asarray(quantity.ours(m, new), float)
            rows.append(row_of(name, quantity, ours, theirs[name, f"q{i}"], known))
            print(*rows[-1].values(), sep="\t", flush=True)
    write("after_the_fit", [__doc__.strip(), rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
