"""Dataclasses as nodes of pytrees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

import jalax
from jalax.extend import register_dataclass


def made(name):
    @register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Kind:
        number: float
        label: str = dataclasses.field(default="", metadata={"static": True})

        def times(self, x):
            return x * self.number if name == "product" else x + self.number

    return Kind


def test_structures_are_as_different_as_their_types():
    """JAX's own are equal (jaxlib 0.10.1), and a program may be found by the other's."""
    product, total = made("product"), made("sum")
    assert jax.tree.structure(product(2.0)) != jax.tree.structure(total(2.0))
    assert jax.tree.structure(product(2.0)) == jax.tree.structure(product(3.0))
    assert jax.tree.structure(product(2.0, "a")) != jax.tree.structure(product(2.0, "b"))
    kernels = jalax.Unadjusted(), jalax.GaussianExact()
    assert jax.tree.structure(kernels[0]) != jax.tree.structure(kernels[1])
    program = jax.jit(lambda kind, x: kind.times(x))
    for _ in range(20):  # of either, new classes with hashes of their own
        product, total = made("product"), made("sum")
        assert float(program(product(2.0), jnp.float32(5.0))) == 10
        assert float(program(total(2.0), jnp.float32(5.0))) == 7


def test_children_and_static_fields():
    kind = made("product")(jnp.float32(2.0), "label")
    children, structure = jax.tree.flatten(kind)
    assert [float(child) for child in children] == [2.0]
    again = structure.unflatten([3.0])
    assert (again.number, again.label) == (3.0, "label")
    ((path, _),) = jax.tree_util.tree_leaves_with_path(kind)
    assert jax.tree_util.keystr(path) == ".number"


def test_nothing_in_jalax_is_registered_otherwise():
    root = Path(jalax.__file__).parent
    users = [p for p in root.rglob("*.py") if "tree_util.register_dataclass" in p.read_text()]
    assert [path.name for path in users] == ["nodes.py"]  # where it is spoken of
