"""Which algorithm a fit takes where the user names none, and whether it was the right one."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import numpy as np

from jalax._algorithms.jala_em import JALAEM
from jalax._algorithms.scoring import Scoring
from jalax._algorithms.scoring_state import Memory
from jalax._evidence import measured
from jalax._evidence.record import SavedState
from jalax._evidence.uncertainty import Finished
from jalax._fit import loop
from jalax._fit.callbacks import Run
from jalax._fit.driver import is_done
from jalax._fit.second_modes import second_modes
from jalax._model import information
from jalax._model.algorithm import Algorithm
from jalax._model.frequencies import check_route
from jalax._model.model import Model
from jalax._model.types import Start, State, Status
from jalax._particles import trees
from jalax._particles.langevin import InverseHessian
from jalax._particles.trees import Tree
from jalax._reference import legs
from jalax._reference.pattern import warn_of_many
from jalax._reference.points import LATENTS_UP_TO
from jalax._runtime import arguments
from jalax._runtime.options import adam

# A second climb: as slow as EM at first, and nearly Newton's after a hundred steps.
CAREFUL = Scoring(damping=1.0, relaxation=1.07)


# Of a theta that is trained by held-out log p.
STEP_SIZE, RATE = 0.3, 1e-3  # the rate is only where a pilot begins
GROUPS_A_STEP = 64
WAITING, MOVES = 4, 3  # of groups that wait for so many steps, particles move so often
SHARE, FEWEST, MOST = 5, 10, 500  # a fifth of the groups is held out, so many at least and most


class Choice(NamedTuple):
    algorithm: Algorithm
    reason: str  #: for the summary; "" where the user chose
    trains: bool = False  #: by held-out log p, because theta is so large

    @property
    def is_ours(self) -> bool:
        return bool(self.reason)


def choose(
    given: Algorithm | None,
    model: Model,
    theta: Tree,
    start: Start | None = None,
    num_particles: int | None = None,
    state: State | SavedState | None = None,
    saved: str | None = None,
) -> Choice:
    """What the user gave; else Scoring where it suits, else JALA-EM, trained if theta is large.

    `saved` is the name of the algorithm in the fit's checkpoint. A fit that goes on from there, or
    from a state, goes on with the algorithm it had.
    """
    if given is not None:
        if not (isinstance(given, Scoring) and trees.size(model.latent) <= LATENTS_UP_TO):
            check_route(model, f"{type(given).__name__} was asked for")
        return Choice(checked(given), "")
    if is_trained(model, theta):
        reason = f"because theta has {trees.size(theta):,} numbers"
        return Choice(for_large_theta(model).canonical(), reason, trains=True)
    if saved == JALAEM.__name__:
        return Choice(JALAEM().canonical(), "as in its checkpoint")
    if state is not None and not _is_of_scoring(state):
        return Choice(JALAEM().canonical(), "as in its state")
    reason = why_not_scoring(model, theta, start, num_particles)
    if reason or trees.size(model.latent) > LATENTS_UP_TO:
        check_route(model, reason.removeprefix("because ") or "a group has many latents")
    if reason:
        warn_of_many(model, stacklevel=3)
        return Choice(JALAEM().canonical(), reason)
    return Choice(Scoring().canonical(), f"because {_sizes(model)}")


def count_held_out(count: int) -> int:
    """A fifth of the groups, none where there are few."""
    return int(np.clip(count // SHARE, FEWEST, MOST)) if count >= 3 * FEWEST else 0


def is_trained(model: Model, theta: Tree) -> bool:
    """theta is too large for the information about it, and there are groups to hold out."""
    alone = model.layout is None and model.frequencies is None
    return model.grouped and alone and not information.fits(theta)


def for_large_theta(model: Model) -> JALAEM:
    """Nothing that would need the information, or hold theta back.

    A step visits no more groups than there are beside those that are held out.
    """
    visited = model.num_groups - count_held_out(model.num_groups)
    return JALAEM(
        step_size=STEP_SIZE,
        preconditioner=InverseHessian(),
        optimizer=adam(RATE),
        minibatch=min(GROUPS_A_STEP, visited),
        moves=MOVES if visited > WAITING * GROUPS_A_STEP else 1,
    )


def checked(given: Any) -> Algorithm:
    if not isinstance(given, Algorithm):
        raise TypeError(
            f"algorithm must be an object such as jalax.JALAEM(step_size=...), got {given!r}."
        )
    return given.canonical()


def default_of(name: str, theta: Tree) -> list[Algorithm]:
    """The algorithms of that name that a fit chooses by itself, as a fit from theta has them."""
    ours: tuple[Algorithm, ...] = (Scoring(), CAREFUL, JALAEM())
    return [one.filled(theta).canonical() for one in ours if type(one).__name__ == name]


def why_not_scoring(
    model: Model, theta: Tree, start: Start | None, num_particles: int | None
) -> str:
    if start is not None:
        return "because a start was given, and Scoring has none"
    if num_particles is not None and not Scoring.can_have(num_particles):
        return f"because Scoring has a power of two points, and num_particles is {num_particles}"
    reason = Scoring.unsuitable(model) or Scoring.too_many(theta)
    reason = reason or legs.too_many(model, theta)
    return f"because {reason}" if reason else ""


class Verdict(NamedTuple):
    """What to think of the end of a fit whose algorithm was chosen here."""

    done: Finished | None = None  #: its end, if it is a good one
    doubt: str = ""  #: why it is to be fitted again
    theta: Tree = None  #: and from where
    careful: bool = False  #: by the same algorithm with shorter steps, else by another
    white: Model | None = None  #: or with standard normal latents
    modes: np.ndarray | None = None  #: or from these modes of the latents


def judged(run: Run, status: Status, choice: Choice, limited: bool) -> Verdict:
    """Whether the points of Scoring are to be trusted, and where they led.

    `limited`: the user said how many steps to take at most.
    """
    verdict = _judged(run, status, choice, limited)
    by_scoring = verdict.white is not None or verdict.careful
    if verdict.doubt and not by_scoring and run.model.frequencies is not None:
        return Verdict()  # JALA-EM cannot go on: what there is says itself how good it is
    return verdict


def _judged(run: Run, status: Status, choice: Choice, limited: bool) -> Verdict:
    if not choice.is_ours or not isinstance(run.algorithm, Scoring):
        return Verdict()
    first = float(run.algorithm.damping) < CAREFUL.damping
    white = None if limited else run.model.whitened()
    if status == Status.DIVERGED:
        return Verdict(None, "Scoring's points had no finite density", run.theta_0)
    if not bool(is_done(run)):
        if limited or status != Status.MAX_STEPS:
            return Verdict()
        doubt = f"Scoring had not settled after {run.step} steps"
        return Verdict(None, doubt, run.theta_0, first, white)
    seen = run.algorithm.measurement(run.state)
    assert seen is not None
    end = measured.finished(run.model, run.state.theta, seen)
    if seen.num_temperatures > 1:  # nobody else does better on many latents
        return Verdict(end)
    if not end.settled:
        doubt = "Scoring stopped where the likelihood still rises"
        return Verdict(None, doubt, run.theta_0, first, white)
    if white is not None and end.uncertainty.is_unsure(run.state.theta):
        return Verdict(None, "Scoring came near a boundary", run.theta_0, white=white)
    if first and measured.is_lost(seen):
        doubt = "Scoring came to where no information about theta is left"
        return Verdict(None, doubt, run.theta_0, careful=True)
    if end.evidence.messages:
        return Verdict(None, measured.what_is_wrong(end.evidence), run.state.theta)
    return Verdict(end)


def looked_again(run: Run, verdict: Verdict, capacity: int, climbs: bool) -> Verdict:
    """Once the points are trusted: whether the latents have a mode that these did not see.

    `climbs`: the fit may go on from a heavier one.
    """
    end = verdict.done
    if end is None or run.state.memory.path is not None:
        return verdict

    def one_step(state: State) -> State:
        one, program = np.ones((), np.int32), loop.run_chunk
        return program(run.key, run.algorithm, run.model, state, one, capacity=capacity).state

    if not (found := second_modes(run.model, run.state, end.evidence.error, one_step)):
        return verdict
    if found.outweigh and climbs:
        doubt = "the latents have a second mode, and it outweighs the first"
        return Verdict(None, doubt, run.state.theta, modes=found.modes)
    warnings.warn(f"log_evidence: {found.words}.", stacklevel=arguments.level_of_user())
    evidence = dataclasses.replace(end.evidence, messages=(found.words,))
    return verdict._replace(done=end._replace(evidence=evidence))


def again(verdict: Verdict, before: Choice) -> Choice:
    if verdict.white is not None:
        reason = f"{before.reason}; a second climb with standard normal latents"
        return Choice(Scoring().canonical(), f"{reason}, because {verdict.doubt}")
    if verdict.modes is not None:
        reason = f"{before.reason}; a second climb from other modes, because {verdict.doubt}"
        return Choice(before.algorithm, reason)
    if verdict.careful:
        reason = f"{before.reason}; a second climb with shorter steps, because {verdict.doubt}"
        return Choice(CAREFUL.canonical(), reason)
    return Choice(JALAEM().canonical(), f"because {verdict.doubt}")


def _is_of_scoring(state: Any) -> bool:
    if isinstance(state, SavedState):
        return "state.memory.trial" in state.names
    return isinstance(state, State) and isinstance(state.memory, Memory)


def _sizes(model: Model) -> str:
    latents = trees.size(model.latent)
    what = "1 latent" if latents == 1 else f"{latents} latents"
    if not model.grouped:
        return f"the model has {what}"
    return f"{model.num_groups:,} groups have {what} each"
