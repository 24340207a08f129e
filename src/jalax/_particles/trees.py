"""Arithmetic on pytrees, some of whose leaves lead with the particle axes (G, N)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jalax._runtime import arrays, normals

Tree = Any


def total(tree: Tree) -> Float[Array, "G N"]:
    """The sum of all entries of each particle."""
    sums = [jnp.sum(x.reshape((*x.shape[:2], -1)), axis=-1) for x in jax.tree.leaves(tree)]
    return functools.reduce(jnp.add, sums)


def dot(a: Tree, b: Tree) -> Float[Array, "G N"]:
    """Inner product of two particle trees: one number a particle."""
    return total(jax.tree.map(jnp.multiply, a, b))


def all_finite(tree: Tree) -> Bool[Array, "G N"]:
    """Which particles have nothing but finite entries."""
    finite = [
        jnp.all(jnp.isfinite(leaf).reshape((*leaf.shape[:2], -1)), axis=-1)
        for leaf in jax.tree.leaves(tree)
    ]
    return jnp.stack(finite).all(axis=0)


def global_norm(tree: Tree) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def size(tree: Tree) -> int:
    """How many numbers it holds."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))


def select(mask: Bool[Array, "..."], a: Tree, b: Tree) -> Tree:
    """`a` where the mask holds, else `b`; the mask covers the leading axes of each leaf."""

    def one(x, y):
        return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)

    return jax.tree.map(one, a, b)


def numbers_of(tree: Tree) -> np.ndarray:
    """Its numbers on the host, in 64 bits and in the order of `ravel_pytree`."""
    leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([np.zeros(0), *leaves])


def with_numbers(like: Tree, numbers: np.ndarray) -> Tree:
    """The tree whose `numbers_of` are these, with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([np.size(leaf) for leaf in leaves], dtype=int)
    parts = np.split(np.asarray(numbers), ends)[:-1]  # what is left over is empty
    new = [
        arrays.as_array(part.reshape(np.shape(leaf)), jnp.result_type(leaf))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return treedef.unflatten(new)


def set_row(rows: Tree, k, row: Tree) -> Tree:
    """`rows` with row k replaced, in every leaf."""
    return jax.tree.map(lambda leaf, new: leaf.at[k].set(new), rows, row)


def gather(tree: Tree, index) -> Tree:
    """Particle `index[g, n]` of group g, for every leaf (G, N, ...)."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda x, i: x[i])(leaf, index), tree)


def normal_like(key, tree: Tree) -> Tree:
    """Standard normal noise, one key a leaf."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    noise = [normals.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return treedef.unflatten(noise)


def ravel_particles(tree: Tree) -> Float[Array, "G N D"]:
    """Each particle as one vector, leaves in the order of jax.tree.leaves."""
    leaves = [leaf.reshape((*leaf.shape[:2], -1)) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves, axis=-1)


def unravel_particles(vectors: Float[Array, "G N D"], like: Tree) -> Tree:
    """The inverse of `ravel_particles`, with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    out, start = [], 0
    for leaf in leaves:
        size = leaf.size // (leaf.shape[0] * leaf.shape[1])
        part = vectors[..., start : start + size]
        out.append(part.reshape(leaf.shape).astype(leaf.dtype))
        start += size
    return treedef.unflatten(out)


def run_if(predicate: Bool[Array, ""], function: Callable[[Tree], Tree], operand: Tree) -> Tree:
    """`function(operand)` if the predicate holds, else `operand`.

    A loop of at most one round instead of lax.cond: under vmap a cond computes both
    branches always, this one only if some lane asks for it.
    """

    def once(carry):
        return jnp.zeros_like(carry[0]), function(carry[1])

    return lax.while_loop(lambda carry: carry[0], once, (predicate, operand))[1]


def map_in_batches(function: Callable, tree: Tree, size: int, shards: int = 1) -> Any:
    """`function` of each entry along the leading axis, stacked, `size` entries at a time or fewer.

    All batches are of one size, so that the function is compiled once: the last one may begin with
    entries of the one before. Where the axis is spread over `shards` devices, each of them has its
    part of every batch.
    """
    if shards > 1:
        apart = jax.tree.map(lambda x: jnp.swapaxes(_split(x, shards), 0, 1), tree)
        found = map_in_batches(jax.vmap(function), apart, max(1, size // shards))
        return jax.tree.map(lambda x: _merged(jnp.swapaxes(x, 0, 1)), found)
    length = len(jax.tree.leaves(tree)[0])
    number = -(-length // size)
    size = -(-length // number)
    starts = np.minimum(np.arange(number) * size, length - size)

    def batch(start):
        cut = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), tree)
        return jax.vmap(function)(cut)

    found = lax.map(batch, jnp.asarray(starts))
    again = number * size - length  # entries that two batches have

    def joined(x):
        if not again:
            return _merged(x)
        return jnp.concatenate([_merged(x[:-1]), x[-1, again:]])

    return jax.tree.map(joined, found)


def sum_over_batches(function: Callable, tree: Tree, size: int, shards: int = 1) -> Any:
    """`function(tree)`, a sum over the leading axis of its leaves, added up `size` at a time.

    `shards` as in `map_in_batches`.
    """
    tree = jax.tree.map(lambda x: _split(x, shards), tree)
    length, size = jax.tree.leaves(tree)[0].shape[1], max(1, size // shards)
    whole = length // size * size

    # A batch is cut out where it is needed, and a gradient cuts and computes it again: neither a
    # second copy of the tree nor the values of other batches are held.
    @jax.checkpoint
    def part(start):
        batch = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1), tree)
        return function(jax.tree.map(_merged, batch))

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, 0))

    def add(total, start):
        return jax.tree.map(jnp.add, total, part(start)), None

    total, _ = lax.scan(add, zero, jnp.arange(0, whole, size))
    if whole < length:
        rest = function(jax.tree.map(lambda x: _merged(x[:, whole:]), tree))
        total = jax.tree.map(jnp.add, total, rest)
    return total


def _split(x: Array, shards: int) -> Array:
    return x.reshape((shards, -1, *x.shape[1:]))


def _merged(x: Array) -> Array:
    return x.reshape((-1, *x.shape[2:]))


def shapes(tree: Tree, lead: int) -> Tree:
    """The shapes of one entry, without the `lead` leading axes; nothing is computed."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[lead:], x.dtype), tree)


def path_name(path: tuple, alone: str) -> str:
    """The name of a leaf, such as beta.0; `alone` where the tree is one leaf."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or alone


def describe(tree: Tree) -> str:
    """Structure and shapes in one line, for error messages."""
    shapes = jax.tree.map(lambda leaf: f"{jnp.result_type(leaf).name}{list(jnp.shape(leaf))}", tree)
    return str(shapes).replace("'", "")
