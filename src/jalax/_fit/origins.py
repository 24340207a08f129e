"""What a fit was made of, as far as a file or a pickle can hold it.

The model comes from elsewhere: a formula builds it again, a pickle imports its functions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence.record import Origin
from jalax._export.provenance import algorithm_text
from jalax._fit.choice import default_of
from jalax._model.algorithm import Algorithm, AnyAlgorithm
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._runtime import files
from jalax._runtime.files import FileError

_FACTS = {
    "name": str,
    "text": str,
    "gives_evidence": bool,
    "finds_its_particles": bool,
    "stops_by_itself": bool,
    "resampling_threshold": float,
}


class FormerAlgorithm(Algorithm):
    """What a file says of an algorithm with options of the user's, which it does not hold."""

    # In the place of the properties: what the file says of them.
    resampling_threshold = 0.0
    stops_by_itself = False

    def __init__(self, facts: dict[str, Any]):
        self.__dict__.update(facts)

    def canonical(self: AnyAlgorithm) -> AnyAlgorithm:  # what every fit begins with
        raise ValueError(
            f"this result was read from a file, which does not hold the options of its algorithm, "
            f"{self}: pass algorithm=."
        )

    def __repr__(self) -> str:
        return str(self.__dict__["text"])


class FormerStart:
    """The name of a start, all that a file holds of it."""

    def __init__(self, former_name: str):
        self.former_name = former_name


def pack(origin: Origin | None, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """All but the model and the path, for the header of a file; arrays go into `arrays`."""
    if origin is None:
        return None
    start: Any = origin.start
    name = getattr(start, "former_name", type(start).__name__)
    return {
        "algorithm": _facts(origin.algorithm),
        "key": _pack_key(origin.key),
        "fit_key": None if origin.fit_key is None else _pack_key(origin.fit_key),
        "start": None if start is None else name,
        "theta_0": files.pack("theta_0", origin.theta_0, arrays),
    }


def unpack(plain: Any, arrays: dict[str, np.ndarray], model: Model, free: Tree) -> Origin:
    """The inverse of `pack`, with the model; `free` is the theta that theta_0 must be like.

    There is no path: `replay` needs the fit itself.
    """
    start = plain["start"]
    if start is not None and type(start) is not str:
        raise FileError(f"its start is {start!r}, which is no name.")
    theta_0 = jax.tree.map(jnp.asarray, files.unpack(plain["theta_0"], arrays, free))
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (theta_0, free)]
    if jax.tree.structure(theta_0) != jax.tree.structure(free) or shapes[0] != shapes[1]:
        raise FileError("its theta at the start is not like that at the end.")
    known: Any = None if start is None else FormerStart(start)
    return Origin(
        model=model,
        algorithm=_algorithm(plain["algorithm"], theta_0),
        key=_unpack_key(plain["key"]),
        start=known,
        theta_0=theta_0,
        theta_path=None,
        fit_key=None if plain["fit_key"] is None else _unpack_key(plain["fit_key"]),
    )


def _facts(algorithm: Algorithm) -> dict[str, Any]:
    if isinstance(algorithm, FormerAlgorithm):
        return dict(vars(algorithm))
    own = {"name": type(algorithm).__name__, "text": algorithm_text(algorithm)}
    return {
        name: kind(own[name] if name in own else getattr(algorithm, name))
        for name, kind in _FACTS.items()
    }


def _algorithm(plain: Any, theta: Tree) -> Algorithm:
    """The default algorithm of that name, if it was that; else what is known of it."""
    for name, kind in _FACTS.items():
        if type(plain[name]) is not kind:
            raise FileError(f"its algorithm's {name} is {plain[name]!r}.")
    facts = {name: plain[name] for name in _FACTS}
    for known in default_of(facts["name"], theta):
        if algorithm_text(known) == facts["text"]:
            return known
    return FormerAlgorithm(facts)


def _pack_key(key: Any) -> dict[str, Any]:
    data = np.asarray(jax.random.key_data(key))
    return {"impl": str(jax.random.key_impl(key)), "data": data.tolist()}


def _unpack_key(plain: Any) -> Any:
    data = np.asarray(plain["data"])
    if type(plain["impl"]) is not str or data.dtype.kind != "i" or data.ndim != 1:
        raise FileError(f"its key is {plain!r}.")
    if data.min() < 0 or data.max() > np.iinfo(np.uint32).max:
        raise FileError(f"its key is {plain!r}.")
    return jax.random.wrap_key_data(jnp.asarray(data.astype(np.uint32)), impl=plain["impl"])
