"""KIPLMC: kinetic interacting particles (Valsecchi Oliva and Akyildiz, arXiv 2407.05790)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jalax import extend
from jalax.extend import Cloud, Info, Point, State, Tree, trees


class Memory(NamedTuple):
    momentum: Tree  # W, a tree like theta
    velocity: Tree  # V, a tree like the particles
    point: Point


@extend.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class KIPLMC(extend.Algorithm):
    r"""Kinetic interacting particle Langevin Monte Carlo: IPLA with momentum (KIPLMC1).

    The underdamped diffusion of theta and particles, with friction $\gamma$,

    $$d\theta = W dt, \quad dW = -\gamma W dt - \frac1N \sum_i \nabla_\theta U(\theta, X^i) dt
      + \sqrt{2 \gamma / N}\, dB, \qquad
      dX^i = V^i dt, \quad dV^i = -\gamma V^i dt - \nabla_x U(\theta, X^i) dt
      + \sqrt{2 \gamma}\, dB^i,$$

    is solved exactly over a step h with the gradients of its beginning, g for short: with
    $\psi_0 = e^{-\gamma h}$, $\psi_1 = (1 - \psi_0) / \gamma$, $\psi_2 = (h - \psi_1) / \gamma$

    $$X_{k+1} = X_k + \psi_1 V_k - \psi_2 g + \sqrt{2 \gamma}\, \xi', \qquad
      V_{k+1} = \psi_0 V_k - \psi_1 g + \sqrt{2 \gamma}\, \xi,$$

    where $(\xi, \xi')$ is normal with the variances and covariance of
    $\int_0^h (\psi_0(t), \psi_1(t))\, dB_t$; the same for theta, its noise smaller by $\sqrt N$.

    Readings where the paper leaves something open: all begin at rest; a particle whose log p is not
    finite stands still where it is moved.

    Args:
        step_size: h, a number or a schedule.
        friction: gamma.
    """

    step_size: Any = None
    friction: Any = 2.0

    def check(self, model) -> None:
        extend.require_positive("KIPLMC.step_size", self.step_size)
        extend.require_positive("KIPLMC.friction", self.friction)

    def init(self, key, model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, point = extend.equal_cloud(key, model, theta, cloud)
        momentum, velocity = jax.tree.map(jnp.zeros_like, (theta, particles))
        step, base = jnp.zeros((), jnp.int32), jnp.zeros_like(log_weights[:, 0])
        return State(step, theta, particles, log_weights, base, Memory(momentum, velocity, point))

    def step(self, key, model, state: State) -> tuple[State, Info]:
        key_theta, key_particles = jax.random.split(key)
        memory, old = state.memory, state.memory.point
        h = extend.value_at(self.step_size, state.step)
        flow = _flow(h, jnp.asarray(self.friction, jnp.result_type(float)))
        few = state.log_weights.shape[1] ** -0.5
        theta, momentum = _moved(key_theta, state.theta, memory.momentum, old.grad_theta, flow, few)
        proposal, velocity = _moved(
            key_particles, state.particles, memory.velocity, old.grad_x, flow, 1.0
        )

        visit = extend.evaluate(model, theta, proposal)
        log_weights = extend.zero_dead_weights(state.log_weights, visit)
        particles, point = extend.weigh(model, theta, visit, log_weights)
        velocity = trees.select(visit.alive, velocity, jax.tree.map(jnp.zeros_like, velocity))
        memory, base = Memory(momentum, velocity, point), state.log_evidence_base
        state = State(state.step + 1, theta, particles, log_weights, base, memory)
        return state, extend.peer_info(visit, log_weights, point)


class Flow(NamedTuple):
    """Of one step; the noise is that of a standard diffusion, by a Cholesky factor."""

    decay: Any  # psi_0
    first: Any  # psi_1
    second: Any  # psi_2
    of_velocity: Any  # the standard deviation of xi
    shared: Any  # the part of xi' that goes with xi
    alone: Any  # the standard deviation of the rest


def _flow(h, friction) -> Flow:
    decay = jnp.exp(-friction * h)
    first = -jnp.expm1(-friction * h) / friction
    second = (h - first) / friction
    # Of sqrt(2 gamma) (xi, xi'), by the integrals of psi_0^2, psi_0 psi_1 and psi_1^2.
    of_velocity = -jnp.expm1(-2 * friction * h)
    both = friction * first**2
    of_place = 2 / friction * (h - 2 * first + of_velocity / (2 * friction))
    shared = both / jnp.sqrt(of_velocity)
    alone = jnp.sqrt(jnp.maximum(of_place - shared**2, 0.0))
    return Flow(decay, first, second, jnp.sqrt(of_velocity), shared, alone)


def _moved(key, places: Tree, velocities: Tree, gradients: Tree, flow: Flow, noise) -> tuple:
    """Places and velocities after a step; gradients are those of log p."""
    xi, other = (trees.normal_like(k, places) for k in jax.random.split(key))

    def place(x, v, g, xi, other):
        scattered = noise * (flow.shared * xi + flow.alone * other)
        return (x + flow.first * v + flow.second * g + scattered).astype(x.dtype)

    def velocity(v, g, xi):
        return (flow.decay * v + flow.first * g + noise * flow.of_velocity * xi).astype(v.dtype)

    moved = jax.tree.map(place, places, velocities, gradients, xi, other)
    return moved, jax.tree.map(velocity, velocities, gradients, xi)
