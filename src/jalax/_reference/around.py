"""log p at thetas around one, and what their differences say: the score and the information."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jalax._particles import trees
from jalax._reference.plan import Plan
from jalax._reference.whitening import White

# Particles of a block, which is compared at each theta around: 64, fewer if it is many thetas.
COMPARED, LEAST_COMPARED, COMPARISONS = 64, 32, 1024
BOTH_SIDES_UP_TO = 3  # numbers of theta, for mixed differences


def standard_errors(
    information: Float[Array, "P P"], complete: Float[Array, "P P"]
) -> Float[Array, "P P"]:
    """Directions of theta about one standard error long, as columns."""
    size = jnp.abs(jnp.diagonal(complete))
    scale = 1 / jnp.sqrt(jnp.where(size > 0, size, 1.0))
    share, axes = jnp.linalg.eigh(information * scale[:, None] * scale)
    # No further than a hundred times as far as with x held: there it would be another place.
    return scale[:, None] * axes / jnp.sqrt(jnp.maximum(jnp.abs(share), 1e-4))


def around(size: int) -> np.ndarray:
    """Offsets of theta in units of the basis: none, one to either side, and two at once."""
    one = np.eye(size)
    pairs = [one[i] + one[j] for i in range(size) for j in range(i)]
    if size <= BOTH_SIDES_UP_TO:
        pairs += [-pair for pair in pairs]
    return np.array([np.zeros(size), *one, *-one, *pairs])


def differences(
    values: Float[Array, " S"], offsets: np.ndarray
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """The gradient and minus the Hessian of a function known at `offsets`, by central differences.

    Of more than a few numbers the mixed ones are one-sided, which saves half of the thetas.
    """
    size = offsets.shape[1]
    here, up, down = values[0], values[1 : 1 + size], values[1 + size : 1 + 2 * size]
    second = up + down - 2 * here
    matrix = jnp.diag(second)
    pairs = [(i, j) for i in range(size) for j in range(i)]
    num = len(pairs)
    if num:
        i, j = np.array(pairs).T
        both = values[1 + 2 * size : 1 + 2 * size + num]
        mixed = both - up[i] - up[j] + here
        if len(values) > 1 + 2 * size + num:
            other = values[1 + 2 * size + num :] - down[i] - down[j] + here
            mixed = (mixed + other) / 2
        matrix = matrix.at[i, j].set(mixed).at[j, i].set(mixed)
    return (up - down) / 2, -matrix


def laplace_differences(
    white: White,
    others: White,
    slopes: Float[Array, "S P"],
    basis: Float[Array, "P P"],
    offsets: np.ndarray,
    pairs: Bool[Array, ""],
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """Along the basis, the score of Laplace's approximation less that of log p at the mode, and the
    information.

    The gradient of log p at the mode is known at every theta, and log |L| is compared pivot by
    pivot: neither has the rounding of a long sum, in which differences of log p itself would drown.
    Without `pairs` there are no thetas along two at once, and log |L| is taken to have no mixed
    differences.
    """
    ratios = others.factor.pivots / white.factor.pivots
    # Of L^{-T}, less that of `white`.
    log_det = jnp.append(0.0, -jnp.sum(jnp.log(ratios), axis=1))
    score, information = differences(log_det, offsets)
    information = jnp.where(pairs, information, jnp.diag(jnp.diagonal(information)))
    size = len(basis)
    change = (slopes[:size] - slopes[size : 2 * size]) @ basis / 2
    return score, information - (change + change.T) / 2


class Compared(NamedTuple):
    """What the particles of a group at theta tell about the thetas around."""

    log_ratio: Float[Array, " S"]  # of Z there to Z here, by one block of particles
    slope: Float[Array, " P"]  # half the difference of those to either side, by all blocks
    noise: Float[Array, " P"]  # its variance by one block


class Ratio(NamedTuple):
    """Sums over weighted particles, of r = Z there / Z here - 1, at one theta or at several."""

    weights: Float[Array, "*S"]  # w
    squares: Float[Array, "*S"]  # w^2
    mean: Float[Array, "*S"]  # w r
    square_mean: Float[Array, "*S"]  # w^2 r
    square_square: Float[Array, "*S"]  # w^2 r^2

    def log(self) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
        """The log of one plus the mean of r, and its variance.

        Weights normalised by their own sum pull a mean away from what they are large with, and the
        log of a mean is low by half of its variance: little in one group, but of 161 groups theta
        was a third of a standard error off, and the information 15 per cent.
        """
        mean, one = self.mean / self.weights, self.weights**2
        variance = self.square_square - 2 * mean * self.square_mean + mean**2 * self.squares
        mean = mean + (self.square_mean - mean * self.squares) / one
        variance = jnp.maximum(variance, 0.0) / one / (1 + mean) ** 2
        return jnp.log1p(mean) + variance / 2, variance


def compared(
    density: Callable,
    white: White,
    others: White,
    plan: Plan,
    weighted: tuple[Float[Array, " N"], Float[Array, "N D"], Float[Array, " N"]],
    num_blocks: Int[Array, ""],
) -> Compared:
    """`weighted` are the weights of a group's particles, their z and log p~ there.

    One block of them is enough for the information. The score, which moves theta, is by as many as
    its noise asks for.
    """
    size, num = white.theta.size, len(weighted[0])
    block_size = min(COMPARED, max(LEAST_COMPARED, COMPARISONS // others.level.size))
    every = 2 ** max(0, int(np.ceil(np.log2(num / block_size))))
    blocks = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(-1, every, *x.shape[1:]), 1, 0), weighted
    )

    def at(other: White, block) -> Ratio:
        w, z, here = block
        x = other.mode + other.with_plan(plan).from_white(z)
        # The level first: that difference is exact, and what is left is small.
        value = jax.vmap(lambda x: density(other.theta, x) - white.level)(x) + other.log_det
        r = jnp.where(w > 0, jnp.expm1(value - here), 0.0)
        return Ratio(*(jnp.sum(part) for part in (w, w**2, w * r, w**2 * r, w**2 * r**2)))

    def add_block(k, sums: tuple[Ratio, Ratio]) -> tuple[Ratio, Ratio]:
        block = jax.tree.map(lambda x: x[k], blocks)

        def add(s, sums: Ratio) -> Ratio:
            one = at(jax.tree.map(lambda leaf: leaf[s], others), block)
            return jax.tree.map(lambda every, new: every.at[s].add(new), sums, one)

        # Later blocks look at the thetas to either side, which come first, and at no other.
        looked_at = jnp.where(k == 0, others.level.size, 2 * size)
        first, every = sums
        every = lax.fori_loop(0, looked_at, add, every)
        return trees.select(k == 0, every, first), every

    none = Ratio(*(jnp.zeros_like(others.level) for _ in Ratio._fields))
    number = jnp.clip(num_blocks, 1, every)
    first, total = lax.fori_loop(0, number, add_block, (none, none))
    both = total.log()[0][: 2 * size]
    slope = (both[:size] - both[size:]) / 2
    log_ratio, variance = first.log()
    return Compared(log_ratio, slope, (variance[:size] + variance[size : 2 * size]) / 2)
