"""Given: particles the user already has."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jalax._model.model import GroupedModel, Model
from jalax._model.types import Cloud
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.nodes import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Given:
    """Start from particles of the posterior at theta_0, drawn elsewhere.

    Args:
        particles: shaped like the model's latent with a leading particle axis (N, ...); for a
            grouped model (G, N, ...).
        log_weights: optional unnormalised log-weights, (N,) or (G, N).
        log_evidence: log p_theta_0(y) if known (for a grouped model one a group, or their
            sum). Without it the evidence of the fit is relative to theta_0.
    """

    particles: Tree
    log_weights: Tree = None
    log_evidence: Tree = None

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        del key, theta
        particles = jax.tree.map(jnp.asarray, self.particles)
        expected = trees.describe(model.latent)
        if jax.tree.structure(particles) != jax.tree.structure(model.latent):
            raise ValueError(
                f"particles must have the tree of the model's latent, {expected}, with a leading "
                f"particle axis on every leaf; got {trees.describe(particles)}."
            )
        grouped = isinstance(model, GroupedModel)
        lead = (model.num_groups,) if grouped else ()
        axes = f"({model.num_groups} groups, particles)" if grouped else "(particles,)"
        for leaf, latent in zip(
            jax.tree.leaves(particles), jax.tree.leaves(model.latent), strict=True
        ):
            if leaf.shape != (*lead, num_particles, *jnp.shape(latent)):
                raise ValueError(
                    f"particles must lead with the axes {axes} before the shape of one latent, "
                    f"{expected}; got {trees.describe(particles)}."
                )
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"particles must be floating point, got {leaf.dtype.name}: use .astype(float)."
                )
        if not grouped:
            particles = jax.tree.map(lambda leaf: leaf[None], particles)
        shape = (model.num_groups, num_particles)
        log_weights = _log_weights(self.log_weights, shape, particles)
        return Cloud(particles, log_weights, _log_evidence(self.log_evidence, shape[0]))

    def count(self, model: Model) -> int:
        """The number of particles that was given."""
        axis = 1 if isinstance(model, GroupedModel) else 0
        leaves = jax.tree.leaves(self.particles)
        if not leaves or jnp.ndim(leaves[0]) <= axis:
            raise ValueError(
                "particles have no particle axis: expected the shape of one latent, "
                f"{trees.describe(model.latent)}, with {axis + 1} leading "
                f"{'axes' if axis else 'axis'}, got "
                f"{trees.describe(self.particles)}."
            )
        return jnp.shape(leaves[0])[axis]


def _log_weights(given: Tree, shape: tuple[int, int], particles: Tree):
    dtype = jnp.result_type(*jax.tree.leaves(particles))
    if given is None:
        return jnp.zeros(shape, dtype)
    log_weights = jnp.asarray(given, dtype)
    if log_weights.shape != shape and (1, *log_weights.shape) != shape:
        raise ValueError(
            f"log_weights must be one number a particle, shape {shape[1:]} (grouped models: "
            f"{shape}), got {log_weights.shape}."
        )
    return log_weights.reshape(shape)


def _log_evidence(given: Tree, num_groups: int):
    if given is None:
        return None
    value = jnp.asarray(given, float)
    if value.shape not in ((), (num_groups,)):
        raise ValueError(
            f"log_evidence must be a number, or one a group, ({num_groups},), got {value.shape}."
        )
    # Only the sum over groups is ever reported: a total is shared out evenly.
    return value if value.shape else jnp.full((num_groups,), value / num_groups)
