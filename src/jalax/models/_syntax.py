"""R's formulas in the words of formulae, and a sentence about what has no meaning.

formulae reads formulas and builds their matrices. What R's users write otherwise is rewritten here
before; what formulae would misread, or answer with the names of its own classes, is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ._r_words import CODINGS, FUNCTIONS
from ._words import (
    BARS,
    BEFORE,
    COMPARISONS,
    OPEN,
    OPERATORS,
    PLAIN,
    POWERS,
    Reading,
    read,
)

_LITERALS = {"TRUE": "True", "FALSE": "False", "NULL": "None"}
_ONE_ARGUMENT = ("log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "abs")
# Calls that hold no bar term; exp(x + 0 | g) is a covariance of glmmTMB's.
_NO_BARS = (
    *("log", "log1p", "log2", "log10", "expm1", "sqrt", "abs", "scale", "center", "poly"),
    *("I", "C", "T", "S", "factor", "offset"),
)


# --- what has no meaning -------------------------------------------------------------------------


def _check_meaning(reading: Reading) -> None:
    tilde = next((i for i, w in enumerate(reading.words) if w.text == "~"), -1)
    for i, word in enumerate(reading.words):
        if word.text in BARS:
            _check_bar(reading, i, tilde)
    for i, word in enumerate(reading.words):
        if word.kind == "name" and reading.text(i + 1) == "(":
            _check_function(reading, i)
        elif word.text == "[" and i > tilde:
            raise reading.refuse(
                f"{reading.piece(i - 1, reading.closing[i])} chooses no rows or levels here; "
                "write I(x == 'a') for a level, and select rows before"
            )
        elif word.text == ",":
            _check_comma(reading, i)
        elif word.text == "=":
            _check_equals(reading, i)
        elif word.text in COMPARISONS:
            _check_comparison(reading, i)
        elif reading.in_call[i]:
            if word.text in (".", "%in%", "~"):
                raise reading.refuse(f"{word.text!r} has no meaning in a call; {BEFORE}")
        else:
            _check_term(reading, i)


def _check_function(reading: Reading, i: int) -> None:
    name = reading.text(i)
    if name in FUNCTIONS:
        raise reading.refuse(f"{name}(...) is not there; {FUNCTIONS[name]}")


def _check_comma(reading: Reading, i: int) -> None:
    bracket = reading.opener[i]
    if not reading.is_call(bracket):
        raise reading.refuse("a comma stands outside a call; give data and options by name")
    name = reading.text(bracket - 1)
    if name in _ONE_ARGUMENT:
        raise reading.refuse(
            f"{name} takes one argument; write log2(x) or log10(x) for other bases, or {BEFORE}"
        )


def _check_equals(reading: Reading, i: int) -> None:
    named = reading.words[i - 1].kind == "name" and reading.text(i - 2) in ("(", ",")
    if not (named and reading.is_call(reading.opener[i])):
        raise reading.refuse("'=' stands outside a call; write ~ after the response, == in I(...)")


def _check_comparison(reading: Reading, i: int) -> None:
    if not reading.in_call[i]:
        written = reading.piece(i - 1, i + 1)
        raise reading.refuse(f"a comparison is no term; write I({written})")
    beside = (reading.words[i - 1].kind, reading.words[i + 1].kind)
    if reading.text(i) not in ("==", "!=") and "text" in beside:
        raise reading.refuse(f"{reading.text(i)!r} would compare by the alphabet; {BEFORE}")


def _check_term(reading: Reading, i: int) -> None:
    """A word outside of calls."""
    word, before, after = reading.words[i], reading.text(i - 1), reading.text(i + 1)
    if word.kind == "number":
        sums = before in ("", "~", "+", "-", "(") and after in ("", "+", "-", ")", *BARS)
        if before in POWERS or (sums and word.text in ("0", "1")):
            return
        if before in BARS:
            raise reading.refuse(f"'|' is followed by {word.text}; name the grouping factor there")
        arithmetic = "2 * x"
        if after in ("*", "/") and i + 2 < len(reading.words):
            arithmetic = reading.piece(i, i + 2)
        elif before in ("*", "/", "+", "-") and i > 1:
            arithmetic = reading.piece(i - 2, i)
        raise reading.refuse(
            f"the number {word.text} is no term; write I({arithmetic}) for arithmetic, and 0 or 1 "
            "for no intercept or one"
        )
    if word.kind == "text" and before != "[":
        raise reading.refuse(f"the text {word.text} is no term; write a column's name unquoted")
    if word.kind == "name" and word.text in ("True", "False", "None", *_LITERALS):
        raise reading.refuse(f"{word.text} is no term; name a column there")
    if word.text == ".":
        raise reading.refuse(
            "'.' stands for the other columns in the formula's right side alone; name the columns"
        )
    if word.text in ("+", "-") and before in ("*", "/", ":", "%in%", *POWERS):
        raise reading.refuse(f"nothing stands between {before!r} and {word.text!r}; leave one out")
    nothing_before = word.text == "-" and before in ("", *OPEN, *OPERATORS)
    if nothing_before and reading.words[i + 1].kind != "number":
        raise reading.refuse(f"there is nothing to take {after!r} from; leave '-{after}' out")
    if word.text in POWERS:
        _check_crossing(reading, i)


def _check_crossing(reading: Reading, i: int) -> None:
    """(a + b)^2 crosses a and b; x^2 would be x crossed with itself, which is x."""
    first = next((a for a, b in reading.closing.items() if b == i - 1), None)
    inside = () if first is None else reading.inside(first)
    if (
        first is None
        or reading.is_call(first)
        or not any(reading.text(j) in ("+", "-", "*", "/") for j in inside)
    ):
        start = i - 1 if first is None else first - reading.is_call(first)
        base, power = reading.piece(start, i - 1), reading.text(i + 1)
        raise reading.refuse(
            f"{base}{reading.text(i)}{power} would be {base} crossed with itself; write "
            f"I({base}**{power}) for the power"
        )


def _check_bar(reading: Reading, i: int, tilde: int) -> None:
    bracket = reading.opener[i]
    if i < tilde:
        raise reading.refuse(
            "'|' stands before ~; write p(y, n) for counts out of n trials, and Surv(time, event) "
            "for censored times"
        )
    if bracket < 0 or reading.text(bracket) != "(":
        raise reading.refuse("'|' stands outside parentheses; write the random effect as (1|group)")
    first = bracket - reading.is_call(bracket)
    written = reading.piece(first, reading.closing[bracket])
    if reading.is_call(bracket) and reading.text(bracket - 1) in _NO_BARS:
        raise reading.refuse(f"{written} has a '|'; for 'or' {BEFORE}")
    if (
        sum(
            reading.opener[j] == bracket and reading.text(j) in BARS
            for j in reading.inside(bracket)
        )
        > 1
    ):
        raise reading.refuse(f"{written} has two '|'; write a term for each factor, (1|g) + (1|h)")
    left = [reading.text(j) for j in range(bracket + 1, i)]
    if left in (["0"], ["-", "1"]):
        raise reading.refuse(f"{written} has no effect; write (1|group) for a random intercept")
    before, after = reading.text(first - 1), reading.text(reading.closing[bracket] + 1)
    if reading.opener[bracket] >= 0 or before not in ("", "~", "+") or after not in ("", "+", "-"):
        raise reading.refuse(
            f"{written} is a random effect, which stands by itself; join it to the rest by + alone"
        )


# --- R's words in those of formulae --------------------------------------------------------------


def translated(formula: str) -> str:
    """The formula as formulae reads it; a ValueError about what has no meaning.

    >>> from jalax.models._syntax import translated
    >>> translated("y ~ (a + b)^2 + poly(x, 2, raw = TRUE) + (x - 1 | g)")
    'y ~ ( a + b ) ** 2 + poly ( x , 2 , raw = True ) + ( 0 + x | g )'
    """
    reading = read(formula)
    _check_meaning(reading)
    out: list[str] = []
    skipped: set[int] = set()
    for i, word in enumerate(reading.words):
        if word.text in ("::", ":::"):  # splines::ns
            out.pop()
        elif word.text == "(" and (bar := reading.bars.get(i)):
            out.append("(")
            moved, intercept = _numbers_in_front(reading, i, bar)
            skipped |= moved
            out += intercept
        elif i not in skipped:
            out += _word(reading, i)
    return " ".join(out)


def _numbers_in_front(reading: Reading, bracket: int, bar: int) -> tuple[set[int], list[str]]:
    """formulae wants (0 + x|g), where R has (x - 1|g) and (x + 0|g), too."""
    moved: set[int] = set()
    intercept = ""
    for i in range(bracket + 2, bar):
        here = reading.words[i].kind == "number" and reading.opener[i] == bracket
        if here and reading.text(i - 1) in ("+", "-"):
            moved |= {i - 1, i}
            intercept = "0" if (reading.text(i - 1) == "-") == (reading.text(i) == "1") else "1"
    if not moved:
        return moved, []
    if reading.words[bracket + 1].kind == "number":
        moved.add(bracket + 1)
    left = set(range(bracket + 1, bar)) - moved
    plus = [] if not left or reading.text(min(left)) in ("+", "-") else ["+"]
    return moved, [intercept, *plus]


def _word(reading: Reading, i: int) -> list[str]:
    word, before, after = reading.words[i], reading.text(i - 1), reading.text(i + 1)
    if word.kind == "number":
        return [_plain_number(word.text)]
    if word.text == "^":
        return ["**"]
    if word.text == "%in%":
        return [":"]
    if word.kind == "text" and word.text[1:-1] in CODINGS and reading.in_call[i] and before == ",":
        return [CODINGS[word.text[1:-1]], "(", ")"]
    if word.kind != "name":
        return [word.text]
    if before == "=" and word.text in ("T", "F") and after != "(":
        return ["True" if word.text == "T" else "False"]
    if word.text in CODINGS and reading.in_call[i] and before in (",", "=") and after != "(":
        return [CODINGS[word.text], "(", ")"]
    if after == "(":
        return ["factor" if word.text == "as.factor" else word.text]
    if after == "=" and word.text == "Boundary.knots":
        return ["boundary_knots"]
    known = _LITERALS.get(word.text, word.text)
    return [known if PLAIN.fullmatch(known) else f"`{known}`"]


def _plain_number(text: str) -> str:
    """Without R's L, and without an exponent."""
    text = text.rstrip("L")
    if text.isdigit():
        return text
    value = np.format_float_positional(float(text), trim="0")
    return value if value[0].isdigit() else text


# --- a whole formula -----------------------------------------------------------------------------


def expanded(formula: str, columns: list[str], elsewhere: list[str]) -> str:
    """A formula with both of its sides, and the other columns in place of a dot.

    Args:
        formula: as it was written.
        columns: those of the data.
        elsewhere: columns that have another task, such as weights.
    """
    reading = read(formula)
    tilde = next(i for i, word in enumerate(reading.words) if word.text == "~")
    if tilde == 0:
        raise ValueError(f"{formula!r} has no response: write 'y {formula.strip()}'.")
    if tilde + 1 == len(reading.words):
        raise reading.refuse("nothing stands after ~; write y ~ 1 + (1|group) for no columns")
    _check_left(reading, tilde)
    dots = [i for i, w in enumerate(reading.words) if w.text == "." and not reading.in_call[i]]
    if dots:
        formula = _without_dots(reading, dots, tilde, columns, elsewhere)
    translated(formula)  # all that is wrong with it is said before the data are looked at
    return formula


def _without_dots(
    reading: Reading, dots: list[int], tilde: int, columns: list[str], elsewhere: list[str]
) -> str:
    if dots[0] < tilde or any(reading.opener[i] in reading.bars for i in dots):
        raise reading.refuse("'.' stands for the other columns of the fixed effects; name them")
    taken = {*elsewhere, *_names(reading, range(tilde)), *_factors(reading)}
    others = [name for name in columns if name not in taken]
    if not others:
        raise reading.refuse("there is no other column that '.' could stand for; leave it out")
    terms = " + ".join(name if PLAIN.fullmatch(name) else f"`{name}`" for name in others)
    formula = reading.formula
    for i in reversed(dots):
        at = reading.words[i].at
        formula = f"{formula[:at]}({terms}){formula[at + 1 :]}"
    return formula


def _check_left(reading: Reading, tilde: int) -> None:
    for i in range(tilde):
        if reading.text(i) in BARS:
            _check_bar(reading, i, tilde)
        if reading.opener[i] < 0 and reading.text(i) in OPERATORS:
            left = reading.piece(0, tilde - 1)
            if reading.text(i) == "/":
                raise reading.refuse(
                    f"{left} is a share of trials; write p({left.replace('/', ', ')}) ~ ..., "
                    f"without weights, or I({left}) for a measurement"
                )
            raise reading.refuse(f"the response is arithmetic; write I({left})")


def _names(reading: Reading, places: range) -> Iterator[str]:
    for i in places:
        if reading.words[i].kind in ("name", "quoted"):
            yield reading.text(i).strip("`")


def _factors(reading: Reading) -> Iterator[str]:
    """The columns after a bar."""
    for bracket, bar in reading.bars.items():
        if bracket >= 0:
            yield from _names(reading, range(bar, reading.closing[bracket]))


def call_of(left: str) -> tuple[str, list[str]] | None:
    """The function and the arguments of a side that is one call; None: it is none."""
    reading = read(left)
    bracket = 1
    if len(reading.words) < 3 or not reading.is_call(1) or reading.words[0].kind != "name":
        return None
    if reading.closing[1] + 1 != len(reading.words):
        return None
    commas = [j for j in reading.inside(1) if reading.opener[j] == 1 and reading.text(j) == ","]
    ends = [bracket, *commas, reading.closing[1]]
    pieces = [reading.piece(a + 1, b - 1) for a, b in itertools.pairwise(ends)]
    return reading.text(0), pieces


def columns_message(name: str, columns: list[str], what: str = "the data have") -> str:
    """A name that no column has, and the one that may have been meant."""
    import difflib

    near = difflib.get_close_matches(name, columns, 1, 0.6)
    lower = {column.lower(): column for column in columns}
    near = [lower[name.lower()]] if name.lower() in lower else near
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no column {name!r}{hint}; {what} {', '.join(columns)}."
