"""The terms of a formula on a table: factors in their order, codings, what no column may be."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._contrasts import Contrasts, Refused
from ._words import read

# Functions whose first argument is a number.
_NUMERIC = (
    *("scale", "standardize", "center", "poly", "bs", "cr", "cc", "tp", "ns", "offset"),
    *("log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "abs", "sin", "cos", "tanh"),
)
# Words of formulae and Python that say nothing to the author of a formula.
_INTERNAL = (
    *("Variable", "Call", "Lazy", "Term", "Model", "Response", "Design", "Token", "Encoding"),
    *("formulae", "Categorical", "Series", "ufunc", "object", "class", "dtype", "argument"),
)


def design(formula: str, frame: Any, contrasts: Mapping[str, Contrasts], functions: Any) -> Any:
    """formulae's matrices of a formula that is known to be fine."""
    from formulae import model_description
    from formulae.categorical import Encoding
    from formulae.environment import Environment
    from formulae.matrices import DesignMatrices

    Encoding.register(Contrasts)
    description = model_description(formula)
    # A term of (a + b)**2 or a/b shares its columns with others, which may be coded otherwise.
    description.common_terms = [copy.deepcopy(term) for term in description.common_terms]
    _take_away(description, formula)
    _set_contrasts(description.common_terms, contrasts)
    used = frame[sorted(filter(None, description.var_names), key=str)]
    for part in [*_parts(description), *_others(description)]:
        _check_part(part, used)
    # An environment without names: by default it is a module, with all that it imports.
    env = Environment([]).with_outer_namespace(functions)
    # What is not finite is refused later, with its row; and formulae prints what it raises.
    with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
        found = DesignMatrices(description, in_order(used), env)
    for part in _parts(description):
        _check_levels(part)
    return found


def in_order(frame: Any) -> Any:
    """Categoricals as ordered ones without unused levels, so that formulae does not sort them."""
    import pandas

    known = [
        name for name in frame.columns if isinstance(frame[name].dtype, pandas.CategoricalDtype)
    ]
    changed = {name: frame[name].cat.remove_unused_categories().cat.as_ordered() for name in known}
    return frame.assign(**changed) if changed else frame


def as_values(frame: Any) -> Any:
    """New rows: the levels, and their order, are those of the fit."""
    import pandas

    known = [
        name for name in frame.columns if isinstance(frame[name].dtype, pandas.CategoricalDtype)
    ]
    return frame.astype(dict.fromkeys(known, object)) if known else frame


def plain(error: Exception) -> str:
    """What an error says, unless it speaks of the parser's own classes."""
    text = str(error).rstrip(".")
    if unknown := re.search(r"unexpected keyword argument '(.*)'", text):
        return f"there is no argument {unknown[1]}="
    if isinstance(error, KeyError) or not text or any(word in text for word in _INTERNAL):
        return "its columns and functions do not go together"
    return text


# --- the parts of terms --------------------------------------------------------------------------


def _parts(description: Any) -> Iterable[Any]:
    """The columns and calls of fixed and random effects."""
    for term in description.common_terms:
        yield from getattr(term, "components", ())
    for term in description.group_terms:
        yield from getattr(term.expr, "components", ())


def _others(description: Any) -> Iterable[Any]:
    """Those of the grouping factors and of the response."""
    for term in description.group_terms:
        yield from term.factor.components
    if description.response is not None:
        yield from description.response.term.components


def _take_away(description: Any, formula: str) -> None:
    """`- b:a` takes a:b away, too, which formulae thinks another term."""
    reading = read(formula)
    ends = [
        i for i, w in enumerate(reading.words) if w.text in ("+", "-") and reading.opener[i] < 0
    ]
    for first, last in itertools.pairwise([*ends, len(reading.words)]):
        inside = reading.words[first + 1 : last]
        if reading.text(first) == "-" and ":" in [word.text for word in inside]:
            names = {word.text.strip("`") for word in inside} - {":"}
            description.common_terms = [
                term
                for term in description.common_terms
                if {str(part.name) for part in getattr(term, "components", ())} != names
            ]


def _set_contrasts(terms: list[Any], contrasts: Mapping[str, Contrasts]) -> None:
    for term in terms:
        parts = getattr(term, "components", [])
        for i, part in enumerate(parts):
            if not hasattr(part, "call") and part.name in contrasts:
                parts[i] = _coded_variable()(part.name, contrasts[part.name])


@functools.cache
def _coded_variable() -> type:
    """formulae's column, coded as asked: its own are coded by treatment alone."""
    from formulae.terms import Variable

    class Coded(Variable):
        def __init__(self, name: str, coding: Contrasts) -> None:
            super().__init__(name)
            self.coding = coding

        def eval_categoric(self, x: Any, spans_intercept: Any) -> None:
            import pandas

            super().eval_categoric(x, spans_intercept)
            if not spans_intercept:
                self.contrast_matrix = self.coding.code_without_intercept(self.levels)
                codes = pandas.Categorical(x, categories=self.levels).codes
                self.value = self.contrast_matrix.matrix[codes]

    return Coded


def _check_part(part: Any, frame: Any) -> None:
    if hasattr(part, "call"):
        _check_arguments(part.call, frame)
    else:
        _check_kind(str(part.name), frame[part.name])


def _check_kind(name: str, column: Any) -> None:
    """Numbers, text or categories."""
    from pandas.api import types

    if types.is_complex_dtype(column):
        raise Refused(f"column {name!r} holds complex numbers: take their abs, real part, ...")
    known = types.is_numeric_dtype(column) or types.is_string_dtype(column)
    if known or isinstance(column.dtype, types.CategoricalDtype):
        return
    if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
        raise Refused(
            f"column {name!r} holds dates or times, {column.dtype}: make it a number before, such "
            f"as (data[{name!r}] - data[{name!r}].min()).dt.days."
        )
    raise Refused(
        f"column {name!r} holds values of several kinds, or of none that a formula knows: make it "
        f"numbers or text before, such as data[{name!r}].astype(str)."
    )


def _check_arguments(call: Any, frame: Any) -> None:
    """Functions of numbers are not given text."""
    from pandas.api.types import is_numeric_dtype

    function = call.callee.removeprefix("np.")
    for argument in [*call.args, *call.kwargs.values()]:
        if hasattr(argument, "callee"):
            _check_arguments(argument, frame)
    first = call.args[0] if call.args else None
    name = getattr(first, "name", None)
    if function in _NUMERIC and name in frame.columns and not is_numeric_dtype(frame[name]):
        raise Refused(
            f"{call.callee}({name}) needs numbers, and column {name!r} holds text or categories: "
            "leave the function out, or make the column numbers before."
        )


def _check_levels(part: Any) -> None:
    if part.kind == "categoric" and part.levels is not None and len(part.levels) == 1:
        raise Refused(
            f"the factor {part.name!r} has one level, {str(part.levels[0])!r}: nothing varies, "
            "leave it out."
        )


# --- how factors were coded ----------------------------------------------------------------------


def check_used(contrasts: Mapping[str, Contrasts], commons: Iterable[Any], frame: Any) -> None:
    """Contrasts of what is no factor would do nothing."""
    used = {
        part.name
        for part in _common_parts(commons)
        if hasattr(part, "coding") and part.kind == "categoric"
    }
    for name in contrasts:
        if name not in used:
            wrapped = "" if name not in frame.columns else f"; of numbers write C({name}, Sum)"
            raise ValueError(
                f"contrasts has {name!r}, which is no factor of the fixed effects by itself: leave "
                f"it out{wrapped}."
            )


def _common_parts(commons: Iterable[Any]) -> Iterable[Any]:
    for common in commons:
        for term in ({} if common is None else common.terms).values():
            yield from getattr(term, "components", ())


def notes(commons: Iterable[Any]) -> str:
    """The reference level of each factor and other codings, in words; empty: there are none."""
    references, others = [], []
    for part in _common_parts(commons):
        if part.kind != "categoric" or part.spans_intercept:
            continue
        matrix = part.contrast_matrix.matrix
        left = [level for level, row in zip(part.levels, matrix, strict=True) if not row.any()]
        if left:
            references.append(f"{part.name} {left[0]}")
        else:
            box = getattr(part, "_intermediate_data", None)
            coding = getattr(part, "coding", None) or getattr(box, "contrast", None)
            others.append(f"{part.name} {type(coding).__name__}")
    found = {"reference levels": references, "contrasts": others}
    return "; ".join(
        f"{what}: {', '.join(dict.fromkeys(names))}" for what, names in found.items() if names
    )
