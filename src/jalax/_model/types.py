"""The types that pass between a start, an algorithm, the loop and the result.

Inside jalax particles are always (G, N, ...), log-weights (G, N): G independent groups of N
particles. A plain `Model` is G = 1, and loses that axis again in `FitResult`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from jalax._model.model import Model
from jalax._particles import weight_math
from jalax._particles.trees import Tree


class Cloud(NamedTuple):
    """Weighted particles for the posterior at theta_0: what a start hands to an algorithm."""

    particles: Tree
    log_weights: Float[Array, "G N"]
    log_evidence: Float[Array, " G"] | None  # None: the evidence is relative to the start
    log_evidence_error: Float[Array, " G"] | None = None
    k_hat: Float[Array, " G"] | None = None  # Pareto k-hat of the weights, see `pareto.py`

    @property
    def ess(self) -> Float[Array, " G"]:
        return weight_math.effective_sample_size(weight_math.normalise(self.log_weights))


class State(NamedTuple):
    """Everything a run needs to go on; evidence = log_evidence_base + log mean e^log_weights."""

    step: Int[Array, ""]
    theta: Tree
    particles: Tree
    log_weights: Float[Array, "G N"]
    log_evidence_base: Float[Array, " G"]
    memory: Any  #: private to the algorithm


class Info(NamedTuple):
    """What one step reports: scalars, stacked into `FitResult.history`; algorithms may add some."""

    log_evidence: Float[Array, ""]  #: of the path, relative to the start's; NaN where none
    ess: Float[Array, ""]  #: lowest over the groups, before resampling; 0 ends a fit: nobody lives
    mean_log_joint: Float[Array, ""]
    grad_norm: Float[Array, ""]
    resampled: Bool[Array, ""]
    dead: Int[Array, ""]  #: particles that became non-finite in this step


@runtime_checkable
class Start(Protocol):
    """Draws the particles of step 0."""

    def __call__(
        self, key: Key[Array, ""], model: Model, theta: Tree, num_particles: int
    ) -> Cloud: ...


class Status(StrEnum):
    """How a fit ended."""

    CONVERGED = "converged"  #: theta is known to a fraction of its standard error
    BOUNDARY = "boundary"  #: the same, but a direction of theta has no maximum
    MAX_STEPS = "max_steps"  #: all the steps asked for were done
    STOPPED = "stopped"  #: a callback asked for it
    TIME_LIMIT = "time_limit"  #: `jalax.time_limit` asked for it
    INTERRUPTED = "interrupted"  #: Ctrl-C; the result holds everything up to there
    DIVERGED = "diverged"  #: every particle of a group, or theta, became non-finite


ARRIVED = (Status.CONVERGED, Status.BOUNDARY)  # theta is where it should be
