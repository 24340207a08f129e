"""How a fit begins: the start it takes, and the state of step 0."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence import default_cloud, rounds
from jalax._fit.checkpoint import unflatten_state
from jalax._fit.result import FitResult, SavedState
from jalax._model import checks, held, information, modules, sharding
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import Cloud, Start, State
from jalax._particles.pareto import USUAL_LIMIT
from jalax._particles.trees import Tree
from jalax._reference.references import as_reference
from jalax._runtime import arguments, layouts
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_1, Program, jit
from jalax._runtime.options import canonical
from jalax._runtime.processes import to_host
from jalax._starts.example import Example
from jalax._starts.importance import Importance, Laplace
from jalax._starts.tempered import Tempered

MAX_STEPS = 1000  # of an automatic fit, unless it is told otherwise


def as_asked(model: Model, theta: Tree, fixed: Any, log_prior: Any) -> tuple[Model, Tree]:
    """The model and its start value, with a prior on theta and with numbers of it held."""
    if isinstance(model, Model):
        model, theta = modules.parted(model, theta)
    if fixed is None and log_prior is None:
        return model, theta
    model = checks.prepare_model(model)
    theta = model.theta if theta is None else theta
    if log_prior is not None:
        model = held.with_prior(model, log_prior, theta)
    return (model, theta) if fixed is None else held.hold(model, theta, fixed)


def num_steps_of(num_steps: int | None, algorithm: Algorithm) -> int:
    if num_steps is None and algorithm.stops_by_itself:
        return MAX_STEPS
    return arguments.check_count("num_steps", num_steps)


def start_for(algorithm: Algorithm, given: Start | None) -> Start | None:
    """None: the default start, with its checks."""
    return Example() if given is None and algorithm.finds_its_particles else given


def default_start(model: Model) -> Laplace:
    return Laplace(num_draws=8 * rounds.default_particles(model))


def default_start_cloud(
    key, begin: Start, model: Model, theta: Tree, num_particles: int
) -> tuple[Start, Cloud]:
    """The default start, or a tempered one where it is not good enough."""
    scores = information.fits(theta)
    cloud = default_cloud.start_cloud(key, model, theta, num_particles, scores)
    if not needs_tempering(cloud.k_hat, cloud.log_evidence_error):
        return begin, cloud
    tempered = Tempered()
    return tempered, draw_start(key, tempered, model, theta, num_particles)


def needs_tempering(k_hat: Any, error: Any) -> bool:
    """Too few draws of the default start carry the weight (its particles are resampled)."""
    k_hat, error = to_host((k_hat, error))
    return bool(np.median(k_hat) > USUAL_LIMIT or np.max(error) > 0.2)


def start_as_tree(start: Any) -> Any:
    """With arrays for numbers; a pair of functions, which are none, as a reference."""
    if isinstance(start, (Importance, Tempered)):
        start = dataclasses.replace(start, reference=as_reference(start.reference))
    return canonical(start, jnp.asarray)


def prepare_start(
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
def draw_start(key, start: Start, model: Model, theta: Tree, num_particles: int) -> Cloud:
    return start(key, model, theta, num_particles)


def _first(key, algorithm: Algorithm, model: Model, theta: Tree, cloud: Cloud) -> State:
    key = jax.random.fold_in(key, 1)
    return sharding.constrain_state(model, algorithm.init(key, model, theta, cloud))


def _first_of_example(
    key, algorithm: Algorithm, model: Model, theta: Tree, num_particles: int
) -> State:
    """The same without ever holding the copies outside."""
    return _first(key, algorithm, model, theta, Example()(key, model, theta, num_particles))


first_state = Program(_first, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1)
first_state_of_example = Program(
    _first_of_example, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1, static_argnames="num_particles"
)


def continued(state: State | SavedState, algorithm: Algorithm, model: Model, theta: Tree) -> State:
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
    like = first_state.eval_shape(jax.random.key(0), algorithm, model, theta, cloud)
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
