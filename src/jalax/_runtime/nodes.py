"""Dataclasses as nodes of pytrees, told apart by their types.

Two types that `jax.tree_util.register_dataclass` knows have equal tree structures, whatever the
types are, if they have as many children and equal static fields (jaxlib 0.10.1). Their hashes
differ, so that it is rarely seen; but one call in a hundred or so then found the program of the
other type, and a fit by one Langevin kernel was made with the other's.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import jax

AnyType = TypeVar("AnyType", bound=type)


def register_dataclass(kind: AnyType) -> AnyType:
    """`jax.tree_util.register_dataclass`, but of another structure for another type.

    A field is a child, traced, unless its metadata say that it is static.

    >>> import dataclasses, jax
    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Move:
    ...     step_size: float
    ...     name: str = dataclasses.field(default="", metadata={"static": True})
    >>> jax.tree.leaves(Move(0.1, "mine"))
    [0.1]
    """
    fields = [field for field in dataclasses.fields(kind) if field.init]
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    names = tuple(field.name for field in fields if field.name not in static)
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in names)

    def flatten(node):
        children = tuple(getattr(node, name) for name in names)
        return children, tuple(getattr(node, name) for name in static)

    def flatten_with_keys(node):
        children, known = flatten(node)
        return tuple(zip(keys, children, strict=True)), known

    def unflatten(known, children):
        return kind(
            **dict(zip(static, known, strict=True)), **dict(zip(names, children, strict=True))
        )

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
    return kind
