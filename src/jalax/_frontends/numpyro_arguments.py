"""The arguments of a NumPyro function: arrays are traced data, the others settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model.checks import data_leaf


class _Traced:
    """Stands where an array was taken out of the arguments."""

    def __repr__(self) -> str:
        return "an array"


TRACED = _Traced()


def split(fn: Callable, args: Sequence, kwargs: Mapping[str, Any]) -> tuple[dict, dict]:
    """The arguments by name as settings, with TRACED for arrays, and as data, None elsewhere."""
    if not callable(fn):
        raise TypeError(f"fn must be a function with NumPyro statements, got {type(fn).__name__}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args must be a tuple of arguments, got {type(args).__name__}; for one argument "
            "write args=(y,)."
        )
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of arguments, got {type(kwargs).__name__}.")
    try:
        arguments = dict(inspect.signature(fn).bind(*args, **kwargs).arguments)
    except TypeError as error:
        error.add_note("raised for the args and kwargs given to jalax.from_numpyro")
        raise
    arguments = jax.tree_util.tree_map_with_path(_plain, arguments)
    static = jax.tree.map(lambda leaf: TRACED if is_array(leaf) else leaf, arguments)
    data = jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, arguments)
    return static, jax.tree_util.tree_map_with_path(data_leaf, data)


def _plain(path: tuple, leaf: Any) -> Any:
    """Arrays as they are, NumPy's whole numbers (a count, a plate's size) as settings."""
    name = jax.tree_util.keystr(path)
    if hasattr(leaf, "columns"):
        raise TypeError(
            f"argument {name} is a {type(leaf).__name__}: pass the columns the model uses as "
            "arrays, for example frame['y'].to_numpy()."
        )
    if isinstance(leaf, (np.integer, np.bool_)):
        return leaf.item()
    if hasattr(leaf, "dtype") and not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        leaf = np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufc":
        raise TypeError(
            f"argument {name} is an array of {leaf.dtype}, not of numbers: encode labels as "
            "whole numbers first, for example by np.unique(labels, return_inverse=True)."
        )
    return leaf


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def call_arguments(fn: Callable, static: dict, data: dict) -> tuple[tuple, dict]:
    """The args and kwargs of `fn`, put together again."""
    whole = jax.tree.map(
        lambda setting, array: jnp.asarray(array) if setting is TRACED else setting,
        static,
        data,
        is_leaf=lambda leaf: leaf is None,
    )
    bound = inspect.BoundArguments(inspect.signature(fn), whole)
    return bound.args, bound.kwargs
