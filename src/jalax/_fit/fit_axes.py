"""Which arguments of `fit_many` lead with the fit axis, and the arguments of one fit."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments


class Inputs(NamedTuple):
    """Everything that may differ from fit to fit."""

    algorithm: Any
    model: Model
    theta: Tree
    start: Any


def axes_of_leaves(inputs: Inputs, axes: dict[str, Any]) -> list[int | None]:
    """For each leaf of `inputs`: 0 if it leads with the fit axis, else None."""
    options = [f.name for f in dataclasses.fields(inputs.algorithm) if not f.metadata.get("static")]
    known = ["theta", "data", "start", *options]
    unknown = sorted(set(axes) - {*known, "held"})  # the last is for profiles
    if unknown:
        raise ValueError(f"axes names {unknown}; it knows {known}.")

    def named(name: str, tree: Tree) -> Tree:
        axis = axes.get(name)
        if axis is not None and not jax.tree.leaves(tree):
            raise ValueError(
                f"axes says that {name} leads with the fit axis, but it holds no array: {tree!r}."
            )
        try:
            return _spread(tree, axis)
        except _AnotherTree as error:
            raise ValueError(
                f"axes[{name!r}] is not 0, nor a tree like {name}, {trees.describe(tree)}; got "
                f"{axis!r}."
            ) from error

    algorithm = dataclasses.replace(
        inputs.algorithm,
        **{name: named(name, getattr(inputs.algorithm, name)) for name in options},
    )
    model = jax.tree.map(lambda _: False, inputs.model)
    mapped = Inputs(
        algorithm=algorithm,
        model=model.replace(
            data=named("data", inputs.model.data), held=named("held", inputs.model.held)
        ),
        theta=named("theta", inputs.theta),
        start=named("start", inputs.start),
    )
    return [0 if leads else None for leads in jax.tree.leaves(mapped)]


class _AnotherTree(Exception):
    pass


def _spread(tree: Tree, axis: Any) -> Tree:
    """A prefix, as in jax.vmap: one 0 stands for all the leaves below it."""
    if axis is None or (isinstance(axis, int) and axis == 0):
        return jax.tree.map(lambda _: axis == 0, tree)
    if isinstance(axis, int):
        raise ValueError(
            f"axes takes 0, the leading axis, or None; got {axis}: move that axis to the front."
        )
    if jax.tree_util.all_leaves([axis]):
        raise _AnotherTree
    below = jax.tree.structure(axis, is_leaf=lambda a: a is None)
    try:
        parts = below.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise _AnotherTree from error
    each = jax.tree.leaves(axis, is_leaf=lambda a: a is None)
    return below.unflatten([_spread(part, a) for part, a in zip(parts, each, strict=True)])


def count_fits(inputs: Inputs, axes: list[int | None], num_fits: int | None, key: Any) -> int:
    """How many fits: from the axes, the keys or num_fits, which must agree."""
    sizes = {"num_fits": num_fits} if num_fits is not None else {}
    if isinstance(key, jax.Array) and key.ndim == 1:
        sizes["key"] = key.shape[0]
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    for (path, leaf), axis in zip(leaves, axes, strict=True):
        if axis == 0:
            name = jax.tree_util.keystr(path).removeprefix(".")
            if jnp.ndim(leaf) == 0:
                raise ValueError(
                    f"axes says that {name} leads with the fit axis, but it is a scalar."
                )
            sizes[name] = jnp.shape(leaf)[0]
    if not sizes:
        raise ValueError("how many fits? Pass num_fits=, an array of keys, or axes=.")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"the fit axes differ in length: {found}.")
    return arguments.check_count("num_fits", next(iter(sizes.values())))


def pick(inputs: Inputs, axes: list[int | None], i: int) -> Inputs:
    """The inputs of fit i alone."""
    leaves, treedef = jax.tree.flatten(inputs)
    return treedef.unflatten(
        [x if a is None else np.asarray(x)[i] for x, a in zip(leaves, axes, strict=True)]
    )


def whitened(inputs: Inputs, axes: dict[str, Any]) -> tuple[Inputs, dict[str, Any]] | None:
    """With the latents of `Model.whitened`, and the axes of these; None: there are none."""
    model = inputs.model.whitened()
    if model is None:
        return None
    of_data = white_axes(inputs.model, axes.get("data"))
    return inputs._replace(model=model), axes | {"data": of_data}


def white_axes(model: Model, axis: Any) -> dict[str, Any]:
    """The axes of the data of `Model.whitened`: one entry more, which all fits share."""
    of_data = axis if isinstance(axis, dict) else dict.fromkeys(model.data, axis)
    return of_data | {model.outside.switch: None}


def taken(inputs: Inputs, axes: list[int | None], index: np.ndarray) -> Inputs:
    """Some of the fits, or some of them twice."""
    leaves, treedef = jax.tree.flatten(inputs)
    return treedef.unflatten(
        [x if a is None else np.asarray(x)[index] for x, a in zip(leaves, axes, strict=True)]
    )


def lengthened(inputs: Inputs, axes: list[int | None], more: int) -> Inputs:
    """The last fit `more` times again."""
    lengths = (len(x) for x, a in zip(jax.tree.leaves(inputs), axes, strict=True) if a == 0)
    count = next(lengths, 1)
    return taken(inputs, axes, np.minimum(np.arange(count + more), count - 1))
