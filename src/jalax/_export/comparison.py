"""A comparison of models: its table and its figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._evidence.record import ComparisonRecord, Row
from jalax._export.tables import Cell, Summary, Table


def summarise(comparison: ComparisonRecord) -> Summary:
    """One row a model; what speaks against an evidence is a sentence below the table."""
    shown = [(row.name, _cells(row)) for row in comparison.rows]
    probable = any(row.probability is not None for row in comparison.rows)
    columns: tuple[str, ...] = (
        f"log evidence ({comparison.kind})",
        "difference",
        "theta",
        "ess",
        "k-hat",
    )
    if probable:
        columns += ("probability",)
    else:
        shown = [(name, cells[:-1]) for name, cells in shown]
    notes = [comparison.note]
    notes += [
        f"{row.name}: not to be trusted: {m}" for row in comparison.rows for m in row.warnings
    ]
    return Summary.of(
        ["Models by their evidence, best first"],
        [Table("", columns, shown)],
        notes,
        frame=_numbers(comparison),
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    # The best has no difference to itself, and so no error of it.
    difference = f"{row.difference:.2f}"
    if row.difference != 0 or row.difference_error != 0:
        difference += f" +- {row.difference_error:.2f}"
    probability = np.nan if row.probability is None else row.probability
    return (
        f"{row.log_evidence:.2f} +- {row.error:.2f}",
        difference,
        float(row.num_theta),
        f"{row.ess:.2f}",
        f"{row.k_hat:.2f}",
        f"{probability:.3f}",
    )


FRAME_COLUMNS = (
    *("log_evidence", "error", "difference", "difference_error", "num_theta", "ess", "k_hat"),
    "probability",
)


def _numbers(comparison: ComparisonRecord) -> Table:
    rows = []
    for row in comparison.rows:
        values = [getattr(row, column) for column in FRAME_COLUMNS]
        rows.append((row.name, tuple(np.nan if value is None else value for value in values)))
    return Table("", FRAME_COLUMNS, rows)


def plot_compare(comparison: ComparisonRecord, ax: Any = None) -> Any:
    """`Comparison.plot`."""
    from jalax._export.plots import BLUE, ORANGE, label_of, new_axes

    rows = comparison.rows
    ax = new_axes(figsize=(5.0, 0.5 * len(rows) + 1.2)) if ax is None else ax
    place = np.arange(len(rows))[::-1]
    for trusted, colour, marker, label in (
        (True, BLUE, "o", "evidence, two standard errors"),
        (False, ORANGE, "X", "not to be trusted: see the table"),
    ):
        chosen = [i for i, row in enumerate(rows) if (not row.warnings) == trusted]
        if chosen:
            ax.errorbar(
                [rows[i].difference for i in chosen],
                place[chosen],
                xerr=[2 * rows[i].difference_error for i in chosen],
                fmt=marker,
                color=colour,
                capsize=3,
                label=label,
            )
    ax.axvline(0.0, color="0.6", lw=0.8, ls=":", zorder=0)
    ax.set_yticks(place, [label_of(row.name) for row in rows])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_xlabel(f"log evidence ({comparison.kind}), difference to the best")
    if any(row.warnings for row in rows):
        ax.legend(frameon=False, fontsize="small")
    return ax
