"""`Algorithm`: all that the loop, the drivers and the result ask of an algorithm.

Three methods make an algorithm: `check`, `init` and `step`. Everything else has a default that
suits one which knows nothing about it. A driver asks through these members only, so that an
algorithm behind a wrapper that forwards them is the same algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jalax._model.model import Model
from jalax._model.types import Cloud, State
from jalax._particles.trees import Tree
from jalax._runtime.compilation import Workload
from jalax._runtime.options import canonical

AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm")


class PathEvidence(NamedTuple):
    """What is known of the evidence that the weights of a state carry along the path."""

    relative: Bool[Array, ""]  #: to that at theta_0, which the start did not know
    outside: Int[Array, ""]  #: moves that ended where log_joint is -inf: these spoil it
    retries: Int[Array, ""]  #: times the fit went back to a good state: so do these


class ScoringSteps(NamedTuple):
    """How a fit is finished by scoring steps with fresh particles."""

    fraction: float  #: of a standard error that theta's simulation error may be
    project: Callable[[Tree], Tree] | None  #: of theta onto its constraints


class Measurement(NamedTuple):
    """The likelihood and its derivatives at the last theta, on the host, by one who measures them.

    In float64, but for the modes and weights, which have the precision of the model.
    """

    theta: np.ndarray  #: (P,): where they were measured
    modes: np.ndarray  #: (G, D): of the latents of each group, there
    groups: np.ndarray  #: (G,): log of the mean of Z over the measurements
    variance: np.ndarray  #: (G,): of that mean, relative to its square
    num_measured: int
    score: np.ndarray  #: (P,): the mean over the measurements
    noise: np.ndarray  #: (P, P): its covariance
    complete: np.ndarray  #: (P, P): I_c of `information.py`
    missing: np.ndarray  #: (P, P): M
    log_weights: np.ndarray  #: (G, N): of the points of one measurement
    pooled: np.ndarray  #: (K, M): of some points of several, those of each group of mean one
    laplace: float  #: log p by Laplace's approximation
    num_temperatures: int = 1  #: of the legs by which it was measured; 1: by points


@runtime_checkable
class FixedPath(Protocol):
    """An algorithm whose theta follows a path given in advance, for `FitResult.replay`.

    One of several clouds leads: `plan` sees it alone, and `advance` moves and weighs all of them
    by what was planned, which for the others is fixed in advance.
    """

    def init(self, key: Key[Array, ""], model: Model, theta: Tree, cloud: Cloud) -> State: ...

    def plan(self, model: Model, state: State) -> Any: ...

    def advance(
        self, key: Key[Array, ""], model: Model, state: State, change: Any
    ) -> tuple[State, Any]: ...

    def path_evidence(self, state: State) -> PathEvidence | None: ...


class Algorithm(Workload):
    """The base class of every algorithm: a frozen dataclass, registered as a pytree."""

    #: The weights say something about the evidence; without them `FitResult` has none.
    gives_evidence = False
    #: The fewest particles it works with.
    min_particles = 2
    #: It finds its own points: a start would be drawn for nothing.
    finds_its_particles = False
    #: The names of its phases, if `Info` has a `phase`, a number that counts them from 0.
    phases: tuple[str, ...] = ()

    # --- what makes it an algorithm -----------------------------------------------------------

    def check(self, model: Model) -> None:
        """Raise a sentence the user can act on if the options do not fit the model."""

    def init(self, key: Key[Array, ""], model: Model, theta: Tree, cloud: Cloud) -> State:
        """The state of step 0."""
        raise NotImplementedError

    def step(self, key: Key[Array, ""], model: Model, state: State) -> tuple[State, Any]:
        """One step, pure, and its `Info`, or a NamedTuple that begins like it and reports more."""
        raise NotImplementedError

    # --- before the first step ----------------------------------------------------------------

    def canonical(self: AnyAlgorithm) -> AnyAlgorithm:
        """With arrays for numbers and comparable functions, fit to pass through jit and vmap."""
        return canonical(self)

    def filled(self: AnyAlgorithm, theta: Tree) -> AnyAlgorithm:
        """With an object for every option that depends on theta and was left out."""
        return self

    def check_theta(self, theta: Tree) -> None:
        """Raise a sentence if the options do not fit the start value."""

    def prepared(self, model: Model, theta: Tree) -> Model:
        """The model with what its programs take from the host, such as the plan of its Hessian."""
        return model

    @property
    def stops_by_itself(self) -> bool:
        """`is_done` becomes true at some step: a fit need not be told how many steps to take."""
        return False

    def default_particles(self, model: Model) -> int:
        """N, where neither the user nor the start says it."""
        return 100

    @property
    def fixed_particles(self) -> dict[str, int]:
        """N as options fix it, by the option's name; {} where they do not."""
        return {}

    # --- while it runs --------------------------------------------------------------------------

    def steps_at_once(self, model: Model) -> int | None:
        """The most steps between two looks of the callbacks, where one takes long; None: any."""
        return None

    def is_done(self, state: State) -> Bool[Array, ""]:
        """The loop may stop."""
        return jnp.zeros((), bool)

    def after_failure(self, state: State, failed: Bool[Array, ""]) -> State | None:
        """A state to go on from, where `failed` holds, after a step without a living particle.

        `state` is the last good one. None: there is nothing to try, and the fit has diverged.
        """
        return None

    def advice(self, retries: int) -> str:
        """What a user may try when the fit diverges, after so many times of `after_failure`."""
        return (
            f"Try a smaller {type(self).__name__}.step_size or learning rate, a preconditioner, or "
            "a start nearer to the posterior"
        )

    @property
    def records_evidence(self) -> bool:
        """`Info.log_evidence` is that of all groups at the theta of the step."""
        return self.gives_evidence

    @property
    def resampling_threshold(self) -> float:
        """The share of N below which a group's ESS makes it resample; 0: it never does."""
        return 0.0

    # --- after the last step --------------------------------------------------------------------

    def complete(self, model: Model, state: State) -> State:
        """The state with every group weighed at its theta, where steps visit only some."""
        return state

    def estimate(self, state: State) -> Tree:
        """theta as it is reported."""
        return state.theta

    def drift(self, state: State) -> Float[Array, " P"] | None:
        """Where the ravelled theta has been moving of late; None: not known."""
        return None

    @property
    def scoring_steps(self) -> ScoringSteps | None:
        """How the fit is finished; None: with its last step."""
        return None

    def measurement(self, state: State) -> Measurement | None:
        """The likelihood at the last theta, where the algorithm has measured it itself."""
        return None

    def path_evidence(self, state: State) -> PathEvidence | None:
        """What is known of the evidence that the weights carry; None: they carry none."""
        return None

    def without_path_evidence(self) -> str:
        """Why the weights of this algorithm, with these options, carry none; "" if they do."""
        if self.gives_evidence:
            return ""
        name = type(self).__name__
        return f"{name} gives no evidence: its particles have no weights. Use jalax.JALAEM."

    def fixed_path(self, path: Tree, state: State) -> FixedPath | None:
        """Itself along theta_1, ..., theta_K, with what it had tuned in its last `state`."""
        return None

    # --- for `_runtime.compilation` -------------------------------------------------------------

    def is_short(self) -> bool:
        """One that stops by itself does so before its loop runs longer than it compiles."""
        return self.stops_by_itself
