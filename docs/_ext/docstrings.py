"""Docstrings are written in Markdown's manner; autodoc wants reStructuredText."""

from __future__ import annotations

import inspect
import re

import jalax

# Where a name in backticks may be at home. The reference has an object under the first address that
# it has here.
SPACES = (
    "models",
    "missing",
    "datasets",
    "problems",
    "starts",
    "callbacks",
    "resampling",
    "weights",
    "options",
)
SPACES += (
    "families",
    "contrasts",
    "covariances",
    "predictions",
    "residuals",
    "references",
    "results",
    "rivals",
    "runtime",
    "extend",
)
PLACES = (("jalax", jalax), *((f"jalax.{name}", getattr(jalax, name)) for name in SPACES))


def full_name(name: str) -> str | None:
    """The full name behind a public one as docstrings spell it: `fit`, `FitResult.replay`."""
    bare = name.removeprefix("jalax.").removesuffix("()")
    for prefix, module in PLACES:
        inside = bare.removeprefix(prefix.removeprefix("jalax.") + ".")
        first, *parts = inside.split(".")
        owner = None if first.startswith("_") else getattr(module, first, None)
        if owner is None or inspect.ismodule(owner):
            continue
        thing = owner
        for part in parts:
            thing = None if part.startswith("_") else getattr(thing, part, None)
        if thing is not None:
            return f"{_home(first, owner)}.{inside}"
    return None


def _home(name: str, thing: object) -> str:
    return next(prefix for prefix, module in PLACES if getattr(module, name, None) is thing)


def code(found: re.Match) -> str:
    text = " ".join(found[1].split())
    full = full_name(text) if re.fullmatch(r"[\w.]+(\(\))?", text) else None
    return f"``{text}``" if full is None else f":py:obj:`{text} <{full}>`"


def formula(found: re.Match) -> str:
    rows = "\n".join("    " + row.strip() for row in found[1].strip().splitlines())
    return f"\n\n.. math::\n\n{rows}\n\n"


def convert(text: str) -> str:
    """`$$` blocks become math directives, $x$ the role, `name` a reference or a literal."""
    text = re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", code, text)
    text = re.sub(r"\$\$(.+?)\$\$", formula, text, flags=re.DOTALL)
    return re.sub(r"\$([^$]+)\$", lambda found: f":math:`{' '.join(found[1].split())}`", text)


def returns(text: str) -> str:
    """As a field: napoleon would take what stands before a colon for a type."""
    section = r"^Returns:\n((?:    .*\n|\n)+)"
    return re.sub(section, lambda found: f":returns:\n{found[1]}", text + "\n", flags=re.M)


def on_docstring(app, what, name, thing, options, lines) -> None:
    """All but the examples, which begin with >>> and end at an empty line."""
    parts = re.split(r"(^ *>>> .*?(?:\n\s*\n|\Z))", "\n".join(lines), flags=re.M | re.S)
    converted = [part if i % 2 else convert(part) for i, part in enumerate(parts)]
    lines[:] = returns("".join(converted)).split("\n")
    if what in ("attribute", "property"):
        lines.insert(0, "")  # here it would take the beginning of the sentence for a type


def setup(app):
    app.connect("autodoc-process-docstring", on_docstring, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
