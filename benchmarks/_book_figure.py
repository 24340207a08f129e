"""The figure of the problem book: seconds a problem, and the error of log p. Tall, for a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

ROOT = Path(__file__).resolve().parents[1]
PEERS = {  # mark, colour, filled
    "lme4": ("s", "tab:orange", True),
    "lme4, nAGQ = 25": ("s", "tab:orange", False),
    "glmmTMB": ("^", "tab:green", True),
    "ordinal": ("D", "tab:purple", True),
    "ordinal, nAGQ = 10": ("D", "tab:purple", False),
}
OTHER = ("v", "tab:brown", True)
OURS, FAILED, PUBLISHED = "tab:blue", "tab:red", "0.55"
Row = dict[str, Any]


def draw(found: Row, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style = matplotlib.rc_params_from_file(
        ROOT / "docs" / "matplotlibrc", use_default_template=False
    )
    slowest_first = sorted(found["rows"], key=lambda row: -seconds_of(row, found["limit"]))
    rows = list(reversed(slowest_first))  # the fastest at the top of an inverted axis
    with plt.rc_context(style | {"svg.hashsalt": "book"}):
        height = 1.9 + 0.56 * len(rows)
        figure, (above, below) = plt.subplots(2, 1, figsize=(4.8, height), layout="constrained")
        seconds(above, rows, found["limit"])
        errors(below, rows)
        for axis in (above, below):
            names(axis, rows)
        handles, labels = merged(above, below)
        figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def seconds_of(row: Row, limit: float) -> float:
    return limit if row["cold"] is None else row["cold"]


def seconds(axis: Any, rows: list[Row], limit: float) -> None:
    for y, row in enumerate(rows):
        cold, again = row["cold"], row["again"]
        if cold is not None and again is not None:
            axis.plot([again, cold], [y, y], color=OURS, lw=1, alpha=0.4)
        if cold is not None:
            point(axis, cold, y, "o", OURS, True, "jalax, cold")
        if again is not None:
            point(axis, again, y, "o", OURS, False, "jalax, again")
        if any(one["cold"]["verdict"].startswith("no answer") for one in row["fits"]):
            point(axis, limit, y - 0.15, ">", OURS, True, f"jalax, no answer in {limit:g} s")
        for peer in row["peers"]:
            mark, colour, filled = PEERS.get(peer["peer"], OTHER)
            if "failed" in peer:
                if peer["failed"].startswith("no answer"):
                    point(axis, limit, y + 0.15, ">", colour, True, f"{peer['peer']}, no answer")
            else:
                point(axis, peer["first"], y, mark, colour, filled, peer["peer"])
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_title("seconds to the answer", fontsize=11)


def errors(axis: Any, rows: list[Row]) -> None:
    """Signed: Laplace's approximation is mostly too low. Every fit with one standard error."""
    for y, row in enumerate(rows):
        fits = [one[stage] for one in row["fits"] for stage in ("cold", "again")]
        fits = [fit for fit in fits if fit.get("log_p_off") is not None]
        for k, fit in enumerate(fits):
            shift = 0.5 * (k - (len(fits) - 1) / 2) / max(len(fits), 2)
            axis.errorbar(
                fit["log_p_off"],
                y + shift,
                xerr=fit["log_p_error"],
                fmt="o",
                ms=2.5,
                lw=0.9,
                color=OURS if fit["verdict"].startswith(("right", "not judged")) else FAILED,
                label="jalax, a fit with its error" if y == k == 0 else None,
            )
        for value, _ in row["published"]:
            if value is not None and row["reference"] is not None:
                off = value - row["reference"]["log_evidence"]
                point(axis, off, y, "|", PUBLISHED, True, "published")
        for peer in row["peers"]:
            if "log_p_off" in peer:
                mark, colour, filled = PEERS.get(peer["peer"], OTHER)
                point(axis, peer["log_p_off"], y, mark, colour, filled, peer["peer"])
    axis.axvline(0.0, color="black", lw=0.8)
    axis.set_xscale("symlog", linthresh=0.1, linscale=1.0)
    axis.set_title("log p less the reference", fontsize=11)
    marks = [-100, -10, -1, -0.1, 0, 0.1, 1, 10, 100]
    low, high = axis.get_xlim()  # at least some of both sides, and room for the marks
    low, high = min(1.5 * low, -0.15), max(1.5 * high, 0.15)
    shown = [mark for mark in marks if low <= mark <= high]
    axis.set_xticks(shown, [f"{mark:g}" for mark in shown])
    axis.set_xticks([], minor=True)
    axis.set_xlim(low, high)


def point(axis: Any, x: float, y: float, mark: str, colour: str, filled: bool, label: str) -> None:
    axis.plot(
        x,
        y,
        mark,
        color=colour,
        mfc=colour if filled else "white",
        ms=10 if mark == "|" else 6,
        mew=1.4,
        label=label,
        zorder=3,
    )


def names(axis: Any, rows: list[Row]) -> None:
    """The problems down the side; red: a fit is wrong, or there is no answer."""
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    for text, row in zip(axis.get_yticklabels(), rows, strict=True):
        if not row["verdict"].startswith(("right", "not judged")):
            text.set_color(FAILED)


def merged(*axes: Any) -> tuple[list[Any], list[str]]:
    """One entry a label."""
    found = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
