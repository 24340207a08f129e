"""What float32 makes of log_joint, seen against float64 at one point of each group.

The terms of a log-density may be much larger than their sum (two values of gammaln, a sum of
squares less another): their rounding is that of the largest, the same at all points of a group, and
no spread over points shows it. Nor does it show the error of integrals within log_joint, which is
seen against those with twice the points.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model import evaluation
from jalax._model.evaluation import ravel_latent
from jalax._model.frequencies import on_the_host
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, jit
from jalax._runtime.processes import to_host, to_host_in_double

# By which log p may be off in all before a word is said.
WORTH_SAYING = 0.1
# What a log_joint raises that cannot be traced in float64.
UNTRACEABLE = (TypeError, ValueError, NotImplementedError)


def rounding(model: Model, theta: Tree, modes: Any) -> np.ndarray | None:
    """log_joint at each group's mode less the same in float64; None where that is not known.

    As often as the group occurs.
    It is not for a log_joint that cannot be traced in float64. Of one with integrals in it the
    other has more points, too.
    """
    finer = _is_finer(model)
    if modes.dtype != np.float32 and not finer:
        return np.zeros(len(modes))
    here = to_host(_at_modes(model.replace(theta=None), theta, modes))
    try:
        with jax.enable_x64(True):
            there = np.asarray(_at_modes(*_in_double(model, theta, modes), finer))
    except UNTRACEABLE:
        return None
    added = on_the_host(model) * (here.astype(float) - there)
    if finer and abs(total := float(added.sum())) > WORTH_SAYING:
        warnings.warn(
            f"the integrals over the latents within each group are off by {total:.2g} in log p at "
            "the points that they have; log p is corrected for it, theta is not.",
            stacklevel=arguments.level_of_user(),
        )
    return added


def compile_ahead(model: Model, theta: Tree) -> None:
    """The programs of `rounding`, while something else takes its time."""
    example, _ = ravel_latent(model)
    modes = np.zeros((model.num_groups, example.size), example.dtype)
    finer = _is_finer(model)
    if modes.dtype != np.float32 and not finer:
        return
    _at_modes.lower(model.replace(theta=None), theta, modes).compile()
    with contextlib.suppress(*UNTRACEABLE), jax.enable_x64(True):
        _at_modes.lower(*_in_double(model, theta, modes), finer).compile()


def _is_finer(model: Model) -> bool:
    """Whether there are integrals in log_joint, which can have more points."""
    return model.outside.finer is not None and model.outside.log_prior is None


def _in_double(model: Model, theta: Tree, modes: Any) -> tuple[Model, Tree, Any]:
    theta, latent, data, modes = to_host_in_double((theta, model.latent, model.data, modes))
    return model.replace(latent=latent, data=data, theta=None, layout=None), theta, modes


@jit(LEVEL_0_OLD_EMITTERS, static_argnames="finer")
def _at_modes(model: Model, theta: Tree, modes: Any, finer: bool = False) -> jax.Array:
    if finer:
        function: Any = model.outside.finer
        particles = jax.vmap(ravel_latent(model)[1])(jnp.asarray(modes))
        user = model.constrained(theta)
        return evaluation.over_groups(model, lambda x, data: function(user, x, data), particles)
    _, unravel = ravel_latent(model)
    particles = jax.tree.map(lambda x: x[:, None], jax.vmap(unravel)(jnp.asarray(modes)))
    return evaluation.log_joint(model, theta, particles)[:, 0]
