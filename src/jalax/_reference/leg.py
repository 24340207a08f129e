r"""A Jarzynski leg from the Laplace Gaussian to the posterior of one group with many latents.

With the mode m of a group, $H = L L^T$ its curvature and $x = m + L^{-T} z$, let
$\tilde p_\theta(z) = p_\theta(x, y) / |L|$, whose integral over z is $p_\theta(y)$. The path of a
leg is $\log \pi_\beta = (1 - \beta) \log N(z; a, I) + \beta \log \tilde p_\theta(z)$ in K even
steps of beta, with one move a step by the kernel that is exact for a Gaussian. At its centre a the
gradient of $\log \tilde p_\theta$ is zero on average over $N(a, I)$: a skewed posterior has mass
beside the mode, and a leg from there varies a half to a third as much. The draws that find it are
no part of the leg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jalax._particles import langevin, trees, weight_math
from jalax._particles.resampling import systematic
from jalax._reference.around import Compared, compared
from jalax._reference.group_points import LOG_2PI, Pass
from jalax._reference.plan import Plan
from jalax._reference.tempering import Mixed
from jalax._reference.whitening import White

# What suits from 40 to 1,000 latents: two legs are worth more than one of twice the temperatures.
NUM_PARTICLES, NUM_TEMPERATURES, STEP_SIZE = 256, 8, 0.2
LONG_FROM = 16  # temperatures, from which moves are shorter
ROUNDS_BEFORE = 3  # of a leg: two to find its centre, one to look at its first particles
LOW = 0.5  # resample below this share of the particles


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
        longer = jnp.maximum(self.num_temperatures / LONG_FROM, 1.0)
        return STEP_SIZE / jnp.sqrt(longer)


class Place(NamedTuple):
    """Whitened particles with log p~ (less its level) and its gradient."""

    z: Float[Array, "N D"]
    value: Float[Array, " N"]
    gradient: Float[Array, "N D"]


class Centre(NamedTuple):
    """Where a leg begins, on the way there."""

    a: Float[Array, " D"]
    pull: Float[Array, ""]  # the square of the last average gradient


class Cloud(NamedTuple):
    """z is that of the place, and counts from the centre."""

    place: Place
    centre: Centre
    log_weights: Float[Array, " N"]  # since the last resampling
    base: Float[Array, ""]  # log Z up to there
    spread: Float[Array, ""]  # N times the variance of log Z that the weights tell
    first: Int[Array, " N"]  # the first draw that each particle descends from


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


def without_a_leg(key, white: White, others: White, plan: Plan, num: int) -> Leg:
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

    both = _in_pairs(key_draw, 2 * num, mode)  # for the leg and for its centre, every other pair
    first, apart = both[::2], both[1::2]
    zero = jnp.zeros((), mode.dtype)
    none = jnp.zeros((num,), mode.dtype)
    place = Place(apart, none, jnp.zeros_like(first))
    centre = Centre(jnp.zeros_like(mode), jnp.full_like(zero, jnp.inf))
    cloud = Cloud(place, centre, none, zero, zero, jnp.arange(num))

    def towards(k, cloud):
        cloud = _move(jax.random.fold_in(key_leg, k + ROUNDS_BEFORE), visit, cloud, k, path)
        return _recentred(cloud, k, first)

    # The rounds before the leg go nowhere: two find the centre, the last looks at z itself. Like
    # this log p is compiled once.
    cloud = lax.fori_loop(-ROUNDS_BEFORE, path.num_temperatures + 1, towards, cloud)
    log_z = white.level + cloud.base + weight_math.log_mean_exp(cloud.log_weights)
    spread, carried = cloud.spread + _relative_variance(cloud.log_weights), _carried(cloud)
    z = cloud.centre.a + cloud.place.z

    seen = Compared(others.level, jnp.zeros_like(white.theta), jnp.zeros_like(white.theta))
    if others.level.size:
        weights = weight_math.normalise(cloud.log_weights[None])[0]
        weighted = weights, z, cloud.place.value
        seen = compared(density, white, others, plan, weighted, path.num_blocks)
    return Leg(
        mode,
        mode + factor.from_white(z),
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

    With k < 0 the particles stay, and are looked at.
    """
    key_move, key_resample = jax.random.split(key)
    one = jnp.ones((), cloud.log_weights.dtype)
    old_beta, new_beta = (jnp.clip(j / path.num_temperatures, 0, 1) * one for j in (k, k + 1))
    h, kernel = path.step_size.astype(one.dtype), langevin.GaussianExact()
    old = _tempered(old_beta, cloud.place)
    z, taken = langevin.move(key_move, cloud.place.z[None], old.grad_x, h, kernel=kernel)
    z = jnp.where(k < 0, cloud.place.z, z[0])
    new = Place(z, *visit(cloud.centre.a + z))
    tempered = _tempered(new_beta, new)
    (increment,) = langevin.jarzynski_increment(old, tempered, taken, h, kernel=kernel)
    increment = jnp.where(k < 0, 0.0, increment)
    log_weights = jnp.where(jnp.isfinite(increment), cloud.log_weights + increment, -jnp.inf)
    return _resampled(key_resample, cloud._replace(place=new, log_weights=log_weights))


def _recentred(cloud: Cloud, k, first: Float[Array, "N D"]) -> Cloud:
    """In the rounds that find the centre, moved by Newton's method; after them, `first`.

    The curvature at the mode stands for the average one. Where that is more than twice as large the
    average gradient grows, and the centre stays at the mode.
    """
    finds, (a, pull) = k < -1, cloud.centre
    gradient = jnp.mean(cloud.place.gradient, axis=0)
    square = gradient @ gradient
    moved = Centre(jnp.where(square < pull, a + gradient, 0.0), square)
    centre = trees.select(finds, moved, cloud.centre)
    z = jnp.where(k == -2, first, cloud.place.z)
    return cloud._replace(place=cloud.place._replace(z=z), centre=centre)


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
        return Cloud(place, cloud.centre, none, base, spread, cloud.first[ancestors])

    is_low = 1 / jnp.sum(weights**2) < LOW * num
    return lax.cond(is_low, resample, lambda cloud: cloud, cloud)
