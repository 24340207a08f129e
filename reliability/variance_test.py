"""The test of a variance that is zero: are its p values what they say?

Counts in 40 regions, eight each, with a covariate whose slope is in truth the same everywhere. 500
data sets are simulated from the fit without random slopes; each is fitted without and with them
(`fit_many`), and the likelihood ratio gets the p value of `jalax.anova`: half chi-square 0, half
chi-square 1. Of 500 right ones 3 to 7.2 % are at most 0.05 (95 of 100 times), and about half are 1,
where no spread of slopes was found. Writes variance_test.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import jalax
from jalax._frontends.anova import _tail, simulated_ratios

HERE = Path(__file__).parent
REGIONS, ROWS = 40, 8


def data(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    region = np.repeat(np.arange(REGIONS), ROWS)
    x = rng.normal(size=region.size)
    rate = np.exp(1.0 + 0.5 * rng.normal(size=REGIONS)[region] + 0.3 * x)
    return {"y": rng.poisson(rate), "x": x, "region": region.astype(str)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    rows = data(0)
    ask = {"family": "poisson", "key": jax.random.key(0), "progress": jalax.callbacks.Callback()}
    smaller = jalax.mixed("y ~ x + (1|region)", rows, **ask)
    larger = jalax.mixed("y ~ x + (1|region) + (0 + x|region)", rows, **ask)
    began = time.perf_counter()
    ratios = simulated_ratios(smaller, larger, jax.random.key(1), asked.num)
    seconds = time.perf_counter() - began
    p = np.sort([_tail(0.0 if r < 1e-3 else r, (0, 1)) for r in ratios])
    steps = np.arange(1, p.size + 1) / p.size
    found = {
        "data sets": asked.num,
        "fits that arrived": int(ratios.size),
        "share of p <= 0.05": float((p <= 0.05).mean()),
        "share of p = 1": float((p >= 0.999).mean()),
        "Kolmogorov distance": float(np.max(np.maximum(steps - p, p - steps + 1 / p.size))),
        "lowest ratio": float(ratios.min()),
        "seconds": round(seconds, 1),
    }
    asked.out.mkdir(exist_ok=True)
    (asked.out / "variance_test.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = [f"| {name} | {value:.4g} |" for name, value in found.items()]
    page = ["`python reliability/variance_test.py`", "", "| | |", "|---|---|", *lines, ""]
    (asked.out / "variance_test.md").write_text("\n".join(page))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
