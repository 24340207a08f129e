"""SAEM: stochastic approximation EM (Delyon, Lavielle and Moulines, 1999)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax import extend
from jalax.extend import Cloud, Info, State, Tree

from ._parts import Chains, check_theta, complete_data, newton_step, started, transitions


class Memory(NamedTuple):
    chains: Chains
    information: Float[Array, "P P"]  # C


@extend.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SAEM(extend.Algorithm):
    r"""Stochastic approximation EM with Metropolis-adjusted Langevin chains.

    What users of NONMEM, Monolix and nlmixr2 run. The chains $X^i$ of every group move by
    `num_inner` transitions that leave $p_{\theta_k}(x \mid y)$ as it is. SAEM then averages
    $Q_{k+1} = (1 - \gamma_k) Q_k + \frac{\gamma_k}N \sum_i \log p_\theta(X^i, y)$ and maximises it.
    Here the maximum is that of Newton's method from $\theta_k$, where $Q_k$ has its own, so that
    nothing has to be known about the model:

    $$\theta_{k+1} = \theta_k + \gamma_k C_{k+1}^{-1} \frac1N \sum_i
      \nabla_\theta \log p_{\theta_k}(X^i, y), \qquad
      C_{k+1} = (1 - \gamma_k) C_k - \frac{\gamma_k}N \sum_i
      \nabla_\theta^2 \log p_{\theta_k}(X^i, y),$$

    with $\gamma_k = 1$ for the first `burn_in` steps and $(k - \text{burn-in} + 1)^{-a}$ beyond.
    Of an exponential family with theta its natural parameter this is SAEM to first order.

    Readings where papers and packages differ: eigenvalues of C count with their size; theta moves
    by at most three standard errors, were the latents known; the step size of the chains is one
    number a group, which follows the share of its moves that are accepted.

    Args:
        step_size: of the chains, at first.
        num_inner: transitions a step.
        burn_in: steps with $\gamma = 1$, in which theta comes near.
        exponent: a, above 1/2 and up to 1.
    """

    step_size: Any = 0.1
    num_inner: int = dataclasses.field(default=5, metadata={"static": True})
    burn_in: Any = 100
    exponent: Any = 0.7

    def check(self, model) -> None:
        extend.require_positive("SAEM.step_size", self.step_size)
        extend.check_count("SAEM.num_inner", self.num_inner)
        if not np.all((np.asarray(self.exponent) > 0.5) & (np.asarray(self.exponent) <= 1)):
            raise ValueError(
                f"SAEM.exponent must be above 0.5 and at most 1, got {self.exponent}: steps must "
                "shrink, but not too fast."
            )
        if not np.all(np.asarray(self.burn_in) >= 0):
            raise ValueError(f"SAEM.burn_in must be 0 steps or more, got {self.burn_in}.")

    def check_theta(self, theta: Tree) -> None:
        check_theta("SAEM", theta)

    def init(self, key, model, theta: Tree, cloud: Cloud) -> State:
        chains, log_weights = started(key, model, theta, cloud, self.step_size)
        size = ravel_pytree(theta)[0]
        memory = Memory(chains, jnp.zeros((size.size, size.size), size.dtype))
        step, base = jnp.zeros((), jnp.int32), jnp.zeros_like(log_weights[:, 0])
        return State(step, theta, chains.particles, log_weights, base, memory)

    def step(self, key, model, state: State) -> tuple[State, Info]:
        memory, (flat, unravel) = state.memory, ravel_pytree(state.theta)
        how = self.num_inner, state.step
        chains, dead = transitions(key, model, state.theta, memory.chains, *how)
        after = jnp.maximum(state.step - self.burn_in + 1, 1)
        gamma = jnp.asarray(after, flat.dtype) ** -jnp.asarray(self.exponent, flat.dtype)

        visit = extend.evaluate(model, state.theta, chains.particles)
        log_weights = extend.zero_dead_weights(state.log_weights, visit)
        particles, point = extend.weigh(model, state.theta, visit, log_weights)
        now = complete_data(model, state.theta, particles, log_weights).information
        gamma_first = jnp.where(state.step == 0, 1.0, gamma)  # there is no C yet
        information = memory.information + gamma_first * (now - memory.information)
        score = ravel_pytree(point.grad_theta)[0]
        theta = unravel(flat + gamma * newton_step(score, information))

        chains = chains._replace(particles=particles)
        memory, base = Memory(chains, information), state.log_evidence_base
        state = State(state.step + 1, theta, particles, log_weights, base, memory)
        return state, extend.peer_info(visit, log_weights, point)._replace(dead=dead)
