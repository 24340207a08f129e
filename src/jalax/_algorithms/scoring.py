r"""Scoring: Newton's method on log p itself.

A step is one pass over the groups at a trial theta: by points (`group_points.py`), where a group
has few latents, else by legs of particles (`leg.py`). While it climbs, all steps have the same
random numbers, so that two thetas can be compared; a trial that falls is a step whose theta stays.
It approaches the maximum with a quarter of the points, and goes on with all of them. Then it
measures where it has arrived, each time with fresh ones, whose spread is the error reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jalax._algorithms import newton
from jalax._algorithms.scoring_state import (
    APPROACHING,
    CLIMBING,
    DONE,
    LOOKING,
    MEASURING,
    Here,
    Memory,
    ScoringInfo,
    here_of,
)
from jalax._model import information
from jalax._model.algorithm import Algorithm, Measurement
from jalax._model.evaluation import ravel_latent
from jalax._model.frequencies import counted
from jalax._model.model import Model
from jalax._model.types import Cloud, State
from jalax._particles import trees, weight_math
from jalax._particles.trees import Tree
from jalax._reference import group_points, leg, legs, points
from jalax._reference.compressed import checked_plan
from jalax._reference.group_points import Pass
from jalax._reference.mode_search import DENSE_UP_TO
from jalax._runtime.nodes import register_dataclass

NEAR_ENOUGH = 0.3  # standard errors of a step after which all points are worth their time
SHORTEST = 1e-3  # of one that is not worth taking
SHORT = 0.03  # of one that is the last, if no direction is flat and steps shrink fast
SHRUNK = 0.5  # of the one before: below it they do, towards a boundary each is 0.6 of it or more
TOLERANCE = 3e-3  # by which log p may fall: the points move with theta, and their error with them
MAX_REJECTED = 20  # trials in a row
# By legs log p has noise, and a step has it in each number of theta: the first is times their root.
SHORTEST_BY_LEGS, TOLERANCE_BY_LEGS = 0.05, 0.3
LONGEST_LEG = 128  # temperatures, at most of a measurement
THETA_BY_LEGS = 0.02  # standard errors by which the noise of the score may move theta
MAX_CLIMB = 200  # passes: what has not arrived by then is measured where it is, and judged
MOST_MOVES = 3  # of theta after a measurement by legs that saw the maximum elsewhere


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoring(Algorithm):
    r"""Newton's method on the marginal likelihood, by quasi-random points at each group's mode.

    With the score $g$ and Louis' information $I = I_c - M$ of all groups, a step is
    $\theta \leftarrow \theta + I^{-1} g$, shortened to three standard errors at first (more where
    log p rises as foreseen), damped where it falls, and with the size of its eigenvalues where $I$
    is not positive definite. It ends with measurements of log p, score and information at the
    maximum, by fresh points each, from which the evidence, the standard errors and their
    simulation errors are made.

    For `jalax.GroupedModel`, or a `jalax.Model`, with up to 32 latents a group, and up to 300
    numbers of theta: there it takes seconds where `jalax.JALAEM` takes a minute, and `jalax.fit`
    chooses it. The number of particles is that of the points of a group, a power of two.

    With more latents (up to 2,000, or any number with `jalax.Model(..., structure=...)`; theta of
    up to 24 numbers) log p is measured by Jarzynski legs of particles from the Laplace Gaussian,
    and the score and the information from log p at thetas around, by the same particles.

    Args:
        num_measurements: at the end; their spread is the error. Where it is large, up to four
            times as many are taken, if they are by points.
        damping: of the first step, in units of the complete-data information: with 1 it is half a
            step of EM, which goes uphill slowly and from nearly everywhere.
        relaxation: by how much damping is divided after each step that was accepted.
    """

    num_measurements: int = dataclasses.field(default=8, metadata={"static": True})
    damping: Any = 1e-3
    relaxation: Any = 5.0

    gives_evidence = True
    min_particles = 16
    finds_its_particles = True
    phases = ("approaching", "climbing", "measuring", "done")

    def check(self, model: Model) -> None:
        if self.num_measurements < 2:
            raise ValueError(
                f"Scoring.num_measurements must be 2 or more, got {self.num_measurements}."
            )
        for name, least in (("damping", 0.0), ("relaxation", 1.0)):
            if not float(value := getattr(self, name)) >= least:
                raise ValueError(f"Scoring.{name} must be {least:g} or more, got {value}.")
        if reason := self.unsuitable(model):
            raise ValueError(f"{reason}: use jalax.JALAEM().")

    def check_theta(self, theta: Tree) -> None:
        if reason := self.too_many(theta):
            raise ValueError(f"{reason}: use jalax.JALAEM().")

    def prepared(self, model: Model, theta: Tree) -> Model:
        if reason := legs.too_many(model, theta):
            raise ValueError(f"{reason}: use jalax.JALAEM().")
        if not by_legs(model) or model.structure is None or model.plan is not None:
            return model
        return model.replace(plan=checked_plan(model, theta))

    @staticmethod
    def unsuitable(model: Model) -> str:
        """Why it cannot fit a model; "" if it can."""
        if (size := trees.size(model.latent)) > DENSE_UP_TO and model.structure is None:
            where = "a group" if model.grouped else "the model"
            return (
                f"{where} has {size} latents, and Scoring is for up to {DENSE_UP_TO}, or more with "
                "jalax.Model(..., structure=...)"
            )
        return ""

    @staticmethod
    def too_many(theta: Tree) -> str:
        """Why theta is too large for it; "" if it is not."""
        if information.fits(theta):
            return ""
        return (
            f"theta has {trees.size(theta)} numbers, and Scoring holds the information about "
            f"them, a dense matrix, for up to {information.LIMIT}"
        )

    @staticmethod
    def can_have(num_points: int) -> bool:
        return num_points >= Scoring.min_particles and num_points & (num_points - 1) == 0

    @property
    def stops_by_itself(self) -> bool:
        return True

    def default_particles(self, model: Model) -> int:
        size, within = trees.size(model.latent), model.outside.within is not None
        usual = points.usual_number(size, model.num_groups, points.WITHIN if within else 1)
        return leg.NUM_PARTICLES if by_legs(model) else usual

    def makes_short(self, others: Sequence[Any]) -> bool:
        # XLA's older emitters compile a pass faster, and it runs about as fast, on two cores.
        return True

    def is_done(self, state: State) -> Bool[Array, ""]:
        return state.memory.phase == DONE

    def advice(self, retries: int) -> str:
        return "Try another theta_0, where log_joint is finite, or algorithm=jalax.JALAEM()"

    def without_path_evidence(self) -> str:
        return "Scoring measures the evidence at its last theta: there is none along a path."

    def init(self, key, model: Model, theta: Tree, cloud: Cloud) -> State:
        groups, num = cloud.log_weights.shape
        if num & (num - 1):
            raise ValueError(
                "the points of Scoring are a power of two in number, such as 256 or 1024; "
                f"num_particles is {num}."
            )
        (flat, _), (example, _) = ravel_pytree(theta), ravel_latent(model)
        zero = jnp.zeros((), jnp.int32)
        matrix = jnp.zeros((flat.size, flat.size), flat.dtype)
        none = jnp.zeros((groups,), cloud.log_weights.dtype)
        here = Here(
            jnp.broadcast_to(example, (groups, example.size)),
            jnp.full_like(none, -jnp.inf),
            *(jnp.zeros_like(flat), matrix, matrix, none),
        )
        none_yet, longest = jnp.asarray((0.0, newton.LONGEST), flat.dtype)
        damping, relaxation = (jnp.asarray(x, flat.dtype) for x in (self.damping, self.relaxation))
        shifts, sums = jax.random.key_data(key), group_points.no_sums(groups, num, flat)
        path = leg.Path(zero, zero) if by_legs(model) else None
        trial = flat, none_yet, none_yet
        approaches = path is None and group_points.num_blocks(model, num) > 1
        phase = zero + (APPROACHING if approaches else CLIMBING)
        trust = longest, damping, relaxation
        pace = newton.no_pace(flat)
        memory = Memory(phase, shifts, *trial, *trust, zero, pace, here, sums, zero, path)
        return State(zero, theta, cloud.particles, cloud.log_weights, none, memory)

    def steps_at_once(self, model: Model) -> int | None:
        return 1 if by_legs(model) else None  # a pass of legs may take seconds

    def step(self, key, model: Model, state: State) -> tuple[State, ScoringInfo]:
        memory, (flat, unravel) = state.memory, ravel_pytree(state.theta)
        climbing = memory.phase < MEASURING
        shifts = jnp.where(climbing, memory.shifts, jax.random.key_data(key))
        shifts = jax.random.wrap_key_data(shifts, impl=jax.random.key_impl(key))
        num = state.log_weights.shape[1]
        passes, number, noise = self._look(shifts, model, unravel(memory.trial), num, memory)
        seen = passes[0]
        # Of small differences: no digits are lost.
        rise = jnp.sum(counted(model, seen.log_p - memory.here.log_p))
        slack = TOLERANCE if noise is None else TOLERANCE_BY_LEGS
        accepted = _is_finite(seen) & (~climbing | (memory.rejected < 0) | (rise >= -slack))
        after = self._climb(memory, seen, accepted, flat, rise, state.step)
        if noise is not None:
            of_log_p = num * self.num_measurements * group_points.error_aimed_at(model) ** 2
            of_score = self.num_measurements * THETA_BY_LEGS**2
            after = _with_legs(after, noise, of_log_p, of_score)
        after = trees.select(climbing, after, self._measure(model, memory, passes, number))
        theta = jnp.where(accepted | ~climbing, memory.trial, flat)
        ended = (after.phase == DONE) & (memory.phase != DONE)
        last, length = newton.last_step(after.sums)
        theta = jnp.where(ended, theta + last, theta)
        if noise is not None:
            far = length > legs.LAST_STEP * theta.size**0.5
            again = ended & far & (after.moves < MOST_MOVES)
            after = trees.select(again, _measured_again(after, theta, seen), after)

        particles = _as_latents(model, seen.particles)
        particles = trees.select(accepted, particles, state.particles)
        log_weights = jnp.where(accepted, seen.log_weights, state.log_weights)
        none = jnp.isneginf(memory.here.log_p[0]) & ~accepted  # not even at theta_0
        none = none | (~climbing & (after.rejected > MAX_REJECTED))
        ess = weight_math.effective_sample_size(weight_math.normalise(log_weights))
        info = ScoringInfo(
            jnp.sum(counted(model, after.here.log_p)),
            jnp.where(none, 0.0, jnp.min(ess)),
            jnp.mean(after.here.log_p),
            jnp.linalg.norm(after.here.score),
            jnp.zeros((), bool),
            seen.dead,
            after.phase,
        )
        base = state.log_evidence_base
        return State(state.step + 1, unravel(theta), particles, log_weights, base, after), info

    def _look(
        self, key, model: Model, theta: Tree, num: int, memory: Memory
    ) -> tuple[list[Pass], Array, legs.Noise | None]:
        """The passes of a step, how many of them count, and the noise of legs."""
        climbing, here = memory.phase < MEASURING, memory.here
        if memory.path is None:
            few = memory.phase <= APPROACHING
            # Along a flow second derivatives have little noise: every other measurement will do.
            flows = group_points.flows(model, memory.trial)
            every = 2 if flows and self.num_measurements % 2 == 0 else 1
            curved = jnp.where(memory.sums.number % every == 0, group_points.CURVATURE_BLOCKS, 0)
            some = jnp.where(memory.phase == LOOKING, 0, group_points.climb_blocks(model))
            shares = num, True, few, jnp.where(climbing, some, curved), ~climbing
            seen = group_points.look(key, model, theta, here.modes, *shares)
            if flows:
                measured = group_points.with_metric(seen, here.complete, every)
                seen = trees.select(climbing, seen, measured)
            return [seen], jnp.ones((), jnp.int32), None
        left = self._enough(memory) - memory.sums.number
        number = jnp.where(climbing, 1, jnp.clip(left, 1, legs.LEGS_AT_ONCE))
        where = key, model, theta, here.modes, num
        near = newton.is_near(memory.taken)
        passes, noise = legs.look(*where, memory.path, here.complete, number, near)
        return passes, number, noise

    def _climb(self, memory: Memory, seen: Pass, accepted, theta, rise, so_far) -> Memory:
        """Where to look next: from the trial if it was accepted, else from theta, less far."""
        here = trees.select(accepted, here_of(seen), memory.here)
        theta = jnp.where(accepted, memory.trial, theta)
        last = memory.taken, memory.foreseen, rise, accepted
        before = memory.longest, memory.damping, memory.relaxation
        longest, damping = newton.trust(*before, *last)
        one_more = memory.rejected + jnp.where(memory.rejected < 0, -1, 1)
        rejected = jnp.where(accepted, 0, one_more).astype(jnp.int32)
        known = here.score, here.complete, here.missing
        few = memory.path is None and here.modes.shape[1] > points.LATTICE_UP_TO
        step = newton.newton_step(theta, *known, damping, longest, few)
        gained = jnp.where(memory.rejected < 0, jnp.inf, rise)
        pace = newton.next_pace(memory.pace, jnp.where(accepted, gained, 0.0))
        short = self._has_arrived(memory, step)
        arrived = accepted & (short | newton.stands_still(pace))
        ends = arrived | (jnp.abs(rejected) > MAX_REJECTED) | (so_far >= MAX_CLIMB)
        first = memory.phase == APPROACHING
        # By points a short step is no noise, and is taken.
        goes_on = arrived & (first | (short & step.regular & (memory.path is None)))
        # With all points log p is another: there is nothing yet to compare a trial with.
        next_phase, none_yet = jnp.where(first, CLIMBING, MEASURING), jnp.where(first, -1, 0)
        return memory._replace(
            phase=jnp.where(ends, next_phase, memory.phase).astype(jnp.int32),
            trial=jnp.where(ends & ~goes_on, theta, theta + step.step),
            taken=step.taken,
            foreseen=jnp.where(ends, 0.0, step.rise),
            longest=longest,
            damping=damping,
            rejected=jnp.where(ends, none_yet, rejected).astype(jnp.int32),
            pace=pace,
            here=here,
        )

    @staticmethod
    def _has_arrived(memory: Memory, step: newton.Step) -> Bool[Array, ""]:
        """The next step is not worth taking, or it is noise."""
        if memory.path is None:
            regular = step.regular & (step.length < SHRUNK * memory.taken)
            shortest = jnp.where(regular, SHORT, SHORTEST)
            return step.length < jnp.where(memory.phase == APPROACHING, NEAR_ENOUGH, shortest)
        # Two passes of legs with a whole step between them can tell.
        whole = (memory.path.num_temperatures > 0) & (memory.foreseen > 0) & (memory.rejected == 0)
        short = step.length < SHORTEST_BY_LEGS * step.step.size**0.5
        return short | (whole & newton.is_noise(step.length, memory.taken))

    def _measure(self, model: Model, memory: Memory, passes: list[Pass], number) -> Memory:
        """Some measurements more; one that is not finite would spoil all of them.

        Every so many of them it is seen whether log p is known well enough.
        """
        sums = memory.sums
        for k, seen in enumerate(passes):
            counts = _is_finite(seen) & (k < number)
            sums = trees.select(counts, group_points.added(sums, memory.here.log_p, seen), sums)
        variance = group_points.relative_variance(
            jnp.maximum(sums.number, 2), sums.ratio, sums.ratio_square
        )
        variance = counted(model, counted(model, variance))
        known = jnp.sqrt(jnp.sum(variance)) < group_points.error_aimed_at(model)
        known = known & (sums.number % self.num_measurements == 0)
        done = (sums.number > memory.sums.number) & (known | (sums.number >= self._enough(memory)))
        phase = jnp.where(done, DONE, MEASURING).astype(jnp.int32)
        failed = memory.rejected + (sums.number == memory.sums.number)
        return memory._replace(phase=phase, sums=sums, rejected=failed.astype(jnp.int32))

    def _enough(self, memory: Memory) -> Int[Array, ""] | int:
        """The most measurements."""
        if memory.path is None:
            return group_points.MOST_ROUNDS * self.num_measurements
        # Legs are as long as they need to be; those of a Gaussian are all alike.
        is_gaussian = memory.path.num_temperatures == legs.FEWEST
        return jnp.where(is_gaussian, legs.LEGS_AT_ONCE, self.num_measurements)

    def measurement(self, state: State) -> Measurement | None:
        memory, here = state.memory, state.memory.here
        of_here = here.log_p, memory.trial, here.modes, state.log_weights, here.laplace
        seen, path = group_points.measured(memory.sums, *of_here), memory.path
        return seen if path is None else seen._replace(num_temperatures=int(path.num_temperatures))


def by_legs(model: Model) -> bool:
    """Too many latents a group for points."""
    return trees.size(model.latent) > points.LATENTS_UP_TO


def _with_legs(memory: Memory, noise: legs.Noise, of_log_p: float, of_score: float) -> Memory:
    """Where a climb on Laplace's approximation ends, one on log p begins from there.

    Where that ends, the legs of the measurements are longer, and more of their particles compared,
    if the noise of the last was more than may be of log p, or of the score.
    """
    path, ends = memory.path, memory.phase == MEASURING
    assert path is not None
    begins, climbed = ends & (path.num_temperatures == 0), memory.sums.number == 0
    short = leg.NUM_TEMPERATURES
    longer = jnp.clip(short * noise.spread / of_log_p, short, LONGEST_LEG).astype(jnp.int32)
    longer = jnp.where(noise.spread < legs.NO_SPREAD, legs.FEWEST, longer)
    more = jnp.clip(jnp.ceil(noise.score / of_score), 1, leg.NUM_PARTICLES).astype(jnp.int32)
    one, usual = jnp.ones_like(more), jnp.full_like(longer, short)
    path = trees.select(ends & climbed, leg.Path(longer, more), path)
    path = trees.select(begins, leg.Path(usual, one), path)
    return memory._replace(
        phase=jnp.where(begins, CLIMBING, memory.phase).astype(jnp.int32),
        foreseen=jnp.where(begins, 0.0, memory.foreseen),
        rejected=jnp.where(begins, -1, memory.rejected),
        path=path,
    )


def _measured_again(memory: Memory, theta: Float[Array, " P"], seen: Pass) -> Memory:
    """The noise of a climb by legs may end it too far from where the measurements see the maximum.

    Then they are taken again there, at `theta`; `seen` is the first of the old ones.
    """
    none = jax.tree.map(jnp.zeros_like, memory.sums)
    return memory._replace(
        phase=jnp.full_like(memory.phase, MEASURING),
        trial=theta,
        here=here_of(seen),
        sums=none._replace(log_weights=jnp.full_like(none.log_weights, -jnp.inf)),
        moves=memory.moves + 1,
    )


def _is_finite(seen: Pass) -> Bool[Array, ""]:
    parts = (seen.log_p, seen.score, seen.complete, seen.missing)
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts]))


def _as_latents(model: Model, vectors: Float[Array, "G N D"]) -> Tree:
    _, unravel = ravel_latent(model)
    return jax.vmap(jax.vmap(unravel))(vectors)
