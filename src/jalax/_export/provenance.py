"""How a fit was made, as text and as code to make it again."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from jalax._evidence.record import FitRecord

LONGEST = 600


def _short(text: str) -> str:
    # A number that was made an array is a number to the reader.
    text = re.sub(r"Array\(([^,()\[\]]+)(?:, dtype=\w+)?(?:, weak_type=\w+)?\)", r"\1", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def algorithm_text(algorithm: Any) -> str:
    """The algorithm with those of its options that are not the default."""
    name = type(algorithm).__name__
    if not dataclasses.is_dataclass(algorithm):
        return _short(repr(algorithm))
    parts = []
    for field in dataclasses.fields(algorithm):
        text = _short(repr(getattr(algorithm, field.name)))
        if field.default is dataclasses.MISSING or text != _short(repr(field.default)):
            parts.append(f"{field.name}={text}")
    return f"{name}({', '.join(parts)})"


def theta_text(theta: Any) -> str:
    plain = jax.tree.map(lambda leaf: np.round(np.asarray(leaf, float), 6).tolist(), theta)
    return _short(repr(plain))


def code_to_reproduce(result: FitRecord) -> str:
    count = result.log_weights.shape[-1]
    if result.origin is None:
        return "# Read from a file, which does not hold the model and the key."
    origin = result.origin
    automatic = origin.algorithm.stops_by_itself
    algorithm = "" if automatic else f"    algorithm=jalax.{algorithm_text(origin.algorithm)},\n"
    steps = "" if automatic else f"    num_steps={result.num_steps},\n"
    start = "state=state" if origin.start is None else f"{theta_text(origin.theta_0)}"
    lines = [
        "import jax, jalax",
        "",
        *_key_lines(origin),
        f"result = jalax.fit(\n    model, {start}, key=key,\n{algorithm}"
        f"    num_particles={count},\n{steps})",
    ]
    return "\n".join(lines)


def _key_lines(origin: Any) -> list[str]:
    """The key as code; where only its child is kept, what it must be equal to."""
    key = origin.fit_key
    if key is not None:
        return [f"key = {_key_code(key)}"]
    return [
        "key = ...  # yours; it is the one for which",
        "# jax.random.key_data(jax.random.split(key)[1]) is "
        f"{np.asarray(jax.random.key_data(origin.key)).tolist()}",
    ]


def _key_code(key: Any) -> str:
    data, name = np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key))
    if name == "threefry2x32" and data[0] == 0:
        return f"jax.random.key({int(data[1])})"
    return f"jax.random.wrap_key_data(jax.numpy.array({data.tolist()}, 'uint32'), impl={name!r})"
