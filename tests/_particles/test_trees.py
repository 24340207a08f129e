"""Entries of a leading axis, some at a time."""

from __future__ import annotations

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from jalax._particles import trees


@pytest.mark.parametrize(("length", "size"), [(1, 3), (4, 2), (7, 3), (10, 9), (11, 4), (12, 12)])
def test_batches_are_of_one_size_and_forget_nobody(length, size):
    traced = []

    def function(entry):
        traced.append(jax.tree.map(jnp.shape, entry))
        return entry["a"] ** 2 + entry["b"].sum(), entry["b"][::-1]

    tree = {"a": jnp.arange(1.0, length + 1), "b": jnp.arange(2.0 * length).reshape(length, 2)}
    found = jax.jit(lambda tree: trees.map_in_batches(function, tree, size))(tree)
    assert len(traced) == 1  # a remainder would be another program
    a, b = np.asarray(tree["a"]), np.asarray(tree["b"])
    np.testing.assert_array_equal(found[0], a**2 + b.sum(axis=1))
    np.testing.assert_array_equal(found[1], b[:, ::-1])


@pytest.mark.parametrize(
    "tree",
    [
        {"b": jnp.arange(6.0).reshape(2, 3), "a": (jnp.ones(()), jnp.zeros((2, 0)))},
        [jnp.float16(0.1), jnp.linspace(0, 1, 5)],
        jnp.ones(()),
        (),
    ],
)
def test_numbers_on_the_host_are_those_of_ravel_pytree(tree):
    flat, _ = jax.flatten_util.ravel_pytree(tree)
    numbers = trees.numbers_of(tree)
    assert numbers.dtype == np.float64
    np.testing.assert_array_equal(numbers, np.asarray(flat, float))
    again = trees.with_numbers(tree, numbers)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for old, new in zip(jax.tree.leaves(tree), jax.tree.leaves(again), strict=True):
        assert old.dtype == new.dtype
        assert old.shape == new.shape
        np.testing.assert_array_equal(old, new)
