"""fit: checks, choice of the algorithm, the host side of the loop, the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jalax._evidence import default_cloud
from jalax._fit import conclusion, held_out, loop, refitting
from jalax._fit.begin import (
    as_asked,
    continued,
    default_start_cloud,
    draw_start,
    first_state,
    first_state_of_example,
    num_steps_of,
    prepare_start,
    start_for,
)
from jalax._fit.callbacks import (
    Callback,
    Run,
    before_the_first_step,
    check_callbacks,
    reminded,
)
from jalax._fit.checkpoint import checkpoint, checkpointed_algorithm
from jalax._fit.choice import Choice, Verdict, again, checked, choose, judged, looked_again
from jalax._fit.driver import capacity_of, drive, with_progress
from jalax._fit.fit_many import fit_many
from jalax._fit.held_out import Training
from jalax._fit.overflow import climbed_in_double
from jalax._fit.restarts import check_restarts, restarted
from jalax._fit.result import FitResult, SavedState
from jalax._fit.second_modes import searching_from
from jalax._model import checks, information, sharding
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import Start, State, Status
from jalax._particles.trees import Tree
from jalax._runtime import arguments, layouts, mappings
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import compile_ahead, split
from jalax._runtime.failures import naming_knobs, termination_as_interrupt
from jalax._runtime.layouts import Layout
from jalax._starts.example import Example
from jalax._starts.in_blocks import InBlocks


def fit(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    algorithm: Algorithm | None = None,
    start: Start | None = None,
    num_particles: int | None = None,
    num_steps: int | None = None,
    group_batch: int | None = None,
    particle_batch: int | None = None,
    mesh: Mesh | Layout | None = None,
    state: State | SavedState | None = None,
    restarts: int | None = None,
    fixed: Mapping[str, Any] | None = None,
    log_prior: Callable[[Tree], Any] | None = None,
    chunk_size: int = 100,
    record: int = 1,
    callbacks: Sequence[Callback] = (),
    progress: Callback | None = None,
) -> FitResult:
    """Fit a latent variable model by maximum marginal likelihood.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel`.
        theta: the start value, any pytree of floats; by default the model's own.
        key: `jax.random.key(seed)`. Same key, same machine: same result, bit for bit.
        algorithm: by default `jalax.Scoring()` where groups have up to 2,000 latents, and
            `jalax.JALAEM()` where not, or where Scoring's points turn out not to cover the
            posterior; the summary says which, and why. Or one of these, or `PGD`, `IPLA`, `SOUL`,
            `SFLA`.
        start: where the particles come from: by default draws of a Student-t on the Laplace mode,
            resampled by weight, or, where that is not good enough, `jalax.Tempered()`. Scoring
            finds its points itself: with a start given, the default algorithm is JALA-EM.
        num_particles: N (in each group); `Given` brings its own. By default 500 for an automatic
            JALA-EM (fewer in each of many groups, but at least the root of their number), 256 to
            2048 for Scoring, a power of two, else 100.
        num_steps: how many steps to take at most; with `state=`, how many more. Optional for an
            automatic JALA-EM and for Scoring, which stop by themselves.
        group_batch: how many groups of a grouped model to work on at a time, to save memory; see
            `jalax.GroupedModel`. The answer does not depend on it.
        particle_batch: how many particles of a model without groups to visit at a time, to save
            memory; see `jalax.Model`. The answer does not depend on it.
        mesh: spread the fit over many devices: a `jalax.runtime.Layout`, or a `jax.make_mesh` whose
            axes are called "particles", "groups" or "data". By default where the data already is.
            The answer does not depend on it, up to rounding.
        state: continue from `FitResult.state`, with the same key to continue the same run.
        restarts: so many fits more, from starts around theta, to see whether the likelihood has
            other maxima: the result is the highest, and `FitResult.maxima` has them all.
        fixed: numbers of theta that are held, not estimated, by name and on the scale of the start
            value: `fixed={"log_sd": 0.0}`, `fixed={"beta[1]": 0.0}`. They have no standard errors.
        log_prior: `log_prior(theta)`, the log of a prior density of theta as log_joint sees it:
            the fit then finds the maximum a posteriori (no Jacobian is added where theta is
            constrained), and `FitResult.full_log_evidence` integrates theta out.
        chunk_size: steps between two looks of the callbacks; it does not change the result.
        record: keep every so many steps in `FitResult.history` (and the last one), for long runs or
            large theta. Other than 1, there is no `replay`.
        callbacks: `jalax.stop_when`, `time_limit`, `checkpoint`, or your own.
        progress: by default a progress bar where somebody can see it; none with
            `jalax.callbacks.Callback()`.

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
    began = time.perf_counter()
    arguments.check_key(key)
    assert key is not None
    callbacks = check_callbacks(callbacks, progress)
    mappings.make_room()
    model, theta = as_asked(model, theta, fixed, log_prior)
    if restarts is not None:
        algorithm = None if algorithm is None else checked(algorithm)
        number = check_restarts(restarts, algorithm, {"state=": state, "mesh=": mesh}, callbacks)
        how: dict[str, Any] = {"algorithm": algorithm, "start": start, "num_steps": num_steps}
        how |= {"num_particles": num_particles, "chunk_size": chunk_size}
        here: dict[str, Any] = {"group_batch": group_batch, "particle_batch": particle_batch}
        here |= {"record": record, "callbacks": callbacks, "progress": progress}
        once = partial(fit, model, key=key, **how, **here)
        return restarted(once, model, theta, key, number, how)
    model = checks.prepare_model(model)
    layout, structure = sharding.layout_for(model, mesh), model.structure
    given = layouts.with_auto_axes((model, theta, key, algorithm, start, state))
    model, theta, key, algorithm, start, state = given
    reminders = reminded(callbacks, began, layout)
    with layouts.use_mesh(layout), naming_knobs(model.grouped), one_thread(), reminders:
        algorithm = None if algorithm is None else checked(algorithm)
        batches = {"group_batch": group_batch, "particle_batch": particle_batch}
        given_batches = {name: n for name, n in batches.items() if n is not None}
        model = model.replace(**given_batches, structure=structure)
        model = sharding.lay_out(model, layout)
        if state is None or isinstance(state, SavedState):
            theta = checks.prepare_theta(theta, model)
        elif isinstance(state, State):
            theta = state.theta
        saved = checkpointed_algorithm(callbacks, model.layout) if algorithm is None else None
        choice = choose(algorithm, model, theta, start, num_particles, state, saved)
        request = _Request(
            model=model,
            key=key,
            start=start,
            num_particles=num_particles,
            num_steps=num_steps,
            chunk_size=arguments.check_count("chunk_size", chunk_size),
            record=arguments.check_count("record", record),
            callbacks=callbacks,
            progress=progress,
            began=began,
        )
        if choice.trains:
            request = request.training()
        run, status, message = _run_from_anywhere(request, choice.algorithm, theta, state)
        verdict = request.judged(run, status, choice)
        while verdict.doubt:
            choice = again(verdict, choice)
            if verdict.white is not None:
                request = request.whitened(verdict.white)
            if verdict.modes is not None:
                request = request._replace(modes=verdict.modes)
            run, status, message = _run(request, choice.algorithm, verdict.theta, resumes=False)
            verdict = request.judged(run, status, choice)
        with termination_as_interrupt():
            return conclusion.result_of(run, status, message, verdict.done, choice.reason)


class _Request(NamedTuple):
    """What the user asked of one fit, whatever the algorithm."""

    model: Model
    key: jax.Array
    start: Start | None
    num_particles: int | None
    num_steps: int | None
    chunk_size: int
    record: int
    callbacks: Sequence[Callback]
    progress: Callback | None
    began: float
    modes: np.ndarray | None = None  # of the latents, that the first step begins with

    def judged(self, run: Run, status: Status, choice: Choice) -> Verdict:
        """What to think of a fit. From other modes it climbs but once."""
        limited = self.num_steps is not None
        verdict = judged(run, status, choice, limited)
        climbs = self.modes is None and not limited
        with termination_as_interrupt():
            return looked_again(run, verdict, capacity_of(self.chunk_size), climbs)

    def training(self) -> _Request:
        """With held-out groups to stop by."""
        training = Training(self.model, self.key)
        asked: dict[str, Any] = {"callbacks": [*self.callbacks, training]}
        if self.start is None:
            asked["start"] = training.start
            if self.num_particles is None:
                asked["num_particles"] = held_out.PARTICLES
        if self.num_steps is None:
            asked["num_steps"] = held_out.MAX_STEPS
        return self._replace(**asked)

    def whitened(self, model: Model) -> _Request:
        """With other latents. A checkpoint of theirs could not be told from one of the first."""
        left = [callback for callback in self.callbacks if not isinstance(callback, checkpoint)]
        white = sharding.lay_out(model, model.layout)
        return self._replace(model=white, callbacks=left, modes=None)


def _run_from_anywhere(
    asked: _Request, algorithm: Algorithm, theta: Tree, state: State | SavedState | None
) -> tuple[Run, Status, str]:
    """`_run`, from a theta nearer by where float32 overflows at this one."""
    try:
        return _run(asked, algorithm, theta, state)
    except checks.NotFiniteError as error:
        nearer = climbed_in_double(fit, asked.model, theta, asked.key)
        if nearer is None:
            raise ValueError(*error.args) from None
        return _run(asked, algorithm, nearer)


def _run(
    asked: _Request,
    algorithm: Algorithm,
    theta: Tree,
    state: State | SavedState | None = None,
    resumes: bool = True,
) -> tuple[Run, Status, str]:
    """From theta, or a state, to the end of the loop; `resumes`: from a checkpoint if there is."""
    algorithm.check(asked.model)
    num_steps = num_steps_of(asked.num_steps, algorithm)
    key_start, key_run = split(asked.key)
    capacity = capacity_of(asked.chunk_size)
    callbacks = with_progress(asked.callbacks, asked.progress)
    begin: Start | None = None
    if state is None:
        checks.check_log_joint(asked.model, theta)
    model = algorithm.prepared(asked.model, theta)
    asked = asked._replace(model=model)
    if state is None:
        algorithm = algorithm.filled(theta).canonical()
        algorithm.check_theta(theta)
        with before_the_first_step(callbacks, model.layout):
            begin, first = _begin(asked, key_start, algorithm, theta, capacity)
    else:
        algorithm = algorithm.filled(theta).canonical()
        first = sharding.place(model, continued(state, algorithm, model, theta))
    run = Run(
        key=key_run,
        model=model,
        algorithm=algorithm,
        state=first,
        first_step=int(first.step),
        num_steps=num_steps,
        start=begin,
        theta_0=first.theta,
        fit_key=asked.key,
        record=asked.record,
        began=asked.began,
        layout=model.layout,
    )
    for callback in asked.callbacks if resumes else ():
        if isinstance(callback, checkpoint) and callback.exists(run.layout):
            callback.restore(run)
    advance = partial(loop.run_chunk, key_run, algorithm, model, capacity=capacity)
    with termination_as_interrupt():
        return run, *drive(run, advance, asked.chunk_size, callbacks)


def _begin(
    asked: _Request, key, algorithm: Algorithm, theta: Tree, capacity: int
) -> tuple[Start, State]:
    """The start that was taken, and the state of step 0; the loop is compiled meanwhile."""
    model, given = asked.model, start_for(algorithm, asked.start)
    begin, count = prepare_start(given, model, theta, algorithm, asked.num_particles)
    if isinstance(begin, Example):
        checks.check_example(model, theta, algorithm.gives_evidence)
        state = first_state_of_example.eval_shape(key, algorithm, model, theta, count)
        with _compiling(model, lambda: [_lowered(key, algorithm, model, state, capacity)]) as ahead:
            first = first_state_of_example(key, algorithm, model, theta, count)
            if ahead:
                conclusion.compile_ahead(model, first)
        return begin, first if asked.modes is None else searching_from(first, asked.modes)
    if given is not None:
        cloud = _drawn(key, asked, begin, algorithm, theta, count, capacity)
        checks.check_start(model, theta, cloud, algorithm.gives_evidence)
        return begin, first_state(key, algorithm, model, theta, cloud)

    checks.check_example(model, theta, weighted=False)  # the search for a mode begins there

    def lower() -> list[Any]:
        scores = information.fits(theta)
        cloud = default_cloud.start_shapes(key, model, theta, count, scores)
        return _loop_and_first_state(key, algorithm, model, theta, cloud, capacity)

    with _compiling(model, lower):
        begin, cloud = default_start_cloud(key, begin, model, theta, count)
        checks.check_start(model, theta, cloud, algorithm.gives_evidence)
    return begin, first_state(key, algorithm, model, theta, cloud)


def _drawn(key, asked: _Request, begin: Start, algorithm, theta: Tree, count: int, capacity: int):
    """The cloud of a given start; what draws by programs of its own lets the loop compile."""
    model = asked.model
    if not isinstance(begin, InBlocks):
        return draw_start(key, begin, model, theta, count)

    def lower() -> list[Any]:
        cloud = draw_start.eval_shape(key, begin, model, theta, count)
        return _loop_and_first_state(key, algorithm, model, theta, cloud, capacity)

    with _compiling(model, lower):
        return begin.drawn(key, model, theta, count)


@contextlib.contextmanager
def _compiling(model: Model, lower: Callable[[], list[Any]]) -> Iterator[bool]:
    """The largest programs compile while the start is drawn; False: they do not.

    Not for a GPU, whose compiler wants to try things on it, and not on a mesh, where only the
    start itself knows how its particles lie.
    """
    alone = jax.default_backend() == "cpu" and model.layout is None
    ahead = compile_ahead(*lower()) if alone else None
    yield alone
    if ahead is not None:  # an error in the start does not wait for it
        ahead.join()


def _loop_and_first_state(
    key, algorithm: Algorithm, model: Model, theta: Tree, cloud: Any, capacity: int
) -> list[Any]:
    """Both programs lowered, from the shapes of the cloud that a start will draw."""
    state = first_state.eval_shape(key, algorithm, model, theta, cloud)
    first = first_state.lower(key, algorithm, model, theta, cloud)
    return [_lowered(key, algorithm, model, state, capacity), first]


def _lowered(key, algorithm: Algorithm, model: Model, state: State, capacity: int) -> Any:
    length = np.zeros((), np.int32)
    return loop.run_chunk.lower(key, algorithm, model, state, length, capacity=capacity)


refitting.register(fit, fit_many)
