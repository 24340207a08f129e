"""What SAEM and Monte-Carlo EM are made of: Metropolis chains, and Newton steps for theta."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from jalax import extend
from jalax.extend import Tree, langevin, trees, weight_math

ACCEPTED = 0.574  # the share that is best for these moves in many dimensions
GAIN, DECAY = 1.0, 0.6  # of log h after a move of step k: GAIN (k + 1)^-DECAY
MOST_NUMBERS = 300  # of theta: their information is a dense matrix
LONGEST = 3.0  # standard errors, were the latents known, that theta may move in a step
LEAST_SHARE = 1e-6  # of the largest eigenvalue of the information, which has to be positive


class Chains(NamedTuple):
    """Every particle is a chain; h is one number a group."""

    particles: Tree
    log_joint: Float[Array, "G N"]
    grad_x: Tree
    log_step_size: Float[Array, " G"]


def transitions(
    key, model, theta: Tree, chains: Chains, number: int, step
) -> tuple[Chains, Int[Array, ""]]:
    """Moves of all chains by Metropolis-adjusted Langevin steps.

    The step size of a group follows the share of its chains that accept, ever less from step to
    step. The number is that of proposals to where log p is not finite, which are refused.
    """
    visit = extend.evaluate(model, theta, chains.particles)  # theta has moved
    chains = chains._replace(log_joint=visit.log_joint, grad_x=visit.grad_x)
    gain = GAIN / number * (step + 1.0) ** -DECAY

    def one(chains: Chains, key) -> tuple[Chains, Int[Array, ""]]:
        key_move, key_accept = jax.random.split(key)
        h = jnp.exp(chains.log_step_size)
        old = extend.Point(chains.log_joint, chains.grad_x, None)
        proposal, path = langevin.move(key_move, chains.particles, chains.grad_x, h)
        there = extend.evaluate(model, theta, proposal)
        log_ratio = langevin.jarzynski_increment(old, there, path, h)
        log_ratio = jnp.where(there.alive & ~jnp.isnan(log_ratio), log_ratio, -jnp.inf)
        uniform = jax.random.uniform(key_accept, log_ratio.shape, log_ratio.dtype)
        accepted = jnp.log(uniform) < log_ratio
        share = jnp.mean(jnp.exp(jnp.minimum(log_ratio, 0.0)), axis=1)
        new, kept = (proposal, there.log_joint, there.grad_x), chains[:3]
        log_h = chains.log_step_size + (gain * (share - ACCEPTED)).astype(share.dtype)
        places, values, slopes = trees.select(accepted, new, kept)
        return Chains(places, values, slopes, log_h), extend.count_dead(there.alive)

    chains, dead = lax.scan(one, chains, jax.random.split(key, number))
    return chains, jnp.sum(dead, dtype=jnp.int32)


def started(key, model, theta: Tree, cloud: extend.Cloud, step_size) -> tuple[Chains, Array]:
    """Chains at the start's particles, and their log-weights, zero but for the dead."""
    particles, log_weights, point = extend.equal_cloud(key, model, theta, cloud)
    log_h = jnp.full((len(log_weights),), jnp.log(step_size), log_weights.dtype)
    return Chains(particles, point.log_joint, point.grad_x, log_h), log_weights


class Complete(NamedTuple):
    """Of the mean over the chains of log p_theta(x, y), summed over the groups."""

    score: Float[Array, " P"]
    information: Float[Array, "P P"]  # less its second derivatives


def complete_data(model, theta: Tree, particles: Tree, log_weights) -> Complete:
    flat, unravel = ravel_pytree(theta)
    weights = weight_math.normalise(log_weights)

    def mean(flat):
        return jnp.sum(weights * extend.evaluate(model, unravel(flat), particles).log_joint)

    score = jax.grad(mean)
    return Complete(score(flat), -jax.jacfwd(score)(flat))


def newton_step(score: Float[Array, " P"], information: Float[Array, "P P"]) -> Array:
    """Uphill, by the size of the information's eigenvalues, and no longer than `LONGEST`."""
    values, axes = jnp.linalg.eigh((information + information.T) / 2)
    size = jnp.abs(values)
    size = jnp.maximum(size, LEAST_SHARE * jnp.max(size))
    size = jnp.where(size > 0, size, 1.0)
    along = axes.T @ score
    length = jnp.sqrt(jnp.sum(along**2 / size))
    return axes @ (along / size) * jnp.minimum(1.0, LONGEST / jnp.maximum(length, 1e-30))


def check_theta(name: str, theta: Tree) -> None:
    if (size := trees.size(theta)) > MOST_NUMBERS:
        raise ValueError(
            f"theta has {size} numbers, and {name} holds the information about them, a dense "
            f"matrix, for up to {MOST_NUMBERS}: use jalax.rivals.CoinEM() or jalax.PGD."
        )
