r"""Legs of all groups at a theta: log p there, its score and information, in one pass.

A leg (`leg.py`) ends in weighted particles z of the posterior, whitened by its mode and curvature.
At another theta' nearby, with its own m and L, z has nearly the same posterior, and

$$p_{\theta'}(y) / p_\theta(y) = E[\tilde p_{\theta'}(z) / \tilde p_\theta(z)]$$

over the posterior at theta: an identity, with hardly any noise. So the particles at the end of a
leg tell log p at a few theta' around theta: their differences are the score and the information.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from jalax._model.evaluation import log_joint_of_vectors, over_groups
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference.around import around, differences, laplace_differences, standard_errors
from jalax._reference.group_points import Pass
from jalax._reference.leg import NUM_PARTICLES, Leg, Path, leg, without_a_leg
from jalax._reference.points import LATENTS_UP_TO
from jalax._reference.whitening import plan_for, profile_information, whitened, whitened_around

LARGE_SPREAD = 10.0  # log Z of one leg of 256 particles then varies by 0.2: longer ones are due
NO_SPREAD, FEWEST = 1e-3, 2  # here by 0.002: of a Gaussian so few temperatures will do
LEGS_AT_ONCE = 4  # at one theta: what is found around it serves them all
MOST_NUMBERS = 24  # of theta: log p is looked at around it in all directions, two at a time
MOST_HELD = 500_000_000  # numbers in the factors at those thetas, where they are dense
APART = 0.2  # standard errors from theta to those around it
LAST_STEP = 0.15  # the same, from where log p was measured, for each number of theta


def too_many(model: Model, theta: Tree) -> str:
    """Why theta is too large for scores by legs; "" if it is not, or there are none."""
    numbers, size = trees.size(theta), trees.size(model.latent)
    if size <= LATENTS_UP_TO:
        return ""
    if numbers > MOST_NUMBERS:
        return (
            f"theta has {numbers} numbers, and with more than {LATENTS_UP_TO} latents in a group "
            f"Scoring is for up to {MOST_NUMBERS}"
        )
    held = len(around(numbers)) * size**2
    if model.structure is not None or held <= MOST_HELD:
        return ""
    return (
        f"theta has {numbers} numbers and a group {size} latents, too many for Scoring without "
        "jalax.Model(..., structure=...)"
    )


class Noise(NamedTuple):
    """Of a leg; chooses the path of later ones."""

    spread: Float[Array, ""]  # N times the variance of log Z
    score: Float[Array, ""]  # its variance by one block, in standard errors of theta


def look(
    key: Key[Array, ""],
    model: Model,
    theta: Tree,
    modes: Float[Array, "G D"],
    num: int,
    path: Path,
    information: Float[Array, "P P"],
    number: Int[Array, ""],
    near: Bool[Array, ""],
) -> tuple[list[Pass], Noise]:
    """`number` legs of `num` particles a group at theta, from the modes at a theta nearby.

    `information` is that found at a theta nearby, or zero. There are `LEGS_AT_ONCE` passes, of
    which the first `number` mean something, and the noise of the worst leg. Where theta is not
    `near` the maximum of Laplace's approximation, half of the thetas around will do.
    """
    flat, unravel = ravel_pytree(theta)
    offsets, plan = around(flat.size), plan_for(model)

    def density(t, x, data):
        return log_joint_of_vectors(model, unravel(t))(x, data)

    def at_mode(mode, data):
        white = whitened(lambda x: density(flat, x, data), flat, mode, plan)
        return white, *profile_information(lambda t, x: density(t, x, data), white, plan)

    def of_group(white, keys, data):
        def of_theta(t, x):
            return density(t, x, data)

        others, slopes = whitened_around(of_theta, white, plan, basis, offsets[1:], looked_at)

        def one(key):
            return leg(key, of_theta, white, others, plan, num, path)

        without = without_a_leg(keys[0], white, others, plan, num)
        found = _in_turn(one, keys, jnp.where(by_laplace, 0, number), without)
        seen = white, others, slopes, basis, offsets, looked_at == len(offsets) - 1
        return found, laplace_differences(*seen)

    each = (8 * num + offsets.shape[0] * modes.shape[1]) * modes.shape[1]
    whites, *at_modes = over_groups(model, at_mode, modes, each=each)
    slope, complete, profile = (jnp.sum(part, axis=0) for part in at_modes)
    by_laplace = path.num_temperatures == 0
    looked_at = jnp.where(by_laplace & ~near, 2 * flat.size, len(offsets) - 1)
    # Further apart where log p is so large that its rounding would drown the differences.
    rounding = jnp.finfo(modes.dtype).eps * jnp.sum(jnp.abs(whites.level))
    apart = jnp.maximum(APART, jnp.sqrt(20 * rounding))
    first = jnp.all(information == 0)
    basis = apart * standard_errors(jnp.where(first, profile, information), complete)
    keys = jax.random.split(key, (model.num_groups, LEGS_AT_ONCE))
    legs, by_mode = over_groups(model, of_group, whites, keys, each=each)
    by_mode = tuple(jnp.sum(part, axis=0) for part in by_mode)
    laplace, inverse = (basis.T @ slope + by_mode[0], by_mode[1]), jnp.linalg.inv(basis)

    def derivatives(one: Leg) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
        _, curved = differences(jnp.sum(one.log_p, axis=0), offsets)
        by_legs = jnp.sum(one.slope, axis=0), curved
        score, information = trees.select(by_laplace, laplace, by_legs)
        return inverse.T @ score, inverse.T @ information @ inverse

    scores, informations = jax.vmap(derivatives, in_axes=1)(legs)

    def one_pass(k: int) -> Pass:
        one = jax.tree.map(lambda leaf: leaf[:, k], legs)
        return one.as_pass(scores[k], informations[k])

    score = jnp.max(jnp.sum(legs.noise, axis=0)) / apart**2
    noise = Noise(jnp.max(legs.spread), score)
    return [one_pass(k) for k in range(LEGS_AT_ONCE)], noise


def several(
    keys: Key[Array, "G R"],
    model: Model,
    theta: Tree,
    modes: Float[Array, "G D"],
    path: Path,
    number: Int[Array, ""],
) -> Leg:
    """`number` of up to R legs a group at theta, without any around it: leaves (G, R, ...).

    Without their particles, which would be the most of their memory.
    """
    flat, unravel = ravel_pytree(theta)
    plan = plan_for(model)

    def of_group(mode, keys, data):
        def density(t, x):
            return log_joint_of_vectors(model, unravel(t))(x, data)

        def one(key):
            found = leg(key, density, white, others, plan, NUM_PARTICLES, path)
            return found._replace(particles=mode[:0])

        white = whitened(lambda x: density(flat, x), flat, mode, plan)
        others = jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), white)
        without = without_a_leg(keys[0], white, others, plan, NUM_PARTICLES)
        return _in_turn(one, keys, number, without._replace(particles=mode[:0]))

    each = (8 * NUM_PARTICLES + modes.shape[1]) * modes.shape[1]
    return over_groups(model, of_group, modes, keys, each=each)


def _in_turn(one: Callable, keys: Key[Array, " R"], number, without: Leg) -> Leg:
    """The legs of the first `number` keys, one after the other; of the others, `without`."""
    none = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(keys), *leaf.shape)), without)
    return lax.fori_loop(0, number, lambda k, legs: trees.set_row(legs, k, one(keys[k])), none)
