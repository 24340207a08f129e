"""Which rows of the data a model is of: `subset=`, and rows with missing values."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np


class LeftOut(NamedTuple):
    """Rows with missing values, which the model does not have."""

    rows: int
    of: int  # all rows, those with missing values among them
    columns: tuple[str, ...]  # where the values are missing

    @property
    def sentence(self) -> str:
        return (
            f"{self.rows} of {self.of} rows have missing values, in {', '.join(self.columns)}, and "
            "are left out. missing=jalax.missing.Refuse() refuses such data."
        )


@dataclasses.dataclass(frozen=True)
class Drop:
    """Rows with a missing value in a column that the model uses are left out, R's `na.omit`.

    A warning names the columns, and the summary has their number. `fitted()` and `residuals()` have
    the index of the rows that are kept.
    """

    def rows(self, frame: Any, names: list[str]) -> tuple[np.ndarray, LeftOut | None]:
        """Which rows are kept, (n,), and what is said of the others."""
        holes = {name: np.asarray(frame[name].isna()) for name in dict.fromkeys(names)}
        there = ~np.any(list(holes.values()), axis=0)
        columns = tuple(name for name, hole in holes.items() if hole.any())
        if not there.any():
            raise ValueError(
                f"every row has a missing value in {', '.join(columns)}: nothing is left to fit."
            )
        if there.all():
            return there, None
        return there, LeftOut(int((~there).sum()), there.size, columns)


@dataclasses.dataclass(frozen=True)
class Refuse:
    """Missing values in a column that the model uses are an error, R's `na.fail`."""

    def rows(self, frame: Any, names: list[str]) -> tuple[np.ndarray, LeftOut | None]:
        for name in names:
            if missing := int(frame[name].isna().sum()):
                raise ValueError(
                    f"column {name!r} has {missing} missing value(s): drop those rows "
                    f"(data.dropna(subset=[{name!r}])) or impute them first."
                )
        return np.ones(len(frame), bool), None


Missing = Drop | Refuse


def in_subset(frame: Any, subset: Any) -> Any:
    """The rows of `subset`, a boolean array or the name of a boolean column."""
    import pandas

    if subset is None:
        return frame
    if isinstance(subset, str):
        if subset not in frame.columns:
            raise ValueError(
                f"subset={subset!r} is no column of the data. Give the name of a boolean column, "
                "or a boolean array with an entry for each row, such as data['age'] > 5."
            )
        chosen = frame[subset]
    else:
        chosen = of_rows("subset", subset, frame)
    if pandas.api.types.infer_dtype(chosen, skipna=True) != "boolean":
        raise TypeError(
            f"subset must be boolean, true for the rows to fit, got {chosen.dtype}: write a "
            "comparison, such as data['age'] > 5."
        )
    keep = np.array(chosen.notna())  # R leaves out rows of which it is not known, too
    keep[keep] = chosen[keep].to_numpy(bool)
    if not keep.any():
        raise ValueError("subset is true for no row: nothing is left to fit.")
    return without(frame, keep)


def without(frame: Any, keep: np.ndarray) -> Any:
    """The rows to keep, and only those categories that they have."""
    import pandas

    if keep.all():
        return frame
    frame = frame[keep].copy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pandas.CategoricalDtype):
            frame[name] = frame[name].cat.remove_unused_categories()
    return frame


def of_rows(what: str, values: Any, frame: Any) -> Any:
    """An array with an entry for each row of the data, as a column of theirs."""
    import pandas

    if isinstance(values, pandas.Series) and not values.index.equals(frame.index):
        raise ValueError(
            f"{what} is a Series with another index than the data: pass its to_numpy(), in the "
            "order of the rows."
        )
    array = values if isinstance(values, pandas.Series) else np.asarray(values)
    if np.shape(array) != (len(frame),):
        raise ValueError(
            f"{what} must be the name of a column, or have one entry for each of the {len(frame)} "
            f"rows of the data; its shape is {np.shape(array)}."
        )
    return pandas.Series(array, index=frame.index)
