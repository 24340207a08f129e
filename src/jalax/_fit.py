"""fit and fit_many: checks, start, the host side of the loop, the result."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax import _checks, _evidence, _finish, _information, _loop, _weights
from jalax._algorithms.jala_em import JALAEM
from jalax._callbacks import Callback, Run, Stop, progress_bar
from jalax._checkpoint import checkpoint, unflatten_state
from jalax._model import GroupedModel, Model
from jalax._options import QUICKLY, canonical
from jalax._replay import Origin
from jalax._result import FitResult, SavedState
from jalax._starts.importance import Laplace
from jalax._starts.tempered import Tempered
from jalax._tree import Tree
from jalax._types import Algorithm, Cloud, Start, State, Status

MAX_STEPS = 1000  # of an automatic fit, unless it is told otherwise
MAX_RETRIES = 5  # times a diverging automatic fit halves its step size


def fit(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    algorithm: Algorithm | None = None,
    start: Start | None = None,
    num_particles: int | None = None,
    num_steps: int | None = None,
    state: State | SavedState | None = None,
    chunk_size: int = 100,
    callbacks: Sequence[Callback] = (),
    progress: Callback | None = None,
) -> FitResult:
    """Fit a latent variable model by maximum marginal likelihood.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel`.
        theta: the start value, any pytree of floats; by default the model's own.
        key: `jax.random.key(seed)`. Same key, same machine: same result, bit for bit.
        algorithm: `jalax.JALAEM()` (the default), which chooses its step size, preconditioner,
            theta-step and stopping by itself; or `PGD`, `IPLA`, `SOUL`, `SFLA`.
        start: where the particles come from: by default draws of a Student-t on the Laplace mode,
            resampled by weight, or, where that is not good enough, `jalax.Tempered()`.
        num_particles: N (in each group); `Given` brings its own. By default 500 for an automatic
            JALA-EM (fewer in each of many groups), else 100.
        num_steps: how many steps to take at most; with `state=`, how many more. Optional for an
            automatic JALA-EM, which stops by itself.
        state: continue from `FitResult.state`, with the same key to continue the same run.
        chunk_size: steps between two looks of the callbacks; it does not change the result.
        callbacks: `jalax.stop_when`, `time_limit`, `checkpoint`, or your own.
        progress: by default a progress bar where somebody can see it; `jalax.Callback()`: none.

    Returns:
        A `FitResult`. Ctrl-C returns what there is so far, with status "interrupted".

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> result = jalax.fit(model, 0.0, key=jax.random.key(1))
    >>> str(result.status), abs(float(result.theta) - 2.0) < 0.05
    ('converged', True)
    >>> prior = jalax.FromSampler(lambda key, theta, data: theta + jax.random.normal(key, (3,)))
    >>> result = jalax.fit(model, 0.0, key=jax.random.key(1), start=prior, num_particles=200,
    ...                    algorithm=jalax.PGD(step_size=0.1), num_steps=300)
    >>> abs(float(result.theta) - 2.0) < 0.3
    True
    """
    _checks.check_key(key)
    assert key is not None
    model, algorithm = _checks.prepare_model(model), _prepare(algorithm)
    algorithm.check(model)
    num_steps = _num_steps(num_steps, algorithm)
    chunk_size = _checks.check_count("chunk_size", chunk_size)
    key_start, key_run = jax.random.split(key)

    begin = None
    if state is None:
        theta = _checks.prepare_theta(theta, model)
        _checks.check_log_joint(model, theta)
        algorithm = filled(algorithm, theta)
        _checks.check_projection(algorithm, theta)
        begin, count = _prepare_start(start, model, algorithm, num_particles)
        if start is None:
            scores = _information.fits(theta)
            cloud = _evidence.start_cloud(key_start, model, theta, count, scores)
            if needs_tempering(cloud.k_hat, cloud.log_evidence_error):
                begin = Tempered()
        if start is not None or isinstance(begin, Tempered):
            cloud = _draw(key_start, begin, model, theta, count)
        _checks.check_start(model, theta, cloud, num_steps, algorithm.gives_evidence)
        first = _init(jax.random.fold_in(key_start, 1), algorithm, model, theta, cloud)
    else:
        like = state.theta if isinstance(state, State) else _checks.prepare_theta(theta, model)
        algorithm = filled(algorithm, like)
        first = _continued(state, algorithm, model, theta)
    run = Run(
        key=key_run,
        model=model,
        algorithm=algorithm,
        state=first,
        first_step=int(first.step),
        num_steps=num_steps,
        start=begin,
        theta_0=first.theta,
    )
    for callback in callbacks:
        if isinstance(callback, checkpoint) and callback.exists():
            callback.restore(run)

    capacity = _capacity(chunk_size)
    advance = partial(_loop.run_chunk, key_run, algorithm, model, capacity=capacity)
    status, message = _drive(run, advance, chunk_size, _with_progress(callbacks, progress))
    return _result(run, status, message)


def filled(algorithm: Algorithm, theta: Tree) -> Algorithm:
    """With an object for every option that depends on theta and was left out."""
    fill = getattr(algorithm, "filled", None)
    return algorithm if fill is None else canonical(fill(theta))


def _num_steps(num_steps: int | None, algorithm: Algorithm) -> int:
    if num_steps is None and getattr(algorithm, "automatic", False):
        return MAX_STEPS
    return _checks.check_count("num_steps", num_steps)


def default_start(model: Model) -> Laplace:
    return Laplace(num_draws=8 * _evidence.default_particles(model))


def needs_tempering(k_hat: Any, error: Any) -> bool:
    """Too few draws of the default start carry the weight (its particles are resampled)."""
    return bool(np.median(np.asarray(k_hat)) > 0.7 or np.max(np.asarray(error)) > 0.2)


def _prepare(given: Algorithm | None) -> Algorithm:
    algorithm: Any = JALAEM() if given is None else given
    if isinstance(algorithm, type) or not hasattr(algorithm, "step"):
        raise TypeError(
            f"algorithm must be an object such as jalax.JALAEM(step_size=...), got {algorithm!r}."
        )
    return canonical(algorithm)


def _prepare_start(
    start: Start | None, model: Model, algorithm: Algorithm, num_particles: int | None
) -> tuple[Start, int]:
    """The start as a pytree, and the number of particles in each group."""
    automatic = getattr(algorithm, "automatic", False)
    groups = model.num_groups
    if start is None:
        start = default_start(model)
    if not dataclasses.is_dataclass(start) or isinstance(start, type):
        raise TypeError(
            "start must be an object such as jalax.Given(particles) or jalax.FromSampler(fn), got "
            f"{start!r}."
        )
    inner = getattr(algorithm, "num_inner", None)  # SOUL: the chain's states are the particles
    brought = start.count(model) if hasattr(start, "count") else None
    counts = {
        "num_particles": num_particles,
        "the particles of the start": brought,
        f"{type(algorithm).__name__}.num_inner": inner,
    }
    given = {name: n for name, n in counts.items() if n is not None}
    if len(set(given.values())) > 1:
        found = ", ".join(f"{name} = {n}" for name, n in given.items())
        raise ValueError(f"the number of particles is given more than once: {found}.")
    usual = int(np.clip(200_000 // groups, 100, 500)) if automatic else 100
    count = next(iter(given.values()), usual)
    return canonical(start, jnp.asarray), _checks.check_count(
        "num_particles", count, algorithm.min_particles
    )


@partial(jax.jit, static_argnames="num_particles")
def _draw(key, start: Start, model: Model, theta: Tree, num_particles: int) -> Cloud:
    return start(key, model, theta, num_particles)


@partial(jax.jit, compiler_options=QUICKLY)
def _init(key, algorithm: Algorithm, model: Model, theta: Tree, cloud: Cloud) -> State:
    return algorithm.init(key, model, theta, cloud)


def _continued(state: State | SavedState, algorithm: Algorithm, model: Model, theta: Tree) -> State:
    """The state a fit goes on from, once its structure is that of this algorithm and model."""
    if isinstance(state, SavedState):
        shape = state.arrays["state.log_weights"].shape
        theta = _checks.prepare_theta(theta, model)
    elif isinstance(state, State):
        shape, theta = state.log_weights.shape, state.theta
    else:
        raise TypeError(f"state must be the state of a FitResult, got {type(state).__name__}.")
    particles = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*shape, *x.shape), x.dtype), model.latent
    )
    log_weights: Any = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    like = jax.eval_shape(
        _init, jax.random.key(0), algorithm, model, theta, Cloud(particles, log_weights, None)
    )
    if isinstance(state, SavedState):
        return unflatten_state(state.names, state.arrays, like, "state=")
    shapes = [leaf.shape for leaf in jax.tree.leaves(like)]
    if jax.tree.structure(state) != jax.tree.structure(like) or shapes != [
        jnp.shape(leaf) for leaf in jax.tree.leaves(state)
    ]:
        raise ValueError(
            f"state= does not fit {type(algorithm).__name__} on this model: it comes from another "
            "algorithm, optimiser, model or number of groups."
        )
    return state


def _capacity(chunk_size: int) -> int:
    """Rows of the record buffers: the same for all small chunks, so that they share a program."""
    return max(128, 1 << (chunk_size - 1).bit_length())


def _with_progress(callbacks: Sequence[Callback], progress: Callback | None) -> Sequence[Callback]:
    if progress is None and any(isinstance(callback, progress_bar) for callback in callbacks):
        return callbacks
    return (progress_bar() if progress is None else progress, *callbacks)


def _drive(
    run: Run,
    advance: Callable[..., _loop.Chunk],
    chunk_size: int,
    callbacks: Sequence[Callback],
) -> tuple[Status, str]:
    """Chunk after chunk until the steps are done, a callback says stop, or all fits diverged.

    Of many fits, one that diverges keeps its last finite state while the others go on.
    """
    status, message = Status.MAX_STEPS, f"{run.num_steps} steps done"
    running = (np.asarray(run.state.step) < run.last_step) & ~is_done(run)
    begun: list[Callback] = []
    try:
        for callback in callbacks:
            callback.begin(run)
            begun.append(callback)
        while running.any():
            due = [c.steps_until_due(run) for c in callbacks if isinstance(c, checkpoint)]
            length = min(chunk_size, run.last_step - run.step, *due)
            lengths = np.where(running, length, 0).astype(np.int32)
            chunk = advance(run.state, lengths)
            healthy, done = np.asarray(chunk.healthy), np.asarray(chunk.length)
            if not healthy.all():
                # A trajectory is a function of its first state and key: take it again, up to
                # the last good step. This costs nothing to the runs that never fail.
                done = np.where(healthy, done, done - 1).astype(np.int32)
                chunk = advance(run.state, done)
            _append(run, chunk, done)
            if not healthy.all():
                _retry(run, ~healthy)
            running = np.asarray(run.state.step) < run.last_step
            running = running & ~run.diverged & ~is_done(run)
            stops = [callback.after_chunk(run) for callback in callbacks]
            if run.diverged.all():
                return Status.DIVERGED, _advice(run)
            for stop in stops:
                if isinstance(stop, tuple):
                    return Stop(*stop)
                if stop:  # a callback of the user's that just says True, or why
                    return Stop(Status.STOPPED, str(stop))
    except KeyboardInterrupt:
        return Status.INTERRUPTED, f"interrupted after step {run.step}"
    finally:
        for callback in begun:
            callback.end(run)
    return status, message


def is_done(run: Run) -> np.ndarray:
    """Which fits have stopped by themselves."""
    ask = getattr(run.algorithm, "is_done", None)
    return np.zeros(run.diverged.shape, bool) if ask is None else np.asarray(ask(run.state))


def _retry(run: Run, failed: np.ndarray) -> None:
    """Go on from the last good state with half the step size, where the fit may choose it."""
    h = getattr(run.state.memory, "step_size", None)
    if h is None:
        run.diverged = run.diverged | failed
        return
    run.retries = run.retries + failed
    run.diverged = run.diverged | (run.retries > MAX_RETRIES)
    memory = run.state.memory._replace(step_size=jnp.where(jnp.asarray(failed), h / 2, h))
    run.state = run.state._replace(memory=memory)


def _append(run: Run, chunk: _loop.Chunk, done: np.ndarray) -> None:
    """Bring the records of a chunk to the host; rows a stopped fit does not have are NaN."""
    run.state = chunk.state
    rows = int(done.max())
    if not run.many:
        run.records.append(jax.tree.map(lambda x: np.asarray(x)[:rows].copy(), chunk.records))
        return
    missing = np.arange(rows)[None, :] >= done[:, None]

    def trim(buffer):
        array = np.array(buffer)[:, :rows]
        if array.dtype.kind == "f":
            array[missing] = np.nan
        else:
            array[missing] = 0
        return array

    run.records.append(jax.tree.map(trim, chunk.records))


def _advice(run: Run) -> str:
    name = type(run.algorithm).__name__
    what = (
        f"after step {run.step} every particle of a group, or theta, became non-finite; the state "
        f"of step {run.step} is kept. "
    )
    if getattr(run.algorithm, "automatic", False):
        return what + (
            f"Going back and halving the step size {MAX_RETRIES} times did not help. Try another "
            "theta_0, and look at log_joint there: is it finite for all x, and normalisable?"
        )
    return what + (
        f"Try a smaller {name}.step_size or learning rate, a preconditioner, or a start nearer to "
        "the posterior"
    )


def _result(run: Run, status: Status, message: str) -> FitResult:
    model, state = run.model, run.state
    history = dict(run.history)
    if history:
        history["theta"] = _constrain_rows(model, history["theta"])
    particles, log_weights = state.particles, state.log_weights
    if not isinstance(model, GroupedModel):
        particles = jax.tree.map(lambda leaf: leaf[0], particles)
        log_weights = log_weights[0]
    theta, finished = _estimate(run, status), None
    if status == Status.MAX_STEPS and bool(is_done(run)):
        status, message = Status.CONVERGED, f"theta has settled after {run.step} steps"
    if status in (Status.CONVERGED, Status.MAX_STEPS) and _finishes(run):
        try:
            finished = _finish_run(run, theta)
            theta = finished.theta
            status, message = _verdict(run, status, finished)
        except KeyboardInterrupt:  # nothing of the fit is lost
            status = Status.INTERRUPTED
            message = f"{message}; interrupted before the last scoring step"
        except np.linalg.LinAlgError:
            status = Status.MAX_STEPS
            message = f"{message}; the information about theta is not finite, so it is not improved"
    value, relative, reason = _path_evidence(run, status, history)
    return FitResult(
        theta=model.constrained(theta),
        particles=particles,
        log_weights=log_weights,
        history=history,
        status=status,
        message=message,
        state=state,
        algorithm=type(run.algorithm).__name__,
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
            run.history.get("theta"),
            getattr(state.memory, "step_size", None),
        ),
        saved_evidence=None if finished is None else finished.evidence,
        saved_uncertainty=None if finished is None else finished.uncertainty,
    )


def _finish_run(run: Run, theta: Tree) -> _finish.Finished:
    algorithm: Any = run.algorithm
    end = _finish.finish(
        jax.random.fold_in(run.key, 1),
        run.model,
        theta,
        fraction=float(algorithm.averaging.tolerance) or 0.05,
        project=algorithm.project,
    )
    for doubt in end.evidence.messages:
        warnings.warn(f"log_evidence: {doubt}.", stacklevel=5)
    return end


def _phase(run: Run) -> Any:
    return getattr(run.state.memory, "phase", None)


def _estimate(run: Run, status: Status) -> Tree:
    """theta averaged since it stopped moving, where it is averaged; else the last one."""
    phase = _phase(run)
    if phase is None or status == Status.DIVERGED or int(phase.averaged) == 0:
        return run.state.theta
    return ravel_pytree(run.state.theta)[1](phase.mean)


def _finishes(run: Run) -> bool:
    return _phase(run) is not None and _information.fits(run.state.theta)


def _verdict(run: Run, status: Status, end: _finish.Finished) -> tuple[Status, str]:
    """The status in words, now that the information about theta is known."""
    known = end.uncertainty
    if not end.settled:
        return Status.MAX_STEPS, (
            f"after {run.step} steps and {_finish.MAX_SCORING} scoring steps theta is still "
            "moving: it is not at a maximum. Fit again from result.theta, or another theta_0"
        )
    if len(known.flat):
        return Status.BOUNDARY, (
            f"the data hold no information about {known.describe_flat()}: it is at a boundary of "
            "its range, or not identified, and has no standard error"
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


_log_evidence = jax.jit(_weights.log_evidence)


def _path_evidence(
    run: Run, status: Status, history: dict[str, Any]
) -> tuple[float | None, bool, str]:
    """The evidence carried along the path, whether it is relative, and why there is none."""
    state = run.state
    if not run.algorithm.gives_evidence:
        history.pop("log_evidence", None)
        name = type(run.algorithm).__name__
        reason = f"{name} gives no evidence: its particles have no weights. Use jalax.JALAEM."
        return None, True, reason
    if status == Status.DIVERGED:
        return None, True, "the fit diverged, and an evidence along a broken path means nothing."
    if np.any(run.retries):
        reason = "the fit went back and halved its step size, which breaks the path's evidence."
        return None, True, reason
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


def _constrain_rows(model: Model, rows: Tree) -> Tree:
    if model.constrain is None:
        return rows
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(model.constrain))(rows))
