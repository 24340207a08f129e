"""The four figures of the residuals of a mixed model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jalax._export.plots import BLUE, ORANGE, label_of, new_axes
from jalax._frontends.mixed_predict import (
    Conditional,
    Fit,
    Marginal,
    fitted,
    marginal_means_of_rows,
)
from jalax._frontends.mixed_residuals import Pearson, Quantile, residuals
from jalax.families import Gaussian

MAX_GROUPS = 40  # shown by name
TENTHS = 10


def plot_residuals(fit: Fit, kind: Any, ax: Any) -> np.ndarray:
    """`MixedResult.plot_residuals`."""
    drawn = panels(fit, kind)
    if ax is None:
        ax = new_axes(2, 2, figsize=(9.0, 6.4))
    axes = np.ravel(np.asarray(ax, dtype=object))
    if len(axes) < len(drawn):
        raise ValueError(
            f"plot_residuals draws 4 panels, and ax= holds {len(axes)}: pass axes for each, for "
            "example plt.subplots(2, 2)[1]."
        )
    for axis, (title, draw) in zip(axes, drawn.items(), strict=False):
        draw(axis)
        axis.set_title(title, fontsize="medium", loc="left")
    return axes[: len(drawn)]


def report_panels(fit: Fit) -> dict[str, Callable[[Any], None]]:
    """Those of a report. Of counts only quantile residuals should be normal; any key will do."""
    if isinstance(fit.mixed.family, Gaussian):
        return panels(fit, Pearson())
    # Over all levels there is an average of normal random effects.
    normal = all(law.is_normal for _, law in fit.mixed.laws)
    return panels(fit, Quantile(jax.random.key(0), Marginal() if normal else Conditional()))


def panels(fit: Fit, kind: Any) -> dict[str, Callable[[Any], None]]:
    """What draws each panel, by its title."""
    values = residuals(fit, kind)
    integrated = isinstance(kind, Quantile) and isinstance(kind.effects, Marginal)
    # What holds the random effects would rise with means that hold them, too.
    means = marginal_means_of_rows(fit) if integrated else fitted(fit)
    below = "means over all levels" if integrated else "fitted values"
    name = f"{type(kind).__name__.lower()} residuals"
    size = np.sqrt(np.abs(values))
    return {
        "residuals and fitted values": partial(
            _against_fitted, x=means, y=values, names=(below, name), zero=True
        ),
        "normal quantiles": partial(_normal, values=values),
        "scale and location": partial(
            _against_fitted, x=means, y=size, names=(below, "root of their size")
        ),
        "by group": partial(_by_group, fit=fit, values=values),
    }


def _against_fitted(
    ax: Any, x: np.ndarray, y: np.ndarray, names: tuple[str, str], zero: bool = False
) -> None:
    ax.plot(x, y, "o", color=BLUE, ms=3, alpha=0.5, mew=0)
    # Means over tenths of the rows, or over those with the same mean, show a trend.
    distinct, which = np.unique(x, return_inverse=True)
    if len(distinct) <= TENTHS:
        parts = [np.flatnonzero(which == i) for i in range(len(distinct))]
    else:
        parts = np.array_split(np.argsort(x, kind="stable"), TENTHS)
    middle = [(x[part].mean(), y[part].mean()) for part in parts]
    ax.plot(*np.transpose(middle), color=ORANGE, lw=1.3, marker="s", ms=4)
    if zero:
        ax.axhline(0, color="0.5", lw=0.8)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])


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
