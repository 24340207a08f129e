"""Several processes, one fit: arrays brought to every host, and words that all agree on.

Each process runs the same script. Functions here that look at an array of which other processes
hold a part, or ask what they say, have to be called by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jalax._runtime.layouts import Layout

Tree = Any
BLOCK = 2**26  # bytes that are brought to the host at a time
NOTE = "JALAX_LAUNCH_NOTE"  # names the file in which a fit tells the launcher of its checkpoint


def to_host(tree: Tree) -> Tree:
    """A `tree` of arrays as NumPy arrays, on every process.

    Every process has to call it where arrays are on the devices of several: the parts are then
    exchanged.

    >>> import jax.numpy as jnp
    >>> to_host({"x": jnp.ones(2)})
    {'x': array([1., 1.], dtype=float32)}
    """

    def one(leaf):
        return np.concatenate([*blocks(leaf)]) if _is_far(leaf) else np.asarray(leaf)

    return jax.tree.map(one, tree)


def to_host_in_double(tree: Tree) -> Tree:
    """The same, with float64 for float32: what is to be computed again without rounding."""

    def one(leaf):
        return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf

    return jax.tree.map(one, to_host(tree))


def blocks(leaf: Any) -> Iterator[np.ndarray]:
    """The array on the host, some rows at a time where other processes hold part of it."""
    if not _is_far(leaf):
        yield np.asarray(leaf)
        return
    rows = leaf.shape[0]
    size = min(rows, max(1, BLOCK // max(1, leaf.size // rows * leaf.dtype.itemsize)))
    everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
    for first in range(0, rows, size):
        begin = min(first, rows - size)  # the last block begins earlier, and is cut here
        yield np.asarray(_rows(leaf, begin, size, everywhere))[first - begin :]


@partial(jax.jit, static_argnames=("size", "everywhere"))
def _rows(x, first, size: int, everywhere: NamedSharding):
    return lax.with_sharding_constraint(lax.dynamic_slice_in_dim(x, first, size), everywhere)


def _is_far(leaf: Any) -> bool:
    """Part of it is on the devices of other processes alone."""
    if not isinstance(leaf, jax.Array):
        return False
    return not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def several(layout: Layout | None) -> bool:
    """Whether other processes work on the same fit."""
    return layout is not None and layout.num_processes > 1


def is_first(layout: Layout | None) -> bool:
    """Whether this process writes files and shows progress."""
    return not several(layout) or jax.process_index() == 0


def first_says(layout: Layout | None, answer: Callable[[], str]) -> str:
    """What `answer()` returns on process 0, on every process; an error there is one everywhere."""
    if not several(layout):
        return answer()
    text, error = "", None
    if jax.process_index() == 0:
        try:
            text = "+" + answer()
        except Exception as caught:
            text, error = "-" + str(caught), caught
    text = everyone_says(layout, text)[0]
    if error is not None:
        raise error
    if text.startswith("-"):
        raise RuntimeError(f"on process 0: {text[1:]}")
    return text[1:]


def everyone_says(layout: Layout | None, text: str) -> list[str]:
    """The texts of all processes."""
    if not several(layout):
        return [text]
    from jax.experimental.multihost_utils import process_allgather

    letters = np.frombuffer(text.encode(), np.uint8)
    sizes = np.ravel(process_allgather(np.int32(letters.size)))
    if not sizes.any():
        return [""] * sizes.size
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: letters.size] = letters
    rows = np.asarray(process_allgather(padded)).reshape(sizes.size, -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def first_sends(layout: Layout | None, array: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """An array of process 0, to the bit, on every process; `like` has its shape and dtype."""
    if not several(layout):
        assert array is not None
        return array
    from jax.experimental.multihost_utils import broadcast_one_to_all

    raw = np.zeros(like.nbytes, np.uint8)
    if array is not None:
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    sent = np.asarray(broadcast_one_to_all(raw)).astype(np.uint8)
    return np.frombuffer(sent.tobytes(), like.dtype).reshape(like.shape)
