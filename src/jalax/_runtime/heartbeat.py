"""Lines from a thread of its own: every half minute where there is no terminal for a progress bar,
and when a time limit passes while something is under way that cannot be stopped."""

from __future__ import annotations

import logging
import sys
import threading
import time

LOG = logging.getLogger("jalax")
EVERY = 30.0  # seconds


class Heartbeat:
    """Says what the process is doing from a thread of its own, since a compilation does not return.

    Through `logging`, as "jalax" at level INFO. Where nobody has set up logging, on the standard
    error: a fit of ten minutes whose output goes to a file must not look like a dead one.
    """

    def __init__(self, text: str):
        self._text, self._began = text, time.monotonic()
        self._said = self._began
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def is_stale(self) -> bool:
        """What it says is so old that another line is worth making."""
        return time.monotonic() - self._said > EVERY / 3

    def say(self, text: str) -> None:
        """From now on."""
        self._text, self._said = text, time.monotonic()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(EVERY):
            _say(f"{self._text}, {time.monotonic() - self._began:.0f} s")


def say_after(seconds: float, line: str) -> threading.Timer:
    """Say it then, unless the timer is cancelled before."""
    timer = threading.Timer(seconds, _say, [line])
    timer.daemon = True
    timer.start()
    return timer


def _say(line: str) -> None:
    if LOG.hasHandlers():
        LOG.info(line)
    elif sys.stderr is not None:
        print(f"jalax: {line}", file=sys.stderr, flush=True)
