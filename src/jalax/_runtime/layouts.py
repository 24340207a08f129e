"""A fit on many devices: which axis of a mesh carries what, and how arrays are laid out on it.

What a model makes of a layout is in `_model/sharding.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Tree = Any

NAMES = ("groups", "particles", "data", "fits")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which axis of a mesh of devices carries what; what no axis carries is on every device.

    Args:
        mesh: `jax.make_mesh(...)`, over the devices of all processes or some of them.
        particles: the axis over which the particles are spread (of all groups), for latents that
            are large, or many particles.
        groups: the axis over which the groups of a `jalax.GroupedModel` are spread, with their
            data and particles.
        data: the axis over which the rows of the data are spread: every leaf whose first axis is as
            long as that of the largest one. Or a tree like the data, with an axis (or None, or a
            `jax.sharding.PartitionSpec`) for each leaf.
        fits: of `jalax.fit_many`, the axis over which the fits are spread.

    A mesh whose axes are called "particles", "groups", "data" or "fits" says all this by itself.

    >>> import jax, jalax
    >>> mesh = jax.make_mesh((1,), ("devices",))
    >>> jalax.runtime.Layout(mesh, particles="devices")
    Layout(particles over 1 of 'devices')
    """

    mesh: Mesh
    particles: str | None = None
    groups: str | None = None
    data: Any = None
    fits: str | None = None

    def __post_init__(self):
        if not isinstance(self.mesh, Mesh):
            raise TypeError(
                "a Layout needs a mesh of devices, such as jax.make_mesh((8,), ('devices',)); got "
                f"{type(self.mesh).__name__}."
            )
        if 1 < self.num_processes < jax.process_count():
            raise ValueError(
                f"the mesh spans {self.num_processes} of {jax.process_count()} processes: a fit "
                "runs on the devices of one process, or of all."
            )
        chosen = [getattr(self, name) for name in NAMES]
        chosen = [axis for axis in chosen if isinstance(axis, str)]
        for axis in chosen:
            if axis not in self.mesh.shape:
                raise ValueError(
                    f"the mesh has no axis {axis!r}: its axes are {list(self.mesh.axis_names)}."
                )
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"an axis of the mesh carries one thing, got {self!r}.")
        # Which device does what is derived by the compiler, also on a mesh whose axes are explicit.
        types = (AxisType.Auto,) * len(self.mesh.axis_names)
        mesh = Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=types)
        object.__setattr__(self, "mesh", mesh)

    def __repr__(self) -> str:
        parts = [
            f"{name} over {self.size(name)} of {axis!r}"
            for name in NAMES
            if (axis := getattr(self, name)) is not None
        ]
        return f"Layout({', '.join(parts) or 'everything on every device'})"

    def size(self, name: str) -> int:
        """Over how many devices something is spread."""
        axis = getattr(self, name)
        return self.mesh.shape[axis] if isinstance(axis, str) else 1

    @property
    def num_processes(self) -> int:
        return len({device.process_index for device in self.mesh.devices.flat})

    def sharding(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))


def as_layout(given: Any) -> Layout | None:
    """A `Layout` from what the user passed as `mesh=`."""
    if given is None or isinstance(given, Layout):
        return given
    if not isinstance(given, Mesh):
        raise TypeError(
            "mesh must be a jalax.runtime.Layout, or a mesh with axes called 'particles', "
            f"'groups', 'data' or 'fits'; got {type(given).__name__}."
        )
    unknown = [axis for axis in given.axis_names if axis not in NAMES]
    if unknown:
        raise ValueError(
            f"the mesh has axes {unknown}, whose names do not say what they carry: write "
            f"jalax.runtime.Layout(mesh, particles={unknown[0]!r}), or groups=, data=, fits=."
        )
    return Layout(given, **{str(axis): axis for axis in given.axis_names})


def of_fits(given: Any) -> Layout | None:
    """The layout of fit_many, which has whole fits on each device."""
    layout = as_layout(given)
    if layout is None or (
        layout.fits is not None and layout == Layout(layout.mesh, fits=layout.fits)
    ):
        return layout
    raise ValueError(
        "fit_many spreads whole fits over devices: mesh=jalax.runtime.Layout(mesh, fits=...), and "
        f"nothing else; got {layout!r}."
    )


# --- before a fit: onto the mesh --------------------------------------------------------------


def put_fits(layout: Layout, tree: Tree, axes: Sequence[int | None]) -> Tree:
    """Arrays on the mesh of fit_many; those that lead with the fit axis are spread."""
    leaves, treedef = jax.tree.flatten(tree)
    spread, everywhere = layout.sharding(layout.fits), layout.sharding()
    return treedef.unflatten(
        [
            put(x, everywhere if axis is None else spread)
            for x, axis in zip(leaves, axes, strict=True)
        ]
    )


def check_particles(layout: Layout | None, num_particles: int) -> None:
    if layout is not None and layout.particles is not None:
        check_divides(layout, "particles", num_particles, "particles")


def check_divides(layout: Layout, name: str, count: int, things: str) -> None:
    size = layout.size(name)
    if count % size:
        more = -(-count // size) * size
        what = (
            f"num_particles={more}" if name == "particles" else f"{more - size} or {more} of them"
        )
        raise ValueError(
            f"{count} {things} do not spread evenly over the {size} devices of the axis "
            f"{getattr(layout, name)!r}: use {what}, or an axis whose length divides {count}."
        )


def leading_axis(axis: Any) -> PartitionSpec:
    if isinstance(axis, PartitionSpec):
        return axis
    return PartitionSpec() if axis is None else PartitionSpec(axis)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)  # every process holds all of it, and takes its part
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def with_auto_axes(tree: Tree) -> Tree:
    """Arrays of a mesh with explicit axes, as arrays of the same mesh without."""

    def is_explicit(leaf):
        at = getattr(leaf, "sharding", None)
        return isinstance(at, NamedSharding) and AxisType.Explicit in at.mesh.axis_types

    def one(leaf):
        if not is_explicit(leaf):
            return leaf
        at = leaf.sharding
        return jax.device_put(leaf, NamedSharding(Layout(cast(Mesh, at.mesh)).mesh, at.spec))

    # Without such arrays the tree itself: a model has labels of its groups, which are no arrays.
    return jax.tree.map(one, tree) if any(map(is_explicit, jax.tree.leaves(tree))) else tree


def use_mesh(layout: Layout | None) -> AbstractContextManager:
    """Inside the user's jax.set_mesh of a mesh with explicit axes: programs are for ours."""
    ambient = jax.sharding.get_abstract_mesh()
    if layout is None or AxisType.Explicit not in ambient.axis_types:
        return nullcontext()
    return jax.set_mesh(layout.mesh)


def constrain(layout: Layout, leaf: Any, names: tuple[str, ...]) -> Any:
    return jax.lax.with_sharding_constraint(leaf, sharding_of(layout, leaf.shape, names))


def sharding_of(layout: Layout, shape: tuple[int, ...], names: tuple[str, ...]) -> NamedSharding:
    even = [length % layout.size(name) == 0 for length, name in zip(shape, names, strict=False)]
    axes = [getattr(layout, name) if ok else None for name, ok in zip(names, even, strict=True)]
    return layout.sharding(*axes)


# --- many fits: nothing but the fit axis is spread --------------------------------------------


def shard_map_fits(layout: Layout | None, function: Callable, specs: tuple) -> Callable:
    """A function of many fits, on each device for the fits it has; nothing is exchanged."""
    if layout is None:
        return function
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=specs,
        out_specs=PartitionSpec(layout.fits),
        check_vma=False,
    )


def fit_specs(layout: Layout | None, tree: Tree, axes: Sequence[int | None]) -> Tree:
    """What each leaf of `tree` is spread over; `axes` says which lead with the fit axis."""
    lead = PartitionSpec(None if layout is None else layout.fits)
    return jax.tree.structure(tree).unflatten(
        [PartitionSpec() if axis is None else lead for axis in axes]
    )
