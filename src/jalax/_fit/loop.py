"""The compiled inner loop: many steps of any algorithm, with their records.

The loop knows no algorithm. Its length is traced and its record buffers have a fixed
capacity, so that one program serves every chunk length; keys are folded from the step
number, so that a trajectory depends neither on how it is cut into chunks nor on its length.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from jalax._model import sharding
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import Info, State
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import layouts
from jalax._runtime.compilation import (
    LEVEL_2,
    LEVEL_2_OLD_EMITTERS,
    LEVEL_2_ONE_PASS_SUMS,
    Program,
)

# Inlined and cached: the loop asks for the shapes of a step, then takes it, and the
# algorithm is traced once.
_step = jax.jit(lambda key, algorithm, model, state: algorithm.step(key, model, state), inline=True)

THETA_KEPT = 100_000  # numbers of theta; of more, every row of the history would be a network


def theta_record(theta: Tree) -> dict[str, Tree]:
    """theta in a row of the history; of a very large one its norm."""
    if trees.size(theta) > THETA_KEPT:
        return {"theta_norm": trees.global_norm(theta)}
    return {"theta": theta}


class Chunk(NamedTuple):
    state: State
    records: dict[str, Any]  # "step", `theta_record`, Info's fields: `capacity` rows
    length: Int[Array, ""]  # steps done, and valid rows, the failed one included
    healthy: Bool[Array, ""]  # False: the last step left no finite particle, or no finite theta


def is_healthy(state: State, info: Info) -> Bool[Array, ""]:
    """theta is finite, and every group has a living particle: the least ESS is not 0."""
    theta = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state.theta)])
    return jnp.all(theta) & (info.ess > 0)


def pack(row: Tree) -> tuple[list[Array], dict[str, Array]]:
    """The arrays of a record, and all its single numbers of one type in one array.

    A step then writes a few buffers and not a dozen, each of which is a kernel on a GPU.
    """
    arrays: list[Array] = []
    numbers: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(row):
        if jnp.ndim(leaf):
            arrays.append(leaf)
        else:
            numbers.setdefault(_kind(leaf), []).append(leaf)
    return arrays, {kind: jnp.stack([x.astype(kind) for x in xs]) for kind, xs in numbers.items()}


def unpack(buffers: tuple[list[Array], dict[str, Array]], row: Tree) -> Tree:
    """A record whose leaves are columns, from the buffers of what `pack` made of each."""
    arrays = iter(buffers[0])
    numbers = {kind: iter(jnp.moveaxis(rows, -1, 0)) for kind, rows in buffers[1].items()}

    def column(leaf):
        return next(arrays) if leaf.ndim else next(numbers[_kind(leaf)]).astype(leaf.dtype)

    return jax.tree.map(column, row)


def _kind(leaf: Any) -> str:
    return "int32" if leaf.dtype == bool else leaf.dtype.name


def chunk(key, algorithm: Algorithm, model: Model, state: State, length, capacity: int) -> Chunk:
    """Up to `length` steps from `state`, fewer if one fails or the algorithm is done."""

    def record(state: State, info) -> dict[str, Tree]:
        return {"step": state.step, **theta_record(state.theta), **info._asdict()}

    row = jax.eval_shape(lambda *args: record(*_step(*args)), key, algorithm, model, state)
    packed = jax.eval_shape(pack, row)
    buffers = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), packed)

    def body(carry):
        i, state, buffers, _ = carry
        key_k = jax.random.fold_in(key, state.step)
        state, info = _step(key_k, algorithm, model, state)
        state = sharding.constrain_state(model, state)
        buffers = trees.set_row(buffers, i, pack(record(state, info)))
        return i + 1, state, buffers, is_healthy(state, info)

    def go_on(carry):
        i, state, _, healthy = carry
        return (i < length) & healthy & ~algorithm.is_done(state)

    first = jnp.zeros((), jnp.int32), state, buffers, jnp.ones((), bool)
    done, state, buffers, healthy = lax.while_loop(go_on, body, first)
    return Chunk(state, *sharding.replicate(model, (unpack(buffers, row), done, healthy)))


run_chunk = Program(
    chunk,
    small=LEVEL_2_OLD_EMITTERS,
    large=LEVEL_2,
    double=LEVEL_2_ONE_PASS_SUMS,
    static_argnames="capacity",
)


def chunk_many(
    keys,
    algorithm: Algorithm,
    model: Model,
    states: State,
    lengths,
    capacity: int,
    axes: tuple,
    layout: layouts.Layout | None = None,
) -> Chunk:
    """`run_chunk` for many fits at once; `axes` maps each leaf of (algorithm, model)."""
    in_axes = jax.tree.structure((algorithm, model)).unflatten(axes)
    many = jax.vmap(partial(chunk, capacity=capacity), in_axes=(0, *in_axes, 0, 0))
    fits = layouts.fit_specs(layout, 0, [0])
    specs = fits, *layouts.fit_specs(layout, (algorithm, model), axes), fits, fits
    return layouts.shard_map_fits(layout, many, specs)(keys, algorithm, model, states, lengths)


run_chunk_many = Program(
    chunk_many,
    small=LEVEL_2_OLD_EMITTERS,
    large=LEVEL_2,
    static_argnames=("capacity", "axes", "layout"),
)
