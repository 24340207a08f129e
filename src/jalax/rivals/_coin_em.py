"""CoinEM: particles and theta by betting on coins (Sharrock, Dodd and Nemeth, arXiv 2305.14916)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax import extend
from jalax.extend import Cloud, Info, Point, State, Tree, trees, weight_math


class Bets(NamedTuple):
    """What is known of each coin, one for each number that moves."""

    begin: Array  # where the number was at first
    total: Array  # of all outcomes c so far
    size: Array  # of all |c|, G
    largest: Array  # of all |c|, L
    won: Array  # R, at least 0


class Memory(NamedTuple):
    theta: Bets
    particles: Bets  # (G, N, D)
    point: Point


@extend.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinEM(extend.Algorithm):
    r"""Coin betting instead of gradient steps: there is nothing to tune.

    Each number of theta and of the particles is a gambler who bets on the signs and sizes of the
    gradients c that come, per coordinate and with their scales learned (the paper's adaptive
    algorithm):

    $$L \leftarrow \max(L, |c|), \quad G \leftarrow G + |c|, \quad
      R \leftarrow \max(R + c\,(z_k - z_0), 0), \qquad
      z_{k+1} = z_0 + \frac{\sum_{l \le k} c_l}{G + L} \Big(1 + \frac{R}{L}\Big).$$

    For theta c is the mean gradient of log p. For the particles it is that of Stein variational
    gradient descent with $\kappa(x, x') = e^{-\|x - x'\|^2 / b}$, within each group,

    $$c^i = \frac1N \sum_j \Big[\kappa(x^j, x^i)\, \nabla_x \log p_\theta(x^j, y)
      + \nabla_{x^j} \kappa(x^j, x^i)\Big],$$

    b the median of the squared distances (of all pairs, each with itself, too) divided by
    $\log(N + 1)$. No random number is drawn after the start.

    Readings where the paper leaves something open: theta and particles bet at the same time, on
    gradients at $(\theta_k, X_k)$; a particle whose log p is not finite begins anew where it is
    moved.
    """

    def check(self, model) -> None:
        """There is no option that could be wrong."""

    def init(self, key, model, theta: Tree, cloud: Cloud) -> State:
        particles, log_weights, point = extend.equal_cloud(key, model, theta, cloud)
        bets = _no_bets(ravel_pytree(theta)[0]), _no_bets(trees.ravel_particles(particles))
        step, base = jnp.zeros((), jnp.int32), jnp.zeros_like(log_weights[:, 0])
        return State(step, theta, particles, log_weights, base, Memory(*bets, point))

    def step(self, key, model, state: State) -> tuple[State, Info]:
        memory, old = state.memory, state.memory.point
        flat, unravel = ravel_pytree(state.theta)
        of_theta, flat = _bet(memory.theta, flat, ravel_pytree(old.grad_theta)[0])

        x, slopes = (trees.ravel_particles(tree) for tree in (state.particles, old.grad_x))
        weights = weight_math.normalise(state.log_weights)
        of_particles, x = _bet(memory.particles, x, jax.vmap(_stein_direction)(x, slopes, weights))

        theta, moved = unravel(flat), trees.unravel_particles(x, state.particles)
        visit = extend.evaluate(model, theta, moved)
        log_weights = extend.zero_dead_weights(state.log_weights, visit)
        particles, point = extend.weigh(model, theta, visit, log_weights)
        anew = _no_bets(trees.ravel_particles(particles))
        of_particles = trees.select(visit.alive, of_particles, anew)
        memory, base = Memory(of_theta, of_particles, point), state.log_evidence_base
        state = State(state.step + 1, theta, particles, log_weights, base, memory)
        return state, extend.peer_info(visit, log_weights, point)


def _no_bets(begin: Array) -> Bets:
    none = jnp.zeros_like(begin)
    return Bets(begin, none, none, none, none)


def _bet(bets: Bets, z: Array, c: Array) -> tuple[Bets, Array]:
    """After the outcomes c at z: the next z."""
    largest = jnp.maximum(bets.largest, jnp.abs(c))
    size = bets.size + jnp.abs(c)
    won = jnp.maximum(bets.won + c * (z - bets.begin), 0.0)
    total = bets.total + c
    some = jnp.where(largest > 0, largest, 1.0)  # no outcome yet but 0: no bet
    after = Bets(bets.begin, total, size, largest, won)
    return after, bets.begin + total / (size + some) * (1 + won / some)


def _stein_direction(
    x: Float[Array, "N D"], slopes: Float[Array, "N D"], weights: Float[Array, " N"]
) -> Float[Array, "N D"]:
    """Of one group. The weights are equal, and those of dead particles zero."""
    squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=2)
    width = jnp.median(squares) / jnp.log(len(x) + 1.0)
    width = jnp.where(width > 0, width, 1.0)  # all particles at one place
    kernel = weights * jnp.exp(-squares / width)  # row i, column j
    slopes = jnp.where(weights[:, None] > 0, slopes, 0.0)
    apart = x * jnp.sum(kernel, axis=1, keepdims=True) - kernel @ x
    return kernel @ slopes + 2 / width * apart
