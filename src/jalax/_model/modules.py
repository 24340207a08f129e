"""A network as theta: its inexact arrays are fitted, whatever else it holds stays as it is.

An Equinox module is a pytree whose leaves are also functions, flags and counts. theta is then the
module with None in their places, as `equinox.partition` makes it; log_joint sees the whole module.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._runtime.function_keys import Static, wrapped


def parted(model: Model, theta: Tree) -> tuple[Model, Tree]:
    """The model as a function of the inexact arrays in theta, and these."""
    given, theta = theta, model.theta if theta is None else theta
    leaves, treedef = jax.tree.flatten(theta)
    if not any(callable(leaf) for leaf in leaves) and not _has_module(theta):
        return model, given
    fitted = [_is_inexact(leaf) for leaf in leaves]
    if all(fitted):
        return model, given
    others = tuple(None if fits else leaf for fits, leaf in zip(fitted, leaves, strict=True))
    copy = model.replace()
    copy.log_joint = wrapped(_of_whole, model.log_joint.function, others, treedef)
    if model.outside.simulate is not None:
        simulate = Static.of(model.outside.simulate).function
        whole = wrapped(_simulate_whole, simulate, others, treedef)
        copy.outside = dataclasses.replace(model.outside, simulate=Static.of(whole))
    arrays = [leaf if fits else None for fits, leaf in zip(fitted, leaves, strict=True)]
    return copy, treedef.unflatten(arrays)


def _of_whole(log_joint: Callable, others: tuple, treedef: Any, theta, x, data) -> Any:
    return log_joint(_joined(theta, others, treedef), x, data)


def _simulate_whole(simulate: Callable, others: tuple, treedef: Any, key, theta, x, data) -> Any:
    return simulate(key, _joined(theta, others, treedef), x, data)


def _joined(theta: Tree, others: tuple, treedef: Any) -> Tree:
    arrays = iter(jax.tree.leaves(theta))
    return treedef.unflatten([next(arrays) if other is None else other for other in others])


def _is_inexact(leaf: Any) -> bool:
    """An array of floats; a number such as the rate of a dropout stays."""
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _has_module(theta: Tree) -> bool:
    equinox = sys.modules.get("equinox")  # who has not imported it has no module of it
    if equinox is None:
        return False

    def is_module(node: Any) -> bool:
        return isinstance(node, equinox.Module)

    return any(is_module(node) for node in jax.tree.leaves(theta, is_leaf=is_module))
