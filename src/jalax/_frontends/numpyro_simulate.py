"""New observations from a NumPyro model; imported only where NumPyro is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from jalax._frontends.numpyro_arguments import call_arguments
from jalax._frontends.numpyro_groups import OneGroup
from jalax._particles.trees import Tree


class Unobserved(Messenger):
    """The model with its observed sites drawn again."""

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            msg["is_observed"], msg["value"] = False, None


def simulate(
    fn: Callable, static: dict, sites: Mapping[str, str], key, theta: Tree, x: Tree, data: dict
) -> dict:
    """`data` with the arguments that are values of observed `sites` drawn again.

    x is on the user's scale; None: it is drawn, too.
    """
    args, kwargs = call_arguments(fn, static, data)
    known = theta if x is None else {**theta, **x}
    found = trace(seed(substitute(Unobserved(fn), data=known), key)).get_trace(*args, **kwargs)
    new = {name: found[site]["value"] for name, site in sites.items()}
    return {**data, **{name: value.astype(data[name].dtype) for name, value in new.items()}}


def simulate_group(
    fn: Callable,
    static: dict,
    name: str,
    axes: tuple,
    latent_axes: dict[str, int],
    sites: Mapping[str, str],
    key,
    theta: Tree,
    x: Tree,
    data: dict,
) -> dict:
    """The same of one member of the plate `name`, whose axis the arrays do not have."""
    leaves, treedef = jax.tree.flatten(data)
    pairs = list(zip(leaves, axes, strict=True))
    whole = treedef.unflatten([a if i is None else jnp.expand_dims(a, i) for a, i in pairs])
    if x is not None:
        x = {n: jnp.expand_dims(value, latent_axes[n]) for n, value in x.items()}
    drawn = simulate(OneGroup(fn, name), static, sites, key, theta, x, whole)
    axis_of = treedef.unflatten([-1 if i is None else i for i in axes])
    new = {n: jnp.squeeze(drawn[n], axis_of[n]) for n in sites if axis_of[n] >= 0}
    return {**data, **new}
