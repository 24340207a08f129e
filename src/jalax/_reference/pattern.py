"""The pattern of the Hessian of log p in x: given by the user, found by asdex, or dense."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jalax._model.evaluation import log_joint_of_vectors, ravel_latent
from jalax._model.model import Model
from jalax._model.structure import Pattern
from jalax._particles.trees import Tree

DENSE_UP_TO = 64  # latents: below, no structure saves anything
LOOPS_UP_TO = 2000  # latents: beyond, asdex takes minutes and all memory to find that all meet


def pattern_of(model: Model, theta: Tree) -> Pattern:
    """That of `structure=`; else the dense one of a few latents, or what asdex finds."""
    if model.structure is not None:
        return model.structure
    size = ravel_latent(model)[0].size
    return Pattern.dense(size) if size <= DENSE_UP_TO else found_by_asdex(model, theta)


def found_by_asdex(model: Model, theta: Tree) -> Pattern:
    """Found from the operations of log_joint; indices in the data count as they are now."""
    if model.grouped:
        raise ValueError("the structure of a jalax.GroupedModel is that of its groups.")
    try:
        import asdex
    except ImportError as error:
        raise ImportError(
            "to find which latents meet in log_joint needs asdex: pip install 'jalax[sparse]', or "
            "say which by jalax.Model(..., structure=(rows, cols))."
        ) from error
    example, _ = ravel_latent(model)
    log_p = log_joint_of_vectors(model, theta)
    if example.size > LOOPS_UP_TO and _has_loop(jax.make_jaxpr(log_p)(example, model.data).jaxpr):
        raise ValueError(
            "log_joint has a loop (lax.scan, lax.map, jalax.models.sum_over_rows of many rows), in "
            "which asdex does not see which latents meet: say which by structure=(rows, cols)."
        )
    found = asdex.hessian_sparsity(lambda x: log_p(x, model.data), example)
    return Pattern.of(np.asarray(found.rows), np.asarray(found.cols), example.size)


def _has_loop(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "while"):
            return True
        inner = [getattr(part, "jaxpr", part) for part in equation.params.values()]
        if any(_has_loop(part) for part in inner if hasattr(part, "eqns")):
            return True
    return False


def pieces_of(model: Model) -> tuple[int, ...]:
    """How many numbers each leaf of the latent has."""
    return tuple(int(np.size(leaf)) for leaf in jax.tree.leaves(model.latent))


def name_of(model: Model, position: int) -> str:
    """What the user calls a number of the ravelled latent, such as x['a'][3]."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.latent):
        if position < np.size(leaf):
            index = [str(i) for i in np.unravel_index(position, np.shape(leaf))]
            return "x" + jax.tree_util.keystr(path) + (f"[{', '.join(index)}]" if index else "")
        position -= np.size(leaf)
    raise IndexError(position)
