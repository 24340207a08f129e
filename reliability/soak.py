"""Long and loaded: a million steps, eight fits at once, and a fit with hardly any memory left.

python reliability/soak.py [--quick]                   # writes soak.md and soak.json
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

import numpy as np  # noqa: E402

PARTS = 10  # of the long run that are compared with each other


def resident() -> float:
    """MiB of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def model() -> Any:
    import jax.numpy as jnp

    import jalax

    return jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))


def long_run(num_steps: int) -> list[dict[str, Any]]:
    """JALA-EM at rest for very long: the exact answer is theta = mean(y) = 2 all the time."""
    import jax
    import optax

    import jalax

    rows: list[dict[str, Any]] = []

    class Look(jalax.callbacks.Callback):
        def after_chunk(self, run):
            if run.step % (num_steps // PARTS) == 0:
                theta = run.history["theta"][-num_steps // PARTS // 100 :]  # the rows of this part
                last = float(run.latest("log_evidence")[-1])
                rows.append(
                    {
                        "steps": run.step,
                        "resident MiB": round(resident()),
                        "mean of theta": float(theta.mean()),
                        "its sd over the part": float(theta.std()),
                        "lowest ESS": float(run.history["ess"][-num_steps // PARTS // 100 :].min()),
                        "log Z/Z0 of the path": last,
                        "seconds": round(run.seconds, 1),
                    }
                )
                print(rows[-1], flush=True)

    result = jalax.fit(
        model(),
        2.0,
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(step_size=0.1, optimizer=jalax.Optax(optax.sgd, learning_rate=0.01)),
        num_particles=100,
        num_steps=num_steps,
        chunk_size=num_steps // PARTS // 10,
        record=100,
        callbacks=[Look()],
    )
    assert result.status == "max_steps", result.message
    return rows


def digest() -> str:
    """Every number of an automatic fit."""
    import jax

    import jalax
    from jalax import datasets, models

    data = datasets.wisconsin()
    result = jalax.fit(
        models.logistic_regression(data.features, data.labels), key=jax.random.key(1)
    )
    evidence = result.log_evidence
    found = hashlib.sha256(np.float64(evidence).tobytes())
    for leaf in jax.tree.leaves((result.theta, result.state, result.history)):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def child(what: str, *words: str) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", what, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def at_once(count: int) -> dict[str, Any]:
    """Many processes on few cores: each has the answer of one alone."""
    began = time.monotonic()
    alone = child("digest")
    expected = alone.communicate()[0].strip()
    seconds = time.monotonic() - began
    began = time.monotonic()
    several = [child("digest") for _ in range(count)]
    found = [process.communicate()[0].strip() for process in several]
    return {
        "fits at once": count,
        "ended well": sum(process.returncode == 0 for process in several),
        "same numbers as alone": sum(one == expected != "" for one in found),
        "seconds": round(time.monotonic() - began, 1),
        "seconds alone": round(seconds, 1),
    }


def pressed(megabytes: int) -> dict[str, Any]:
    """A fit of 2,000 particles of 1,000 latents with so much address space beyond the start."""
    process = child("pressed", str(megabytes))
    out, error = process.communicate()
    last = (error.strip().splitlines() or [""])[-1]
    how = out.strip() if process.returncode == 0 else f"{process.returncode}: {last[:160]}"
    return {"MiB left to the fit": megabytes, "how it ended": how}


def press(megabytes: int) -> None:
    import jax
    import jax.numpy as jnp

    import jalax

    def log_joint(theta, x, data):
        return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data - x) ** 2)

    latents = jnp.zeros(1000)
    inner = jalax.Model(log_joint, latents, jnp.ones(1000))
    start = jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, (1000,)))
    options = {"algorithm": jalax.JALAEM(step_size=0.01), "start": start, "num_steps": 3}
    jalax.fit(inner, 0.0, key=jax.random.key(0), num_particles=10, **options)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        result = jalax.fit(inner, 0.0, key=jax.random.key(0), num_particles=2000, **options)
        print(f"status {result.status}")
    except MemoryError as error:
        named = "particle_batch=" in str(error)
        print("MemoryError that names the knobs" if named else f"MemoryError: {error}")


def main() -> None:
    from _common import machine, quick, write

    steps = 10_000 if quick() else 1_000_000
    long = long_run(steps)
    memory = [row["resident MiB"] for row in long]
    together = at_once(2 if quick() else 8)
    short = [pressed(megabytes) for megabytes in (2000, 60, 20)]
    growth = memory[-1] - memory[len(memory) // 2]
    text = f"Over the second half of the long run memory grew by {growth} MiB."
    about = machine()
    write(
        "soak",
        ["A long run:", long, text, [together], short],
        HERE,
        machine=about,
        long=long,
        together=together,
        short=short,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "digest":
            print(digest())
        else:
            press(int(sys.argv[3]))
    else:
        main()
