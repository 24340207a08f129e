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
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jalax._particles.trees import Tree

UP_TO = 2  # inner latents of a unit
LOCAL_UP_TO = 12  # values that a unit reads
NUM_POINTS = 16  # of each of them
BEND = 0.4
REACH, GROWTH = 5.0, 0.3  # of t with so many points, and how it grows with more
NEWTON_STEPS = 40
IMPOSSIBLE = -1e30  # of a log-density, in the place of -inf: zero times that is NaN
NEAR = 1e-2  # of log p, by which a mode may be missed: points may lie anywhere near it

# (known, at): (M,), the log-density of each unit. `at()` is v of all units, (M, d); `at(spread)` is
# `spread(v)`, where that looks rows up, or repeats them.
At = Callable[..., Array]
LogDensity = Callable[[Tree, At], Array]


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


class Place(NamedTuple):
    """Where the points of each unit lie."""

    mode: Float[Array, "M d"]
    root: Float[Array, "M d d"]  # R R' is the inverse Hessian
    log_det: Float[Array, " M"]  # of R


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
) -> Float[Array, " M"]:
    """As `log_integrals` with (local, data) known, where a unit reads its own row of `local`.

    The values of `local` (linear predictors, a standard deviation) are fewer than the numbers of
    theta that they are made of. So the second derivatives are taken of them, and those of theta
    follow by the chain rule, which needs no point any more. Of many values that would take longer.
    """
    if local.shape[1] > LOCAL_UP_TO:
        return log_integrals(log_density, (local, data), start, num)
    place = find_place(log_density, (local, data), start)

    def plain(local, data, place):
        return _summed(log_density, (local, data), place, num)

    @jax.custom_jvp
    def value(local, data, place):
        return plain(local, data, place)

    @jax.custom_jvp
    def slope(local, data, place):
        return jax.grad(lambda local: jnp.sum(plain(local, data, place)))(local)

    @value.defjvp
    def _(primals, tangents):
        return value(*primals), jnp.sum(slope(*primals) * tangents[0], axis=1)

    @slope.defjvp
    def _(primals, tangents):
        local, data, place = primals
        mean, hessians = _mean_and_hessians(log_density, local, data, place, num)
        return mean, jnp.sum(hessians * tangents[0].T[:, :, None], axis=0)

    return value(local, data, place)


def _mean_and_hessians(
    log_density: LogDensity, local: Float[Array, "M L"], data: Tree, place: Place, num: int
) -> tuple[Float[Array, "M L"], Float[Array, "L M L"]]:
    """The derivatives of the integrals by Louis' formula: E[s], and E[ds] + Cov(s)."""
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

    return mean, jax.vmap(column)(jnp.arange(size))


def _summed(log_density: LogDensity, known: Tree, place: Place, num: int) -> Float[Array, " M"]:
    values = _values(log_density, known, place, num)
    top = lax.stop_gradient(jnp.max(values, axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return top + jnp.log(jnp.sum(jnp.exp(values - top), axis=0)) + place.log_det


def draws(
    log_density: LogDensity,
    known: Tree,
    start: Float[Array, "M d"],
    uniforms: Float[Array, "M d"],
    num: int = NUM_POINTS,
) -> Float[Array, "M d"]:
    """One v of each unit with that density, from uniform numbers.

    By the distribution function between the points, straight in each cell; then moved and scaled,
    so that mean and variance are those of the integral.
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
    return place.mode + _times(place.root, jnp.stack(z, axis=1))


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
        def at(spread=_itself):
            return spread(place.mode) + _times(spread(place.root), z)

        return log_density(known, at)

    return jax.vmap(value, in_axes=(0, axes))(z, known) + log_weights[:, None]


def _itself(rows: Array) -> Array:
    return rows


def _times(root: Float[Array, "M d d"], z: Array) -> Float[Array, "M d"]:
    """R z: small matrices, written out."""
    parts = [root[:, :, j] * z[..., j, None] for j in range(root.shape[2])]
    return functools.reduce(operator.add, parts)


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


# --- where the points lie -------------------------------------------------------------------------


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
        return _seen(lambda v: log_density(known, lambda spread=_itself: spread(v)), v)

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
    zero = 0 * start[:, 0]
    flat = jnp.broadcast_to(
        jnp.eye(start.shape[1], dtype=start.dtype), (*start.shape, start.shape[1])
    )
    first = _Search(start, zero, jnp.zeros_like(start), flat)
    carry = jnp.zeros((), jnp.int32), first, zero, jnp.zeros((), bool)
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
    inside = _times(jnp.swapaxes(root, 1, 2), g)
    return _times(root, inside)


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
