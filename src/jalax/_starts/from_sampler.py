"""FromSampler: particles drawn by a function, weighted if its density is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jalax import _model, _tree, _weights
from jalax._model import GroupedModel, Model
from jalax._static import Static
from jalax._tree import Tree
from jalax._types import Cloud


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FromSampler:
    """Start from draws of one's own sampler, such as the prior or an exact posterior.

    Args:
        fn: `fn(key, theta, data) -> x` draws ONE latent configuration (of one group, from its
            data, in a grouped model), the counterpart of `log_joint(theta, x, data)`.
        log_density: `log_density(theta, x, data)`, the normalised density of those draws. With
            it they are importance-weighted, log p_theta(x, y) - log q(x), and the evidence is
            absolute. Without it the draws are taken as draws of the posterior, and the evidence
            is relative to theta_0.
    """

    fn: Callable = dataclasses.field(metadata={"static": True})
    log_density: Callable | None = dataclasses.field(default=None, metadata={"static": True})

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        given = model.constrained(theta)

        def draw(key, data):
            keys = jax.random.split(key, num_particles)
            return jax.vmap(lambda k: self.fn(k, given, data))(keys)

        if isinstance(model, GroupedModel):
            particles = jax.vmap(draw)(jax.random.split(key, model.num_groups), model.data)
        else:
            particles = jax.tree.map(lambda leaf: leaf[None], draw(key, model.data))
        if jax.tree.structure(particles) != jax.tree.structure(model.latent) or any(
            leaf.shape[2:] != jnp.shape(latent)
            for leaf, latent in zip(
                jax.tree.leaves(particles), jax.tree.leaves(model.latent), strict=True
            )
        ):
            one = jax.tree.map(lambda leaf: leaf[0, 0], particles)
            raise ValueError(
                "the sampler must return one latent configuration, shaped like "
                f"{_tree.describe(model.latent)}; got {_tree.describe(one)}."
            )
        if self.log_density is None:
            dtype = jnp.result_type(*jax.tree.leaves(particles))
            return Cloud(particles, jnp.zeros((model.num_groups, num_particles), dtype), None)

        reference = model.replace()
        reference.log_joint = Static.of(self.log_density)
        log_q = _model.log_joint(reference, theta, particles)
        log_weights = _model.log_joint(model, theta, particles) - log_q
        return Cloud(particles, log_weights, _weights.log_mean_exp(log_weights))
