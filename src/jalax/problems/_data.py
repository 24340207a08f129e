"""Reading the tables of the problems."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import numpy as np

from jalax.datasets._read import read_columns

Table = dict[str, np.ndarray]
REPOSITORY = Path(__file__).parents[3] / "benchmarks" / "data"


def table(name: str) -> Table:
    """The columns of a file in data/: integers, floats, or text such as "01" as it stands."""
    file = resources.files("jalax.problems").joinpath("data", name)
    return {title: _typed(values) for title, values in read_columns(file).items()}


def table_of_the_repository(name: str, folder: str | os.PathLike | None = None) -> Table:
    """The same for a file that is too large for the package."""
    file = (REPOSITORY if folder is None else Path(folder)) / name
    if not file.is_file():
        raise FileNotFoundError(
            f"there is no file {file}: {name} is not installed with jalax, it is in the folder "
            "benchmarks/data of jalax's repository, and folder= says where else to look."
        )
    return {title: _typed(values) for title, values in read_columns(file).items()}


def _typed(values: list[str]) -> np.ndarray:
    if any(value[:1] == "0" and value[1:2].isdigit() for value in values):
        return np.array(values)  # a label: the number would lose its leading zero
    for kind in (np.int64, np.float64):
        try:
            return np.array(values).astype(kind)
        except ValueError:
            continue
    return np.array(values)


def indicators(column: np.ndarray, levels: tuple) -> np.ndarray:
    """One column of 0 and 1 for each of the levels: all but the first are R's treatment coding."""
    return (column[:, None] == np.array(levels)).astype(float)


def counted_within(member: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The members of each group as numbers from 0, to index its own effects by."""
    number = np.zeros_like(member)
    for one in np.unique(group):
        rows = group == one
        number[rows] = np.unique(member[rows], return_inverse=True)[1]
    return number
