"""FromSampler: particles drawn by a function, weighted if its density is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jalax._model import evaluation
from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles.pareto import pareto_k
from jalax._particles.trees import Tree
from jalax._reference.references import check_density, density, draw
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass
from jalax._starts.importance import importance_cloud


@register_dataclass
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

    def check(self, model: Model, theta: Tree) -> None:
        arguments.check_callable("FromSampler.fn", self.fn, "(key, theta, data) -> x")
        if self.log_density is not None:
            call = "(theta, x, data) -> log q"
            arguments.check_callable("FromSampler.log_density", self.log_density, call)
            check_density(self.log_density, model, theta)

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        particles = draw(self.fn, key, model, theta, num_particles)
        if self.log_density is None:
            dtype = jnp.result_type(*jax.tree.leaves(particles))
            return Cloud(particles, jnp.zeros((model.num_groups, num_particles), dtype), None)
        log_q = density(self.log_density, model, theta, particles)
        log_weights = evaluation.log_joint(model, theta, particles) - log_q
        return importance_cloud(particles, log_weights, pareto_k(log_weights))
