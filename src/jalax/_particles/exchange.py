"""Particles resampled across devices, with little traffic.

Every device knows all log-weights (a few numbers), and so all ancestors. The particles themselves
are passed from neighbour to neighbour, as many times as the farthest of them has to travel. The
ancestors of systematic and stratified resampling are sorted: particle i comes from about place i,
give or take the spread of the cumulated weights, so that one passing in each direction is nearly
always enough, on two devices or on five hundred. Gathering them all would send each particle to
every device.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.layouts import Layout


def gather(layout: Layout | None, tree: Tree, ancestors: Int[Array, "G N"]) -> Tree:
    """`trees.gather` of particles that are spread over devices: the same particles, to the bit."""
    groups, num = ancestors.shape
    if layout is None or layout.size("particles") == 1:
        return trees.gather(tree, ancestors)
    if num % layout.size("particles") or groups % layout.size("groups"):
        return trees.gather(tree, ancestors)  # they are not spread evenly
    here = PartitionSpec(layout.groups, layout.particles)
    everywhere = PartitionSpec(layout.groups)
    ancestors = lax.with_sharding_constraint(ancestors, layout.sharding(layout.groups))
    passings = farthest(ancestors, num // layout.size("particles"))
    exchange = jax.shard_map(
        partial(_exchange, str(layout.particles), layout.size("particles")),
        mesh=layout.mesh,
        in_specs=(here, everywhere, PartitionSpec()),
        out_specs=here,
        check_vma=False,
    )
    return exchange(tree, ancestors, passings)


def farthest(ancestors: Int[Array, "G N"], block: int) -> Int[Array, ""]:
    """Over how many devices, each with `block` particles, the farthest ancestor is away."""
    places = jnp.arange(ancestors.shape[1]) // block
    return jnp.max(jnp.abs(ancestors // block - places))


def _exchange(axis: str, size: int, tree: Tree, ancestors: Int[Array, "g N"], passings) -> Tree:
    """One device's part: its own particles, then those that come by from either side."""
    me = lax.axis_index(axis)
    block = jax.tree.leaves(tree)[0].shape[1]
    wanted = lax.dynamic_slice_in_dim(ancestors, me * block, block, axis=1)
    source, place = wanted // block, wanted % block

    def take(found: Tree, passing: Tree, owner) -> Tree:
        return trees.select(source == owner, trees.gather(passing, place), found)

    up = [(i, i + 1) for i in range(size - 1)]
    down = [(i + 1, i) for i in range(size - 1)]

    def pass_on(carry):
        k, found, from_below, from_above = carry
        k = k + 1
        from_below = jax.tree.map(lambda x: lax.ppermute(x, axis, up), from_below)
        from_above = jax.tree.map(lambda x: lax.ppermute(x, axis, down), from_above)
        found = take(take(found, from_below, me - k), from_above, me + k)
        return k, found, from_below, from_above

    found = trees.gather(tree, place)  # right where the ancestor is on this device
    first = jnp.zeros((), passings.dtype), found, tree, tree
    return lax.while_loop(lambda carry: carry[0] < passings, pass_on, first)[1]
