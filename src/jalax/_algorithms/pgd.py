"""PGD: particle gradient descent (Kuntz, Lim and Johansen, 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jalax._algorithms.peers import check_gradient_step, equal_cloud, peer_info, zero_dead_weights
from jalax._model.algorithm import Algorithm
from jalax._model.evaluation import Point, evaluate, weigh
from jalax._model.model import Model
from jalax._model.types import Cloud, Info, State
from jalax._particles import langevin
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import Schedule, descend, require_positive, value_at


class Memory(NamedTuple):
    optimizer: Tree
    point: Point


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PGD(Algorithm):
    r"""Particle gradient descent (paper, appendix A): equal weights, one step size for both.

    $$\theta_{k+1} = \theta_k - \frac{\gamma}{N} \sum_i \nabla_\theta U(\theta_k, X_k^i), \qquad
      X_{k+1}^i = X_k^i - \gamma \nabla_x U(\theta_k, X_k^i) + \sqrt{2\gamma} Z_{k+1}^i.$$

    Args:
        step_size: gamma, a number or a schedule.
        optimizer: an optax transformation for theta instead of the plain gradient step, as
            its authors use in their harder examples.
    """

    step_size: float | Schedule | Callable | None = None
    optimizer: Any = None

    def check(self, model: Model) -> None:
        require_positive("PGD.step_size", self.step_size)
        check_gradient_step("PGD", self.optimizer)

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, point = equal_cloud(key, model, theta, cloud)
        optimizer = () if self.optimizer is None else self.optimizer.init(theta)
        base = jnp.zeros_like(log_weights[:, 0])
        step = jnp.zeros((), jnp.int32)
        return State(step, theta, particles, log_weights, base, Memory(optimizer, point))

    def step(self, key, model: Model, state: State) -> tuple[State, Info]:
        old, optimizer = state.memory.point, state.memory.optimizer
        gamma = value_at(self.step_size, state.step)

        # theta and X both move from (theta_k, X_k).
        if self.optimizer is None:
            theta = jax.tree.map(
                lambda t, g: t + jnp.asarray(gamma, t.dtype) * g, state.theta, old.grad_theta
            )
        else:
            gradient_of_u = jax.tree.map(jnp.negative, old.grad_theta)
            theta, optimizer = descend(self.optimizer, gradient_of_u, optimizer, state.theta)
        proposal = langevin.move(key, state.particles, old.grad_x, gamma).particles

        visit = evaluate(model, theta, proposal)
        log_weights = zero_dead_weights(state.log_weights, visit)
        particles, point = weigh(model, theta, visit, log_weights)
        state = State(
            state.step + 1,
            theta,
            particles,
            log_weights,
            state.log_evidence_base,
            Memory(optimizer, point),
        )
        return state, peer_info(visit, log_weights, point)
