"""Tables and pictures of what follows a fit: bootstrap, profile, analysis of deviance."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._export.tables import Cell, Summary, Table


def bootstrap_summary(found: Any) -> Summary:
    ends, errors, bias = found.confidence_intervals(), found.standard_errors(), found.bias()
    rows: list[tuple[str, tuple[Cell, ...]]] = [
        (name, tuple(map(float, cells)))
        for name, *cells in zip(found.names, found.estimate, bias, errors, *ends.T, strict=True)
    ]
    columns = ("estimate", "bias", "std. error", "2.5 %", "97.5 %")
    lost = int((~found.usable).sum())
    heading = [f"Parametric bootstrap, {len(found.theta)} simulated data sets"]
    notes = [f"{lost} of the fits did not arrive, and are left out"] if lost else []
    return Summary.of(heading, [Table("", columns, rows)], notes)


def profile_summary(found: Any) -> Summary:
    rows: list[tuple[str, tuple[Cell, ...]]] = [
        (f"{value:.5g}", (float(log_p), float(root)))
        for value, log_p, root in zip(found.values, found.log_evidence, found.root, strict=True)
    ]
    low, high = found.interval()
    heading = [f"Profile likelihood of {found.name}"]
    notes = [f"95 % interval: {low:.5g} to {high:.5g}"]
    return Summary.of(heading, [Table("", ("log p", "signed root"), rows)], notes)


def plot_profile(found: Any, ax: Any = None) -> Any:
    """log p along the profile, with the interval."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(layout="constrained")
    drop = found.log_evidence - found.maximum
    ax.plot(found.values, drop, marker="o", markersize=3)
    low, high = found.interval()
    for end in (low, high):
        if np.isfinite(end):
            ax.axvline(end, linestyle=":", color="0.5")
    ax.axhline(-1.9207, linestyle="--", color="0.5")  # half the 95 % point of chi-square 1
    ax.set_xlabel(found.name)
    ax.set_ylabel("log p - maximum")
    return ax


def anova_summary(found: Any) -> Summary:
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row in found.rows:
        freedom = " or ".join(map(str, row.degrees_of_freedom))
        numbers = (row.aic, row.bic, row.log_likelihood, row.ratio, row.ratio_error)
        rows.append((row.name, (float(row.num_parameters), *numbers, freedom, row.p_value)))
    columns = ("npar", "AIC", "BIC", "log-lik.", "ratio", "MC error", "df", "Pr(>ratio)")
    formats = (".0f", ".2f", ".2f", ".3f", ".3f", ".2g", "", "p")
    table = Table("", columns, rows, formats)
    return Summary.of(["Likelihood ratio tests"], [table], list(found.notes))
