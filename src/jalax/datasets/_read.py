"""Tables that are installed with the package."""

from __future__ import annotations

import csv
from importlib import resources


def columns(name: str) -> dict[str, list[str]]:
    """The columns of a csv file in data/, by name, as text."""
    text = resources.files("jalax.datasets").joinpath("data", name).read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    values = zip(*rows, strict=True)
    return {title: list(column) for title, column in zip(header, values, strict=True)}
