"""One member of a NumPyro plate as one group; imported only where NumPyro is there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.primitives import Messenger

from jalax._frontends import numpyro_sites
from jalax._frontends.constrained import to_free, to_user
from jalax._frontends.numpyro_sites import Sites
from jalax._model.model import GroupedModel
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_1, Jit
from jalax._runtime.function_keys import Static, wrapped

HINT = (
    "Rows in long format, picked by an index, are arranged by jalax.group_by into arrays "
    "(groups, rows) with a mask: put the rows into a plate inside this one, dim=-1, with this one "
    "at dim=-2. Otherwise leave groups= out."
)


class OneGroup(Messenger):
    """Makes the plate `name` one of size one, whatever size the model gives it."""

    def __init__(self, fn: Callable, name: str):
        super().__init__(fn)
        self.name, self.size = name, 1

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate" and msg["name"] == self.name:
            self.size = msg["args"][0]
            msg["args"], msg["value"] = (self.size, 1), jnp.arange(1)
        elif msg.get("scale") is not None and _inside(msg, self.name):
            # The plate takes the one for a subsample, and scales it up.
            msg["scale"] = msg["scale"] / self.size


def _inside(site: dict, name: str) -> bool:
    return any(frame.name == name for frame in site["cond_indep_stack"])


def grouped(
    fn: Callable, static: dict, data: dict, sites: Sites, name: str
) -> tuple[GroupedModel, Static, Static | None, tuple]:
    """The grouped model, its latent and deterministic sites for the user, and what a group is."""
    size = _size(sites, name)
    axes = tuple(_axis(leaf, size) for leaf in jax.tree.leaves(data))
    if all(axis is None for axis in axes):
        raise ValueError(
            f"no array among the arguments has an axis of length {size}, the size of plate "
            f"{name!r}: each group needs data of its own, passed in args= or kwargs=. {HINT}"
        )
    latent_axes = {n: _plate_axis(site, name) for n, site in _latents(sites).items()}
    groups = _each(data, axes, size)
    parts = (fn, static, name, axes)
    kept = _check(parts, data, groups, sites, latent_axes)
    latent = {n: jnp.take(x, jnp.array([0]), latent_axes[n]) for n, x in sites.latent.items()}
    return (
        GroupedModel(wrapped(_log_joint, *parts), latent, groups),
        wrapped(_squeezed_latents, *parts, latent_axes),
        wrapped(_squeezed_derived, *parts, kept) if kept else None,
        (*parts, latent_axes),
    )


def _size(sites: Sites, name: str) -> int:
    """The length of the plate, once it is known that every site is inside."""
    plates = [n for n, site in sites.trace.items() if site["type"] == "plate"]
    if name not in plates:
        raise ValueError(f"groups={name!r} is not a plate of this model; its plates are {plates}.")
    for site_name, site in sites.trace.items():
        if site["type"] == "sample" and not _inside(site, name):
            kind = "observed" if site["is_observed"] else "latent"
            raise ValueError(
                f"the {kind} site {site_name!r} is not inside the plate {name!r}, so that the "
                f"members of this plate are not independent groups. {HINT}"
            )
    return int(sites.trace[name]["args"][0])


def _latents(sites: Sites) -> dict[str, dict]:
    return {n: sites.trace[n] for n in sites.latent}


def _plate_axis(site: dict, name: str) -> int:
    """Where the plate is among the axes of a site's value, counted from the left.

    From the left it is the same for the unconstrained value, whose last axis may be shorter.
    """
    (dim,) = (frame.dim for frame in site["cond_indep_stack"] if frame.name == name)
    return len(site["fn"].batch_shape) + dim


def _axis(leaf: Any, size: int) -> int | None:
    """The axis of the groups: the first of their number. None: shared by all groups."""
    return next((axis for axis, n in enumerate(leaf.shape) if n == size), None)


def _each(data: Tree, axes: tuple, size: int) -> Tree:
    """The arrays with the group axis in front."""
    leaves, treedef = jax.tree.flatten(data)
    moved = [
        jnp.broadcast_to(leaf, (size, *leaf.shape)) if axis is None else jnp.moveaxis(leaf, axis, 0)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return treedef.unflatten(moved)


def _run(function: Callable, fn, static, name, axes, theta, x, data):
    """A function of `numpyro_sites` for the one group whose data these are."""
    leaves, treedef = jax.tree.flatten(data)
    whole = [
        leaf if axis is None else jnp.expand_dims(leaf, axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return function(OneGroup(fn, name), static, theta, x, treedef.unflatten(whole))


def _log_joint(fn, static, name, axes, theta, x, data):
    return _run(numpyro_sites.log_joint, fn, static, name, axes, theta, x, data)


def _squeezed_latents(fn, static, name, axes, latent_axes, theta, x, data):
    """Without the axis of length one that a plate of one group has."""
    values = _run(numpyro_sites.latents, fn, static, name, axes, theta, x, data)
    return {n: jnp.squeeze(value, latent_axes[n]) for n, value in values.items()}


def _squeezed_derived(fn, static, name, axes, kept, theta, x, data):
    values = _run(numpyro_sites.derived, fn, static, name, axes, theta, x, data)
    return {n: values[n] if a is None else jnp.squeeze(values[n], a) for n, a in kept.items()}


def _check(
    parts: tuple, data: Tree, groups: Tree, sites: Sites, latent_axes: dict[str, int]
) -> dict[str, int | None]:
    """The groups add up to the whole model, at a random point in 64 bits.

    Returns the deterministic sites that a group can compute, with the axis of the groups.
    """
    fn, static, name, axes = parts
    with jax.enable_x64(True):
        key_theta, key_x = jax.random.split(jax.random.key(0))
        free = to_free(sites.bijections, "theta", _doubled(sites.theta))
        theta = to_user(sites.bijections, "theta", _jittered(key_theta, free, 0.1))
        x = _jittered(key_x, _doubled(sites.latent), 1.0)
        # Whole: (..., G, ...). In groups: (G, ..., 1, ...).
        each = {
            n: jnp.expand_dims(jnp.moveaxis(v, latent_axes[n], 0), latent_axes[n] + 1)
            for n, v in x.items()
        }
        data, groups = _doubled(data), _doubled(groups)

        def both(fn, static, theta, x, data):
            return (
                numpyro_sites.log_joint(fn, static, theta, x, data),
                numpyro_sites.derived(fn, static, theta, x, data),
            )

        one = functools.partial(_run, both, fn, static, name, axes)
        whole, whole_derived = _quick(functools.partial(both, fn, static))(theta, x, data)
        try:
            log_p, derived = _quick(jax.vmap(one, in_axes=(None, 0, 0)))(theta, each, groups)
        except Exception as error:
            raise ValueError(
                f"the model cannot be run on one member of plate {name!r} alone ({error}). Its "
                "arrays are cut along their first axis of the plate's length, and the plate gets "
                f"size one; shapes must follow from the arrays and the plate. {HINT}"
            ) from error
    in_whole, parts_of_it = float(whole), np.asarray(log_p)
    tolerance = 1e-6 * (1 + np.abs(parts_of_it).sum())
    if not abs(parts_of_it.sum() - in_whole) <= tolerance:
        raise ValueError(
            f"the members of plate {name!r} do not add up to the model: log p is "
            f"{in_whole:.6g} in whole and {parts_of_it.sum():.6g} as a sum over groups. "
            "An array may be as long as the plate and yet not hold one entry for each "
            "member, a parameter may be indexed by the member, a site may depend on other members, "
            f"or the model reads arrays that are not among its arguments. {HINT}"
        )
    return _comparable(whole_derived, derived)


def _quick(function: Callable) -> Callable:
    """One compilation, for a single use."""
    return Jit(function, LEVEL_1)


def _doubled(tree: Tree) -> Tree:
    return jax.tree.map(
        lambda a: jnp.asarray(a, float) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree
    )


def _jittered(key: jax.Array, tree: Tree, scale: float) -> Tree:
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    return treedef.unflatten(
        [a + scale * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=False)]
    )


def _comparable(whole: dict[str, Any], groups: dict[str, Any]) -> dict[str, int | None]:
    """Deterministic sites whose values by group are those of the whole model."""
    kept: dict[str, int | None] = {}
    for name, value in whole.items():
        value, each = np.asarray(value), np.asarray(groups[name])
        if value.shape == each.shape[1:] and np.allclose(value, each):
            kept[name] = None  # of theta alone, or there is one group only
        for axis, length in enumerate(each.shape[1:]):
            rest = each.shape[1 : axis + 1] + each.shape[axis + 2 :]
            if length != 1 or value.shape != (*rest[:axis], each.shape[0], *rest[axis:]):
                continue
            if np.allclose(np.moveaxis(value, axis, 0), np.squeeze(each, axis + 1)):
                kept[name] = axis
                break
    return kept
