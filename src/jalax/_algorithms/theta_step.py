"""How theta moves by itself: a direction without a learning rate, a limiter, and phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from jalax._model import evaluation, information
from jalax._model.evaluation import Point
from jalax._model.information import Metric, Moments
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass

MOVING, AVERAGING, DONE = 0, 1, 2
PHASES = ("moving", "averaging", "done")

# When theta has stopped moving, as `Averaging.update` sees it.
REMEMBERED = 0.9  # of the average direction at each step: it is that of the last ten or so
TO_AND_FRO = 0.25  # the squared length of that average, below which the steps cancel each other
ONE_WAY = 0.8  # and above which they all point one way
SHORT = 0.1  # of a standard error: not worth going for (towards a boundary, say)
CALM_STEPS = 5  # in a row, after which the average begins


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedInformation:
    r"""In the place of an optax optimiser: $\theta \leftarrow \theta + I^{-1} g$, no learning rate.

    I is Louis' observed information of the particles, in the metric of the complete-data
    information with eigenvalues clipped to [clip, 1] (a step of EM would have 1 everywhere, and
    crawls where much information is missing). For up to a few hundred parameters.

    Args:
        clip: the least share of the complete-data information.
    """

    clip: float = dataclasses.field(default=0.005, metadata={"static": True})

    def check(self) -> None:
        arguments.check_fraction("ObservedInformation.clip", self.clip, ends=True)

    def init(self, theta: Tree) -> Moments:
        """Running averages of what the clouds said so far."""
        flat, _ = ravel_pytree(theta)
        square = jnp.zeros((flat.size, flat.size), flat.dtype)
        return Moments(jnp.zeros_like(flat), square, square, square, square[None])

    def direction(
        self,
        gradient: Float[Array, " P"],
        now: Moments,
        past: Moments,
        rate: Float[Array, ""],
        theta: Tree,
        project: Callable[[Tree], Tree] | None,
    ) -> tuple[Float[Array, " P"], Moments, Yardstick]:
        """I^{-1} g, with I averaged over past clouds: one cloud is noisy.

        Parameters that `project` holds at a bound go there, and the others move by themselves.
        """
        mean = jax.tree.map(lambda old, new: old + rate * (new - old), past, now)
        if project is None:
            direction, yardstick = self._solve(gradient, mean)
            return direction, mean, yardstick
        free, way = information.bounded(project, theta, gradient, mean.complete)
        direction, yardstick = self._solve(
            jnp.where(free, gradient, 0.0), information.held(mean, free)
        )
        return jnp.where(free, direction, way), mean, yardstick

    def _solve(
        self, gradient: Float[Array, " P"], mean: Moments
    ) -> tuple[Float[Array, " P"], Yardstick]:
        metric = information.metric(mean.complete, mean.missing)
        # A direction with next to no information would be walked by noise alone.
        noise = jnp.einsum("pi,pq,qi->i", metric.basis, mean.noise, metric.basis)
        least = jnp.clip(noise, self.clip, 1.0)
        # Where log p_theta(y) curves upwards the size of its curvature still limits the step.
        upwards = jnp.maximum(-metric.share, least)
        share = jnp.where(metric.share < 0, upwards, jnp.clip(metric.share, least, 1.0))
        return metric.solve(gradient, share), Yardstick(metric, share, mean.noise)


class Yardstick(NamedTuple):
    """Lengths of theta-steps in standard errors; without a metric, plain lengths."""

    metric: Metric | None
    share: Any
    noise: Any
    sampling: float = 0.0  # G/B - 1: the scores of B groups, scaled up, vary by so many times I

    def square(self, step: Float[Array, " P"]) -> Float[Array, ""]:
        if self.metric is None:
            return jnp.sum(step**2)
        return self.metric.square(step, self.share)

    def usual(self) -> Float[Array, ""]:
        """What the square of a step at rest hardly exceeds: one, and its noise.

        The noise is a sum over directions, like a chi-square: its mean, and 15 times its largest
        part. Twice the mean, because theta is where the noise of the last step has left it.
        """
        if self.metric is None:
            return jnp.inf * jnp.ones(())
        flat = jnp.sum(self.share < information.FLAT)
        noise = self._noise() + self.sampling * jnp.eye(self.share.shape[0])
        return 1.0 + 2 * jnp.trace(noise) + 15 * _largest(noise) + flat

    def score_error(self) -> Float[Array, ""]:
        """Simulation error of one I^{-1} g in standard errors, worst over the clear directions.

        Where there is next to no information more steps would not help; the finish looks closer.
        """
        if self.metric is None:
            return jnp.inf * jnp.ones(())
        return jnp.sqrt(_largest(self._noise()))

    def _noise(self) -> Float[Array, "P P"]:
        """The covariance of I^{-1} g in standard errors, along the clear directions."""
        assert self.metric is not None
        clear = jnp.where(self.share >= information.FLAT, 1 / jnp.sqrt(self.share), 0.0)
        basis = self.metric.basis * clear
        return basis.T @ self.noise @ basis


def _largest(matrix: Float[Array, "P P"]) -> Float[Array, ""]:
    return jnp.maximum(jnp.linalg.eigvalsh(matrix)[-1], 0.0)


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Limiter:
    """Shortens a change of theta until the particles can follow it.

    Args:
        cess: the conditional effective sample size (a fraction) that one change of theta must
            leave in every group; 0 switches the limiter off.
    """

    cess: float = dataclasses.field(default=0.9, metadata={"static": True})

    def check(self) -> None:
        arguments.check_fraction("Limiter.cess", self.cess, ends=True)

    def scale(
        self,
        model: Model,
        theta: Tree,
        particles: Tree,
        point: Point,
        log_weights: Float[Array, "G N"],
        change: Tree,
        shift: Tree,
    ) -> Float[Array, ""]:
        """The factor in (0, 1]; `point` is what is known at the particles.

        They move by `shift` (G, 1, ...) with theta.
        """
        dtype = log_weights.dtype
        if self.cess == 0:
            return jnp.ones((), dtype)
        weights = weight_math.normalise(log_weights)
        if shift is None:
            shift = jax.tree.map(lambda x: jnp.zeros_like(x[:, :1]), particles)
        moved = jax.tree.map(lambda c, x: jnp.broadcast_to(c, x.shape), shift, particles)
        # First order: log-weights change by s d, and CESS / N = 1 / (1 + s^2 Var d). What the shift
        # does to log p is in the gradients of the last visit.
        _, d = jax.jvp(lambda t: evaluation.log_joint(model, t, particles), (theta,), (change,))
        d = d + trees.dot(point.grad_x, moved)
        d = jnp.where(weights > 0, d, 0.0)
        d = d - jnp.sum(weights * d, axis=1, keepdims=True)
        variance = jnp.max(jnp.sum(weights * d**2, axis=1))
        first = jnp.sqrt((1 / self.cess - 1) / jnp.maximum(variance, 1e-30))
        first = jnp.where(first > 0, jnp.minimum(first, 1.0), 1.0)  # if NaN, the loop finds it

        def halve(carry):
            k, s, _ = carry
            s = s / 2
            t = jax.tree.map(lambda a, b: a + s.astype(a.dtype) * b, theta, change)
            x = jax.tree.map(lambda a, b: a + s.astype(a.dtype) * b, particles, moved)
            gain = evaluation.log_joint(model, t, x) - point.log_joint
            return k + 1, s, jnp.min(weight_math.conditional_ess(weights, gain))

        # Twice as much, because it is halved before it is looked at.
        begin = (jnp.zeros((), jnp.int32), 2 * first.astype(dtype), -jnp.ones((), dtype))
        # A little less will do, or rounding at exactly the first-order answer would halve it.
        enough = self.cess - 0.05
        _, s, cess = lax.while_loop(lambda c: (c[0] < 30) & ~(c[2] >= enough), halve, begin)
        return jnp.where(cess >= enough, s, 0.0)


class Phase(NamedTuple):
    """Where a run stands; lives in the algorithm's memory and switches inside `step`."""

    number: Int[Array, ""]  # MOVING, AVERAGING, DONE
    drift: Float[Array, " P"]  # the directions of recent steps, unit vectors averaged
    calm: Int[Array, ""]  # steps in a row that cancelled each other
    moved: Int[Array, ""]  # steps before averaging began
    averaged: Int[Array, ""]  # how many thetas are
    mean: Float[Array, " P"]  # their average
    error: Float[Array, ""]  # its simulation error, in standard errors
    overshot: Int[Array, ""]  # long steps that cancelled each other


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Averaging:
    """Full steps while theta is moving, then decreasing ones and an average, then done.

    theta is taken to move no more when the steps of late cancel each other, and to move again when
    they all point one way. It is done when the simulation error of the average is below
    `tolerance` standard errors.

    Args:
        tolerance: in standard errors; 0: go on until the steps are spent.
        min_steps: thetas to average at least.
    """

    tolerance: float = 0.05
    min_steps: int = dataclasses.field(default=20, metadata={"static": True})

    def check(self) -> None:
        at_least_zero = "a number of standard errors, 0 or more"
        arguments.check_number(
            "Averaging.tolerance", self.tolerance, at_least_zero, lambda number: number >= 0
        )
        arguments.check_count("Averaging.min_steps", self.min_steps, 0)

    def init(self, theta: Tree) -> Phase:
        flat, _ = ravel_pytree(theta)
        count = jnp.zeros((), jnp.int32)
        error = jnp.full((), jnp.inf, flat.dtype)
        return Phase(count, jnp.zeros_like(flat), count, count, count, flat, error, count)

    def gain(self, phase: Phase) -> Float[Array, ""]:
        """1 while moving, then (1 + j)^(-0.6): slow enough for an average (Polyak, Ruppert).

        Less while moving, too, where theta jumps to and fro over the maximum: the information is
        that of a Gaussian in part, and the steps it makes may be too long.
        """
        moving = 1 / (1 + phase.overshot / 4)
        return jnp.where(phase.number == MOVING, moving, (1.0 + phase.averaged) ** -0.6)

    def rate(self, phase: Phase) -> Float[Array, ""]:
        """Weight of the newest cloud in the averaged information."""
        first = (phase.number == MOVING) & (phase.moved == 0)
        moving = jnp.where(first, 1.0, 0.5)
        return jnp.where(phase.number == MOVING, moving, 1.0 / (2.0 + phase.averaged))

    def update(
        self,
        phase: Phase,
        direction: Float[Array, " P"],
        theta: Float[Array, " P"],
        yardstick: Yardstick,
        step_size: Float[Array, ""],
    ) -> Phase:
        moving = phase.number == MOVING
        length = jnp.sqrt(yardstick.square(direction))
        unit = direction / jnp.where(length > 0, length, 1.0)
        # The average of the last directions has length 1 when all point one way, 0.2 at random.
        drift = REMEMBERED * phase.drift + (1 - REMEMBERED) * unit
        so_far = 1 - REMEMBERED ** (1.0 + phase.moved + phase.averaged)  # it began at zero
        straight = yardstick.square(drift / so_far)
        short = (length < SHORT) & (yardstick.metric is not None)
        wild = length**2 > yardstick.usual()
        calm = jnp.where(((straight < TO_AND_FRO) & ~wild) | short, phase.calm + 1, 0)
        overshot = phase.overshot + (moving & (straight < TO_AND_FRO) & wild)
        again = ~moving & (((straight > ONE_WAY) & ~short) | wild)
        moved = phase.moved + (moving | again)
        count = jnp.where(again, 0, phase.averaged + ~moving)
        mean = phase.mean + (theta - phase.mean) / jnp.maximum(count, 1)
        mean = jnp.where(moving | again, theta, mean)
        # x forgets by 1 - h a step in the metric P: the average of J scores is worth J h / (2 - h).
        h = jnp.clip(step_size, 1e-6, 1.0)
        variance = yardstick.score_error() ** 2 * (2 - h) / h + yardstick.sampling
        error = jnp.sqrt(variance / jnp.maximum(count, 1))
        if yardstick.metric is None:  # no standard errors to compare with: as long as it moved
            enough = (count >= moved) & (self.tolerance > 0)
        else:
            enough = error <= self.tolerance
        after_moving = jnp.where(calm >= CALM_STEPS, AVERAGING, MOVING)
        after_averaging = jnp.where((count >= self.min_steps) & enough, DONE, phase.number)
        number = jnp.where(moving, after_moving, jnp.where(again, MOVING, after_averaging))
        error = jnp.where(moving | again, jnp.inf, error).astype(theta.dtype)
        switched = number.astype(jnp.int32)
        return Phase(switched, drift, calm, moved, count, mean, error, overshot)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FollowPath:
    """In the place of an optimiser: theta_{k+1} is read off, whatever the gradient."""

    path: Tree

    def init(self, theta: Tree):
        del theta
        return jnp.zeros((), jnp.int32)

    def update(self, gradient: Tree, k, theta: Tree):
        del gradient
        return jax.tree.map(lambda row, t: row[k] - t, self.path, theta), k + 1
