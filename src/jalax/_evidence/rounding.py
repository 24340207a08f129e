"""What float32 makes of log_joint, seen against float64 at one point of each group.

The terms of a log-density may be much larger than their sum (two values of gammaln, a sum of
squares less another): their rounding is that of the largest, the same at all points of a group, and
no spread over points shows it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model import evaluation
from jalax._model.evaluation import ravel_latent
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, Program
from jalax._runtime.processes import to_host, to_host_in_double


def rounding(model: Model, theta: Tree, modes: Any) -> np.ndarray | None:
    """log_joint at each group's mode less the same in float64; None where that is not known.

    It is not for a log_joint that cannot be traced in float64.
    """
    if modes.dtype != np.float32:
        return np.zeros(len(modes))
    here = to_host(_at_modes(model.replace(theta=None), theta, modes))
    theta, latent, data, modes = to_host_in_double((theta, model.latent, model.data, modes))
    try:
        with jax.enable_x64(True):
            model = model.replace(latent=latent, data=data, theta=None, layout=None)
            there = np.asarray(_at_modes(model, theta, modes))
    except (TypeError, ValueError, NotImplementedError):
        return None
    return here.astype(float) - there


def _log_joint(model: Model, theta: Tree, modes: Any) -> jax.Array:
    _, unravel = ravel_latent(model)
    particles = jax.tree.map(lambda x: x[:, None], jax.vmap(unravel)(jnp.asarray(modes)))
    return evaluation.log_joint(model, theta, particles)[:, 0]


_at_modes = Program(_log_joint, small=LEVEL_0_OLD_EMITTERS, large={})
