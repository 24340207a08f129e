"""Is the status of a fit the right word? A thousand fits, against exact likelihoods.

Twelve models, four families with three true spreads between groups: small data, so that many of
the likelihoods have a weak maximum in the spread, and many none but at zero. The likelihood of each
data set is known by quadrature (of the Gaussian family in closed form), its maximum from several
starts. A fit says "converged", or another word, an alarm; right is a theta within 0.15 standard
errors of the maximum in every number, and log p within 4.5 errors. Where the maximum is at a spread
of zero the right word is "boundary". Where the inner maximum is less than 0.05 above the value at
zero either word counts. Writes statuses.json and statuses.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
FAMILIES = ("gaussian", "poisson", "binomial", "bernoulli")
SPREADS = (0.15, 0.4, 1.0)
GROUPS, ROWS, TRIALS = 20, 5, 4
NODE = np.linspace(-8.0, 8.0, 801)
LOG_WEIGHT = -(NODE**2) / 2 - np.log(np.exp(-(NODE**2) / 2).sum())
WRONG, EITHER = 0.15, 0.05  # standard errors; log p between the inner maximum and zero
NEAREST = -4.5  # of log sd: below it an inner maximum cannot be told from zero


class Truth(NamedTuple):
    kind: str  # "interior", "boundary" or "either"
    theta: np.ndarray  # the inner maximum; mean, log sd, and log sigma of the Gaussian family
    log_p: float
    errors: np.ndarray
    at_zero: float
    error_at_zero: float  # of the mean, with a spread of zero


def simulate(family: str, spread: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, FAMILIES.index(family), int(100 * spread)])
    eta = 0.3 + spread * rng.normal(size=(GROUPS, 1)) + np.zeros((GROUPS, ROWS))
    if family == "gaussian":
        return eta + rng.normal(size=eta.shape)
    if family == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    return rng.binomial(_trials(family), 1 / (1 + np.exp(-eta))).astype(float)


def _trials(family: str) -> int:
    return TRIALS if family == "binomial" else 1


def exact(family: str, y: np.ndarray) -> Callable[[np.ndarray], float]:
    """log p as a function of mean, log sd and, of the Gaussian family, log sigma."""
    from scipy.special import gammaln, logsumexp

    if family == "gaussian":

        def gaussian(theta: np.ndarray) -> float:
            mean, between, within = theta[0], np.exp(2 * theta[1]), np.exp(2 * theta[2])
            total = within + ROWS * between
            centred = y - mean
            square = (centred**2).sum() / within
            square -= between / (within * total) * (centred.sum(axis=1) ** 2).sum()
            log_det = GROUPS * ((ROWS - 1) * np.log(within) + np.log(total))
            return -0.5 * (square + log_det + y.size * np.log(2 * np.pi))

        return gaussian
    n = _trials(family)
    constant = -gammaln(y + 1).sum()
    if family != "poisson":
        constant += gammaln(n + 1) * y.size - gammaln(n - y + 1).sum()
    sums = y.sum(axis=1)

    def by_quadrature(theta: np.ndarray) -> float:
        eta = theta[0] + np.exp(theta[1]) * NODE
        each = np.exp(eta) if family == "poisson" else n * np.logaddexp(0, eta)
        log_f = np.outer(sums, eta) - ROWS * each + LOG_WEIGHT
        return float(logsumexp(log_f, axis=1).sum() + constant)

    return by_quadrature


def hessian(function: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-3) -> np.ndarray:
    step = h * np.eye(at.size)
    out = np.empty((at.size, at.size))
    for i, a in enumerate(step):
        for j, b in enumerate(step):
            corners = function(at + a + b) + function(at - a - b)
            out[i, j] = (corners - function(at + a - b) - function(at - a + b)) / (4 * h * h)
    return out


def truth(family: str, y: np.ndarray) -> Truth:
    from scipy import optimize

    log_p = exact(family, y)
    rest = [0.0] if family == "gaussian" else []
    best = None
    for start in (-2.5, -1.5, -0.7, 0.0):
        bounds = [(-6, 6), (NEAREST - 1, 3), (-4, 4)][: 2 + len(rest)]
        first = np.array([0.3, start, *rest])
        found = optimize.minimize(lambda t: -log_p(t), first, bounds=bounds, method="L-BFGS-B")
        found = optimize.minimize(
            lambda t: -log_p(t),
            found.x,
            method="Nelder-Mead",
            options={"xatol": 1e-7, "fatol": 1e-10},
        )
        inside = found.x[1] > NEAREST
        if inside and (best is None or -found.fun > -best.fun):
            best = found
    zero = [-12.0]

    def without(t: np.ndarray) -> float:
        return log_p(np.array([t[0], *zero, *t[1:]]))

    start = np.array([0.3, *rest])
    at_zero = optimize.minimize(lambda t: -without(t), start, method="BFGS")
    error_at_zero = float(np.sqrt(np.linalg.inv(-hessian(without, at_zero.x))[0, 0]))
    if best is None or -best.fun <= -at_zero.fun + 1e-7:
        nothing = np.full(2 + len(rest), np.nan)
        return Truth("boundary", nothing, np.nan, nothing, -at_zero.fun, error_at_zero)
    errors = np.sqrt(np.diagonal(np.linalg.inv(-hessian(log_p, best.x))))
    kind = "interior" if -best.fun > -at_zero.fun + EITHER else "either"
    return Truth(kind, best.x, -best.fun, errors, -at_zero.fun, error_at_zero)


def model(family: str, y: np.ndarray) -> Any:
    import jax
    import jax.numpy as jnp

    import jalax

    n = float(_trials(family))

    def log_joint(theta, x, data):
        eta = theta["mean"] + jnp.exp(theta["log_sd"]) * x
        norm = jax.scipy.stats.norm.logpdf
        if family == "gaussian":
            return norm(x) + jnp.sum(norm(data, eta, jnp.exp(theta["log_sigma"])))
        log_factorial = jax.scipy.special.gammaln
        if family == "poisson":
            return norm(x) + jnp.sum(data * eta - jnp.exp(eta) - log_factorial(data + 1))
        choose = log_factorial(n + 1) - log_factorial(data + 1) - log_factorial(n - data + 1)
        return norm(x) + jnp.sum(data * eta - n * jax.nn.softplus(eta) + choose)

    return jalax.GroupedModel(log_joint, 0.0, jnp.asarray(y))


def judged(family: str, spread: float, seed: int) -> dict[str, Any]:
    import jax

    import jalax

    y = simulate(family, spread, seed)
    known = truth(family, y)
    names = ("mean", "log_sd", "log_sigma")[: 3 if family == "gaussian" else 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = dict.fromkeys(names, 0.0)
        quiet = jalax.callbacks.Callback()
        fit = jalax.fit(model(family, y), start, key=jax.random.key(seed), progress=quiet)
    theta = np.array([float(fit.theta[name]) for name in names])
    errors = fit.standard_errors()
    off = float(np.max(np.abs(theta - known.theta) / known.errors))
    evidence = fit.evidence
    log_p_off = (evidence.value - known.log_p) / max(evidence.error, 1e-4)
    at_zero_off = (evidence.value - known.at_zero) / max(evidence.error, 1e-4)
    near = bool(off < WRONG and abs(log_p_off) < 4.5)
    rest = float(errors["mean"]) / known.error_at_zero - 1
    return {
        "family": family,
        "spread": spread,
        "seed": seed,
        "truth": known.kind,
        "status": str(fit.status),
        "off": off,
        "log p off": float(log_p_off),
        "log p off zero": float(at_zero_off),
        "mean's error off": rest,
        "near": near,
        "verdict": verdict(known.kind, str(fit.status), near, abs(at_zero_off) < 4.5, rest),
    }


def verdict(kind: str, status: str, near: bool, at_zero: bool, rest: float) -> str:
    """ "right", or what is wrong with the word."""
    if status == "converged":
        return "right" if near and kind != "boundary" else "wrong and unalarmed"
    if kind == "interior":
        return "alarmed and right" if near else "alarmed and wrong"
    if status != "boundary":
        return "alarmed, not as a boundary"
    # Its log p is that of zero, or of the inner maximum where that is hardly higher.
    return "right" if (at_zero or near) and abs(rest) < 0.05 else "boundary with wrong numbers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=84, help="data sets of each of 12 models")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    began = time.perf_counter()
    tasks = [(f, s, k) for f in FAMILIES for s in SPREADS for k in range(asked.seeds)]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(judged, *zip(*tasks, strict=True), chunksize=asked.seeds // 4 or 1))
    write(rows, asked.out, time.perf_counter() - began)


def write(rows: list[dict[str, Any]], out: Path, seconds: float) -> None:
    verdicts = sorted({row["verdict"] for row in rows})
    heads = ["family", "true spread", "interior", "either", "boundary", *verdicts]
    lines = []
    for family in FAMILIES:
        for spread in SPREADS:
            some = [r for r in rows if r["family"] == family and r["spread"] == spread]
            kinds = [sum(r["truth"] == k for r in some) for k in ("interior", "either", "boundary")]
            counts = [sum(r["verdict"] == v for r in some) for v in verdicts]
            lines.append([family, spread, *kinds, *counts])
    total = ["all", "", *(sum(int(line[k]) for line in lines) for k in range(2, len(heads)))]
    table = [heads, ["---"] * len(heads), *lines, total]
    page = [f"`python reliability/statuses.py`: {len(rows)} fits, {seconds:.0f} s.", ""]
    page += ["| " + " | ".join(map(str, line)) + " |" for line in table]
    out.mkdir(exist_ok=True)
    (out / "statuses.md").write_text("\n".join(page) + "\n")
    short = [{k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    (out / "statuses.json").write_text("[" + ",\n".join(map(json.dumps, short)) + "]\n")
    print("\n".join(page))
    for row in rows:
        if row["verdict"] != "right":
            print(row)


if __name__ == "__main__":
    main()
