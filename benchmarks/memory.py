"""Large models in little memory, each in a process of its own: its peak, and seconds a step.

1. Logistic regression, 1e7 rows x 10 in float32, N = 100: 4 GB of logits, were they all held. They
   are computed for 16,384 rows at a time, the default on a CPU.
2. The network with 512 hidden units, 403,456 latents, 800 images, N = 100.

Plain JALA-EM, a few steps by `jalax.fit`; seconds a step are those of a longer fit less those
of a short one, both compiled. Data of random numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import Row, machine, quick, write

import jalax
from jalax.cli.book_child import peak_memory

ROWS = 10**5 if quick() else 10**7
NUM_PARTICLES = 100


def logistic() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, 10), np.float32)
    w = rng.standard_normal(10, np.float32)
    y = rng.random(ROWS, np.float32) < 1 / (1 + np.exp(-X @ w))
    model = jalax.models.logistic_regression(X, y)
    return model, jnp.asarray(w) + jnp.zeros((NUM_PARTICLES, 10))


def network() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    images = rng.random((800, 784), np.float32)
    model = jalax.models.neural_network(images, np.arange(800) % 4, num_hidden=512)
    noise = jax.tree.map(
        lambda leaf: 0.05 * jax.random.normal(jax.random.key(0), (NUM_PARTICLES, *leaf.shape)),
        model.latent,
    )
    return model, noise


MODELS = {
    "logistic": logistic,
    "network": network,
}


def measure(name: str) -> Row:
    model, particles = MODELS[name]()
    seconds = []
    for steps in (1, 1, 4):  # the first compiles
        began = time.perf_counter()
        jalax.fit(
            model,
            key=jax.random.key(0),
            start=jalax.Given(particles),
            algorithm=jalax.JALAEM(
                step_size=1e-9, optimizer=optax.adam(1e-3), weights=jalax.weights.TemperedWeights()
            ),
            num_steps=steps,
            progress=jalax.callbacks.Callback(),
        )
        seconds.append(time.perf_counter() - began)
    return {
        "model": name,
        "first fit, s": seconds[0],
        "s a step": (seconds[2] - seconds[1]) / 3,
        "peak memory, GB": peak_memory() / 1e9,
    }


def main() -> None:
    rows = []
    for name in MODELS:
        command = [sys.executable, __file__, name, *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    write("memory", [__doc__.strip(), rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word in MODELS]
    if given:
        print(json.dumps(measure(given[0])))
    else:
        main()
