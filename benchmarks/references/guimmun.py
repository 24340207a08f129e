"""Immunisation in Guatemala: children within mothers within communities, by nested quadrature.

logit P(immunised) = X beta + exp(log_sd_mom) u_mom + exp(log_sd_comm) u_comm. Given the effect of a
community its mothers are independent, so the integral over a community is one-dimensional with a
product of one-dimensional integrals inside. Both are summed by the trapezoidal rule, whose error
falls exponentially here; the second route is adaptive Gauss-Hermite for the mothers with another
rule for the communities.

    python benchmarks/references/guimmun.py
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _files import arguments, codes, read, record
from _newton import maximise, standard_errors
from _quadrature import LOG_2PI, gauss_hermite, trapezoid
from scipy.special import expit, logsumexp

LEVELS = (
    ("kid2p", "Y"), ("mom25p", "Y"), ("ord", "23"), ("ord", "46"), ("ord", "7p"), ("ethn", "N"),
    ("ethn", "S"), ("momEd", "P"), ("momEd", "S"), ("husEd", "P"), ("husEd", "S"), ("husEd", "U"),
    ("momWork", "Y"), ("rural", "Y"),
)  # fmt: skip
NAMES = ("Intercept", *("".join(level) for level in LEVELS), "pcInd81")
# 12-point Gauss-Hermite, http://data.princeton.edu/pop510/maxlik.html: where Newton starts.
PUBLISHED = (
    -1.2334, 1.716657, -0.215995, -0.260719, 0.179374, 0.431083, -0.172474, -0.083649,
    0.433026, 0.420005, 0.539349, 0.50511, -0.007241, 0.390044, -0.888257, -1.149777,
)  # fmt: skip


class Data(NamedTuple):
    """Children sorted by community and mother; where each mother and each community begins."""

    design: np.ndarray
    y: np.ndarray
    mother: np.ndarray
    mother_starts: np.ndarray
    community: np.ndarray
    community_starts: np.ndarray


def load(folder: Path | None) -> Data:
    """The file's children, sorted; the contrasts are R's treatment coding."""
    table = read("guImmun", folder)
    community, mother = codes(table["comm"]), codes(table["comm"], table["mom"])
    order = np.lexsort((mother, community))
    table = {key: column[order] for key, column in table.items()}
    columns = [np.ones(order.size), *((table[k] == v).astype(float) for k, v in LEVELS)]
    design = np.stack([*columns, table["pcInd81"].astype(float)], 1)
    _, starts, mother = np.unique(mother[order], return_index=True, return_inverse=True)
    of_mother = community[order][starts]
    community_starts = np.unique(of_mother, return_index=True)[1]
    y = (table["immun"] == "Y").astype(float)
    return Data(design, y, mother, starts, of_mother, community_starts)


def value_and_score(
    theta: np.ndarray, data: Data, step: float, reach: float = 9.0
) -> tuple[float, np.ndarray]:
    """The log-likelihood and, by Fisher's identity over the same nodes, its gradient."""
    nodes, log_weights = trapezoid(step, reach)
    mean, sd_mother, sd_community = data.design @ theta[:-2], *np.exp(theta[-2:])
    sign = 2 * data.y - 1
    logs, residuals, squares = [], [], []
    for node in nodes:
        # The odds against what was seen; |eta| stays far below the 700 where exp overflows.
        odds = np.exp(-sign[:, None] * ((mean + sd_community * node)[:, None] + sd_mother * nodes))
        parts = log_weights - np.add.reduceat(np.log1p(odds), data.mother_starts)
        log_mother = logsumexp(parts, axis=1)
        weights = np.exp(parts - log_mother[:, None])
        residuals.append(sign * (odds / (1 + odds) * weights[data.mother]).sum(1))
        squares.append(np.add.reduceat(weights @ nodes**2 - 1, data.community_starts))
        logs.append(np.add.reduceat(log_mother, data.community_starts))
    parts = np.array(logs) + log_weights[:, None]
    log_community = logsumexp(parts, axis=0)
    weights = np.exp(parts - log_community)
    residual = (np.array(residuals) * weights[:, data.community[data.mother]]).sum(0)
    sizes = [(weights * np.array(squares)).sum(), (weights * (nodes[:, None] ** 2 - 1)).sum()]
    return float(log_community.sum()), np.append(data.design.T @ residual, sizes)


def adaptive(theta: np.ndarray, data: Data, inner: int, outer: int) -> float:
    """The log-likelihood by adaptive Gauss-Hermite for mothers, plain Gauss-Hermite outside."""
    nodes, log_weights = gauss_hermite(inner)
    outer_nodes, outer_weights = gauss_hermite(outer)
    mean, sd_mother, sd_community = data.design @ theta[:-2], *np.exp(theta[-2:])
    total = []
    for node in outer_nodes:
        offset, mode = mean + sd_community * node, np.zeros(data.mother_starts.size)
        for _ in range(30):
            chance = expit(offset + sd_mother * mode[data.mother])
            slope = sd_mother * np.add.reduceat(data.y - chance, data.mother_starts) - mode
            bend = sd_mother**2 * np.add.reduceat(chance * (1 - chance), data.mother_starts) + 1
            mode = mode + np.clip(slope / bend, -1, 1)
        at = mode[:, None] + nodes / np.sqrt(bend)[:, None]
        eta = offset[:, None] + sd_mother * at[data.mother]
        rows = data.y[:, None] * eta - np.logaddexp(0, eta)
        parts = np.add.reduceat(rows, data.mother_starts) + log_weights + 0.5 * nodes**2
        parts = parts - 0.5 * at**2 - 0.5 * LOG_2PI - 0.5 * np.log(bend)[:, None]
        total.append(np.add.reduceat(logsumexp(parts, axis=1), data.community_starts))
    weights = outer_weights - logsumexp(outer_weights)
    return float(logsumexp(np.array(total) + weights[:, None], axis=0).sum())


def main() -> None:
    options, began = arguments(__doc__ or ""), time.time()
    data = load(options.data)
    start = np.concatenate([PUBLISHED, [0.839785, 0.024317]])
    theta, matrix = maximise(lambda t: value_and_score(t, data, 0.4, 8.0)[1], start, 1e-7)
    routes = {
        f"trapezoidal rule, step {step}": {"log_evidence": value_and_score(theta, data, step)[0]}
        for step in (0.8, 0.6, 0.4, 0.3, 0.2, 0.15)
    }
    routes |= {
        f"Gauss-Hermite, {inner} adaptive for mothers, {outer} for communities": {
            "log_evidence": adaptive(theta, data, inner, outer)
        }
        for inner, outer in ((15, 20), (31, 40), (63, 80))
    }
    values = [route["log_evidence"] for route in routes.values()]
    finest, off = value_and_score(theta, data, 0.15)
    errors = standard_errors(matrix)
    entry = {
        "theta": {"beta": theta[:-2], "log_sd_mom": theta[-2], "log_sd_comm": theta[-1]},
        "standard_errors": {
            "beta": errors[:-2], "log_sd_mom": errors[-2], "log_sd_comm": errors[-1]
        },
        "names": {"beta": list(NAMES)},
        "log_evidence": finest,
        "error": max(abs(values[3] - finest), abs(values[-1] - finest), 1e-9),
        "theta_error": float(np.sqrt(off @ np.linalg.solve(matrix, off))),
        "method": "nested trapezoidal quadrature, Newton's method on its exact score",
        "routes": routes,
    }  # fmt: skip
    record("guimmun", entry, options, began)


if __name__ == "__main__":
    main()
