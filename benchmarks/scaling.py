"""Weak and strong scaling over processes with one thread each, and what the communication costs.

One fit on 1, 2 and 4 processes of this machine (or as many as MOST says), spread by particles, by
groups or by data. Weak: each process has the same share, whatever their number; strong: the whole
job stays the same. Beside the time of a step: that of the same share by itself (all processes at
once, so that a machine whose cores share memory and clock slows it, too), the collective operations
of a step counted from the compiled program, and the time they should cost: their number times that
of one small all-reduce, measured in the same run.
Writes scaling.json and scaling.md beside this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import HERE, machine, quick, seconds, write
from _steps import cloud_of
from _traffic import collectives
from jax import lax
from shares import subjects

import jalax
from jalax._fit import begin, loop
from jalax._model import checks, sharding
from jalax._runtime import layouts, processes
from jalax._runtime.options import canonical

MOST = 4  # processes; a strong job is as large as the weak one on so many
STEPS = 10


def job(axis: str, shares: int) -> tuple[Any, int]:
    """A model and a number of particles, `shares` times the work of one share."""
    if axis == "groups":
        return subjects(32 * shares), 500
    rows, num = (16_000 * shares, 128) if axis == "data" else (16_000, 128 * shares)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 10)).astype(np.float32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    return jalax.models.logistic_regression(features, labels), num


def prepared(axis: str, shares: int, mesh: Any) -> tuple[Any, tuple]:
    """The compiled loop and its inputs."""
    model, num = job(axis, shares)
    model = checks.prepare_model(model)
    theta = checks.prepare_theta(0.0 if axis != "groups" else None, model)
    if mesh is not None:
        model = sharding.lay_out(model, layouts.as_layout(mesh))
    adam = jalax.Optax(optax.adam, learning_rate=1e-3)
    algorithm = canonical(jalax.JALAEM(step_size=1e-5, optimizer=adam, resample_below=0.0))
    lead = (model.num_groups, num)
    x = jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), model.latent)
    key = jax.random.key(0)
    state = begin.first_state(key, algorithm, model, theta, cloud_of(x))
    inputs = key, algorithm, model, state
    program = loop.run_chunk.version(inputs).lower(*inputs, np.int32(STEPS), capacity=128)
    return program.compile(), (*inputs, np.int32(STEPS))


def step_ms(program: Any, inputs: tuple) -> float:
    def run():
        return program(*inputs).state.log_weights

    return 1e3 * min(seconds(run) for _ in range(3)) / STEPS


def all_reduce_ms(mesh: Any) -> float:
    """One all-reduce of a number, in a compiled loop."""
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names[0]))
    each = jax.make_array_from_callback((mesh.size,), spread, lambda i: np.ones(1, np.float32))
    add = jax.shard_map(
        lambda x: lax.psum(x, mesh.axis_names[0]) / mesh.size,
        mesh=mesh,
        in_specs=spread.spec,
        out_specs=spread.spec,
    )
    many = jax.jit(lambda x: lax.fori_loop(0, 500, lambda _, x: add(x), x))
    seconds(lambda: many(each))
    return 1e3 * min(seconds(lambda: many(each)) for _ in range(5)) / 500


def work(axis: str) -> dict[str, Any]:
    """What each process does: one row of the tables, for this number of processes."""
    count = jax.process_count()
    mesh = jax.make_mesh((count,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    weak, weak_inputs = prepared(axis, count, mesh)
    strong, strong_inputs = prepared(axis, MOST, mesh)
    share, share_inputs = prepared(axis, 1, None)
    part, part_inputs = prepared(axis, MOST // count, None)
    sent = [c for c in collectives(weak.as_text()) if not c.rare] if count > 1 else []
    row = {
        "spread": axis,
        "processes": count,
        "share alone, ms": step_ms(share, share_inputs),
        "weak, ms": step_ms(weak, weak_inputs),
        "part alone, ms": step_ms(part, part_inputs),
        "strong, ms": step_ms(strong, strong_inputs),
        "collectives": len(sent),
        "bytes": sum(c.bytes for c in sent),
        "all-reduce, ms": all_reduce_ms(mesh) if count > 1 else 0.0,
    }
    every = processes.everyone_says(layouts.as_layout(mesh), json.dumps(row))
    # The slowest process alone is what the others wait for.
    for name in ("share alone, ms", "part alone, ms"):
        row[name] = max(json.loads(text)[name] for text in every)
    return row


def launched(axis: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "jalax.launch", "--processes", str(count), "--threads", "1"]
    done = subprocess.run([*command, __file__, axis], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    counts = [n for n in (1, 2, 4, 8, 16) if n <= MOST]
    weak, strong = [], []
    for axis in ("particles", "groups", "data"):
        rows = [launched(axis, count) for count in (counts if not quick() else [2])]
        for row in rows:
            told = {name: row[name] for name in ("spread", "processes")}
            cost = row["collectives"] * row["all-reduce, ms"]
            for kind, alone, found in (
                (weak, "share alone, ms", "weak, ms"),
                (strong, "part alone, ms", "strong, ms"),
            ):
                kind.append(
                    told
                    | {
                        "alone, ms": row[alone],
                        "together, ms": row[found],
                        "efficiency": row[alone] / row[found],
                        "collectives": row["collectives"],
                        "bytes": row["bytes"],
                        "all-reduce, ms": row["all-reduce, ms"],
                        "predicted, ms": row[alone] + cost,
                    }
                )
            strong[-1]["speed-up"] = rows[0]["strong, ms"] / row["strong, ms"]
            print(weak[-1], strong[-1], flush=True)
    write(
        "scaling",
        ["Weak:", weak, "Strong:", strong],
        machine=machine() | {"threads": "one a process"},
        weak=weak,
        strong=strong,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        found = work(sys.argv[1])
        if jax.process_index() == 0:
            print(json.dumps(found))
    else:
        sys.path.insert(0, str(HERE))
        main()
