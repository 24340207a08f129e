"""The book's answers held against its references: which rows are right, and how far off they are.

log p is that of the fit's own theta, and the reference's that of the maximum. The distance d of
the two thetas, in the metric of the fit's covariance, costs d^2 / 2; that is taken off before the
two are compared, and theta is judged by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TAIL = 3.4e-6  # beyond 4.5 errors of a normal, on one side
Row = dict[str, Any]


def allowed(freedom: float | None) -> float:
    """4.5 errors, or the t quantile of the same probability where an error has few degrees."""
    from scipy.special import stdtrit  # scipy comes with jax

    return 4.5 if freedom is None else float(stdtrit(freedom, 1 - TAIL))


def combined(error: float, freedom: float | None, *others: float) -> tuple[float, float | None]:
    """Of errors of which the first has `freedom` degrees: their root sum of squares, its degrees.

    By Welch and Satterthwaite; the others are known.
    """
    total = math.hypot(error, *others)
    if freedom is None or error == 0:
        return total, None
    return total, freedom * (total / error) ** 4


def judge(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> Row:
    """How far off one fit is, and the verdict; empty places where there is nothing to compare."""
    if answer.get("log_evidence") is None or answer.get("error") is None:
        said = "; ".join(answer.get("messages", ())) or f"status {answer.get('status')}"
        return {"verdict": f"wrong: no log p ({said})"}
    row = _log_p(answer, reference) | _theta(answer, reference)
    if reference["strength"] == "laplace":
        return row | {"verdict": "not judged (the reference is Laplace's)"}
    reasons = []
    if not row["log_p_errors_off"] <= row["log_p_allowed"]:
        reasons.append(
            f"log p {row['log_p_errors_off']:.1f} errors off (allowed {row['log_p_allowed']:.1f})"
        )
    if row["theta_without_error"]:
        reasons.append(f"no error for {', '.join(row['theta_without_error'])}")
    if row["theta_errors_off"] is not None and not row["theta_errors_off"] <= row["theta_allowed"]:
        reasons.append(
            f"{row['theta_worst']} {row['theta_errors_off']:.1f} errors off (allowed "
            f"{row['theta_allowed']:.1f})"
        )
    return row | {"verdict": "wrong: " + "; ".join(reasons) if reasons else "right"}


def _log_p(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> Row:
    off = answer["log_evidence"] - reference["log_evidence"]
    cost = cost_of_theta(answer, reference)
    error, freedom = combined(
        answer["error"], answer["freedom"], reference["error"], answer["resolution"]
    )
    return {
        "log_p_off": off,
        "log_p_cost": cost,
        "log_p_error": error,
        "log_p_errors_off": abs(off + (cost or 0.0)) / error,
        "log_p_allowed": allowed(freedom),
    }


def cost_of_theta(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> float | None:
    """d^2 / 2 of the distance between the fit's theta and the reference's."""
    theta = answer.get("theta")
    if not theta or answer.get("covariance") is None or list(theta) != list(reference["theta"]):
        return None
    apart = np.array(list(theta.values())) - np.array(list(reference["theta"].values()))
    return float(apart @ np.linalg.solve(np.array(answer["covariance"]), apart)) / 2


def _theta(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> Row:
    """The worst number of theta, in standard errors and in errors of the simulation."""
    row: Row = {"theta_off": None, "theta_errors_off": None, "standard_errors_off": None}
    row |= {"theta_worst": None, "theta_allowed": None, "theta_without_error": []}
    for name, standard_error in reference["standard_errors"].items():
        if not standard_error or name not in answer.get("theta", {}):
            continue
        value, simulation = answer["theta"][name], answer["simulation_errors"].get(name)
        own = answer["standard_errors"].get(name)
        if value is None or simulation is None or own is None:
            row["theta_without_error"].append(name)
            continue
        off = abs(value - reference["theta"][name])
        rounding = 1e-6 * abs(value)  # of sums in float32, and of the digits of a reference
        known = (reference["theta_error"] * standard_error, rounding)
        error, freedom = combined(simulation, answer["theta_freedom"], *known)
        worst = max(row["theta_off"] or 0.0, off / standard_error)
        change = max(row["standard_errors_off"] or 0.0, 100 * abs(own / standard_error - 1))
        row |= {"theta_off": worst, "standard_errors_off": change}
        share, before = off / error / allowed(freedom), row["theta_errors_off"]
        if before is None or share > before / row["theta_allowed"]:
            row |= {"theta_worst": name, "theta_errors_off": off / error}
            row |= {"theta_allowed": allowed(freedom)}
    return row


def verdict(fits: Sequence[Row]) -> str:
    """Of all fits of a problem: "right" if each is, else how many are not and why the first."""
    said = [fit["verdict"] for fit in fits]
    bad = [one for one in said if one != "right"]
    if not bad or len(set(said)) == 1:
        return said[0]
    return f"{len(bad)} of {len(said)} {bad[0]}"


def worst(fits: Sequence[Row], column: str) -> float | None:
    """Of all fits, the number farthest from zero, with its sign."""
    known = [fit[column] for fit in fits if fit.get(column) is not None]
    return max(known, key=abs) if known else None


def median(values: Sequence[float | None]) -> float | None:
    """Of the values that are known; None where it is infinite."""
    known = sorted(value for value in values if value is not None)
    middle = float(np.median(known)) if known else math.inf
    return middle if math.isfinite(middle) else None
