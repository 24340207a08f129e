"""What a step costs on an accelerator, against its own ceilings.

The neural network of the paper (800 images of 784 pixels, 4 classes; 40 and 512 hidden units,
N = 50 and 1000) and logistic regression with a million rows (N = 100): milliseconds a step of plain
JALA-EM and PGD, the parts of a step by themselves, and the speed reached as a share of a plain
batched matrix product (or a copy) of the same shapes and precision, measured in the same run.
"JALA-EM / PGD" is the median over rounds of the ratio inside a round. Writes gpu.json and gpu.md
beside this file.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import HERE, in_rounds, ratio, seconds, table
from _steps import steps_of

import jalax
from jalax._model import evaluation
from jalax._particles import langevin, trees

REPEATS = 7
IMAGES, PIXELS, CLASSES = 800, 784, 4


def best(run, steps: int = 1) -> float:
    """Milliseconds a step, the best of some; the first call compiles."""
    seconds(run)
    return 1e3 * min(seconds(run) for _ in range(REPEATS)) / steps


def step_times(model, num_particles: int, steps: int) -> dict[str, float]:
    """In rounds, so that the ratios hold inside one run.

    The exact weights of hundreds of thousands of latents leave one particle, and would be
    resampled at each step: "JALA-EM" is told not to, "tempered" (as in the network's reproduction)
    never has to.
    """
    step, adam, key = 1e-6, optax.adam(0.05), jax.random.key(0)
    algorithms = {
        "JALA-EM": jalax.JALAEM(step_size=step, optimizer=adam, resample_below=0.0),
        "tempered": jalax.JALAEM(
            step_size=step,
            optimizer=adam,
            weights=jalax.weights.TemperedWeights(),
            resample_below=0.5,
        ),
        "resampling": jalax.JALAEM(step_size=step, optimizer=adam, resample_below=1.0),
        "PGD": jalax.PGD(step_size=step, optimizer=adam),
    }
    shape = jax.tree.map(
        lambda leaf: jnp.zeros((1, num_particles, *leaf.shape), leaf.dtype), model.latent
    )
    particles = jax.jit(lambda: trees.normal_like(key, shape))()
    loops = {name: steps_of(model, it, particles, steps) for name, it in algorithms.items()}
    for name, loop in loops.items():
        assert loop.resampled == (name == "resampling"), (name, loop.resampled)
    times = in_rounds({name: loop.run for name, loop in loops.items()}, REPEATS)
    found = {f"{name}, ms": 1e3 * float(np.median(it)) / steps for name, it in times.items()}
    return found | {"JALA-EM / PGD": ratio(times["JALA-EM"], times["PGD"])}


def parts(model, num_particles: int, steps: int) -> dict[str, float]:
    """The parts of a step, each alone in a compiled loop."""
    key = jax.random.key(0)
    shape = jax.tree.map(
        lambda leaf: jnp.zeros((1, num_particles, *leaf.shape), leaf.dtype), model.latent
    )
    x = jax.jit(lambda: trees.normal_like(key, shape))()

    def noise(k, x):
        return jax.tree.map(
            lambda a, b: a + 1e-6 * b, x, trees.normal_like(jax.random.fold_in(key, k), x)
        )

    def visit(k, x):
        seen = evaluation.evaluate(model, model.theta, x)
        return jax.tree.map(lambda a, g: a + 1e-9 * g, x, seen.grad_x)

    def weight(k, x):
        path = jax.tree.map(lambda a: 1e-3 * a, x)
        value = trees.total(langevin.work(x, path, jnp.asarray(1e-6)))
        return jax.tree.map(lambda a: a + 1e-30 * value.reshape((1, -1) + (1,) * (a.ndim - 2)), x)

    found = {}
    for name, body in (("visit", visit), ("noise", noise), ("weight", weight)):
        run = jax.jit(lambda x, body=body: jax.lax.fori_loop(0, steps, body, x))
        found[f"{name}, ms"] = best(lambda run=run: run(x), steps)
    return found


def matmul_ceiling(num_particles: int, hidden: int, steps: int) -> tuple[float, float]:
    """TFLOP/s of the network's two large products alone, and the flops of a step."""
    # Scaled so that the weights neither grow nor vanish from product to product.
    images = jax.random.normal(jax.random.key(0), (IMAGES, PIXELS)) / np.sqrt(IMAGES)
    w = jax.random.normal(jax.random.key(1), (num_particles, hidden, PIXELS))

    def body(_, w):
        activations = jnp.einsum("khd,nd->khn", w, images)
        return jnp.einsum("khn,nd->khd", activations, images)

    loop = jax.jit(lambda w: jax.lax.fori_loop(0, steps, body, w))
    flops = 2 * 2 * num_particles * IMAGES * PIXELS * hidden
    return flops / best(lambda: loop(w), steps) / 1e9, flops


def copy_ceiling() -> float:
    """TB/s of a copy with one operation."""
    x = jnp.ones(2**28)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: x * 1.0000001, x))
    return 2 * x.nbytes / best(lambda: loop(x), 10) / 1e9


def networks() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    images = rng.random((IMAGES, 28, 28), np.float32)
    labels = np.arange(IMAGES) % CLASSES
    rows = []
    for hidden in (40, 512):
        for num_particles in (50, 1000):
            steps = 200 if hidden * num_particles < 50_000 else 50
            model = jalax.models.neural_network(images, labels, num_hidden=hidden)
            row: dict[str, Any] = {"hidden": hidden, "N": num_particles}
            row |= step_times(model, num_particles, steps)
            ceiling, flops = matmul_ceiling(num_particles, hidden, steps)
            row["TFLOP/s"] = flops / row["JALA-EM, ms"] / 1e9
            row["matmul TFLOP/s"] = ceiling
            row["share"] = row["TFLOP/s"] / ceiling
            row |= parts(model, num_particles, steps)
            print(row, flush=True)
            rows.append(row)
    return rows


def logistic(rows_of_data: int = 1_000_000, num_particles: int = 100) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows_of_data, 10)).astype(np.float32)
    labels = rng.random(rows_of_data) < 0.5
    model = jalax.models.logistic_regression(features, labels)
    row: dict[str, Any] = {"rows": rows_of_data, "N": num_particles}
    row |= step_times(model, num_particles, 20)
    row |= parts(model, num_particles, 20)
    # The least traffic of two products and a fusion between: the logits written, read, their
    # derivative written and read.
    traffic = 4 * 4 * rows_of_data * num_particles
    row["TB/s"] = traffic / row["JALA-EM, ms"] / 1e9
    row["copy TB/s"] = copy_ceiling()
    row["share"] = row["TB/s"] / row["copy TB/s"]
    print(row, flush=True)
    return row


if __name__ == "__main__":
    found = {"network": networks(), "logistic": [logistic()]}
    about = f"`python benchmarks/gpu.py` on {jax.devices()[0].device_kind}, jax {jax.__version__}."
    parts_ = [about, table(found["network"]), table(found["logistic"])]
    (HERE / "gpu.json").write_text(json.dumps(found, indent=1))
    (HERE / "gpu.md").write_text("\n\n".join(parts_) + "\n")
