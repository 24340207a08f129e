"""The summary of one fit: theta with its errors, the evidence, the particles."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jalax._evidence.record import FitRecord
from jalax._export.tables import Cell, Summary, Table, as_text, decimals
from jalax._particles import trees

COLUMNS = ("estimate", "std. error", "simulation", "2.5%", "97.5%")
FORMATS = (".5g", ".4g", ".2g", ".5g", ".5g")  # of an error, fewer digits
MOST_SHOWN = 5  # numbers of theta in a line of the maxima
FRAME_COLUMNS = ("estimate", "std_error", "simulation_error", "lower", "upper")


def summarise(result: FitRecord) -> Summary:
    numbers = theta_numbers(result)
    rows = [(name, tuple(row)) for name, row in zip(result.names, numbers.tolist(), strict=True)]
    if result.known_uncertainty is None:
        theta = Table("", ("",), _leaves(result))
    else:
        theta = Table("", COLUMNS, rows, FORMATS)
    facts = Table("", ("",), evidence_rows(result) + particle_rows(result))
    shown = [theta, facts, *maxima_tables(result)]
    return Summary.of(heading(result), shown, frame=Table("", FRAME_COLUMNS, rows))


def heading(result: FitRecord) -> list[str]:
    size = f"{result.num_steps} steps, {particles(result)}"
    chosen = [f"chosen {result.choice}"] if result.choice else []
    return [
        f"{result.algorithm}: {size}, {result.seconds:.1f} s",
        *chosen,
        f"status: {result.status} ({result.message})",
    ]


def particles(result: FitRecord) -> str:
    shape = result.log_weights.shape
    return f"{shape[-1]} particles" + (f" x {shape[0]} groups" if len(shape) == 2 else "")


def theta_numbers(result: FitRecord) -> np.ndarray:
    """One row a number of theta; errors are NaN where they are not known."""
    values = trees.numbers_of(result.theta)
    known = result.known_uncertainty
    if known is None:
        return np.column_stack([values, np.full((values.size, 4), np.nan)])
    ends = [
        np.reshape(np.asarray(leaf), (-1, 2))
        for leaf in jax.tree.leaves(result.wald_intervals(known, 0.95))
    ]
    errors, simulation = known.errors(known.covariance), known.errors(known.simulation)
    return np.column_stack([values, errors, simulation, np.concatenate(ends)])


def _leaves(result: FitRecord) -> list[tuple[str, tuple[Cell, ...]]]:
    """theta without errors: a line for each array, or for each name the model gave."""
    if result.labels is not None:
        values = trees.numbers_of(result.theta)
        return [
            (name, (f"{value:.5g}",)) for name, value in zip(result.labels, values, strict=True)
        ]
    return [
        (
            trees.path_name(path, "theta"),
            (_numbers(np.asarray(leaf)),),
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(result.theta)
    ]


def evidence_rows(result: FitRecord) -> list[tuple[str, tuple[Cell, ...]]]:
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    evidence = result.known_evidence
    if evidence is not None:
        value = as_text(evidence.value, decimals(evidence.error))
        rows.append(("log evidence", (f"{value} +- {evidence.error:.2g}",)))
        rows += _laplace(evidence)
        rows += [("", (f"not to be trusted: {message}",)) for message in evidence.messages]
    if result.path_value is not None and result.relative:
        rows.append(("log Z / Z_0 (path)", (f"{result.path_value:.3f}, relative to theta_0",)))
    elif result.path_value is not None:
        error = f" +- {result.path_error:.1f}, and biased" if result.path_error > 1 else ""
        rows.append(("log evidence (path)", (f"{result.path_value:.3f}{error}",)))
    elif evidence is None:
        rows.append(("log evidence", (f"none: {result.evidence_reason}",)))
    return rows


def particle_rows(result: FitRecord) -> list[tuple[str, tuple[Cell, ...]]]:
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    shape = result.log_weights.shape
    if len(shape) == 2 and result.followed_a_path and result.gradient_bias > 0.25:
        rows.append(("bias of a gradient", (f"sqrt(G)/N = {result.gradient_bias:.2f} s.e.",)))
    if len(result.history.get("ess", ())):
        ess, dead = float(np.min(np.asarray(result.ess))), int(result.history["dead"].sum())
        rows.append(("ess", (f"{ess:.1f} of {shape[-1]}" + f", {dead} died" * (dead > 0),)))
    return rows


def maxima_tables(result: FitRecord) -> list[Table]:
    """Where the starts of `restarts=` led, the highest first."""
    found = result.maxima
    if found is None:
        return []
    names, number = result.names[:MOST_SHOWN], int(found.num_starts.sum()) + found.num_lost
    lost = f", {found.num_lost} led to none" * (found.num_lost > 0)
    rows: list[tuple[str, tuple[Cell, ...]]] = [
        (
            str(k + 1),
            (as_text(value, decimals(error)), f"{error:.2g}", f"{count:.0f}", *theta[: len(names)]),
        )
        for k, (value, error, count, theta) in enumerate(
            zip(found.log_evidence, found.error, found.num_starts, found.theta, strict=True)
        )
    ]
    columns = "log evidence", "error", "starts", *names
    return [Table(f"maxima from {number} starts{lost}", columns, rows)]


def _numbers(values: np.ndarray) -> str:
    if values.size == 1:
        return f"{values.item():.5g}"
    shown = " ".join(f"{value:.5g}" for value in values.ravel()[:6])
    return shown + (f" ... ({values.size} in all)" if values.size > 6 else "")


def _laplace(evidence: Any) -> list[tuple[str, tuple[str, ...]]]:
    """How wrong Laplace's approximation is, where that is known and to be seen."""
    if evidence.laplace is None:
        return []
    off = evidence.laplace - evidence.value
    if abs(off) < max(0.05, 4.5 * evidence.error):
        return []
    word = "low" if off < 0 else "high"
    return [("  by Laplace", (f"{evidence.laplace:.2f}, {abs(off):.2g} too {word}",))]
