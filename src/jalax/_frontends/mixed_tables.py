"""The tables of a mixed model's summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._export.tables import Table
from jalax._particles import trees

# Name, estimate, standard error, simulation error and interval of a number of theta.
Row = tuple[str, float, float, float, float, float]
BESIDE = {
    "dispersion": "Dispersion (logarithm)",
    "thresholds": "Thresholds",
    "zero": "Zeros (log-odds)",
}


def variances(rows: list[Row], theta: Any) -> Table:
    """Standard deviations, with the variance beside them; correlations have none."""
    elsewhere = np.isin(_parts_of(theta), ("beta", *BESIDE))
    others = [row for row, is_elsewhere in zip(rows, elsewhere, strict=True) if not is_elsewhere]
    found = []
    for name, value, error, simulation, low, high in sorted(others, key=_deviations_first):
        deviation = name.startswith("sd ") or name == "sigma"
        variance = value**2 if deviation else np.nan
        found.append((name, (value, error, low, high, variance, simulation)))
    columns = ("estimate", "std. error", "2.5 %", "97.5 %", "variance", "simulation")
    formats = (".5g", ".4g", ".5g", ".5g", ".5g", ".2g")
    return Table("Random effects", columns, found, formats)


def beside(rows: list[Row], theta: Any) -> list[Table]:
    """Thresholds, and the coefficients of formulas beside that of the mean."""
    parts = _parts_of(theta)
    return [
        coefficients(title, [rows[i] for i in np.flatnonzero(parts == name)])
        for name, title in BESIDE.items()
        if name in theta
    ]


def coefficients(title: str, rows: list[Row]) -> Table:
    """Estimates with their Wald tests."""
    from scipy.special import ndtr

    found = []
    for name, value, error, simulation, low, high in rows:
        z = value / error
        p = 2 * float(ndtr(-abs(z)))
        found.append((name, (value, error, z, p, low, high, simulation)))
    columns = ("estimate", "std. error", "z value", "Pr(>|z|)", "2.5 %", "97.5 %", "simulation")
    formats = (".5g", ".4g", ".3f", "p", ".5g", ".5g", ".2g")
    return Table(title, columns, found, formats)


def _parts_of(theta: Any) -> np.ndarray:
    """The part of theta that each of its numbers is in, as they are ravelled."""
    sizes = {name: trees.size(theta[name]) for name in sorted(theta)}
    return np.repeat(list(sizes), list(sizes.values()))


def _deviations_first(row: Row) -> int:
    """Then what else the random effects have, then what the family has."""
    of_block = " | " in row[0]
    return 0 if of_block and row[0].startswith(("sd ", "scale ")) else 1 if of_block else 2
