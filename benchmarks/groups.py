"""How a fit grows with the number of groups: seconds, memory, and minibatches.

A logistic random intercept, 8 rows a group: the default fit of 100 to 100,000 groups, each in a
process of its own (peak memory), then once more with new data (no compilation). The largest also
by JALA-EM with 50 particles and minibatches of groups, with another key. Writes groups-cpu.json
and .md (or -gpu) beside this file.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time

import numpy as np
from _common import HERE

from jalax.cli.book_child import peak_memory

GROUPS = (100, 1_000, 10_000, 100_000)
ROWS, PARTICLES, MINIBATCH = 8, 50, 2_000


def simulated(num_groups: int, seed: int):
    """intercept -0.5, slope 1, sd 0.8."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(num_groups), ROWS)
    slope = rng.normal(size=group.size)
    eta = -0.5 + slope + 0.8 * rng.normal(size=num_groups)[group]
    y = (rng.random(group.size) < 1 / (1 + np.exp(-eta))).astype(int)
    return y, np.column_stack([np.ones(group.size), slope]), group


def one(num_groups: int, minibatch: int | None) -> dict:
    """Two fits in this process."""
    import jax

    import jalax

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: "backend_compile" in name and compiled.append(seconds)
    )
    found: dict = {"groups": num_groups, "minibatch": minibatch}
    for k, label in enumerate(("first", "again")):
        y, covariates, group = simulated(num_groups, seed=k)
        family = jalax.models.Binomial(np.ones(y.size, int))
        model = jalax.models.random_intercept(y, covariates, group, family=family)
        began, so_far = time.perf_counter(), len(compiled)
        result = jalax.fit(
            model,
            key=jax.random.key(k if minibatch is None else 10 + k),
            num_particles=minibatch and PARTICLES,
            algorithm=minibatch and jalax.JALAEM(minibatch=minibatch),
            progress=jalax.callbacks.Callback(),
        )
        found[label] = {
            "seconds": time.perf_counter() - began,
            "loop": result.seconds,
            "compiled": len(compiled) - so_far,
            "steps": len(result.history["ess"]),
            "status": str(result.status),
            "theta": _numbers(result.theta),
            "standard error": _numbers(result.standard_errors()),
            "simulation": _numbers(result.simulation_errors()),
            "log evidence": [result.log_evidence, result.log_evidence_error],
        }
    # Of the accelerator where there is one, else of the process.
    device = jax.devices()[0].memory_stats() or {}
    found["peak GB"] = device.get("peak_bytes_in_use", peak_memory()) / 1e9
    found["backend"] = jax.default_backend()
    found["device"] = jax.devices()[0].device_kind
    return found


def _numbers(theta) -> list[float]:
    return np.append(np.asarray(theta["beta"]), theta["log_sd"]).tolist()


def main() -> None:
    rows = []
    for num_groups, minibatch in [(g, None) for g in GROUPS] + [(GROUPS[-1], MINIBATCH)]:
        command = [sys.executable, __file__, str(num_groups), str(minibatch or 0)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(line(rows[-1]), flush=True)
    name = f"groups-{rows[0]['backend']}"
    (HERE / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / f"{name}.md").write_text(table(rows))
    print(table(rows))


HEAD = (
    "groups",
    "minibatch",
    "first fit, s",
    "again, s",
    "programs compiled again",
    "steps",
    "peak memory, GB",
    "log sd",
    "s.e.",
    "simulation error",
    "error of log p",
)


def line(row: dict) -> str:
    first, again = row["first"], row["again"]
    cells = [
        f"{row['groups']:,}",
        str(row["minibatch"] or "-"),
        f"{first['seconds']:.1f}",
        f"{again['seconds']:.1f}",
        str(again["compiled"]),
        str(again["steps"]),
        f"{row['peak GB']:.2f}",
        f"{again['theta'][-1]:.5f}",
        f"{again['standard error'][-1]:.5f}",
        f"{again['simulation'][-1]:.5f}",
        f"{again['log evidence'][1]:.2g}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(rows: list[dict]) -> str:
    where = f"{rows[0]['device']} ({platform.machine()}, {os.cpu_count()} cores)"
    full, some = rows[-2]["again"], rows[-1]["again"]
    noise = np.hypot(full["simulation"], some["simulation"])
    apart = np.abs(np.subtract(full["theta"], some["theta"])) / noise
    return "\n".join(
        [
            f"`python benchmarks/groups.py` on {where}: {ROWS} rows a group; with "
            f"minibatches JALA-EM, N = {PARTICLES}.",
            "",
            "| " + " | ".join(HEAD) + " |",
            "|" + " --- |" * len(HEAD),
            *(line(row) for row in rows),
            "",
            f"The minibatch run's theta is within {apart.max():.1f} simulation errors of the full "
            "one's in every number.",
            "",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]), int(sys.argv[2]) or None)))
    else:
        main()
