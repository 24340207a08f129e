"""The rows of a mixed model's data, and the groups that its model lays them out in."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jalax._model.groups import Slots, by_group
from jalax.models._density import responses
from jalax.models._mixed import MixedDesign


def _places(mixed: MixedDesign) -> tuple[np.ndarray, int, Slots | None] | None:
    """Where each row is, as `by_group` takes it; None: one joint latent, rows as they are."""
    if mixed.outer is None:
        return None
    block = next(block for block in mixed.design.blocks if block.factor == mixed.outer)
    return block.index, len(block.labels), mixed.slots


def to_rows(mixed: MixedDesign, values: Any) -> np.ndarray:
    """(..., G, L) as the model has it, in the order of the data's rows, (..., n)."""
    values, places = np.asarray(values), _places(mixed)
    if places is None:
        return values
    row = by_group(np.arange(1, mixed.num_rows + 1), *places)  # 0: padding
    out = np.empty((*values.shape[:-2], mixed.num_rows), values.dtype)
    out[..., row[row > 0] - 1] = values[..., row > 0]
    return out


def to_layout(mixed: MixedDesign, rows: np.ndarray) -> np.ndarray:
    """The inverse of `to_rows`."""
    places = _places(mixed)
    return rows if places is None else np.moveaxis(by_group(rows.T, *places), -1, 0)


def with_responses(mixed: MixedDesign, data: Any, rows: np.ndarray) -> list[Any]:
    """For each leaf of the model's data the one with (num, n) new responses; None: it stays."""
    y = to_layout(mixed, np.asarray(rows, np.asarray(data["y"]).dtype))
    new = jax.vmap(lambda y: responses(mixed.family, y, data))(y)
    every = {name: new.get(name, jax.tree.map(lambda _: None, data[name])) for name in data}
    return jax.tree.leaves(every, is_leaf=lambda leaf: leaf is None)
