"""A step size for Langevin moves, on its own: by the rules of the automatic fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jalax._algorithms.step_size import PilotStep
from jalax._model import checks
from jalax._model.evaluation import Point, evaluate
from jalax._model.model import Model
from jalax._particles import langevin
from jalax._particles.langevin import UNADJUSTED, InverseHessian, Kernel
from jalax._particles.trees import Tree
from jalax._reference import curvature
from jalax._runtime import arguments
from jalax._runtime.compilation import jit
from jalax._starts.importance import Laplace


def auto_step_size(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    rule: Any = None,
    preconditioner: Tree | InverseHessian = None,
    kernel: Kernel = UNADJUSTED,
    num_particles: int = 500,
) -> float:
    """The step size a rule chooses for Langevin moves of the posterior at theta.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel`.
        theta: where; by default the model's own.
        key: `jax.random.key(seed)`.
        rule: `jalax.options.PilotStep()` (the default) or `PowerIteration()`, the paper's bound.
        preconditioner: of the moves the step size is for, as in `jalax.JALAEM`; None: identity.
        kernel: of these moves, `jalax.Unadjusted()` or `jalax.GaussianExact()` (h at most 1).
        num_particles: size of the pilot cloud.

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> from jalax.options import PowerIteration, auto_step_size
    >>> h = auto_step_size(model, 2.0, key=jax.random.key(0), rule=PowerIteration())
    >>> round(h, 3)  # the Hessian is twice the identity
    0.495
    """
    arguments.check_key(key)
    assert key is not None
    model = checks.prepare_model(model)
    theta = checks.prepare_theta(theta, model)
    checks.check_log_joint(model, theta)
    rule = PilotStep() if rule is None else rule
    if isinstance(rule, type) or not hasattr(rule, "tune"):
        raise TypeError(
            "rule must be jalax.options.PilotStep() or jalax.options.PowerIteration(), got "
            f"{rule!r}."
        )
    if hasattr(rule, "check"):
        rule.check()
    num_particles = arguments.check_count("num_particles", num_particles, 2)
    langevin.check_preconditioner(model.latent, model.num_groups, preconditioner)
    langevin.check_kernel("kernel", kernel)

    @jit()
    def choose(key, model, theta, preconditioner):
        key_start, key_pilot = jax.random.split(key)
        cloud = Laplace()(key_start, model, theta, num_particles)
        visit = evaluate(model, theta, cloud.particles)
        point = Point(visit.log_joint, visit.grad_x, None)
        at = curvature.centre(cloud.particles, cloud.log_weights)
        metric = curvature.as_metric(model, theta, preconditioner, at)
        weights = jnp.where(visit.alive, cloud.log_weights, -jnp.inf)
        return rule.tune(key_pilot, model, theta, cloud.particles, weights, point, metric, kernel)

    return float(choose(key, model, theta, preconditioner))
