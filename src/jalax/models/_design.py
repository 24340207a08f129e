"""A formula and a table of data, as the response and the matrices of a mixed model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from . import _coding, _syntax
from ._contrasts import NO_CONTRASTS, Contrasts
from ._covariance_terms import check_wrappers, covariances_of
from ._covariances import Covariance
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
from ._kept_rows import Drop, LeftOut, Missing, in_subset, of_rows, without
from ._restricted import REML
from ._wrappers import plain, wrapped_terms


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
    weights: Any = None  # a column, or numbers of the rows
    precision_weights: Any = None  # the same
    frequencies: Any = None  # the same, all rows of a group having one
    offset: str | None = None  # a column
    contrasts: Mapping[str, Contrasts] = NO_CONTRASTS  # by factor
    covariances: Mapping[str, Covariance] | None = None  # by block
    subset: Any = None  # booleans of the rows, or a column of these
    missing: Missing = Drop()
    likelihood: REML | None = None  # None: maximum likelihood

    def in_words(self) -> dict[str, str | None]:
        """Those that are texts once the rows are chosen, for a file."""
        whole = self._asdict()
        return {name: whole[name] for name in (*_FORMULAS, *_COLUMNS)}


_FORMULAS = ("dispersion", "zero")
_WEIGHTS = ("weights", "precision_weights", "frequencies")
_COLUMNS = (*_WEIGHTS, "offset")
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
    weights: np.ndarray | None = None  # how often a row counts
    precision: np.ndarray | None = None  # of a row, in units of 1 / sigma^2
    frequencies: np.ndarray | None = None  # how often the group of a row occurs
    left_out: LeftOut | None = None
    codings: str = ""  # of the factors, in words
    covariances: Mapping[str, Covariance] = MappingProxyType({})  # of every block
    predictors: int | None = None  # of unordered categories: see `_categories.py`

    @property
    def y(self) -> np.ndarray:
        return self.response.y

    @property
    def size(self) -> np.ndarray | None:
        return self.response.size

    @property
    def precisions(self) -> np.ndarray:
        """(n,): of a Gaussian response, in units of 1 / sigma^2, with how often a row counts."""
        given = (w for w in (self.weights, self.precision) if w is not None)
        return math.prod(given, start=np.ones(self.y.size))


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
        raise TypeError(
            "formula must be a string such as 'y ~ x + (1|group)', got "
            f"{type(formula).__name__}; it comes first, and the data follow."
        )
    if "~" not in formula:
        meant = f"y ~ {formula or 'x + (1|group)'}"
        if "=" in formula:
            meant = formula.replace("=", "~", 1)
        raise ValueError(f"{formula!r} has no response: write {meant!r}.")
    frame = as_frame(data)
    if not len(frame):
        raise ValueError("the data have no rows.")
    frame, asked = _with_columns(frame, asked)
    elsewhere = [name for name in asked if isinstance(name, str)]
    formula = _syntax.expanded(formula, [str(name) for name in frame.columns], elsewhere)
    check_wrappers(formula)
    names = check_columns([*_columns_of(plain(formula)), *_columns_beside(asked)], frame)
    frame = in_subset(frame, asked.subset)[list(dict.fromkeys(names))].copy()
    keep, left_out = asked.missing.rows(frame, names)
    frame, asked = without(frame, keep), asked._replace(subset=None)
    bars = bar_terms(formula)
    if not bars:
        raise ValueError(
            f"{formula!r} has no random effect, such as (1|group): there is no latent to integrate "
            "out. Add one, or fit a generalised linear model, which needs no jalax."
        )
    left = split(formula)[0]
    response = _unordered(left, frame) if unordered else _response(left, frame, ordered)
    common = matrices(without_bars(formula), frame, asked.contrasts).common
    fixed, X, offset = fixed_columns(common, len(frame))
    if ordered:
        fixed, X = _without_intercept(fixed, X)
    blocks: list[Block] = []
    wrappers: list[str | None] = []
    for wrapper, bar in wrapped_terms(formula):
        blocks += blocks_of(bar, frame, [block.name for block in blocks])
        wrappers += [wrapper] * (len(blocks) - len(wrappers))
    covariances = covariances_of(blocks, wrappers, asked.covariances)
    commons = [common, *_commons_beside(asked, frame)]
    _coding.check_used(asked.contrasts, commons, frame)
    dispersion = _side("dispersion", asked.dispersion, frame, commons[1])
    zero = _side("zero", asked.zero, frame, commons[2])
    if asked.offset is not None:
        offset = offset + _numeric(asked.offset, frame[asked.offset])
    known = fixed, X, offset, tuple(blocks), frame, asked, dispersion, zero
    weights, precision, times = (_weights(what, asked, frame) for what in _WEIGHTS)
    each = weights, precision, times, left_out
    return Design(formula, response, *known, *each, _coding.notes(commons), covariances)


# --- the left side -------------------------------------------------------------------------------


def _columns_of(formula: str) -> list[str]:
    left, right = split(formula)
    if (pair := _pair(left)) is not None:
        return [
            *(name for part in pair[1:] for name in names_in(f"0 + I({part})")),
            *names_in(right),
        ]
    return names_in(formula)


def _pair(left: str) -> tuple[str, str, str] | None:
    """What formulae does not know there, and R's users write."""
    name, parts = _syntax.call_of(left) or ("", [])
    if name not in ("Surv", "surv", "cbind"):
        return None
    if len(parts) == 2:
        return name, parts[0], parts[1]
    if name == "cbind":
        raise ValueError(
            f"{left} has {len(parts)} columns: write cbind(successes, failures) for counts out of "
            "trials."
        )
    raise ValueError(
        f"{left} is no Surv(time, event), with an event of 1 where it was seen and 0 where the "
        "time is censored: write these two."
    )


def _response(left: str, frame: Any, ordered: bool) -> Response:
    if ordered:
        return _categories(left, frame)
    if (pair := _pair(left)) is not None:
        return _two_columns(left, *pair, frame)
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
    y, other = (_part(text, frame) for text in (first, second))
    if call == "cbind":  # successes and failures
        return Response(left, y, y + other)
    wrong = ~np.isin(other, (0, 1))
    if wrong.any():
        raise ValueError(
            f"the event {second!r} of {left} is 1 where it was seen and 0 where the time is "
            f"censored; it has {other[wrong][0]:g}."
        )
    return Response(left, y, event=other)


def _part(text: str, frame: Any) -> np.ndarray:
    """A column, or arithmetic such as `size - incidence`."""
    name = text.strip("`")
    if name in frame.columns:
        return _numeric(name, frame[name])
    values = np.asarray(matrices(f"I({text}) ~ 1", frame).response.design_matrix)
    return _numeric(text, values.reshape(len(frame), -1)[:, 0])


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
    for what in _COLUMNS:
        name = getattr(asked, what)
        if name is not None:
            if not isinstance(name, str):
                raise TypeError(
                    f"{what} must be the name of a column, got {type(name).__name__}: put it into "
                    "the data."
                )
            names.append(name)
    return names


def _with_columns(frame: Any, asked: Asked) -> tuple[Any, Asked]:
    """Weights that are given as numbers become columns, under R's name for them."""
    if not isinstance(asked.missing, Missing):
        raise TypeError(
            "missing must be jalax.missing.Drop() or jalax.missing.Refuse(), got "
            f"{asked.missing!r}."
        )
    for what in _WEIGHTS:
        values = getattr(asked, what)
        if values is not None and not isinstance(values, str):
            frame = frame.assign(**{f"({what})": of_rows(what, values, frame)})
            name: Any = f"({what})"
            asked = asked._replace(**{what: name})
    return frame, asked


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


def _commons_beside(asked: Asked, frame: Any) -> list[Any]:
    """The terms of the formulas beside that of the mean; None: there is none."""
    return [
        None
        if formula is None
        else matrices(_one_sided(what, formula), frame, asked.contrasts).common
        for what, formula in (("dispersion", asked.dispersion), ("zero", asked.zero))
    ]


def _side(what: str, formula: str | None, frame: Any, common: Any) -> Side | None:
    if formula is None:
        return None
    names, X, offset = fixed_columns(common, len(frame))
    if offset.any():
        raise ValueError(f"{what}={formula!r} has an offset, which it cannot have.")
    return Side(formula, names, X)


def _weights(what: str, asked: Asked, frame: Any) -> np.ndarray | None:
    name = getattr(asked, what)
    if name is None:
        return None
    values = _numeric(name, frame[name])
    if (values < 0).any():
        raise ValueError(f"{what}={name!r} has {values.min():g}: weights are not negative.")
    if what != "weights" and (values == 0).any():
        zero = (
            "an infinite variance" if what == "precision_weights" else "a group that never occurs"
        )
        raise ValueError(f"{what}={name!r} has a zero, {zero}: leave such rows out by subset=.")
    if not values.any():
        raise ValueError(f"{what}={name!r} is zero in every row: nothing is left to fit.")
    return values
