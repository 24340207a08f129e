"""The words of a formula and its brackets: where it can be read at all."""

from __future__ import annotations

import re
from typing import NamedTuple

_WORD = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<quoted>`[^`]*`)
    | (?P<text>'[^']*'|"[^"]*")
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?L?)
    | (?P<name>(?:[^\W\d]|\.(?=[^\W\d]))[\w.]*)
    | (?P<sign>%\w*%|:::|::|\*\*|//|<=|>=|==|!=|\|\||&&|.)
    """,
    re.VERBOSE | re.DOTALL,
)
PLAIN = re.compile(r"[^\W\d_][\w.]*")  # a name that formulae reads without backquotes
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")": "(", "]": "[", "}": "{"}
BARS = ("|", "||")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
POWERS = ("**", "^")
OPERATORS = (
    *("~", "+", "-", "*", "/", ":", "=", "%in%", "::", ":::"),
    *(*POWERS, *BARS, *COMPARISONS),
)
_EMPTY = ("Treatment", "Sum", "Helmert", "Poly")  # calls without arguments
_OPERANDS = ("quoted", "text", "number", "name")
BEFORE = "compute it before, as a column of the data"


LONGEST = 10_000  # characters


class Word(NamedTuple):
    kind: str  # "quoted", "text", "number", "name" or "sign"
    text: str
    at: int  # its place in the formula


class Reading(NamedTuple):
    """The words of a formula, and the brackets that they are in."""

    formula: str
    words: list[Word]
    opener: list[int]  # the innermost bracket around each word, as its place; -1: none
    closing: dict[int, int]  # of each bracket
    bars: dict[int, int]  # the first bar directly inside a bracket
    in_call: list[bool]  # whether the word is an argument of a function

    def text(self, i: int) -> str:
        return self.words[i].text if 0 <= i < len(self.words) else ""

    def is_call(self, i: int) -> bool:
        """Whether the bracket at `i` holds the arguments of a function."""
        called = i > 0 and self.words[i - 1].kind in ("name", "quoted") and self.text(i) == "("
        return called or self.text(i) == "{"

    def inside(self, bracket: int) -> range:
        return range(bracket + 1, self.closing[bracket])

    def piece(self, first: int, last: int) -> str:
        """What is written from one word to another, both included."""
        end = self.words[last]
        return self.formula[self.words[first].at : end.at + len(end.text)]

    def refuse(self, sentence: str) -> ValueError:
        return ValueError(f"the formula {self.formula!r} cannot be read: {sentence}.")


def read(formula: str) -> Reading:
    """The words and brackets of a formula, all of which have a meaning."""
    if len(formula) > LONGEST:
        raise ValueError(f"the formula {formula[:40]!r}... is longer than {LONGEST} characters.")
    found = [
        Word(str(match.lastgroup), match[0], match.start())
        for match in _WORD.finditer(formula)
        if match.lastgroup != "space"
    ]
    opener, closing = _brackets(formula, found)
    bars = {opener[i]: i for i, w in reversed([*enumerate(found)]) if w.text in BARS}
    reading = Reading(formula, found, opener, closing, bars, [])
    if not found:
        raise reading.refuse("it is empty: write 'y ~ x + (1|group)'")
    _check_signs(reading)
    _check_order(reading)
    holds = {-1: False}
    for i in reading.closing:  # outer brackets come first
        holds[i] = holds[reading.opener[i]] or (reading.is_call(i) and i not in bars)
    return reading._replace(in_call=[holds[i] for i in reading.opener])


def _brackets(formula: str, found: list[Word]) -> tuple[list[int], dict[int, int]]:
    opener: list[int] = []
    closing: dict[int, int] = {}
    stack: list[int] = []
    for i, word in enumerate(found):
        if word.kind == "sign" and word.text in CLOSE:
            if not stack or found[stack[-1]].text != CLOSE[word.text]:
                raise ValueError(
                    f"the formula {formula!r} cannot be read: {word.text!r} after "
                    f"{formula[: word.at][-20:]!r} closes nothing; take it out, or open it before."
                )
            closing[stack.pop()] = i
        opener.append(stack[-1] if stack else -1)
        if word.kind == "sign" and word.text in OPEN:
            closing[i] = -1  # in the order of opening
            stack.append(i)
    if stack:
        word = found[stack[-1]]
        raise ValueError(
            f"the formula {formula!r} cannot be read: {formula[word.at :][:20]!r} is not closed; "
            f"add {OPEN[word.text]!r}."
        )
    return opener, closing


_SIGNS = {
    "$": "take a column by its name alone, x for data$x",
    "@": "take a column by its name alone",
    "'": "a text is not closed; add the quote",
    '"': "a text is not closed; add the quote",
    "`": "a name in backquotes is not closed; add the backquote",
    "//": f"// has no meaning here; {BEFORE}",
    "&": f"'and' of two conditions has no meaning here; {BEFORE}, or write x:z",
    "&&": f"'and' of two conditions has no meaning here; {BEFORE}, or write x:z",
    "!": f"'not' has no meaning here; {BEFORE}, or write I(x != 'a')",
}


def _check_signs(reading: Reading) -> None:
    known = {*OPERATORS, *OPEN, *CLOSE, ",", "."}
    for word in reading.words:
        if word.kind == "sign" and word.text not in known:
            usual = f"{word.text!r} has no meaning in a formula; {BEFORE}"
            raise reading.refuse(_SIGNS.get(word.text, usual))
        if word.kind in ("quoted", "text"):
            _check_quoted(reading, word)
    if sum(word.text == "~" and word.kind == "sign" for word in reading.words) > 1:
        raise reading.refuse("it has two ~; write one, with the response before it")


def _check_quoted(reading: Reading, word: Word) -> None:
    """The formula is cut at its signs, and a text may not have one of these."""
    inner, depth = word.text[1:-1], 0
    for letter in inner:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
    what = "column" if word.kind == "quoted" else "level"
    if depth or any(sign in inner for sign in ("|", "~", "+", "'", '"', "\n")) or not inner:
        raise reading.refuse(
            f"{word.text} has a sign with a meaning of its own in a formula, or nothing inside; "
            f"rename that {what} before"
        )


def _check_order(reading: Reading) -> None:
    """Operands and operators take turns."""
    words = reading.words
    for i, word in enumerate(words):
        before = words[i - 1] if i else None
        ends = before is not None and (before.kind in _OPERANDS or before.text in (*CLOSE, "."))
        if word.kind in _OPERANDS or word.text in ("(", "{", "."):
            called = word.text == "(" and before is not None and before.kind in ("name", "quoted")
            if ends and not called:
                raise ValueError(
                    f"the formula {reading.formula!r} cannot be read from {word.text!r} on: an "
                    "operator such as + is missing before it."
                )
        elif word.text == "[" and (before is None or before.kind not in ("name", "quoted")):
            raise reading.refuse("'[' follows no name; leave it out")
        elif not ends and word.text in OPERATORS and word.text not in ("+", "-", "~"):
            raise reading.refuse(_nothing_before(reading, i))
        last = i + 1 == len(words) or words[i + 1].text in (*CLOSE, ",", "~")
        if last and word.kind == "sign" and word.text in (*OPERATORS, ",") and word.text != "~":
            raise reading.refuse(_nothing_after(reading, i))
        empty = word.text in ("(", "{") and reading.closing[i] == i + 1
        if empty and (before is None or before.text not in _EMPTY):
            first = i - (before is not None and before.kind == "name")
            written = reading.piece(first, i + 1)
            raise reading.refuse(f"{written} has nothing inside; name a column there")


def _nothing_before(reading: Reading, i: int) -> str:
    if reading.text(i) in BARS:
        return "nothing stands before '|'; write (1|group) for a random intercept"
    return f"nothing stands before {reading.text(i)!r}; leave it out, or name a column there"


def _nothing_after(reading: Reading, i: int) -> str:
    if reading.text(i) in BARS:
        return "nothing stands after '|'; name the grouping factor there, as in (1|group)"
    return f"nothing stands after {reading.text(i)!r}; leave it out, or name a column there"
