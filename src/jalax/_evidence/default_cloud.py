"""The cloud of the default start, by the programs that the finish of a fit uses too."""

from __future__ import annotations

import jax.numpy as jnp

from jalax._evidence.rounds import Budget, default_particles, importance, prepare
from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference.references import AtMode
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_1, Program, split
from jalax._starts.importance import importance_cloud, thinned


def start_cloud(key, model: Model, theta: Tree, num_particles: int, scores: bool) -> Cloud:
    """What `Laplace(num_draws=...)` draws."""
    key_prepare, key_draw, key_thin = split(key, 3)
    prepared = prepare(key_prepare, AtMode(), model, theta)
    how = _start_draws(model, theta, scores)
    sums, _, (particles, log_w) = importance(key_draw, model, theta, prepared, *how)
    return _thin(key_thin, particles, log_w, sums.k_hat, num_particles)


def start_shapes(key, model: Model, theta: Tree, num_particles: int, scores: bool) -> Cloud:
    """The shapes of `start_cloud`; what is traced for them is not traced again."""
    prepared = prepare.eval_shape(key, AtMode(), model, theta)
    how = _start_draws(model, theta, scores)
    sums, _, (particles, log_w) = importance.eval_shape(key, model, theta, prepared, *how)
    return _thin.eval_shape(key, particles, log_w, sums.k_hat, num_particles)


def _start_draws(model: Model, theta: Tree, scores: bool) -> tuple[int, bool]:
    """How many, and whether with scores.

    These are not needed yet; with them it is a program that the finish has a use for too.
    """
    draws = Budget().num_replicates * default_particles(model)
    return draws, scores and draws * model.num_groups * trees.size(theta) <= 10_000_000


def _thinned(key, particles: Tree, log_weights, k_hat, num_particles: int) -> Cloud:
    k_hat = jnp.broadcast_to(k_hat, log_weights.shape[:1])
    return thinned(key, importance_cloud(particles, log_weights, k_hat), num_particles)


_thin = Program(
    _thinned, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1, static_argnames="num_particles"
)
