"""Arrays of the host on the device: the values, the types, and no program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jalax._runtime.arrays import as_array


@pytest.mark.parametrize("dtype", [None, float, jnp.int32])
@pytest.mark.parametrize(
    "value", [2, True, 0.5, np.float64(0.1), np.arange(3), np.linspace(0, 1, 7).reshape(7, 1)]
)
def test_it_is_what_jax_makes_of_it(value, dtype, precision):
    found, expected = as_array(value, dtype), jnp.asarray(value, dtype)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
    assert not found.weak_type


def test_an_array_of_jax_stays_the_same():
    x = jnp.arange(3.0)
    assert as_array(x) is x
    assert as_array(x, jnp.int32).dtype == jnp.int32


def test_who_changes_his_array_afterwards_does_not_change_ours():
    given = np.zeros(4096, np.float32)  # large and aligned enough to be shared
    found = as_array(given)
    given[:] = 1
    assert not np.any(found)


def test_it_compiles_nothing():
    """Of a shape that nobody had before; `jnp.asarray` is seen to compile something."""
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(as_array(np.ones((3, 1, 4, 1, 5)), float))
        assert not compiled
        jax.block_until_ready(jnp.asarray(np.ones((3, 1, 4, 1, 5)), float))
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
