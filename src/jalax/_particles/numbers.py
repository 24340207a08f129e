"""The numbers of a tree by name, and the shapes of its arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._particles import trees
from jalax._particles.trees import Tree


def names_of(tree: Tree, alone: str = "theta") -> tuple[str, ...]:
    """One name for each number: beta[2]."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = trees.path_name(path, alone)
        each = np.ndindex(np.shape(leaf))
        names += [name + (f"[{', '.join(map(str, i))}]" if i else "") for i in each]
    return tuple(names)


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
