"""The numbers of the latent by name, each with its weighted draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jalax._evidence.record import FitRecord
from jalax._particles import trees

NUM_PRIOR_DRAWS = 2000


class Latent(NamedTuple):
    """One number of x: its draws, of which those of weight zero are left out."""

    name: str
    values: np.ndarray
    weights: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.weights @ self.values)

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        order = np.argsort(self.values)
        total = np.cumsum(self.weights[order])
        # The middle of each draw's step of the distribution function.
        return np.interp(levels, total - self.weights[order] / 2, self.values[order])


def leaf_names(tree: Any, alone: str = "x") -> list[str]:
    """One name for each array of a latent; `alone` where it is an array itself."""
    return [trees.path_name(path, alone) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def group_labels(result: FitRecord) -> list[str] | None:
    """What the groups are called, where the model knows; None: not grouped, or numbers."""
    if result.log_weights.ndim != 2 or result.origin is None:
        return None
    model = result.origin.model
    labels = model.outside.groups
    labels = getattr(model, "groups", None) if labels is None else labels
    if labels is None or len(labels) != result.log_weights.shape[0]:
        return None
    return [str(label) for label in labels]


def all_names(result: FitRecord) -> list[tuple[str, int, tuple[int, ...]]]:
    """(name, leaf, index) of every number of x; of a grouped model the group comes first."""
    labels = group_labels(result)
    grouped = result.log_weights.ndim == 2
    names = []
    leaves = zip(leaf_names(result.particles), jax.tree.leaves(result.particles), strict=True)
    for k, (name, leaf) in enumerate(leaves):
        shape = (leaf.shape[0], *leaf.shape[2:]) if grouped else leaf.shape[1:]
        for index in np.ndindex(shape):
            shown = [str(i) for i in index]
            if labels is not None:
                shown[0] = labels[index[0]]
            names.append((f"{name}[{', '.join(shown)}]" if shown else name, k, index))
    return names


def chosen_latents(result: FitRecord, names: Sequence[str] | None, limit: int) -> list[Latent]:
    """Latents by name: of a number ("x[2]") or of all of an array ("x"); None: the first few."""
    known = all_names(result)
    if names is not None:
        if isinstance(names, str):
            raise TypeError(f"names is a list of names, got the string {names!r}: [{names!r}].")
        if not len(names):
            raise ValueError("names is empty: name at least one latent, or leave names= out.")
        by_leaf = leaf_names(result.particles)
        found = []
        for name in names:
            match = [row for row in known if name in (row[0], by_leaf[row[1]])]
            if not match:
                shown = ", ".join(row[0] for row in known[:5])
                raise ValueError(
                    f"there is no latent {name!r}; this fit has {shown}"
                    f"{', ...' if len(known) > 5 else ''} ({len(known)} in all)."
                )
            found += match
        known, limit = found, max(limit, len(names))
        if len(found) > limit:
            raise ValueError(
                f"names stand for {len(found)} numbers, and a figure shows {limit} at most: name "
                f"some of them, for example [{found[0][0]!r}, {found[1][0]!r}]."
            )
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(result.particles)]
    weights = np.asarray(result.weights, float)
    return [_draws_of(row, leaves, weights) for row in known[:limit]]


def _draws_of(row: tuple[str, int, tuple[int, ...]], leaves: list, weights: np.ndarray) -> Latent:
    name, k, index = row
    if weights.ndim == 2:
        values, own = leaves[k][(index[0], slice(None), *index[1:])], weights[index[0]]
    else:
        values, own = leaves[k][(slice(None), *index)], weights
    alive = (own > 0) & np.isfinite(values)
    if not alive.any():
        raise ValueError(f"{name} has no finite draw of positive weight: there is nothing to show.")
    return Latent(name, values[alive], own[alive] / own[alive].sum())


def prior_latents(result: FitRecord, prior: Any, latents: list[Latent]) -> list[Latent] | None:
    """Draws of the prior for the same numbers; None: no prior was given."""
    if prior is None:
        return None
    draws = _drawn(result, prior) if callable(prior) else prior
    if jax.tree.structure(draws) != jax.tree.structure(result.particles):
        raise ValueError(
            f"the draws of prior= must be a tree like result.particles, "
            f"{trees.describe(result.particles)}; got {trees.describe(draws)}."
        )
    grouped = result.log_weights.ndim == 2
    axis = 1 if grouped else 0
    for leaf, like in zip(jax.tree.leaves(draws), jax.tree.leaves(result.particles), strict=True):
        given, expected = list(np.shape(leaf)), list(like.shape)
        if len(given) == len(expected):
            expected[axis] = given[axis]
        if given != expected:
            raise ValueError(
                "the draws of prior= must have the shapes of result.particles, with any number of "
                f"draws on axis {axis}: got {np.shape(leaf)} for {like.shape}."
            )
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(draws)]
    num = leaves[0].shape[axis]
    weights = np.full((leaves[0].shape[0], num) if grouped else (num,), 1 / num)
    rows = {row[0]: row for row in all_names(result)}
    return [_draws_of(rows[latent.name], leaves, weights) for latent in latents]


def _drawn(result: FitRecord, prior: Callable) -> Any:
    """`prior(key, theta, data)`, as for `jalax.FromSampler`, at the theta of the fit."""
    if result.origin is None:
        raise ValueError(
            "this result was read from a file, which does not hold its model: pass draws of the "
            "prior, shaped like result.particles, in the place of a function."
        )
    model, key = result.origin.model, jax.random.fold_in(result.origin.key, 3)

    def group(key, data):
        keys = jax.random.split(key, NUM_PRIOR_DRAWS)
        return jax.vmap(lambda k: prior(k, result.theta, data))(keys)

    if result.log_weights.ndim == 1:
        return group(key, model.data)
    return jax.vmap(group)(jax.random.split(key, model.num_groups), model.data)
