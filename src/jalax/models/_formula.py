"""The terms of a formula as matrices (parsed by formulae)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import _coding
from ._contrasts import NO_CONTRASTS, Contrasts, Helmert, Poly, Refused
from ._functions import Factor, NaturalSpline, Relevel, c
from ._syntax import columns_message, translated
from ._wrappers import plain

# What a formula may call: these, by themselves or as np.log, and some of formulae's own. Left to
# itself, formulae looks a function up in whatever module calls it and follows every dot, so that
# np.save or the exec of a module's imports would be functions of a formula too.
_NUMPY = ("log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "abs", "sin", "cos", "tanh")
_FORMULAE = (
    *("scale", "standardize", "center", "poly", "bs", "cr", "cc", "tp"),
    *("C", "T", "S", "Treatment", "Sum", "B", "binary"),
    *("I", "offset", "p", "prop", "proportion"),
)
_OWN = {"factor": Factor, "relevel": Relevel, "ns": NaturalSpline, "c": c}
_OWN |= {"Helmert": Helmert, "Poly": Poly}
FUNCTIONS: dict[str, Any] = {name: getattr(np, name) for name in _NUMPY}
FUNCTIONS["np"] = SimpleNamespace(**FUNCTIONS)
FUNCTIONS |= _OWN
ALLOWED = frozenset((*_NUMPY, *(f"np.{name}" for name in _NUMPY), *_FORMULAE, *_OWN))

HIGHEST_ORDER = 10  # of interactions, in (a + b) ** 3
HIGHEST_POWER = 100  # inside a call


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The random effects of one bar term `(effects | factor)`, correlated with each other."""

    name: str  # of the factor, made unique
    factor: str
    effects: tuple[str, ...]
    labels: tuple[str, ...]  # of the factor's levels
    index: np.ndarray  # (n,), the level of each row
    matrix: np.ndarray  # (n, q), z of each row


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
        try:
            return pd.DataFrame(dict(data))
        except ValueError as error:
            lengths = {name: np.size(column) for name, column in data.items()}
            raise ValueError(
                f"the columns of data differ in length, {lengths}: give each a value a row."
            ) from error
    remedy = {
        str: "read it by pandas.read_csv",
        np.ndarray: "name its columns by pandas.DataFrame(array, columns=[...])",
    }.get(type(data), "make one by pandas.DataFrame(data)")
    raise TypeError(
        "data must be a pandas or polars DataFrame or a dict of columns, got "
        f"{type(data).__name__}: {remedy}."
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


def without_bars(formula: str) -> str:
    """The right side of a formula without its bar terms: no empty sums."""
    formula = plain(formula)
    for bar in bar_terms(formula):
        formula = formula.replace(bar, "", 1)
    terms = [part.strip() for part in split(formula)[1].split("+")]
    return " + ".join(part for part in terms if part) or "1"


def split(formula: str) -> tuple[str, str]:
    """The two sides, without spaces around them."""
    left, _, right = formula.partition("~")
    return left.strip(), right.strip()


def check_syntax(formula: str) -> str:
    """The formula in formulae's words, without what it would run but a formula has no need of."""
    from formulae.parser import Parser
    from formulae.scanner import Scanner

    plain = translated(formula)
    try:
        parser = Parser(Scanner(plain.replace("||", "|")).scan())
        tree = parser.parse()
        parts = list(_parts(tree))
    except Exception as error:  # also a RecursionError
        raise _unreadable(formula) from error
    if not parser.at_end():  # formulae stops there and goes on without the rest
        raise ValueError(
            f"the formula {formula!r} cannot be read from {parser.peek().lexeme!r} on."
        )
    for node, in_call in parts:
        kind = type(node).__name__
        if kind == "Call":
            _check_call(formula, node.callee)
        elif kind == "Binary" and node.operator.kind == "STAR_STAR":
            _check_power(formula, node, in_call)
    return plain


def _unreadable(formula: str) -> ValueError:
    return ValueError(
        f"the formula {formula!r} cannot be read: write it as a sum of terms, such as "
        "y ~ x + a:b + (x|group), and arithmetic as I(2 * x)."
    )


def _parts(node: Any, in_call: bool = False) -> Iterator[tuple[Any, bool]]:
    """Every node of formulae's syntax tree, and whether it is an argument of a call."""
    if isinstance(node, list):
        for item in node:
            yield from _parts(item, in_call)
    elif type(node).__module__ == "formulae.expr":
        yield node, in_call
        for child in vars(node).values():
            yield from _parts(child, in_call or type(node).__name__ == "Call")


def _check_call(formula: str, callee: Any) -> None:
    name = callee.name.lexeme if type(callee).__name__ == "Variable" else None
    if name in ALLOWED and callee.level is None:
        return
    known = ", ".join((*_NUMPY, *_FORMULAE, *_OWN))
    raise ValueError(
        f"the formula {formula!r} calls {'something without a name' if name is None else name}. "
        f"A formula may call {known}; compute anything else before, as a column of the data."
    )


def _check_power(formula: str, node: Any, in_call: bool) -> None:
    """Numbers to a high power would be computed to the last digit, and that for ever."""
    highest = HIGHEST_POWER if in_call else HIGHEST_ORDER
    base, exponent = (_number(side) for side in (node.left, node.right))
    if exponent is not None:
        fine = abs(exponent) <= highest and (base is None or abs(base) <= 1e6)
    else:
        fine = in_call
    if not fine:
        raise ValueError(
            f"the formula {formula!r} has a power that is no number up to {highest}: compute it "
            "before, as a column of the data."
        )


def _number(node: Any) -> float | None:
    """The value of a number; infinite for arithmetic with nothing but numbers; None: a column."""
    inside = [part for part, _ in _parts(node)]
    if any(type(part).__name__ in ("Variable", "QuotedName") for part in inside):
        return None
    while type(node).__name__ in ("Unary", "Grouping"):  # -(2)
        node = getattr(node, "right", None) or node.expression
    value = getattr(node, "value", None)
    return value if isinstance(value, (int, float)) else np.inf


def names_in(formula: str) -> list[str]:
    """The columns that a formula names."""
    from formulae import model_description

    plain = check_syntax(formula)
    try:
        names = model_description(plain.replace("||", "|")).var_names
    except Exception as error:
        raise _unreadable(formula) from error
    return sorted(filter(None, names))  # a number in a call has no name


def check_columns(names: list[str], frame: Any) -> list[str]:
    """The names, all of them columns that are there."""
    columns = [str(column) for column in frame.columns]
    for name in names:
        if name not in columns:
            raise ValueError(columns_message(name, columns))
        if columns.count(name) > 1 or name not in frame.columns:
            raise ValueError(
                f"column {name!r} is there {columns.count(name)} times, or its name is no text: "
                "give every column a name of its own, by data.columns = [...]."
            )
    return names


def matrices(formula: str, frame: Any, contrasts: Mapping[str, Contrasts] = NO_CONTRASTS) -> Any:
    plain = check_syntax(formula)  # of what is evaluated, and not only of the text it is cut from
    try:
        return _coding.design(plain, frame, contrasts, FUNCTIONS)
    except Refused as refused:
        raise ValueError(f"the part {formula!r} of the formula: {refused}") from None
    except Exception as error:
        raise ValueError(
            f"the part {formula!r} of the formula cannot be evaluated on these data: "
            f"{_coding.plain(error)}. Compute it before, as a column of the data."
        ) from error


def fixed_columns(common: Any, rows: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
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
    check_finite("an offset", offset)
    for name, column in zip(names, X.T, strict=True):
        check_finite(f"the fixed effect {name!r}", column)
    _check_rank(X, names)
    return tuple(names), X, offset


def check_finite(what: str, values: np.ndarray) -> None:
    """A column without missing values may have them after a transformation, such as a log."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise ValueError(f"{what} is {values[wrong[0]]:g} in row {wrong[0]}: it must be finite.")


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


def blocks_of(bar: str, frame: Any, taken: list[str]) -> list[Block]:
    """One block a factor; with `||` one an effect."""
    apart = "||" in bar
    group = matrices("0 + " + bar.replace("||", "|"), frame).group
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
        index = _levels(terms[0][1].factor, frame, len(labels))
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


def _levels(factor: Any, frame: Any, count: int) -> np.ndarray:
    # The names of columns have lost their backquotes, and some need them.
    parts = [
        part.name if type(part).__name__ == "Call" else f"`{part.name}`"
        for part in factor.components
    ]
    group = matrices(f"0 + (1|{':'.join(parts)})", frame).group
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
        for column in narrow.T:
            check_finite(f"the random effect {name!r}", column)
        assert np.isclose(np.abs(narrow).sum(), np.abs(wide).sum())  # levels come first
        columns.append(narrow)
        one = [str(label).split("|")[0] for label in term.labels[: narrow.shape[1]]]
        names += ["Intercept" if label == "1" else label for label in one]
    return names, np.concatenate(columns, axis=1)


def _dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix, float)
