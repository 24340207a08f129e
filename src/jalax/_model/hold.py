"""Numbers of theta that a fit holds where they are, as a model has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jalax._particles.trees import Tree


class Held(NamedTuple):
    """Numbers of theta that are held, on the optimiser's scale: traced, so that neither other
    values nor other numbers of them recompile."""

    order: Any  # (P,): the places of the numbers that are free, then of those that are held
    values: Any  # of the latter

    @property
    def free(self) -> Any:
        return self.order[: self.order.shape[0] - self.values.shape[0]]


class Hold(NamedTuple):
    """The form of a theta some of whose numbers are held; the fit sees the others as a vector."""

    treedef: Any
    leaves: tuple  # the shapes of theta's
    names: tuple[str, ...]  # of its numbers

    def fill(self, free: Any, held: Held) -> Tree:
        """The tree of theta from the numbers that are free and those that are held."""
        numbers = jnp.concatenate([free, held.values.astype(free.dtype)])
        flat = jnp.zeros_like(numbers).at[held.order].set(numbers, unique_indices=True)
        leaves, begin = [], 0
        for leaf in self.leaves:
            part = flat[begin : begin + leaf.size]
            leaves.append(part.reshape(leaf.shape).astype(leaf.dtype))
            begin += leaf.size
        return self.treedef.unflatten(leaves)

    def pick(self, theta: Tree, held: Held) -> Any:
        """The numbers of a theta that are free, as one vector."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(theta)])[held.free]
