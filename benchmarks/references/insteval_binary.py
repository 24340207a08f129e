"""InstEval with binary responses at one theta, by annealed importance sampling. Not by jalax.

    python benchmarks/references/insteval_binary.py [--theta B0 B1 D DEPT S] [--jobs 2]

theta is beta and the log standard deviations of d, dept and s; by default that of Laplace's maximum
in references.json. Two independent runs, of other lengths and seeds: prints log p with its error by
each, and Laplace's (20 minutes on two cores).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from _annealed import annealed, logistic
from insteval import read

BOOK = Path(__file__).parents[2] / "src" / "jalax" / "problems" / "data" / "references.json"


def laplaces() -> list[float]:
    theta = json.loads(BOOK.read_text())["insteval_binary"]["theta"]
    return [*theta["beta"], *(theta[f"log_sd_{name}"] for name in ("d", "dept", "s"))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theta", nargs=5, type=float)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    theta = np.array(options.theta or laplaces())
    X, y, (s, d, dept) = read()
    sd_d, sd_dept, sd_s = np.exp(theta[2:])
    factors = [
        (level, level.max() + 1, sd) for level, sd in ((s, sd_s), (d, sd_d), (dept, sd_dept))
    ]
    model = logistic((y > 3).astype(float), X @ theta[:2], factors)
    print(f"theta {theta}", flush=True)
    for legs, temperatures, seed in ((8, 64, 9000), (4, 128, 19000)):
        found = annealed(model, legs, temperatures, options.jobs, first_seed=seed)
        print(legs, temperatures, found, flush=True)
