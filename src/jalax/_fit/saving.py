"""A fit's result as a file, and back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence import log_evidence, uncertainty
from jalax._evidence.log_evidence import Evidence
from jalax._evidence.record import FitRecord, Maxima, SavedState
from jalax._evidence.uncertainty import Uncertainty
from jalax._fit import origins
from jalax._fit.checkpoint import flatten_state
from jalax._model.types import Status
from jalax._particles import trees
from jalax._runtime import files
from jalax._runtime.arrays import as_array
from jalax._runtime.files import FileError
from jalax._runtime.processes import is_first

TREES = ("theta", "free", "particles", "log_weights", "history")
# What every algorithm records; a summary and a report rely on it.
_COLUMNS = ("ess", "mean_log_joint", "grad_norm", "resampled", "dead")
_PLAIN = (
    "status",
    "message",
    "algorithm",
    "choice",
    "num_steps",
    "seconds",
    "path_value",
    "relative",
    "evidence_reason",
)


def content(result: FitRecord) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file, but what it holds of the model."""
    arrays: dict[str, np.ndarray] = {}
    meta = {name: getattr(result, name) for name in (*_PLAIN, "labels")}
    for name in TREES:
        meta[name] = files.pack(name, getattr(result, name), arrays)
    if isinstance(result.state, SavedState):
        arrays.update(result.state.arrays)
        meta["state"] = result.state.names
    else:
        meta["state"] = flatten_state(result.state, arrays)
    evidence = result.known_evidence
    known = result.known_uncertainty
    if known is not None:
        meta["uncertainty"] = uncertainty.as_dict(known)
    if evidence is not None:
        meta["evidence"] = log_evidence.as_dict(evidence)
    if result.maxima is not None:
        plain = dataclasses.asdict(result.maxima)
        meta["maxima"] = {k: np.asarray(v).tolist() for k, v in plain.items()}
    meta["origin"] = origins.pack(result.origin, arrays)
    return meta, arrays


def save(
    result: FitRecord,
    path: str | os.PathLike,
    model_section: Callable[[dict[str, np.ndarray]], dict[str, Any]],
) -> None:
    """`FitResult.save`; `model_section` makes what the header holds of the model."""
    meta, arrays = content(result)
    meta |= model_section(arrays)
    if result.origin is None or is_first(result.origin.model.layout):
        files.write(path, "result", meta, arrays)


def fields(header: dict[str, Any], arrays: dict[str, np.ndarray], like: Any) -> dict[str, Any]:
    """The fields of the result in a file, but `origin`; within `files.interpreting`."""
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    _check_kinds(FitRecord, plain)
    plain["status"] = Status(plain["status"])
    names = header["state"]
    if not _is_texts(names):
        raise FileError(f"its state is {names!r}, not a list of names.")
    state = SavedState(names, {name: arrays[name] for name in names})
    named = {}
    for name in TREES:
        named[name] = files.unpack(header[name], arrays, getattr(like, name, None))
    _check_trees(named)
    for name in ("theta", "free", "particles", "log_weights"):
        named[name] = jax.tree.map(as_array, named[name])
    return dict(
        **named,
        **plain,
        state=state,
        saved_evidence=_evidence_of(header.get("evidence")),
        saved_uncertainty=_uncertainty_of(header.get("uncertainty"), named["theta"]),
        labels=_labels_of(header.get("labels"), named["theta"]),
        maxima=_maxima_of(header.get("maxima"), named["theta"]),
    )


# --- is everything there, and of the right kind? --------------------------------------------------


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _is_numbers(value: Any) -> bool:
    return type(value) is list and np.asarray(value, float).size >= 0  # else a ValueError


# By the annotation of a field; a bool is an int to isinstance, and not here.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: type(value) is str,
    "Status": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int,
    "float": lambda value: type(value) in (float, int),
    "float | None": lambda value: type(value) in (float, int, type(None)),
    "np.ndarray": _is_numbers,
    "tuple[str, ...]": _is_texts,
}


def _check_kinds(kind: Any, plain: dict[str, Any]) -> None:
    """Each value of JSON is one of those that the fields of the dataclass allow."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    for name, value in plain.items():
        if not _KINDS[annotations[name]](value):
            raise FileError(f"its {name} is {value!r}, which is no {annotations[name]}.")


def _check_trees(named: dict[str, Any]) -> None:
    """Numbers everywhere, a particle for each weight, and rows of the same number of steps."""
    for leaf in jax.tree.leaves(named):
        if leaf.dtype.kind not in "biuf" and leaf.dtype != jnp.bfloat16:
            raise FileError(f"one of its arrays holds {leaf.dtype.name} instead of numbers.")
    weights, history = named["log_weights"], named["history"]
    if weights.ndim not in (1, 2) or weights.shape[-1] == 0:
        raise FileError(f"its log_weights are of shape {weights.shape}.")
    for leaf in jax.tree.leaves(named["particles"]):
        if leaf.shape[: weights.ndim] != weights.shape:
            raise FileError(f"its particles {leaf.shape} are not as many as {weights.shape}.")
    if type(history) is not dict or len({len(leaf) for leaf in jax.tree.leaves(history)}) > 1:
        raise FileError("its history is not one row a step.")
    for name in _COLUMNS if history else ():
        if np.ndim(history[name]) != 1:
            raise FileError(f"its history has no column {name!r}.")


def _evidence_of(plain: Any) -> Evidence | None:
    if plain is None:
        return None
    _check_kinds(Evidence, plain)
    return log_evidence.from_dict(plain)


def _uncertainty_of(plain: Any, theta: Any) -> Uncertainty | None:
    if plain is None:
        return None
    _check_kinds(Uncertainty, plain)
    known = uncertainty.from_dict(plain)
    size = len(known.names)
    shapes = [matrix.shape for matrix in (known.covariance, known.simulation, known.jacobian)]
    if shapes != [(size, size), (size, size), (trees.size(theta), size)]:
        raise FileError(f"its errors of {size} numbers are matrices of shapes {shapes}.")
    return known


def _maxima_of(plain: Any, theta: Any) -> Maxima | None:
    if plain is None:
        return None
    _check_kinds(Maxima, plain)
    lists = {name: np.asarray(v, float) for name, v in plain.items() if type(v) is list}
    found = Maxima(**plain | lists)
    number = found.log_evidence.size
    shapes = [part.shape for part in (found.theta, found.error, found.num_starts)]
    if shapes != [(number, trees.size(theta)), (number,), (number,)]:
        raise FileError(f"its maxima are arrays of shapes {shapes}, not of {number} maxima.")
    return found


def _labels_of(labels: Any, theta: Any) -> tuple[str, ...] | None:
    if labels is None:
        return None
    if not _is_texts(labels) or len(labels) != trees.size(theta):
        raise FileError(f"its labels are not {trees.size(theta)} names.")
    return tuple(labels)
