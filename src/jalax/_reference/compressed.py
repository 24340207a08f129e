r"""The Hessian of $U(x) = -\log p_\theta(x, y)$ in x, by its products with a few vectors.

`compressed_hessian` has a row for every colour of the plan: the product with the vector of ones in
the latents of that colour. `parts` finds the entries there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jalax._model import batching
from jalax._model.evaluation import log_joint_of_vectors, ravel_latent
from jalax._model.model import Model
from jalax._model.structure import Pattern
from jalax._particles.trees import Tree
from jalax._reference.mode_search import COLUMNS
from jalax._reference.pattern import name_of, pattern_of, pieces_of
from jalax._reference.plan import Plan, plan_of
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_2_OLD_EMITTERS, Program, jit
from jalax._runtime.processes import to_host

SCALES = (1.0, 0.3, 0.1)  # how far from the example latent the Hessian is looked at
SHOWN = 3  # pairs of latents in an error message


@jit(LEVEL_2_OLD_EMITTERS)
def compressed_hessian(
    model: Model, theta: Tree, x: Float[Array, " d"], plan: Plan
) -> Float[Array, "C d"]:
    """H times the ones of each colour, some at a time."""
    number = plan.num_colours
    at_once = batching.particles_at_once(model, theta, number) or number
    return products(_slope(model, theta), x, plan, at_once)


def products(
    slope: Callable, x: Float[Array, " d"], plan: Plan, at_once: int = COLUMNS
) -> Float[Array, "C d"]:
    """The same by the gradient of -log p."""
    _, product = jax.linearize(slope, x)

    def column(colour):
        return product((plan.colour == colour).astype(x.dtype))

    colours = jnp.arange(plan.num_colours, dtype=plan.colour.dtype)
    return lax.map(column, colours, batch_size=min(COLUMNS, at_once))


def _slope(model: Model, theta: Tree):
    log_p = log_joint_of_vectors(model, theta)
    return jax.grad(lambda v: -log_p(v, model.data))


class Parts(NamedTuple):
    """H = [[R, F], [F', S]], R in K blocks of b rows, those of the last filled up with ones.

    Of a diagonal R the first is (n,), and there is no second.
    """

    inside: Float[Array, "*blocks"]  # (K, b, b), on and below the diagonal
    below: Float[Array, "K b b"] | None  # rows of a block, columns of the block before
    beside: Float[Array, "n m"]  # F; n is filled up to K b
    corner: Float[Array, "m m"]  # S, on and below the diagonal


def parts(plan: Plan, values: Float[Array, "C d"]) -> Parts:
    """The entries of H, each from the product of its column's colour."""
    rest, border = plan.rest, plan.border
    n, b, blocks = rest.shape[0], plan.block, plan.num_blocks
    columns = values[plan.colour[border]]
    beside = jnp.where(plan.beside, columns[:, rest].T, 0.0)
    corner = jnp.where(plan.corner, columns[:, border].T, 0.0)
    if b == 1:
        return Parts(values[plan.colour[rest], rest], None, beside, corner)
    missing = blocks * b - n
    rows = jnp.pad(values[:, rest], ((0, 0), (0, missing)))
    rows = rows.reshape(-1, blocks, b).swapaxes(0, 1)  # (K, C, b)
    colour = jnp.pad(plan.colour[rest], (0, missing)).reshape(blocks, b)
    before = jnp.roll(colour, 1, axis=0)  # that of the first block is masked

    def block(of_columns, mask):
        found = jnp.take_along_axis(rows, of_columns[:, :, None], axis=1)  # (K, column, row)
        return jnp.where(mask, found.swapaxes(1, 2), 0.0)

    added = (jnp.arange(blocks * b) >= n).astype(values.dtype).reshape(blocks, b)
    inside = block(colour, plan.inside) + added[:, :, None] * jnp.eye(b, dtype=values.dtype)
    return Parts(inside, block(before, plan.below), jnp.pad(beside, ((0, missing), (0, 0))), corner)


def times(plan: Plan, values: Float[Array, "C d"], v: Float[Array, " d"]) -> Float[Array, " d"]:
    """H v."""
    inside, below, beside, corner = parts(plan, values)
    rest, border = v[plan.rest], v[plan.border]
    if below is None:
        above = inside * rest
    else:
        missing = beside.shape[0] - rest.shape[0]
        rest = jnp.pad(rest, (0, missing))
        blocks = rest.reshape(-1, plan.block)
        before = jnp.einsum("kij,kj->ki", below, jnp.roll(blocks, 1, axis=0), precision="highest")
        after = jnp.einsum("kij,ki->kj", below, blocks, precision="highest")
        own = jnp.einsum("kij,kj->ki", _both(inside), blocks, precision="highest")
        above = (own + before + jnp.roll(after, -1, axis=0)).ravel()
    above = above + jnp.matmul(beside, border, precision="highest")
    last = jnp.matmul(rest, beside, precision="highest")
    last = last + jnp.matmul(_both(corner), border, precision="highest")
    return jnp.concatenate([above[: plan.rest.shape[0]], last])[plan.place]


def _both(lower: Float[Array, "... b b"]) -> Float[Array, "... b b"]:
    """The symmetric matrix with this lower triangle."""
    return jnp.tril(lower) + jnp.swapaxes(jnp.tril(lower, -1), -1, -2)


# ---------------------------------------------------------------- is the pattern the right one?


def _at_three_points(
    model: Model, theta: Tree, plan: Plan, example: Float[Array, " d"]
) -> tuple[Float[Array, "3 d"], Float[Array, "3 d"], Float[Array, "3 d"]]:
    """At three random points: the point, H v by the plan less H v itself, and their size."""

    def one(scale, key):
        key_point, key_vector = jax.random.split(key)
        x = example + scale * jax.random.normal(key_point, example.shape, example.dtype)
        v = jax.random.normal(key_vector, example.shape, example.dtype)
        values = compressed_hessian(model, theta, x, plan)
        exact = jax.jvp(_slope(model, theta), (x,), (v,))[1]
        size = times(plan, jnp.abs(values), jnp.abs(v))
        return x, times(plan, values, v) - exact, size

    # They are part of the method, not of the user's randomness.
    keys = jax.random.split(jax.random.key(0), len(SCALES))
    scales = jnp.asarray(SCALES, example.dtype)
    return lax.map(lambda pair: one(*pair), (scales, keys))


_probes = Program(_at_three_points, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_2_OLD_EMITTERS)


def checked_plan(model: Model, theta: Tree, least_colours: int = 1) -> Plan:
    """The plan of a model without groups, its pattern being given, found or dense."""
    pattern = pattern_of(model, theta)
    plan = plan_of(pattern, pieces_of(model), least_colours)
    check_pattern(model, theta, pattern, plan)
    return plan


def check_pattern(model: Model, theta: Tree, pattern: Pattern, plan: Plan) -> None:
    """Refuse a pattern without entries that the Hessian has."""
    example, _ = ravel_latent(model)
    points, off, size = to_host(_probes(model, theta, plan, example))
    finite = np.isfinite(off).all(axis=1) & np.isfinite(size).all(axis=1)
    if not finite.any():
        raise ValueError(
            "structure= could not be checked: the second derivatives of log_joint in x are not "
            "finite near the example latent. Give Model a latent= in the middle of its range."
        )
    points, off, size = points[finite], off[finite], size[finite]
    # Rounding grows with the terms of a sum; rows of nearly nothing are measured by the largest.
    tolerance = float(np.sqrt(np.finfo(off.dtype).eps))
    allowed = tolerance * np.maximum(size, tolerance * size.max(axis=1, keepdims=True))
    share = np.abs(off) / np.where(allowed > 0, allowed, np.finfo(off.dtype).tiny)
    if share.max() <= 1:
        return
    probe, row = np.unravel_index(np.argmax(share), share.shape)
    pairs = _outside(model, theta, pattern, points[probe], int(row))
    told = "; ".join(f"{name_of(model, i)} meets {name_of(model, j)}" for i, j in pairs)
    near = f"look at the terms with {name_of(model, int(row))}"
    raise ValueError(
        "the Hessian of log_joint in x has entries outside structure=: " + (told or near) + "."
    )


def _outside(
    model: Model, theta: Tree, pattern: Pattern, x: np.ndarray, row: int
) -> list[tuple[int, int]]:
    """The largest entries that the pattern does not have, of one row and of those it meets.

    A missing entry disturbs the rows that share its colour, too: the worst need not be its own.
    """
    met = np.concatenate([pattern.cols[pattern.rows == row], pattern.rows[pattern.cols == row]])
    rows = [row, *(int(i) for i in np.unique(met) if i != row)][: 2 * COLUMNS]
    found: list[tuple[float, int, int]] = []
    for i in rows:
        exact = np.array(to_host(_row(model, theta, x, i)))
        least = np.sqrt(np.finfo(exact.dtype).eps) * np.abs(exact).max()
        known = np.concatenate([pattern.cols[pattern.rows == i], pattern.rows[pattern.cols == i]])
        exact[known] = 0.0
        j = int(np.argmax(np.abs(exact)))
        if abs(exact[j]) > least:
            found.append((-abs(float(exact[j])), max(i, j), min(i, j)))
        if len(found) >= SHOWN:
            break
    return list(dict.fromkeys((i, j) for _, i, j in sorted(found)))


@jit(LEVEL_0_OLD_EMITTERS)
def _row(model: Model, theta: Tree, x: Float[Array, " d"], row) -> Float[Array, " d"]:
    one = (jnp.arange(x.shape[0]) == row).astype(x.dtype)
    return jax.jvp(_slope(model, theta), (x,), (one,))[1]
