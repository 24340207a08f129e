"""How much of a model is worked on at a time: groups, particles, rows of its data.

Nothing here changes an answer. What does not fit the memory is done in batches; and on a CPU what
is far beyond its caches: the Wisconsin model with N = 10,000 in float64 gains a sixth, and more
where other programs use the memory too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.function_keys import traced_once

if TYPE_CHECKING:
    from jalax._model.model import Model

# Numbers of all groups that one compiled operation may hold: half a gigabyte in double precision.
IN_MEMORY = 2**26
# Bytes that a visit of all particles of a model without groups may hold on a CPU, and those of a
# block for each core where it would hold more (smaller blocks leave a core idle).
CACHED, BLOCK = 2**26, 2**23


def zero_of(x: Array) -> Array:
    """0, which vmap takes for as batched as x.

    A loop that begins with numbers of all groups, and not with a constant, is traced once less.
    """
    zero = jnp.zeros((), x.dtype)
    return jnp.where(jnp.isnan(x.reshape(-1)[0]), zero, zero)  # and not NaN, as 0 * x could be


def groups_at_once(model: Model, each: int) -> int | None:
    """How many groups to work on at a time, with `each` numbers held a group; None: all."""
    size = model.group_batch or max(1, IN_MEMORY // max(each, 1)) * shards(model, "groups")
    return size if size < model.num_groups else None


def shards(model: Model, name: str) -> int:
    """Over how many devices its groups, particles or data are spread."""
    return 1 if model.layout is None else model.layout.size(name)


def data_size(model: Model) -> int:
    """Numbers in the data of one group."""
    return trees.size(model.data) // model.num_groups


def particles_at_once(model: Model, theta: Tree, num: int) -> int | None:
    """How many of `num` particles of a model without groups to visit at a time; None: all."""
    if model.grouped:
        return None
    if model.particle_batch is not None:
        return model.particle_batch if model.particle_batch < num else None
    each = max(1, 8 * numbers_per_particle(model, theta) // shards(model, "data"))
    most, block = (room * shards(model, "particles") for room in _room())
    if num * each <= most:
        return None
    size = max(1, block // each)
    # A divisor of N if there is a large one: a remainder is compiled by itself.
    divisor = max(d for d in range(1, size + 1) if num % d == 0)
    return divisor if divisor > size // 4 else size


def _room() -> tuple[int, int]:
    """Bytes that a visit of all particles may hold, and those of a block where it holds more."""
    if jax.default_backend() == "cpu":
        return CACHED, BLOCK * (os.cpu_count() or 1)
    stats = jax.local_devices()[0].memory_stats() or {}
    share = stats.get("bytes_limit", 2**34) // 8
    return share, share


def numbers_per_particle(model: Model, theta: Tree) -> int:
    """Of 8 bytes, in all that log p computes from one x: about what its gradient has to keep."""

    def shape(leaf, drop):
        return jax.ShapeDtypeStruct(jnp.shape(leaf)[drop:], jnp.result_type(leaf))

    one_group = 1 if model.grouped else 0
    parts = (
        jax.tree.map(lambda leaf: shape(leaf, 0), jax.eval_shape(model.filled, theta)),
        jax.tree.map(lambda leaf: shape(leaf, 0), model.latent),
        jax.tree.map(lambda leaf: shape(leaf, one_group), model.data),
    )
    leaves, treedef = jax.tree.flatten(parts)
    return _numbers_from_x(traced_once(model.log_joint, model.constrain), treedef, tuple(leaves))


@lru_cache(maxsize=256)
def _numbers_from_x(one: Callable, treedef: Any, leaves: tuple) -> int:
    theta, x, data = treedef.unflatten(leaves)
    jaxpr = jax.make_jaxpr(one)(theta, x, data).jaxpr
    first = len(jax.tree.leaves(theta))
    of_x = set(jaxpr.invars[first : first + len(jax.tree.leaves(x))])
    return max(_bytes_computed_from(of_x, jaxpr) // 8, 1)


def _bytes_computed_from(known: set, jaxpr: Any) -> int:
    """The bytes of all results in `jaxpr` that depend on the variables `known`."""
    total = 0
    for equation in jaxpr.eqns:
        depends = [v in known for v in equation.invars if not hasattr(v, "val")]
        if not any(depends):
            continue
        known.update(equation.outvars)
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit"):  # not inlined by every version of JAX
            inside = [
                inner_v
                for inner_v, v in zip(inner.jaxpr.invars, equation.invars, strict=True)
                if not hasattr(v, "val") and v in known
            ]
            total += _bytes_computed_from(set(inside), inner.jaxpr)
        else:
            total += sum(v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)
    return total
