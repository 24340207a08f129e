"""Replay: the recorded path of a fit, with fresh particles.

In a fit theta follows the particles it weighs, and the path evidence is biased upwards. The
same path, fixed and run again with a fresh key, is exactly Proposition 1: E[Z_hat] = Z_K.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jalax._evidence.log_evidence import Evidence
from jalax._evidence.record import Origin, SavedState
from jalax._evidence.rounds import average_in_z
from jalax._model.algorithm import FixedPath
from jalax._model.model import Model
from jalax._model.types import State
from jalax._particles import weight_math
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import jit
from jalax._runtime.processes import to_host


def replay(
    origin: Origin | None, state: State | SavedState, key, num_particles: int, num_replicates: int
) -> Evidence:
    """The evidence at the end of the recorded path, from fresh replicates of the whole fit.

    `state` is the fit's last one, which has what the algorithm tuned.
    """
    arguments.check_key(key)
    arguments.check_count("num_particles", num_particles, 2)
    arguments.check_count("num_replicates", num_replicates, 2)
    if origin is None or isinstance(state, SavedState):
        raise ValueError("replay needs the fit itself, and this result was read from a file.")
    if origin.theta_path is None:
        raise ValueError(
            "replay needs theta at every step, and this fit kept only some of them: fit with "
            "record=1."
        )
    if origin.start is None or hasattr(origin.start, "count"):
        raise ValueError(
            "replay needs a start that can be drawn afresh (jalax.Laplace, Tempered, FromSampler "
            "with a log_density); this fit went on from a state or had its particles given."
        )
    fixed = origin.algorithm.fixed_path(origin.theta_path, state)
    if fixed is None:
        raise ValueError(f"{type(origin.algorithm).__name__} has no evidence to replay.")
    num_steps = jax.tree.leaves(origin.theta_path)[0].shape[0]
    keys = jax.random.split(key, num_replicates + 1)
    log_z, relative, ess, k_hat = _runs(
        keys, fixed, origin.model, origin.start, origin.theta_0, num_particles, num_steps
    )
    if bool(relative[0]):
        raise ValueError("the start knows no evidence at theta_0, so there is none to replay.")
    groups, variance, freedom = average_in_z(to_host(log_z).astype(float))
    return Evidence(
        value=float(np.sum(groups + variance / 2)),
        error=float(np.sqrt(variance.sum())),
        degrees_of_freedom=freedom,
        route="replay",
        k_hat=float(jnp.max(k_hat)),
        ess=float(jnp.min(ess)) / num_particles,
        num_particles=num_particles * num_replicates,
        num_replicates=num_replicates,
        num_temperatures=1,
        groups=groups + variance / 2,
        messages=(),
    )


@jit(static_argnames=("num_particles", "num_steps"))
def _runs(
    keys,
    algorithm: FixedPath,
    model: Model,
    start,
    theta_0: Tree,
    num_particles: int,
    num_steps: int,
):
    """All replicates step by step, behind a leader whose own cloud is in no average.

    The leader's particles say where the others' preconditioner and shift are taken, which are
    then fixed in advance as far as the others are concerned.
    """

    def begin(key):
        cloud = start(key, model, theta_0, num_particles)
        state = algorithm.init(key, model, theta_0, cloud)
        k_hat = jnp.full((), jnp.nan) if cloud.k_hat is None else jnp.max(cloud.k_hat)
        return state, k_hat

    split = jax.vmap(jax.random.split)(keys)
    states, k_hat = jax.vmap(begin)(split[:, 0])

    def step(k, states):
        change = algorithm.plan(model, jax.tree.map(lambda leaf: leaf[0], states))
        each = jax.vmap(lambda key: jax.random.fold_in(key, k))(split[:, 1])
        return jax.vmap(lambda key, state: algorithm.advance(key, model, state, change))(
            each, states
        )

    first = step(0, states)
    states, info = lax.fori_loop(1, num_steps, lambda k, carry: step(k, carry[0]), first)
    log_z = states.log_evidence_base + weight_math.log_mean_exp(states.log_weights)
    known = algorithm.path_evidence(states)
    assert known is not None
    relative = known.relative
    return jax.tree.map(lambda leaf: leaf[1:], (log_z, relative, info.ess, k_hat))
