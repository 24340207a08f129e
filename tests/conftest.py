"""Shared fixtures."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit floats inside the test, without touching the global switch."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """The test runs once in JAX's default precision and once in 64 bits."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
