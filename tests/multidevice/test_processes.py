"""Several processes over the loopback give the answers of one, and survive the loss of one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import jalax
from jalax._fit import agreement

sys.path.insert(0, str(Path(__file__).parent))
import fits

HERE = Path(__file__).parent


def launch(processes: int, *script: str | Path, **options) -> subprocess.Popen:
    """One device in each process."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", "jalax.launch", "--processes", str(processes)]
    return subprocess.Popen(
        [*command, *map(str, script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def finished(process: subprocess.Popen, seconds: float = 300) -> str:
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, output
    return output


def check_algorithms(processes: int, names: list[str], folder: Path) -> None:
    finished(launch(processes, HERE / "fits.py", folder / "out.npz", *names), seconds=900)
    with jax.enable_x64(True):
        alone = {case: fits.numbers(fits.fit(*case)) for case in fits.cases(names)}
    found = np.load(folder / "out.npz")
    for (name, kind), expected in alone.items():
        for key, value in expected.items():
            got = found[f"{name} {kind} {key}"]
            np.testing.assert_allclose(got, value, rtol=0, atol=1e-8, err_msg=f"{name} {key}")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_algorithm(processes, tmp_path):
    """But the rivals, which are made of parts that others have, too."""
    names = [name for name in fits.ALGORITHMS if name not in fits.algorithms.RIVALS]
    check_algorithms(processes, names, tmp_path)


FIT = """
import os, sys
import jax
jax.config.update("jax_enable_x64", True)
import jalax
sys.path.insert(0, {tests!r})
import fits

class Report(jalax.callbacks.Callback):
    def after_chunk(self, run):
        sys.stdout.write(f"step {{run.step}}" + chr(10))
        sys.stdout.flush()

sys.stdout.write(f"process {{jax.process_index()}} is {{os.getpid()}}" + chr(10))
result = fits.fit("JALAEM", "plain", fits.mesh_for("plain"), num_steps=int(sys.argv[2]),
                  chunk_size=20, callbacks=[jalax.checkpoint(sys.argv[1], every=60), Report()])
line = f"{{result.status}} {{float(result.theta['m']).hex()}} {{result.path_value.hex()}}"
sys.stdout.write(line + chr(10))
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(FIT.format(tests=str(HERE)))
    return path


def wait_for(process: subprocess.Popen, pattern: str, lines: list[str]) -> None:
    """Read its output up to a line."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_one_of_four_is_killed(script, tmp_path):
    """The others say so, the checkpoint is whole, and two processes go on from it."""
    saved, lines = tmp_path / "fit.npz", []
    four = launch(4, "--all-output", script, saved, "100000")
    wait_for(four, r"^step 200", lines)
    numbers = dict(re.findall(r"process (\d) is (\d+)", "".join(lines)))
    os.kill(int(numbers["2"]), signal.SIGKILL)
    began = time.monotonic()
    rest, _ = four.communicate(timeout=60)
    assert time.monotonic() - began < 40
    assert four.returncode != 0
    # The launcher says so always, the others where the runtime lets them (Gloo may abort).
    assert "process 2 was ended by SIGKILL" in rest
    last = re.search(rf"the checkpoint {saved} of step (\d+) is whole: run the same script", rest)
    assert last, rest
    step = int(last.group(1))
    assert step >= 180
    two = finished(launch(2, script, saved, str(step + 100)))
    assert int(re.findall(r"^step (\d+)", two, re.M)[0]) == step + 20  # it did not begin again
    with jax.enable_x64(True):
        alone = fits.fit("JALAEM", "plain", num_steps=step + 100)
    status, theta, evidence = two.splitlines()[-1].split()
    assert status == "max_steps"
    assert abs(float.fromhex(theta) - float(alone.theta["m"])) < 1e-8
    assert abs(float.fromhex(evidence) - alone.path_value) < 1e-8


def test_an_interrupt_stops_all_at_the_same_step(script, tmp_path):
    lines: list[str] = []
    two = launch(2, "--all-output", script, tmp_path / "fit.npz", "100000")
    wait_for(two, r"^step 100", lines)
    os.killpg(two.pid, signal.SIGINT)
    rest, _ = two.communicate(timeout=60)
    ends = re.findall(r"^interrupted (\S+)", rest, re.M)
    assert len(ends) == 2, rest
    assert ends[0] == ends[1]
    assert two.returncode == 0


def test_a_terminated_launcher_leaves_nobody_behind(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    with launch(1, script) as one:
        assert one.stdout is not None
        child = int(one.stdout.readline())
        one.terminate()
        assert one.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_an_error_in_the_script_ends_all(tmp_path):
    script = tmp_path / "bad.py"
    script.write_text("import jax\nif jax.process_index() == 1:\n    raise OSError('no disk')\n")
    output, _ = (process := launch(2, script)).communicate(timeout=60)
    assert process.returncode != 0
    assert "OSError: no disk" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        (["--processes", "0", __file__], "must be at least 1"),
        ([__file__], "Start several processes on this machine with --processes"),
    ],
)
def test_what_cannot_be_launched(arguments, says):
    done = subprocess.run(
        [sys.executable, "-m", "jalax.launch", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


def test_a_lost_process_in_words():
    """What the others raise, where the runtime reports the loss as an error."""
    run: Any = SimpleNamespace(layout=SimpleNamespace(num_processes=4), step=70, lost=False)
    saved = jalax.checkpoint("fit.npz", every=30)
    says = "after step 70; the checkpoint fit.npz is whole, at most 30 steps old"
    with pytest.raises(jalax.runtime.LostProcess, match=says), agreement.losses(run, [saved]):
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: connection closed")
    assert run.lost
    with (
        pytest.raises(jalax.runtime.LostProcess, match=r"no jalax\.checkpoint"),
        agreement.losses(run, []),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: NCCL operation failed")
    run.layout = None  # one process alone: an error is what it is
    with pytest.raises(jax.errors.JaxRuntimeError, match="memory"), agreement.losses(run, []):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
