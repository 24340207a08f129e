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
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key

from jalax._model.evaluation import log_joint_of_vectors, over_groups
from jalax._model.model import Model
from jalax._particles import langevin, weight_math
from jalax._particles.resampling import systematic
from jalax._particles.trees import Tree
from jalax._reference.group_points import LOG_2PI, Pass
from jalax._reference.plan import Plan
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
# Particles compared at each theta around, where they hardly differ: 64, fewer if it is many thetas.
COMPARED, LEAST_COMPARED, COMPARISONS = 64, 32, 1024
APART = 0.2  # standard errors from theta to those around it
BOTH_SIDES_UP_TO = 3  # numbers of theta, for mixed differences


class Path(NamedTuple):
    """How a leg goes: chosen on other particles than those that are weighed."""

    num_temperatures: Int[Array, ""]  # K; 0: no leg, but Laplace's approximation
    num_after: Int[Array, ""]  # moves at beta = 1

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


class Leg(NamedTuple):
    """The end of a group's leg."""

    mode: Float[Array, " D"]
    particles: Float[Array, "N D"]
    log_weights: Float[Array, " N"]
    log_p: Float[Array, " S"]  # at theta, and at those around it
    dead: Int[Array, ""]
    spread: Float[Array, ""]
    laplace: Float[Array, ""]
    carried: Float[Array, " N"]


def look(
    key: Key[Array, ""],
    model: Model,
    theta: Tree,
    modes: Float[Array, "G D"],
    num: int,
    path: Path,
    information: Float[Array, "P P"],
    number: Int[Array, ""],
) -> tuple[list[Pass], Float[Array, ""]]:
    """`number` legs of `num` particles a group at theta, from the modes at a theta nearby.

    `information` is that found at a theta nearby, or zero. There are `LEGS_AT_ONCE` passes, of
    which the first `number` mean something; besides them: the spread of the worst leg.
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

        others = whitened_around(of_theta, white, plan, basis, offsets[1:])
        one = partial(leg, density=of_theta, white=white, others=others, plan=plan, num=num)
        shapes = jax.eval_shape(partial(one, path=path), keys[0])
        none = jax.tree.map(lambda x: jnp.zeros((len(keys), *x.shape), x.dtype), shapes)

        def body(k, all_legs):
            found = one(keys[k], path=path)
            return jax.tree.map(lambda rows, row: rows.at[k].set(row), all_legs, found)

        return lax.fori_loop(0, number, body, none)

    each = (8 * num + offsets.shape[0] * modes.shape[1]) * modes.shape[1]
    whites, complete, profile = over_groups(model, at_mode, modes, each=each)
    complete, profile = jnp.sum(complete, axis=0), jnp.sum(profile, axis=0)
    # Further apart where log p is so large that its rounding would drown the differences.
    rounding = jnp.finfo(modes.dtype).eps * jnp.sum(jnp.abs(whites.level))
    apart = jnp.maximum(APART, jnp.sqrt(20 * rounding))
    first = jnp.all(information == 0)
    basis = apart * standard_errors(jnp.where(first, profile, information), complete)
    keys = jax.random.split(key, (model.num_groups, LEGS_AT_ONCE))
    legs = over_groups(model, of_group, whites, keys, each=each)
    inverse = jnp.linalg.inv(basis)

    def one_pass(k: int) -> Pass:
        one = jax.tree.map(lambda leaf: leaf[:, k], legs)
        score, information = differences(jnp.sum(one.log_p, axis=0), offsets)
        information = inverse.T @ information @ inverse
        return Pass(
            one.mode,
            one.particles,
            one.log_weights,
            one.log_p[:, 0],
            inverse.T @ score,
            information,
            jnp.zeros_like(information),
            jnp.sum(one.dead),
            one.laplace,
            one.carried,
        )

    return [one_pass(k) for k in range(LEGS_AT_ONCE)], jnp.max(legs.spread)


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


def standard_errors(
    information: Float[Array, "P P"], complete: Float[Array, "P P"]
) -> Float[Array, "P P"]:
    """Directions of theta about one standard error long, as columns."""
    size = jnp.abs(jnp.diagonal(complete))
    scale = 1 / jnp.sqrt(jnp.where(size > 0, size, 1.0))
    share, axes = jnp.linalg.eigh(information * scale[:, None] * scale)
    # No further than a hundred times as far as with x held: there it would be another place.
    return scale[:, None] * axes / jnp.sqrt(jnp.maximum(jnp.abs(share), 1e-4))


def around(size: int) -> np.ndarray:
    """Offsets of theta in units of the basis: none, one to either side, and two at once."""
    one = np.eye(size)
    pairs = [one[i] + one[j] for i in range(size) for j in range(i)]
    if size <= BOTH_SIDES_UP_TO:
        pairs += [-pair for pair in pairs]
    return np.array([np.zeros(size), *one, *-one, *pairs])


def differences(
    values: Float[Array, " S"], offsets: np.ndarray
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """The gradient and minus the Hessian of a function known at `offsets`, by central differences.

    Of more than a few numbers the mixed ones are one-sided, which saves half of the thetas.
    """
    size = offsets.shape[1]
    here, up, down = values[0], values[1 : 1 + size], values[1 + size : 1 + 2 * size]
    second = up + down - 2 * here
    matrix = jnp.diag(second)
    pairs = [(i, j) for i in range(size) for j in range(i)]
    num = len(pairs)
    if num:
        i, j = np.array(pairs).T
        both = values[1 + 2 * size : 1 + 2 * size + num]
        mixed = both - up[i] - up[j] + here
        if len(values) > 1 + 2 * size + num:
            other = values[1 + 2 * size + num :] - down[i] - down[j] + here
            mixed = (mixed + other) / 2
        matrix = matrix.at[i, j].set(mixed).at[j, i].set(mixed)
    return (up - down) / 2, -matrix


def leg(
    key,
    density: Callable,
    white: White,
    others: White,
    plan: Plan,
    num: int,
    path: Path,
) -> Leg:
    """One group's leg; `density(theta, x)` is its log p, and the others are the thetas around."""
    key_draw, key_leg, key_after = jax.random.split(key, 3)
    mode, factor = white.mode, white.with_plan(plan)
    slope = jax.vmap(jax.value_and_grad(lambda x: density(white.theta, x) - white.level))

    def visit(z):
        value, gradient = slope(mode + factor.from_white(z))
        return value + white.log_det, factor.to_white_gradient(gradient)

    half = jax.random.normal(key_draw, (num // 2, mode.size), mode.dtype)
    z = jnp.concatenate([half, -half])  # in pairs: what is odd in z starts without noise
    zero = jnp.zeros((), mode.dtype)
    none = jnp.zeros((num,), mode.dtype)
    cloud = Cloud(Place(z, *visit(z)), none, zero, zero, jnp.arange(num))

    def towards(k, cloud):
        return _move(jax.random.fold_in(key_leg, k), visit, cloud, k, path)

    cloud = lax.fori_loop(0, path.num_temperatures, towards, cloud)
    log_z = white.level + cloud.base + weight_math.log_mean_exp(cloud.log_weights)
    spread, carried = cloud.spread + _relative_variance(cloud.log_weights), _carried(cloud)

    def after(k, carry):
        cloud, sums = carry
        cloud = _move(jax.random.fold_in(key_after, k), visit, cloud, None, path)
        return cloud, sums + _ratios(density, white, others, plan, cloud)

    zeros = jnp.zeros_like(others.level)
    cloud, ratios = lax.fori_loop(0, path.num_after, after, (cloud, zeros))
    exact = jnp.append(log_z, log_z + jnp.log1p(ratios / path.num_after))
    by_laplace = jnp.append(white.laplace, others.laplace)
    return Leg(
        mode,
        mode + factor.from_white(cloud.place.z),
        cloud.log_weights,
        jnp.where(path.num_temperatures > 0, exact, by_laplace),
        jnp.sum(~jnp.isfinite(cloud.place.value), dtype=jnp.int32),
        spread,
        white.laplace,
        carried,
    )


def _ratios(density, white: White, others: White, plan: Plan, cloud: Cloud) -> Float[Array, " S"]:
    """Z at each theta around over Z here, less one, by some of the weighted particles."""
    most = max(LEAST_COMPARED, COMPARISONS // max(1, others.level.size))
    every = max(1, cloud.log_weights.size // min(COMPARED, most))
    weights = weight_math.normalise(cloud.log_weights[None, ::every])[0]
    z, here = cloud.place.z[::every], cloud.place.value[::every]

    def one(other: White):
        x = other.mode + other.with_plan(plan).from_white(z)
        # The level first: that difference is exact, and what is left is small.
        value = jax.vmap(lambda x: density(other.theta, x) - white.level)(x) + other.log_det
        ratio = jnp.expm1(value - here)
        return jnp.sum(jnp.where(weights > 0, weights * ratio, 0.0))

    return lax.map(one, others)


def _move(key, visit: Callable, cloud: Cloud, k, path: Path) -> Cloud:
    """From beta_k to beta_{k+1}, or, without k, at beta = 1; then resampling where it is due."""
    key_move, key_resample = jax.random.split(key)
    one = jnp.ones((), cloud.log_weights.dtype)
    old_beta = one if k is None else k / path.num_temperatures * one
    new_beta = one if k is None else (k + 1) / path.num_temperatures * one
    h, kernel = path.step_size.astype(one.dtype), langevin.GaussianExact()
    old = _tempered(old_beta, cloud.place)
    z, taken = langevin.move(key_move, cloud.place.z[None], old.grad_x, h, kernel=kernel)
    new = Place(z[0], *visit(z[0]))
    tempered = _tempered(new_beta, new)
    (increment,) = langevin.jarzynski_increment(old, tempered, taken, h, kernel=kernel)
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
