"""Salamander mating: crossed females and males, six independent blocks of ten and ten.

logit P(mate) = beta[cross] + exp(log_sd_female) u_female + exp(log_sd_male) u_male, the crosses in
the order RR, RW, WR, WW. In each block the males are integrated by importance sampling on Sobol
points, the females inside by adaptive Gauss-Hermite; the second route changes the two.

    python benchmarks/references/salamander.py --jobs 16
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from _crossed import Crossed, crossed
from _crossed_fit import Sizes, evidence, fit
from _files import arguments, codes, read, record
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

START = np.array([1.0, 0.3, -1.9, 1.0, 0.1, 0.1])


def blocks(folder: Path | None, inner: str, outer: str) -> list[Crossed]:
    """The connected parts of the graph of pairs that met."""
    table = read("salamander_mating", folder)
    cross = np.eye(4)[codes(table["Cross"])]
    first, second, mate = codes(table[inner]), codes(table[outer]), table["Mate"].astype(float)
    size = first.max() + 1
    edges = coo_matrix((np.ones(first.size), (first, size + second)), (2 * size, 2 * size))
    label = connected_components(edges, directed=False)[1][first]
    parts = []
    for number in np.unique(label):
        rows = label == number
        a, b = codes(first[rows].astype(str)), codes(second[rows].astype(str))
        empty = np.zeros((b.max() + 1, 0))
        parts.append(crossed(a, b, mate[rows], x=cross[rows], w=empty))
    return parts


def main() -> None:
    options, began = arguments(__doc__ or ""), time.time()
    more = int(np.round(np.log2(options.effort)))
    sizes = Sizes(first=9, power=12 + more, rounds=16, points=21)
    problems = blocks(options.data, "Female", "Male")
    estimate, share = fit(problems, START, sizes, options.jobs)
    theta, errors = estimate.theta, estimate.standard_errors
    swapped = blocks(options.data, "Male", "Female")
    book = np.array([
        1.01769289262708, 0.32124378051674085, -1.9405221219099755, 0.9969018471206854,
        0.1616999570371561, 0.10779548381907474,
    ])  # fmt: skip
    routes = {
        "males sampled, females inside": {
            "log_evidence": estimate.log_evidence, "error": estimate.error,
            "effective_share": share,
        },
        "females sampled, males inside": evidence(
            swapped, np.append(theta[:4], theta[[5, 4]]), sizes, options.jobs
        ),
        "the first, Student t, 31 points inside": evidence(
            problems, theta, sizes._replace(points=31, rounds=8, freedom=10.0), options.jobs
        ),
        "the first, at the estimate the book gives": evidence(
            problems, book, sizes._replace(rounds=8), options.jobs
        ),
    }  # fmt: skip
    entry = {
        "theta": {"beta": theta[:4], "log_sd_female": theta[4], "log_sd_male": theta[5]},
        "standard_errors": {
            "beta": errors[:4], "log_sd_female": errors[4], "log_sd_male": errors[5]
        },
        "names": {"beta": ["RR", "RW", "WR", "WW"]},
        "log_evidence": estimate.log_evidence,
        "error": estimate.error,
        "theta_error": estimate.theta_error,
        "standard_errors_error": estimate.halves_apart,
        "method": "importance sampling of the males on Sobol points, females by quadrature",
        "routes": routes,
    }  # fmt: skip
    record("salamander", entry, options, began)


if __name__ == "__main__":
    main()
