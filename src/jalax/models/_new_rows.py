"""The matrices of other rows, coded like those of a fit: levels, centring, splines.

formulae remembers how it coded a column, but its objects cannot be written to a file. The columns
of the fit can: the terms are made again from these, and then evaluated on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ._categories import repeated
from ._coding import as_values, plain
from ._design import Design, Side
from ._formula import (
    Block,
    as_frame,
    bar_terms,
    check_finite,
    matrices,
    split,
    without_bars,
)
from ._functions import present


class Fixed(NamedTuple):
    """The fixed effects of some rows."""

    X: np.ndarray  # (n, p)
    offset: np.ndarray  # (n,)


class Random(NamedTuple):
    """The random effects of some rows, by block."""

    Z: dict[str, np.ndarray]  # (n, q)
    level: dict[str, np.ndarray]  # (n,), into the block's labels; -1: the fit had no such row
    unknown: dict[str, list[str]]  # factor: the levels that the fit had not, as they were written


class Factor(NamedTuple):
    """A column of the fixed effects that is no number there."""

    name: str
    levels: list[Any]  # as they stand in the column


def same_rows(design: Design) -> tuple[Fixed, Random]:
    """Those of the fit."""
    Z = {block.name: block.matrix for block in design.blocks}
    level = {block.name: block.index for block in design.blocks}
    return Fixed(design.X, design.offset), Random(Z, level, {})


def read(data: Any) -> Any:
    """`new_data` as a DataFrame."""
    frame = as_frame(data)
    if not len(frame):
        raise ValueError("new_data has no rows.")
    return as_values(frame)


def fixed_rows(design: Design, frame: Any) -> Fixed:
    """X and the offset of new rows."""
    right = without_bars(design.formula)
    if design.predictors is not None:
        one = _rows_of(right, design, frame)
        return Fixed(repeated(one.X, design.predictors), one.offset)
    found = _rows_of(right, design, frame, design.response.categories)
    if (name := design.asked.offset) is None:
        return found
    _check_columns(frame, [name])
    values = np.asarray(frame[name], float)
    check_finite(f"the offset {name!r}", values)
    return found._replace(offset=found.offset + values)


def side_rows(side: Side, design: Design, frame: Any) -> np.ndarray:
    """The matrix of new rows of a formula beside that of the mean."""
    return _rows_of(split(side.formula)[1], design, frame).X


def _rows_of(formula: str, design: Design, frame: Any, categories: Any = None) -> Fixed:
    """With categories, whose thresholds are the intercepts, there is no other one."""
    common = matrices(formula, design.frame, design.asked.contrasts).common
    rows = len(frame)
    columns, offset = [np.zeros((rows, 0))], np.zeros(rows)
    for name, term in ({} if common is None else common.terms).items():
        if categories is not None and name == "Intercept":
            continue
        _check_columns(frame, term.var_names)
        _check_levels(term, frame)
        values = _evaluated(name, term, frame)
        check_finite(f"the fixed effect {name!r}", values.sum(axis=1))
        if term.kind == "offset":
            offset = offset + values.sum(axis=1)
        else:
            columns.append(values)
    return Fixed(np.concatenate(columns, axis=1), offset)


def random_rows(design: Design, frame: Any) -> Random:
    """z and the level of new rows in each block; a level that is not known is -1."""
    found = Random(effect_rows(design, frame), {}, {})
    for factor, blocks, _ in _bars(design):
        _check_columns(frame, factor.var_names)
        level, written = _levels(factor, frame)
        for block in blocks:
            known = np.isin(level, block.index)  # of a:b not all pairs have rows
            found.level[block.name] = np.where(known, level, -1)
            if not known.all():
                found.unknown[block.factor] = list(dict.fromkeys(written[~known]))
    return found


def effect_rows(design: Design, frame: Any) -> dict[str, np.ndarray]:
    """z of new rows in each block, for which no level is needed."""
    found = {}
    for factor, blocks, terms in _bars(design):
        columns = []
        for name, term in terms.items():
            _check_columns(frame, term.var_names)
            _check_levels(term, frame)
            columns.append(_evaluated(name, term, frame))
        z = np.concatenate(columns, axis=1)
        check_finite(f"a random effect of {factor.name!r}", z.sum(axis=1))
        first = 0
        for block in blocks:
            last = first + _columns(design, block)
            own = z[:, first:last]
            found[block.name] = repeated(own, design.predictors) if design.predictors else own
            first = last
    return found


def _bars(design: Design) -> Iterator[tuple[Any, list[Block], dict[str, Any]]]:
    """Each factor of each bar term: its blocks (with `||` one an effect), and its effects."""
    blocks = list(design.blocks)
    for bar in bar_terms(design.formula):
        group = matrices("0 + " + bar.replace("||", "|"), design.frame).group
        by_factor: dict[str, dict[str, Any]] = {}
        factors = {}
        for name, term in group.terms.items():
            factors[term.factor.name] = term.factor
            by_factor.setdefault(term.factor.name, {})[name] = term.expr
        for name, terms in by_factor.items():
            count = sum(np.reshape(e.data, (len(design.y), -1)).shape[1] for e in terms.values())
            own: list[Block] = []
            while sum(_columns(design, block) for block in own) < count:
                own.append(blocks.pop(0))
            yield factors[name], own, terms


def _columns(design: Design, block: Block) -> int:
    """Of a block's matrix, for one linear predictor."""
    return len(block.effects) // (design.predictors or 1)


def factors(design: Design) -> dict[str, Factor]:
    """The columns of the fixed effects that are factors, with their levels in order."""
    from pandas.api.types import is_numeric_dtype

    common = matrices(without_bars(design.formula), design.frame).common
    found: dict[str, Factor] = {}
    for term in ({} if common is None else common.terms).values():
        for part in getattr(term, "components", ()):
            names = list(filter(None, part.var_names))
            if part.kind == "categoric" and len(names) == 1:
                found[names[0]] = Factor(names[0], list(part.levels))
                continue
            for name in names:  # of I(arm == 'a')
                if not is_numeric_dtype(design.frame[name]):
                    found.setdefault(name, Factor(name, present(design.frame[name])))
    return found


def covariates(design: Design) -> list[str]:
    """The other columns of the fixed effects and of the offset."""
    common = matrices(without_bars(design.formula), design.frame).common
    names: set[str] = set()
    for term in ({} if common is None else common.terms).values():
        names |= set(filter(None, term.var_names))
    names |= set(filter(None, [design.asked.offset]))
    return sorted(names - set(factors(design)))


def _check_columns(frame: Any, names: Any) -> None:
    columns = [str(column) for column in frame.columns]
    for name in sorted(filter(None, names)):
        if name not in columns:
            raise ValueError(
                f"new_data has no column {name!r}, which the formula needs; it has "
                f"{', '.join(columns)}."
            )
        missing = int(frame[name].isna().sum())
        if missing:
            raise ValueError(
                f"column {name!r} of new_data has {missing} missing value(s): drop those rows, or "
                "impute them first."
            )


def _values(part: Any, frame: Any) -> Any:
    """A factor's column, or what a call such as C(x) makes of one."""
    if not hasattr(part, "call"):
        return frame[part.name]
    value = part.call.eval(frame, part.env)
    return value.data if type(value).__name__ == "CategoricalBox" else value


def _check_levels(term: Any, frame: Any) -> None:
    for part in getattr(term, "components", ()):
        if part.kind != "categoric":
            continue
        unknown = [
            value for value in dict.fromkeys(_values(part, frame)) if value not in part.levels
        ]
        if unknown:
            known = ", ".join(repr(level) for level in part.levels)
            raise ValueError(
                f"{part.name!r} is {unknown[0]!r} in new_data, a level without an effect: the fit "
                f"had {known}."
            )


def _evaluated(name: str, term: Any, frame: Any) -> np.ndarray:
    try:
        return np.asarray(term.eval_new_data(frame), float).reshape(len(frame), -1)
    except Exception as error:
        raise ValueError(
            f"the term {name!r} cannot be evaluated on new_data: {plain(error)}; give its columns "
            "the kind that they had in the fit."
        ) from error


def _levels(factor: Any, frame: Any) -> tuple[np.ndarray, np.ndarray]:
    """The position of each row's level among the labels (-1: none), and the level as written."""
    import pandas

    codes, sizes, written = [], [], []
    for part in factor.components:
        values = np.asarray(_values(part, frame), object)
        codes.append(pandas.Index(part.levels, dtype=object).get_indexer_for(values))
        sizes.append(len(part.levels))
        written.append([repr(value) for value in values])
    known = np.all([code >= 0 for code in codes], axis=0)
    level = np.ravel_multi_index([np.where(known, code, 0) for code in codes], sizes)
    names = np.array([":".join(parts) for parts in zip(*written, strict=True)], object)
    return np.where(known, level, -1), names
