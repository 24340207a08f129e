"""Rows with a group label, as the padded arrays and the mask a `GroupedModel` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike


class Groups(NamedTuple):
    """What `group_by` returns; group i of every array belongs to `labels[i]`."""

    data: dict[str, np.ndarray]  # (G, rows of the largest group, ...), and "mask"
    labels: np.ndarray  # (G,), sorted
    sizes: np.ndarray  # (G,), rows of each group
    levels: dict[str, np.ndarray]  # by the names in `levels=`: (G, L), labels, or None


class NestedGroups(NamedTuple):
    """What `group_by` returns of units within groups: data, labels and sizes are of the units."""

    data: dict[str, np.ndarray]
    labels: np.ndarray
    sizes: np.ndarray
    within: np.ndarray  # the group of each unit, for `jalax.Inner`


class Slots(NamedTuple):
    """Where rows stand in their groups."""

    place: np.ndarray  # (n,)
    width: int  # places of each group


@overload
def group_by(
    data: Any, key: Any, *, once: Sequence[str] = ..., levels: Sequence[str] = ...
) -> Groups: ...


@overload
def group_by(data: Any, key: Any, within: str) -> NestedGroups: ...


def group_by(
    data: Any,
    key: Any,
    within: str | None = None,
    *,
    once: Sequence[str] = (),
    levels: Sequence[str] = (),
) -> Groups | NestedGroups:
    """Rows gathered by group, padded to the largest group, with a mask of real rows.

    Args:
        data: a pandas DataFrame, or a dict of arrays that lead with the rows.
        key: the name of the column that holds the group of each row (it is left out of the
            result), or an array of labels, integers or strings, one a row.
        within: the name of a column with the outer group of each row, where the groups are units
            of a `jalax.NestedModel`: communities of mothers. It is left out of the result, too.
        once: names of columns that are the same in all rows of a group, such as its size or its
            treatment: they come once a group, (G, ...).
        levels: names of columns with labels of an inner factor, for models with a latent for each
            of its levels in a group, where groups have more of them or fewer: `data[name]` (G, R)
            is the position of each row's level in its group, and `data["name mask"]` (G, L) tells
            which levels the group has. Latents of the others need a density that integrates to one,
            such as their prior.

    Returns:
        `data`, a dict of arrays (G, R, ...) for `jalax.GroupedModel`, with `data["mask"]` (G, R)
        true for real rows: multiply each row's log-density by it, or use `jnp.where`; `labels`
        and `sizes` of the groups, the labels of the inner `levels`, and with `within=` the group
        that each lies `within`. The padding repeats a group's first row, where the density is as
        finite as it is there.

    >>> import jalax, numpy as np
    >>> rows = {"y": np.array([1.0, 2.0, 3.0]), "school": np.array(["b", "a", "b"])}
    >>> groups = jalax.group_by(rows, "school")
    >>> groups.labels.tolist(), groups.sizes.tolist()
    (['a', 'b'], [1, 2])
    >>> groups.data["y"].tolist()
    [[2.0, 2.0], [1.0, 3.0]]
    >>> groups.data["mask"].tolist()
    [[True, False], [True, True]]
    >>> rows |= {"class": np.array(["x", "z", "y"]), "urban": np.array([1, 0, 1])}
    >>> groups = jalax.group_by(rows, "school", once=["urban"], levels=["class"])
    >>> groups.data["urban"].tolist(), groups.data["class"].tolist()
    ([0, 1], [[0, 0], [0, 1]])
    >>> groups.data["class mask"].tolist(), groups.levels["class"].tolist()
    ([[True, False], [True, True]], [['z', None], ['x', 'y']])
    """
    if within is not None:
        if once or levels:
            raise ValueError("once= and levels= are not for units within groups: leave them out.")
        return _units_within(data, key, within)
    once, levels = ([names] if isinstance(names, str) else names for names in (once, levels))
    rows = _columns(data)
    if isinstance(key, str):
        if key not in rows:
            raise ValueError(f"there is no column {key!r}; the data have {sorted(map(str, rows))}.")
        if hasattr(data, "columns"):
            _no_empty_category(key, data[key])
        key = rows.pop(key)
    if not rows:
        raise ValueError("group_by needs at least one column besides the group labels.")
    if "mask" in rows:
        raise ValueError("a column is called 'mask', the name of the mask of real rows: rename it.")
    labels, index = positions(key, "the group labels")
    inner = {name: _level_of(rows, name, index, labels.size) for name in levels}
    rows |= {name: local for name, (local, _, _) in inner.items()}
    for name, values in rows.items():
        _check_length(name, values, index)
        if values.dtype.kind not in "biuf":
            raise TypeError(
                f"column {name!r} is not numeric ({values.dtype}): encode text or categories as "
                "numbers first, or leave the column out."
            )
    sizes = np.bincount(index, minlength=labels.size)
    rows["mask"] = np.ones(len(index), bool)
    padded = {name: by_group(values, index, labels.size) for name, values in rows.items()}
    for name, values in padded.items():
        if name != "mask":  # a zero may lie outside of the model's domain, and log(0) has no slope
            mask = padded["mask"].reshape(padded["mask"].shape + (1,) * (values.ndim - 2))
            padded[name] = np.where(mask, values, values[:, :1])
    padded |= {name: _once(padded, name, labels) for name in once}
    padded |= {f"{name} mask": there for name, (_, there, _) in inner.items()}
    return Groups(padded, labels, sizes, {name: of for name, (_, _, of) in inner.items()})


def _check_length(name: str, values: np.ndarray, index: np.ndarray) -> None:
    if len(values) != len(index):
        raise ValueError(
            f"column {name!r} has {len(values)} rows, and there are {len(index)} group labels."
        )


def _level_of(
    rows: dict[str, np.ndarray], name: str, group: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The position of each row's level in its group; (G, L): is there such a level, its label."""
    if name not in rows:
        raise ValueError(f"levels= names {name!r}; the columns are {sorted(map(str, rows))}.")
    _check_length(name, rows[name], group)
    labels, index = positions(rows[name], f"the levels of {name!r}")
    local, known = local_levels(index, group, groups)
    of_groups = labels.astype(object)[known]
    of_groups[known < 0] = None
    return local, known >= 0, of_groups


def local_levels(
    level: np.ndarray, group: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """The level of each row counted within its group, and (G, L) the levels so counted, or -1."""
    pairs, row = np.unique(np.stack([group, level]), axis=1, return_inverse=True)
    sizes = np.bincount(pairs[0], minlength=groups)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    position = np.arange(pairs.shape[1]) - first
    known = np.full((groups, sizes.max()), -1)
    known[pairs[0], position] = pairs[1]
    return position[row.reshape(-1)], known


def _once(padded: dict[str, np.ndarray], name: str, labels: np.ndarray) -> np.ndarray:
    """The column of a group, of which all rows are the same."""
    if name not in padded:
        raise ValueError(f"once= names {name!r}; the columns are {sorted(map(str, padded))}.")
    values = padded[name]  # whose padding repeats the first row
    other = (values != values[:, :1]).reshape(len(values), -1).any(axis=1)
    if other.any():
        raise ValueError(
            f"once= names {name!r}, which is not the same in all rows of group "
            f"{labels[np.argmax(other)].item()!r}: leave it out of once=."
        )
    return values[:, 0]


def _units_within(data: Any, key: Any, within: str) -> NestedGroups:
    columns = _columns(data)
    if within not in columns:
        raise ValueError(f"there is no column {within!r}; the data have {sorted(columns)}.")
    labels, outer = positions(columns.pop(within), f"the labels of {within!r}")
    unit = columns.pop(key) if isinstance(key, str) and key in columns else key
    found = group_by(columns, unit)
    _, index = positions(unit)
    pairs = np.unique(np.stack([index, outer]), axis=1)
    unit_of_pair, times = np.unique(pairs[0], return_counts=True)
    if (times > 1).any():
        twice = unit_of_pair[times > 1][0]
        first, second = (labels[i] for i in pairs[1][pairs[0] == twice][:2])
        raise ValueError(
            f"unit {found.labels[twice]!r} has rows in two groups of {within!r}, {first!r} and "
            f"{second!r}: a unit lies within one group. If they are two units, give them labels "
            "of their own."
        )
    return NestedGroups(found.data, found.labels, found.sizes, labels[pairs[1]])


def _columns(data: Any) -> dict[str, np.ndarray]:
    if not (hasattr(data, "columns") or isinstance(data, Mapping)):
        raise TypeError(
            f"group_by takes a DataFrame or a dict of arrays, got {type(data).__name__}."
        )
    names = list(getattr(data, "columns", data))
    columns = {name: np.asarray(data[name]) for name in names}
    scalars = [name for name, values in columns.items() if values.ndim == 0]
    if scalars:
        raise ValueError(f"column {scalars[0]!r} is a single number: pass one value for each row.")
    return columns


def _no_empty_category(name: str, column: Any) -> None:
    """A pandas categorical may name groups that have no row."""
    categories = getattr(getattr(column, "cat", None), "categories", None)
    if categories is None:
        return
    empty = [label for label in categories if not (column == label).any()]
    if empty:
        raise ValueError(
            f"group {empty[0]!r} of column {name!r} has no rows, and an empty group has nothing to "
            f"tell: drop it, data[{name!r}].cat.remove_unused_categories()."
        )


def positions(labels: ArrayLike, name: str = "groups") -> tuple[np.ndarray, np.ndarray]:
    """The sorted labels, and the position of each observation's label among them."""
    given = np.asarray(labels)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind == "c":
        raise ValueError(f"{name} must be one label for each observation, got shape {given.shape}.")
    if given.dtype.kind == "f" and (given != np.floor(given)).any():  # NaN fails this too
        raise ValueError(
            f"{name} must be integers or strings, found fractions or NaN. Drop "
            "observations without a group, and check that this is not a covariate."
        )
    if given.dtype.kind == "O":  # what pandas stores strings as: None or NaN mean missing
        if any(label is None or label != label for label in given):
            raise ValueError(f"{name} have missing labels. Drop those observations first.")
        given = given.astype(str)  # so that mixed labels can be sorted
    return np.unique(given, return_inverse=True)


def by_group(
    values: np.ndarray, index: np.ndarray, num_groups: int, slots: Slots | None = None
) -> np.ndarray:
    """(n, ...) as (groups, rows of the largest group, ...), padded with zeros.

    `slots`: where each row stands in its group, if not in the order of the rows.
    """
    if slots is not None:
        padded = np.zeros((num_groups, slots.width, *values.shape[1:]), values.dtype)
        padded[index, slots.place] = values
        return padded
    sizes = np.bincount(index, minlength=num_groups)
    order = np.argsort(index, kind="stable")
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    padded = np.zeros((num_groups, sizes.max(), *values.shape[1:]), values.dtype)
    padded[index[order], np.arange(index.size) - first] = values[order]
    return padded


def check_frequencies(name: Any, data: Any) -> None:
    if not isinstance(data, Mapping) or name not in data:
        found = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(
            f"frequencies= is the name of an entry of data, a dict; got {name!r}, and data is "
            f"{found}."
        )
    times = np.asarray(data[name])
    if times.ndim != 1 or times.dtype.kind not in "iuf" or not (times > 0).all():
        raise ValueError(
            f"data[{name!r}] says how often each group occurs: one positive number a group, got "
            f"shape {times.shape}, the smallest {times.min() if times.size else 'none'}."
        )
