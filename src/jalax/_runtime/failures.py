"""What the machine may do to a fit: run out of memory, or ask the process to end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax


def is_out_of_memory(error: BaseException) -> bool:
    """The host has no memory left, or a device, for which the runtime has no class of errors."""
    text = str(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text


def as_interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C behind an error; None if there is none.

    JAX makes a ValueError of one that comes while it compares the arguments of two calls.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause


def memory_advice(grouped: bool) -> str:
    """Which knobs make a fit smaller, of a model with groups or without."""
    if grouped:
        knobs = "group_batch= (groups that are worked on at a time)"
    else:
        knobs = (
            "particle_batch= (particles that are visited at a time), data_batch= of a model in "
            "jalax.models, or jalax.models.sum_over_rows in your own (rows at a time)"
        )
    return (
        f"smaller pieces give the same answer: {knobs}. Else fewer num_particles, record= for a "
        "shorter history, or mesh= to spread the fit over several devices"
    )


class OutOfMemory(MemoryError):
    """With the knobs in its message; to the user a MemoryError like any other."""


@contextmanager
def naming_knobs(grouped: bool) -> Iterator[None]:
    """A device, or the host, out of memory: a MemoryError that says what to do about it."""
    try:
        yield
    except OutOfMemory:
        raise
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = str(error).splitlines()[0] if str(error) else "the host"
        raise OutOfMemory(f"there is no memory left ({said}); {memory_advice(grouped)}.") from error


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a batch system sends before it kills, ends a fit as Ctrl-C does, and then the
    process, as was asked.

    So callbacks have their end, and a checkpoint is written. A handler of the user's own stays in
    place, and then decides alone.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    received = []

    def interrupt(*_):
        received.append(signal.SIGTERM)
        raise KeyboardInterrupt("SIGTERM")

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if received:
            for stream in (sys.stdout, sys.stderr):  # the signal leaves Python no time for it
                if stream is not None:
                    stream.flush()
            signal.raise_signal(signal.SIGTERM)
