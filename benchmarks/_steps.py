"""Steps of jalax's algorithms as `fit` runs them, without what surrounds them in a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _common import compile_seconds

from jalax._fit import begin, loop
from jalax._model.types import Cloud
from jalax._runtime.options import canonical

CAPACITY = 2048  # rows of the record buffers, and the most steps of one call


class Steps(NamedTuple):
    """Many steps in one compiled call, compiled already."""

    run: Callable[[], Any]
    compile_seconds: float
    steps: int  # fewer than asked for where the algorithm is done
    resampled: float  # the fraction of steps that resampled
    dead: int  # particles, in the worst step


def cloud_of(particles: Any) -> Cloud:
    """Particles (G, N, ...) of equal weights."""
    shape = jax.tree.leaves(particles)[0].shape[:2]
    return Cloud(particles, jnp.zeros(shape), None)


def steps_of(model: Any, algorithm: Any, particles: Any, steps: int) -> Steps:
    """`steps` steps of `algorithm` from `particles` (G, N, ...), as one chunk of a fit."""
    assert steps <= CAPACITY
    key = jax.random.key(0)
    algorithm = canonical(algorithm)
    state = begin.first_state(key, algorithm, model, model.theta, cloud_of(particles))
    length = jnp.asarray(steps, jnp.int32)

    def run():
        return loop.run_chunk(key, algorithm, model, state, length, capacity=CAPACITY)

    compiled = compile_seconds(run)
    chunk = run()
    done = int(chunk.length)
    return Steps(
        run,
        compiled,
        done,
        float(np.mean(chunk.records["resampled"][:done])),
        int(np.max(chunk.records["dead"][:done])),
    )


def posterior_particles(model: Any, num_particles: int) -> Any:
    """Near the posterior at the model's theta: there the weights stay even."""
    import jalax

    start = jalax.Laplace()
    draw = jax.jit(lambda key, model: start(key, model, model.theta, num_particles).particles)
    return draw(jax.random.key(1), model)
