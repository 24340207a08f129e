"""Example: copies of the model's example latent."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Example:
    """Start from copies of the model's example latent, for an algorithm that finds its own points.

    `jalax.Scoring` begins with it: it searches the modes from there.
    """

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        del key, theta
        shape = (model.num_groups, num_particles)
        particles = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (*shape, *jnp.shape(leaf))), model.latent
        )
        dtype = jnp.result_type(*jax.tree.leaves(particles))
        return Cloud(particles, jnp.zeros(shape, dtype), None)
