"""The names of covariances around bar terms, `ar1(0 + week | g)`: where they are in a formula."""

from __future__ import annotations

import re

# A name right before the parenthesis of a bar term.
_CALL = re.compile(r"([A-Za-z_.][\w.]*)\s*$")


def wrapped_terms(formula: str) -> list[tuple[str | None, str]]:
    """Each bar term, with the name of the covariance around it."""
    return [(name, formula[first:last]) for name, _, first, last in _terms(formula)]


def plain(formula: str) -> str:
    """The formula without the names of covariances, which formulae does not know."""
    for _, begin, first, _ in reversed(_terms(formula)):
        formula = formula[:begin] + formula[first:]
    return formula


def _terms(formula: str) -> list[tuple[str | None, int, int, int]]:
    """Name, where it begins, and the beginning and end of the parentheses of each bar term."""
    found, open_at = [], []
    for i, letter in enumerate(formula):
        if letter == "(":
            open_at.append((i, False))
        elif letter == "|" and open_at:
            open_at[-1] = (open_at[-1][0], True)
        elif letter == ")" and open_at:
            first, has_bar = open_at.pop()
            if has_bar:
                call = _CALL.search(formula[:first])
                name = call.group(1) if call else None
                found.append((name, call.start() if call else first, first, i + 1))
    return found
