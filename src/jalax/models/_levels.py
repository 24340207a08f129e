"""Where levels are: their order, their steps along a line, their coordinates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._formula import Block


class Levels(NamedTuple):
    """What a series or a field runs over: effects that are levels, or the levels of the block."""

    over: str  # the factor, as the formula has it; "": the block's own
    factor: str
    labels: tuple[str, ...]
    is_joint: bool


def levels_of(block: Block, labels: Sequence[str], kind: str) -> Levels:
    """The effects of a term such as (0 + C(week) | g); of one with one effect, the levels of g."""
    if len(block.effects) == 1:
        return Levels("", block.factor, tuple(labels), True)
    parts = [re.fullmatch(r"(.+?)\[(.+)\]", effect) for effect in block.effects]
    factors = {part.group(1) if part else "" for part in parts}
    if len(factors) > 1 or "" in factors:
        raise ValueError(
            f"{kind} runs over the levels of one factor, and the term of {block.name!r} has the "
            f"effects {', '.join(block.effects)}: write {kind}(0 + f | {block.factor}) with a "
            "factor f, or C(f) where f is a number."
        )
    (over,) = factors
    inside = tuple(part.group(2) for part in parts if part)
    return Levels(over, over, inside, False)


# --- along a line --------------------------------------------------------------------------------


def steps(levels: Levels, frame: Any) -> np.ndarray:
    """Whole numbers, a step apart where two levels are next to each other."""
    known = _numbered(levels.labels)
    if known is None:
        _check_order(levels, frame)
        return np.arange(len(levels.labels), dtype=float)
    gaps = np.diff(np.sort(known))
    least = gaps.min(initial=np.inf)
    counts = (known - known.min()) / least
    if np.abs(counts - np.round(counts)).max() > 1e-6 * max(counts.max(), 1.0):
        raise ValueError(
            f"the levels of {levels.factor!r} are not at whole steps of their smallest gap, "
            f"{least:g}: an AR(1) has no correlation for a part of a step. Write exp in place of "
            "ar1 (jalax.covariances.Exponential), whose correlation falls with the distance."
        )
    return np.round(counts)


def _numbered(labels: Sequence[str]) -> np.ndarray | None:
    """Labels that are different numbers, or one word with a number behind it, such as w10."""
    words = [re.fullmatch(r"(\D*)(\d+)", label) for label in labels]
    if len({word.group(1) if word else None for word in words}) == 1 and words[0]:
        labels = [word.group(2) for word in words if word]
    try:
        numbers = np.array([float(label) for label in labels])
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() and len(set(numbers)) == len(numbers) else None


def _check_order(levels: Levels, frame: Any) -> None:
    """Text is sorted by its letters, which is no order in time."""
    column = re.sub(r"^\w+\((\w+)\)$", r"\1", levels.factor)
    categories = getattr(getattr(frame.get(column), "cat", None), "categories", ())
    order = [str(label) for label in categories if str(label) in levels.labels]
    if order != list(levels.labels):
        raise ValueError(
            f"the order of the levels {', '.join(levels.labels[:3])}, ... of {levels.factor!r} is "
            f"not known: make them numbers, or {column!r} an ordered Categorical, "
            f"pandas.Categorical(data[{column!r}], categories=[...], ordered=True)."
        )


def chained(where: np.ndarray) -> dict[str, np.ndarray]:
    """What a chain through these places knows."""
    order = np.argsort(where, kind="stable")
    return {"order": order, "place": np.argsort(order), "gap": np.diff(where[order])}


# --- in space ------------------------------------------------------------------------------------


class Places:
    """Coordinates by label."""

    def __init__(self, labels: Sequence[str], values: Any):
        self.by_label = {str(k): tuple(v) for k, v in zip(labels, values, strict=True)}

    def table(self) -> tuple[list[str], np.ndarray]:
        return list(self.by_label), np.array(list(self.by_label.values()), float)

    def __repr__(self) -> str:
        return f"<{len(self.by_label)} labels>"


def as_places(name: str, given: Any) -> Places | None:
    if given is None or isinstance(given, Places):
        return given
    if hasattr(given, "to_numpy") and hasattr(given, "index"):  # of pandas
        labels, values = list(given.index), given.to_numpy()
    elif isinstance(given, Mapping):
        labels, values = list(given), list(given.values())
    else:
        raise TypeError(
            f"{name}(coordinates=...) is a dict from the labels of levels to their coordinates, "
            f"or a DataFrame whose index has the labels, got {type(given).__name__}."
        )
    try:
        found = np.asarray(values, float).reshape(len(labels), -1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}(coordinates=...) must have equally many numbers for each label."
        ) from error
    if not found.size or not np.isfinite(found).all():
        raise ValueError(f"{name}(coordinates=...) must have finite numbers for each label.")
    return Places([str(label) for label in labels], found)


def located(levels: Levels, places: Places | None) -> np.ndarray:
    """(levels, coordinates): no two at the same place."""
    known = _of_labels(levels) if places is None else places.by_label
    missing = [label for label in levels.labels if label not in known]
    if missing:
        raise ValueError(
            f"the coordinates of {levels.factor!r} have no entry for the level {missing[0]!r}; "
            f"they begin with {', '.join(map(repr, list(known)[:3]))}."
        )
    where = np.array([known[label] for label in levels.labels], float)
    _, first, back = np.unique(where, axis=0, return_index=True, return_inverse=True)
    same = np.flatnonzero(first[back.ravel()] != np.arange(len(where)))
    if same.size:
        other = first[back.ravel()[same[0]]]
        raise ValueError(
            f"the levels {levels.labels[other]!r} and {levels.labels[same[0]]!r} of "
            f"{levels.factor!r} are at the same place, so that they are one: give both one label."
        )
    return where


def _of_labels(levels: Levels) -> dict[str, tuple[float, ...]]:
    """Coordinates that the labels themselves are, "1.5" or "(2, 3)"."""
    try:
        each = [tuple(map(float, label.strip("() ").split(","))) for label in levels.labels]
    except ValueError:
        each = []
    if not each or len({len(one) for one in each}) > 1 or not np.isfinite(each).all():
        raise ValueError(
            f"the levels of {levels.factor!r} are {', '.join(map(repr, levels.labels[:3]))}, ..., "
            "which are no coordinates: pass them, covariances={...: "
            "jalax.covariances.Exponential(coordinates={label: (x, y), ...})}."
        )
    return dict(zip(levels.labels, each, strict=True))


def distances(levels: Levels, where: np.ndarray, most: int) -> dict[str, np.ndarray]:
    if len(where) > most:
        raise ValueError(
            f"{levels.factor!r} has {len(where):,} levels, which all depend on each other: this "
            f"covariance is for up to {most:,}. Merge levels that are near each other, or take "
            "jalax.covariances.Exponential over one coordinate, whose levels may be any number."
        )
    return {"distance": np.sqrt(((where[:, None] - where[None]) ** 2).sum(axis=2))}
