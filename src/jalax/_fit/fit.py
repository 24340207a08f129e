"""fit and fit_many: checks, start, the host side of the loop, the result."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jalax._evidence import default_cloud, rounds
from jalax._fit import loop
from jalax._fit.callbacks import Callback, Run, check_callbacks
from jalax._fit.checkpoint import checkpoint, checkpointed_algorithm, unflatten_state
from jalax._fit.choice import again, checked, choose, judged
from jalax._fit.conclusion import result_of
from jalax._fit.driver import capacity_of, drive, with_progress
from jalax._fit.result import FitResult, SavedState
from jalax._model import checks, information, sharding
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import Cloud, Start, State, Status
from jalax._particles.pareto import USUAL_LIMIT
from jalax._particles.trees import Tree
from jalax._reference.references import as_reference
from jalax._runtime import arguments, layouts
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import (
    LEVEL_0_OLD_EMITTERS,
    LEVEL_1,
    Program,
    compile_ahead,
    jit,
    split,
)
from jalax._runtime.failures import naming_knobs, termination_as_interrupt
from jalax._runtime.layouts import Layout
from jalax._runtime.options import canonical
from jalax._runtime.processes import to_host
from jalax._starts.example import Example
from jalax._starts.importance import Importance, Laplace
from jalax._starts.tempered import Tempered

MAX_STEPS = 1000  # of an automatic fit, unless it is told otherwise


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
            1024 for Scoring, a power of two, else 100.
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
    model = checks.prepare_model(model)
    layout, structure = sharding.layout_for(model, mesh), model.structure
    given = layouts.with_auto_axes((model, theta, key, algorithm, start, state))
    model, theta, key, algorithm, start, state = given
    with layouts.use_mesh(layout), naming_knobs(model.grouped), one_thread():
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
        run, status, message = _run(request, choice.algorithm, theta, state)
        verdict = judged(run, status, choice, limited=num_steps is not None)
        while verdict.doubt:
            choice = again(verdict, choice)
            run, status, message = _run(request, choice.algorithm, verdict.theta, resumes=False)
            verdict = judged(run, status, choice, limited=num_steps is not None)
        with termination_as_interrupt():
            return result_of(run, status, message, verdict.done, choice.reason)


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


def _run(
    asked: _Request,
    algorithm: Algorithm,
    theta: Tree,
    state: State | SavedState | None = None,
    resumes: bool = True,
) -> tuple[Run, Status, str]:
    """From theta, or a state, to the end of the loop; `resumes`: from a checkpoint if there is."""
    algorithm.check(asked.model)
    num_steps = _num_steps(asked.num_steps, algorithm)
    key_start, key_run = split(asked.key)
    capacity = capacity_of(asked.chunk_size)
    begin: Start | None = None
    if state is None:
        checks.check_log_joint(asked.model, theta)
    model = algorithm.prepared(asked.model, theta)
    asked = asked._replace(model=model)
    if state is None:
        algorithm = algorithm.filled(theta).canonical()
        algorithm.check_theta(theta)
        begin, first = _begin(asked, key_start, algorithm, theta, capacity)
    else:
        algorithm = algorithm.filled(theta).canonical()
        first = sharding.place(model, _continued(state, algorithm, model, theta))
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
    callbacks = with_progress(asked.callbacks, asked.progress)
    with termination_as_interrupt():
        return run, *drive(run, advance, asked.chunk_size, callbacks)


def _begin(
    asked: _Request, key, algorithm: Algorithm, theta: Tree, capacity: int
) -> tuple[Start, State]:
    """The start that was taken, and the state of step 0; the loop is compiled meanwhile."""
    model, given = asked.model, start_for(algorithm, asked.start)
    begin, count = _prepare_start(given, model, theta, algorithm, asked.num_particles)
    if isinstance(begin, Example):
        checks.check_example(model, theta, algorithm.gives_evidence)
        state = _init_example.eval_shape(key, algorithm, model, theta, count)
        with _compiling(model, lambda: [_lowered(key, algorithm, model, state, capacity)]):
            first = _init_example(key, algorithm, model, theta, count)
        return begin, first
    if given is not None:
        cloud = _draw(key, begin, model, theta, count)
        checks.check_start(model, theta, cloud, algorithm.gives_evidence)
        return begin, _init(key, algorithm, model, theta, cloud)

    checks.check_example(model, theta, weighted=False)  # the search for a mode begins there

    def loop_and_first_state() -> list[Any]:
        scores = information.fits(theta)
        cloud = default_cloud.start_shapes(key, model, theta, count, scores)
        state = _init.eval_shape(key, algorithm, model, theta, cloud)
        loop_program = _lowered(key, algorithm, model, state, capacity)
        return [loop_program, _init.lower(key, algorithm, model, theta, cloud)]

    with _compiling(model, loop_and_first_state):
        begin, cloud = _default_cloud(key, begin, model, theta, count)
        checks.check_start(model, theta, cloud, algorithm.gives_evidence)
    return begin, _init(key, algorithm, model, theta, cloud)


@contextlib.contextmanager
def _compiling(model: Model, lower: Callable[[], list[Any]]) -> Iterator[None]:
    """The largest programs compile while the start is drawn.

    Not for a GPU, whose compiler wants to try things on it, and not on a mesh, where only the
    start itself knows how its particles lie.
    """
    alone = jax.default_backend() == "cpu" and model.layout is None
    ahead = compile_ahead(*lower()) if alone else None
    yield
    if ahead is not None:  # an error in the start does not wait for it
        ahead.join()


def _lowered(key, algorithm: Algorithm, model: Model, state: State, capacity: int) -> Any:
    length = np.zeros((), np.int32)
    return loop.run_chunk.lower(key, algorithm, model, state, length, capacity=capacity)


def _num_steps(num_steps: int | None, algorithm: Algorithm) -> int:
    if num_steps is None and algorithm.stops_by_itself:
        return MAX_STEPS
    return arguments.check_count("num_steps", num_steps)


def start_for(algorithm: Algorithm, given: Start | None) -> Start | None:
    """None: the default start, with its checks."""
    return Example() if given is None and algorithm.finds_its_particles else given


def default_start(model: Model) -> Laplace:
    return Laplace(num_draws=8 * rounds.default_particles(model))


def _default_cloud(
    key, begin: Start, model: Model, theta: Tree, num_particles: int
) -> tuple[Start, Cloud]:
    """The default start, or a tempered one where it is not good enough."""
    scores = information.fits(theta)
    cloud = default_cloud.start_cloud(key, model, theta, num_particles, scores)
    if not needs_tempering(cloud.k_hat, cloud.log_evidence_error):
        return begin, cloud
    tempered = Tempered()
    return tempered, _draw(key, tempered, model, theta, num_particles)


def needs_tempering(k_hat: Any, error: Any) -> bool:
    """Too few draws of the default start carry the weight (its particles are resampled)."""
    k_hat, error = to_host((k_hat, error))
    return bool(np.median(k_hat) > USUAL_LIMIT or np.max(error) > 0.2)


def start_as_tree(start: Any) -> Any:
    """With arrays for numbers; a pair of functions, which are none, as a reference."""
    if isinstance(start, (Importance, Tempered)):
        start = dataclasses.replace(start, reference=as_reference(start.reference))
    return canonical(start, jnp.asarray)


def _prepare_start(
    given_start: Start | None,
    model: Model,
    theta: Tree,
    algorithm: Algorithm,
    num_particles: int | None,
) -> tuple[Start, int]:
    """The start as a pytree, and the number of particles in each group."""
    start: Any = default_start(model) if given_start is None else given_start
    if not dataclasses.is_dataclass(start) or isinstance(start, type):
        raise TypeError(
            "start must be an object such as jalax.Given(particles) or jalax.FromSampler(fn), got "
            f"{start!r}."
        )
    if hasattr(start, "check"):
        start.check(model, theta)
    start = start_as_tree(start)
    brought = start.count(model) if hasattr(start, "count") else None
    counts = {
        "num_particles": num_particles,
        "the particles of the start": brought,
        **algorithm.fixed_particles,
    }
    given = {name: n for name, n in counts.items() if n is not None}
    if len(set(given.values())) > 1:
        found = ", ".join(f"{name} = {n}" for name, n in given.items())
        raise ValueError(f"the number of particles is given more than once: {found}.")
    count = next(iter(given.values()), algorithm.default_particles(model))
    if not algorithm.finds_its_particles:  # else it knows how many, and they lie where they can
        if not given and model.layout is not None:  # the next number that spreads evenly
            count += -count % model.layout.size("particles")
        layouts.check_particles(model.layout, count)
    return start, arguments.check_count("num_particles", count, algorithm.min_particles)


@jit(static_argnames="num_particles")
def _draw(key, start: Start, model: Model, theta: Tree, num_particles: int) -> Cloud:
    return start(key, model, theta, num_particles)


def _first(key, algorithm: Algorithm, model: Model, theta: Tree, cloud: Cloud) -> State:
    key = jax.random.fold_in(key, 1)
    return sharding.constrain_state(model, algorithm.init(key, model, theta, cloud))


def _first_of_example(
    key, algorithm: Algorithm, model: Model, theta: Tree, num_particles: int
) -> State:
    """The same without ever holding the copies outside."""
    return _first(key, algorithm, model, theta, Example()(key, model, theta, num_particles))


_init = Program(_first, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1)
_init_example = Program(
    _first_of_example, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1, static_argnames="num_particles"
)


def _continued(state: State | SavedState, algorithm: Algorithm, model: Model, theta: Tree) -> State:
    """The state a fit goes on from, once its structure is that of this algorithm and model."""
    if isinstance(state, SavedState):
        shape = state.arrays["state.log_weights"].shape
    elif isinstance(state, State):
        shape = state.log_weights.shape
    else:
        hint = ": pass result.state" if isinstance(state, FitResult) else ""
        raise TypeError(
            f"state must be the state of a FitResult, got {type(state).__name__}{hint}."
        )
    particles = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*shape, *x.shape), x.dtype), model.latent
    )
    log_weights: Any = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    cloud = Cloud(particles, log_weights, None)
    like = _init.eval_shape(jax.random.key(0), algorithm, model, theta, cloud)
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
