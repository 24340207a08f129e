"""Numbers of theta that are held at a value, and a prior on theta: models made from a model.

The fit sees the other numbers of theta as one vector. The values are traced, so that other values
of the same numbers do not recompile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._model import checks
from jalax._model.frequencies import number_of_groups
from jalax._model.hold import Held, Hold
from jalax._model.model import Model
from jalax._particles import numbers, trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.arrays import as_array
from jalax._runtime.function_keys import Static, wrapped


def hold(model: Model, theta: Tree, fixed: Any) -> tuple[Model, Tree]:
    """The model with some numbers held, and the start value with these numbers in it.

    `fixed` has values by name, on the scale of the start value.
    """
    if not isinstance(fixed, Mapping) or not fixed:
        raise TypeError(
            "fixed must be a dict of values by name, such as fixed={'log_sd': 0.0}, got "
            f"{fixed!r}."
        )
    if model.outside.hold is not None:
        raise ValueError("this model has numbers that are held already: give all of them at once.")
    theta = model.theta if theta is None else theta
    checks.prepare_theta(theta, model)  # for its sentences
    theta = jax.tree.map(as_array, theta)
    values = trees.numbers_of(theta)
    named = numbers.names_of(theta), model.outside.labels
    which = np.zeros(values.size, bool)
    for name, value in fixed.items():
        place = _places(str(name), theta, *named)
        values[place] = _numbers(str(name), value, place.size)
        which[place] = True
    if which.all():
        raise ValueError(
            "fixed holds every number of theta: there is nothing to fit. For the evidence there "
            "use jalax.log_evidence."
        )
    theta = trees.with_numbers(theta, values)
    return held_at(model, theta, which), theta


def held_at(model: Model, theta: Tree, which: np.ndarray) -> Model:
    """The model with the numbers `which` of theta held where they are."""
    free = checks.prepare_theta(theta, model)
    _check_apart(model, free, which)
    flat, _ = ravel_pytree(free)
    leaves, treedef = jax.tree.flatten(jax.tree.map(numbers.shape_of, free))
    form = Hold(treedef, tuple(leaves), numbers.names_of(free))
    order = jnp.asarray(np.argsort(which, kind="stable"), jnp.int32)
    copy = model.replace(theta=theta, held=Held(order, flat[np.flatnonzero(which)]))
    copy.outside = dataclasses.replace(model.outside, hold=form)
    return copy


def released(model: Model) -> Model:
    """The model with nothing held."""
    if model.outside.hold is None:
        return model
    copy = model.replace(held=None)
    copy.outside = dataclasses.replace(model.outside, hold=None)
    return copy


def _places(name: str, theta: Tree, names: tuple, labels: tuple | None) -> np.ndarray:
    """Where the numbers of that name are: one number ("beta[1]"), or all of an array ("beta")."""
    for known in (labels or (), names):
        if name in known:
            return np.array([known.index(name)])
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    arrays = [trees.path_name(path, "theta") for path, _ in leaves]
    owner = np.repeat(arrays, [np.size(leaf) for _, leaf in leaves])
    found = np.flatnonzero(owner == name)
    if not found.size:
        shown = ", ".join((labels or names)[:8]) + ", ..." * (len(names) > 8)
        raise ValueError(f"theta has no {name!r}; it has {shown}.")
    return found


def _numbers(name: str, value: Any, count: int) -> np.ndarray:
    try:
        numbers = np.asarray(value, float).ravel()
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if numbers.size not in (1, count) or not np.isfinite(numbers).all():
        what = "a finite number" if count == 1 else f"one finite number, or {count} of them"
        raise ValueError(f"fixed[{name!r}] must be {what}, got {value!r}.")
    return numbers


def _check_apart(model: Model, free: Tree, which: np.ndarray) -> None:
    """A number that is held must not move with the others: correlations of three effects do."""
    constrain = model.constrain
    if constrain is None or model.outside.unconstrain is None:
        return  # start values are on the optimiser's scale: each number is itself
    flat, unravel = ravel_pytree(free)
    slopes = jax.jacfwd(lambda t: ravel_pytree(constrain(unravel(t)))[0])(flat)
    slopes = np.asarray(slopes)
    if slopes.shape != (which.size, which.size) or slopes[which][:, ~which].any():
        raise ValueError(
            "fixed holds a number that depends on others which are not held (a correlation of "
            "three effects, an entry of a simplex): hold all of them, or none."
        )


def with_prior(model: Model, log_prior: Any, theta: Tree) -> Model:
    """The model whose log p has log_prior(theta) added, a share in each group.

    theta is on the user's scale there, and no Jacobian is added: the maximum is that of the
    posterior density of theta as the user writes it.
    """
    arguments.check_callable("log_prior", log_prior, "of theta")
    free = checks.prepare_theta(theta, model)
    checks.check_scalar("log_prior", log_prior, {"theta": model.constrained(free)})
    copy = model.replace()
    share = 1.0 / number_of_groups(model)
    copy.log_joint = wrapped(_plus_prior, model.log_joint.function, log_prior, share)
    copy.outside = dataclasses.replace(model.outside, log_prior=Static.of(log_prior))
    value = float(log_prior(model.constrained(free)))
    if not np.isfinite(value):
        raise ValueError(
            f"log_prior is {value} at the start value: begin where the prior has a density."
        )
    return copy


def _plus_prior(
    log_joint: Callable, log_prior: Callable, share: float, theta: Tree, x: Tree, data: Tree
) -> Any:
    return log_joint(theta, x, data) + share * log_prior(theta)
