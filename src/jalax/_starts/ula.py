"""ULA: the paper's start, unadjusted Langevin chains from the prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jalax._model.evaluation import evaluate
from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference.references import draw
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import require_positive


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ULA:
    """Start from the ends of N unadjusted Langevin chains (paper, appendix C.4).

    They are biased, and their evidence is unknown: a fit from here has evidence relative to
    theta_0 only. Each chain adapts its step size to the norm of its gradient g: 0.9 times when
    g > 1000 d and it is above 1e-6, 1.05 times when g < 10 d and it is below 0.1.

    Args:
        fn: `fn(key, theta, data) -> x`, a draw to begin from, such as the prior's.
        num_steps: length of the chains.
        step_size: at the first step.
    """

    fn: Callable = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(default=200, metadata={"static": True})
    step_size: float = 1e-3

    def check(self, model: Model, theta: Tree) -> None:
        arguments.check_callable("ULA.fn", self.fn, "(key, theta, data) -> x")
        arguments.check_count("ULA.num_steps", self.num_steps)
        require_positive("ULA.step_size", self.step_size)

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        key_draw, key_run = jax.random.split(key)
        particles = draw(self.fn, key_draw, model, theta, num_particles)
        dtype = jnp.result_type(*jax.tree.leaves(particles))
        shape = (model.num_groups, num_particles)
        dimension = trees.ravel_particles(particles).shape[-1]

        def body(carry, key):
            particles, size = carry
            gradient = evaluate(model, theta, particles).grad_x
            xi = trees.normal_like(key, particles)

            def one(x, g, z):
                h = size.reshape(shape + (1,) * (x.ndim - 2))
                return x + h * g + jnp.sqrt(2 * h) * z

            particles = jax.tree.map(one, particles, gradient, xi)
            norm = jnp.sqrt(trees.dot(gradient, gradient))
            shrink = (norm > 1000 * dimension) & (size > 1e-6)
            grow = (norm < 10 * dimension) & (size < 0.1)
            size = jnp.where(shrink, 0.9 * size, jnp.where(grow, 1.05 * size, size))
            return (particles, size.astype(dtype)), None

        first = particles, jnp.full(shape, self.step_size, dtype)
        (particles, _), _ = lax.scan(body, first, jax.random.split(key_run, self.num_steps))
        return Cloud(particles, jnp.zeros(shape, dtype), None)
