"""PGD with momentum: an algorithm outside the package, written with public names only.

Both theta and the particles have a velocity, as in the kinetic Langevin diffusion: with friction g
and step size h, for the gradients of log p at (theta_k, X_k),

    W_{k+1} = (1 - g h) W_k + h mean_i grad_theta,        theta_{k+1} = theta_k + h W_{k+1},
    V_{k+1} = (1 - g h) V_k + h grad_x + sqrt(2 g h) xi,      X_{k+1} = X_k + h V_{k+1}.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jalax
from jalax import extend
from jalax.extend import trees


class Memory(NamedTuple):
    momentum: Any  # W, a tree like theta
    velocity: Any  # V, a tree like the particles
    point: extend.Point  # log p, grad_x and the mean grad_theta at (theta_k, X_k)


@extend.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentumPGD(extend.Algorithm):
    """Kinetic particle gradient descent.

    Args:
        step_size: h, a number or a schedule.
        friction: g; h g must stay below 1.
    """

    step_size: Any = None
    friction: float = 2.0

    def check(self, model):
        extend.require_positive("MomentumPGD.step_size", self.step_size)
        extend.require_positive("MomentumPGD.friction", self.friction)

    def init(self, key, model, theta, cloud):
        particles, log_weights, point = extend.equal_cloud(key, model, theta, cloud)
        still = jax.tree.map(jnp.zeros_like, (theta, particles))
        step, base = jnp.zeros((), jnp.int32), jnp.zeros_like(log_weights[:, 0])
        return jalax.State(step, theta, particles, log_weights, base, Memory(*still, point))

    def step(self, key, model, state):
        memory, old = state.memory, state.memory.point
        h, noise = extend.value_at(self.step_size, state.step), trees.normal_like(key, old.grad_x)

        def kick(v, g):
            return ((1 - self.friction * h) * v + h * g).astype(v.dtype)

        def drift(x, v):
            return (x + h * v).astype(x.dtype)

        momentum = jax.tree.map(kick, memory.momentum, old.grad_theta)
        theta = jax.tree.map(drift, state.theta, momentum)
        size = jnp.sqrt(2 * self.friction * h)
        velocity = jax.tree.map(
            lambda v, g, xi: (kick(v, g) + size * xi).astype(v.dtype),
            *(memory.velocity, old.grad_x, noise),
        )
        visit = extend.evaluate(model, theta, jax.tree.map(drift, state.particles, velocity))

        log_weights = extend.zero_dead_weights(state.log_weights, visit)
        particles, point = extend.weigh(model, theta, visit, log_weights)
        # `weigh` has moved the dead onto a living particle; what threw them out stays behind.
        velocity = trees.select(visit.alive, velocity, jax.tree.map(jnp.zeros_like, velocity))
        memory, base = Memory(momentum, velocity, point), state.log_evidence_base
        state = jalax.State(state.step + 1, theta, particles, log_weights, base, memory)
        return state, extend.peer_info(visit, log_weights, point)
