"""Run a script on several processes: `python -m jalax.launch [--processes N] script.py [...]`.

With `--processes` they are started on this machine. Without, this process is one of a job that
something else started: SLURM or Open MPI, which JAX recognises, or anything that sets
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Either way the script finds
`jax.distributed` initialised, and `jax.devices()` are those of all processes. When a process is
lost, the launcher says where the last checkpoint is.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from jalax._runtime.processes import NOTE

LOST = os.EX_TEMPFAIL  # exit status after a lost process: to try again may help
GRACE = 10.0  # seconds for the others to say so themselves


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jalax.launch", description=__doc__)
    parser.add_argument("--processes", type=int, help="start so many processes on this machine")
    parser.add_argument(
        "--threads", type=int, help="threads of each on a CPU (its share of the cores)"
    )
    parser.add_argument(
        "--all-output",
        action="store_true",
        help="show what every process prints, not the first one's alone (errors always show)",
    )
    parser.add_argument("script", help="a Python file, the same for all processes")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the script")
    options = parser.parse_args(arguments)
    if not Path(options.script).is_file():
        parser.error(f"there is no file {options.script}: give the path of a Python script.")
    if NOTE in os.environ:  # started by the lines below
        return join([options.script, *options.arguments])
    command = [sys.executable, "-m", "jalax.launch", options.script, *options.arguments]
    if options.processes is None:
        return start(command, [{}], all_output=True)
    if options.processes < 1:
        parser.error(f"--processes must be at least 1, got {options.processes}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    address = f"localhost:{_free_port()}"
    each = [
        {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(options.processes),
            "JAX_PROCESS_ID": str(i),
            # What XLA reads for the number of its threads.
            "NPROC": str(options.threads or max(1, (cores or 1) // options.processes)),
        }
        for i in range(options.processes)
    ]
    return start(command, each, options.all_output)


def start(command: list[str], each: list[dict[str, str]], all_output: bool) -> int:
    """A process for each environment; the exit status of the first that failed, or 0."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        children: list[subprocess.Popen] = []
        # An exit, so that the children are ended below: a plain SIGTERM would leave them behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        for i, settings in enumerate(each):
            environment = {**os.environ, **settings, NOTE: str(note)}
            output = None if i == 0 or all_output else subprocess.DEVNULL
            children.append(subprocess.Popen(command, env=environment, stdout=output))
        try:
            return _watch(children, note)
        except KeyboardInterrupt:  # the children got it, too, and return what they have
            return _watch(children, note)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()


def _watch(children: list[subprocess.Popen], note: Path) -> int:
    """Wait for all; once one has failed, for a little while."""
    deadline, failed = None, 0
    told: set[int] = set()
    while True:
        statuses = [child.poll() for child in children]
        # Each is named: which of them ended first, and took the others along, is not known here.
        for i, status in enumerate(statuses):
            if status and i not in told:
                told.add(i)
                failed = failed or status
                _say(f"process {os.environ.get('JAX_PROCESS_ID', i)} {_how(status)}.")
        if None not in statuses:
            break
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            _say("stopping the others.")
            break
        time.sleep(0.05)
    if failed and note.exists():
        _say(
            f"{note.read_text()} is whole: run the same script again, on any number of processes, "
            "and the fit goes on from there."
        )
    return failed if failed >= 0 else 128 - failed


def _say(message: str) -> None:
    print(f"jalax.launch: {message}", file=sys.stderr, flush=True)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def join(script: list[str]) -> int:
    """Run the script as one process of a job."""
    import jax

    count, number = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        if count is None or number is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(num_processes=int(count), process_id=int(number))
    except (ValueError, RuntimeError) as error:
        _say(
            f"this is no part of a job that JAX recognises ({error}). Start several "
            "processes on this machine with --processes N; or set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        )
        return 2
    from jalax.runtime import LostProcess

    sys.argv = script
    sys.path.insert(0, str(Path(script[0]).resolve().parent))
    try:
        runpy.run_path(script[0], run_name="__main__")
    except LostProcess as error:
        _leave(f"jalax.launch: {error}", LOST)
    except Exception:
        _leave(traceback.format_exc(), 1)
    return 0


def _leave(message: str, status: int) -> None:
    """Without the goodbye that JAX says at exit: it would wait for the others for minutes."""
    import jax

    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    if jax.process_index() == 0:  # the others do not outlive the first: let them speak
        time.sleep(2)
    os._exit(status)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
