"""Two kernels of jalax against JAX's own, each in a compiled loop.

1. The logistic log-likelihood: value and gradient of sum y z - log(1 + e^z), z = X w, for the 683
   rows of Wisconsin and N particles at once, with `jax.nn.softplus` and with `jalax`'s.
2. Gaussian noise: `jax.random.normal` and `jalax`'s, which draws the same numbers.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from _common import Row, in_rounds, machine, quick, ratio, seconds, write

import jalax
from jalax._runtime import normals
from jalax.families._softplus import softplus

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


def noise_loop(normal, shape: tuple[int, ...], steps: int):
    dtype = np.dtype("float64" if jax.config.jax_enable_x64 else "float32")

    def body(k, x):
        return x + 1e-9 * normal(jax.random.fold_in(jax.random.key(0), k), shape, dtype)

    run = jax.jit(lambda x: jax.lax.fori_loop(0, steps, body, x))
    x = jnp.zeros(shape, dtype)
    seconds(lambda: run(x))  # compiles
    return lambda: run(x)


def noise_rows() -> list[Row]:
    found = []
    for bits in (64, 32):
        with jax.enable_x64(bits == 64):
            for shape in ((15, 100), (15, 1000), (100, 9), (1000, 9), (50, 31_520)):
                steps = max(3, 1_000_000 // math.prod(shape))
                contenders = {"jax": jax.random.normal, "jalax": normals.normal}
                runs = {name: noise_loop(it, shape, steps) for name, it in contenders.items()}
                times = in_rounds(runs, 3 if quick() else 15)
                each = {k: 1e9 * float(np.median(v)) / steps for k, v in times.items()}
                row: Row = {"float": bits, "shape": " x ".join(map(str, shape))}
                row |= {f"{name}, ns a number": t / math.prod(shape) for name, t in each.items()}
                found.append(row | {"ratio": ratio(times["jax"], times["jalax"])})
    return found


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
    logistic, noise = rows(), noise_rows()
    parts = [__doc__.strip(), logistic, noise]
    write("kernels", parts, machine=machine(), rows=logistic, noise=noise)
