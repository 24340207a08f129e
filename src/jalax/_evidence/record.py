"""The numbers of a fit, below everything that shows them or computes more from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jalax._evidence.log_evidence import Evidence
from jalax._evidence.uncertainty import Uncertainty
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import Start, State, Status
from jalax._particles import numbers, trees, weight_math
from jalax._particles.trees import Tree
from jalax._runtime.arrays import as_array
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, Program


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a fit was made of; not saved to files."""

    model: Model
    algorithm: Algorithm
    key: jax.Array
    start: Start | None  # None: the fit went on from a state
    theta_0: Tree
    theta_path: Tree  # theta_1, ..., theta_K as the optimiser sees them; None: not all were kept
    fit_key: jax.Array | None = None  # the user's own; None: one of many fits


@dataclasses.dataclass(frozen=True)
class SavedState:
    """The leaves of a state read from a file; `fit(..., state=...)` finds their structure."""

    names: list[str]
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Maxima:
    """Where the fits of `restarts=` ended, the highest first.

    Attributes:
        theta: (M, P): the numbers of theta of M maxima, on the user's scale.
        log_evidence: (M,): log p there.
        error: (M,): its standard error.
        num_starts: (M,): how many starts led there.
        num_lost: starts that led to no maximum.
    """

    theta: np.ndarray
    log_evidence: np.ndarray
    error: np.ndarray
    num_starts: np.ndarray
    num_lost: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FitRecord:
    """What `FitResult` is made of, and what follows from it without another computation."""

    theta: Tree
    particles: Tree
    log_weights: jax.Array
    history: dict[str, Any]
    status: Status
    message: str
    state: State | SavedState
    algorithm: str
    num_steps: int
    seconds: float
    path_value: float | None  # the evidence carried along the path; None: there is none
    relative: bool  # ... relative to that at theta_0, which the start did not know
    evidence_reason: str  # why path_log_evidence is None
    free: Tree = None  # theta on the optimiser's scale
    origin: Any = None  # the model, algorithm and start in memory; None when read from a file
    saved_evidence: Evidence | None = None  # of the finish, or read from a file
    saved_uncertainty: Uncertainty | None = None
    choice: str = ""  # why this algorithm, where fit chose it
    labels: tuple[str, ...] | None = None  # names for the numbers of theta, where the model has any
    maxima: Maxima | None = None  # of a fit with restarts

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each number of theta."""
        return numbers.names_of(self.theta) if self.labels is None else self.labels

    @property
    def num_parameters(self) -> int:
        """How many numbers of theta were estimated."""
        return trees.size(self.free)

    @property
    def is_held(self) -> np.ndarray:
        """For each number of theta whether `fixed=` held it, as far as is known."""
        known = self.known_uncertainty
        if known is None:
            return np.zeros(len(self.names), bool)
        return np.logical_not(known.jacobian.any(axis=1))

    @property
    def weights(self) -> jax.Array:
        """Normalised weights, summing to one over the particles (of each group)."""
        return weight_math.normalise(self.log_weights)

    @property
    def ess(self) -> jax.Array:
        """Effective sample size of the particles (of each group)."""
        return _ess(self.log_weights)

    @property
    def followed_a_path(self) -> bool:
        """Its particles were moved along with theta, and were not found anew at each."""
        return self.origin is None or not self.origin.algorithm.finds_its_particles

    @property
    def gradient_bias(self) -> float:
        """sqrt(G) / N: about how far weights of N particles take theta off, in standard errors.

        Each of G groups is off by about 1/N of its own scale, in the same direction, and a
        standard error is sqrt(G) of these. The scoring steps at the end of an automatic
        JALA-EM, with more and fresh particles, take it out again. Scoring's points are no random
        draws, and nearer.
        """
        groups = self.log_weights.shape[0] if self.log_weights.ndim == 2 else 1
        return float(np.sqrt(groups) / self.log_weights.shape[-1])

    @property
    def path_error(self) -> float:
        """A rough standard error of `path_log_evidence`, without its bias; 0 where not known."""
        errors = self.history.get("log_evidence_error", ())
        return float(errors[-1]) if len(errors) else 0.0

    @property
    def known_evidence(self) -> Evidence | None:
        """The fresh evidence if it was ever estimated: a summary must not start a computation."""
        return self.__dict__.get("evidence", self.saved_evidence)

    @property
    def known_uncertainty(self) -> Uncertainty | None:
        """The errors of theta if they were ever computed."""
        return self.__dict__.get("uncertainty", self.saved_uncertainty)

    def wald_intervals(self, known: Uncertainty, level: float) -> Tree:
        """See `FitResult.confidence_intervals`."""
        from scipy.special import ndtri

        q = float(ndtri(0.5 + level / 2))
        each_by_itself = np.count_nonzero(known.jacobian) <= len(known.names)
        if self.origin is None or not each_by_itself:
            errors = known.errors(known.covariance)
            middle = trees.numbers_of(self.theta)
            low, high = middle - q * errors, middle + q * errors
        else:
            errors = np.sqrt(np.diagonal(known.covariance))
            middle = trees.numbers_of(self.free)

            def mapped(t):
                theta = self.origin.model.constrained(trees.with_numbers(self.free, t))
                return trees.numbers_of(theta)

            ends = mapped(middle - q * errors), mapped(middle + q * errors)
            low, high = np.minimum(*ends), np.maximum(*ends)
            low[self.is_held] = high[self.is_held] = np.nan
        return jax.tree.map(
            lambda a, b: as_array(np.stack([a, b], axis=-1)),
            self.like_theta(low),
            self.like_theta(high),
        )

    def like_theta(self, numbers: np.ndarray) -> Tree:
        return trees.with_numbers(self.theta, numbers)


def _ess_of(log_weights: jax.Array) -> jax.Array:
    return weight_math.effective_sample_size(weight_math.normalise(log_weights))


_ess = Program(_ess_of, small=LEVEL_0_OLD_EMITTERS, large={})


@dataclasses.dataclass(frozen=True)
class Row:
    """One model of a comparison; evidences are natural logarithms."""

    name: str
    log_evidence: float
    error: float
    difference: float  # to the best, which has 0: minus the log Bayes factor of the best over it
    difference_error: float
    num_theta: int
    ess: float
    k_hat: float
    probability: float | None
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ComparisonRecord:
    """What `Comparison` is made of."""

    rows: tuple[Row, ...]
    kind: str
    note: str


def is_unsure(record: FitRecord) -> bool:
    """Whether white latents may do better, where a model can have them: see `Model.whitened`."""
    known = record.saved_uncertainty
    return record.status == Status.MAX_STEPS or (known is not None and known.is_unsure(record.free))
