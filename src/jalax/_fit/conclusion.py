"""The end of a fit: the finish, the status in words, and the result."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._algorithms.minibatches import weighed_to_theta
from jalax._algorithms.weight_rules import ExactWeights, evidence_at_each_step
from jalax._evidence import log_evidence, uncertainty
from jalax._evidence.log_evidence import Evidence
from jalax._evidence.replay import Origin
from jalax._fit.callbacks import Run
from jalax._fit.driver import is_done
from jalax._fit.result import FitResult
from jalax._model import information
from jalax._model.evaluation import at_particles
from jalax._model.model import GroupedModel, Model
from jalax._model.types import Status
from jalax._particles import weight_math
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, Jit, Program, fold_in


def result_of(
    run: Run, status: Status, message: str, done: uncertainty.Finished | None = None
) -> FitResult:
    """The result, with the scoring steps at the end unless they are `done`."""
    model = run.model
    if getattr(run.algorithm, "minibatch", None) is not None and status != Status.DIVERGED:
        run.state = _weighed_to_theta(model, run.state)
    state, history = run.state, dict(run.history)
    if history:
        history["theta"] = _constrain_rows(model, history["theta"])
    particles, log_weights = _outside(model, state), state.log_weights
    if not isinstance(model, GroupedModel):
        particles = jax.tree.map(lambda leaf: leaf[0], particles)
        log_weights = log_weights[0]
    theta, finished = _estimate(run, status), None
    if status == Status.MAX_STEPS and bool(is_done(run)):
        status, message = Status.CONVERGED, f"theta has settled after {run.step} steps"
    if status in (Status.CONVERGED, Status.MAX_STEPS) and _finishes(run):
        try:
            finished = _finish_run(run, theta) if done is None else done
            theta = finished.theta
            status, message = _verdict(run, status, finished)
        except KeyboardInterrupt:  # nothing of the fit is lost
            status = Status.INTERRUPTED
            message = f"{message}; interrupted before the last scoring step"
        except np.linalg.LinAlgError:
            status = Status.MAX_STEPS
            message = f"{message}; the information about theta is not finite, so it is not improved"
        except MemoryError as error:
            status = Status.MAX_STEPS
            message = f"{message}; no scoring step, because {error}"
            warnings.warn(message, stacklevel=4)
    collapsed = "" if status == Status.DIVERGED else _collapsed(run, history)
    if collapsed:
        warnings.warn(collapsed, stacklevel=4)
        message = f"{message}; {collapsed}"
    value, relative, reason = _path_evidence(run, status, history, collapsed)
    errors = history.get("log_evidence_error")  # none of a minibatch
    if finished is not None and value is not None and not relative and errors is not None:
        reason = path_is_off(value, float(errors[-1]), finished.evidence)
        value = None if reason else value
    # A state on the host (one of many fits) gives arrays to look at like any other.
    theta, particles, log_weights = jax.tree.map(jnp.asarray, (theta, particles, log_weights))
    return FitResult(
        theta=model.constrained(theta),
        particles=particles,
        log_weights=log_weights,
        history=history,
        status=status,
        message=message,
        state=state,
        algorithm=type(run.algorithm).__name__,
        num_steps=run.step - run.first_step,
        seconds=run.seconds,
        path_value=value,
        relative=relative,
        evidence_reason=reason,
        free=theta,
        origin=Origin(
            model,
            run.algorithm,
            run.key,
            run.start,
            run.theta_0,
            run.history.get("theta") if run.record == 1 else None,
            getattr(state.memory, "step_size", None),
            run.fit_key,
        ),
        saved_evidence=None if finished is None else finished.evidence,
        saved_uncertainty=None if finished is None else finished.uncertainty,
        labels=model.outside.labels,
    )


def _outside(model: Model, state: Any) -> Tree:
    """The particles as the user knows them."""
    if model.outside.latent is None:
        return state.particles
    return at_particles(
        model.outside.latent, model, model.constrained(state.theta), state.particles
    )


def _finish_run(run: Run, theta: Tree) -> uncertainty.Finished:
    algorithm: Any = run.algorithm
    end = uncertainty.finish(
        fold_in(run.key, 1),
        run.model,
        theta,
        # The tolerance of a minibatch is for its loop only, and the scoring steps see all groups.
        fraction=0.05 if algorithm.minibatch else float(algorithm.averaging.tolerance) or 0.05,
        project=algorithm.project,
    )
    for doubt in end.evidence.messages:
        warnings.warn(f"log_evidence: {doubt}.", stacklevel=5)
    return end


def finish_alone(run: Run, status: Status) -> uncertainty.Finished | None:
    """The scoring steps of a fit, for `result_of`; None where it has none, or they fail."""
    if status not in (Status.CONVERGED, Status.MAX_STEPS) or not _finishes(run):
        return None
    try:
        return _finish_run(run, _estimate(run, status))
    except np.linalg.LinAlgError:
        return None


def finished_as_json(done: uncertainty.Finished) -> dict[str, Any]:
    """Plain lists, to send to another process; numbers come back to the bit."""
    return {
        "theta": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(done.theta)],
        "evidence": log_evidence.as_dict(done.evidence),
        "uncertainty": uncertainty.as_dict(done.uncertainty),
        "settled": bool(done.settled),
        "uphill": done.uphill,
    }


def finished_from_json(plain: dict[str, Any], like: Tree) -> uncertainty.Finished:
    leaves, treedef = jax.tree.flatten(like)
    theta = [np.asarray(x, leaf.dtype) for x, leaf in zip(plain["theta"], leaves, strict=True)]
    return uncertainty.Finished(
        treedef.unflatten(theta),
        log_evidence.from_dict(plain["evidence"]),
        uncertainty.from_dict(plain["uncertainty"]),
        plain["settled"],
        plain["uphill"],
    )


def _phase(run: Run) -> Any:
    return getattr(run.state.memory, "phase", None)


def _estimate(run: Run, status: Status) -> Tree:
    """theta averaged since it stopped moving, where it is averaged; else the last one."""
    phase = _phase(run)
    if phase is None or status == Status.DIVERGED or int(phase.averaged) == 0:
        return run.state.theta
    return ravel_pytree(run.state.theta)[1](phase.mean)


def _finishes(run: Run) -> bool:
    return _phase(run) is not None and information.fits(run.state.theta)


def _verdict(run: Run, status: Status, end: uncertainty.Finished) -> tuple[Status, str]:
    """The status in words, now that the information about theta is known."""
    known = end.uncertainty
    if end.uphill:
        return Status.MAX_STEPS, (
            f"after {run.step} steps the likelihood still rises along {end.uphill}: theta is not "
            "at a maximum, and not at a boundary either. Fit again from result.theta, or start "
            "from rough estimates (a fit without the latents, say)"
        )
    if not end.settled:
        return Status.MAX_STEPS, (
            f"after {run.step} steps and {uncertainty.MAX_SCORING} scoring steps theta is still "
            "moving: it is not at a maximum. Fit again from result.theta, or another theta_0"
        )
    if len(known.flat):
        return Status.BOUNDARY, (
            f"{known.describe_flat()} is at a boundary of its range or on its way to infinity "
            "(separable data have no finite maximum), or the data do not tell: there is no "
            "standard error"
        )
    accuracy = f"simulation error {known.simulation_fraction:.3f} of the standard error"
    if status == Status.CONVERGED:
        return status, f"theta has settled after {run.step} steps, {accuracy}"
    drift = np.abs(np.asarray(_phase(run).drift, float)) / np.sqrt(np.diagonal(known.covariance))
    moving = known.names[int(np.nanargmax(drift))]
    return status, (
        f"{run.num_steps} steps done, and {moving} was still moving most, though the scoring steps "
        f"after them settled ({accuracy}). Give it more num_steps to see it converge"
    )


def _collapsed(run: Run, history: dict[str, Any]) -> str:
    """Why the weights of the path mean nothing; empty if they do not.

    Of a grouped model the recorded effective sample size is that of the worst group, and says
    nothing about the others.
    """
    if not evidence_at_each_step(run.algorithm) or run.model.num_groups > 1:
        return ""
    count, ess = np.shape(run.state.log_weights)[-1], np.asarray(history.get("ess", ()))
    if count < 10 or ess.size == 0 or not np.median(ess) < 2:
        return ""
    return (
        f"the weights collapsed: for half of the steps one of the {count} particles carried nearly "
        "all of them, and an evidence along this path would be that of one particle. For latents "
        "in independent groups use jalax.GroupedModel; else smaller steps, or "
        "weights=jalax.TemperedWeights()"
    )


_log_evidence = Program(weight_math.log_evidence, small=LEVEL_0_OLD_EMITTERS, large={})
_weighed_to_theta = Jit(weighed_to_theta)


def path_is_off(value: float, error: float, fresh: Evidence) -> str:
    """Why the path's evidence is not to be shown beside a fresh one; "" if it may be.

    The path follows the particles it weighs, with a bias that grows with steps and latents. Its
    last theta is not quite that of the fresh estimate: a difference of 2 may be due to that.
    """
    apart = value - fresh.value
    if not fresh.trusted or abs(apart) <= 2 + 5 * float(np.hypot(error, fresh.error)):
        return ""
    return (
        f"the evidence carried along the path differs by {apart:.1f} from the fresh estimate at "
        "theta, because the path followed the particles it weighed: use log_evidence, or replay."
    )


def _path_evidence(
    run: Run, status: Status, history: dict[str, Any], collapsed: str
) -> tuple[float | None, bool, str]:
    """The evidence carried along the path, whether it is relative, and why there is none."""
    state = run.state
    if not evidence_at_each_step(run.algorithm):
        history.pop("log_evidence", None)
        history.pop("log_evidence_error", None)
    if not run.algorithm.gives_evidence:
        name = type(run.algorithm).__name__
        reason = f"{name} gives no evidence: its particles have no weights. Use jalax.JALAEM."
        return None, True, reason
    weights = getattr(run.algorithm, "weights", ExactWeights())
    if not weights.exact:
        name = type(weights).__name__
        reason = (
            f"{name} changed the weights along the path, which then carry no evidence; "
            "log_evidence is estimated afresh at theta, or use jalax.ExactWeights()."
        )
        return None, True, reason
    if status == Status.DIVERGED:
        return None, True, "the fit diverged, and an evidence along a broken path means nothing."
    if collapsed:
        return None, True, f"{collapsed}."
    if state.memory.retries > 0:
        reason = "the fit went back and halved its step size, which breaks the path's evidence."
        return None, True, reason
    if state.memory.outside > 0:
        return None, True, _outside_the_support(int(state.memory.outside))
    value = float(_log_evidence(state.log_evidence_base, state.log_weights))
    if not bool(state.memory.relative):
        return value, False, ""
    return (
        value,
        True,
        (
            "the start gave no log_evidence at theta_0, so the evidence is known only relative "
            "to it: see history['log_evidence'], or pass log_evidence= to jalax.Given."
        ),
    )


def _outside_the_support(count: int) -> str:
    return (
        f"{count} moves of particles ended where log_joint is -inf, a hard constraint: the way "
        "back leads out of the support, too, which the weights do not know, so that the path's "
        "evidence would be too low. Put the latent on an unconstrained scale, for example by "
        "jalax.Constrained; log_evidence, whose moves are Metropolised, is exact with it."
    )


def _constrain_rows(model: Model, rows: Tree) -> Tree:
    if model.constrain is None:
        return rows
    return jax.tree.map(np.asarray, Jit(jax.vmap(model.constrain))(rows))
