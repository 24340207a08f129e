"""BLAS has one thread while jalax runs, and its own number before and after."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest
import scipy.linalg.cython_lapack  # noqa: F401 (JAX's BLAS, which is loaded late)
from threadpoolctl import threadpool_info, threadpool_limits

import jalax
from jalax._runtime.blas import one_thread


def num_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def three_threads():
    if not num_threads():
        pytest.skip("BLAS says nothing of threads here")
    with threadpool_limits(3, user_api="blas"):
        yield


class Look(jalax.callbacks.Callback):
    def __init__(self):
        self.seen: list[set[int]] = []

    def after_chunk(self, run):
        self.seen.append(num_threads())


def test_a_fit_runs_with_one_thread_and_gives_the_others_back():
    look, model = Look(), jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))
    jalax.fit(model, 0.0, key=jax.random.key(0), progress=look)
    assert look.seen
    assert set.union(*look.seen) == {1}
    assert num_threads() == {3}


def test_an_error_gives_them_back():
    with pytest.raises(RuntimeError), one_thread():
        raise RuntimeError
    assert num_threads() == {3}


def test_two_fits_at_once_give_them_back():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        inside.wait()
        assert num_threads() == {1}
    assert num_threads() == {3}  # though the other is still there
    leave.set()
    thread.join()
    assert num_threads() == {3}
