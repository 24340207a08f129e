"""The options of JALA-EM: defaults, checks, and what the drivers ask. Its steps: `jala_em.py`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jalax._algorithms import minibatches
from jalax._algorithms.step_size import PilotStep
from jalax._algorithms.theta_step import (
    DONE,
    PHASES,
    Averaging,
    FollowPath,
    Limiter,
    ObservedInformation,
)
from jalax._algorithms.weight_rules import ClippedWeights, ExactWeights, TemperedWeights
from jalax._model import information
from jalax._model.algorithm import Algorithm, PathEvidence, ScoringSteps
from jalax._model.checks import check_projection
from jalax._model.model import Model
from jalax._model.types import State
from jalax._particles import langevin
from jalax._particles.langevin import InverseHessian, Unadjusted
from jalax._particles.resampling import check_scheme, systematic
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import Jit
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.options import Optax, check_optimizer, require_positive

AnyOptions = TypeVar("AnyOptions", bound="JALAEMOptions")
TOLERANCE = 0.05  # of a standard error: how well theta is known when the fit ends


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Shift:
    """The particles move with theta, by the shift of the posterior's mean (times `fraction`).

    `Shift(0.0)` switches it off. Proposition 1 holds for any shift fixed in advance.
    """

    fraction: float = dataclasses.field(default=1.0, metadata={"static": True})


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class JALAEMOptions(Algorithm):
    """The fields of `JALAEM`, which documents them."""

    step_size: Any = None
    optimizer: Any = None
    preconditioner: Any = None
    resample_below: float = 0.5
    resample: Callable = dataclasses.field(default=systematic, metadata={"static": True})
    weights: Any = dataclasses.field(default_factory=ExactWeights)
    project: Callable[[Tree], Tree] | None = dataclasses.field(
        default=None, metadata={"static": True}
    )
    shift: Any = None
    limiter: Any = None
    averaging: Any = None
    minibatch: int | None = dataclasses.field(default=None, metadata={"static": True})
    moves: int = dataclasses.field(default=1, metadata={"static": True})
    kernel: Any = dataclasses.field(default_factory=Unadjusted)

    gives_evidence = True

    @property
    def automatic(self) -> bool:
        return self.step_size is None or hasattr(self.step_size, "tune")

    @property
    def stops_by_itself(self) -> bool:
        return self.automatic

    @property
    def phases(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.averaging is None else PHASES

    def default_particles(self, model: Model) -> int:
        if not self.automatic:
            return super().default_particles(model)
        # The weighted gradient of G groups is off by about sqrt(G) / N standard errors.
        return max(
            int(np.clip(200_000 // model.num_groups, 100, 500)), math.isqrt(model.num_groups)
        )

    def filled(self: AnyOptions, theta: Tree) -> AnyOptions:
        """With an object in the place of every option left out."""
        choices: dict[str, Any]
        if self.automatic:
            choices = {
                "step_size": PilotStep(),
                "optimizer": ObservedInformation() if information.fits(theta) else _adam(),
                "preconditioner": InverseHessian(),
                "shift": Shift(),
                "limiter": Limiter(),
                # A minibatch is soon near enough for the scoring steps of all groups to end it.
                "averaging": Averaging(tolerance=TOLERANCE if self.minibatch is None else 1.0),
            }
        else:
            choices = {"optimizer": _adam(), "shift": Shift(0.0), "limiter": Limiter(cess=0.0)}
        missing = {name: value for name, value in choices.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)

    def check(self, model: Model) -> None:
        langevin.check_kernel("JALAEM.kernel", self.kernel)
        if not self.automatic:
            require_positive("JALAEM.step_size", self.step_size)
            self.kernel.check_step_size("JALAEM.step_size", self.step_size)
        elif hasattr(self.step_size, "check"):
            self.step_size.check()
        below = arguments.check_fraction(
            "JALAEM.resample_below", self.resample_below, "a fraction of the particles,", ends=True
        )
        check_scheme("JALAEM.resample", self.resample)
        if self.project is not None:
            arguments.check_callable("JALAEM.project", self.project, "of theta")
        check_optimizer(self.optimizer)
        if isinstance(self.optimizer, ObservedInformation):
            self.optimizer.check()
        if not isinstance(self.weights, (ExactWeights, TemperedWeights, ClippedWeights)):
            raise TypeError(
                "JALAEM.weights must be jalax.weights.ExactWeights(), "
                "jalax.weights.TemperedWeights(...) or jalax.weights.ClippedWeights(), got "
                f"{self.weights!r}."
            )
        self.weights.check(below)
        for name, kind in (("shift", Shift), ("limiter", Limiter), ("averaging", Averaging)):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, kind):
                raise TypeError(
                    f"JALAEM.{name} must be a jalax.options.{kind.__name__}, got {value!r}."
                )
            if isinstance(value, Shift):
                arguments.check_number("Shift.fraction", value.fraction)
            else:
                value.check()
        langevin.check_preconditioner(model.latent, model.num_groups, self.preconditioner)
        moves = arguments.check_count("JALAEM.moves", self.moves)
        if self.minibatch is not None:
            minibatches.check(self.minibatch, model)
        elif moves > 1:
            raise ValueError("JALAEM.moves goes with minibatch=, the groups that a step visits.")

    def check_theta(self, theta: Tree) -> None:
        if self.project is not None:
            check_projection(self.project, theta)

    # --- what the drivers ask, see `Algorithm` --------------------------------------------------

    def is_done(self, state: State) -> Bool[Array, ""]:
        """theta is known well enough: the loop may stop."""
        phase = state.memory.phase
        return jnp.zeros((), bool) if phase is None else phase.number == DONE

    def after_failure(self, state: State, failed: Bool[Array, ""]) -> State | None:
        """Half the step size, where the fit may choose it."""
        memory, h = state.memory, state.memory.step_size
        if h is None:
            return None
        memory = memory._replace(
            step_size=jnp.where(failed, h / 2, h), retries=memory.retries + failed
        )
        return state._replace(memory=memory)

    def advice(self, retries: int) -> str:
        if not self.automatic:
            return super().advice(retries)
        return (
            f"Going back and halving the step size {retries} times did not help. Try another "
            "theta_0, and look at log_joint there: is it finite for all x, and normalisable?"
        )

    @property
    def records_evidence(self) -> bool:
        return self.weights.exact and self.minibatch is None

    @property
    def resampling_threshold(self) -> float:
        return float(self.resample_below)

    def complete(self, model: Model, state: State) -> State:
        return state if self.minibatch is None else _weighed_to_theta(model, state)

    def estimate(self, state: State) -> Tree:
        """theta averaged since it stopped moving, where it is averaged; else the last one."""
        phase = state.memory.phase
        if phase is None or int(phase.averaged) == 0:
            return state.theta
        return ravel_pytree(state.theta)[1](phase.mean)

    def drift(self, state: State) -> Float[Array, " P"] | None:
        return None if state.memory.phase is None else state.memory.phase.drift

    @property
    def scoring_steps(self) -> ScoringSteps | None:
        if self.averaging is None:
            return None
        # The tolerance of a minibatch is for its loop only, and the scoring steps see all groups.
        given = 0.0 if self.minibatch else float(self.averaging.tolerance)
        return ScoringSteps(given or TOLERANCE, self.project)

    def path_evidence(self, state: State) -> PathEvidence:
        memory = state.memory
        return PathEvidence(memory.relative, memory.outside, memory.retries)

    def without_path_evidence(self) -> str:
        if self.weights.exact:
            return ""
        return (
            f"{type(self.weights).__name__} changed the weights along the path, which then carry "
            "no evidence; log_evidence is estimated afresh at theta, or use "
            "jalax.weights.ExactWeights()."
        )

    def fixed_path(self, path: Tree, state: State) -> Any:
        tuned = state.memory.step_size
        return dataclasses.replace(
            self,
            step_size=self.step_size if tuned is None else tuned,
            optimizer=FollowPath(path),
            project=None,
            weights=ExactWeights(),
            limiter=Limiter(cess=0.0),
            averaging=None,
            minibatch=None,
        )


_weighed_to_theta = Jit(minibatches.weighed_to_theta)


def _adam() -> Optax:
    import optax

    return Optax(optax.adam, learning_rate=0.05)
