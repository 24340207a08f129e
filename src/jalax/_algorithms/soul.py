"""SOUL: stochastic optimisation via unadjusted Langevin (De Bortoli et al., 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jalax._algorithms.peers import check_gradient_step, equal_cloud, peer_info, zero_dead_weights
from jalax._model.algorithm import Algorithm
from jalax._model.evaluation import evaluate, weigh
from jalax._model.model import Model
from jalax._model.types import Cloud, Info, State
from jalax._particles import langevin
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import Optax, Schedule, descend, require_positive, value_at


class Memory(NamedTuple):
    optimizer: Tree


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SOUL(Algorithm):
    r"""Stochastic optimisation via unadjusted Langevin: one long chain instead of a cloud.

    Each theta-update follows `num_inner` steps of one unadjusted Langevin chain at theta_k,
    begun where the last one ended; its states are the particles:
    $$X_{j+1} = X_j - h \nabla_x U(\theta_k, X_j) + \sqrt{2h}\, \xi_{j+1}, \qquad
      \theta_{k+1} = \mathrm{OPT}\Big(\theta_k,
      \frac{1}{J} \sum_{j=1}^{J} \nabla_\theta U(\theta_k, X_j)\Big).$$

    Args:
        step_size: h, a number or a schedule in the number of theta-updates.
        optimizer: OPT, any optax transformation; by default plain gradient steps of size 0.05.
        num_inner: J, the length of the chain; by default the number of particles.
    """

    step_size: float | Schedule | Callable | None = None
    optimizer: Any = None
    num_inner: int | None = dataclasses.field(default=None, metadata={"static": True})

    def check(self, model: Model) -> None:
        require_positive("SOUL.step_size", self.step_size)
        check_gradient_step("SOUL", self.optimizer)
        if self.num_inner is not None and self.num_inner < 2:
            raise ValueError(f"SOUL.num_inner must be 2 or more, got {self.num_inner}.")

    @property
    def fixed_particles(self) -> dict[str, int]:
        return {} if self.num_inner is None else {"SOUL.num_inner": self.num_inner}

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, _ = equal_cloud(key, model, theta, cloud)
        base = jnp.zeros_like(log_weights[:, 0])
        memory = Memory(self._optimizer().init(theta))
        return State(jnp.zeros((), jnp.int32), theta, particles, log_weights, base, memory)

    def step(self, key, model: Model, state: State) -> tuple[State, Info]:
        h = value_at(self.step_size, state.step)
        num_inner = state.log_weights.shape[1]

        def chain(x, key):  # x: the chain of every group, (G, 1, ...)
            grad_x = evaluate(model, state.theta, x).grad_x
            x = langevin.move(key, x, grad_x, h).particles
            return x, x

        last = jax.tree.map(lambda leaf: leaf[:, -1:], state.particles)
        _, states = lax.scan(chain, last, jax.random.split(key, num_inner))
        states = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[:, :, 0], 0, 1), states)

        # The mean gradient over the chain is at theta_k, like the chain itself.
        visit = evaluate(model, state.theta, states)
        log_weights = zero_dead_weights(jnp.zeros_like(state.log_weights), visit)
        particles, point = weigh(model, state.theta, visit, log_weights)
        gradient_of_u = jax.tree.map(jnp.negative, point.grad_theta)
        theta, optimizer = descend(
            self._optimizer(), gradient_of_u, state.memory.optimizer, state.theta
        )
        state = State(
            state.step + 1,
            theta,
            particles,
            log_weights,
            state.log_evidence_base,
            Memory(optimizer),
        )
        return state, peer_info(visit, log_weights, point)

    def _optimizer(self) -> Optax:
        if self.optimizer is not None:
            return self.optimizer
        import optax

        return Optax(optax.sgd, learning_rate=0.05)
