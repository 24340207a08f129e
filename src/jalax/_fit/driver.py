"""The host side of a fit: chunk after chunk, with callbacks, divergence and retries."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._fit import loop
from jalax._fit.agreement import agreed, interrupts, losses
from jalax._fit.callbacks import Callback, Run, Stop, progress_bar
from jalax._model.types import Status
from jalax._runtime.failures import as_interrupt, is_out_of_memory, memory_advice
from jalax._runtime.processes import to_host

MAX_RETRIES = 5  # times a diverging automatic fit halves its step size


def capacity_of(chunk_size: int) -> int:
    """Rows of the record buffers: the same for all small chunks, so that they share a program."""
    return max(128, 1 << (chunk_size - 1).bit_length())


def with_progress(callbacks: Sequence[Callback], progress: Callback | None) -> Sequence[Callback]:
    if progress is None and any(isinstance(callback, progress_bar) for callback in callbacks):
        return callbacks
    return (progress_bar() if progress is None else progress, *callbacks)


def drive(
    run: Run,
    advance: Callable[..., loop.Chunk],
    chunk_size: int,
    callbacks: Sequence[Callback],
) -> tuple[Status, str]:
    """Chunk after chunk until the steps are done, a callback says stop, or all fits diverged.

    If one of many fits diverges, it keeps its last finite state while the others go on.
    """
    begun: list[Callback] = []
    chunk_size = min(chunk_size, run.algorithm.steps_at_once(run.model) or chunk_size)
    try:
        with losses(run, callbacks), interrupts(run.layout) as interrupted:
            for callback in callbacks:
                callback.begin(run)
                begun.append(callback)
            while (running := _running(run)).any():
                _advance(run, advance, chunk_size, running, callbacks)
                stops = [callback.after_chunk(run) for callback in callbacks]
                if run.diverged.all():
                    return Status.DIVERGED, advice(run)
                stop = _first(stops) or interrupted.stop(run)
                if (stop := agreed(run.layout, stop)) is not None:
                    return stop
    except (KeyboardInterrupt, ValueError) as error:
        interrupt = as_interrupt(error)
        if interrupt is None:
            raise
        by = f" by {interrupt}" if str(interrupt) else ""
        return Status.INTERRUPTED, f"interrupted{by} after step {run.step}"
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or run.step == run.first_step:
            raise
        reason = (
            f"there was no memory left after step {run.step}; {memory_advice(run.model.grouped)}"
        )
        warnings.warn(f"{reason}.", stacklevel=3)  # what there is so far is the result
        return Status.STOPPED, reason
    finally:
        for callback in begun:
            callback.end(run)
    return Status.MAX_STEPS, f"{run.num_steps} steps done"


def _advance(
    run: Run,
    advance: Callable[..., loop.Chunk],
    chunk_size: int,
    running: np.ndarray,
    callbacks: Sequence[Callback],
) -> None:
    """One chunk of every fit that is still running."""
    due = [c.steps_until_due(run) for c in callbacks if isinstance(c, Callback)]
    length = min(chunk_size, run.last_step - run.step, *(d for d in due if d is not None))
    lengths = np.where(running, length, 0).astype(np.int32)
    began = time.perf_counter()
    chunk = advance(run.state, lengths)
    healthy, done = to_host((chunk.healthy, chunk.length))
    run.pace = (time.perf_counter() - began) / max(int(done.max()), 1)
    if not healthy.all():
        # A trajectory is a function of its first state and key: take it again, up to
        # the last good step. This costs nothing to the runs that never fail.
        known = run.algorithm.path_evidence(chunk.state)
        if known is not None:
            run.left_support = run.left_support | (~healthy & (to_host(known.outside) > 0))
        done = np.where(healthy, done, done - 1).astype(np.int32)
        chunk = advance(run.state, done)
    _append(run, chunk, done)
    if not healthy.all():
        _retry(run, ~healthy)


def _running(run: Run) -> np.ndarray:
    return (to_host(run.state.step) < run.last_step) & ~run.diverged & ~is_done(run)


def _first(stops: list[Any]) -> Stop | None:
    for stop in stops:
        if isinstance(stop, tuple):
            return Stop(*stop)
        if stop:  # a callback of the user's that just says True, or why
            return Stop(Status.STOPPED, str(stop))
    return None


def is_done(run: Run) -> np.ndarray:
    """Which fits have stopped by themselves."""
    return np.broadcast_to(to_host(run.algorithm.is_done(run.state)), run.diverged.shape)


def _retry(run: Run, failed: np.ndarray) -> None:
    """Go on from the last good state, where the algorithm has something else to try."""
    again = run.algorithm.after_failure(run.state, jnp.asarray(failed))
    if again is None:
        run.diverged = run.diverged | failed
        return
    run.retries = run.retries + failed
    run.diverged = run.diverged | (run.retries > MAX_RETRIES)
    run.state = again


def _append(run: Run, chunk: loop.Chunk, done: np.ndarray) -> None:
    """A chunk's records and its state, one right after the other: an interrupt that comes while
    the records are on their way to the host finds those and the state of the chunk before."""
    rows = int(done.max())
    if rows > 0 or not run.records:
        new = _rows_of(run, to_host(chunk.records), done, rows)
        if run.records and not run.many:
            run.records[-1] = _thinned(run.records[-1], run.record, keep_last=False)
        run.records.append(new)
    run.state = chunk.state


def _rows_of(run: Run, records: Any, done: np.ndarray, rows: int) -> Any:
    """The records of a chunk; rows that a stopped fit of many does not have are NaN."""
    if not run.many:
        new = jax.tree.map(lambda x: x[:rows].copy(), records)
        return _thinned(new, run.record, keep_last=True)
    missing = np.arange(rows)[None, :] >= done[:, None]

    def trim(buffer):
        array = np.array(buffer)[:, :rows]
        if array.dtype.kind == "f":
            array[missing] = np.nan
        else:
            array[missing] = 0
        return array

    return jax.tree.map(trim, records)


def _thinned(rows: dict, record: int, keep_last: bool) -> dict:
    """Every `record`-th step; and the last one, as long as no other follows it."""
    if record == 1 or not rows["step"].size:
        return rows
    keep = rows["step"] % record == 0
    keep[-1] |= keep_last
    return jax.tree.map(lambda leaf: leaf[keep], rows)


def advice(run: Run) -> str:
    what = (
        f"after step {run.step} every particle of a group, or theta, became non-finite; the state "
        f"of step {run.step} is kept. "
    )
    if np.any(run.left_support):
        what += (
            "Particles ran into a region where log_joint is -inf, a hard constraint: put the "
            "latent on an unconstrained scale, for example by jalax.Constrained. "
        )
    return what + run.algorithm.advice(MAX_RETRIES)
