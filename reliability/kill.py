"""kill -9 at random moments of a checkpointed fit, again and again, also during the write.

    python reliability/kill.py [--kills 60] [--quick]      # writes kill.md and kill.json

A child process runs a fit that saves a checkpoint after every few steps. It is killed at a random
moment (half of the time as soon as its half-written file is seen), and run again, until it gets to
its end: every number of the result must be that of a fit nobody touched, to the bit. After each
kill the checkpoint, if there is one, must be whole and not older than before.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

import numpy as np  # noqa: E402

FITS = ("wisconsin", "cbpp")


# --- the child -----------------------------------------------------------------------------------


def fit(name: str, callbacks: list[Any]) -> Any:
    import jax

    import jalax
    from jalax import datasets, models

    if name == "wisconsin":  # the paper's algorithm, with resampling
        data = datasets.wisconsin()
        model: Any = models.logistic_regression(data.features, data.labels)
        options: dict[str, Any] = {
            "algorithm": jalax.JALAEM(step_size=0.02, resample_below=0.9),
            "num_particles": 200,
            "num_steps": 2000,
        }
    else:  # the automatic fit of groups, with its phases
        data = datasets.cbpp()
        family = models.Binomial(data.size)
        model = models.random_intercept(data.incidence, data.covariates, data.herd, family=family)
        averaging = jalax.options.Averaging(tolerance=0.0)
        options = {"algorithm": jalax.JALAEM(averaging=averaging), "num_steps": 500}
    return jalax.fit(model, key=jax.random.key(5), chunk_size=5, callbacks=callbacks, **options)


def child(name: str, folder: Path) -> None:
    """One run; its numbers as a digest, once it is through."""
    import jax

    import jalax

    class Told(jalax.callbacks.Callback):
        def begin(self, run):
            (folder / "begun").write_text(str(run.step))

    result = fit(name, [jalax.checkpoint(folder / "fit.npz", every=5), Told()])
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((result.theta, result.state, result.history)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    (folder / "digest").write_text(digest.hexdigest())


# --- the killer ----------------------------------------------------------------------------------


def start(name: str, folder: Path) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", name, str(folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def half_written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".fit.npz.")}


def seconds_of(name: str, folder: Path) -> tuple[float, float]:
    """Of an untouched fit: until its first step, and from there to its end."""
    began = time.monotonic()
    process = start(name, folder)
    while not (folder / "begun").exists() and process.poll() is None:
        time.sleep(0.01)
    first = time.monotonic()
    assert process.wait() == 0, process.stderr.read()
    return first - began, time.monotonic() - first


def kill_once(process: subprocess.Popen, folder: Path, moment: float, how: str) -> str | None:
    """Kill at `moment`, counted from the start or from the first step; what it was doing.

    "writing": wait on for the next file that is half written. None: it got through before.
    """
    leftovers, began = half_written(folder), time.monotonic()
    while process.poll() is None:
        begun, writing = (folder / "begun").exists(), bool(half_written(folder) - leftovers)
        if how != "starting" and not begun:
            began = time.monotonic()
        elif time.monotonic() - began > moment and (how != "writing" or writing):
            process.kill()
            process.wait()
            return "writing" if writing else "running" if begun else "starting"
        time.sleep(0.0002)
    return None


def step_of(folder: Path) -> int:
    """The step of the checkpoint, which must be whole."""
    from jalax._runtime import files

    path = folder / "fit.npz"
    if not path.exists():
        return 0
    _, arrays = files.read(path, "checkpoint")
    return int(arrays["state.step"])


def one_fit(name: str, random: np.random.Generator, wanted: int) -> dict[str, Any]:
    """Kill a fit up to `wanted` times, let it end, and compare it with an untouched one."""
    with tempfile.TemporaryDirectory() as place:
        alone, folder = Path(place, "alone"), Path(place, "killed")
        alone.mkdir()
        folder.mkdir()
        to_first_step, to_end = seconds_of(name, alone)
        kills, step = {"starting": 0, "running": 0, "writing": 0}, 0
        while True:
            (folder / "begun").unlink(missing_ok=True)
            process = start(name, folder)
            if sum(kills.values()) >= wanted:
                assert process.wait() == 0, process.stderr.read()
                break
            how = random.choice(["starting", "running", "writing"], p=[0.15, 0.45, 0.4])
            # A fifth of the way at most, so that a fit is killed several times.
            moment = random.uniform() * (to_first_step if how == "starting" else 0.2 * to_end)
            doing = kill_once(process, folder, moment, how)
            if doing is None:
                assert process.returncode == 0, process.stderr.read()
                break
            kills[doing] += 1
            assert step_of(folder) >= step, "an older checkpoint than before"
            step = step_of(folder)
            print(name, doing, "killed; the checkpoint is of step", step, flush=True)
        same = (folder / "digest").read_text() == (alone / "digest").read_text()
        return {
            "fit": name,
            **kills,
            "resumed to the bit": same,
            "half-written files left": len(half_written(folder)),
        }


def main() -> None:
    from _common import machine, quick, write

    wanted = int(sys.argv[sys.argv.index("--kills") + 1]) if "--kills" in sys.argv else 60
    wanted = 4 if quick() else wanted
    random = np.random.default_rng(11)
    rows: list[dict[str, Any]] = []
    done = 0
    while done < wanted:
        # A fit that gets through between two kills is another trial; a few kills each.
        row = one_fit(FITS[len(rows) % len(FITS)], random, min(8, wanted - done))
        rows.append(row)
        done += sum(row[doing] for doing in ("starting", "running", "writing"))
        print(json.dumps(row), flush=True)
    failed = [row for row in rows if not row["resumed to the bit"]]
    total = {doing: sum(row[doing] for row in rows) for doing in ("starting", "running", "writing")}
    text = (
        f"{done} kills ({', '.join(f'{n} while {doing}' for doing, n in total.items())}) over "
        f"{len(rows)} fits, {len(failed)} of which did not end in the numbers of a fit nobody "
        "touched."
    )
    write("kill", [text, rows], HERE, machine=machine(), rows=rows)
    sys.exit(bool(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
