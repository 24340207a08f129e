"""Noise: the numbers of jax.random.normal, to the bit in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jalax._particles import trees
from jalax._runtime import normals

FLOATS = {"float32": np.dtype("float32"), "float64": np.dtype("float64")}


@pytest.mark.parametrize("shape", [(), (1,), (7,), (15, 100), (3, 4, 5), (1, 1000, 9), (0, 3)])
def test_jaxs_numbers(precision, shape):
    dtype = FLOATS[precision]
    ours = jax.jit(lambda key: normals.normal(key, shape, dtype))
    jaxs = jax.jit(lambda key: jax.random.normal(key, shape, dtype))
    for seed in range(3):
        key = jax.random.fold_in(jax.random.key(seed), 1)
        found, expected = ours(key), jaxs(key)
        assert found.dtype == expected.dtype == dtype
        # In float64 erf^-1 is ours, and XLA's the less precise: it takes 1 - u^2 in one rounding.
        np.testing.assert_allclose(found, expected, rtol=0 if precision == "float32" else 1e-12)


def test_erf_inv_is_scipys(x64):
    """Up to the last numbers below 1."""
    from scipy import special

    tails = -np.geomspace(1e-16, 0.5, 1000) + 1
    centre = np.concatenate([np.linspace(-0.9, 0.9, 1000), np.geomspace(1e-300, 0.1, 100)])
    u = np.concatenate([tails, -tails, centre, [0.0, np.nextafter(-1, 0), np.nextafter(1, 0)]])
    u = u[np.abs(u) < 1]
    found = jax.jit(normals.erf_inv)(u)
    np.testing.assert_allclose(found, special.erfinv(u), rtol=2e-14)


def test_they_are_not_drawn_by_jax(precision, monkeypatch):
    """Or the tests above would compare JAX with itself."""
    monkeypatch.setattr(jax.random, "normal", None)
    found = jax.jit(lambda key: normals.normal(key, (100,), FLOATS[precision]))(jax.random.key(0))
    assert 0.8 < np.std(found) < 1.2


def test_many_keys_at_once(precision):
    dtype, keys = FLOATS[precision], jax.random.split(jax.random.key(1), 5)
    found = jax.jit(jax.vmap(lambda key: normals.normal(key, (4, 3), dtype)))(keys)
    expected = jax.jit(jax.vmap(lambda key: jax.random.normal(key, (4, 3), dtype)))(keys)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "key", [jax.random.key(2, impl="rbg"), jax.random.PRNGKey(2)], ids=["generator", "old-key"]
)
def test_other_keys_are_left_to_jax(key):
    found = normals.normal(key, (50,), FLOATS["float32"])
    np.testing.assert_array_equal(found, jax.random.normal(key, (50,), jnp.float32))


def test_other_floats_and_jaxs_other_order_of_counting_are_left_to_jax():
    key = jax.random.key(3)
    half = normals.normal(key, (50,), np.dtype("float16"))
    np.testing.assert_array_equal(half, jax.random.normal(key, (50,), jnp.float16))
    with jax.threefry_partitionable(False):
        found = normals.normal(key, (51,), FLOATS["float32"])
        np.testing.assert_array_equal(found, jax.random.normal(key, (51,), jnp.float32))


def test_every_leaf_has_a_key_of_its_own():
    key, tree = jax.random.key(4), {"a": jnp.zeros((2, 3)), "b": jnp.zeros((2, 3, 2))}
    first, second = jax.random.split(key)
    found = jax.jit(trees.normal_like)(key, tree)
    np.testing.assert_allclose(found["a"], jax.random.normal(first, (2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found["b"], jax.random.normal(second, (2, 3, 2)), rtol=1e-6)
