r"""Integrals over inner latents, many small ones at a time.

The latents of a group are often one or two, $u$, and many more of which each belongs to a unit of
the group and is independent of the other units given $u$: mothers in a community. Their integrals
$\int e^{h_j(v)} dv$, one a unit, are of one or two dimensions. Points lie around the mode of each,
on its curvature, as those of the trapezoidal rule in $t$, $v = \hat v + R \sinh(b t) / b$, whose
error falls exponentially with their number and which reaches far into the tails.

What is integrated does not depend on where the points lie, and so neither mode nor curvature is
differentiated: all derivatives are those of the integrand at points that stand still.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jalax._model import batching
from jalax._model.inner_places import At as At
from jalax._model.inner_places import LogDensity, Place, find_place, itself, times
from jalax._particles.trees import Tree

UP_TO = 2  # inner latents of a unit
LOCAL_UP_TO = 12  # values that a unit reads
NUM_POINTS = 16  # of each of them
BEND = 0.4
REACH, GROWTH = 5.0, 0.3  # of t with so many points, and how it grows with more
AT_ONCE = 8  # units
IMPOSSIBLE = -1e30  # of a log-density, in the place of -inf: zero times that is NaN


class Rule(NamedTuple):
    """Points of one latent, and the cell of each."""

    z: np.ndarray  # (K,)
    log_weights: np.ndarray
    left: np.ndarray
    right: np.ndarray


@functools.cache
def rule(num: int) -> Rule:
    reach = REACH * (num / NUM_POINTS) ** GROWTH
    t, step = np.linspace(-reach, reach, num, retstep=True)
    edges = np.sinh(BEND * (t[:, None] + step * np.array([-0.5, 0.5]))) / BEND
    log_weights = np.log(step * np.cosh(BEND * t))
    return Rule(np.sinh(BEND * t) / BEND, log_weights, edges[:, 0], edges[:, 1])


def log_integrals(
    log_density: LogDensity, known: Tree, start: Float[Array, "M d"], num: int = NUM_POINTS
) -> Float[Array, " M"]:
    """log of the integral of e^log_density over v, of each unit.

    Args:
        log_density: as above.
        known: all that it reads which depends on what is differentiated, or on the group.
        start: v where the search for the modes begins.
        num: of points for each number of v.
    """
    return _summed(log_density, known, find_place(log_density, known, start), num)


def log_integrals_of(
    log_density: LogDensity,
    local: Float[Array, "M L"],
    data: Tree,
    start: Float[Array, "M d"],
    num: int = NUM_POINTS,
    count: Any = None,
) -> Float[Array, " M"]:
    """As `log_integrals` with (local, data) known, where a unit reads its own row of `local`.

    Only the first `count` units are there, if it is given; what the others have does not count.

    The values of `local` (linear predictors, a standard deviation) are fewer than the numbers of
    theta that they are made of. So the second derivatives are taken of them, and those of theta
    follow by the chain rule, which needs no point any more. Of many values that would take longer.
    """
    if local.shape[1] > LOCAL_UP_TO:
        return log_integrals(log_density, (local, data), start, num)

    def found(local, data, start):
        return find_place(log_density, (local, data), start)

    def plain(local, data, place):
        return _summed(log_density, (local, data), place, num)

    def once(local, data, place):
        def total(local):
            values = plain(local, data, place)
            return jnp.sum(values), values

        slopes, values = jax.grad(total, has_aux=True)(local)
        return values, slopes

    def twice(local, data, place):
        return _value_mean_and_hessians(log_density, local, data, place, num)

    # Each has what the ones before it have, so that one loop over the units is enough.
    @jax.custom_jvp
    def value(count, local, *others):
        return _in_turn(plain, count, local, *others)

    @jax.custom_jvp
    def with_slope(count, local, *others):
        return _in_turn(once, count, local, *others)

    @value.defjvp
    def _(primals, tangents):
        values, slopes = with_slope(*primals)
        return values, jnp.sum(slopes * tangents[1], axis=1)

    @with_slope.defjvp
    def _(primals, tangents):
        values, slopes, hessians = _in_turn(twice, *primals)
        along = jnp.sum(slopes * tangents[1], axis=1)
        return (values, slopes), (along, jnp.sum(hessians * tangents[1][:, :, None], axis=1))

    place = _in_turn(found, count, *lax.stop_gradient((local, data, start)))
    return value(count, local, data, place)


def _in_turn(function: Callable, count: Any, *units: Tree) -> Tree:
    """`function(*units)`, which all lead with the units, for a few of them at a time.

    Beyond the first `count` there are zeros, or what belongs to other units. Nothing may be
    differentiated from outside: the number of rounds is not known beforehand.
    """
    length = len(jax.tree.leaves(units)[0])
    if count is None or length <= AT_ONCE:
        return function(*units)

    inside = {"allow_negative_indices": False}  # fewer operations to trace

    def cut(start):
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, AT_ONCE, **inside), units)

    def put(x, part, start):
        return lax.dynamic_update_slice_in_dim(x, part, start, 0, **inside)

    def turn(k, found):
        start = jnp.minimum(k * AT_ONCE, length - AT_ONCE)
        return jax.tree.map(partial(put, start=start), found, function(*cut(start)))

    zero = batching.zero_of(jax.tree.leaves(units)[0])
    none = jax.tree.map(
        lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype) + zero.astype(x.dtype),
        jax.eval_shape(lambda: function(*cut(0))),
    )
    return lax.fori_loop(0, -(-most_of_all(count) // AT_ONCE), turn, none)


@jax.custom_batching.custom_vmap
def most_of_all(count: Array) -> Array:
    """The number itself, and under vmap the largest of the batch: one number for all of it."""
    return count


@most_of_all.def_vmap
def _(size: int, batched: list[bool], count: Array) -> tuple[Array, bool]:
    return most_of_all(jnp.max(count, axis=0)), False


def _value_mean_and_hessians(
    log_density: LogDensity, local: Float[Array, "M L"], data: Tree, place: Place, num: int
) -> tuple[Float[Array, " M"], Float[Array, "M L"], Float[Array, "M L L"]]:
    """The integrals, and their derivatives by Louis' formula: E[s], and E[ds] + Cov(s)."""
    number, size = num ** place.mode.shape[1], local.shape[1]

    def each(several: Float[Array, "Q M L"]) -> tuple[Array, Array]:
        values = _values(log_density, (several, data), place, num, (0, None))
        return jnp.sum(values), values

    several = jnp.broadcast_to(local, (number, *local.shape))
    scores, values = jax.grad(each, has_aux=True)(several)
    weights = jax.nn.softmax(values, axis=0)[:, :, None]
    mean = jnp.sum(weights * scores, axis=0)

    def weighted(local):
        values = _values(log_density, (local, data), place, num)
        return jnp.sum(weights[:, :, 0] * values)

    def column(k):
        along = jnp.zeros_like(local).at[:, k].set(1.0)
        bent = jax.jvp(jax.grad(weighted), (local,), (along,))[1]
        apart = scores - mean
        return bent + jnp.sum(weights * apart[:, :, k, None] * apart, axis=0)

    hessians = jax.vmap(column, out_axes=1)(jnp.arange(size))
    return _total(values, place), mean, hessians


def _summed(log_density: LogDensity, known: Tree, place: Place, num: int) -> Float[Array, " M"]:
    return _total(_values(log_density, known, place, num), place)


def _total(values: Float[Array, "Q M"], place: Place) -> Float[Array, " M"]:
    """Of the points' values, as a logarithm."""
    top = lax.stop_gradient(jnp.max(values, axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return top + jnp.log(jnp.sum(jnp.exp(values - top), axis=0)) + place.log_det


def draws(
    log_density: LogDensity,
    known: Tree,
    start: Float[Array, "M d"],
    uniforms: Float[Array, "M d"],
    num: int = NUM_POINTS,
    count: Any = None,
) -> Float[Array, "M d"]:
    """One v of each unit with that density, from uniform numbers.

    Only the first `count` units are there, if it is given; all in `known` leads with them then.
    """

    def of_some(uniforms, known, start):
        return _draws(log_density, known, start, uniforms, num)

    return _in_turn(of_some, count, uniforms, known, start)


def _draws(
    log_density: LogDensity,
    known: Tree,
    start: Float[Array, "M d"],
    uniforms: Float[Array, "M d"],
    num: int,
) -> Float[Array, "M d"]:
    """By the distribution function between the points, straight in each cell; then moved and
    scaled, so that mean and variance are those of the integral.
    """
    place = find_place(log_density, known, start)
    values, size = _values(log_density, known, place, num), start.shape[1]
    shares = jnp.moveaxis(jax.nn.softmax(values, axis=0), 1, 0).reshape(-1, *(num,) * size)
    given, z = shares, []
    for j in range(size):
        along = given.sum(axis=tuple(range(2, given.ndim)))
        cell, drawn = _in_cell(along, uniforms[:, j], num)
        whole = shares.sum(axis=tuple(k + 1 for k in range(size) if k != j))
        z.append(_with_moments(drawn, whole, num))
        given = jax.vmap(lambda row, k: row[k])(given, cell)
    return place.mode + times(place.root, jnp.stack(z, axis=1))


def _values(
    log_density: LogDensity, known: Tree, place: Place, num: int, axes: Any = None
) -> Float[Array, "Q M"]:
    """log_density at the points of each unit, with the logarithms of their weights.

    `axes`: those along which `known` has something for each point.
    """
    size, dtype = place.mode.shape[1], place.mode.dtype
    one = rule(num)
    grids = [
        np.stack(np.meshgrid(*[part] * size, indexing="ij"), -1).reshape(-1, size)
        for part in (one.z, one.log_weights)
    ]
    z, log_weights = jnp.asarray(grids[0], dtype), jnp.asarray(grids[1].sum(axis=1), dtype)

    def value(z, known):
        # Looked up first, and only then multiplied: once for all points.
        def at(spread=itself):
            return spread(place.mode) + times(spread(place.root), z)

        return log_density(known, at)

    return jax.vmap(value, in_axes=(0, axes))(z, known) + log_weights[:, None]


def _in_cell(shares: Float[Array, "M K"], u: Float[Array, " M"], num: int) -> tuple[Array, Array]:
    """The cell in which the distribution function is u, and z there."""
    total = jnp.cumsum(shares, axis=1)
    u = u * total[:, -1]
    cell = jnp.minimum(jnp.sum(total < u[:, None], axis=1), num - 1)

    def of_cell(rows):
        return jnp.take_along_axis(rows, cell[:, None], axis=1)[:, 0]

    share = of_cell(shares)
    within = 1 - (of_cell(total) - u) / jnp.where(share > 0, share, 1.0)
    left, right = (jnp.asarray(ends, u.dtype)[cell] for ends in rule(num)[2:])
    return cell, left + jnp.clip(within, 0.0, 1.0) * (right - left)


def _with_moments(drawn: Float[Array, " M"], shares: Float[Array, "M K"], num: int) -> Array:
    one = rule(num)
    middle, width = (one.left + one.right) / 2, one.right - one.left

    def moments(at, more):
        at, more = jnp.asarray(at, drawn.dtype), jnp.asarray(more, drawn.dtype)
        mean = jnp.sum(shares * at, axis=1)
        return mean, jnp.sum(shares * ((at - mean[:, None]) ** 2 + more), axis=1)

    mean, variance = moments(one.z, 0.0)
    off, wide = moments(middle, width**2 / 12)
    return mean + (drawn - off) * jnp.sqrt(variance / wide)


def sums(values: Float[Array, " R"], unit: Array, num_units: int) -> Float[Array, " M"]:
    """Of the values of each unit.

    By a matrix of zeros and ones: a scatter of rows takes ten times as long on a CPU.
    """
    which = (unit == jnp.arange(num_units)[:, None]).astype(values.dtype)
    return jnp.matmul(which, jnp.maximum(values, IMPOSSIBLE), precision="highest")


def standard_normal(v: Float[Array, "M d"]) -> Float[Array, " M"]:
    """log N(v; 0, 1) of each unit."""
    return -0.5 * jnp.sum(v**2, axis=1) - 0.5 * v.shape[1] * float(np.log(2 * np.pi))


# --- draws of all units, for every particle of a group --------------------------------------------

DRAWS = 8  # of the units, for each particle
# Fractions of multiples of these are spread evenly, and so are their pairs.
IRRATIONAL = (0.6180339887498949, 0.7548776662466927, 0.5698402909980532, 0.4142135623730951)


def spread_uniforms(
    first: Float[Array, " N"], num_units: int, size: int, depth: int = 0
) -> Float[Array, "N S M d"]:
    """Uniform numbers for several draws of the units of each particle: a lattice with these.

    `first` is a number of each particle by which they are put in order. Each unit has a shift of
    its own. `depth` tells units within units from those they lie in.
    """
    rank = DRAWS * jnp.argsort(jnp.argsort(first))[:, None] + jnp.arange(DRAWS)
    shifts = jax.random.uniform(jax.random.key(depth), (num_units, size), first.dtype)
    begin = 0 if size == 1 else 1
    alphas = jnp.asarray([IRRATIONAL[(begin + depth + j) % 4] for j in range(size)], first.dtype)
    return jnp.mod(rank[:, :, None, None].astype(first.dtype) * alphas + shifts, 1.0)
