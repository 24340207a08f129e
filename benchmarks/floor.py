"""What a step costs, as a multiple of the floor.

The floor is the least that any of these algorithms can do: log p and its x-gradient of every
particle by `jax.vmap(jax.value_and_grad(...))`, and Gaussian noise, in a compiled loop. Beside it
the algorithms as `jalax.fit` runs them (one compiled chunk of steps, records included): plain
JALA-EM (a number for the step size, Adam for theta), the same resampling at each step, PGD, IPLA,
SFLA, SOUL, and the automatic JALA-EM.

Steps are small, and particles begin near the posterior, so that no weights degenerate: the column
"resampled" is the fraction of steps that did resample (to resample at each step takes a step ten
times as long, or the weights would be equal to the last bit in float32). SOUL's step is a chain of
N gradients of one particle each, then one visit of all N for the theta-gradient: 2 N gradients of
one particle, where the others take N. Its multiple is per gradient, time / (2 N) against the
floor's time / N. The automatic JALA-EM runs from its start for as many steps, or until it is done,
and is taken apart once more with parts of it switched off.

Multiples are medians over rounds of the ratio inside one round; compilation is apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import Row, compile_seconds, in_rounds, machine, quick, ratio, seconds, write
from _steps import CAPACITY, posterior_particles, steps_of

import jalax

ROUNDS = 3 if quick() else 5
SAMPLE = 0.05 if quick() else 0.1  # seconds of the floor in one round
BITS = (32,) if quick() else (64, 32)
LOGISTIC = (100,) if quick() else (10, 100, 1000, 10_000)
GROUPED = (100,) if quick() else (100, 1000)
NETWORK = {64: (10,), 32: (10,) if quick() else (10, 50)}
TAKEN_APART = (100,) if quick() else (100, 1000)


def plain(step: float, rate: float, **options: Any) -> jalax.JALAEM:
    adam = jalax.Optax(optax.adam, learning_rate=rate)  # another rate compiles no other program
    return jalax.JALAEM(step_size=step, optimizer=adam, **options)


def algorithms(step: float, rate: float) -> dict[str, Any]:
    """`rate` is Adam's; what moves theta otherwise is as small."""
    return {
        "JALA-EM": plain(step, rate),
        "JALA-EM, resampling each step": plain(10 * step, 10 * rate, resample_below=1.0),
        "PGD": jalax.PGD(step_size=step),
        "IPLA": jalax.IPLA(step_size=step),
        "SFLA": jalax.SFLA(step_size=step * 0.1, epsilon=0.1),
        "SOUL, per gradient": jalax.SOUL(step_size=step, optimizer=optax.sgd(rate)),
    }


AUTOMATIC = {
    "automatic": jalax.JALAEM(),
    "automatic, no limiter": jalax.JALAEM(limiter=jalax.options.Limiter(cess=0.0)),
    "automatic, Adam for the information": jalax.JALAEM(optimizer=optax.adam(0.05)),
    "automatic, Adam, no limiter": jalax.JALAEM(
        optimizer=optax.adam(0.05), limiter=jalax.options.Limiter(cess=0.0)
    ),
}


def floor(model: Any, particles: Any, step: float) -> Callable[[int], Any]:
    """A compiled loop of as many steps as it is told."""
    slope = jax.vmap(jax.value_and_grad(model.log_joint, argnums=1), in_axes=(None, 0, None))
    if isinstance(model, jalax.GroupedModel):
        slope = jax.vmap(slope, in_axes=(None, 0, 0))
    else:
        particles = jax.tree.map(lambda x: x[0], particles)
    leaves, tree = jax.tree.flatten(particles)

    def body(k, carry, theta, data):
        x, total = carry
        value, gradient = slope(theta, x, data)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), k), len(leaves))
        drawn = map(lambda key, x: jax.random.normal(key, x.shape, x.dtype), keys, leaves)
        noise = jax.tree.unflatten(tree, list(drawn))

        def move(x, g, xi):
            return x + step * g + np.sqrt(2 * step).astype(x.dtype) * xi

        return jax.tree.map(move, x, gradient, noise), total + value

    @jax.jit
    def loop(steps, x, theta, data):
        total = jnp.zeros_like(slope(theta, x, data)[0])
        return jax.lax.fori_loop(0, steps, lambda *args: body(*args, theta, data), (x, total))

    return lambda steps: loop(steps, particles, model.theta, model.data)


def compare(model: Any, particles: Any, step: float, contenders: dict[str, Any]) -> list[Row]:
    """Every contender against the floor, in one set of rounds."""
    bare = floor(model, particles, step)
    compiled = compile_seconds(lambda: bare(2))
    each = min(seconds(lambda: bare(10)) for _ in range(3)) / 10
    steps = int(np.clip(SAMPLE / each, 3, CAPACITY))
    prepared = {
        name: steps_of(model, algorithm, particles, steps) for name, algorithm in contenders.items()
    }
    runs = {"floor": lambda: bare(steps)} | {name: p.run for name, p in prepared.items()}
    times = {name: values / steps for name, values in in_rounds(runs, ROUNDS).items()}
    for name, p in prepared.items():
        times[name] *= steps / p.steps / (2 if name.startswith("SOUL") else 1)
    rows: list[Row] = [
        {"algorithm": "floor", "µs a step": 1e6 * float(np.median(times["floor"])), "x floor": 1.0}
        | {"steps timed": steps, "compile s": compiled}
    ]
    for name, p in prepared.items():
        rows.append(
            {
                "algorithm": name,
                "µs a step": 1e6 * float(np.median(times[name])),
                "x floor": ratio(times[name], times["floor"]),
                "steps timed": p.steps,
                "compile s": p.compile_seconds,
                "resampled": p.resampled,
                "dead": p.dead,
            }
        )
    return rows


def logistic() -> Any:
    data = jalax.datasets.wisconsin()
    return jalax.models.logistic_regression(data.features, data.labels)


def grouped() -> Any:
    data = jalax.datasets.cbpp()
    return jalax.models.random_intercept(
        data.incidence, data.covariates, data.herd, family=jalax.models.Binomial(data.size)
    )


def network() -> Any:
    rng = np.random.default_rng(0)
    images, labels = rng.random((800, 784)), np.arange(800) % 4
    return jalax.models.neural_network(images, labels, num_hidden=40)


def near_the_posterior(name: str, make: Callable[[], Any], sizes: tuple[int, ...]) -> list[Row]:
    """Wisconsin and cbpp: all algorithms, and the automatic one."""
    model, rows = make(), []
    everybody = posterior_particles(model, max(sizes))
    for num_particles in sizes:
        particles = everybody[:, :num_particles]
        contenders = algorithms(1e-4, 1e-4) | {"automatic": AUTOMATIC["automatic"]}
        found = compare(model, particles, 1e-4, contenders)
        rows += labelled(found, name, model, num_particles)
    return rows


def taken_apart() -> list[Row]:
    """The automatic JALA-EM with parts switched off, beside the plain one."""
    model, rows = logistic(), []
    everybody = posterior_particles(model, max(TAKEN_APART))
    for num_particles in TAKEN_APART:
        particles = everybody[:, :num_particles]
        contenders = {"JALA-EM": plain(1e-4, 1e-4)} | AUTOMATIC
        found = compare(model, particles, 1e-4, contenders)
        rows += labelled(found, "logistic", model, num_particles)
    return rows


def networks() -> list[Row]:
    """31,520 latents: weights stay even for tiny steps only, and there is no automatic fit."""
    model, rows = network(), []
    step, rate = 1e-9, 1e-9
    contenders = algorithms(step, rate)
    contenders["JALA-EM, tempered"] = plain(step, rate, weights=jalax.weights.TemperedWeights())
    for num_particles in NETWORK[64 if jax.config.jax_enable_x64 else 32]:
        particles = random_particles(model, num_particles)
        rows += labelled(
            compare(model, particles, step, contenders), "network", model, num_particles
        )
    return rows


def random_particles(model: Any, num_particles: int) -> Any:
    rng = np.random.default_rng(1)

    def draw(leaf):
        return jnp.asarray(0.1 * rng.normal(size=(1, num_particles, *leaf.shape)), leaf.dtype)

    return jax.tree.map(draw, model.latent)


def labelled(rows: list[Row], name: str, model: Any, num_particles: int) -> list[Row]:
    dtype = str(jax.tree.leaves(model.latent)[0].dtype)
    labels = {"model": name, "dtype": dtype, "N": num_particles}
    found = [labels | row for row in rows]
    for row in found:
        print(row, flush=True)
    return found


def main() -> None:
    rows, apart = [], []
    for bits in BITS:
        with jax.enable_x64(bits == 64):
            rows += near_the_posterior("logistic", logistic, LOGISTIC)
            rows += near_the_posterior("grouped", grouped, GROUPED)
            rows += networks()
    apart = taken_apart()
    where = machine("optax")
    parts = [
        __doc__.strip(),
        "logistic: Wisconsin, 683 rows, 9 latents. grouped: cbpp, 15 groups of one latent, 56 "
        "rows. network: 800 images of 784 pixels, 40 hidden units, 31,520 latents.",
        rows,
        "The automatic JALA-EM (float32, logistic) with parts switched off. Its steps take, beside "
        "the visit of plain JALA-EM: the Hessian at the particles' mean (P, and the shift of the "
        "posterior's mean), Louis' information (the score of each particle and its expansion in "
        "x), and the limiter (a directional derivative, and log p of all particles at least once "
        "more).",
        apart,
    ]
    write("floor", parts, machine=where, rows=rows, automatic=apart)


if __name__ == "__main__":
    main()
