"""Shared fixtures, and the hooks of tiers.py."""

from __future__ import annotations

import os

import jax
import pytest

from jalax._runtime import compilation
from tiers import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_pycollect_makeitem,
)


def pytest_configure(config):
    """`make test` compiles jalax's own programs like everything else: they run once."""
    if os.environ.get("JALAX_COMPILE_LEVEL") == "0":
        for name in vars(compilation):
            if name.startswith("LEVEL_"):
                getattr(compilation, name).update(compilation.LEVEL_0_OLD_EMITTERS)


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


@pytest.fixture
def cache_is_off_afterwards():
    """For a test that calls `jalax.runtime.compilation_cache`."""
    names = [
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
