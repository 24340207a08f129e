"""Starts at which float32 overflows: the climb from there is in 64 bits.

A coefficient of 1.6 for an age of 60 years is e^96 in a hazard: more than float32 holds, though not
more than float64. Where the fit has arrived there is nothing so large.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jalax._fit.callbacks import Callback
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._runtime.arguments import level_of_user
from jalax._runtime.processes import to_host_in_double


def climbed_in_double(fit: Callable, model: Model, theta: Tree, key: jax.Array) -> Tree | None:
    """Where a fit in 64 bits arrives, in the precision of theta; None if it does not begin there.

    Nor on a mesh, whose other processes would have to do the same.
    """
    narrow = any(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((theta, model.latent)))
    if not narrow or model.layout is not None:
        return None
    latent, data, wide = to_host_in_double((model.latent, model.data, theta))
    with jax.enable_x64(True):
        model = model.replace(latent=latent, data=data, theta=None)
        start = model.constrained(jax.tree.map(jnp.asarray, wide))
        try:
            found = fit(model, start, key=key, progress=Callback()).theta
        except ValueError:
            return None
        there = model.unconstrained(found)
        there = jax.tree.map(lambda to, like: jnp.asarray(to, like.dtype), there, theta)
    warnings.warn(
        "log_joint overflows in float32 at theta_0, not in 64 bits: the fit has climbed in 64 "
        "bits first, and goes on from where that ended.",
        stacklevel=level_of_user(),
    )
    return there
