"""IPLA: the interacting particle Langevin algorithm (Akyildiz et al., 2025)."""

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
class IPLA(Algorithm):
    r"""Interacting particle Langevin algorithm (paper, appendix A): PGD with noise in theta.

    $$\theta_{k+1} = \theta_k - \frac{\gamma}{N} \sum_i \nabla_\theta U(\theta_k, X_k^i)
      + \sqrt{2\gamma/N}\, \xi_{k+1}, \qquad
      X_{k+1}^i = X_k^i - \gamma \nabla_x U(\theta_k, X_k^i) + \sqrt{2\gamma} Z_{k+1}^i.$$

    Args:
        step_size: gamma, a number or a schedule.
    """

    step_size: float | Schedule | Callable | None = None

    def check(self, model: Model) -> None:
        require_positive("IPLA.step_size", self.step_size)

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, point = equal_cloud(key, model, theta, cloud)
        base = jnp.zeros_like(log_weights[:, 0])
        step = jnp.zeros((), jnp.int32)
        return State(step, theta, particles, log_weights, base, Memory(point))

    def step(self, key, model: Model, state: State) -> tuple[State, Info]:
        key_move, key_theta = jax.random.split(key)
        old = state.memory.point
        gamma = value_at(self.step_size, state.step)
        num_particles = state.log_weights.shape[1]

        def noisy_gradient_step(t, g, xi):
            c = jnp.asarray(gamma, t.dtype)
            return t + c * g + jnp.sqrt(2 * c / num_particles) * xi

        xi = trees.normal_like(key_theta, state.theta)
        theta = jax.tree.map(noisy_gradient_step, state.theta, old.grad_theta, xi)
        proposal = langevin.move(key_move, state.particles, old.grad_x, gamma).particles

        visit = evaluate(model, theta, proposal)
        log_weights = zero_dead_weights(state.log_weights, visit)
        particles, point = weigh(model, theta, visit, log_weights)
        state = State(
            state.step + 1, theta, particles, log_weights, state.log_evidence_base, Memory(point)
        )
        return state, peer_info(visit, log_weights, point)
