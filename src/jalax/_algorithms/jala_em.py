"""JALA-EM: the Jarzynski-adjusted Langevin algorithm with theta optimised along the way."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jalax._algorithms import minibatches
from jalax._algorithms.jala_em_options import JALAEMOptions
from jalax._algorithms.theta_step import (
    MOVING,
    Phase,
    Yardstick,
)
from jalax._model import information
from jalax._model.evaluation import Point, count_dead, evaluate, pull, repair, weigh
from jalax._model.model import Model
from jalax._model.types import Cloud, State
from jalax._particles import langevin, trees, weight_math
from jalax._particles.gpu_kernel import move_and_work
from jalax._particles.langevin import Dense, InverseHessian, Preconditioner
from jalax._particles.resampling import Weighted, is_low, resample_low
from jalax._particles.trees import Tree
from jalax._reference import curvature
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import descend, value_at


class Memory(NamedTuple):
    optimizer: Tree
    point: Point  # log p, grad_x and the weighted grad_theta at (theta_k, X_k)
    preconditioner: Preconditioner
    relative: Bool[Array, ""]  # the start knew no log Z_0: the evidence is log Z_k / Z_0
    step_size: Float[Array, ""] | None  # chosen by a rule
    phase: Phase | None
    variance: Float[Array, " G"]  # of log Z up to the last resampling, roughly
    order: Int[Array, " G"] | None  # of visits to the groups, with `minibatch`
    held_out: Bool[Array, " G"] | None  # groups that are not visited, with `minibatch`
    outside: Int[Array, ""]  # moves that ended where log p is -inf: these spoil the evidence
    retries: Int[Array, ""]  # times the fit went back with half the step size: so do these


class WeightedInfo(NamedTuple):
    """`Info`, with a rough error of the path's log-evidence and the phase of the fit."""

    log_evidence: Float[Array, ""]
    ess: Float[Array, ""]
    mean_log_joint: Float[Array, ""]
    grad_norm: Float[Array, ""]
    resampled: Bool[Array, ""]
    dead: Int[Array, ""]
    log_evidence_error: Float[Array, ""]  # without the bias of a path that follows its particles
    phase: Int[Array, ""]  # 0 moving, 1 averaging, 2 done
    weight_exponent: Float[Array, ""]  # lowest over the groups; 1: the weights are as they are


class Change(NamedTuple):
    """What one step does to theta, and how the particles follow."""

    theta: Tree  # theta_{k+1}
    optimizer: Tree
    phase: Phase | None
    step_size: Float[Array, ""]
    preconditioner: Preconditioner
    shift: Tree  # c, leaves (G, 1, ...); None: the particles stay where they are


class After(NamedTuple):
    """What a step leaves to the next one, but theta."""

    particles: Tree
    point: Point
    log_weights: Float[Array, "G N"]
    log_evidence_base: Float[Array, " G"]
    outside: Int[Array, ""]  # moves of this step that ended where log p is -inf


class Local(NamedTuple):
    """The curvature of log p at the particles' mean; None where nobody asks for it."""

    at: Any
    metric: Any
    expansion: information.Expansion | None


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class JALAEM(JALAEMOptions):
    r"""Jarzynski-adjusted Langevin EM (paper, Algorithm 1), with the evidence as a by-product.

    $$\theta_{k+1} = \mathrm{OPT}(\theta_k, g_k), \qquad
      g_k = \sum_i w_k^i \nabla_\theta U(\theta_k, X_k^i),$$
    $$X_{k+1}^i = X_k^i + c_k - h P \nabla_x U(\theta_k, X_k^i) + \sqrt{2h} P^{1/2} \xi_{k+1}^i,$$
    $$A_{k+1}^i = A_k^i - \alpha_{k+1}(X_{k+1}^i - c_k, X_k^i) + \alpha_k(X_k^i, X_{k+1}^i - c_k),$$
    where the shift in alpha acts on the distance only.

    `JALAEM()` chooses everything by itself. With a number for `step_size` it is the paper's
    algorithm: what is not given is then the identity for P, Adam for OPT, and c = 0.

    Args:
        step_size: h, a number or a schedule (a function of the step, or `jalax.Schedule`), or a
            rule: `jalax.options.PilotStep()` (automatic) or `jalax.options.PowerIteration()`.
        optimizer: OPT, any optax transformation or `jalax.Optax` (Adam with rate 0.05), or
            `jalax.options.ObservedInformation()` (automatic, up to a few hundred parameters).
        preconditioner: P: None (identity), a tree shaped like one latent (a diagonal), or a dense
            matrix over the ravelled latent; for a grouped model also one a group, with a leading
            group axis; or `jalax.options.InverseHessian()` (automatic).
        kernel: the noise of a move: `jalax.Unadjusted()`, the paper's, or `jalax.GaussianExact()`,
            $\sqrt{h (2 - h)}$ in the place of $\sqrt{2h}$, for P near the posterior's covariance.
        resample_below: resample a group when its ESS falls below this fraction of N; 0: never.
        resample: `jalax.systematic`, `stratified`, `multinomial`, `residual`, or a function
            `(key, weights, num_samples) -> ancestors`.
        weights: `jalax.weights.ExactWeights()`; where the latents are so many that the exact
            weights leave one particle, `jalax.weights.TemperedWeights()` or `ClippedWeights()`,
            without evidence along the path.
        project: an optional map of theta onto its constraints, applied after each update.
        shift: `jalax.options.Shift()` (automatic); `jalax.options.Shift(0.0)`: none.
        limiter: `jalax.options.Limiter()` (automatic) keeps a change of theta small enough for the
            particles to follow; `jalax.options.Limiter(cess=0.0)`: none.
        averaging: `jalax.options.Averaging()` (automatic): phases, the average of theta, and when
            to stop.
        minibatch: of a grouped model, how many groups a step visits, in an order that is shuffled
            once all had their turn. The gradient is that of the visited times G / minibatch. A
            group that is left out keeps its particles and weights, and is weighed to the current
            theta when it is next visited, and at the end.
    """

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        self = self.filled(theta)
        visit = evaluate(model, theta, cloud.particles)
        dtype = jnp.promote_types(visit.log_joint.dtype, self.weights.dtype or jnp.float16)
        log_weights = jnp.where(visit.alive, cloud.log_weights, -jnp.inf).astype(dtype)
        particles, point = weigh(model, theta, visit, log_weights)
        base = -weight_math.log_mean_exp(log_weights)
        if cloud.log_evidence is not None:
            base = (base + cloud.log_evidence).astype(dtype)
        plain = log_weights.astype(visit.log_joint.dtype)
        at = curvature.centre(particles, plain)
        metric = curvature.as_metric(model, theta, self.preconditioner, at)
        step_size = None
        if self.automatic:
            step_size = self.step_size.tune(
                key, model, theta, particles, plain, point, metric, self.kernel
            )
        memory = Memory(
            self.optimizer.init(theta),
            point,
            metric,
            jnp.asarray(cloud.log_evidence is None),
            step_size,
            None if self.averaging is None else self.averaging.init(theta),
            _start_variance(cloud, base),
            None if self.minibatch is None else jnp.arange(model.num_groups),
            None if self.minibatch is None else jnp.zeros(model.num_groups, bool),
            outside=jnp.zeros((), jnp.int32),
            retries=jnp.zeros((), jnp.int32),
        )
        step = jnp.zeros((), jnp.int32)
        return State(step, theta, particles, log_weights, base, memory)

    def step(self, key, model: Model, state: State) -> tuple[State, WeightedInfo]:
        self = self.filled(state.theta)
        if self.minibatch is None:
            return self.advance(key, model, state, self.plan(model, state))
        key_order, key_step = jax.random.split(key)
        order, index = minibatches.visits(key_order, state, self.minibatch)
        part, some = minibatches.take_out(model, state, index)
        some = minibatches.weighed_to_theta(part, some)
        some = self._settled(part, some, key_step)
        some, info = self.advance(key_step, part, some, self.plan(part, some, model.num_groups))
        return minibatches.put_back(state, index, order, some), info

    def _settled(self, model: Model, state: State, key) -> State:
        """After all but the last of the `moves` of a visit, with theta where it is."""
        if self.moves == 1:  # a loop of no rounds would be compiled all the same
            return state

        def move(k, state):
            metric, _ = self._local(model, state)
            h = state.memory.step_size if self.automatic else value_at(self.step_size, state.step)
            memory = state.memory
            still = Change(state.theta, memory.optimizer, memory.phase, h, metric, None)
            moved, _ = self.advance(jax.random.fold_in(key, k), model, state, still)
            return moved._replace(step=state.step)

        return lax.fori_loop(1, self.moves, move, state)

    def plan(self, model: Model, state: State, num_groups: int | None = None) -> Change:
        """Lines 4-6: theta_{k+1} = OPT(theta_k, g_k), and how the particles will follow.

        The gradient was taken at (theta_k, X_k) with the weights before resampling, which have
        the lower variance. That of a minibatch is scaled up to all `num_groups`.
        """
        more = 1.0 if num_groups is None else num_groups / model.num_groups
        memory, phase = state.memory, state.memory.phase
        # Whatever precision they are kept in: theta, P and c are the model's.
        log_weights = state.log_weights.astype(memory.point.log_joint.dtype)
        state = state._replace(log_weights=log_weights)
        h = memory.step_size if self.automatic else value_at(self.step_size, state.step)
        flat, unravel = ravel_pytree(state.theta)
        gradient = more * ravel_pytree(memory.point.grad_theta)[0]
        metric, local = self._local(model, state)
        if hasattr(self.optimizer, "direction"):
            cloud = information.moments(
                model,
                state.theta,
                state.particles,
                state.log_weights,
                expansion=local.expansion,
                grad_x=memory.point.grad_x,
            )
            cloud = information.scaled(cloud, more)
            if local.expansion is not None:
                gradient = cloud.score
            rate = 0.5 if phase is None else self.averaging.rate(phase)
            direction, optimizer, yardstick = self.optimizer.direction(
                gradient, cloud, memory.optimizer, rate, state.theta, self.project
            )
            yardstick = yardstick._replace(sampling=more - 1)
        else:
            gradient_of_u = unravel(-gradient)
            theta, optimizer = descend(self.optimizer, gradient_of_u, memory.optimizer, state.theta)
            direction, yardstick = ravel_pytree(theta)[0] - flat, Yardstick(None, None, None)

        gain = 1.0 if phase is None else self.averaging.gain(phase).astype(flat.dtype)
        c = self._shift(model, state.theta, local, gain * direction)
        scale = self.limiter.scale(
            model,
            state.theta,
            state.particles,
            memory.point,
            state.log_weights,
            unravel(gain * direction),
            c,
        )
        theta = unravel(flat + scale.astype(flat.dtype) * gain * direction)
        if c is not None:
            c = jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, c)
        if self.project is not None:
            theta = self.project(theta)
        if phase is not None:
            phase = self.averaging.update(phase, direction, ravel_pytree(theta)[0], yardstick, h)
        return Change(theta, optimizer, phase, h, metric, c)

    def _local(self, model: Model, state: State) -> tuple[Preconditioner, Local]:
        """P (frozen once theta is being averaged), and the curvature where the particles are."""
        metric, phase = state.memory.preconditioner, state.memory.phase
        ours = isinstance(self.preconditioner, InverseHessian)
        newton = hasattr(self.optimizer, "direction")
        if not ours and not newton and self.shift.fraction == 0:
            return metric, Local(None, None, None)
        at = curvature.centre(state.particles, state.log_weights)

        def anew(_):
            return curvature.inverse_hessian(model, state.theta, at)

        if ours:
            moving = True if phase is None else phase.number == MOVING
            metric = trees.run_if(jnp.asarray(moving), anew, metric)
        here = metric if ours else anew(None)
        expansion = None
        expands = curvature.expands(at.shape[1], trees.size(state.theta))
        if newton and isinstance(here, Dense) and expands:
            at = curvature.newton(model, state.theta, at, here.matrix)
            expansion = curvature.expansion(model, state.theta, at, here.matrix)
        return metric, Local(at, here, expansion)

    def _shift(self, model: Model, theta: Tree, local: Local, change: Float[Array, " P"]) -> Tree:
        """c, the move of the posterior's mean when theta changes; None: no shift."""
        if self.shift.fraction == 0:
            return None
        cross = None if local.expansion is None else local.expansion.slope
        c = curvature.shift(model, theta, local.at, local.metric, change, cross)
        return jax.tree.map(lambda leaf: self.shift.fraction * leaf, c)

    def advance(
        self, key, model: Model, state: State, change: Change
    ) -> tuple[State, WeightedInfo]:
        """Lines 7-8: the particles move at theta_k, and are weighed at theta_{k+1}."""
        key_move, key_resample = jax.random.split(key)
        theta = change.theta
        visit, increment = self._moved(key_move, model, state, change)
        # A log p or a gradient that is not finite makes it so: no need to look at their entries.
        alive = jnp.isfinite(increment)
        log_weights = jnp.where(alive, state.log_weights + increment, -jnp.inf)
        log_weights, exponent = self.weights.soften(log_weights)
        weights = weight_math.normalise(log_weights)
        ess = weight_math.effective_sample_size(weights)

        # Line 8. The point is where the next step takes its gradients from.
        point, none_outside = pull(visit, weights), jnp.zeros((), jnp.int32)
        after = After(visit.particles, point, log_weights, state.log_evidence_base, none_outside)
        dead, resampled = count_dead(alive), jnp.any(is_low(weights, self.resample_below))
        mend = partial(self._mended, key_resample, model, theta, alive)
        after = trees.run_if((dead > 0) | resampled, mend, after)

        # Each segment between two resamplings adds 1/ESS - 1/N to the variance of log Z.
        variance = 1 / jnp.maximum(ess, 1.0) - 1 / weights.shape[1]
        banked = state.memory.variance + jnp.where(
            ess < self.resample_below * weights.shape[1], variance, 0.0
        )
        info = WeightedInfo(
            log_evidence=weight_math.log_evidence(state.log_evidence_base, log_weights),
            ess=jnp.min(ess),
            mean_log_joint=jnp.sum(jnp.where(weights > 0, weights * visit.log_joint, 0.0)),
            grad_norm=trees.global_norm(after.point.grad_theta),
            resampled=resampled,
            dead=dead,
            log_evidence_error=jnp.sqrt(jnp.sum(state.memory.variance + variance)),
            phase=jnp.zeros((), jnp.int32) if change.phase is None else change.phase.number,
            weight_exponent=jnp.min(exponent),
        )
        memory = state.memory._replace(
            optimizer=change.optimizer,
            point=after.point,
            preconditioner=change.preconditioner,
            phase=change.phase,
            variance=banked.astype(state.memory.variance.dtype),
            outside=state.memory.outside + after.outside,
        )
        return State(
            state.step + 1,
            theta,
            after.particles,
            after.log_weights,
            after.log_evidence_base,
            memory,
        ), info

    def _moved(self, key, model: Model, state: State, change: Change):
        """The visit of (theta_{k+1}, X_{k+1}), and the increments of the log-weights."""
        old, theta, h = state.memory.point, change.theta, change.step_size
        metric, kernel = change.preconditioner, self.kernel

        # Line 7, eq. 2. The barrier keeps what needs X_k and its gradient in front of the visit:
        # the new ones then take their memory, where both would be copied at each step. The work
        # is added up behind it: XLA joins no sum to the random numbers, and would read all again.
        given = state.particles, old.grad_x, h, metric, change.shift, model.layout, kernel
        moved, forwards = move_and_work(key, *given)
        particles, path, forwards = lax.optimization_barrier((*moved, forwards))
        # The one visit of (theta_{k+1}, X_{k+1}) serves this weight and the next move.
        visit = evaluate(model, theta, particles)
        increment = langevin.jarzynski_increment(old, visit, path, h, metric, forwards, kernel)
        return visit, increment

    def _mended(
        self, key, model: Model, theta: Tree, alive: Bool[Array, "G N"], after: After
    ) -> After:
        """Dead particles moved onto living ones, and groups whose ESS is low resampled.

        Each is rare, and each asks again whether it is needed. On a GPU the step waits for the
        host to ask: so it asks for both at once, and comes here if there is anything to do.
        """
        log_weights = after.log_weights
        particles, point, outside = repair(
            model, theta, alive, log_weights, after.particles, after.point
        )
        # What was found at the particles moves along with them.
        found = point.log_joint, point.grad_x
        cloud = Weighted(particles, found, log_weights, after.log_evidence_base)
        cloud, _ = resample_low(key, self.resample, self.resample_below, cloud, model.layout)
        log_joint, grad_x = cloud.cached
        point = Point(log_joint, grad_x, point.grad_theta)
        return After(cloud.particles, point, cloud.log_weights, cloud.log_evidence_base, outside)


def _start_variance(cloud: Cloud, base: Float[Array, " G"]) -> Float[Array, " G"]:
    if cloud.log_evidence_error is None:
        return jnp.zeros_like(base)
    return jnp.broadcast_to(cloud.log_evidence_error**2, base.shape).astype(base.dtype)
