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

_lock = threading.Lock()
_users: list[Any] = []  # those inside; the first of them holds what there was before


@functools.cache
def _controller() -> Any:
    import scipy.linalg.cython_lapack  # noqa: F401 (JAX loads it with its first factorisation)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """What there was before comes back when the last thread of Python has left."""
    if jax.default_backend() != "cpu":
        yield
        return
    with _lock:
        held = _users[0] if _users else _controller().limit(limits=1, user_api="blas")
        _users.append(held)
    try:
        yield
    finally:
        with _lock:
            _users.pop()
            if not _users:
                held.restore_original_limits()
