"""Visits: log p and its gradients at every particle of every group.

The one place that calls a model's log-joint; everything else goes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jalax._model import batching, sharding
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, jit
from jalax._runtime.function_keys import Static

# Groups with units within them, of very different numbers, are visited in so many batches.
BATCHES_ALIKE, FEWEST_ALIKE = 8, 8


def log_joint(model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
    """log p_theta(x, y) of every particle of every group."""
    one = model.density()
    particles = sharding.shard_particles(model, particles)
    size = batching.particles_at_once(model, theta, _num_particles(particles))

    def of_group(x, data):
        if size is None:
            return jax.vmap(lambda x: one(theta, x, data))(x)
        several = batching.shards(model, "particles")
        return trees.map_in_batches(lambda x: one(theta, x, data), x, size, several)

    each = _num_particles(particles) * batching.numbers_per_particle(model, theta)
    return sharding.shard_particles(model, over_groups(model, of_group, particles, each=each))


def _num_particles(particles: Tree) -> int:
    return jax.tree.leaves(particles)[0].shape[1]


class Evaluation(NamedTuple):
    """One visit of a point (theta, particles); `pull` is the pull-back of log p there."""

    particles: Tree
    log_joint: Float[Array, "G N"]
    grad_x: Tree
    alive: Bool[Array, "G N"]
    pull: Callable[[Array], tuple[Tree, Tree]]


class Point(NamedTuple):
    """What a step keeps of its last visit, so that the next step starts without a new one."""

    log_joint: Float[Array, "G N"]
    grad_x: Tree
    grad_theta: Tree


def evaluate(model: Model, theta: Tree, particles: Tree) -> Evaluation:
    """log p and its x-gradient at every particle: one forward and one backward pass."""
    particles = sharding.shard_particles(model, particles)
    num = _num_particles(particles)
    each = num * batching.numbers_per_particle(model, theta)  # what the pull-backs need
    if batching.groups_at_once(model, each) is not None:
        value, grad_x, pull = _evaluate_in_batches(model, theta, particles, each)
    elif (size := batching.particles_at_once(model, theta, num)) is not None:
        value, grad_x, pull = _evaluate_in_blocks(model, theta, particles, size)
    else:
        value, pull = jax.vjp(lambda t, x: log_joint(model, t, x), theta, particles)
        _, grad_x = pull(jnp.ones_like(value))
    value, grad_x = sharding.shard_particles(model, (value, grad_x))
    alive = jnp.isfinite(value) & trees.all_finite(grad_x)
    return Evaluation(particles, value, grad_x, alive, pull)


def slopes(model: Model, theta: Tree, particles: Tree, each: int) -> tuple[Array, Tree]:
    """log p and its x-gradient, and nothing of theta's, where `each` numbers are held a group."""
    one = jax.vmap(jax.value_and_grad(model.density(), argnums=1), in_axes=(None, 0, None))
    return over_groups(model, lambda x, data: one(theta, x, data), particles, each=each)


def _evaluate_in_batches(model: Model, theta: Tree, particles: Tree, each: int) -> tuple:
    """The pull-back passes forward again: what it needs is not kept for all groups."""
    value, grad_x = slopes(model, theta, particles, each)

    def weighted(part, particles, weights):
        return jax.grad(lambda t: jnp.sum(weights * log_joint(part, t, particles)))(theta)

    def pull(weights):
        return sum_over_groups(model, weighted, particles, weights, each=each), None

    return value, grad_x, pull


def _evaluate_in_blocks(model: Model, theta: Tree, particles: Tree, size: int) -> tuple:
    """The same over blocks of the particles of a model without groups."""
    one = model.density()
    slope = jax.value_and_grad(one, argnums=1)
    x = jax.tree.map(lambda leaf: leaf[0], particles)
    several = batching.shards(model, "particles")
    found = trees.map_in_batches(lambda x: slope(theta, x, model.data), x, size, several)
    value, grad_x = jax.tree.map(lambda leaf: leaf[None], found)

    def weighted(block):
        x, weights = block
        block_model = model.replace(particle_batch=weights.shape[0])
        values = partial(log_joint, block_model, particles=jax.tree.map(lambda a: a[None], x))
        return jax.grad(lambda t: jnp.sum(weights * values(t)[0]))(theta)

    def pull(weights):
        return trees.sum_over_batches(weighted, (x, weights[0]), size, several), None

    return value, grad_x, pull


def weigh(
    model: Model, theta: Tree, visit: Evaluation, log_weights: Float[Array, "G N"]
) -> tuple[Tree, Point]:
    """The weighted theta-gradient, and the particles that carry on: `repair` moves the dead."""
    point = pull(visit, weight_math.normalise(log_weights))
    particles, point, _ = repair(model, theta, visit.alive, log_weights, visit.particles, point)
    return particles, point


def pull(visit: Evaluation, weights: Float[Array, "G N"]) -> Point:
    """The weighted theta-gradient, by a second pull-back of the visit."""
    grad_theta, _ = visit.pull(weights.astype(visit.log_joint.dtype))
    return Point(visit.log_joint, visit.grad_x, grad_theta)


def repair(
    model: Model,
    theta: Tree,
    alive: Bool[Array, "G N"],
    log_weights: Float[Array, "G N"],
    particles: Tree,
    point: Point,
) -> tuple[Tree, Point, Int[Array, ""]]:
    """The particles that carry on, and how many of the dead had run into a wall.

    A dead particle has weight -inf, but zero times a NaN derivative would still poison the
    sum over particles: it is moved onto the heaviest particle of its group (where its zero
    weight keeps it out of every average), and the point is visited again. Behind a wall log p is
    -inf and its gradient is not; an overflow has neither.
    """

    def revisit(first):
        # As the loop carries them: another mention of these would make XLA copy them.
        particles, point, _ = first
        outside = jnp.isneginf(point.log_joint) & trees.all_finite(point.grad_x)
        moved = trees.select(alive, particles, heaviest(particles, log_weights))
        again = evaluate(model, theta, moved)
        point = pull(again, weight_math.normalise(log_weights))
        return moved, point, jnp.sum(outside, dtype=jnp.int32)

    dead = count_dead(alive)
    return trees.run_if(dead > 0, revisit, (particles, point, jnp.zeros_like(dead)))


def count_dead(alive: Bool[Array, "G N"]) -> Int[Array, ""]:
    """Written once, so that XLA counts once for the repair and for a step's report."""
    return jnp.sum(~alive, dtype=jnp.int32)


def heaviest(particles: Tree, log_weights: Float[Array, "G N"]) -> Tree:
    """The heaviest particle of each group, leaves (G, 1, ...).

    By a sum with one term: to look it up by its number, devices would send each other all.
    """
    chosen = jnp.arange(log_weights.shape[1]) == jnp.argmax(log_weights, axis=-1, keepdims=True)
    alone = trees.select(chosen, particles, jax.tree.map(jnp.zeros_like, particles))
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=1, keepdims=True), alone)


@jit(static_argnames="function")
def at_particles(function: Static, model: Model, theta: Tree, particles: Tree) -> Tree:
    """`function(theta, x, data)` of one group at every particle of every group."""
    per_particle = jax.vmap(function, in_axes=(None, 0, None))
    return over_groups(model, lambda x, data: per_particle(theta, x, data), particles)


@jit(LEVEL_0_OLD_EMITTERS, static_argnames="function")
def of_groups(function: Static, model: Model, theta: Tree, particles: Tree) -> Tree:
    """`function(theta, particles, data)` of every group; theta is on the user's scale."""
    each = _num_particles(particles) * 4 * batching.data_size(model)
    return over_groups(model, lambda x, data: function(theta, x, data), particles, each=each)


def derived_at(model: Model, theta: Tree, particles: Tree) -> Tree:
    """What else the model computes at every particle of a state, like `FitResult.particles`.

    theta is on the user's scale.
    """
    if model.outside.derived is None:
        raise ValueError(
            "this model has no numpyro.deterministic site; they come with jalax.from_numpyro."
        )
    values = at_particles(model.outside.derived, model, theta, particles)
    return values if model.grouped else jax.tree.map(lambda leaf: leaf[0], values)


def ravel_latent(model: Model) -> tuple[Array, Callable[[Array], Tree]]:
    """The example latent as one vector, and the way back for one vector."""
    return ravel_pytree(model.latent)


def log_joint_of_vectors(
    model: Model, theta: Tree
) -> Callable[[Float[Array, " D"], Tree], Float[Array, ""]]:
    """log p_theta(x, y) as a function of one ravelled latent and one group's data."""
    _, unravel = ravel_latent(model)
    density = model.density()
    return lambda vector, data: density(theta, unravel(vector), data)


def over_groups(model: Model, function: Callable, *args: Any, each: int | None = None) -> Any:
    """`function(*args_of_group, data_of_group)` for every group, stacked on a leading axis.

    `each` is about how many numbers it holds for a group; by default what a search for the mode
    holds.
    """
    if not model.grouped:
        squeezed = jax.tree.map(lambda leaf: leaf[0], args)
        return jax.tree.map(lambda leaf: leaf[None], function(*squeezed, model.data))
    size = batching.groups_at_once(model, 100 * batching.data_size(model) if each is None else each)
    groups, several = (*args, model.data), batching.shards(model, "groups")
    if model.outside.units is not None and several == 1:
        return _alike_together(model, function, groups, size)
    if size is None:
        return jax.vmap(function)(*groups)
    return trees.map_in_batches(lambda group: function(*group), groups, size, several)


def _alike_together(model: Model, function: Callable, groups: tuple, size: int | None) -> Any:
    """Batches of groups with about as many units: none of them waits long for the largest."""
    assert model.outside.units is not None
    size = min(size or model.num_groups, max(FEWEST_ALIKE, -(-model.num_groups // BATCHES_ALIKE)))
    order = jnp.argsort(jax.vmap(model.outside.units)(model.data))
    groups = jax.tree.map(lambda leaf: leaf[order], groups)
    found = trees.map_in_batches(lambda group: function(*group), groups, size)
    back = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[back], found)


def sum_over_groups(model: Model, function: Callable, *args: Any, each: int) -> Any:
    """`function(model, *args)`, a sum over groups, added up batch by batch.

    The leaves of `args` lead with the group axis; `each` is as in `over_groups`.
    """
    size = batching.groups_at_once(model, each)
    if size is None:
        return function(model, *args)

    def part(group: tuple[Tree, tuple]) -> Any:
        data, args = group
        return function(model.replace(data=data, group_batch=size), *args)

    return trees.sum_over_batches(part, (model.data, args), size, batching.shards(model, "groups"))
