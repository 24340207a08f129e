"""checkpoint(path, every): a fit that can be killed and run again.

The file holds the state, the records, and enough to recognise the fit it belongs to.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._fit.callbacks import Callback, Run, Stop
from jalax._fit.loop import theta_record
from jalax._model import evaluation, sharding
from jalax._model.types import State
from jalax._runtime import files
from jalax._runtime.arguments import check_count
from jalax._runtime.arrays import as_array
from jalax._runtime.compilation import Jit
from jalax._runtime.files import FileError
from jalax._runtime.function_keys import Static
from jalax._runtime.layouts import Layout
from jalax._runtime.options import Optax, Schedule
from jalax._runtime.processes import NOTE, first_says, first_sends, is_first, to_host


@dataclasses.dataclass(frozen=True)
class checkpoint(Callback):
    """Save the fit to `path` after every `every` steps, and when it ends.

    If the file exists when the fit begins, the fit resumes from it, so running the same script
    again goes on where it was killed. A file of another model, data, algorithm or key is refused.
    A fit on several processes has one file, written and read by the first; it may go on on another
    number of processes and devices.
    """

    path: str | os.PathLike
    every: int = 1000

    def __post_init__(self):
        if not isinstance(self.path, (str, os.PathLike)):
            raise TypeError(f"checkpoint's path must be a file name, got {self.path!r}.")
        check_count("checkpoint's every", self.every)

    def begin(self, run: Run) -> None:
        folder = Path(self.path).parent
        if is_first(run.layout) and not os.access(folder, os.W_OK | os.X_OK):
            warnings.warn(
                f"checkpoint {self.path} cannot be written: {folder} is no folder that this "
                "process may write to. Make it, or give another path; the fit goes on without.",
                stacklevel=2,
            )

    def steps_until_due(self, run: Run) -> int:
        return self.every - run.step % self.every

    def after_chunk(self, run: Run) -> Stop | None:
        if run.step % self.every == 0:
            self.save(run)
        return None

    def end(self, run: Run) -> None:
        if not run.lost:
            self.save(run)

    def save(self, run: Run) -> None:
        try:
            _save(self.path, run)
        except OSError as error:  # the fit is worth more than its file
            warnings.warn(
                f"checkpoint {self.path} could not be written at step {run.step} ({error}); the "
                "fit goes on without it.",
                stacklevel=2,
            )

    def exists(self, layout: Layout | None) -> bool:
        found = first_says(layout, lambda: str(Path(self.path).exists()))
        return found == "True"

    def restore(self, run: Run) -> None:
        """Put the saved state and records into `run`, or say why the file is not its own."""
        header, arrays = _read(self.path, run.layout)
        fresh = _identity(run)
        for name, expected in fresh.items():
            if header.get(name) != expected:
                raise FileError(
                    f"checkpoint {self.path} belongs to another fit: its {_NAMES[name]} differs. "
                    "Remove the file, or give this fit another path."
                )
        with files.interpreting(self.path):
            state = unflatten_state(header["leaves"], arrays, run.state, self.path)
            saved, first_step = arrays["log_joint"], header["first_step"]
            records = _records(header["records"], arrays, run)
            if type(first_step) is not int or not 0 <= first_step <= int(state.step):
                raise FileError(f"its first step is {first_step!r}.")
            if files.paths(state) != files.paths(run.state):
                raise FileError("its numbers are of another precision.")
        run.state = sharding.place(run.model, state)
        _check_log_joint(self.path, run, saved)
        if records:
            run.records = [records]
        run.first_step = first_step


def checkpointed_algorithm(callbacks: Sequence[Callback], layout: Layout | None) -> str | None:
    """The name of the algorithm in the file that a fit will resume from; None without one."""
    for callback in callbacks:
        if isinstance(callback, checkpoint) and callback.exists(layout):
            return str(_read(callback.path, layout)[0].get("algorithm"))
    return None


def _records(skeleton: Any, arrays: dict[str, np.ndarray], run: Run) -> dict[str, Any]:
    """The history so far, with theta as a tree; in the form that this version records it."""
    records = files.unpack(skeleton, arrays)
    if not records:
        return {}
    _, info = jax.eval_shape(run.algorithm.step, run.key, run.model, run.state)
    fields = info._asdict() | {"step": run.state.step} | theta_record(run.state.theta)
    if "theta" in fields:
        fields["theta"] = jax.tree.leaves(fields["theta"])  # as _save writes it
    rows = len(records["step"])
    expected = jax.tree.map(lambda leaf: ((rows, *leaf.shape), leaf.dtype.name), fields)
    if jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), records) != expected:
        raise FileError("its history is not what this version of jalax records.")
    if "theta" in records:
        records["theta"] = jax.tree.structure(run.state.theta).unflatten(records["theta"])
    return records


_NAMES = {
    "model": "kind of model",
    "algorithm": "algorithm",
    "numbers": "algorithm's numbers (step size, ...)",
    "data": "data",
    "key": "key",
    "state_paths": "shape of theta, particles or optimiser",
}


def _identity(run: Run) -> dict:
    """What must agree for a file to belong to a fit; the data is hashed once a run."""
    if run.identity is not None:
        return run.identity
    key = np.asarray(jax.random.key_data(run.key)).tolist()
    run.identity = {
        "model": type(run.model).__name__,
        "algorithm": type(run.algorithm).__name__,
        "numbers": [*files.paths(run.algorithm), *_options(run.algorithm)],
        "data": files.fingerprint(run.model.data),
        "key": [str(jax.random.key_impl(run.key)), key],
        "state_paths": files.paths(run.state),
    }
    return run.identity


def _options(algorithm: Any) -> list[str]:
    """The numbers of an algorithm and of the functions in it, as digests."""
    functions = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if isinstance(value, Optax):
            functions += [
                value.factory.fingerprint(),
                Static(lambda v=value.others: v).fingerprint(),
            ]
        elif isinstance(value, Schedule):
            functions.append(value.function.fingerprint())
        elif isinstance(value, Static):
            functions.append(value.fingerprint())
        elif field.metadata.get("static") or dataclasses.is_dataclass(value):
            functions.append(repr(value))
    return [files.fingerprint(jax.tree.leaves(algorithm)), *functions]


def _save(path, run: Run) -> None:
    arrays: dict[str, np.ndarray] = {}
    leaves = flatten_state(run.state, arrays)
    arrays["log_joint"] = to_host(_log_joint(run.model, run.state.theta, run.state.particles))
    records = dict(run.history)
    if "theta" in records:
        records["theta"] = jax.tree.leaves(records["theta"])
    meta = {
        **_identity(run),
        "leaves": leaves,
        "records": files.pack("records", records, arrays),
        "first_step": run.first_step,
    }
    if is_first(run.layout):
        files.write(path, "checkpoint", meta, arrays)
        if note := os.environ.get(NOTE):  # for the launcher to say, if need be
            Path(note).write_text(f"the checkpoint {path} of step {run.step}")


def _read(path, layout: Layout | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The file as the first process sees it: the others may have another disk."""
    arrays: dict[str, np.ndarray] = {}

    def read() -> str:
        header, found = files.read(path, "checkpoint")
        arrays.update(found)
        kinds = [(name, a.dtype.str, a.shape) for name, a in found.items()]
        return json.dumps({"header": header, "arrays": kinds})

    told = json.loads(first_says(layout, read))
    for name, dtype, shape in told["arrays"]:
        like = np.empty(shape, dtype)
        arrays[name] = first_sends(layout, arrays.get(name), like)
    return told["header"], arrays


_log_joint = Jit(evaluation.log_joint)


def _check_log_joint(path, run: Run, saved: np.ndarray) -> None:
    """The same function of the same data gives the same log p at the saved particles."""
    now = to_host(_log_joint(run.model, run.state.theta, run.state.particles))
    if saved.dtype != now.dtype:
        raise FileError(f"checkpoint {path} is damaged: its log_joint is of another precision.")
    rtol, atol = (1e-5, 1e-3) if saved.dtype == np.float32 else (1e-10, 1e-8)
    if now.shape != saved.shape or not np.allclose(now, saved, rtol=rtol, atol=atol):
        raise FileError(
            f"checkpoint {path} belongs to another model: its log_joint has other values at the "
            "saved particles. Remove the file, or give this fit another path."
        )


def flatten_state(state: State, arrays: dict[str, np.ndarray]) -> list[str]:
    """The leaves of a state by their paths; its containers are the algorithm's own."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = "state" + jax.tree_util.keystr(path)
        arrays[name] = to_host(leaf)
        names.append(name)
    return names


def unflatten_state(names: list[str], arrays: dict[str, np.ndarray], like: State, source) -> State:
    """The saved leaves in the structure of `like`, a state (or its shapes) of the same fit."""
    expected = [
        "state" + jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(like)
    ]
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(like)]
    if names != expected or shapes != [arrays[name].shape for name in names]:
        raise FileError(
            f"{source} holds the state of another algorithm or model: pass the model and the "
            "algorithm that it was fitted with."
        )
    return jax.tree.structure(like).unflatten([as_array(arrays[name]) for name in names])
