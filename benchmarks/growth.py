"""How time and memory of plain JALA-EM grow: with N, K, the latents, the rows, the groups.

One size is varied, the others are held: particles N, steps K, latents d and rows n of a logistic
regression on random numbers, and groups G of a random intercept. Steps are small, so that nothing
is resampled. Float32.

Time: all sizes are compiled in one process and then timed in rounds, each size once a round; the
best of the rounds is a size's time. Beside it the floor at the same size (floor.py: the bare
vmapped value and gradient, and noise): what leaves the processor's caches grows faster than its
size, and the floor shows how much of the growth is that.

Memory: the smallest size and the upper half run in processes of their own, data and model included;
reported is the largest resident set (VmHWM) less that of the smallest size, which takes out Python,
JAX and the compiler. K is the number of steps of `jalax.fit`, time and memory of the whole fit: its
history is K rows of scalars on the host, all else must not grow.

Exponents are least squares in log-log over the upper half of each range, where fixed costs are
small; for memory over those of its sizes that take at least 50 MB more than the smallest (the
largest resident set of one program varies by 20), and none where fewer than two do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from _common import (
    Row,
    exponent,
    in_rounds,
    machine,
    quick,
    seconds,
    upper_half,
    write,
)
from _steps import steps_of
from floor import floor

import jalax
from jalax.cli.book_child import peak_memory

ROUNDS = 2 if quick() else 5
SAMPLE = 0.1  # seconds of one size in one round, unless one step takes longer

SIZES: dict[str, tuple[int, ...]] = {
    "N": (100, 300, 1_000, 3_000, 10_000),
    "d": (10, 30, 100, 300, 1_000),
    "n": (1_000, 10_000, 100_000, 300_000, 1_000_000),
    "G": (10, 100, 1_000, 10_000, 30_000, 100_000),
    "K": (100, 1_000, 3_000, 10_000),
}
HELD = {
    "N": "particles; 683 rows, 10 latents",
    "d": "latents; 1,000 rows, 100 particles",
    "n": "rows; 10 latents, 10 particles",
    "G": "groups; 8 rows in each, 20 particles",
    "K": "steps of a fit; 683 rows, 10 latents, 10 particles",
}


def logistic(rows: int = 683, columns: int = 10) -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    return jalax.models.logistic_regression(X, (rng.random(rows) < 0.5).astype(np.float32))


def grouped(num_groups: int, rows: int = 8) -> Any:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(num_groups), rows)
    covariates = np.column_stack([np.ones(group.size), rng.normal(size=group.size)])
    y = rng.integers(0, 2, group.size)
    family = jalax.models.Binomial(np.ones(group.size, int))
    return jalax.models.random_intercept(y, covariates, group, family=family)


def problem(what: str, size: int) -> tuple[Any, int]:
    """The model and the number of particles."""
    if what == "N":
        return logistic(), size
    if what == "d":
        return logistic(rows=1_000, columns=size), 100
    if what == "n":
        return logistic(rows=size), 10
    if what == "G":
        return grouped(size), 20
    return logistic(), 10


def particles_of(model: Any, num_particles: int) -> Any:
    shape = (model.num_groups, num_particles, *model.latent.shape)
    return 0.1 * jax.random.normal(jax.random.key(0), shape)


def algorithm(model: Any) -> Any:
    """Steps that shrink like the posterior does, with the rows of a group."""
    rows = jax.tree.leaves(model.data)[0].size // model.num_groups
    return jalax.JALAEM(step_size=1e-2 / rows, optimizer=optax.adam(1e-6))


class Runs(NamedTuple):
    ours: Callable[[], Any]
    floor: Callable[[], Any] | None
    steps: int


def prepared(what: str, size: int) -> Runs:
    """Compiled functions of many steps, and how many; of K: the fit."""
    model, num_particles = problem(what, size)
    particles = particles_of(model, num_particles)
    if what == "K":
        return Runs(fit_of(model, particles, size), None, 1)
    each = seconds(steps_of(model, algorithm(model), particles, 1).run)
    steps = int(np.clip(SAMPLE / each, 1, 500))
    found = steps_of(model, algorithm(model), particles, steps)
    assert found.resampled == 0
    assert found.dead == 0
    bare = floor(model, particles, 1e-8)
    bare(1)
    return Runs(found.run, lambda: bare(steps), steps)


def fit_of(model: Any, particles: Any, num_steps: int) -> Callable[[], Any]:
    def run():
        return jalax.fit(
            model,
            key=jax.random.key(0),
            algorithm=algorithm(model),
            start=jalax.Given(particles[0]),
            num_steps=num_steps,
            progress=jalax.callbacks.Callback(),
        ).state

    run()
    return run


def times(what: str, sizes: tuple[int, ...]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds a step (of K: of the fit), and of the floor."""
    runs = {size: prepared(what, size) for size in sizes}
    ours = {(size, "ours"): found.ours for size, found in runs.items()}
    bare = {(size, "floor"): found.floor for size, found in runs.items() if found.floor}
    order = sorted(ours | bare)
    rounds = in_rounds({name: (ours | bare)[name] for name in order}, ROUNDS)
    best = {(size, who): rounds[size, who].min() / runs[size].steps for size, who in order}
    return (
        {size: float(best[size, "ours"]) for size in sizes},
        {size: float(best[size, who]) for size, who in bare},
    )


def memory_alone(what: str, size: int) -> float:
    """Bytes, of a process that does this alone."""
    command = [sys.executable, __file__, "--memory", what, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def use_memory(what: str, size: int) -> None:
    """A step or two; of K: the fit."""
    model, num_particles = problem(what, size)
    particles = particles_of(model, num_particles)
    if what == "K":
        fit_of(model, particles, size)
    else:
        jax.block_until_ready(steps_of(model, algorithm(model), particles, 2).run())


def measure(what: str) -> tuple[list[Row], Row]:
    sizes = SIZES[what][:3] if quick() else SIZES[what]
    time, bare = times(what, sizes)
    upper = upper_half(sizes)
    alone = {size: memory_alone(what, size) for size in (sizes[0], *upper)}
    memory = {size: (alone[size] - alone[sizes[0]]) / 1e6 for size in upper}
    label, scale = ("s", 1.0) if what == "K" else ("ms a step", 1e3)
    rows: list[Row] = []
    for size in sizes:
        row = {"varied": what, "size": size, "time": scale * time[size], "unit": label}
        row["x floor"] = time[size] / bare[size] if bare else None
        rows.append(row | {"MB over the smallest": memory.get(size)})
        print(rows[-1], flush=True)
    clear = {size: over for size, over in memory.items() if over >= 50}
    fitted = {
        "varied": what,
        "what": HELD[what],
        "from": sizes[0],
        "to": sizes[-1],
        "exponent of time": exponent({size: time[size] for size in upper}),
        "of the floor": exponent({size: bare[size] for size in upper_half(sizes)})
        if bare
        else None,
        "exponent of memory": exponent(clear) if len(clear) > 1 else None,
        "MB, largest less smallest": memory[sizes[-1]],
    }
    return rows, fitted


def main() -> None:
    rows, fitted = [], []
    for what in SIZES:
        points, line = measure(what)
        rows += points
        fitted.append(line)
    parts = [__doc__.strip(), fitted, rows]
    write("growth", parts, machine=machine("optax"), exponents=fitted, rows=rows)


if __name__ == "__main__":
    if "--memory" in sys.argv:
        what, size = sys.argv[-2:]
        use_memory(what, int(size))
        print(peak_memory())
    else:
        main()
