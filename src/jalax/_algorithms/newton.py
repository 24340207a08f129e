"""One step of Newton's method on log p, with the two parts of Louis' information.

The scale is that of complete data: along an axis of the observed information its share of the
complete one is 1 less what is missing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jalax._model.information import WIDE
from jalax._reference.group_points import Sums

LONGEST = 3.0  # standard errors that theta may move in the first step
# Along less than this share of the complete-data information: in standard errors of complete data.
FLAT, FLAT_LONGEST = 0.01, 4.5
REGULAR = 0.05  # the same: where all have more, and no standard error is wide, steps shrink fast
LEAST_SHARE = 1e-6  # of the complete-data information, that points can tell from zero
NOISE = 300  # the same for rounding, between two parameters, in units of the last place
GOOD, BAD = 0.5, 0.1  # shares of the rise of log p foreseen that make later steps longer or shorter
MISSING = 1e-3  # a share of the complete-data information so small that a direction is flat
SHORTEST_IF_FLAT = 0.01  # standard errors of a step that is not worth taking there
SHORTEST_IF_WIDE = 0.003  # and where a standard error is as large as that of a boundary
GAIN, LATELY = 1e-3, 12  # of log p, that so many steps together should give
NEAR = 0.5  # standard errors of a step after which theta is near the maximum


class Step(NamedTuple):
    step: Float[Array, " P"]
    length: Float[Array, ""]  # in standard errors, before it is shortened
    taken: Float[Array, ""]  # and after
    rise: Float[Array, ""]  # of log p, if it is the parabola that it looks like here
    regular: Bool[Array, ""]  # no direction is nearly flat, and hardly any is damped


def newton_step(
    theta, score, complete, missing, damping, longest, few_points: bool = False
) -> Step:
    """The next step from theta, no longer than so many standard errors.

    Where the observed information is not positive definite the size of its eigenvalues counts, and
    no less than what the points, or rounding, can tell from zero.
    """
    share, axes, scale = _eigen(complete, missing)
    least = max(LEAST_SHARE, 30 * float(jnp.finfo(share.dtype).eps))
    along, size = axes.T @ (scale * score), jnp.maximum(jnp.abs(share), least)
    step = along / (size + damping)
    # A flat direction that has little to give is let alone: the way to a boundary is infinite, and
    # ends where no information is left about the others.
    wide = _is_wide(share, scale[:, None] * axes, theta)
    let_alone = jnp.where(share < MISSING, SHORTEST_IF_FLAT, jnp.where(wide, SHORTEST_IF_WIDE, 0.0))
    step = jnp.where(jnp.abs(along * step) < let_alone**2, 0.0, step)
    length = jnp.sqrt(jnp.sum(jnp.abs(along * step)))
    taken = jnp.minimum(length, longest)
    step = step * taken / jnp.maximum(length, 1e-30)
    # A parabola says little about those that have, and the others must keep up with them. To few
    # points a direction may look flat that is not: there, too, what rose as foreseen goes further.
    flat_longest = FLAT_LONGEST * (longest / LONGEST if few_points else 1)
    most = jnp.where(share < FLAT, flat_longest, jnp.inf)
    step = jnp.clip(step, -most, most)
    rise = jnp.sum(step * (along - size * step / 2))
    regular = jnp.all(share > jnp.maximum(REGULAR, 10 * damping)) & ~jnp.any(wide)
    return Step(scale * (axes @ step), length, taken, rise, regular)


def _is_wide(share, axes, theta) -> Bool[Array, " P"]:
    """Axes along which a standard error is so large that it is that of a boundary."""
    errors = jnp.abs(axes) / jnp.sqrt(jnp.maximum(jnp.abs(share), 1e-12))
    return jnp.any(errors > WIDE * (1 + jnp.abs(theta))[:, None], axis=0)


def _eigen(complete, missing) -> tuple[Array, Array, Array]:
    """Of the observed information, in units in which that of complete data has ones in it."""
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(complete)), 1e-30))
    observed = (complete - missing) * scale[:, None] * scale
    # What may be rounding must not turn the axes: a spread near zero would be moved along with all
    # others, and take what is known about them with it.
    least = max(LEAST_SHARE, NOISE * float(jnp.finfo(observed.dtype).eps))
    small = (jnp.abs(observed) < least) & ~jnp.eye(len(observed), dtype=bool)
    return *jnp.linalg.eigh(jnp.where(small, 0.0, observed)), scale


def trust(longest, damping, relaxation, taken, foreseen, rise, accepted) -> tuple[Array, Array]:
    """How long the next step may be, and its damping, by what the last one did, `taken` long."""
    share = rise / jnp.maximum(foreseen, 1e-30)
    after = jnp.where(share > GOOD, jnp.maximum(longest, 2 * taken), longest)
    after = jnp.where(share < BAD, taken / 2, after)
    after = jnp.where(foreseen > 0, after, longest)  # nothing was, at theta_0
    # Near the maximum the noise of legs is more than what is left to gain, and says nothing.
    after = jnp.maximum(after, LONGEST)
    # It fell though it was short: another direction, too.
    higher = jnp.where(taken <= LONGEST, jnp.maximum(8 * damping, 1e-2), damping)
    lower = jnp.where(foreseen > 0, damping / relaxation, damping)
    return jnp.where(accepted, after, taken / 4), jnp.where(accepted, lower, higher)


class Pace(NamedTuple):
    gained: Float[Array, ""]  # of log p, since it last rose by something
    steps: Int[Array, ""]  # since then


def no_pace(theta) -> Pace:
    return Pace(jnp.zeros((), theta.dtype), jnp.zeros((), jnp.int32))


def next_pace(pace: Pace, rise) -> Pace:
    """After a step; an infinite rise: there was nothing to compare it with."""
    gained = pace.gained + rise
    rose = ~(gained <= GAIN)
    return Pace(jnp.where(rose, 0.0, gained), jnp.where(rose, 0, pace.steps + 1).astype(jnp.int32))


def stands_still(pace: Pace) -> Bool[Array, ""]:
    """On its way to a boundary a climb may creep, or walk in a circle, for ever."""
    return pace.steps >= LATELY


def is_near(taken) -> Bool[Array, ""]:
    """By the length of the last step: 0 if there was none."""
    return (taken > 0) & (taken < NEAR)


def is_noise(length, taken) -> Bool[Array, ""]:
    """A next step of that length is noise: near a maximum Newton's shrink fast."""
    return is_near(taken) & (length > taken / 2) & (length < NEAR)


def last_step(sums: Sums) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """To the maximum that all measurements together see, and its standard errors.

    Along what something is known about.
    """
    number = jnp.maximum(sums.number, 1)
    score, complete, missing = (x / number for x in (sums.score, sums.complete, sums.missing))
    share, axes, scale = _eigen(complete, missing)
    along = axes.T @ (scale * score)
    step = jnp.where(share > MISSING, along / share, 0.0)
    return scale * (axes @ step), jnp.sqrt(jnp.maximum(along @ step, 0.0))
