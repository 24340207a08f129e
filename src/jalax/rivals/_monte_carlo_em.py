"""Monte-Carlo EM (Wei and Tanner, 1990): the plain baseline."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from jalax import extend
from jalax.extend import Cloud, Info, State, Tree

from ._parts import Chains, check_theta, complete_data, newton_step, started, transitions


@extend.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MonteCarloEM(extend.Algorithm):
    r"""Monte-Carlo EM with Metropolis-adjusted Langevin chains.

    $$\theta_{k+1} = \arg\max_\theta \frac1N \sum_i \log p_\theta(X^i, y),$$

    where the chains $X^i$ of every group have moved by `num_inner` transitions that leave
    $p_{\theta_k}(x \mid y)$ as it is, from where they were at $\theta_{k-1}$. The maximum is that
    of `num_newton` steps of Newton's method, each at most three standard errors long, were the
    latents known. theta never comes to rest: its spread in the end falls with N.

    Args:
        step_size: of the chains, at first; it follows the share of moves that are accepted.
        num_inner: transitions a step.
        num_newton: Newton steps a step.
    """

    step_size: Any = 0.1
    num_inner: int = dataclasses.field(default=10, metadata={"static": True})
    num_newton: int = dataclasses.field(default=3, metadata={"static": True})

    def check(self, model) -> None:
        extend.require_positive("MonteCarloEM.step_size", self.step_size)
        for name in ("num_inner", "num_newton"):
            extend.check_count(f"MonteCarloEM.{name}", getattr(self, name))

    def check_theta(self, theta: Tree) -> None:
        check_theta("MonteCarloEM", theta)

    def init(self, key, model, theta: Tree, cloud: Cloud) -> State:
        chains, log_weights = started(key, model, theta, cloud, self.step_size)
        step, base = jnp.zeros((), jnp.int32), jnp.zeros_like(log_weights[:, 0])
        return State(step, theta, chains.particles, log_weights, base, chains)

    def step(self, key, model, state: State) -> tuple[State, Info]:
        chains: Chains = state.memory
        how = self.num_inner, state.step
        chains, dead = transitions(key, model, state.theta, chains, *how)
        visit = extend.evaluate(model, state.theta, chains.particles)
        log_weights = extend.zero_dead_weights(state.log_weights, visit)
        particles, point = extend.weigh(model, state.theta, visit, log_weights)
        flat, unravel = ravel_pytree(state.theta)

        def newton(k, flat):
            seen = complete_data(model, unravel(flat), particles, log_weights)
            return flat + newton_step(seen.score, seen.information)

        theta = unravel(lax.fori_loop(0, self.num_newton, newton, flat))
        memory, base = chains._replace(particles=particles), state.log_evidence_base
        state = State(state.step + 1, theta, particles, log_weights, base, memory)
        return state, extend.peer_info(visit, log_weights, point)._replace(dead=dead)
