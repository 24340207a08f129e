"""Laplace and Importance: one draw of a normalised reference, weighted to the posterior."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jalax._model import evaluation
from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles import trees, weight_math
from jalax._particles.pareto import pareto_k
from jalax._particles.resampling import ancestors_of_groups, systematic
from jalax._particles.trees import Tree
from jalax._reference.references import AtMode, as_reference, check_freedom, check_reference
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass


def importance_cloud(
    particles: Tree, log_weights: Float[Array, "G N"], k_hat: Float[Array, " G"]
) -> Cloud:
    """Weights log p - log q: their mean is the evidence, their spread its error."""
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    ess = weight_math.effective_sample_size(weight_math.normalise(log_weights))
    num = log_weights.shape[1]
    # sd of log Z = sd of the mean weight over its mean = sqrt(1/ESS - 1/N)
    error = jnp.sqrt(jnp.maximum(1 / jnp.maximum(ess, 1.0) - 1 / num, 0.0))
    return Cloud(particles, log_weights, weight_math.log_mean_exp(log_weights), error, k_hat)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Importance:
    """Start from draws of a reference, importance-weighted; the evidence is absolute.

    Args:
        reference: `jalax.references.AtMode()`, `jalax.references.Modes(...)`, or a pair of
            functions (sampler, log_density) as in `jalax.FromSampler`.
    """

    reference: Any

    def check(self, model: Model, theta: Tree) -> None:
        check_reference(self.reference, model, theta)

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        key_prepare, key_draw = jax.random.split(key)
        prepared = as_reference(self.reference).prepare(key_prepare, model, theta)
        particles = prepared.sample(key_draw, model, theta, num_particles)
        log_q = prepared.log_density(model, theta, particles)
        log_weights = evaluation.log_joint(model, theta, particles) - log_q
        return importance_cloud(particles, log_weights, pareto_k(log_weights))


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace:
    """Start from a Student-t on the mode of the posterior and its curvature there.

    Args:
        degrees_of_freedom: of the Student-t; by default the dimension of the latent, at least 5.
            Infinity gives a Gaussian, whose weights have infinite variance wherever the
            posterior has wider tails.
        num_draws: draw so many, and resample the particles from them by weight: better particles
            and a better evidence from the same number of particles. By default no more than
            the particles.
    """

    degrees_of_freedom: float | None = dataclasses.field(default=None, metadata={"static": True})
    num_draws: int | None = dataclasses.field(default=None, metadata={"static": True})

    def check(self, model: Model, theta: Tree) -> None:
        check_freedom("Laplace", self.degrees_of_freedom)
        if self.num_draws is not None:
            arguments.check_count("Laplace.num_draws", self.num_draws)

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        start = Importance(AtMode(self.degrees_of_freedom))
        if self.num_draws is None or self.num_draws <= num_particles:
            return start(key, model, theta, num_particles)
        key_draw, key_resample = jax.random.split(key)
        return thinned(key_resample, start(key_draw, model, theta, self.num_draws), num_particles)


def thinned(key, cloud: Cloud, num_particles: int) -> Cloud:
    """Fewer particles, of equal weight, with the evidence of all."""
    weights = weight_math.normalise(cloud.log_weights)
    index = ancestors_of_groups(key, systematic, weights, num_particles)
    particles = trees.gather(cloud.particles, index)
    return cloud._replace(particles=particles, log_weights=jnp.zeros(index.shape, weights.dtype))
