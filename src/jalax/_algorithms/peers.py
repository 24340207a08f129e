"""What the algorithms without weights share: a start of equal weights, and their report."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jalax._model.evaluation import Evaluation, Point, count_dead, evaluate, weigh
from jalax._model.model import Model
from jalax._model.types import Cloud, Info
from jalax._particles import trees, weight_math
from jalax._particles.resampling import equalise
from jalax._particles.trees import Tree
from jalax._runtime.options import check_optimizer


def check_gradient_step(name: str, optimizer: Any) -> None:
    """None or an optax optimiser that can be built."""
    if hasattr(optimizer, "direction"):
        raise TypeError(
            f"{name}.optimizer must be an optax transformation such as optax.adam(0.05), got "
            f"{optimizer!r}, which is for jalax.JALAEM."
        )
    check_optimizer(optimizer)


def equal_cloud(
    key, model: Model, theta: Tree, cloud: Cloud
) -> tuple[Tree, Float[Array, "G N"], Point]:
    """The start's particles, resampled if it gave them weights, and the first visit."""
    particles = equalise(key, cloud.particles, cloud.log_weights)
    visit = evaluate(model, theta, particles)
    log_weights = zero_dead_weights(jnp.zeros_like(visit.log_joint), visit)
    particles, point = weigh(model, theta, visit, log_weights)
    return particles, log_weights, point


def zero_dead_weights(log_weights: Float[Array, "G N"], visit: Evaluation) -> Float[Array, "G N"]:
    """Weight zero for the dead; the others share the mean gradient equally."""
    return jnp.where(visit.alive, log_weights, -jnp.inf)


def peer_info(visit: Evaluation, log_weights: Float[Array, "G N"], point: Point) -> Info:
    weights = weight_math.normalise(log_weights)
    return Info(
        log_evidence=jnp.full((), jnp.nan, log_weights.dtype),
        ess=jnp.min(weight_math.effective_sample_size(weights)),
        mean_log_joint=jnp.sum(jnp.where(weights > 0, weights * visit.log_joint, 0.0)),
        grad_norm=trees.global_norm(point.grad_theta),
        resampled=jnp.zeros((), bool),
        dead=count_dead(visit.alive),
    )
