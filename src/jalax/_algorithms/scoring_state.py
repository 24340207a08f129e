"""What Scoring remembers from one step to the next."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

from jalax._algorithms import newton
from jalax._reference import leg
from jalax._reference.group_points import Pass, Sums

APPROACHING, CLIMBING, MEASURING, DONE = range(4)
LOOKING = -1  # as when approaching, but for the modes and log p alone


class Here(NamedTuple):
    """What was seen at the theta of the state, with the shifts of the climb."""

    modes: Float[Array, "G D"]
    log_p: Float[Array, " G"]
    score: Float[Array, " P"]
    complete: Float[Array, "P P"]
    missing: Float[Array, "P P"]
    laplace: Float[Array, " G"]


class Memory(NamedTuple):
    phase: Int[Array, ""]
    shifts: UInt32[Array, " K"]  # of the climb: the data of their key
    trial: Float[Array, " P"]  # theta of the next pass
    taken: Float[Array, ""]  # standard errors to there
    foreseen: Float[Array, ""]  # by how much log p should rise there
    longest: Float[Array, ""]  # standard errors that theta may move in a step
    damping: Float[Array, ""]
    relaxation: Float[Array, ""]  # by which damping is divided after a step that was accepted
    rejected: Int[Array, ""]  # trials in a row; below 0: there was nothing to compare them with
    pace: newton.Pace
    here: Here
    sums: Sums  # of the measurements, relative to `here`
    moves: Int[Array, ""]  # to where measurements saw the maximum, to measure there
    path: leg.Path | None  # of the legs; None: log p is measured by points


class ScoringInfo(NamedTuple):
    """`Info`, and the phase."""

    log_evidence: Float[Array, ""]
    ess: Float[Array, ""]
    mean_log_joint: Float[Array, ""]
    grad_norm: Float[Array, ""]
    resampled: Bool[Array, ""]
    dead: Int[Array, ""]
    phase: Int[Array, ""]


def here_of(seen: Pass) -> Here:
    return Here(*(getattr(seen, name) for name in Here._fields))
