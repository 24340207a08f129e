"""Rules that choose the step size h of the Langevin moves."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jalax._model.evaluation import Point, evaluate, log_joint_of_vectors, over_groups
from jalax._model.model import Model
from jalax._particles import langevin, trees, weight_math
from jalax._particles.langevin import UNADJUSTED, Kernel, Preconditioner
from jalax._particles.trees import Tree
from jalax._reference import curvature
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PilotStep:
    """The largest h at which one move at a fixed theta keeps the weights alive.

    Args:
        cess: the conditional effective sample size (a fraction) of one move, in every group.
    """

    cess: float = dataclasses.field(default=0.95, metadata={"static": True})

    def check(self) -> None:
        arguments.check_fraction("PilotStep.cess", self.cess)

    def tune(
        self,
        key,
        model: Model,
        theta: Tree,
        particles: Tree,
        log_weights: Float[Array, "G N"],
        point: Point,
        preconditioner: Preconditioner,
        kernel: Kernel = UNADJUSTED,
    ) -> Float[Array, ""]:
        weights = weight_math.normalise(log_weights)

        def cess(h):
            # The same key at every h: they are compared on the same noise.
            new, path = langevin.move(
                key, particles, point.grad_x, h, preconditioner, kernel=kernel
            )
            visit = evaluate(model, theta, new)
            a = langevin.jarzynski_increment(point, visit, path, h, preconditioner, kernel=kernel)
            return jnp.min(weight_math.conditional_ess(weights, a))

        # From large to small, a factor sqrt(2) each; beyond 1 the drift overshoots the mode.
        def smaller(carry):
            k, h, _ = carry
            h = h / jnp.sqrt(2.0).astype(h.dtype)
            return k + 1, h, cess(h)

        dtype = log_weights.dtype
        start = jnp.zeros((), jnp.int32), jnp.asarray(2**0.5, dtype), -jnp.ones((), dtype)
        _, h, _ = lax.while_loop(lambda c: (c[0] < 40) & ~(c[2] >= self.cess), smaller, start)
        return kernel.tuned(h)


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerIteration:
    r"""The paper's bound, h = fraction / L: L the largest eigenvalue of $P \nabla^2_x U$.

    L is found by power iteration with Hessian-vector products at the mean of the particles,
    the largest over the groups.
    """

    fraction: float = 0.99
    num_iterations: int = dataclasses.field(default=100, metadata={"static": True})

    def check(self) -> None:
        arguments.check_positive("PowerIteration.fraction", self.fraction)
        arguments.check_count("PowerIteration.num_iterations", self.num_iterations)

    def tune(
        self,
        key,
        model: Model,
        theta: Tree,
        particles: Tree,
        log_weights: Float[Array, "G N"],
        point: Point,
        preconditioner: Preconditioner,
        kernel: Kernel = UNADJUSTED,
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
        h = self.fraction / jnp.max(jnp.linalg.norm(multiply(v), axis=1))
        return kernel.tuned(jnp.asarray(h, at.dtype))
