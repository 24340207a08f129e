"""Problems of the book by formula: python benchmarks/by_formula.py

Wine, seeds and toenail, and the children of guImmun, whose mothers are integrated out one at a time
given their community: by formula, by hand (`jalax.NestedModel`), and with a latent for each mother
of the largest community in all of them, as the book has it. Then two simulated models without a
reference: logistic slopes of the size of the Contraception data (60 districts, 1,934 rows), and a
logistic intercept with 60 numbers of theta (1,000 groups, 20,000 rows). Each has a process of its
own, which fits twice, with other keys. log p is compared with the book's reference: "off" in errors
of both. Cold is from the entry of the fit to the end of its summary, again the same call once more;
MB is the largest memory of the process, of which JAX takes about 300 before it does anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from _common import machine, write

WAYS = {
    "wine": ("wine", "formula"),
    "seeds": ("seeds", "formula"),
    "toenail": ("toenail", "formula"),
    "guImmun, by formula": ("guimmun", "formula"),
    "guImmun, by hand": ("guimmun", "by hand"),
    "guImmun, padded": ("guimmun", "padded"),
    "slopes, simulated": ("slopes", "simulated"),
    "60 numbers of theta, simulated": ("wide", "simulated"),
}


def wine_frame() -> Any:
    import pandas

    from jalax.problems import _data

    raw = _data.table("wine.csv.gz")
    frame = pandas.DataFrame({name: raw[name] for name in ("rating", "temp", "contact", "judge")})
    return frame.assign(rating=frame["rating"].astype(int))


def slopes_frame() -> Any:
    """Women of 60 districts: their age, a town or not, and the slope of age by district."""
    import pandas

    rng = np.random.default_rng(0)
    district = np.sort(rng.integers(60, size=1934))
    age, urban = rng.normal(size=district.size), rng.integers(2, size=district.size)
    effects = rng.normal(size=(60, 2)) * [0.6, 0.3]
    eta = -0.7 + 0.1 * age + 0.7 * urban + effects[district, 0] + effects[district, 1] * age
    use = (rng.random(district.size) < 1 / (1 + np.exp(-eta))).astype(int)
    return pandas.DataFrame({"use": use, "age": age, "urban": urban, "district": district})


def wide_model() -> Any:
    """59 coefficients and a spread."""
    import jalax

    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(1000), 20)
    covariates = np.column_stack([np.ones(group.size), rng.normal(size=(group.size, 58))])
    eta = covariates @ rng.normal(0, 0.2, 59) + 0.8 * rng.normal(size=1000)[group]
    y = (rng.random(group.size) < 1 / (1 + np.exp(-eta))).astype(int)
    family = jalax.models.Binomial(np.ones(y.size, int))
    return jalax.models.random_intercept(y, covariates, group, family=family)


def mothers_by_hand() -> Any:
    """Communities with one latent each, and their mothers with another."""
    import jax
    import jax.numpy as jnp

    import jalax
    from jalax.problems import _data, _guimmun

    table = _data.table("guImmun.csv.gz")
    rows = {"X": _guimmun._features(table), "y": (table["immun"] == "Y").astype(float)}
    rows |= {"mother": table["mom"], "community": table["comm"]}
    units = jalax.group_by(rows, "mother", within="community")
    normal = jax.scipy.stats.norm.logpdf

    def log_community(theta, u, data):
        return normal(u)

    def reads(theta, u, data):
        eta = data["X"] @ theta["beta"] + jnp.exp(theta["log_sd_comm"]) * u
        return eta, theta["log_sd_mom"]

    def log_mother(known, v, data):
        eta = known[0] + jnp.exp(known[1]) * v
        rows = data["y"] * eta - jnp.logaddexp(0.0, eta)
        return normal(v) + jnp.sum(jnp.where(data["mask"], rows, 0.0))

    children = {name: units.data[name] for name in ("X", "y", "mask")}
    inner = jalax.Inner(log_mother, jnp.zeros(()), children, units.within, reads=reads)
    return jalax.NestedModel(log_community, jnp.zeros(()), None, inner=inner)


def fit_of(name: str, how: str) -> Any:
    """A function of the key."""
    import jalax

    if name == "slopes":
        formula, frame = "use ~ age + urban + (age|district)", slopes_frame()
        return lambda key: jalax.mixed(formula, frame, family="binomial", key=key)
    if name == "wide":
        model = wide_model()
        return lambda key: jalax.fit(model, key=key)
    problem = jalax.problems.get(name)
    if how == "formula":
        text = "rating ~ temp + contact + (1|judge)", "ordinal"
        frame = wine_frame() if name == "wine" else problem.formula.frame()
        formula, family = text if name == "wine" else (problem.formula.text, problem.formula.family)
        return lambda key: jalax.mixed(formula, frame, family=family, key=key)
    model = problem.model if how == "padded" else mothers_by_hand()
    return lambda key: jalax.fit(model, problem.theta, key=key)


def child(name: str, how: str) -> None:
    import jax

    import jalax
    from jalax.cli.book_child import peak_memory

    fit, seconds = fit_of(name, how), []
    for key in range(2):
        began = time.perf_counter()
        result = fit(jax.random.key(key))
        str(result.summary())
        seconds.append(time.perf_counter() - began)
    row = {
        "cold, s": seconds[0],
        "again, s": seconds[1],
        "MB": peak_memory() / 1e6,
        "log p": result.log_evidence,
        "+-": result.log_evidence_error,
        "off": None,
        "beta off, s.e.": None,
        "status": str(result.status),
    }
    if how != "simulated":
        row |= compared(result, jalax.problems.get(name).reference)
    print(json.dumps(row))


def compared(result: Any, reference: Any) -> dict[str, float]:
    off = result.log_evidence - reference.log_evidence
    beta = np.asarray(reference.theta["beta"], float)
    apart = np.abs(np.abs(np.asarray(result.theta["beta"], float)) - np.abs(beta))
    return {
        "off": off / np.hypot(result.log_evidence_error, reference.error),
        "beta off, s.e.": float(np.max(apart / np.asarray(reference.standard_errors["beta"]))),
    }


def main() -> None:
    rows = []
    for label, way in WAYS.items():
        command = [sys.executable, __file__, *way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-3000:])
        rows.append({"problem": label} | json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    parts = [str(__doc__).split("\n\n", 1)[1].strip(), rows]
    write("by_formula", parts, machine=machine(), rows=rows)


if __name__ == "__main__":
    child(*sys.argv[1:3]) if len(sys.argv) > 2 else main()
