"""The posterior of every latent number in one table: what `FitResult.latents` hands back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jalax._evidence.record import FitRecord
from jalax._export.latents import all_names
from jalax._export.tables import MAX_ROWS, Cell, Summary, Table

MOST_AT_ONCE = 2_000_000  # draws that are sorted at a time, to save memory


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Latents:
    """The posterior of M latent numbers: arrays of one entry a number, in the order of `names`.

    Attributes:
        names: of the numbers; of a grouped model with the group, by its label where there is one.
        mean: posterior means, at the fitted theta.
        sd: posterior standard deviations.
        low, high: the quantiles of the weighted particles between which `level` of the posterior
            lies. With N particles about N (1 - level) / 2 lie beyond each.
        mc_error: the Monte-Carlo error of `mean`, the root of sum_i w_i^2 (x_i - mean)^2 for
            normalised weights w. It is that of independent weighted draws: for the quasi-random
            points of Scoring an upper bound in practice, for the particles of other algorithms,
            which share ancestors, rather too small.
        level: of the intervals.
        shrinkage: 1 - posterior variance / prior variance: 1 where the data tell all about a
            number, 0 where they tell nothing. Of mixed models, whose prior variance is that of the
            random effects; else None, because log_joint does not tell the prior.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mc_error: np.ndarray
    level: float
    shrinkage: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        numbers: np.ndarray,
        level: float,
        shrinkage: np.ndarray | None = None,
    ) -> Latents:
        """From rows as `posterior_numbers` makes them."""
        mean, sd, low, high, mc_error = numbers.T
        return cls(tuple(names), mean, sd, low, high, mc_error, level, shrinkage)

    def __len__(self) -> int:
        return len(self.names)

    def summary(self) -> Summary:
        """The first rows as a table: a string, shown as HTML in a notebook."""
        ends = (f"{50 * (1 - self.level):.4g} %", f"{50 * (1 + self.level):.4g} %")
        columns = ("mean", "sd", *ends, "MC error", "shrinkage")
        left_out = len(self) - MAX_ROWS
        notes = [f"  ... and {left_out} more; to_frame() has them all"] if left_out > 0 else []
        table = Table("", columns[: self._width], self._rows(MAX_ROWS))
        return Summary.of([f"posterior of {len(self)} latent number(s)"], [table], notes)

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row a number, and their names as index."""
        columns = ("mean", "sd", "lower", "upper", "mc_error", "shrinkage")
        return Table("", columns[: self._width], self._rows(len(self))).to_frame()

    @property
    def _width(self) -> int:
        return 5 if self.shrinkage is None else 6

    def _rows(self, count: int) -> list[tuple[str, tuple[Cell, ...]]]:
        columns = [self.mean, self.sd, self.low, self.high, self.mc_error]
        columns += [] if self.shrinkage is None else [self.shrinkage]
        cells = zip(*(column[:count].tolist() for column in columns), strict=True)
        return list(zip(self.names[:count], cells, strict=True))

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def latents_of(result: FitRecord, level: float) -> Latents:
    """Every number of x, in the order of `all_names`."""
    weights = np.asarray(result.weights, float)
    leaves = jax.tree.leaves(result.particles)
    rows = [posterior_numbers(np.asarray(leaf), weights, level) for leaf in leaves]
    return Latents.of([name for name, *_ in all_names(result)], np.concatenate(rows), level)


def posterior_numbers(leaf: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """(M, 5): mean, sd, low, high and Monte-Carlo error of each number of one array of x.

    `leaf` is (G, N, ...) with weights (G, N), its numbers in the order of (G, ...); or (N, ...)
    with weights (N,).
    """
    grouped, count = weights.ndim == 2, weights.shape[-1]
    draws = leaf.reshape(*weights.shape, -1)
    draws = np.swapaxes(draws, -1, -2)  # (G, D, N) or (D, N)
    step = max(1, MOST_AT_ONCE // max(1, count * (draws.shape[1] if grouped else 1)))
    parts = []
    for i in range(0, len(draws), step):
        some = draws[i : i + step]
        own = weights[i : i + step, None] if grouped else weights
        own = np.broadcast_to(own, some.shape)
        parts.append(_of_rows(some.reshape(-1, count), own.reshape(-1, count), level))
    return np.concatenate(parts) if parts else np.zeros((0, 5))


def _of_rows(draws: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """(M, 5) from M rows of N draws and their weights."""
    # A particle of weight zero may hold anything; one with a weight is never left out.
    alive = weights > 0
    x = np.where(alive, draws, 0)
    with np.errstate(invalid="ignore"):
        w = weights / weights.sum(axis=1, keepdims=True)
        mean = (w * x).sum(axis=1)
        part = w * (x - mean[:, None]) ** 2
        sd, error = np.sqrt(part.sum(axis=1)), np.sqrt((w * part).sum(axis=1))
        low, high = _quantiles(x, w, alive, (0.5 - level / 2, 0.5 + level / 2))
    known = np.isfinite(mean)
    low, high = np.where(known, low, np.nan), np.where(known, high, np.nan)
    return np.stack([mean, sd, low, high, error], axis=1)


def _quantiles(
    x: np.ndarray, w: np.ndarray, alive: np.ndarray, levels: Sequence[float]
) -> list[np.ndarray]:
    """Between the middles of the steps of each distribution function, as `Latent.quantiles`."""
    order = np.argsort(np.where(alive, x, np.inf), axis=1)  # the dead come last
    w = np.take_along_axis(w, order, axis=1)
    middle = np.cumsum(w, axis=1) - w / 2
    rows, last = np.arange(len(x)), alive.sum(axis=1) - 1
    found = []
    for level in levels:
        above = (middle < level).sum(axis=1)
        # Beyond the outermost particle nothing is known: it stands for what lies there.
        i, j = np.clip(above - 1, 0, last), np.clip(above, 0, last)
        a, b = middle[rows, i], middle[rows, j]
        left, right = x[rows, order[rows, i]], x[rows, order[rows, j]]
        share = np.where(b > a, (level - a) / np.where(b > a, b - a, 1.0), 0.0)
        found.append(left + share * (right - left))
    return found
