"""Tables that are installed with the package."""

from __future__ import annotations

import csv
import dataclasses
import gzip
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any


def columns(name: str) -> dict[str, list[str]]:
    """The columns of a csv file in data/, by name, as text."""
    return read_columns(resources.files("jalax.datasets").joinpath("data", name))


def read_columns(file: Traversable) -> dict[str, list[str]]:
    """The columns of a csv file, gzipped if its name says so."""
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.name.endswith(".gz") else content).decode("utf-8")
    header, *rows = csv.reader(text.splitlines())
    values = zip(*rows, strict=True)
    return {title: list(column) for title, column in zip(header, values, strict=True)}


class Frame:
    """What the data sets of mixed models have in common."""

    factors: tuple[str, ...] = ()

    def to_frame(self) -> Any:
        """A pandas DataFrame, grouping factors as text."""
        import pandas

        fields = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        frame = pandas.DataFrame({name: getattr(self, name) for name in fields})
        return frame.astype(dict.fromkeys(self.factors, "str"))
