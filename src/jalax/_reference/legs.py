r"""Jarzynski legs from the Laplace Gaussian to the posterior of a large latent, in one pass.

With the mode m of a group, $H = L L^T$ its curvature and $x = m + L^{-T} z$, let
$\tilde p_\theta(z) = p_\theta(x, y) / |L|$, whose integral over z is $p_\theta(y)$. The path of a
leg is $\log \pi_\beta = (1 - \beta) \log N(z; 0, I) + \beta \log \tilde p_\theta(z)$ in K even
steps of beta, with one move a step by the kernel that is exact for a Gaussian.

At another theta' nearby, with its own m and L, z has nearly the same posterior, and

$$p_{\theta'}(y) / p_\theta(y) = E[\tilde p_{\theta'}(z) / \tilde p_\theta(z)]$$

over the posterior at theta: an identity, with hardly any noise. So the particles at the end of a
leg tell log p at a few theta' around theta: their differences are the score and the information.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from jalax._model.evaluation import log_joint_of_vectors, over_groups
from jalax._model.model import Model
from jalax._particles import langevin, trees, weight_math
from jalax._particles.resampling import systematic
from jalax._particles.trees import Tree
from jalax._reference.around import (
    Compared,
    around,
    compared,
    differences,
    laplace_differences,
    standard_errors,
)
from jalax._reference.group_points import LOG_2PI, Pass
from jalax._reference.plan import Plan
from jalax._reference.points import LATENTS_UP_TO
from jalax._reference.tempering import Mixed
from jalax._reference.whitening import (
    White,
    plan_for,
    profile_information,
    whitened,
    whitened_around,
)

# What suits from 40 to 1,000 latents; a leg of twice the temperatures varies hardly less.
NUM_PARTICLES, NUM_TEMPERATURES, STEP_SIZE = 256, 16, 0.2
LARGE_SPREAD = 10.0  # log Z of one leg of 256 particles then varies by 0.2: longer ones are due
NO_SPREAD, FEWEST = 1e-3, 2  # here by 0.002: of a Gaussian so few temperatures will do
LEGS_AT_ONCE = 4  # at one theta: what is found around it serves them all
LOW = 0.5  # resample below this share of the particles
MOST_NUMBERS = 24  # of theta: log p is looked at around it in all directions, two at a time
MOST_HELD = 500_000_000  # numbers in the factors at those thetas, where they are dense
APART = 0.2  # standard errors from theta to those around it


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


class Path(NamedTuple):
    """How a leg goes: chosen on other particles than those that are weighed."""

    num_temperatures: Int[Array, ""]  # K; 0: no leg, but Laplace's approximation
    num_blocks: Int[Array, ""]  # of particles that are compared at the thetas to either side

    @property
    def step_size(self) -> Float[Array, ""]:
        """h, in units of the curvature at the mode.

        A leg is long where its moves do work of their own. That falls with h much faster than with
        K, but moves too short forget nothing: the root of K is between.
        """
        longer = jnp.maximum(self.num_temperatures / NUM_TEMPERATURES, 1.0)
        return STEP_SIZE / jnp.sqrt(longer)


class Place(NamedTuple):
    """Whitened particles with log p~ (less its level) and its gradient."""

    z: Float[Array, "N D"]
    value: Float[Array, " N"]
    gradient: Float[Array, "N D"]


class Cloud(NamedTuple):
    place: Place
    log_weights: Float[Array, " N"]  # since the last resampling
    base: Float[Array, ""]  # log Z up to there
    spread: Float[Array, ""]  # N times the variance of log Z that the weights tell
    first: Int[Array, " N"]  # the first draw that each particle descends from


class Noise(NamedTuple):
    """Of a leg; chooses the path of later ones."""

    spread: Float[Array, ""]  # N times the variance of log Z
    score: Float[Array, ""]  # its variance by one block, in standard errors of theta


class Leg(NamedTuple):
    """The end of a group's leg."""

    mode: Float[Array, " D"]
    particles: Float[Array, "N D"]
    log_weights: Float[Array, " N"]
    log_p: Float[Array, " S"]  # at theta, and at those around it by one block of particles
    slope: Float[Array, " P"]  # half the difference of those to either side, by all blocks
    noise: Float[Array, " P"]  # its variance by one block
    dead: Int[Array, ""]
    spread: Float[Array, ""]
    laplace: Float[Array, ""]
    carried: Float[Array, " N"]

    def as_pass(self, score: Float[Array, " P"], information: Float[Array, "P P"]) -> Pass:
        """Of all groups; nothing is missing from an information that is measured as a whole."""
        return Pass(
            self.mode,
            self.particles,
            self.log_weights,
            self.log_p[:, 0],
            score,
            information,
            jnp.zeros_like(information),
            jnp.sum(self.dead),
            self.laplace,
            self.carried,
        )


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
        one = partial(leg, density=of_theta, white=white, others=others, plan=plan, num=num)
        without = _without_a_leg(keys[0], white, others, plan, num)
        none = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(keys), *x.shape)), without)

        def body(k, all_legs):
            return trees.set_row(all_legs, k, one(keys[k], path=path))

        found = lax.fori_loop(0, jnp.where(by_laplace, 0, number), body, none)
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

    def one_pass(k: int) -> Pass:
        one = jax.tree.map(lambda leaf: leaf[:, k], legs)
        _, curved = differences(jnp.sum(one.log_p, axis=0), offsets)
        by_legs = jnp.sum(one.slope, axis=0), curved
        score, information = trees.select(by_laplace, laplace, by_legs)
        return one.as_pass(inverse.T @ score, inverse.T @ information @ inverse)

    score = jnp.max(jnp.sum(legs.noise, axis=0)) / apart**2
    noise = Noise(jnp.max(legs.spread), score)
    return [one_pass(k) for k in range(LEGS_AT_ONCE)], noise


def several(
    keys: Key[Array, "G R"], model: Model, theta: Tree, modes: Float[Array, "G D"], path: Path
) -> Leg:
    """R legs a group at theta, without any around it: leaves (G, R, ...)."""
    flat, unravel = ravel_pytree(theta)
    plan = plan_for(model)

    def of_group(mode, keys, data):
        def density(t, x):
            return log_joint_of_vectors(model, unravel(t))(x, data)

        white = whitened(lambda x: density(flat, x), flat, mode, plan)
        none = jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), white)
        one = partial(leg, density=density, white=white, others=none, plan=plan)
        return lax.map(lambda key: one(key, num=NUM_PARTICLES, path=path), keys)

    each = (8 * NUM_PARTICLES + modes.shape[1]) * modes.shape[1]
    return over_groups(model, of_group, modes, keys, each=each)


def _without_a_leg(key, white: White, others: White, plan: Plan, num: int) -> Leg:
    """Draws from the Laplace Gaussian of one group, and log p by Laplace's approximation."""
    none, zero = jnp.zeros((num,), white.mode.dtype), jnp.zeros((), white.mode.dtype)
    x = white.mode + white.with_plan(plan).from_white(_in_pairs(key, num, white.mode))
    log_p = jnp.append(white.laplace, others.laplace)
    dead = jnp.zeros((), jnp.int32)
    flat = jnp.zeros_like(white.theta)
    return Leg(white.mode, x, none, log_p, flat, flat, dead, zero, white.laplace, none)


def _in_pairs(key, num: int, like: Float[Array, " D"]) -> Float[Array, "N D"]:
    """z and -z: what is odd in z starts without noise."""
    half = jax.random.normal(key, (num // 2, like.size), like.dtype)
    return jnp.concatenate([half, -half])


def leg(
    key,
    density: Callable,
    white: White,
    others: White,
    plan: Plan,
    num: int,
    path: Path,
) -> Leg:
    """One group's leg; `density(theta, x)` is its log p, and the others are the thetas around.

    After its K moves the particles make one more at beta = 1, before they are compared.
    """
    key_draw, key_leg = jax.random.split(key)
    mode, factor = white.mode, white.with_plan(plan)
    slope = jax.vmap(jax.value_and_grad(lambda x: density(white.theta, x) - white.level))

    def visit(z):
        value, gradient = slope(mode + factor.from_white(z))
        return value + white.log_det, factor.to_white_gradient(gradient)

    z = _in_pairs(key_draw, num, mode)
    zero = jnp.zeros((), mode.dtype)
    none = jnp.zeros((num,), mode.dtype)
    cloud = Cloud(Place(z, none, jnp.zeros_like(z)), none, zero, zero, jnp.arange(num))

    def towards(k, cloud):
        return _move(jax.random.fold_in(key_leg, k + 1), visit, cloud, k, path)

    # The first round goes nowhere and looks at z itself: log p is compiled once, not three times.
    cloud = lax.fori_loop(-1, path.num_temperatures + 1, towards, cloud)
    log_z = white.level + cloud.base + weight_math.log_mean_exp(cloud.log_weights)
    spread, carried = cloud.spread + _relative_variance(cloud.log_weights), _carried(cloud)

    seen = Compared(others.level, jnp.zeros_like(white.theta), jnp.zeros_like(white.theta))
    if others.level.size:
        weights = weight_math.normalise(cloud.log_weights[None])[0]
        weighted = weights, cloud.place.z, cloud.place.value
        seen = compared(density, white, others, plan, weighted, path.num_blocks)
    return Leg(
        mode,
        mode + factor.from_white(cloud.place.z),
        cloud.log_weights,
        jnp.append(log_z, log_z + seen.log_ratio),
        seen.slope,
        seen.noise,
        jnp.sum(~jnp.isfinite(cloud.place.value), dtype=jnp.int32),
        spread,
        white.laplace,
        carried,
    )


def _move(key, visit: Callable, cloud: Cloud, k, path: Path) -> Cloud:
    """From beta_k to beta_{k+1}, no further than 1; then resampling where it is due.

    With k = -1 the particles stay, and are looked at.
    """
    key_move, key_resample = jax.random.split(key)
    one = jnp.ones((), cloud.log_weights.dtype)
    old_beta, new_beta = (jnp.clip(j / path.num_temperatures, 0, 1) * one for j in (k, k + 1))
    h, kernel = path.step_size.astype(one.dtype), langevin.GaussianExact()
    old = _tempered(old_beta, cloud.place)
    z, taken = langevin.move(key_move, cloud.place.z[None], old.grad_x, h, kernel=kernel)
    z = jnp.where(k < 0, cloud.place.z, z[0])
    new = Place(z, *visit(z))
    tempered = _tempered(new_beta, new)
    (increment,) = langevin.jarzynski_increment(old, tempered, taken, h, kernel=kernel)
    increment = jnp.where(k < 0, 0.0, increment)
    log_weights = jnp.where(jnp.isfinite(increment), cloud.log_weights + increment, -jnp.inf)
    return _resampled(key_resample, cloud._replace(place=new, log_weights=log_weights))


def _tempered(beta, place: Place) -> Mixed:
    """log of N(0, I)^(1 - beta) p^beta and its gradient, of one group."""
    size = place.z.shape[1]
    gaussian = -0.5 * jnp.sum(place.z**2, axis=1) - size / 2 * LOG_2PI
    value = (1 - beta) * gaussian + beta * place.value
    return Mixed(value[None], (beta * place.gradient - (1 - beta) * place.z)[None])


def _relative_variance(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    """Of weights of mean one: N / ESS - 1."""
    weights = weight_math.normalise(log_weights[None])[0]
    return weights.size * jnp.sum(weights**2) - 1


def _carried(cloud: Cloud) -> Float[Array, " N"]:
    """log of the weight that the descendants of each first draw carry, of mean one."""
    weights = weight_math.normalise(cloud.log_weights[None])[0]
    return jnp.log(weights.size * jnp.zeros_like(weights).at[cloud.first].add(weights))


def _resampled(key, cloud: Cloud) -> Cloud:
    weights = weight_math.normalise(cloud.log_weights[None])[0]
    num = weights.size

    def resample(cloud: Cloud) -> Cloud:
        ancestors = systematic(key, weights, num)
        place = jax.tree.map(lambda leaf: leaf[ancestors], cloud.place)
        base = cloud.base + weight_math.log_mean_exp(cloud.log_weights)
        spread = cloud.spread + _relative_variance(cloud.log_weights)
        none = jnp.zeros_like(cloud.log_weights)
        return Cloud(place, none, base, spread, cloud.first[ancestors])

    is_low = 1 / jnp.sum(weights**2) < LOW * num
    return lax.cond(is_low, resample, lambda cloud: cloud, cloud)
