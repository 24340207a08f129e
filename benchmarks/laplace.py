"""How wrong is Laplace's approximation for crossed effects, at R's maximum and at the exact one?

glmmTMB maximises Laplace's log-likelihood. Its answer is compared with the exact log p at the same
theta (`jalax.log_evidence`), and so is its Laplace's log-likelihood at the exact maximum. "theta
off" is in standard errors, where the reference has them. Names of problems as arguments; by default
VerbAgg (316 + 24 latents) and InstEval's binary ratings (4,114). Needs R with glmmTMB (Debian:
r-cran-glmmtmb). Writes laplace.json and laplace.md beside this file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import jax
import numpy as np
from _book_peers import table_of
from _common import HERE, machine, write
from jax.flatten_util import ravel_pytree

import jalax
from jalax import problems

SDS = {"verbagg": ("id", "item"), "insteval_binary": ("s", "d", "dept")}  # as in the formula


def numbers_of(theta: Any, name: str) -> list[float]:
    """In glmmTMB's order."""
    beta = np.asarray(theta["beta"], float)
    return [*beta, *(float(theta[f"log_sd_{factor}"]) for factor in SDS[name])]


def theta_of(numbers: list[float], name: str) -> dict[str, Any]:
    count = len(SDS[name])
    sds = zip(SDS[name], numbers[-count:], strict=True)
    return {"beta": np.array(numbers[:-count])} | {f"log_sd_{key}": sd for key, sd in sds}


def said_by_r(name: str, call: str, numbers: list[float]) -> dict[str, list[float]]:
    rscript = shutil.which("Rscript")
    if rscript is None:
        sys.exit("there is no Rscript: apt-get install r-base-core r-cran-glmmtmb.")
    command = [rscript, str(HERE / "laplace.R"), str(table_of(name)), call]
    command.append(",".join(map(repr, numbers)))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return {first: [float(number) for number in rest] for first, *rest in lines}


def row_of(name: str) -> dict[str, Any]:
    problem = problems.get(name)
    exact = problem.reference
    ours = [float(number) for number in numbers_of(exact.theta, name)]
    r = said_by_r(name, problem.peers["glmmTMB"], ours)
    theirs = jax.tree.map(lambda leaf: np.asarray(leaf, float), theta_of(r["own"], name))
    there = jalax.log_evidence(problem.model, theirs, key=jax.random.key(0))
    here = jalax.log_evidence(problem.model, exact.theta, key=jax.random.key(1))
    apart = ravel_pytree(theirs)[0] - ravel_pytree(exact.theta)[0]
    if exact.standard_errors is not None:
        apart = apart / ravel_pytree(exact.standard_errors)[0]
    return {
        "problem": name,
        "glmmTMB, s": r["seconds"][0],
        "its log p": r["at_own"][0],
        "exact there": there.value,
        "+-": there.error,
        "Laplace off there": r["at_own"][0] - there.value,
        "exact maximum": exact.log_evidence,
        "Laplace off at it": r["at_other"][0] - exact.log_evidence,
        "by jalax": (here.laplace or np.nan) - exact.log_evidence,
        "theta off": float(np.abs(apart).max()),
    }


def main() -> None:
    rows = []
    for name in sys.argv[1:] or SDS:
        rows.append(row_of(name))
        print(rows[-1], flush=True)
    write("laplace", [rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
