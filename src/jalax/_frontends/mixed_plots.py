"""The four figures of the residuals of a mixed model."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._export.plots import BLUE, ORANGE, label_of, new_axes
from jalax._frontends.mixed_predict import Fit, Marginal, fitted, marginal_means_of_rows
from jalax._frontends.mixed_residuals import Quantile, residuals

MAX_GROUPS = 40  # shown by name
TENTHS = 10


def plot_residuals(fit: Fit, kind: Any, ax: Any) -> np.ndarray:
    """`MixedResult.plot_residuals`."""
    values = residuals(fit, kind)
    integrated = isinstance(kind, Quantile) and isinstance(kind.effects, Marginal)
    # What holds the random effects would rise with means that hold them, too.
    means = marginal_means_of_rows(fit) if integrated else fitted(fit)
    if ax is None:
        ax = new_axes(2, 2, figsize=(9.0, 6.4))
    axes = np.ravel(np.asarray(ax, dtype=object))
    if len(axes) < 4:
        raise ValueError(
            f"plot_residuals draws 4 panels, and ax= holds {len(axes)}: pass axes for each, for "
            "example plt.subplots(2, 2)[1]."
        )
    name = f"{type(kind).__name__.lower()} residuals"
    _against_fitted(axes[0], means, values)
    axes[0].axhline(0, color="0.5", lw=0.8)
    axes[0].set_ylabel(name)
    _normal(axes[1], values)
    _against_fitted(axes[2], means, np.sqrt(np.abs(values)))
    for axis in (axes[0], axes[2]):
        axis.set_xlabel("means over all levels" if integrated else "fitted values")
    axes[2].set_ylabel("root of their size")
    _by_group(axes[3], fit, values)
    titles = ("residuals and fitted values", "normal quantiles", "scale and location", "by group")
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title, fontsize="medium", loc="left")
    return axes[:4]


def _against_fitted(ax: Any, means: np.ndarray, values: np.ndarray) -> None:
    ax.plot(means, values, "o", color=BLUE, ms=3, alpha=0.5, mew=0)
    # Means over tenths of the rows, or over those with the same mean, show a trend.
    distinct, which = np.unique(means, return_inverse=True)
    if len(distinct) <= TENTHS:
        parts = [np.flatnonzero(which == i) for i in range(len(distinct))]
    else:
        parts = np.array_split(np.argsort(means, kind="stable"), TENTHS)
    middle = [(means[part].mean(), values[part].mean()) for part in parts]
    ax.plot(*np.transpose(middle), color=ORANGE, lw=1.3, marker="s", ms=4)


def _normal(ax: Any, values: np.ndarray) -> None:
    from scipy.special import ndtri

    ordered = np.sort(values)
    expected = ndtri((np.arange(ordered.size) + 0.5) / ordered.size)
    ax.plot(expected, ordered, "o", color=BLUE, ms=3, mew=0)
    # Through the quartiles, as R's qqline.
    low, high = np.quantile(ordered, [0.25, 0.75])
    slope = (high - low) / float(ndtri(0.75) - ndtri(0.25))
    ends = np.array([expected[0], expected[-1]])
    ax.plot(ends, (low + high) / 2 + slope * ends, color="0.5", lw=0.8)
    ax.set_xlabel("normal quantiles")
    ax.set_ylabel("residuals")


def _by_group(ax: Any, fit: Fit, values: np.ndarray) -> None:
    """A box a level of the outermost factor, in the order of their medians."""
    blocks = fit.mixed.design.blocks
    block = next((b for b in blocks if b.factor == fit.mixed.outer), blocks[0])
    levels = np.unique(block.index)
    each = [values[block.index == level] for level in levels]
    order = np.argsort([np.median(part) for part in each])
    flier = {"marker": ".", "ms": 3, "mfc": BLUE, "mec": BLUE}
    median = {"color": ORANGE}
    ax.boxplot([each[i] for i in order], flierprops=flier, medianprops=median, widths=0.6)
    ax.axhline(0, color="0.5", lw=0.8)
    if len(levels) <= MAX_GROUPS:
        names = [label_of(block.labels[levels[i]]) for i in order]
        ax.set_xticks(np.arange(1, len(levels) + 1), names, rotation=90, fontsize="x-small")
    else:
        ax.set_xticks([])
    ax.set_xlabel(label_of(block.factor))
