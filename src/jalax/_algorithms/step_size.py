"""Rules that choose the step size h of the Langevin moves."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jalax._model import checks
from jalax._model.evaluation import Point, evaluate, log_joint_of_vectors, over_groups
from jalax._model.model import Model
from jalax._particles import langevin, trees, weight_math
from jalax._particles.langevin import InverseHessian, Preconditioner
from jalax._particles.trees import Tree
from jalax._reference import curvature
from jalax._runtime.compilation import jit
from jalax._starts.importance import Laplace


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PilotStep:
    """The largest h at which one move at a fixed theta keeps the weights alive.

    Args:
        cess: the conditional effective sample size (a fraction) of one move, in every group.
    """

    cess: float = dataclasses.field(default=0.95, metadata={"static": True})

    def check(self) -> None:
        checks.check_fraction("PilotStep.cess", self.cess)

    def tune(
        self,
        key,
        model: Model,
        theta: Tree,
        particles: Tree,
        log_weights: Float[Array, "G N"],
        point: Point,
        preconditioner: Preconditioner,
    ) -> Float[Array, ""]:
        weights = weight_math.normalise(log_weights)

        def cess(h):
            # The same key at every h: they are compared on the same noise.
            new, path = langevin.move(key, particles, point.grad_x, h, preconditioner)
            visit = evaluate(model, theta, new)
            a = langevin.jarzynski_increment(point, visit, path, h, preconditioner)
            a = jnp.where((weights > 0) & jnp.isfinite(a), a, -jnp.inf)
            v = jnp.exp(a - jnp.max(a, axis=1, keepdims=True))
            v = jnp.where(jnp.isnan(v), 0.0, v)
            second = jnp.sum(weights * v**2, axis=1)
            return jnp.min(jnp.sum(weights * v, axis=1) ** 2 / jnp.where(second > 0, second, 1.0))

        # From large to small, a factor sqrt(2) each; beyond 1 the drift overshoots the mode.
        def smaller(carry):
            k, h, _ = carry
            h = h / jnp.sqrt(2.0).astype(h.dtype)
            return k + 1, h, cess(h)

        dtype = log_weights.dtype
        start = jnp.zeros((), jnp.int32), jnp.asarray(2**0.5, dtype), -jnp.ones((), dtype)
        _, h, _ = lax.while_loop(lambda c: (c[0] < 40) & ~(c[2] >= self.cess), smaller, start)
        return h


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerIteration:
    r"""The paper's bound, h = fraction / L: L the largest eigenvalue of $P \nabla^2_x U$.

    L is found by power iteration with Hessian-vector products at the mean of the particles,
    the largest over the groups.
    """

    fraction: float = 0.99
    num_iterations: int = dataclasses.field(default=100, metadata={"static": True})

    def check(self) -> None:
        checks.check_positive("PowerIteration.fraction", self.fraction)
        checks.check_count("PowerIteration.num_iterations", self.num_iterations)

    def tune(
        self, key, model: Model, theta: Tree, particles, log_weights, point, preconditioner
    ) -> Float[Array, ""]:
        del point
        at = curvature.centre(particles, log_weights)
        log_p = log_joint_of_vectors(model, theta)

        def hessian_times(x, v, data):
            return -jax.jvp(jax.grad(lambda z: log_p(z, data)), (x,), (v,))[1]

        def multiply(v):  # P H v
            product = over_groups(model, hessian_times, at, v)
            tree = curvature.unravel(model, product[:, None])
            return trees.ravel_particles(langevin.apply(preconditioner, tree))[:, 0]

        def iterate(_, v):
            v = multiply(v)
            return v / jnp.linalg.norm(v, axis=1, keepdims=True)

        v = jax.random.normal(key, at.shape, at.dtype)
        v = lax.fori_loop(0, self.num_iterations, iterate, iterate(0, v))
        return jnp.asarray(self.fraction / jnp.max(jnp.linalg.norm(multiply(v), axis=1)), at.dtype)


def auto_step_size(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    rule: Any = None,
    preconditioner: Tree | InverseHessian = None,
    num_particles: int = 500,
) -> float:
    """The step size a rule chooses for Langevin moves of the posterior at theta.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel`.
        theta: where; by default the model's own.
        key: `jax.random.key(seed)`.
        rule: `jalax.PilotStep()` (the default) or `jalax.PowerIteration()`, the paper's bound.
        preconditioner: of the moves the step size is for, as in `jalax.JALAEM`; None: identity.
        num_particles: size of the pilot cloud.

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> h = jalax.auto_step_size(model, 2.0, key=jax.random.key(0), rule=jalax.PowerIteration())
    >>> round(h, 3)  # the Hessian is twice the identity
    0.495
    """
    checks.check_key(key)
    assert key is not None
    model = checks.prepare_model(model)
    theta = checks.prepare_theta(theta, model)
    checks.check_log_joint(model, theta)
    rule = PilotStep() if rule is None else rule
    if isinstance(rule, type) or not hasattr(rule, "tune"):
        raise TypeError(f"rule must be jalax.PilotStep() or jalax.PowerIteration(), got {rule!r}.")
    if hasattr(rule, "check"):
        rule.check()
    num_particles = checks.check_count("num_particles", num_particles, 2)
    langevin.check_preconditioner(model, preconditioner)

    @jit()
    def choose(key, model, theta, preconditioner):
        key_start, key_pilot = jax.random.split(key)
        cloud = Laplace()(key_start, model, theta, num_particles)
        visit = evaluate(model, theta, cloud.particles)
        point = Point(visit.log_joint, visit.grad_x, None)
        at = curvature.centre(cloud.particles, cloud.log_weights)
        metric = curvature.as_metric(model, theta, preconditioner, at)
        weights = jnp.where(visit.alive, cloud.log_weights, -jnp.inf)
        return rule.tune(key_pilot, model, theta, cloud.particles, weights, point, metric)

    return float(choose(key, model, theta, preconditioner))
