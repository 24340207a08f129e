"""The Laplace Gaussian of one group at a theta, and at thetas around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jalax._model.evaluation import ravel_latent
from jalax._model.model import Model
from jalax._model.structure import Pattern
from jalax._particles import trees
from jalax._reference.compressed import products
from jalax._reference.factor import Factor, factorise, factorise_positive
from jalax._reference.group_points import LOG_2PI
from jalax._reference.plan import Plan, plan_of

MODE_STEPS = 60  # of Newton's method; two or three where theta has hardly moved
CHORD_STEPS = 3  # Newton's method with the curvature of a theta nearby


class White(NamedTuple):
    """x = m + L^{-T} z at one theta, and the level of log p at m."""

    theta: Float[Array, " P"]
    mode: Float[Array, " D"]
    factor: Factor  # of the curvature, without its plan, which is the same at every theta
    log_det: Float[Array, ""]  # of L^{-T}
    level: Float[Array, ""]
    laplace: Float[Array, ""]  # log p by Laplace's approximation

    def with_plan(self, plan: Plan) -> Factor:
        return dataclasses.replace(self.factor, plan=plan)


def plan_for(model: Model) -> Plan:
    """That of the model's structure; else a dense one."""
    return plan_of(Pattern.dense(ravel_latent(model)[0].size)) if model.plan is None else model.plan


class Search(NamedTuple):
    """On the way to the mode."""

    step: Int[Array, ""]
    x: Float[Array, " D"]
    value: Float[Array, ""]
    gradient: Float[Array, " D"]
    ridge: Float[Array, ""]
    done: Bool[Array, ""]


def whitened(
    log_p: Callable, theta: Float[Array, " P"], x: Float[Array, " D"], plan: Plan
) -> White:
    """The mode near x by Newton's method, and the curvature there.

    A ridge grows where a step fails or the Hessian is not positive definite.
    """
    slope = jax.value_and_grad(log_p)

    def body(at: Search) -> Search:
        factor = factorise(plan, products(jax.grad(lambda v: -log_p(v)), at.x, plan), at.ridge)
        step = jnp.where(factor.positive, factor.solve(at.gradient), 0.0)
        gain = at.gradient @ step
        value, gradient = slope(at.x + step)
        slack = 4 * jnp.finfo(x.dtype).eps * jnp.abs(at.value)
        better = factor.positive & (value >= at.value - slack) & jnp.all(jnp.isfinite(gradient))
        done = factor.positive & (at.ridge == 0) & (gain < 1e-3 + slack)  # nothing left to gain
        relaxed = jnp.where(at.ridge > 1e-3, at.ridge / 8, 0.0)
        ridge = jnp.where(better, relaxed, 8 * at.ridge + 0.01)
        new = at._replace(x=at.x + step, value=value, gradient=gradient)
        at = trees.select(better, new, at)
        return at._replace(step=at.step + 1, ridge=ridge, done=done)

    zero = jnp.zeros((), x.dtype)
    value, gradient = slope(x)
    first = Search(jnp.zeros((), jnp.int32), x, value, gradient, zero, jnp.zeros((), bool))
    end = lax.while_loop(lambda at: (at.step < MODE_STEPS) & ~at.done, body, first)
    return _white(log_p, theta, end.x, plan)


def whitened_around(
    density: Callable,
    white: White,
    plan: Plan,
    basis: Float[Array, "P P"],
    offsets: np.ndarray,
    number: Int[Array, ""] | int,
) -> tuple[White, Float[Array, "S P"]]:
    """The same at theta + basis offset for the first so many offsets, and the theta-gradients.

    The mode is there to first order by the implicit function theorem. Differences of Laplace's
    approximation want it better, and the curvature at the mode of `white` is close enough for that.
    """
    factor = white.with_plan(plan)
    shifts, steps = factor.solve(_pulls(density, white, basis)), jnp.asarray(offsets, basis.dtype)

    def one(k, found):
        theta = white.theta + basis @ steps[k]
        slope = jax.grad(lambda x: density(theta, x))
        first = white.mode + steps[k] @ shifts
        x = lax.fori_loop(0, CHORD_STEPS, lambda _, x: x + factor.solve(slope(x)), first)
        # Where theta is far away that curvature is another, and the steps may lead anywhere.
        before, after = density(theta, first), density(theta, x)
        slack = 4 * jnp.finfo(x.dtype).eps * jnp.abs(before)
        x = jnp.where(after >= before - slack, x, first)
        there = _white(lambda x: density(theta, x), theta, x, plan)
        return trees.set_row(found, k, (there, jax.grad(density)(theta, there.mode)))

    def rows_of(leaf):
        return jnp.zeros((len(offsets), *leaf.shape), leaf.dtype)

    return lax.fori_loop(0, number, one, jax.tree.map(rows_of, (white, white.theta)))


def _white(log_p: Callable, theta: Float[Array, " P"], x: Float[Array, " D"], plan: Plan) -> White:
    """The curvature at x; where it is not positive, raised until it is."""
    factor = factorise_positive(plan, products(jax.grad(lambda v: -log_p(v)), x, plan))
    value, gradient = jax.value_and_grad(log_p)(x)
    # One more step of Newton's method: theta has moved on from where the mode was known.
    nearer = x + factor.solve(gradient)
    there = log_p(nearer)
    better = there >= value
    x, value = jnp.where(better, nearer, x), jnp.where(better, there, value)
    log_det = -factor.log_det / 2
    laplace = value + log_det + x.size / 2 * LOG_2PI
    return White(theta, x, dataclasses.replace(factor, plan=None), log_det, value, laplace)


def profile_information(
    density: Callable, white: White, plan: Plan
) -> tuple[Float[Array, " P"], Float[Array, "P P"], Float[Array, "P P"]]:
    """Of log p in theta, the gradient and minus the Hessian at the mode; and the latter with x at
    its mode all along, a rough idea of the information before any is known.
    """
    size = white.theta.size
    slope = jax.grad(density)(white.theta, white.mode)
    complete = -jax.hessian(lambda t: density(t, white.mode))(white.theta)
    pulls = _pulls(density, white, jnp.eye(size, dtype=white.theta.dtype))
    pulls = white.with_plan(plan).to_white_gradient(pulls)
    return slope, complete, complete - pulls @ pulls.T


def _pulls(density: Callable, white: White, basis: Float[Array, "P P"]) -> Float[Array, "P D"]:
    """How the x-gradient of log p at the mode changes with theta, along each column."""

    def slope(t):
        return jax.grad(density, argnums=1)(t, white.mode)

    return jax.vmap(lambda v: jax.jvp(slope, (white.theta,), (v,))[1])(basis.T)
