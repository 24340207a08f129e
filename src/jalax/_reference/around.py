"""log p at thetas around one, and what their differences say: the score and the information."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jalax._reference.whitening import White

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
