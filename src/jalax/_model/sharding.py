"""A model on many devices: its data put on a mesh, its particles and states kept spread over it.

Nothing in an algorithm knows of devices. A model that is laid out on a mesh says so
(`Model.layout`); the visits of its particles tell the compiler (`shard_particles`), which derives
the rest, and the same key gives the same noise whatever the layout.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jalax._model.model import Model
from jalax._model.types import State
from jalax._particles.trees import Tree
from jalax._runtime.layouts import (
    Layout,
    as_layout,
    check_divides,
    constrain,
    leading_axis,
    put,
    sharding_of,
)
from jalax._runtime.processes import to_host


def layout_for(model: Model, given: Any) -> Layout | None:
    """That of `mesh=`; by default of the mesh that the model's data is on already."""
    layout = _found(model) if given is None else as_layout(given)
    if layout is not None and layout.fits is not None:
        raise ValueError(
            "fits= of a Layout is for jalax.fit_many; here spread particles, groups or data."
        )
    return layout


def lay_out(model: Model, layout: Layout | None) -> Model:
    """The model with its data on the mesh."""
    if layout is None:
        return model
    if layout.groups is not None and not model.grouped:
        raise ValueError(
            "groups= of a Layout is for a jalax.GroupedModel; this model has one joint latent: "
            "spread its particles or data."
        )
    if model.grouped and isinstance(layout.data, str):
        raise ValueError(
            "the data of a jalax.GroupedModel is spread by its groups: use groups= of a Layout."
        )
    if layout.groups is not None:
        check_divides(layout, "groups", model.num_groups, "groups")
    specs = _data_specs(layout, model)
    data = jax.tree.map(
        lambda leaf, spec: put(leaf, NamedSharding(layout.mesh, spec)), model.data, specs
    )
    axis = layout.data if isinstance(layout.data, str) else None  # a tree has done its work
    return model.replace(data=data, layout=dataclasses.replace(layout, data=axis))


def _found(model: Model) -> Layout | None:
    """The layout of data that came on a mesh."""
    if model.layout is not None:
        return model.layout
    for leaf in jax.tree.leaves(model.data):
        at = getattr(leaf, "sharding", None)
        if isinstance(at, NamedSharding) and isinstance(at.mesh, Mesh) and at.mesh.size > 1:
            lead = at.spec[0] if len(at.spec) else None
            return Layout(at.mesh, groups=lead if model.grouped else None)
    return None


def _data_specs(layout: Layout, model: Model) -> Tree:
    """A PartitionSpec for each leaf of the data."""
    lead = layout.groups

    def kept(leaf):  # as the user laid it out, if that was on this mesh
        at = getattr(leaf, "sharding", None)
        spec = PartitionSpec()
        if isinstance(at, NamedSharding) and at.mesh.shape == layout.mesh.shape:
            spec = at.spec
        return PartitionSpec(lead, *spec[1:]) if lead else spec

    if layout.data is None:
        return jax.tree.map(kept, model.data)
    if not isinstance(layout.data, str):
        return jax.tree.map(
            lambda axis, leaf: leading_axis(axis),
            layout.data,
            model.data,
            is_leaf=lambda axis: axis is None or isinstance(axis, PartitionSpec),
        )
    lengths = {jnp.size(leaf): jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(model.data)}
    rows = lengths[max(lengths)] if lengths else ()
    if not rows:
        raise ValueError("the data has no rows to spread: leave out data= of the Layout.")
    check_divides(layout, "data", rows[0], "rows of data")
    return jax.tree.map(
        lambda leaf: leading_axis(layout.data if jnp.shape(leaf)[:1] == rows else None), model.data
    )


def place(model: Model, state: State) -> State:
    """A state from elsewhere (a file, another mesh) where the model is."""
    layout = model.layout
    if layout is None:
        many = any(
            isinstance(x, jax.Array) and len(x.devices()) > 1 for x in jax.tree.leaves(state)
        )
        return jax.tree.map(jnp.asarray, to_host(state)) if many else state
    axes = _axes_of(model, state)
    return jax.tree.map(
        lambda leaf, names: put(leaf, sharding_of(layout, leaf.shape, names)), state, axes
    )


# --- inside a program: what the compiler is told ----------------------------------------------


def shard_particles(model: Model, tree: Tree) -> Tree:
    """Particle leaves (G, N, ...) over the devices; as they are where they do not divide evenly."""
    layout = model.layout
    if layout is None:
        return tree
    return jax.tree.map(lambda leaf: constrain(layout, leaf, ("groups", "particles")), tree)


def constrain_state(model: Model, state: State) -> State:
    """A whole state: what has a particle or group axis is spread, the rest is on every device.

    Without this the compiler is free to lay out the state of the next chunk in another way, and
    would compile the loop again for it.
    """
    layout = model.layout
    if layout is None:
        return state
    axes = _axes_of(model, state)
    return jax.tree.map(lambda leaf, names: constrain(layout, leaf, names), state, axes)


def _axes_of(model: Model, state: State) -> State:
    """For each leaf of a state the things that its first axes count."""
    lead = state.log_weights.shape

    def one(leaf):
        if leaf.shape[:2] == lead:
            return "groups", "particles"
        return ("groups",) if model.grouped and leaf.shape[:1] == lead[:1] else ()

    axes = jax.tree.map(one, state)
    return axes._replace(theta=jax.tree.map(lambda leaf: (), state.theta))


def replicate(model: Model, tree: Tree) -> Tree:
    """The same on every device, for the host to read."""
    layout = model.layout
    if layout is None:
        return tree
    return jax.tree.map(lambda leaf: constrain(layout, leaf, ()), tree)
