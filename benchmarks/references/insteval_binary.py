"""InstEval with binary responses at one theta, by annealed importance sampling. Not by jalax.

    python benchmarks/references/insteval_binary.py [--theta B0 B1 D DEPT S] [--jobs 2]

theta is beta and the log standard deviations of d, dept and s; by default that of references.json,
which jalax found: nobody else has a maximum, and log p there is all that is checked. Three
independent runs, of other lengths and seeds: prints log p with its error by each, and Laplace's (an
hour on two cores, three minutes on sixteen).

    8 legs of 64: -46389.548 +- .092; 8 of 96: -46389.320 +- .060; 16 of 128: -46389.405 +- .056;
    Laplace: -46411.079
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from _annealed import annealed, logistic
from insteval import read

BOOK = Path(__file__).parents[2] / "src" / "jalax" / "problems" / "data" / "references.json"


def the_books() -> list[float]:
    theta = json.loads(BOOK.read_text())["insteval_binary"]["theta"]
    return [*theta["beta"], *(theta[f"log_sd_{name}"] for name in ("d", "dept", "s"))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theta", nargs=5, type=float)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    theta = np.array(options.theta or the_books())
    X, y, (s, d, dept) = read()
    sd_d, sd_dept, sd_s = np.exp(theta[2:])
    factors = [
        (level, level.max() + 1, sd) for level, sd in ((s, sd_s), (d, sd_d), (dept, sd_dept))
    ]
    model = logistic((y > 3).astype(float), X @ theta[:2], factors)
    print(f"theta {theta}", flush=True)
    for legs, temperatures, seed in ((8, 64, 9000), (8, 96, 19000), (16, 128, 29000)):
        found = annealed(model, legs, temperatures, options.jobs, first_seed=seed)
        print(legs, temperatures, found, flush=True)
