"""What a step of JALA-EM costs where theta is a network of a million or ten million numbers.

    python benchmarks/large_theta.py [--quick]      # large_theta.md and .json

A decoder 20 -> W -> W -> 784 of 128 images with 32 particles each. In rounds, so that the ratios
hold inside one run: seconds of a step, of log p with both of its pull-backs (the gradient in the
latents and the weighted one in theta, which every step needs) and of the plain gradient (one
backward pass for both, which cannot weigh by the weights that it leads to). "automatic" moves with
the inverse Hessian of each image's latents, found anew in each step. All of them once with products
in float32, as jalax has them, and once in TF32 (`jax.default_matmul_precision`).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _common import Row, in_rounds, machine, quick, ratio, write
from _steps import steps_of
from digits import PIXELS, layers, log_joint

import jalax
from jalax.options import InverseHessian, adam

LATENTS, IMAGES, PARTICLES, STEPS, ROUNDS = 20, 128, 32, 20, 7
WIDTHS = (12,) if quick() else (675, 2770)  # 1e6 and 1e7 numbers


def repeated(visit, theta, x, data):
    """STEPS visits in one program, each at another theta, so that none is left out."""

    @jax.jit
    def run(theta, x):
        def one(_, carry):
            theta, x = carry
            by_x, by_theta = visit(theta, x, data)
            near = jax.tree.map(lambda t, g: t + 1e-9 * g, theta, by_theta)
            return near, x + 1e-9 * by_x

        return jax.lax.fori_loop(0, STEPS, one, (theta, x))

    return partial(run, theta, x)


def log_p(theta, x, data):
    one = jax.vmap(log_joint, (None, 0, None))
    return jax.vmap(one, (None, 0, 0))(theta, x, data)


def two_pull_backs(theta, x, data):
    value, back = jax.vjp(lambda theta, x: log_p(theta, x, data), theta, x)
    by_x = back(jnp.ones_like(value))[1]
    weights = jax.nn.softmax(1e-9 * value, axis=1)  # known only after the forward pass
    return by_x, back(weights)[0]


def plain_gradient(theta, x, data):
    slope = jax.grad(lambda theta, x: jnp.sum(log_p(theta, x, data)) / PARTICLES, (0, 1))
    by_theta, by_x = slope(theta, x)
    return by_x, by_theta


def measured(width: int, precision: str) -> Row:
    with jax.default_matmul_precision(precision):
        return {"products": precision} | _measured(width)


def _measured(width: int) -> Row:
    theta = layers(jax.random.key(1), [LATENTS, width, width, PIXELS])
    data = jnp.asarray(np.random.default_rng(0).integers(0, 2, (IMAGES, PIXELS)), jnp.float32)
    x = jax.random.normal(jax.random.key(2), (IMAGES, PARTICLES, LATENTS))
    model = jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), data, theta=theta)
    plain = jalax.JALAEM(step_size=1e-3, optimizer=adam(1e-5))
    ours = jalax.JALAEM(step_size=0.01, preconditioner=InverseHessian(), optimizer=adam(1e-5))
    runs = {
        "step": steps_of(model, plain, x, STEPS).run,
        "automatic": steps_of(model, ours, x, STEPS).run,
        "two": repeated(two_pull_backs, theta, x, data),
        "plain": repeated(plain_gradient, theta, x, data),
    }
    for run in runs.values():
        jax.block_until_ready(run())
    times = in_rounds(runs, 3 if quick() else ROUNDS)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(theta))
    stats = jax.devices()[0].memory_stats() or {}
    best = {what: 1e3 * times[what].min() / STEPS for what in runs}
    return {
        "numbers of theta": numbers,
        "a step (ms)": round(float(best["step"]), 2),
        "log p and both pull-backs (ms)": round(float(best["two"]), 2),
        "step / these": round(ratio(times["step"], times["two"]), 3),
        "plain gradient (ms)": round(float(best["plain"]), 2),
        "automatic step (ms)": round(float(best["automatic"]), 2),
        "automatic / these": round(ratio(times["automatic"], times["two"]), 3),
        "peak memory so far (GB)": round(stats.get("peak_bytes_in_use", 0) / 1e9, 2),
    }


def main() -> None:
    rows = []
    for width in WIDTHS:
        for precision in ("float32", "tensorfloat32"):
            rows.append(measured(width, precision))
            print(rows[-1], flush=True)
    about = f"{IMAGES} images, {PARTICLES} particles each, float32; the best of {ROUNDS} rounds."
    write("large_theta", [about, rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
