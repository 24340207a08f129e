"""fit_many: many fits in one vmapped program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jalax._evidence.record import is_unsure
from jalax._evidence.uncertainty import Finished
from jalax._fit import loop
from jalax._fit.begin import (
    default_start,
    needs_tempering,
    num_steps_of,
    prepare_start,
    start_as_tree,
    start_for,
)
from jalax._fit.callbacks import Callback, Run, check_callbacks, reminded
from jalax._fit.checkpoint import checkpoint
from jalax._fit.choice import checked, choose
from jalax._fit.conclusion import finish_alone, finished_as_json, finished_from_json, result_of
from jalax._fit.driver import advice, capacity_of, drive, with_progress
from jalax._fit.fit_axes import (
    Inputs,
    axes_of_leaves,
    count_fits,
    lengthened,
    pick,
    taken,
    whitened,
)
from jalax._fit.result import FitResult
from jalax._model import checks
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import ARRIVED, Start, State, Status
from jalax._particles.trees import Tree
from jalax._runtime import arguments, layouts, mappings
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import LEVEL_1, jit
from jalax._runtime.failures import naming_knobs, termination_as_interrupt
from jalax._runtime.layouts import Layout
from jalax._runtime.options import strong_float
from jalax._runtime.processes import everyone_says, several, to_host
from jalax._starts.importance import Laplace
from jalax._starts.tempered import Tempered


@dataclasses.dataclass(frozen=True)
class FitResults(Sequence):
    """The results of `fit_many`: a sequence of `FitResult`, and their theta stacked."""

    results: tuple[FitResult, ...]

    def __getitem__(self, index):
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[FitResult]:
        return iter(self.results)

    @property
    def theta(self) -> Tree:
        """theta of every fit, along a leading axis."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(r.theta for r in self.results))

    @property
    def path_log_evidence(self) -> np.ndarray:
        """One a fit; NaN where a fit has none."""
        return np.array([np.nan if r.relative else r.path_value for r in self.results], float)

    @property
    def status(self) -> list[Status]:
        """How each fit ended."""
        return [result.status for result in self.results]

    def __repr__(self) -> str:
        return "\n".join(f"[{i}] {result.summary()}" for i, result in enumerate(self.results))


def fit_many(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    num_fits: int | None = None,
    axes: Mapping[str, Any] | None = None,
    algorithm: Algorithm | None = None,
    start: Start | None = None,
    num_particles: int | None = None,
    num_steps: int | None = None,
    chunk_size: int = 100,
    mesh: Mesh | Layout | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Callback | None = None,
) -> FitResults:
    """Many fits at once, in one compiled program.

    Args:
        model: as in `fit`; with `axes={"data": 0}` every data leaf leads with the fit axis.
        theta: as in `fit`; with `axes={"theta": 0}` every leaf leads with the fit axis.
        key: one key, split over the fits, or an array with one key a fit.
        num_fits: how many; needed only where no axis tells.
        axes: which arguments lead with the fit axis, as `{name: 0}`: "theta", "data", "start",
            or an option of the algorithm such as "step_size" or "optimizer" (all its numbers).
            A tree of 0 and None, as in `jax.vmap`, says it leaf by leaf.
        algorithm: as in `fit`.
        start: as in `fit`.
        num_particles: as in `fit`.
        num_steps: as in `fit`.
        chunk_size: as in `fit`.
        mesh: spread the fits over many devices: `jalax.runtime.Layout(mesh, fits=...)`, or a
            `jax.make_mesh` with one axis, called "fits". On several processes the scoring steps
            and evidences at the end are shared out, too, and every process gets all results.
        callbacks: as in `fit`; they see all fits at once.
        progress: as in `fit`.

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> prior = jalax.FromSampler(lambda key, theta, data: theta + jax.random.normal(key, (3,)))
    >>> fits = jalax.fit_many(model, 0.0, key=jax.random.key(1), start=prior, num_steps=50,
    ...     algorithm=jalax.PGD(step_size=jax.numpy.array([0.01, 0.1])), axes={"step_size": 0})
    >>> len(fits), fits.theta.shape
    (2, (2,))
    """
    shape = getattr(key, "shape", ())
    arguments.check_key(key, shape[0] if shape else None)
    callbacks = check_callbacks(callbacks, progress)
    mappings.make_room()
    layout = layouts.of_fits(mesh)
    algorithm = None if algorithm is None else checked(algorithm)
    chunk_size = arguments.check_count("chunk_size", chunk_size)
    if any(isinstance(callback, checkpoint) for callback in callbacks):
        raise ValueError("checkpoint works with jalax.fit; jalax.fit_many has no checkpoints.")
    axes = _checked_axes(axes)
    choice, inputs = _inputs(model, theta, axes, algorithm, start, num_particles)
    limited, num_steps = num_steps is not None, num_steps_of(num_steps, inputs.algorithm)
    starts_itself = start_for(inputs.algorithm, start) is None
    leaf_axes = axes_of_leaves(inputs, axes)
    count = count_fits(inputs, leaf_axes, num_fits, key)
    arguments.check_key(key, count)
    assert key is not None
    keys, real = jax.random.split(key, count) if key.ndim == 0 else key, count
    if more := 0 if layout is None else -count % layout.size("fits"):
        # The last fit some more times, so that all devices have the same number.
        count, keys = count + more, jnp.concatenate([keys, jnp.repeat(keys[-1:], more, axis=0)])
        inputs = lengthened(inputs, leaf_axes, more)
    if starts_itself:
        inputs = inputs._replace(start=default_start(pick(inputs, leaf_axes, 0).model))
    num_particles = _check_all(inputs, leaf_axes, count, num_particles)
    inputs = inputs._replace(theta=jax.tree.map(strong_float, inputs.theta))
    asked = _Asked(
        leaf_axes, num_particles, num_steps, chunk_size, layout, callbacks, progress, starts_itself
    )
    with termination_as_interrupt(), naming_knobs(model.grouped), one_thread():
        ends = _run(keys, inputs, asked)[:real]
        done = _finish_together(ends, layout)
        # Here, because its warnings point at the caller of this function.
        results = [result_of(*end, done.get(i), choice) for i, end in enumerate(ends)]
        unsure = [i for i, one in enumerate(results) if is_unsure(one) and not limited]
        if unsure and layout is None and (white := whitened(inputs, axes)) is not None:
            asked = asked._replace(axes=axes_of_leaves(*white))
            again = taken(white[0], asked.axes, np.array(unsure))
            for i, end in zip(unsure, _run(keys[np.array(unsure)], again, asked), strict=True):
                second = result_of(*end, None, choice)
                if second.status in ARRIVED or results[i].status not in ARRIVED:
                    results[i] = second
        return FitResults(tuple(results))


class _Asked(NamedTuple):
    """How all fits are made, whatever they are made of."""

    axes: list[int | None]
    num_particles: int
    num_steps: int
    chunk_size: int
    layout: Layout | None
    callbacks: Sequence[Callback]
    progress: Callback | None
    tempers: bool


def _run(keys, inputs: Inputs, asked: _Asked) -> list[tuple[Run, Status, str]]:
    """All fits from their start to the end of the loop."""
    layout, count = asked.layout, len(keys)
    key_start, key_run = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 0, 1)
    if layout is not None:
        inputs = layouts.put_fits(layout, inputs, asked.axes)
    inputs, states = _first_states(
        key_start, inputs, tuple(asked.axes), asked.num_particles, layout, asked.tempers
    )
    run = Run(
        key=key_run,
        model=inputs.model,
        algorithm=inputs.algorithm,
        state=states,
        first_step=0,
        num_steps=asked.num_steps,
        many=True,
        diverged=np.zeros(count, bool),
        retries=np.zeros(count, int),
        left_support=np.zeros(count, bool),
        layout=layout,
    )
    advance = _advance(key_run, inputs, asked.axes, asked.chunk_size, layout)
    callbacks = with_progress(asked.callbacks, asked.progress)
    with reminded(callbacks, run.began, layout):
        status, message = drive(run, advance, asked.chunk_size, callbacks)
    return _ends(run, inputs, asked.axes, count, status, message)


def _inputs(
    model: Model,
    theta: Tree,
    axes: dict[str, Any],
    given: Algorithm | None,
    start: Start | None,
    num_particles: int | None,
) -> tuple[str, Inputs]:
    """Why the algorithm was chosen, and what the fits are made of."""
    model = checks.prepare_model(model)
    theta = model.theta if theta is None else theta
    theta_0 = _theta_of_one(theta, axes.get("theta"))
    choice = choose(given, model, theta_0, start, num_particles)
    algorithm = choice.algorithm
    if theta_0 is not None:
        algorithm = algorithm.filled(theta_0).canonical()
    start = start_for(algorithm, start)
    if dataclasses.is_dataclass(start) and not isinstance(start, type):
        start = start_as_tree(start)
    start = Laplace() if start is None else start  # its size is set when one fit is at hand
    return choice.reason, Inputs(algorithm, model.replace(theta=None), theta, start)


def _checked_axes(axes: Any) -> dict[str, Any]:
    if axes is not None and not isinstance(axes, Mapping):
        raise TypeError(f"axes must be a dict such as {{'theta': 0}}, got {axes!r}.")
    return dict(axes or {})


def _theta_of_one(theta: Tree, axis: Any) -> Tree:
    """theta of one fit, as options that depend on it see it; None where there is none."""
    if theta is None or axis is None:
        return theta
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0] if jnp.ndim(leaf) else leaf, theta)


def _check_all(
    inputs: Inputs, axes: list[int | None], count: int, num_particles: int | None
) -> int:
    """Every fit's options and start values; returns the number of particles."""
    one = pick(inputs, axes, 0)
    theta = checks.prepare_theta(one.theta, one.model)
    checks.check_log_joint(one.model, theta)
    _, num_particles = prepare_start(one.start, one.model, theta, one.algorithm, num_particles)
    # Thousands of fits are looked at one by one: on the host, where indexing is cheap.
    host = jax.tree.map(np.asarray, inputs)
    for i in range(count):
        _check(pick(host, axes, i), i)
    return num_particles


def _first_states(
    keys,
    inputs: Inputs,
    axes: tuple,
    num_particles: int,
    layout: Layout | None,
    tempers: bool,
) -> tuple[Inputs, State]:
    """The states of step 0; `tempers`: from a tempered start, where the default is not enough."""
    states, seen, quality = _begin(keys, inputs, axes, num_particles, layout)
    if tempers and needs_tempering(*quality):
        inputs = inputs._replace(start=Tempered())
        states, seen, _ = _begin(keys, inputs, axes, num_particles, layout)
    for value, alive, log_weights in zip(*to_host(seen), strict=True):
        checks.check_values(value, alive, log_weights, inputs.algorithm.gives_evidence)
    return inputs, states


def _advance(
    keys, inputs: Inputs, axes: list[int | None], chunk_size: int, layout: Layout | None
) -> Callable[..., loop.Chunk]:
    """A chunk of all fits, from their states and lengths."""
    in_loop = len(jax.tree.leaves((inputs.algorithm, inputs.model)))
    return partial(
        loop.run_chunk_many,
        keys,
        inputs.algorithm,
        inputs.model,
        capacity=capacity_of(chunk_size),
        axes=tuple(axes[:in_loop]),
        layout=layout,
    )


def _ends(
    run: Run, inputs: Inputs, axes: list[int | None], count: int, status: Status, message: str
) -> list[tuple[Run, Status, str]]:
    """Each fit as a run of its own, and how it ended."""
    host, states = to_host((inputs, run.state))
    ends: list[tuple[Run, Status, str]] = []
    for i in range(count):
        lane = _lane(run, pick(host, axes, i), states, i, run.key[i])
        diverged = Status.DIVERGED, advice(lane)
        ends.append((lane, *(diverged if run.diverged[i] else (status, message))))
    return ends


def _check(one: Inputs, i: int) -> None:
    try:
        one.algorithm.check(one.model)
        theta = checks.prepare_theta(one.theta, one.model)
        one.algorithm.check_theta(theta)
    except (ValueError, TypeError) as error:
        error.add_note(f"in fit number {i} of fit_many")
        raise


def _finish_together(
    ends: list[tuple[Run, Status, str]], layout: Layout | None
) -> dict[int, Finished]:
    """The last scoring steps of the fits by their number, shared out over several processes."""
    if not several(layout):
        return {}  # each is done where its result is made
    ours = {
        i: finished_as_json(found)
        for i, (lane, status, _) in enumerate(ends)
        if i % jax.process_count() == jax.process_index()
        and (found := finish_alone(lane, status)) is not None
    }
    done = {}
    for text in everyone_says(layout, json.dumps(ours)):
        for i, found in json.loads(text).items():
            done[int(i)] = finished_from_json(found, ends[int(i)][0].state.theta)
    return done


@jit(LEVEL_1, static_argnames=("axes", "num_particles", "layout"))
def _begin(keys, inputs: Inputs, axes: tuple, num_particles: int, layout: Layout | None):
    """First states, with what the checks want to see of their particles."""

    def begin(key, inputs: Inputs):
        theta = inputs.model.unconstrained(inputs.theta)
        cloud = inputs.start(key, inputs.model, theta, num_particles)
        key_init = jax.random.fold_in(key, 1)
        state = inputs.algorithm.init(key_init, inputs.model, theta, cloud)
        seen = checks.look(inputs.model, theta, cloud.particles)
        return state, (*seen, cloud.log_weights), (cloud.k_hat, cloud.log_evidence_error)

    in_axes = jax.tree.structure(inputs).unflatten(axes)
    many = jax.vmap(begin, in_axes=(0, in_axes))
    specs = layouts.fit_specs(layout, 0, [0]), layouts.fit_specs(layout, inputs, axes)
    return layouts.shard_map_fits(layout, many, specs)(keys, inputs)


def _lane(run: Run, one: Inputs, states: Any, i: int, key: jax.Array) -> Run:
    """Fit i of many, as a run of its own; its state stays on the host until it is needed."""
    state = jax.tree.map(lambda leaf: leaf[i], states)
    rows = int(states.step[i]) - run.first_step
    records = [jax.tree.map(lambda leaf: leaf[i, :rows], run.history)] if rows else []
    return Run(
        key=key,
        model=one.model,
        algorithm=one.algorithm,
        state=state,
        first_step=run.first_step,
        num_steps=run.num_steps,
        start=one.start,
        theta_0=one.model.unconstrained(one.theta),
        records=records,
        retries=run.retries[i],
        left_support=run.left_support[i],
        began=run.began,
    )
