"""JALA-EM: the Jarzynski-adjusted Langevin algorithm with theta optimised along the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jalax import _langevin, _tree, _weights
from jalax._model import Model, Point, evaluate, weigh
from jalax._options import Optax, Schedule, descend, require_positive, value_at
from jalax._resampling import Weighted, resample_low, systematic
from jalax._tree import Tree
from jalax._types import Cloud, Info, State


class Memory(NamedTuple):
    optimizer: Tree
    point: Point  # log p, grad_x and the weighted grad_theta at (theta_k, X_k)
    preconditioner: _langevin.Preconditioner
    relative: Bool[Array, ""]  # the start knew no log Z_0: the evidence is log Z_k / Z_0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class JALAEM:
    r"""Jarzynski-adjusted Langevin EM (paper, Algorithm 1), with the evidence as a by-product.

    $$\theta_{k+1} = \mathrm{OPT}(\theta_k, g_k), \qquad
      g_k = \sum_i w_k^i \nabla_\theta U(\theta_k, X_k^i),$$
    $$X_{k+1}^i = X_k^i - h P \nabla_x U(\theta_k, X_k^i) + \sqrt{2h} P^{1/2} \xi_{k+1}^i,$$
    $$A_{k+1}^i = A_k^i - \alpha_{k+1}(X_{k+1}^i, X_k^i) + \alpha_k(X_k^i, X_{k+1}^i).$$

    Args:
        step_size: h, a number or a schedule (a function of the step, or `jalax.Schedule`).
        optimizer: OPT, any optax transformation or `jalax.Optax`; by default Adam, rate 0.05.
        preconditioner: the constant P: None (identity), a tree shaped like one latent (a
            diagonal), or a dense matrix over the ravelled latent; for a grouped model also one
            a group, with a leading group axis.
        resample_below: resample a group when its ESS falls below this fraction of N; 0: never.
        resample: `jalax.systematic`, `stratified`, `multinomial`, `residual`, or a function
            `(key, weights, num_samples) -> ancestors`.
        project: an optional map of theta onto its constraints, applied after each update.
    """

    step_size: float | Schedule | Callable | None = None
    optimizer: Any = None
    preconditioner: Tree = None
    resample_below: float = 0.5
    resample: Callable = dataclasses.field(default=systematic, metadata={"static": True})
    project: Callable[[Tree], Tree] | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    gives_evidence = True
    min_particles = 2

    def check(self, model: Model) -> None:
        require_positive("JALAEM.step_size", self.step_size)
        below = float(self.resample_below)
        if not 0 <= below <= 1:
            raise ValueError(
                f"JALAEM.resample_below is a fraction of the particles, 0 to 1, got {below}."
            )
        if not callable(self.resample):
            raise TypeError(
                "JALAEM.resample must be a function such as jalax.systematic, got "
                f"{self.resample!r}."
            )
        _langevin.check_preconditioner(model, self.preconditioner)

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        del key
        visit = evaluate(model, theta, cloud.particles)
        dtype = visit.log_joint.dtype
        log_weights = jnp.where(visit.alive, cloud.log_weights, -jnp.inf).astype(dtype)
        particles, point = weigh(model, theta, visit, log_weights)
        base = -_weights.log_mean_exp(log_weights)
        if cloud.log_evidence is not None:
            base = (base + cloud.log_evidence).astype(dtype)
        memory = Memory(
            self._optimizer().init(theta),
            point,
            _langevin.as_preconditioner(model, self.preconditioner),
            jnp.asarray(cloud.log_evidence is None),
        )
        step = jnp.zeros((), jnp.int32)
        return State(step, theta, particles, log_weights, base, memory)

    def step(self, key, model: Model, state: State) -> tuple[State, Info]:
        key_move, key_resample = jax.random.split(key)
        old, preconditioner = state.memory.point, state.memory.preconditioner
        h = value_at(self.step_size, state.step)

        # Lines 4-6: theta_{k+1} = OPT(theta_k, g_k). The gradient was taken at (theta_k, X_k)
        # with the weights before resampling, which have the lower variance.
        gradient_of_u = jax.tree.map(jnp.negative, old.grad_theta)
        theta, optimizer = descend(
            self._optimizer(), gradient_of_u, state.memory.optimizer, state.theta
        )
        if self.project is not None:
            theta = self.project(theta)

        # Line 7: move at theta_k, then weigh with alpha_{k+1} at theta_{k+1}. The one visit of
        # (theta_{k+1}, X_{k+1}) serves this weight and the next move.
        proposal = _langevin.move(key_move, state.particles, old.grad_x, h, preconditioner)
        visit = evaluate(model, theta, proposal)
        increment = _langevin.jarzynski_increment(
            state.particles, old, proposal, visit, h, preconditioner
        )
        visit = visit._replace(alive=visit.alive & jnp.isfinite(increment))
        log_weights = jnp.where(visit.alive, state.log_weights + increment, -jnp.inf)
        particles, point = weigh(model, theta, visit, log_weights)

        # Line 8: resample where the effective sample size is low; the caches move along.
        cloud, resampled = resample_low(
            key_resample,
            self.resample,
            self.resample_below,
            Weighted(
                particles, (point.log_joint, point.grad_x), log_weights, state.log_evidence_base
            ),
        )
        log_joint, grad_x = cloud.cached
        point = Point(log_joint, grad_x, point.grad_theta)

        weights = _weights.normalise(log_weights)
        info = Info(
            log_evidence=_weights.log_evidence(state.log_evidence_base, log_weights),
            ess=jnp.min(_weights.effective_sample_size(weights)),
            mean_log_joint=jnp.sum(jnp.where(weights > 0, weights * visit.log_joint, 0.0)),
            grad_norm=_tree.global_norm(point.grad_theta),
            resampled=resampled,
            dead=jnp.sum(~visit.alive, dtype=jnp.int32),
        )
        memory = state.memory._replace(optimizer=optimizer, point=point)
        return State(
            state.step + 1,
            theta,
            cloud.particles,
            cloud.log_weights,
            cloud.log_evidence_base,
            memory,
        ), info

    def _optimizer(self) -> Optax:
        if self.optimizer is not None:
            return self.optimizer
        import optax

        return Optax(optax.adam, learning_rate=0.05)
