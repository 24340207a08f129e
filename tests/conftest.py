"""Shared fixtures, and the hooks of tiers.py."""

from __future__ import annotations

import gc
import os

import jax
import pytest

import jalax
from jalax._runtime import compilation, mappings
from tiers import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_pycollect_makeitem,
)


def pytest_configure(config):
    """How `make test` and `make test-all` compile, see the Makefile."""
    # Tracing makes millions of small objects, few of them in circles: looking for those after
    # every 700 takes a seventh of the time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    # Nobody reads in which lines of Python a program's operations began: to write them down is a
    # fiftieth of the time.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    # Not by JAX's own variables: the processes that tests start would write what XLA says when it
    # loads a program to their standard error, which some of these tests read.
    if folder := os.environ.get("JALAX_PROGRAMS"):
        jalax.runtime.compilation_cache(folder)
        # To write down a small program takes as long as to compile it again.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    if os.environ.get("JALAX_COMPILE_LEVEL") == "0":  # jalax's own programs too: they run once
        levels = [name for name in vars(compilation) if name.startswith("LEVEL_")]
        for number, name in enumerate(levels):
            options = getattr(compilation, name)
            options.update(compilation.LEVEL_0_OLD_EMITTERS)
            # The versions of a program stay apart, as tests count them.
            options["xla_cpu_parallel_codegen_split_count"] = 2 + number


def pytest_sessionfinish():
    """Once is enough: pytest would now collect five times, among gigabytes of what JAX keeps."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Thousands of tests compile more than a process has room for, see mappings.py."""
    yield
    if mappings.share_in_use() > 0.3:
        mappings.forget_programs()


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
