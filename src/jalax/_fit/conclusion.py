"""The end of a fit: the finish, the status in words, and the result."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence import log_evidence, measured, prior, rounding, uncertainty
from jalax._evidence.log_evidence import Evidence
from jalax._evidence.record import Origin
from jalax._fit.callbacks import Run
from jalax._fit.driver import capacity_of, is_done
from jalax._fit.result import FitResult
from jalax._model import checks, information
from jalax._model.algorithm import Measurement
from jalax._model.evaluation import at_particles, of_groups
from jalax._model.model import GroupedModel, Model
from jalax._model.types import State, Status
from jalax._particles import weight_math
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_1, Program, fold_in, jit


def result_of(
    run: Run,
    status: Status,
    message: str,
    done: uncertainty.Finished | None = None,
    choice: str = "",
) -> FitResult:
    """The result, with the scoring steps at the end unless they are `done`.

    `choice`: why the algorithm was chosen, where the user did not.
    """
    model = run.model
    if status != Status.DIVERGED:
        run.state = run.algorithm.complete(model, run.state)
    state, history = run.state, dict(run.history)
    if "theta" in history:
        history["theta"] = _constrain_rows(model, history["theta"])
    particles, log_weights = _outside(model, state)
    if run.algorithm.finds_its_particles:
        checks.warn_of_scales(state.particles)
    theta, finished = _estimate(run, status), None
    if status == Status.MAX_STEPS and bool(is_done(run)):
        status, message = Status.CONVERGED, f"theta has settled after {run.step} steps"
    if status == Status.CONVERGED and (seen := run.algorithm.measurement(state)) is not None:
        finished = _measured(model, theta, seen) if done is None else done
        status, message = _verdict(run, status, finished)
    elif status in (Status.CONVERGED, Status.MAX_STEPS) and _finishes(run):
        finished, status, message = _scored(run, theta, status, message, done)
        theta = theta if finished is None else finished.theta
    collapsed = "" if status == Status.DIVERGED else _collapsed(run, history)
    if collapsed:
        warnings.warn(collapsed, stacklevel=4)
        message = f"{message}; {collapsed}"
    evidence = None if finished is None else prior.taken_off(finished.evidence, model, theta)
    value, relative, reason = _path_evidence(run, status, history, collapsed, evidence)
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
        choice=choice,
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
            run.fit_key,
        ),
        saved_evidence=evidence,
        saved_uncertainty=None if finished is None else finished.uncertainty,
        labels=model.outside.labels,
    )


def compile_ahead(model: Model, state: State) -> None:
    """Programs of the end of a fit by an algorithm that measures, from its first state.

    To be called while the loop compiles: where there are integrals in log_joint, these programs
    take nearly as long.
    """
    rounding.compile_ahead(model, state.theta)
    if (within := model.outside.within) is not None:
        theta = model.constrained(state.theta)
        of_groups.lower(within, model, theta, state.particles).compile()


def _measured(model: Model, theta: Tree, seen: Measurement) -> uncertainty.Finished:
    end = measured.finished(model, theta, seen)
    for doubt in end.evidence.messages:
        warnings.warn(f"log_evidence: {doubt}.", stacklevel=5)
    return end


def _scored(
    run: Run, theta: Tree, status: Status, message: str, done: uncertainty.Finished | None
) -> tuple[uncertainty.Finished | None, Status, str]:
    """The scoring steps at the end, and the status now that they are done, or were not."""
    try:
        finished = _finish_run(run, theta) if done is None else done
        return finished, *_verdict(run, status, finished)
    except KeyboardInterrupt:  # nothing of the fit is lost
        return None, Status.INTERRUPTED, f"{message}; interrupted before the last scoring step"
    except np.linalg.LinAlgError:
        reason = "the information about theta is not finite, so it is not improved"
        return None, Status.MAX_STEPS, f"{message}; {reason}"
    except MemoryError as error:
        message = f"{message}; no scoring step, because {error}"
        warnings.warn(message, stacklevel=5)
        return None, Status.MAX_STEPS, message


def _outside(model: Model, state: Any) -> tuple[Tree, Any]:
    """The particles as the user knows them, and their log-weights."""
    particles, log_weights = state.particles, state.log_weights
    if (outside := model.latent_outside) is not None:
        theta = model.constrained(state.theta)
        particles = at_particles(outside, model, theta, particles)
    if model.outside.within is not None:
        theta = model.constrained(state.theta)
        particles = of_groups(model.outside.within, model, theta, particles)
        several = jax.tree.leaves(particles)[0].shape[1] // log_weights.shape[1]
        log_weights = jnp.repeat(log_weights, several, axis=1)
    if isinstance(model, GroupedModel):
        return particles, log_weights
    return jax.tree.map(lambda leaf: leaf[0], particles), log_weights[0]


def _finish_run(run: Run, theta: Tree) -> uncertainty.Finished:
    steps = run.algorithm.scoring_steps
    assert steps is not None
    end = uncertainty.finish(
        fold_in(run.key, 1),
        run.model,
        theta,
        fraction=steps.fraction,
        project=steps.project,
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


def _estimate(run: Run, status: Status) -> Tree:
    return run.state.theta if status == Status.DIVERGED else run.algorithm.estimate(run.state)


def _finishes(run: Run) -> bool:
    return run.algorithm.scoring_steps is not None and information.fits(run.state.theta)


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
    return status, (
        f"{run.num_steps} steps done, and {_moving_most(run, known)} was still moving most, though "
        f"the scoring steps after them settled ({accuracy}). Give it more num_steps to see it "
        "converge"
    )


def _moving_most(run: Run, known: uncertainty.Uncertainty) -> str:
    drift = run.algorithm.drift(run.state)
    if drift is None:
        return "theta"
    lengths = np.abs(np.asarray(drift, float)) / np.sqrt(np.diagonal(known.covariance))
    return known.names[int(np.nanargmax(lengths))]


def _collapsed(run: Run, history: dict[str, Any]) -> str:
    """Why the weights of the path mean nothing; empty if they do not.

    The recorded effective sample size of a grouped model is that of its worst group, and says
    nothing about the others.
    """
    if not run.algorithm.records_evidence or run.model.num_groups > 1:
        return ""
    count, ess = np.shape(run.state.log_weights)[-1], np.asarray(history.get("ess", ()))
    if count < 10 or ess.size == 0 or not np.median(ess) < 2:
        return ""
    return (
        f"the weights collapsed: for half of the steps one of the {count} particles carried nearly "
        "all of them, and an evidence along this path would be that of one particle. For latents "
        "in independent groups use jalax.GroupedModel; else smaller steps, or "
        "weights=jalax.weights.TemperedWeights()"
    )


_log_evidence = Program(weight_math.log_evidence, small=LEVEL_0_OLD_EMITTERS, large={})


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
    run: Run, status: Status, history: dict[str, Any], collapsed: str, fresh: Evidence | None
) -> tuple[float | None, bool, str]:
    """The evidence carried along the path, whether it is relative, and why there is none."""
    state = run.state
    if not run.algorithm.records_evidence:
        history.pop("log_evidence", None)
        history.pop("log_evidence_error", None)
    known = run.algorithm.path_evidence(state)
    if (reason := run.algorithm.without_path_evidence()) or known is None:
        return None, True, reason
    if status == Status.DIVERGED:
        return None, True, "the fit diverged, and an evidence along a broken path means nothing."
    if collapsed:
        return None, True, f"{collapsed}."
    if known.retries > 0:
        reason = "the fit went back to an earlier state, which breaks the path's evidence."
        return None, True, reason
    if known.outside > 0:
        return None, True, _outside_the_support(int(known.outside))
    value = float(_log_evidence(state.log_evidence_base, state.log_weights))
    value -= prior.at(run.model, state.theta)
    if not bool(known.relative):
        errors = history.get("log_evidence_error")  # none of a minibatch
        if fresh is not None and errors is not None:
            reason = path_is_off(value, float(errors[-1]), fresh)
        return None if reason else value, False, reason
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
    """On the user's scale; one program for histories of about the same length."""
    if not model.maps_theta:
        return rows
    count = len(jax.tree.leaves(rows)[0])
    more = capacity_of(count) - count
    longer = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[-1:], more, axis=0)]), rows)
    return jax.tree.map(lambda x: np.asarray(x)[:count], _constrained(model, longer))


@jit(LEVEL_1)
def _constrained(model: Model, rows: Tree) -> Tree:
    return jax.vmap(model.constrained)(rows)
