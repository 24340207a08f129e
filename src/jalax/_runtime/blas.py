"""One thread for BLAS while jalax runs.

On a CPU JAX's factorisations and triangular solves are SciPy's BLAS. Its threads, once woken, wait
for the next call by spinning, and take the cores from XLA's own: with a small solve in every step
of a loop, everything else in it takes twice as long on two cores.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax

_held = threading.Lock()  # by the thread of Python that limits it


@functools.cache
def _controller() -> Any:
    import scipy.linalg.cython_lapack  # noqa: F401 (JAX loads it with its first factorisation)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Whoever comes first limits it, and undoes that: the number there was is never lost.

    Another fit that is still running by then has all threads of BLAS again, and is only slower.
    """
    if jax.default_backend() != "cpu" or not _held.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _held.release()
