"""`make bench`: what a step costs, measured as ratios inside one run.

Plain JALA-EM (an optax optimiser, nothing else) and its peers against PGD, and all of them
against the floor: the vmapped value-and-gradient with Gaussian noise in a compiled loop.
Repeats are interleaved, so that a busy machine slows all rows alike; the table has the median
over repeats of the ratio within a repeat. Compilation is timed apart.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jalax
from jalax import _fit, _loop
from jalax._options import canonical

REPEATS = 11
HERE = Path(__file__).parent


def algorithms(step: float) -> dict[str, object]:
    return {
        "PGD": jalax.PGD(step_size=step),
        "JALA-EM": jalax.JALAEM(step_size=step, optimizer=optax.adam(0.05)),
        "JALA-EM, resampling each step": jalax.JALAEM(
            step_size=step, optimizer=optax.adam(0.05), resample_below=1.0
        ),
        "IPLA": jalax.IPLA(step_size=step),
        "SFLA": jalax.SFLA(step_size=step * 0.1, epsilon=0.1),
    }


def steps_for(num_particles: int) -> int:
    """Enough to drown the call, few enough to repeat."""
    return max(10, 20_000 // num_particles)


def prepare(model, algorithm, num_particles: int):
    """A function that runs many steps of the algorithm, and the seconds its compilation took."""
    algorithm = canonical(algorithm)
    start = jalax.FromSampler(
        lambda key, theta, data: jnp.sqrt(5.0) * jax.random.normal(key, model.latent.shape)
    )
    key = jax.random.key(0)
    cloud = start(key, model, model.theta, num_particles)
    state = _fit._init(key, algorithm, model, model.theta, cloud)
    length = jnp.asarray(steps_for(num_particles), jnp.int32)

    def run():
        return jax.block_until_ready(
            _loop.run_chunk(key, algorithm, model, state, length, capacity=512)
        )

    begin = time.perf_counter()
    run()
    first = time.perf_counter() - begin
    return run, first - timed(run)


def floor(model, num_particles: int, step: float):
    """The least any of these algorithms can do: log p, its x-gradient, noise."""
    theta, data = model.theta, model.data
    gradient = jax.vmap(jax.value_and_grad(model.log_joint, argnums=1), in_axes=(None, 0, None))

    def body(k, carry):
        x, total = carry
        value, grad = gradient(theta, x, data)
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), k), x.shape, x.dtype)
        return x + step * grad + jnp.sqrt(2 * step) * noise, total + value

    zeros = jnp.zeros(num_particles)
    x = jnp.zeros((num_particles, *model.latent.shape))
    steps = steps_for(num_particles)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, steps, body, (x, zeros)))

    def run():
        return jax.block_until_ready(loop(x))

    begin = time.perf_counter()
    run()
    first = time.perf_counter() - begin
    return run, first - timed(run)


def timed(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(num_particles: int) -> list[dict]:
    data = jalax.datasets.wisconsin()
    model = jalax.models.logistic_regression(data.features, data.labels)
    step = 1e-3
    runs = {"floor": floor(model, num_particles, step)}
    for name, algorithm in algorithms(step).items():
        runs[name] = prepare(model, algorithm, num_particles)
    seconds = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, (run, _) in runs.items():
            seconds[name].append(timed(run))
    times = {name: np.array(values) for name, values in seconds.items()}
    return [
        {
            "N": num_particles,
            "dtype": str(model.latent.dtype),
            "algorithm": name,
            "microseconds a step": float(np.median(times[name]) / steps_for(num_particles) * 1e6),
            "x floor": float(np.median(times[name] / times["floor"])),
            "x PGD": float(np.median(times[name] / times["PGD"])),
            "compile s": runs[name][1],
        }
        for name in runs
    ]


def main() -> None:
    rows = []
    for bits in (64, 32):
        with jax.enable_x64(bits == 64):
            for num_particles in (100, 1000):
                rows += measure(num_particles)
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    columns = list(rows[0])
    lines = [
        "Wisconsin logistic regression, 683 rows x 9 latents. " + json.dumps(machine),
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for row in rows:
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    print("\n".join(lines))
    (HERE / "results.md").write_text("\n".join(lines) + "\n")
    (HERE / "results.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
