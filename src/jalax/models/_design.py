"""A formula and a table of data, as the response and the matrices of a mixed model."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ._formula import (
    Block,
    as_frame,
    bar_terms,
    blocks_of,
    check_columns,
    check_finite,
    fixed_columns,
    matrices,
    names_in,
    split,
    without_bars,
)


class Response(NamedTuple):
    """The left side of a formula."""

    name: str
    y: np.ndarray  # (n,)
    size: np.ndarray | None = None  # trials, of p(y, size)
    event: np.ndarray | None = None  # of Surv(y, event): 0 where y is censored
    categories: tuple[str, ...] | None = None  # of a response that is 1, 2, ..., by their numbers


class Side(NamedTuple):
    """A formula beside that of the mean: the columns of a linear predictor of its own."""

    formula: str
    names: tuple[str, ...]
    X: np.ndarray  # (n, p)


class Asked(NamedTuple):
    """What a model has besides its formula and its family."""

    dispersion: str | None = None  # a one-sided formula
    zero: str | None = None
    weights: str | None = None  # a column


NOTHING = Asked()


class Design(NamedTuple):
    """The response and the matrices of a mixed model, row by row."""

    formula: str
    response: Response
    fixed: tuple[str, ...]
    X: np.ndarray  # (n, p)
    offset: np.ndarray  # (n,)
    blocks: tuple[Block, ...]
    frame: Any  # a DataFrame of the columns that the formula names: new rows are coded like these
    asked: Asked = NOTHING
    dispersion: Side | None = None
    zero: Side | None = None
    weights: np.ndarray | None = None
    predictors: int | None = None  # of unordered categories: see `_categories.py`

    @property
    def y(self) -> np.ndarray:
        return self.response.y

    @property
    def size(self) -> np.ndarray | None:
        return self.response.size


def parse(
    formula: str,
    data: Any,
    asked: Asked = NOTHING,
    ordered: bool = False,
    unordered: bool = False,
) -> Design:
    """The matrices of `formula`; bar terms by themselves, so that `(1|g) + (0+x|g)` stays apart.

    `ordered`: the response is a category, and there is no intercept but its thresholds.
    `unordered`: it is a category without an order.
    """
    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string, got {type(formula).__name__}.")
    if "~" not in formula:
        raise ValueError(f"{formula!r} has no response: write 'y ~ {formula}'.")
    frame = as_frame(data)
    if not len(frame):
        raise ValueError("the data have no rows.")
    names = check_columns([*_columns_of(formula), *_columns_beside(asked)], frame)
    frame = frame[list(dict.fromkeys(names))].copy()
    bars = bar_terms(formula)
    if not bars:
        raise ValueError(
            f"{formula!r} has no random effect, such as (1|group): there is no latent to integrate "
            "out. Add one, or fit a generalised linear model, which needs no jalax."
        )
    left = split(formula)[0]
    response = _unordered(left, frame) if unordered else _response(left, frame, ordered)
    fixed, X, offset = fixed_columns(matrices(without_bars(formula), frame).common, len(frame))
    if ordered:
        fixed, X = _without_intercept(fixed, X)
    blocks: list[Block] = []
    for bar in bars:
        blocks += blocks_of(bar, frame, [block.name for block in blocks])
    sides = _side("dispersion", asked.dispersion, frame), _side("zero", asked.zero, frame)
    known = fixed, X, offset, tuple(blocks), frame, asked, *sides
    return Design(formula, response, *known, _weights(asked.weights, frame))


# --- the left side -------------------------------------------------------------------------------

# What formulae does not know there, and R's users write.
_NAME = r"([A-Za-z_.][\w.]*)"
_PAIR = re.compile(rf"^(Surv|surv|cbind)\(\s*{_NAME}\s*,\s*{_NAME}\s*\)$")


def _columns_of(formula: str) -> list[str]:
    left, right = split(formula)
    if (pair := _PAIR.match(left)) is not None:
        return [*pair.groups()[1:], *names_in(right)]
    return names_in(formula)


def _response(left: str, frame: Any, ordered: bool) -> Response:
    if ordered:
        return _categories(left, frame)
    if (pair := _PAIR.match(left)) is not None:
        call, first, second = pair.groups()
        return _two_columns(left, call, first, second, frame)
    response = matrices(f"{left} ~ 1", frame).response
    values = np.asarray(response.design_matrix)
    if response.kind == "proportion":
        for column in values.T.astype(float):
            check_finite(f"the response {response.name!r}", column)
        y, size = values.T.astype(float)
        return Response(response.name, y, size)
    if response.kind == "categoric" or values.ndim > 1 or values.dtype.kind not in "biuf":
        raise ValueError(
            f"the response {response.name!r} is not numeric: encode it as numbers first, a yes or "
            "no as 1 or 0; of ordered categories use family='ordinal'."
        )
    check_finite(f"the response {response.name!r}", values.astype(float))
    return Response(response.name, values.astype(float))


def _two_columns(left: str, call: str, first: str, second: str, frame: Any) -> Response:
    y, other = (_numeric(name, frame[name]) for name in (first, second))
    if call == "cbind":  # successes and failures
        return Response(left, y, y + other)
    wrong = ~np.isin(other, (0, 1))
    if wrong.any():
        raise ValueError(
            f"the event {second!r} of {left} is 1 where it was seen and 0 where the time is "
            f"censored; it has {other[wrong][0]:g}."
        )
    return Response(left, y, event=other)


def _numeric(name: str, column: Any) -> np.ndarray:
    try:
        values = np.asarray(column, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r} is not numeric: encode it as numbers first.") from error
    check_finite(f"column {name!r}", values)
    return values


def _categories(left: str, frame: Any) -> Response:
    """1, 2, ... in the order of a Categorical, or of numbers."""
    import pandas

    name = left.strip("`")
    if name not in frame.columns:
        raise ValueError(
            f"the response of family='ordinal' is a column, an ordered Categorical, not {left!r}."
        )
    column = frame[name]
    if not isinstance(column.dtype, pandas.CategoricalDtype):
        if not pandas.api.types.is_numeric_dtype(column.dtype):
            raise ValueError(
                f"the order of the categories of {name!r} is not known: make it an ordered "
                f"Categorical, pandas.Categorical(data[{name!r}], categories=[...], ordered=True)."
            )
        column = column.astype(pandas.CategoricalDtype(sorted(column.unique()), ordered=True))
    column = column.cat.remove_unused_categories()
    labels = tuple(str(label) for label in column.cat.categories)
    if len(labels) < 2:
        raise ValueError(f"the response {name!r} has one category, {labels[0]!r}: nothing varies.")
    return Response(name, column.cat.codes.to_numpy().astype(float) + 1, categories=labels)


def _unordered(left: str, frame: Any) -> Response:
    """1, 2, ... in the order of a Categorical, or of the labels themselves; 1 is the baseline."""
    import pandas

    name = left.strip("`")
    if name not in frame.columns:
        raise ValueError(
            "the response of family='multinomial' is a column of categories, a Categorical whose "
            f"first category is the baseline, not {left!r}. Counts of several categories are rows "
            "of their own, a category a row, with the counts as weights='column'."
        )
    column = frame[name]
    if not isinstance(column.dtype, pandas.CategoricalDtype):
        column = column.astype("category")
    column = column.cat.remove_unused_categories()
    labels = tuple(str(label) for label in column.cat.categories)
    return Response(name, column.cat.codes.to_numpy().astype(float) + 1, categories=labels)


def _without_intercept(names: tuple[str, ...], X: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    if "Intercept" not in names:
        raise ValueError(
            "an ordinal model has its thresholds in place of an intercept: leave '0 +' or '- 1' "
            "out of the formula."
        )
    kept = [j for j, name in enumerate(names) if name != "Intercept"]
    return tuple(names[j] for j in kept), X[:, kept]


# --- beside the formula --------------------------------------------------------------------------


def _columns_beside(asked: Asked) -> list[str]:
    names: list[str] = []
    for what, formula in (("dispersion", asked.dispersion), ("zero", asked.zero)):
        if formula is not None:
            names += names_in(_one_sided(what, formula))
    if asked.weights is not None:
        if not isinstance(asked.weights, str):
            raise TypeError(
                f"weights must be the name of a column, got {type(asked.weights).__name__}: put "
                "them into the data."
            )
        names.append(asked.weights)
    return names


def _one_sided(what: str, formula: Any) -> str:
    if not isinstance(formula, str) or "~" not in formula or split(formula)[0]:
        raise ValueError(
            f"{what} must be a formula without a left side, such as '~ 1 + x', got {formula!r}."
        )
    if bar_terms(formula):
        raise ValueError(
            f"{what}={formula!r} has a random effect, which jalax has for the mean alone: leave "
            "the bar term out."
        )
    return split(formula)[1]


def _side(what: str, formula: str | None, frame: Any) -> Side | None:
    if formula is None:
        return None
    right = _one_sided(what, formula)
    names, X, offset = fixed_columns(matrices(right, frame).common, len(frame))
    if offset.any():
        raise ValueError(f"{what}={formula!r} has an offset, which it cannot have.")
    return Side(formula, names, X)


def _weights(name: str | None, frame: Any) -> np.ndarray | None:
    if name is None:
        return None
    values = _numeric(name, frame[name])
    if (values < 0).any():
        raise ValueError(f"weights={name!r} has {values.min():g}: weights are not negative.")
    return values
