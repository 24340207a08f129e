"""A fit's result as a file, and back."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax import _evidence, _store
from jalax._checkpoint import flatten_state
from jalax._finish import as_dict, from_dict
from jalax._processes import is_first
from jalax._result import FitResult, SavedState
from jalax._types import Status

_TREES = ("theta", "free", "particles", "log_weights", "history")
_PLAIN = (
    "status",
    "message",
    "algorithm",
    "num_steps",
    "seconds",
    "path_value",
    "relative",
    "evidence_reason",
)


def save(result: FitResult, path: str | os.PathLike) -> None:
    """`FitResult.save`."""
    arrays: dict[str, np.ndarray] = {}
    meta = {name: getattr(result, name) for name in (*_PLAIN, "labels")}
    for name in _TREES:
        meta[name] = _store.pack(name, getattr(result, name), arrays)
    if isinstance(result.state, SavedState):
        arrays.update(result.state.arrays)
        meta["state"] = result.state.names
    else:
        meta["state"] = flatten_state(result.state, arrays)
    evidence = result.__dict__.get("evidence", result.saved_evidence)  # if it was ever asked for
    known = result.__dict__.get("uncertainty", result.saved_uncertainty)
    if known is not None:
        meta["uncertainty"] = as_dict(known)
    if evidence is not None:
        meta["evidence"] = _evidence.as_dict(evidence)
    if result.origin is None or is_first(result.origin.model.layout):
        _store.write(path, "result", meta, arrays)


def load(path: str | os.PathLike, like: FitResult | None = None) -> FitResult:
    """Read what `FitResult.save` wrote.

    Args:
        path: the file.
        like: a result of the same model; needed only where theta or the latent are containers
            other than dict, list and tuple.
    """
    header, arrays = _store.read(path, "result")
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    plain["status"] = Status(plain["status"])
    labels = header.get("labels")
    trees = {}
    for name in _TREES:
        trees[name] = _store.unpack(header[name], arrays, getattr(like, name, None))
    for name in ("theta", "free", "particles", "log_weights"):
        trees[name] = jax.tree.map(jnp.asarray, trees[name])
    names = header["state"]
    state = SavedState(names, {name: arrays[name] for name in names})
    evidence = header.get("evidence")
    known = header.get("uncertainty")
    return FitResult(
        **trees,
        **plain,
        state=state,
        saved_evidence=None if evidence is None else _evidence.from_dict(evidence),
        saved_uncertainty=None if known is None else from_dict(known),
        labels=None if labels is None else tuple(labels),
    )
