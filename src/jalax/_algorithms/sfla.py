"""SFLA: the slow-fast Langevin algorithm (Akyildiz et al., 2024)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jalax._algorithms.peers import equal_cloud, peer_info, zero_dead_weights
from jalax._model.algorithm import Algorithm
from jalax._model.evaluation import Point, evaluate, weigh
from jalax._model.model import Model
from jalax._model.types import Cloud, Info, State
from jalax._particles import langevin, trees
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import Schedule, require_positive, value_at


class Memory(NamedTuple):
    point: Point


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SFLA(Algorithm):
    r"""Slow-fast Langevin algorithm (paper, appendix A): theta slow, the latent fast.

    $$\theta_{k+1} = \theta_k - \gamma \nabla_\theta U(\theta_k, X_k)
      + \sqrt{2\gamma/\beta}\, \xi_{k+1}, \qquad
      X_{k+1} = X_k - \frac{\gamma}{\epsilon} \nabla_x U(\theta_k, X_k)
      + \sqrt{2\gamma/\epsilon}\, Z_{k+1}.$$

    The paper has a single latent, `num_particles=1`; with more the gradient is their mean.

    Args:
        step_size: gamma, a number or a schedule.
        epsilon: the ratio of the two time scales; gamma / epsilon is the step of the latent.
        beta: the inverse temperature of theta.
    """

    step_size: float | Schedule | Callable | None = None
    epsilon: float = 0.1
    beta: float = 1e4

    min_particles = 1

    def check(self, model: Model) -> None:
        require_positive("SFLA.step_size", self.step_size)
        require_positive("SFLA.epsilon", self.epsilon)
        require_positive("SFLA.beta", self.beta)

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, point = equal_cloud(key, model, theta, cloud)
        base = jnp.zeros_like(log_weights[:, 0])
        step = jnp.zeros((), jnp.int32)
        return State(step, theta, particles, log_weights, base, Memory(point))

    def step(self, key, model: Model, state: State) -> tuple[State, Info]:
        key_move, key_theta = jax.random.split(key)
        old = state.memory.point
        gamma = value_at(self.step_size, state.step)

        def slow(t, g, xi):
            c = jnp.asarray(gamma, t.dtype)
            return t + c * g + jnp.sqrt(2 * c / self.beta).astype(t.dtype) * xi

        xi = trees.normal_like(key_theta, state.theta)
        theta = jax.tree.map(slow, state.theta, old.grad_theta, xi)
        proposal = langevin.move(
            key_move, state.particles, old.grad_x, gamma / self.epsilon
        ).particles

        visit = evaluate(model, theta, proposal)
        log_weights = zero_dead_weights(state.log_weights, visit)
        particles, point = weigh(model, theta, visit, log_weights)
        state = State(
            state.step + 1, theta, particles, log_weights, state.log_evidence_base, Memory(point)
        )
        return state, peer_info(visit, log_weights, point)
