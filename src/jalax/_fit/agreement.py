"""What the processes of one fit must do alike: stop at the same step, and notice a lost one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

from jalax._fit.callbacks import Callback, Run, Stop
from jalax._fit.checkpoint import checkpoint
from jalax._model.types import Status
from jalax._runtime.layouts import Layout
from jalax._runtime.processes import everyone_says, several


class LostProcess(RuntimeError):
    """A process of the fit ended, or cannot be reached: the others cannot go on without it."""


def agreed(layout: Layout | None, stop: Stop | None) -> Stop | None:
    """The stop that any process asks for; clocks, and signals, are not the same on all."""
    text = "" if stop is None else f"{stop.status}\n{stop.reason}"
    for said in everyone_says(layout, text):
        if said:
            status, reason = said.split("\n", 1)
            return Stop(Status(status), reason)
    return None


class Interrupts:
    """Ctrl-C, while several processes work together: noted, and acted upon between two chunks."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, *_) -> None:
        self.seen = True

    def stop(self, run: Run) -> Stop | None:
        if not self.seen:
            return None
        return Stop(Status.INTERRUPTED, f"interrupted after step {run.step}")


@contextmanager
def interrupts(layout: Layout | None) -> Iterator[Interrupts]:
    """In one process alone an interrupt stays the exception that it is."""
    noted = Interrupts()
    if not several(layout) or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, noted.note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def losses(run: Run, callbacks: Sequence[Callback]) -> Iterator[None]:
    """What the runtime says when a process is gone, in words, with what is left of the fit."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not several(run.layout):
            raise
        run.lost = True
        saved = [callback for callback in callbacks if isinstance(callback, checkpoint)]
        left = "no jalax.checkpoint was kept: the fit has to begin again."
        if saved:
            left = (
                f"the checkpoint {saved[0].path} is whole, at most {saved[0].every} steps old: run "
                "the same script again, on any number of processes, and the fit goes on from there."
            )
        raise LostProcess(
            f"process {jax.process_index()} lost another process of this fit, after step "
            f"{run.step}; {left} The runtime said: {str(error).splitlines()[0]}"
        ) from error
