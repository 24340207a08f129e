"""What may happen between two chunks of a fit: show, stop, save.

A callback is an object with `begin(run)`, `after_chunk(run) -> Stop | None` and `end(run)`;
`Run` is the fit as the host sees it. `Callback` gives empty versions of all three.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import State, Status
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.arguments import check_callable, check_number
from jalax._runtime.heartbeat import Heartbeat, say_after
from jalax._runtime.layouts import Layout
from jalax._runtime.processes import is_first, to_host

LARGE = 1000  # latents, whose number is worth saying


class Stop(NamedTuple):
    """What a callback returns to end the fit."""

    status: Status
    reason: str


@dataclasses.dataclass
class Run:
    """A fit in progress, host side. In `fit_many` every array has a leading fit axis."""

    key: jax.Array
    model: Model
    algorithm: Algorithm
    state: State
    first_step: int
    num_steps: int
    start: Any = None  # None: it goes on from a state
    theta_0: Tree = None
    fit_key: jax.Array | None = None  # the user's
    many: bool = False
    layout: Layout | None = None  # on the devices of a mesh
    record: int = 1  # every how many steps a row of the history is kept
    diverged: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), bool))
    retries: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), int))
    # Before they failed, particles had moved to where log p is -inf.
    left_support: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), bool))
    identity: dict[str, Any] | None = None  # of its checkpoints
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    pace: float = np.nan  # seconds a step, in the last chunk
    note: str = ""  # of a callback, shown instead of theta
    lost: bool = False  # another process of the fit is gone, and with it part of the state
    began: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def step(self) -> int:
        """Steps done since theta_0, by the fit that has come furthest."""
        return int(np.max(to_host(self.state.step)))

    @property
    def last_step(self) -> int:
        return self.first_step + self.num_steps

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def theta(self) -> Tree:
        constrain = jax.vmap(self.model.constrained) if self.many else self.model.constrained
        # From the host: what one process alone looks at must be no computation of all of them.
        return constrain(to_host(self.state.theta))

    @property
    def history(self) -> dict[str, Any]:
        """All records so far, one row a step kept (theta on the scale of the optimiser)."""
        axis = 1 if self.many else 0
        if len(self.records) > 1:  # joined once, so that asking after each chunk stays cheap
            joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *self.records)
            self.records = [joined]
        return self.records[0] if self.records else {}

    def latest(self, name: str) -> np.ndarray:
        """The last row of one record; there must have been a step."""
        return self.records[-1][name][..., -1:]


class Callback:
    """Looks at a fit while it runs; this one does nothing. Inherit, and write what you need.

    `run` has the fit's `step`, `theta`, `state`, `seconds` and `history` so far.

    >>> import jax, jalax
    >>> class Count(jalax.callbacks.Callback):
    ...     chunks = 0
    ...     def after_chunk(self, run):
    ...         self.chunks += 1
    >>> count = Count()
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> _ = jalax.fit(model, 0.0, key=jax.random.key(1), algorithm=jalax.JALAEM(step_size=0.1),
    ...               num_steps=30, chunk_size=10, callbacks=[count])
    >>> count.chunks
    3
    """

    def begin(self, run: Run) -> None:
        """Before the first step."""

    def steps_until_due(self, run: Run) -> int | None:
        """The most steps of the next chunk; None, as it is here: it does not mind."""
        return None

    def after_chunk(self, run: Run) -> Stop | None:
        """After each chunk of `chunk_size` steps; return a `Stop` to end the fit."""
        return None

    def end(self, run: Run) -> None:
        """After the last step."""


def check_callbacks(callbacks: Any, progress: Any) -> tuple[Callback, ...]:
    """Objects with the three methods, before anything is computed for them."""
    if isinstance(callbacks, (str, Callback)) or not isinstance(callbacks, Iterable):
        raise TypeError(
            f"callbacks must be a list such as [jalax.time_limit(60)], got {callbacks!r}."
        )
    found = tuple(callbacks)
    for callback in found:
        if not _is_callback(callback):
            raise TypeError(
                "callbacks must hold objects such as jalax.time_limit(60) or "
                f"jalax.stop_when(function), got {callback!r}."
            )
    if progress is not None and not _is_callback(progress):
        raise TypeError(
            "progress must be a callback, None (a progress bar) or jalax.callbacks.Callback() "
            f"(nothing is shown), got {progress!r}."
        )
    return found


def _is_callback(value: Any) -> bool:
    methods = ("begin", "after_chunk", "end")
    return not isinstance(value, type) and all(hasattr(value, name) for name in methods)


@dataclasses.dataclass(frozen=True)
class stop_when(Callback):
    """Stop as soon as `fn(run)` holds at the end of a chunk: `run.step`, `.theta`, `.history`.

    A string returned by `fn` becomes the reason in `FitResult.message`.
    """

    fn: Callable[[Run], bool | str]

    def __post_init__(self):
        check_callable("stop_when's fn", self.fn, "(run) -> bool")

    def after_chunk(self, run: Run) -> Stop | None:
        answer = self.fn(run)
        if not answer:
            return None
        return Stop(Status.STOPPED, answer if isinstance(answer, str) else "stop_when held")


PATIENCE = 1.0  # seconds beyond a time limit without a word


@dataclasses.dataclass(frozen=True)
class time_limit(Callback):
    """Stop when `seconds` have passed: after the step, or the compilation, that is under way.

    If that takes a second or more, a line says so through `logging`. On a mesh: at the end of the
    chunk.
    """

    seconds: float

    def __post_init__(self):
        expected = "a number, 0 or more"
        check_number("time_limit's seconds", self.seconds, expected, lambda number: number >= 0)

    def steps_until_due(self, run: Run) -> int | None:
        if run.layout is not None:  # its processes must take the same steps, and have other clocks
            return None
        if np.isnan(run.pace):  # the first step tells
            return 1
        # Half of what is left: later steps may take longer than those before.
        return max(1, int((self.seconds - run.seconds) / max(run.pace, 1e-9) / 2))

    def after_chunk(self, run: Run) -> Stop | None:
        if run.seconds < self.seconds:
            return None
        return Stop(Status.TIME_LIMIT, f"time limit of {self.seconds} s reached")


@contextlib.contextmanager
def reminded(callbacks: Sequence[Any], began: float, layout: Layout | None) -> Iterator[None]:
    """A line when a time limit has passed and the fit, begun then, is still busy."""
    elapsed = time.perf_counter() - began
    doing = "the fit ends after the compilation, or the step, that is under way"
    timers = [
        say_after(
            limit.seconds - elapsed + PATIENCE, f"time limit of {limit.seconds} s passed, {doing}"
        )
        for limit in callbacks
        if isinstance(limit, time_limit) and elapsed < limit.seconds and is_first(layout)
    ]
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


@contextlib.contextmanager
def before_the_first_step(callbacks: Sequence[Any], layout: Layout | None) -> Iterator[None]:
    """Signs of life while programs compile and there is no `Run` to look at yet."""
    shown = any(isinstance(c, progress_bar) for c in callbacks) and not _interactive()
    heartbeat = (
        Heartbeat("compiling, before the first step") if shown and is_first(layout) else None
    )
    try:
        yield
    finally:
        if heartbeat is not None:
            heartbeat.end()


class progress_bar(Callback):
    """A line with step, theta, log-evidence, effective sample size and steps a second.

    It shows in a terminal and in a notebook. Elsewhere there is a line every 30 s through
    `logging`, as "jalax" at level INFO, or on the standard error if nobody has set up logging. The
    first of several processes shows it.
    """

    def __init__(self):
        self._bar = self._heartbeat = None

    def begin(self, run: Run) -> None:
        if not is_first(run.layout):
            return
        if not _interactive():
            self._heartbeat = Heartbeat(f"{_what(run)}: compiling, or in the first steps")
            return
        tqdm, file = _bar_and_file()
        self._bar = tqdm(
            total=run.last_step,
            initial=run.step,
            desc=_what(run),
            unit="step",
            file=file,
            dynamic_ncols=True,
        )

    def after_chunk(self, run: Run) -> None:
        if self._heartbeat is not None and self._heartbeat.is_stale():
            self._heartbeat.say(f"{_what(run)}: step {run.step}, {progress_line(run)}")
        if self._bar is None:
            return
        self._bar.set_postfix_str(progress_line(run), refresh=False)
        self._bar.update(run.step - self._bar.n)

    def end(self, run: Run) -> None:
        if self._heartbeat is not None:
            self._heartbeat.end()
            self._heartbeat = None
        if self._bar is None:
            return
        if _settled(run):  # before all the steps it might have taken: the bar is full
            self._bar.total = self._bar.n
            self._bar.refresh()
        self._bar.close()
        self._bar = None


def _what(run: Run) -> str:
    """`Scoring`; of a large latent that is not in groups also how large."""
    name, size = type(run.algorithm).__name__, trees.size(run.model.latent)
    if run.many or run.model.grouped or size < LARGE:
        return name
    return f"{name}, {size:,} latents in one block"


def progress_line(run: Run) -> str:
    """`averaging: theta 0.987, logz -73.34 +/- 0.03, ess 61`; of many fits, their medians."""
    parts = [run.note or _theta_line(run)]
    if run.latest("ess").size == 0:  # the very first step failed
        return parts[0]
    known = run.algorithm.path_evidence(run.state)
    if run.algorithm.records_evidence and known is not None:
        relative = np.any(to_host(known.relative))
        name = "log Z/Z0" if relative else "logz"
        parts.append(f"{name} {float(np.nanmedian(run.latest('log_evidence'))):.2f}")
        if "log_evidence_error" in run.records[-1]:  # an algorithm may not know it
            parts[-1] += f" +/- {float(np.nanmedian(run.latest('log_evidence_error'))):.2f}"
    parts.append(f"ess {float(np.nanmedian(run.latest('ess'))):.0f}")
    line = ", ".join(parts)
    if not run.algorithm.phases:
        return line
    return f"{run.algorithm.phases[int(np.nanmedian(run.latest('phase')))]}: {line}"


def _theta_line(run: Run) -> str:
    axis = 0 if run.many else None
    theta = [np.asarray(leaf) for leaf in jax.tree.leaves(run.theta)]
    flat = np.concatenate([_over_fits(leaf, axis).ravel() for leaf in theta])
    shown = " ".join(f"{value:.4g}" for value in flat[:3])
    return f"theta {shown}" + (" ..." if flat.size > 3 else "")


def _settled(run: Run) -> bool:
    return bool(np.all(to_host(run.algorithm.is_done(run.state))))


def _over_fits(leaf: np.ndarray, axis: int | None) -> np.ndarray:
    return leaf if axis is None else np.nanmedian(leaf, axis=axis)


def _interactive() -> bool:
    return (sys.stderr is not None and sys.stderr.isatty()) or _in_notebook()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and "IPKernelApp" in getattr(shell.get_ipython(), "config", {})


def _bar_and_file() -> tuple[Any, Any]:
    """A widget in a notebook that has ipywidgets, else a line of text.

    `tqdm.auto` would warn in a notebook without them. There the line goes to the standard output:
    notebooks set the other on a red ground.
    """
    from tqdm.std import tqdm

    if not _in_notebook():
        return tqdm, None
    if importlib.util.find_spec("ipywidgets") is None:
        return tqdm, sys.stdout
    from tqdm.notebook import tqdm as widget

    return widget, None
