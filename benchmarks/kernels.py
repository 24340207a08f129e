"""The logistic log-likelihood and its gradient: jalax's softplus against XLA's own.

Seconds of the value and gradient of sum y z - log(1 + e^z), z = X w, for the 683 rows of Wisconsin
and N particles at once, in a compiled loop.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from _common import Row, in_rounds, machine, quick, ratio, seconds, write

import jalax
from jalax.models._softplus import softplus

KERNELS = {"jax.nn.softplus": jax.nn.softplus, "jalax": softplus}


def loop(kernel, num_particles: int, steps: int):
    data = jalax.datasets.wisconsin()
    X, y = (jnp.asarray(np.asarray(a), float) for a in (data.features, data.labels))

    def log_likelihood(w):
        logits = jnp.matmul(w, X.T, precision="highest")
        return jnp.sum(y * logits - kernel(logits))

    gradient = jax.vmap(jax.value_and_grad(log_likelihood))

    def body(_, carry):
        w, total = carry
        value, slope = gradient(w)
        return w + 1e-9 * slope, total + value

    w = jax.random.normal(jax.random.key(0), (num_particles, X.shape[1]))
    run = jax.jit(lambda w: jax.lax.fori_loop(0, steps, body, (w, jnp.zeros(num_particles))))
    seconds(lambda: run(w))  # compiles
    return lambda: run(w)


def rows() -> list[Row]:
    found = []
    for bits in (64, 32):
        with jax.enable_x64(bits == 64):
            for num_particles in (100, 1000):
                steps = 3000 // num_particles
                runs = {name: loop(k, num_particles, steps) for name, k in KERNELS.items()}
                times = in_rounds(runs, 3 if quick() else 15)
                xla, ours = times.values()
                found.append(
                    {
                        "float": bits,
                        "N": num_particles,
                        "jax.nn.softplus, us": 1e6 * float(np.median(xla)) / steps,
                        "jalax, us": 1e6 * float(np.median(ours)) / steps,
                        "ratio": ratio(xla, ours),
                    }
                )
    return found


if __name__ == "__main__":
    result = rows()
    write("kernels", [result], machine=machine(), rows=result)
