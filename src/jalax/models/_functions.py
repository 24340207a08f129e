"""Functions of a formula that R has and formulae has not: factor, relevel, ns and c.

A class here remembers what it saw of the fit's rows, and codes all later ones alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._contrasts import Refused


def c(*values: Any) -> tuple[Any, ...]:
    """R's `c(1, 2)`, for knots and levels."""
    return values


class Factor:
    """R's `factor(x)`: a factor of its levels in order; `levels=c("b", "a")` is their order."""

    __stateful_transform__ = True

    def __init__(self) -> None:
        self.levels: list[Any] | None = None

    def __call__(self, x: Any, levels: Any = None, **others: Any) -> Any:
        if others:
            raise Refused(
                f"factor takes levels=c(...), and no {next(iter(others))}=: rename levels before, "
                "and write C(x, Poly()) for an ordered factor."
            )
        _check_column("factor", x)
        if self.levels is not None:
            return _coded_later(x, self.levels)
        self.levels = present(x) if levels is None else _in_order(x, levels)
        return _coded(x, self.levels)


class Relevel:
    """R's `relevel(f, ref="b")`: the same factor with another first level."""

    __stateful_transform__ = True

    def __init__(self) -> None:
        self.levels: list[Any] | None = None

    def __call__(self, x: Any, ref: Any = None) -> Any:
        _check_column("relevel", x)
        if self.levels is not None:
            return _coded_later(x, self.levels)
        known = present(x)
        if ref not in known:
            raise Refused(
                f"relevel has no level {ref!r} to put first: there are "
                f"{', '.join(repr(level) for level in known)}."
            )
        self.levels = [ref, *(level for level in known if level != ref)]
        return _coded(x, self.levels)


def _check_column(name: str, x: Any) -> None:
    if np.ndim(x) != 1:
        raise Refused(f"{name} takes a column of the data: write {name}(column).")


def present(x: Any) -> list[Any]:
    """The levels that a column has, in the order of a Categorical or else sorted."""
    import pandas

    column = pandas.Series(x)
    if isinstance(column.dtype, pandas.CategoricalDtype):
        return column.cat.remove_unused_categories().cat.categories.tolist()
    return sorted(column.unique().tolist())


def _in_order(x: Any, levels: Any) -> list[Any]:
    given = list(levels) if isinstance(levels, tuple) else [levels]
    known = present(x)
    missing = [level for level in known if level not in given]
    if missing:
        raise Refused(
            f"factor(levels=...) leaves out {missing[0]!r}, which the data have: name all levels, "
            "or select rows before."
        )
    return [level for level in given if level in known]


def _coded(x: Any, levels: list[Any]) -> Any:
    import pandas

    values = np.asarray(x, object)
    return pandas.Series(pandas.Categorical(values, categories=levels, ordered=True))


def _coded_later(x: Any, levels: list[Any]) -> Any:
    """Rows that follow; levels that are not known stay as they are, and are named by others."""
    values = np.asarray(x, object)
    known = all(value in levels for value in dict.fromkeys(values))
    return _coded(values, levels) if known else values


class NaturalSpline:
    """R's `ns(x, df)`: cubic splines with these knots, straight lines beyond the outer ones.

    The basis is that of R's splines package: B-splines without the first one, in the space where
    the second derivatives at both ends are zero.
    """

    __stateful_transform__ = True

    def __init__(self) -> None:
        self.knots = np.zeros(0)  # those of the B-splines
        self.map = np.zeros((0, 0))  # from B-splines to the columns

    def __call__(
        self,
        x: Any,
        df: Any = None,
        knots: Any = None,
        intercept: bool = False,
        boundary_knots: Any = None,
    ) -> np.ndarray:
        _check_column("ns", x)
        values = np.asarray(x, float)
        if not self.knots.size:
            self._remember(values, df, knots, bool(intercept), boundary_knots)
        return self._splines(values) @ self.map

    def _remember(
        self, values: np.ndarray, df: Any, knots: Any, intercept: bool, boundary: Any
    ) -> None:
        if not np.isfinite(values).all():
            raise Refused("ns needs finite numbers: drop the other rows before.")
        ends = _numbers("Boundary.knots", boundary, values.min(), values.max())
        inner = _inner_knots(values, df, knots, intercept)
        if ends.size != 2 or not (np.diff([ends[0], *inner, ends[-1]]) > 0).all():
            raise Refused(
                "ns needs knots that rise between the two boundary knots: the column has too few "
                "different values for so many columns; take fewer, or name knots=c(...)."
            )
        self.knots = np.concatenate([np.repeat(ends[0], 4), inner, np.repeat(ends[1], 4)])
        size = self.knots.size - 4
        bent = self._basis(ends, np.eye(size), derivative=2)  # the second derivatives there
        first = 0 if intercept else 1
        q, _ = np.linalg.qr(bent[:, first:].T, mode="complete")
        self.map = np.concatenate([np.zeros((first, size - first - 2)), q[:, 2:]])

    def _basis(self, at: np.ndarray, coefficients: np.ndarray, derivative: int = 0) -> np.ndarray:
        from scipy.interpolate import BSpline

        return BSpline(self.knots, coefficients, 3)(at, derivative)

    def _splines(self, values: np.ndarray) -> np.ndarray:
        """All B-splines, continued by their tangents beyond the outer knots."""
        low, high = self.knots[0], self.knots[-1]
        every = np.eye(self.knots.size - 4)
        near = np.clip(values, low, high)
        slope = self._basis(near, every, derivative=1)
        return self._basis(near, every) + (values - near)[:, None] * slope


def _inner_knots(values: np.ndarray, df: Any, knots: Any, intercept: bool) -> np.ndarray:
    if knots is not None:
        return np.sort(_numbers("knots", knots))
    if df is None:
        df = 1 + intercept
    least = 1 + intercept
    if isinstance(df, bool) or not isinstance(df, int) or not least <= df < values.size:
        raise Refused(
            f"ns(x, df) takes a whole number of columns from {least} to less than the rows, got "
            f"{df!r}."
        )
    shares = np.linspace(0, 1, df - least + 2)[1:-1]
    return np.quantile(values, shares)


def _numbers(name: str, given: Any, *usual: float) -> np.ndarray:
    if given is None:
        return np.array(usual)
    found = np.atleast_1d(np.asarray(given))
    if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise Refused(f"ns takes {name}=c(1, 2), with numbers inside, got {given!r}.")
    return found.astype(float)
