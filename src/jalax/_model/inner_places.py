"""The modes of many small integrands at a time, around which the points of `inner.py` lie."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jalax._model import batching
from jalax._particles.trees import Tree

NEWTON_STEPS = 40
NEAR = 1e-2  # of log p, by which a mode may be missed: points may lie anywhere near it

# (known, at): (M,), the log-density of each unit. `at()` is v of all units, (M, d); `at(spread)` is
# `spread(v)`, where that looks rows up, or repeats them.
At = Callable[..., Array]
LogDensity = Callable[[Tree, At], Array]


class Place(NamedTuple):
    """Where the points of each unit lie."""

    mode: Float[Array, "M d"]
    root: Float[Array, "M d d"]  # R R' is the inverse Hessian
    log_det: Float[Array, " M"]  # of R


class _Search(NamedTuple):
    """Of each unit, on the way to its mode."""

    v: Float[Array, "M d"]
    value: Float[Array, " M"]
    gradient: Float[Array, "M d"]
    hessian: Float[Array, "M d d"]  # of -log_density, made positive


def find_place(log_density: LogDensity, known: Tree, start: Float[Array, "M d"]) -> Place:
    """Each unit's mode by Newton's method, uphill where its Hessian is not positive, too.

    Nothing of it is differentiated.
    """
    known = lax.stop_gradient(known)
    start = lax.stop_gradient(start)

    def at(v):
        return _seen(lambda v: log_density(known, lambda spread=itself: spread(v)), v)

    def body(carry):
        k, here, damping, _ = carry
        step = _solve(here.hessian, here.gradient) / (1 + damping[:, None])
        rise = jnp.sum(here.gradient * step, axis=1)
        new = at(here.v + step)
        slack = 4 * jnp.finfo(start.dtype).eps * jnp.abs(here.value)
        better = (k == 0) | (new.value >= here.value - slack)  # false if either is NaN
        done = (k > 0) & jnp.all((rise < NEAR) & (damping < 1))

        def chosen(a, b):
            return jnp.where(better.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

        here = jax.tree.map(chosen, new, here)
        return k + 1, here, jnp.where(better, damping / 8, 8 * damping + 1), done

    # The first round goes nowhere and looks at the start: log_density is compiled once, not twice.
    # It begins with as many axes of vmap as it ends with: the loop is traced once less for each.
    numbers = [leaf for leaf in jax.tree.leaves(known) if leaf.size]
    zero = sum((batching.zero_of(leaf).astype(start.dtype) for leaf in numbers), 0 * start[0, 0])
    start = start + zero
    flat = jnp.eye(start.shape[1], dtype=start.dtype) + 0 * start[:, :, None]
    first = _Search(start, 0 * start[:, 0], 0 * start, flat)
    carry = zero.astype(jnp.int32), first, 0 * start[:, 0], zero > 0
    found = lax.while_loop(lambda c: (c[0] < NEWTON_STEPS) & ~c[3], body, carry)[1]
    return lax.stop_gradient(Place(found.v, *_root(found.hessian)))


def _seen(log_density: Callable[[Array], Array], v: Float[Array, "M d"]) -> _Search:
    """One pass for the value, the gradient and the Hessian: no unit depends on another's v."""

    def total(v):
        values = log_density(v)
        return jnp.sum(values), values

    def slope(v):
        (_, values), gradient = jax.value_and_grad(total, has_aux=True)(v)
        return gradient, values

    columns = []
    for j in range(v.shape[1]):
        along = jnp.zeros_like(v).at[:, j].set(1.0)
        (gradient, values), (column, _) = jax.jvp(slope, (v,), (along,))
        columns.append(-column)
    return _Search(v, values, gradient, _positive(jnp.stack(columns, axis=2)))


def _positive(H: Float[Array, "M d d"]) -> Float[Array, "M d d"]:
    """|H|, which has the absolute values of H's eigenvalues, and none of them quite zero.

    Of two dimensions (H^2 + |det H|) / sqrt(tr H^2 + 2 |det H|).
    """
    if H.shape[1] == 1:
        return jnp.abs(H) + 1e-20
    a, b, c = H[:, 0, 0], (H[:, 0, 1] + H[:, 1, 0]) / 2, H[:, 1, 1]
    det = jnp.abs(a * c - b * b)
    below = jnp.sqrt(a * a + c * c + 2 * b * b + 2 * det) + 1e-20
    a, b, c = ((x / below) for x in (a * a + b * b + det, b * (a + c), c * c + b * b + det))
    ridge = 1e-6 * (a + c)
    rows = jnp.stack([a + ridge, b], axis=1), jnp.stack([b, c + ridge], axis=1)
    return jnp.stack(rows, axis=1)


def _root(H: Float[Array, "M d d"]) -> tuple[Float[Array, "M d d"], Float[Array, " M"]]:
    """R = L^{-T} of H = L L', and log det R."""
    if H.shape[1] == 1:
        root = 1 / jnp.sqrt(H)
        return root, jnp.log(root[:, 0, 0])
    a = jnp.sqrt(H[:, 0, 0])
    b = H[:, 1, 0] / a
    c = jnp.sqrt(H[:, 1, 1] - b * b)
    upper = jnp.stack([1 / a, -b / (a * c)], axis=1)
    lower = jnp.stack([jnp.zeros_like(a), 1 / c], axis=1)
    return jnp.stack([upper, lower], axis=1), -jnp.log(a) - jnp.log(c)


def _solve(H: Float[Array, "M d d"], g: Float[Array, "M d"]) -> Float[Array, "M d"]:
    root, _ = _root(H)
    inside = times(jnp.swapaxes(root, 1, 2), g)
    return times(root, inside)


def itself(rows: Array) -> Array:
    return rows


def times(root: Float[Array, "M d d"], z: Array) -> Float[Array, "M d"]:
    """R z: small matrices, written out."""
    parts = [root[:, :, j] * z[..., j, None] for j in range(root.shape[2])]
    return functools.reduce(operator.add, parts)
