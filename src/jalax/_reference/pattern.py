"""The pattern of the Hessian of log p in x: given by the user, found by asdex, or dense."""

from __future__ import annotations

import warnings

import jax
import numpy as np

from jalax._model import checks
from jalax._model.evaluation import log_joint_of_vectors, ravel_latent
from jalax._model.model import Model
from jalax._model.structure import Pattern
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference import mode_search

DENSE_UP_TO = 64  # latents: below, no structure saves anything
LOOPS = ("scan", "while")
LOOPS_UP_TO = 2000  # latents: beyond, asdex takes minutes and all memory to find that all meet


def pattern_of(model: Model, theta: Tree) -> Pattern:
    """That of `structure=`; else the dense one of a few latents, or what asdex finds."""
    if model.structure is not None:
        return model.structure
    size = ravel_latent(model)[0].size
    return Pattern.dense(size) if size <= DENSE_UP_TO else found_by_asdex(model, theta)


def find_structure(model: Model, theta: Tree = None) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs of latents meet in a term of `log_joint`, for `jalax.Model(..., structure=...)`.

    Found by asdex, `pip install 'jalax[sparse]'`, from the operations of `log_joint`. Indices in
    the data count as they are now: with other data, find it again.

    Args:
        model: a `jalax.Model`; its own `structure` is not looked at.
        theta: as in `jalax.fit`.

    Returns:
        Rows and columns of the entries of the Hessian in x that may differ from zero.

    >>> import jax.numpy as jnp, jalax
    >>> def walk(theta, x, data):
    ...     return -0.5 * jnp.sum((x[1:] - x[:-1]) ** 2) - 0.5 * jnp.sum((data - theta - x) ** 2)
    >>> model = jalax.Model(walk, jnp.zeros(100), jnp.ones(100), theta=0.0)
    >>> rows, cols = jalax.references.find_structure(model)
    >>> int(max(rows - cols))  # each meets its neighbours
    1
    >>> model = model.replace(structure=(rows, cols))
    """
    model = checks.prepare_model(model)
    found = found_by_asdex(model, checks.prepare_theta(theta, model, least=0))
    return found.rows, found.cols


def find_blocks(model: Model, theta: Tree = None) -> Tree:
    """Which latents depend on each other given the data: those of other blocks are independent.

    Where there are several, the model can be a `jalax.GroupedModel` with a group a block, whose fit
    takes less time and has a smaller error. The pattern is the model's `structure=`, or what
    `find_structure` finds.

    Args:
        model: a `jalax.Model`.
        theta: as in `jalax.fit`.

    Returns:
        A tree like the latent: the block of each number, counted from 0.

    >>> import jax.numpy as jnp, jalax
    >>> def pairs(theta, x, data):
    ...     return -0.5 * jnp.sum((x[::2] - x[1::2]) ** 2) - 0.5 * jnp.sum((data - theta - x) ** 2)
    >>> model = jalax.Model(pairs, jnp.zeros(6), jnp.ones(6), theta=0.0)
    >>> jalax.references.find_blocks(model).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    from scipy.sparse.csgraph import connected_components

    model = checks.prepare_model(model)
    if (found := model.structure) is None:
        found = found_by_asdex(model, checks.prepare_theta(theta, model, least=0))
    _, block = connected_components(found.matrix(), directed=False)
    leaves, treedef = jax.tree.flatten(model.latent)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = zip(np.split(block, ends), leaves, strict=True)
    return treedef.unflatten([part.reshape(np.shape(leaf)) for part, leaf in parts])


def warn_of_many(model: Model, stacklevel: int) -> None:
    """Before anything long: without its structure a large latent is nobody's strength."""
    size = trees.size(model.latent)
    if model.grouped or model.structure is not None or size <= mode_search.DENSE_UP_TO:
        return
    warnings.warn(
        f"the model has {size:,} latents in one block and no structure=, so that their covariance "
        "is taken as diagonal: this may take long, and end with a large error. If few pairs of "
        "them meet in log_joint, say which by jalax.Model(..., structure=(rows, cols)); "
        "jalax.references.find_structure finds them.",
        stacklevel=stacklevel + 1,
    )


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
    loops = example.size > LOOPS_UP_TO and checks.has_operation(LOOPS, log_p, example, model.data)
    if loops:
        raise ValueError(
            "log_joint has a loop (lax.scan, lax.map, jalax.models.sum_over_rows of many rows), in "
            "which asdex does not see which latents meet: say which by structure=(rows, cols)."
        )
    found = asdex.hessian_sparsity(lambda x: log_p(x, model.data), example)
    return Pattern.of(np.asarray(found.rows), np.asarray(found.cols), example.size)


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
