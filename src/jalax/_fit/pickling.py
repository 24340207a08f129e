"""Copies, files and pickles of results.

A pickle holds what `FitResult.save` writes, and the model with its functions by name. JAX arrays
cannot be changed, so that copies share them; they share the model, too.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import jax
import numpy as np

from jalax._evidence.log_evidence import Evidence
from jalax._evidence.record import FitRecord, Maxima, SavedState
from jalax._evidence.uncertainty import Uncertainty
from jalax._fit import origins, saving
from jalax._runtime import files


class Portable:
    """What `FitResult` has of copies, files and pickles; the fields are those of `FitRecord`."""

    def _model_section(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """What the header of a file holds of the model; its arrays go into `arrays`."""
        return {}

    @classmethod
    def _from_fields(cls, fields: dict, header: dict, arrays: dict, model: Any) -> Any:
        """A result from the fields of a file; `model` comes with a pickle, else it is None."""
        kind: Any = cls
        if model is None or header.get("origin") is None:
            return kind(**fields)
        origin = origins.unpack(header["origin"], arrays, model, fields["free"])
        return kind(**fields, origin=origin)

    def __copy__(self) -> Any:
        """With the same fields, and what was computed from them since."""
        new = object.__new__(type(self))
        new.__dict__.update(vars(self))
        return new

    def __deepcopy__(self, memo: dict) -> Any:
        """With containers and NumPy arrays of its own; the model is the same."""
        new = self.__copy__()
        memo[id(self)] = new
        for name, value in vars(self).items():
            if isinstance(value, (Evidence, Uncertainty, Maxima, SavedState)):
                new.__dict__[name] = copy.deepcopy(value, memo)
            elif name in (*saving.TREES, "state"):
                new.__dict__[name] = jax.tree.map(_own, value)
        return new

    def __reduce__(self) -> tuple:
        result: Any = self
        meta, arrays = saving.content(result)
        section = self._model_section(arrays)
        file = io.BytesIO()
        files.dump(file, "result", meta | section, arrays)
        model = None
        if not section and result.origin is not None:
            model = copy.copy(result.origin.model)
            # Its data come to where they are unpickled; a plan is made again when it is needed.
            model.layout = model.plan = None
        return unpickled, (type(self), file.getvalue(), Containers(result), model)


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


class Containers:
    """The trees of a result without their arrays.

    A pickle can hold containers of the user's own (a NamedTuple, say), which a file cannot.
    """

    def __init__(self, result: FitRecord):
        for name in saving.TREES:
            setattr(self, name, jax.tree.map(lambda _: 0, getattr(result, name)))


def unpickled(kind: Any, content: bytes, like: Containers, model: Any) -> Any:
    header, arrays = files.read(content, "result")
    with files.interpreting(files.name_of(content)):
        fields = saving.fields(header, arrays, like)
        return kind._from_fields(fields, header, arrays, model)
