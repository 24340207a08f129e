"""The summary of a mixed model, in the order of lme4's."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._export.fit_summary import maxima_tables
from jalax._export.tables import Summary, Table, decimals
from jalax._fit.result import FitResult
from jalax._frontends import mixed_tables
from jalax._frontends.mixed_tables import Row
from jalax.models._mixed import MixedDesign


def summarise(result: FitResult, mixed: MixedDesign, rows: list[Row], quality: Table) -> Summary:
    """`MixedResult.summary`, from the numbers of theta and the table of the likelihood."""
    design, family = mixed.design, mixed.family
    marginal = "maximum marginal" if mixed.restricted is None else "restricted maximum"
    heading = [
        f"Mixed model fitted by {marginal} likelihood ({result.algorithm})",
        f"formula: {design.formula}",
        f"family: {family.name} ({family.link.name} link)",
    ]
    fixed = mixed_tables.coefficients("Fixed effects", rows[: len(design.fixed)])
    tables = [quality, mixed_tables.variances(rows, result.theta)]
    tables += [fixed, *mixed_tables.beside(rows, result.theta)]
    tables += maxima_tables(result)
    return Summary.of(heading, tables, _notes(result, mixed), frame=fixed)


def _notes(result: FitResult, mixed: MixedDesign) -> list[str]:
    factors = {block.factor: len(block.labels) for block in mixed.design.blocks}
    groups = ", ".join(f"{name}: {count}" for name, count in factors.items())
    notes = [mixed.design.codings] if mixed.design.codings else []
    notes.append(f"{mixed.num_rows} observations; levels of {groups}")
    if (left_out := mixed.design.left_out) is not None:
        columns = ", ".join(left_out.columns)
        notes.append(f"{left_out.rows} observations deleted due to missingness (in {columns})")
    evidence = result.known_evidence
    assert evidence is not None
    if mixed.restricted is not None:
        notes.append(f"REML criterion: {-2 * evidence.value:.4f}")
    notes.append(f"status: {result.status} ({result.message}), {result.seconds:.1f} s")
    return notes + [f"log-likelihood not to be trusted: {m}" for m in evidence.messages]


def quality(result: Any, mixed: MixedDesign) -> Table:
    """The log-likelihood, and the criteria made of it."""
    evidence = result.known_evidence
    left = mixed.num_rows - result.num_parameters
    criteria = (np.nan if x is None else float(x) for x in (result.aic, result.bic))
    cells = (evidence.value, evidence.error, *criteria, float(left))
    columns = ("log-lik.", "MC error", "AIC", "BIC", "df resid")
    formats = (decimals(evidence.error), ".2g", ".2f", ".2f", ".0f")
    return Table("", columns, [("", cells)], formats)
