"""A formula and a table of data, as the matrices of a mixed model (parsed by formulae)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# What a formula may call besides formulae's own functions (scale, center, bs, poly, ...).
FUNCTIONS = {
    "np": np,
    **{name: getattr(np, name) for name in ("log", "log1p", "log2", "log10", "exp", "sqrt", "abs")},
}


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The random effects of one bar term `(effects | factor)`, correlated with each other."""

    name: str  # of the factor, made unique
    factor: str
    effects: tuple[str, ...]
    labels: tuple[str, ...]  # of the factor's levels
    index: np.ndarray  # (n,), the level of each row
    matrix: np.ndarray  # (n, q), z of each row


class Design(NamedTuple):
    """y and the matrices of a mixed model, row by row."""

    formula: str
    response: str
    y: np.ndarray  # (n,)
    size: np.ndarray | None  # trials, of p(y, size)
    fixed: tuple[str, ...]
    X: np.ndarray  # (n, p)
    offset: np.ndarray  # (n,)
    blocks: tuple[Block, ...]


def parse(formula: str, data: Any) -> Design:
    """The matrices of `formula`; bar terms by themselves, so that `(1|g) + (0+x|g)` stays apart."""
    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string, got {type(formula).__name__}.")
    if "~" not in formula:
        raise ValueError(f"{formula!r} has no response: write 'y ~ {formula}'.")
    frame = as_frame(data)
    _check_columns(formula, frame)
    bars = bar_terms(formula)
    if not bars:
        raise ValueError(
            f"{formula!r} has no random effect, such as (1|group): there is no latent to integrate "
            "out. Add one, or fit a generalised linear model, which needs no jalax."
        )
    rest = formula
    for bar in bars:
        rest = rest.replace(bar, "", 1)
    design = _matrices(_tidy(rest), frame)
    y, size = _response(design.response)
    fixed, X, offset = _fixed(design.common, y.size)
    blocks: list[Block] = []
    for bar in bars:
        blocks += _blocks(bar, frame, [block.name for block in blocks])
    return Design(formula, design.response.name, y, size, fixed, X, offset, tuple(blocks))


def as_frame(data: Any) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("formulas need pandas: pip install 'jalax[mixed]'.") from error
    if isinstance(data, pd.DataFrame):
        return data
    if hasattr(data, "to_pandas"):  # polars
        return data.to_pandas()
    if isinstance(data, Mapping):
        return pd.DataFrame(dict(data))
    raise TypeError(
        "data must be a pandas or polars DataFrame or a dict of columns, got "
        f"{type(data).__name__}."
    )


def bar_terms(formula: str) -> list[str]:
    """Every `( ... | ... )` of a formula, parentheses included."""
    found, open_at = [], []
    bars: list[bool] = []
    for i, letter in enumerate(formula):
        if letter == "(":
            open_at.append(i)
            bars.append(False)
        elif letter == "|" and bars:
            bars[-1] = True
        elif letter == ")" and open_at:
            first = open_at.pop()
            if bars.pop():
                found.append(formula[first : i + 1])
    return found


def _tidy(formula: str) -> str:
    """What is left of a formula without its bar terms: no empty sums."""
    left, _, right = formula.partition("~")
    terms = [part.strip() for part in right.split("+")]
    kept = " + ".join(part for part in terms if part)
    return f"{left.strip()} ~ {kept or '1'}"


def _check_columns(formula: str, frame: Any) -> None:
    from formulae import model_description

    try:
        names = sorted(model_description(formula.replace("||", "|")).var_names)
    except Exception as error:
        raise ValueError(f"the formula {formula!r} cannot be read: {error}") from error
    columns = [str(column) for column in frame.columns]
    for name in filter(None, names):  # a number in a call has no name
        if name not in columns:
            raise ValueError(f"there is no column {name!r}; the data have {', '.join(columns)}.")
        missing = int(frame[name].isna().sum())
        if missing:
            raise ValueError(
                f"column {name!r} has {missing} missing value(s): drop those rows "
                f"(data.dropna(subset=[{name!r}])) or impute them first."
            )


def _matrices(formula: str, frame: Any) -> Any:
    from formulae import design_matrices

    try:
        return design_matrices(formula, frame, na_action="error", extra_namespace=FUNCTIONS)
    except Exception as error:
        raise ValueError(
            f"the part {formula!r} of the formula cannot be evaluated on these data: "
            f"{type(error).__name__}: {error}"
        ) from error


def _response(response: Any) -> tuple[np.ndarray, np.ndarray | None]:
    values = np.asarray(response.design_matrix)
    if response.kind == "proportion":
        return values[:, 0].astype(float), values[:, 1].astype(float)
    if response.kind == "categoric" or values.ndim > 1 or values.dtype.kind not in "biuf":
        raise ValueError(
            f"the response {response.name!r} is not numeric: encode it as numbers first, a yes or "
            "no as 1 or 0."
        )
    return values.astype(float), None


def _fixed(common: Any, rows: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    names: list[str] = []
    columns, offset = [np.zeros((rows, 0))], np.zeros(rows)
    for name, term in ({} if common is None else common.terms).items():
        values = np.asarray(common[name], float).reshape(rows, -1)
        if term.kind == "offset":
            offset = offset + values.sum(axis=1)
        else:
            columns.append(values)
            names += [str(label) for label in term.labels]
    X = np.concatenate(columns, axis=1)
    _check_rank(X, names)
    return tuple(names), X, offset


def _check_rank(X: np.ndarray, names: list[str]) -> None:
    scale = np.sqrt((X**2).mean(axis=0))
    empty = [name for name, size in zip(names, scale, strict=True) if size == 0]
    if empty:
        raise ValueError(f"the fixed effect {empty[0]!r} is zero in every row: leave it out.")
    if X.shape[1] and np.linalg.matrix_rank(X / scale) < X.shape[1]:
        raise ValueError(
            f"the fixed effects {', '.join(names)} are linearly dependent: leave one out (a "
            "constant column repeats the intercept)."
        )


def _blocks(bar: str, frame: Any, taken: list[str]) -> list[Block]:
    """One block a factor; with `||` one an effect."""
    apart = "||" in bar
    group = _matrices("0 + " + bar.replace("||", "|"), frame).group
    by_factor: dict[str, list[Any]] = {}
    for name, term in group.terms.items():
        by_factor.setdefault(term.factor.name, []).append((name, term))
    found: list[Block] = []
    for factor, terms in by_factor.items():
        labels = tuple(str(label) for label in terms[0][1].groups)
        if len(labels) < 2:
            raise ValueError(
                f"the grouping factor {factor!r} has one level, {labels[0]!r}: a variance between "
                "groups needs at least two."
            )
        index = _levels(factor, frame, len(labels))
        effects, matrix = _effects(terms, group, index, len(labels))
        parts = [[j] for j in range(len(effects))] if apart else [list(range(len(effects)))]
        for part in parts:
            name, count = factor, 2
            while name in taken:
                name, count = f"{factor}.{count}", count + 1
            taken.append(name)
            kept = tuple(effects[j] for j in part)
            found.append(Block(name, factor, kept, labels, index, matrix[:, part]))
    return found


def _levels(factor: str, frame: Any, count: int) -> np.ndarray:
    group = _matrices(f"0 + (1|{factor})", frame).group
    indicator = _dense(group[next(iter(group.terms))])
    assert indicator.shape[1] == count
    return np.argmax(indicator, axis=1)


def _effects(terms: list, group: Any, index: np.ndarray, count: int) -> tuple[list, np.ndarray]:
    """z of each row: formulae has one column for each level and effect."""
    names: list[str] = []
    columns = []
    rows = np.arange(index.size)
    for name, term in terms:
        wide = _dense(group[name])
        narrow = wide.reshape(index.size, count, -1)[rows, index]
        assert np.isclose(np.abs(narrow).sum(), np.abs(wide).sum())  # levels come first
        columns.append(narrow)
        one = [str(label).split("|")[0] for label in term.labels[: narrow.shape[1]]]
        names += ["Intercept" if label == "1" else label for label in one]
    return names, np.concatenate(columns, axis=1)


def _dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix, float)
