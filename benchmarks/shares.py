"""What one device of many has to do: its share of two large jobs, on one accelerator.

A logistic mixed model of a million subjects (ten rows each, a random intercept and slope,
N = 1000), over 8 to 512 devices by groups; and a network of 1e8 latents (784 pixels, 125,000 hidden
units, 1000 images), two to eight particles a device. Milliseconds a step of plain JALA-EM, and the
memory of its program. `docs/capacity.md` adds what the devices send each other.
Writes shares.json and shares.md beside this file.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import machine, quick, seconds, write
from _steps import cloud_of

import jalax
from jalax._fit import begin, loop
from jalax._particles import trees
from jalax._runtime.options import canonical

SUBJECTS, ROWS, PARTICLES = 1_000_000, 10, 1000
PIXELS, HIDDEN, IMAGES = 784, 125_000, 1000


def log_joint(theta, x, data):
    """One subject: x standard normal, logit p = a + b t + (s_0 x_0) + (s_1 x_1) t."""
    linear = theta["a"] + theta["b"] * data["t"]
    linear += jnp.exp(theta["s"][0]) * x[0] + jnp.exp(theta["s"][1]) * x[1] * data["t"]
    likelihood = jnp.sum(data["y"] * linear - jnp.logaddexp(0.0, linear))
    return likelihood - 0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi)


def subjects(count: int) -> jalax.GroupedModel:
    rng = np.random.default_rng(0)
    data = {
        "t": jnp.array(rng.normal(size=(count, ROWS)), jnp.float32),
        "y": jnp.array(rng.integers(0, 2, (count, ROWS)), jnp.float32),
    }
    theta = {"a": jnp.zeros(()), "b": jnp.zeros(()), "s": jnp.zeros(2)}
    return jalax.GroupedModel(log_joint, jnp.zeros(2), data, theta=theta)


def network(hidden: int) -> jalax.Model:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, PIXELS)).astype(np.float32)
    return jalax.models.neural_network(images, rng.integers(0, 10, IMAGES), num_hidden=hidden)


def measure(model: Any, num: int, step: float, steps: int) -> dict[str, float]:
    """A step of plain JALA-EM that does not resample."""
    key = jax.random.key(0)
    adam = jalax.Optax(optax.adam, learning_rate=1e-3)
    algorithm = canonical(jalax.JALAEM(step_size=step, optimizer=adam, resample_below=0.0))
    lead = (model.num_groups, num)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), model.latent)
    particles = jax.jit(lambda: jax.tree.map(lambda x: 0.1 * x, trees.normal_like(key, like)))()
    state = begin.first_state(key, algorithm, model, model.theta, cloud_of(particles))
    del particles
    inputs = key, algorithm, model, state
    program = loop.run_chunk.version(inputs).lower(*inputs, np.int32(steps), capacity=16).compile()
    held = program.memory_analysis()
    run = lambda: program(*inputs, np.int32(steps)).state.log_weights  # noqa: E731
    seconds(run)
    taken = min(seconds(run) for _ in range(3)) / steps
    total = held.argument_size_in_bytes + held.temp_size_in_bytes + held.output_size_in_bytes
    return {"ms a step": 1e3 * taken, "GB of particles": _bytes(state.particles), "GB": total / 1e9}


def _bytes(tree: Any) -> float:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e9


def main() -> None:
    mixed, large = [], []
    for devices in (8, 32, 128, 512) if not quick() else (8000,):
        share = measure(subjects(SUBJECTS // devices), PARTICLES, 1e-2, 10)
        mixed.append({"devices": devices, "subjects a device": SUBJECTS // devices, **share})
        print(mixed[-1], flush=True)
    hidden = HIDDEN if not quick() else 50
    for num in (2, 4, 8) if not quick() else (2,):
        share = measure(network(hidden), num, 1e-9, 5)
        flops = 6 * num * IMAGES * hidden * (PIXELS + 10)
        speed = flops / share["ms a step"] / 1e9
        large.append({"particles a device": num, **share, "TFLOP/s": speed})
        print(large[-1], flush=True)
    write(
        "shares",
        ["A million subjects, N = 1000:", mixed, "A network of 1e8 latents:", large],
        machine=machine(),
        mixed=mixed,
        network=large,
    )


if __name__ == "__main__":
    main()
