"""Figures of one fit. Colours are Okabe and Ito's; lines differ in style and marker, too.

With `ax=` given, nothing outside those axes is touched; pyplot is imported only to make a new
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jalax._evidence.record import FitRecord
from jalax._export.fit_summary import theta_numbers
from jalax._export.latents import Latent, all_names, chosen_latents, prior_latents

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAX_LINES = 8  # of theta in one panel
MAX_INTERVALS = 12  # latents in the panel of intervals
MAX_DENSITIES = 24  # panels of densities


def new_axes(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float]) -> Any:
    """Axes of a new figure of pyplot's, which a notebook then shows."""
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(rows, columns, figsize=figsize, layout="constrained", squeeze=False)
    return axes[0, 0] if rows == columns == 1 else axes


def panels(result: FitRecord) -> dict[str, Callable[..., None]]:
    """What there is to draw about the path and the particles, by title."""
    if len(result.history.get("ess", ())) == 0:
        raise ValueError(
            f"this fit has no steps to plot, its history is empty (status {result.status}: "
            f"{result.message})."
        )
    out: dict[str, Callable[..., None]] = {"theta": theta_path}
    if np.isfinite(result.history.get("log_evidence", np.nan)).any():
        out["log evidence"] = evidence_path
    out["effective sample size"] = ess_path
    return out | {"posterior": posterior_intervals}


def plot_fit(result: FitRecord, ax: Any = None, prior: Any = None) -> np.ndarray:
    """`FitResult.plot`."""
    chosen = panels(result)
    if ax is None:
        rows = (len(chosen) + 1) // 2
        ax = np.ravel(new_axes(rows, 2, figsize=(9.0, 3.2 * rows)))
        for unused in ax[len(chosen) :]:
            unused.remove()
    axes = np.ravel(np.asarray(ax, dtype=object))
    if len(axes) < len(chosen):
        raise ValueError(
            f"plot draws {len(chosen)} panels ({', '.join(chosen)}), and ax= holds {len(axes)}: "
            "pass axes for each, for example plt.subplots(2, 2)[1]."
        )
    for axis, (title, draw) in zip(axes, chosen.items(), strict=False):
        if draw is posterior_intervals:
            draw(axis, result, prior)
        else:
            draw(axis, result)
        axis.set_title(title, fontsize="medium", loc="left")
    return axes[: len(chosen)]


def steps_of(result: FitRecord) -> np.ndarray:
    """The number of each recorded step since theta_0: a continued fit does not begin at 1."""
    return np.asarray(result.history["step"])


def label_of(name: str) -> str:
    """The name as matplotlib is to show it: no formula, and not hidden from the legend."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def _line(i: int, count: int) -> dict[str, Any]:
    """Colour, style and a few markers of line i, so that it is told apart in print."""
    every = max(count // 8, 1)
    return {
        "color": COLOURS[i % len(COLOURS)],
        "ls": STYLES[i % len(STYLES)],
        "marker": MARKERS[i % len(MARKERS)],
        "markevery": (min(i * every // 4, count - 1), every),
        "ms": 4,
        "lw": 1.3,
    }


def theta_path(ax: Any, result: FitRecord) -> None:
    """Every number of theta along the steps, and at the end its estimate with a 95% interval.

    Of a theta too large for the history its norm.
    """
    steps = steps_of(result)
    if "theta" not in result.history:
        ax.plot(steps, result.history["theta_norm"], color=BLUE, lw=1.3)
        ax.set_xlabel("step")
        ax.set_ylabel("norm of theta")
        return
    leaves = jax.tree.leaves(result.history["theta"])
    rows = np.concatenate([np.reshape(leaf, (len(steps), -1)) for leaf in leaves], axis=1)
    shown = min(rows.shape[1], MAX_LINES)
    for i in range(shown):
        ax.plot(steps, rows[:, i], label=label_of(result.names[i]), **_line(i, len(steps)))
    for i, (value, error, _, low, high) in enumerate(theta_numbers(result)[:shown].tolist()):
        if np.isfinite([low, high]).all():
            # Near a boundary an interval may reach anywhere, and would leave nothing else to see.
            ends = min(value - low, 4 * error), min(high - value, 4 * error)
            place = steps[-1] + (0.02 + 0.015 * i) * max(len(steps), 10)
            look = {"fmt": MARKERS[i], "color": COLOURS[i], "capsize": 2, "ms": 4, "lw": 1}
            ax.errorbar(place, value, np.reshape(ends, (2, 1)), **look)
    ax.set_xlabel("step")
    if rows.shape[1] > shown:
        ax.set_ylabel(f"the first {shown} of {rows.shape[1]}")
    ax.legend(frameon=False, fontsize="small", ncols=1 + (shown > 4))


def evidence_path(ax: Any, result: FitRecord) -> None:
    """The path's log-evidence with two of its errors, and the fresh estimate beside its end."""
    steps, history = steps_of(result), result.history
    value = np.asarray(history["log_evidence"], float)
    error = np.asarray(history.get("log_evidence_error", np.zeros_like(value)), float)
    ax.plot(steps, value, color=BLUE, lw=1.3, label="along the path")
    band = {"color": BLUE, "alpha": 0.2, "lw": 0}
    ax.fill_between(steps, value - 2 * error, value + 2 * error, label="two errors", **band)
    evidence = result.known_evidence
    relative = (
        result.relative and result.path_value is not None
    )  # not where theta alone was measured
    if evidence is not None and not relative:
        end = steps[-1] + 0.03 * max(len(steps), 10)
        look = {"fmt": "D", "color": ORANGE, "ms": 4, "capsize": 3}
        ax.errorbar(end, evidence.value, 2 * evidence.error, label="fresh, at theta", **look)
    _limits(ax, value, error)
    ax.set_xlabel("step")
    ax.set_ylabel("log Z / Z at the start" if relative else "log evidence")
    ax.legend(frameon=False, fontsize="small")


def _limits(ax: Any, value: np.ndarray, error: np.ndarray) -> None:
    """A band that is wide for a few steps must not flatten all others."""
    finite = np.isfinite(value)
    usual = 5 * float(np.nanmedian(np.where(finite, error, np.nan)))
    margin = max(usual, 0.1 * float(np.ptp(value[finite])))
    bottom, top = ax.get_ylim()
    bottom = max(bottom, float(value[finite].min()) - margin)
    top = min(top, float(value[finite].max()) + margin)
    if bottom < top:
        ax.set_ylim(bottom, top)


def ess_path(ax: Any, result: FitRecord) -> None:
    """ESS as a fraction of the particles; steps that resampled or lost particles are marked."""
    steps, history = steps_of(result), result.history
    share = np.asarray(history["ess"], float) / result.log_weights.shape[-1]
    label = "lowest of the groups" if result.log_weights.ndim == 2 else "ESS / N"
    ax.plot(steps, share, color=BLUE, lw=1.3, label=label)
    for name, marker, colour, words in (
        ("resampled", "v", ORANGE, "resampled"),
        ("dead", "x", "#000000", "particles died"),
    ):
        marked = np.asarray(history[name]) > 0
        if marked.any():
            ax.plot(steps[marked], share[marked], marker, color=colour, ms=5, label=words)
    below = 0.0 if result.origin is None else result.origin.algorithm.resampling_threshold
    if below > 0:
        ax.axhline(below, color="0.5", lw=0.8, ls=":", label="resample below")
    ax.set_ylim(0, 1.05)
    ax.set_xlabel("step")
    ax.set_ylabel("fraction of the particles")
    ax.legend(frameon=False, fontsize="small")


def posterior_intervals(ax: Any, result: FitRecord, prior: Any = None) -> None:
    """Mean, 50% and 90% interval of the first latents; those of the prior below, if given."""
    latents = chosen_latents(result, None, MAX_INTERVALS)
    place = np.arange(len(latents), dtype=float)[::-1]
    before = prior_latents(result, prior, latents)
    if before is not None:
        _intervals(ax, before, place - 0.25, "0.45", "s", "prior")
    _intervals(ax, latents, place, BLUE, "o", "posterior: mean, 50%, 90%")
    ax.set_yticks(place, [label_of(latent.name) for latent in latents], fontsize="small")
    room = 0.0 if before is None else 0.12 * len(latents) + 0.4  # for the legend
    ax.set_ylim(-0.8, len(latents) - 0.2 + room)
    total = len(all_names(result))
    ax.set_xlabel("latents" if total == len(latents) else f"{len(latents)} of {total} latents")
    if before is not None:
        ax.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)


def _intervals(ax, latents: list[Latent], place, colour: str, marker: str, label: str) -> None:
    ends = np.array([latent.quantiles([0.05, 0.25, 0.75, 0.95]) for latent in latents])
    dashed = {"ls": "--" if marker == "s" else "-"}
    ax.hlines(place, ends[:, 0], ends[:, 3], color=colour, lw=1, **dashed)
    ax.hlines(place, ends[:, 1], ends[:, 2], color=colour, lw=3)
    means = [latent.mean for latent in latents]
    ax.plot(means, place, marker, color=colour, ms=5, mfc="white", label=label)


def plot_posterior(
    result: FitRecord, names: Sequence[str] | None = None, ax: Any = None, prior: Any = None
) -> Any:
    """`FitResult.plot_posterior`."""
    latents = chosen_latents(result, names, 4 if names is None else MAX_DENSITIES)
    before = prior_latents(result, prior, latents)
    if ax is None:
        columns = min(len(latents), 4)
        rows = -(-len(latents) // columns)
        axes = np.ravel(new_axes(rows, columns, figsize=(2.8 * columns, 2.5 * rows)))
        for unused in axes[len(latents) :]:
            unused.remove()
    else:
        axes = np.ravel(np.asarray(ax, dtype=object))
    if len(axes) < len(latents):
        raise ValueError(
            f"plot_posterior draws {len(latents)} latents ({', '.join(x.name for x in latents)}), "
            f"and ax= holds {len(axes)} axes: pass one for each, or fewer names."
        )
    for i, latent in enumerate(latents):
        posterior_density(axes[i], latent, None if before is None else before[i])
    if before is not None:
        axes[0].legend(frameon=False, fontsize="small")
    return axes[: len(latents)]


def posterior_density(ax: Any, latent: Latent, prior: Latent | None = None) -> None:
    """The density of the weighted draws, its mean and 90% interval; the prior's dashed."""
    if prior is not None:
        grid, density = _density(prior)
        ax.plot(grid, density, color=ORANGE, ls="--", lw=1.3, label="prior")
    grid, density = _density(latent)
    ax.plot(grid, density, color=BLUE, lw=1.5, label="posterior")
    low, high = latent.quantiles([0.05, 0.95])
    inside = (grid >= low) & (grid <= high)
    ax.fill_between(grid[inside], density[inside], color=BLUE, alpha=0.2, lw=0)
    ax.axvline(latent.mean, color=BLUE, lw=0.9, ls=":")
    ax.set_ylim(bottom=0)
    ax.set_yticks([])
    ax.set_xlabel(label_of(latent.name))


def _density(latent: Latent) -> tuple[np.ndarray, np.ndarray]:
    from scipy.stats import gaussian_kde

    values, weights = latent.values, latent.weights
    spread = np.sqrt(weights @ (values - latent.mean) ** 2)
    if not spread > 1e-6 * (1e-30 + abs(latent.mean)):  # all weight on one place: a spike
        width = max(abs(latent.mean), 1.0) * 1e-3
        return latent.mean + np.array([-2, -1, 0, 1, 2]) * width, np.array([0.0, 0, 1, 0, 0])
    kde = gaussian_kde(values, weights=weights)
    beyond = 3 * float(np.sqrt(kde.covariance[0, 0]))
    grid = np.linspace(values.min() - beyond, values.max() + beyond, 200)
    return grid, kde(grid)
