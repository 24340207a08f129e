"""fit_many: many fits in one vmapped program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jalax._evidence.uncertainty import Finished
from jalax._fit import loop
from jalax._fit.callbacks import Callback, Run, check_callbacks
from jalax._fit.checkpoint import checkpoint
from jalax._fit.conclusion import finish_alone, finished_as_json, finished_from_json, result_of
from jalax._fit.driver import advice, capacity_of, drive, with_progress
from jalax._fit.fit import (
    _num_steps,
    _prepare_start,
    default_start,
    filled,
    needs_tempering,
    prepare_algorithm,
    start_as_tree,
)
from jalax._fit.result import FitResult
from jalax._model import checks
from jalax._model.model import Model
from jalax._model.types import Algorithm, Start, Status
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments, layouts
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
        mesh: spread the fits over many devices: `jalax.Layout(mesh, fits=...)`, or a
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
    layout = layouts.of_fits(mesh)
    algorithm = prepare_algorithm(algorithm)
    num_steps = _num_steps(num_steps, algorithm)
    chunk_size = arguments.check_count("chunk_size", chunk_size)
    if any(isinstance(callback, checkpoint) for callback in callbacks):
        raise ValueError("checkpoint works with jalax.fit; jalax.fit_many has no checkpoints.")
    model = checks.prepare_model(model)
    theta = model.theta if theta is None else theta
    if dataclasses.is_dataclass(start) and not isinstance(start, type):
        start = start_as_tree(start)
    if axes is not None and not isinstance(axes, Mapping):
        raise TypeError(f"axes must be a dict such as {{'theta': 0}}, got {axes!r}.")
    axes, given_start = dict(axes or {}), start
    if theta is not None:
        one_theta = theta
        if axes.get("theta") is not None:
            one_theta = jax.tree.map(
                lambda leaf: jnp.asarray(leaf)[0] if jnp.ndim(leaf) else leaf, theta
            )
        algorithm = filled(algorithm, one_theta)
    start = Laplace() if start is None else start  # its size is set when one fit is at hand
    inputs = _Inputs(algorithm, model.replace(theta=None), theta, start)
    leaf_axes = _axes(inputs, axes)
    count = _count(inputs, leaf_axes, num_fits, key)
    arguments.check_key(key, count)
    assert key is not None
    keys = jax.random.split(key, count) if key.ndim == 0 else key
    real, more = count, 0 if layout is None else -count % layout.size("fits")
    if more:  # the last fit some more times, so that all devices have the same number
        count += more
        keys = jnp.concatenate([keys, jnp.repeat(keys[-1:], more, axis=0)])
        inputs = _lengthened(inputs, leaf_axes, more)
        theta = inputs.theta
    key_start, key_run = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 0, 1)

    if given_start is None:
        inputs = inputs._replace(start=default_start(_pick(inputs, leaf_axes, 0).model))
    one = _pick(inputs, leaf_axes, 0)
    first_theta = checks.prepare_theta(one.theta, one.model)
    checks.check_log_joint(one.model, first_theta)
    _, num_particles = _prepare_start(
        one.start, one.model, first_theta, one.algorithm, num_particles
    )
    # Thousands of fits are looked at one by one: on the host, where indexing is cheap.
    host = jax.tree.map(np.asarray, inputs)
    for i in range(count):
        _check(_pick(host, leaf_axes, i), i)
    inputs = inputs._replace(theta=jax.tree.map(strong_float, theta))

    if layout is not None:
        inputs = layouts.put_fits(layout, inputs, leaf_axes)
    how = tuple(leaf_axes), num_particles, layout
    states, seen, quality = _begin(key_start, inputs, *how)
    if given_start is None and needs_tempering(*quality):
        inputs = inputs._replace(start=Tempered())
        states, seen, _ = _begin(key_start, inputs, *how)
    seen = to_host(seen)
    for i in range(count):
        value, alive, log_weights = (array[i] for array in seen)
        checks.check_values(value, alive, log_weights, algorithm.gives_evidence)
    run = Run(
        key=key_run,
        model=inputs.model,
        algorithm=inputs.algorithm,
        state=states,
        first_step=0,
        num_steps=num_steps,
        many=True,
        diverged=np.zeros(count, bool),
        retries=np.zeros(count, int),
        walled=np.zeros(count, bool),
        layout=layout,
    )
    in_loop = len(jax.tree.leaves((inputs.algorithm, inputs.model)))
    advance = partial(
        loop.run_chunk_many,
        key_run,
        inputs.algorithm,
        inputs.model,
        capacity=capacity_of(chunk_size),
        axes=tuple(leaf_axes[:in_loop]),
        layout=layout,
    )
    with termination_as_interrupt(), naming_knobs(model.grouped):
        status, message = drive(run, advance, chunk_size, with_progress(callbacks, progress))
        host, states = to_host((inputs, run.state))
        ends = []
        for i in range(real):
            lane = _lane(run, _pick(host, leaf_axes, i), states, i, run.key[i])
            diverged = Status.DIVERGED, advice(lane)
            ends.append((lane, *(diverged if run.diverged[i] else (status, message))))
        done = _finish_together(ends, layout)
        return FitResults(tuple(result_of(*end, done.get(i)) for i, end in enumerate(ends)))


class _Inputs(NamedTuple):
    """Everything that may differ from fit to fit."""

    algorithm: Any
    model: Model
    theta: Tree
    start: Any


def _axes(inputs: _Inputs, axes: dict[str, Any]) -> list[int | None]:
    """For each leaf of `inputs`: 0 if it leads with the fit axis, else None."""
    options = [f.name for f in dataclasses.fields(inputs.algorithm) if not f.metadata.get("static")]
    known = ["theta", "data", "start", *options]
    unknown = sorted(set(axes) - set(known))
    if unknown:
        raise ValueError(f"axes names {unknown}; it knows {known}.")

    def named(name: str, tree: Tree) -> Tree:
        axis = axes.get(name)
        if axis is not None and not jax.tree.leaves(tree):
            raise ValueError(
                f"axes says that {name} leads with the fit axis, but it holds no array: {tree!r}."
            )
        try:
            return _spread(tree, axis)
        except _AnotherTree as error:
            raise ValueError(
                f"axes[{name!r}] is not 0, nor a tree like {name}, {trees.describe(tree)}; got "
                f"{axis!r}."
            ) from error

    algorithm = dataclasses.replace(
        inputs.algorithm,
        **{name: named(name, getattr(inputs.algorithm, name)) for name in options},
    )
    model = jax.tree.map(lambda _: False, inputs.model)
    mapped = _Inputs(
        algorithm=algorithm,
        model=model.replace(data=named("data", inputs.model.data)),
        theta=named("theta", inputs.theta),
        start=named("start", inputs.start),
    )
    return [0 if leads else None for leads in jax.tree.leaves(mapped)]


class _AnotherTree(Exception):
    pass


def _spread(tree: Tree, axis: Any) -> Tree:
    """A prefix, as in jax.vmap: one 0 stands for all the leaves below it."""
    if axis is None or (isinstance(axis, int) and axis == 0):
        return jax.tree.map(lambda _: axis == 0, tree)
    if isinstance(axis, int):
        raise ValueError(
            f"axes takes 0, the leading axis, or None; got {axis}: move that axis to the front."
        )
    if jax.tree_util.all_leaves([axis]):
        raise _AnotherTree
    below = jax.tree.structure(axis, is_leaf=lambda a: a is None)
    try:
        parts = below.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise _AnotherTree from error
    each = jax.tree.leaves(axis, is_leaf=lambda a: a is None)
    return below.unflatten([_spread(part, a) for part, a in zip(parts, each, strict=True)])


def _count(inputs: _Inputs, axes: list[int | None], num_fits: int | None, key: Any) -> int:
    """How many fits: from the axes, the keys or num_fits, which must agree."""
    sizes = {"num_fits": num_fits} if num_fits is not None else {}
    if isinstance(key, jax.Array) and key.ndim == 1:
        sizes["key"] = key.shape[0]
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    for (path, leaf), axis in zip(leaves, axes, strict=True):
        if axis == 0:
            name = jax.tree_util.keystr(path).removeprefix(".")
            if jnp.ndim(leaf) == 0:
                raise ValueError(
                    f"axes says that {name} leads with the fit axis, but it is a scalar."
                )
            sizes[name] = jnp.shape(leaf)[0]
    if not sizes:
        raise ValueError("how many fits? Pass num_fits=, an array of keys, or axes=.")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"the fit axes differ in length: {found}.")
    return arguments.check_count("num_fits", next(iter(sizes.values())))


def _pick(inputs: _Inputs, axes: list[int | None], i: int) -> _Inputs:
    """The inputs of fit i alone."""
    leaves, treedef = jax.tree.flatten(inputs)
    return treedef.unflatten(
        [x if a is None else np.asarray(x)[i] for x, a in zip(leaves, axes, strict=True)]
    )


def _check(one: _Inputs, i: int) -> None:
    try:
        one.algorithm.check(one.model)
        theta = checks.prepare_theta(one.theta, one.model)
        checks.check_projection(one.algorithm, theta)
    except (ValueError, TypeError) as error:
        error.add_note(f"in fit number {i} of fit_many")
        raise


def _lengthened(inputs: _Inputs, axes: list[int | None], more: int) -> _Inputs:
    """The last fit `more` times again."""
    leaves, treedef = jax.tree.flatten(inputs)
    return treedef.unflatten(
        [
            x if axis is None else np.concatenate([x, np.repeat(x[-1:], more, axis=0)])
            for x, axis in zip(leaves, axes, strict=True)
        ]
    )


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
def _begin(keys, inputs: _Inputs, axes: tuple, num_particles: int, layout: Layout | None):
    """First states, with what the checks want to see of their particles."""

    def begin(key, inputs: _Inputs):
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


def _lane(run: Run, one: _Inputs, states: Any, i: int, key: jax.Array) -> Run:
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
        walled=run.walled[i],
        began=run.began,
    )
