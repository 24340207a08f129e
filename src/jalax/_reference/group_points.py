r"""What quasi-random points of every group say about theta, in one pass.

The mode of a group is followed from a theta nearby, a law of `points.py` stands on its curvature,
and its quantiles at quasi-random points are weighed by $p_\theta(x, y) / q(x)$. The weights give
$\log p_\theta(y)$, the score $E[s]$ and both parts of the information, see `information.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from jalax._model import batching
from jalax._model.algorithm import Measurement
from jalax._model.evaluation import log_joint_of_vectors, over_groups
from jalax._model.frequencies import counted
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference import points
from jalax._reference.flow import flow_of, is_worth_it
from jalax._reference.small_matrices import cholesky, inverse_of_lower
from jalax._reference.weighed_points import (
    CURVATURE_BLOCKS,
    curvature_blocks_of,
    weighed,
    weighed_only,
)
from jalax._runtime.processes import to_host

# For I_c, a smooth function of x, whose points would cost most: so many in all groups together,
# but in each at least a quarter of them, and where they take long at most a half.
CURVATURE_POINTS = 32_768
# A pass visits its points in so many blocks, or in twice as many that are no smaller than this,
# where the points times the data are more than so many numbers. Far from the maximum every fourth
# block will do.
BLOCKS, SMALL_BLOCK, WORTH_BLOCKS = 4, 128, 2**18
# Of so many passes, and of all groups of a pass, weights are kept for their k-hat.
KEPT_PASSES, KEPT_WEIGHTS = 8, 8192
MANY_GROUPS = 100
MODE_STEPS = 50  # of Newton's method; one or two where theta has hardly moved
LOG_2PI = float(np.log(2 * np.pi))
MOST_ROUNDS = 4  # of passes, until the error of log p is as small as `error_aimed_at` says


class Pass(NamedTuple):
    """The points of every group, and what they say at one theta."""

    modes: Float[Array, "G D"]
    particles: Float[Array, "G N D"]
    log_weights: Float[Array, "G N"]
    log_p: Float[Array, " G"]  # log p_theta(y_g)
    score: Float[Array, " P"]
    complete: Float[Array, "P P"]  # I_c
    missing: Float[Array, "P P"]  # M
    dead: Int[Array, ""]  # points where log p is not finite
    laplace: Float[Array, " G"]  # log p by Laplace's approximation
    carried: Float[Array, "G N"]  # log-weights of mean one that the draws came to carry


class Sums(NamedTuple):
    """Over several passes at one theta, each with shifts of its own.

    Z of a group as Z / Z_base - 1, the base being that of some pass: this keeps its digits.
    """

    number: Int[Array, ""]
    ratio: Float[Array, " G"]
    ratio_square: Float[Array, " G"]
    score: Float[Array, " P"]
    score_square: Float[Array, "P P"]
    complete: Float[Array, "P P"]
    missing: Float[Array, "P P"]
    log_weights: Float[Array, "K M"]  # of the last passes, groups pooled, each of mean one


def no_sums(num_groups: int, num: int, theta: Float[Array, " P"]) -> Sums:
    none, matrix = jnp.zeros((num_groups,), theta.dtype), jnp.zeros((theta.size,) * 2, theta.dtype)
    zero = jnp.zeros((), jnp.int32)
    kept = jnp.full((KEPT_PASSES, num_groups * _kept(num_groups, num)), -jnp.inf, theta.dtype)
    return Sums(zero, none, none, jnp.zeros_like(theta), matrix, matrix, matrix, kept)


def _kept(num_groups: int, num: int) -> int:
    """How many weights of a group are kept of a pass: of many groups the first will do."""
    return min(num, max(10, KEPT_WEIGHTS // num_groups))


def added(sums: Sums, base: Float[Array, " G"], seen: Pass) -> Sums:
    """With one pass more."""
    ratio = jnp.expm1(seen.log_p - base)
    square = jnp.outer(seen.score, seen.score)
    weights = seen.carried[:, : _kept(*seen.carried.shape)].reshape(-1)
    kept = sums.log_weights.at[sums.number % KEPT_PASSES].set(weights)
    one = jnp.ones((), jnp.int32)
    new = Sums(one, ratio, ratio**2, seen.score, square, seen.complete, seen.missing, kept)
    return jax.tree.map(jnp.add, sums._replace(log_weights=jnp.zeros_like(kept)), new)


def relative_variance(number: Any, ratio: Any, ratio_square: Any) -> Any:
    """Of the mean of Z over all passes, from the parts of `Sums`."""
    mean = ratio / number
    each = (ratio_square / number - mean**2).clip(0.0)
    return each / (number - 1) / (1 + mean) ** 2


def measured(
    sums: Any, base: Any, theta: Any, modes: Any, log_weights: Any, laplace: Any
) -> Measurement:
    """What two or more passes say together, on the host.

    theta is ravelled, and `log_weights` are those of one pass.
    """
    parts = base, log_weights, theta, modes, laplace, sums
    base, log_weights, theta, modes, laplace, totals = to_host(parts)
    sums = jax.tree.map(lambda total: np.asarray(total, float), totals._replace(log_weights=0.0))
    number = int(sums.number)
    score = sums.score / number
    with np.errstate(all="ignore"):  # points without a finite density: whoever asks looks
        groups = base + np.log1p(sums.ratio / number)
        variance = relative_variance(number, sums.ratio, sums.ratio_square)
    noise = (sums.score_square / number - np.outer(score, score)) / (number - 1)
    return Measurement(
        theta=np.asarray(theta, float),
        modes=modes,
        groups=groups,
        variance=variance,
        num_measured=number,
        score=score,
        noise=noise,
        complete=sums.complete / number,
        missing=sums.missing / number,
        log_weights=log_weights,
        pooled=totals.log_weights,
        laplace=float(np.sum(laplace, dtype=float)),
    )


def error_aimed_at(model: Model) -> float:
    """The standard error of log p over all groups that is worth more passes."""
    groups, size = model.num_groups, trees.size(model.latent)
    if size <= points.LATTICE_UP_TO:
        return max(0.01, 3e-6 * groups)
    if size <= points.LATENTS_UP_TO:
        return max(0.01, 4e-3 * groups**0.5)
    number = groups * size
    return max(0.01, min(1e-4 * number, 1.5e-3 * number**0.5))  # by legs


def num_blocks(model: Model, num: int) -> int:
    """In how many blocks a pass visits its points."""
    if num * trees.size(model.data) <= WORTH_BLOCKS:
        return 1
    return BLOCKS if num < 2 * BLOCKS * SMALL_BLOCK else 2 * BLOCKS


def climb_blocks(model: Model) -> int:
    """Of those for I_c, in a step of a climb: of many groups one will do."""
    return 1 if model.num_groups >= MANY_GROUPS else 2


def flows(model: Model, theta: Float[Array, " P"]) -> bool:
    """The passes of a model have a flow, see `flow.py`.

    It takes third derivatives, which integrals within log p do not have.
    """
    whole = model.outside.within is None
    return whole and is_worth_it(trees.size(model.latent), theta.size)


def with_metric(seen: Pass, complete: Float[Array, "P P"], times: int = 1) -> Pass:
    """A pass along a flow, with I_c from elsewhere and M such that their difference stays.

    `times`: so often its second derivatives count, which others have not.
    """
    observed = times * seen.complete - seen.missing
    return seen._replace(complete=complete, missing=complete - (observed + observed.T) / 2)


class _Place(NamedTuple):
    """A point of one group on the way to its mode."""

    x: Float[Array, " D"]
    value: Float[Array, ""]
    gradient: Float[Array, " D"]
    hessian: Float[Array, "D D"]  # of -log p


def look(
    key: Key[Array, ""],
    model: Model,
    theta: Tree,
    modes: Float[Array, "G D"],
    num: int,
    scores: bool = True,
    few: Bool[Array, ""] | bool = False,
    curvature_blocks: Int[Array, ""] | int = CURVATURE_BLOCKS,
    informs: Bool[Array, ""] | bool = False,
) -> Pass:
    """One pass at theta, from the modes at a theta nearby, with `num` points a group.

    Without `scores` those and the information are zero. Of `few` points a quarter of the blocks is
    visited, and of those for I_c so many `curvature_blocks`. Where the model has a flow, and it
    `informs`, the information I_c - M has far less noise, but I_c is no longer I_c.
    """
    flat, unravel = ravel_pytree(theta)
    law = points.law_for(modes.shape[1])
    in_blocks = num_blocks(model, num)
    blocks = jnp.where(few, max(1, in_blocks // BLOCKS), in_blocks)
    share = num // 2 if in_blocks > 1 else num
    most = points.power_of_two(max(num // 4, min(share, CURVATURE_POINTS // model.num_groups)))

    def density(t, x, data):
        return log_joint_of_vectors(model, unravel(t))(x, data)

    def of_group(mode, key, data):
        mode, value, root, log_det = follow_mode(lambda x: density(flat, x, data), mode)
        laplace = value + log_det + mode.size / 2 * LOG_2PI
        u = points.uniforms(key, num, mode.size, mode.dtype)
        u = u.reshape(in_blocks, -1, mode.size)

        def draw(u):
            z = lax.optimization_barrier(law.quantile(u))  # or XLA finds it twice
            x = mode + jnp.matmul(z, root.T, precision="highest")
            return x, z, jnp.sum(law.log_density(z), axis=1) - log_det

        def of_theta(t, x):
            return density(t, x, data)

        if not scores:
            return mode, laplace, *weighed_only(of_theta, flat, draw, u)
        along = flow_of(of_theta, flat, mode, root, informs) if flows(model, flat) else None
        shares = most, blocks, curvature_blocks
        return mode, laplace, *weighed(of_theta, flat, draw, u, along, *shares)

    each = _held(model, num, most, flat) if scores else num * batching.data_size(model)
    keys = jax.random.split(key, model.num_groups)
    mode, laplace, x, log_weights, log_p, score, complete, missing, dead = over_groups(
        model, of_group, modes, keys, each=each
    )
    score, complete, missing = (
        jnp.sum(counted(model, x), axis=0) for x in (score, complete, missing)
    )
    dead, laplace = jnp.sum(dead), counted(model, laplace)
    carried = log_weights - log_p[:, None]
    return Pass(mode, x, log_weights, log_p, score, complete, missing, dead, laplace, carried)


def _held(model: Model, num: int, curvature_points: int, theta: Float[Array, " P"]) -> int:
    """Numbers that a pass with scores holds of a group: all its points, and what is at work."""
    latents = trees.size(model.latent)
    at_work = num // num_blocks(model, num)
    # Second derivatives have a direction for each number of theta, the flow's third ones one more.
    bent = curvature_points // curvature_blocks_of(curvature_points) * theta.size
    turned = theta.size * latents if flows(model, theta) else 0
    each = max(4 * theta.size, batching.data_size(model))
    return max(4 * num * latents, max(at_work, bent, turned) * each)


def follow_mode(
    log_p: Callable, x: Float[Array, " D"]
) -> tuple[Float[Array, " D"], Float[Array, ""], Float[Array, "D D"], Float[Array, ""]]:
    """The mode near x, log p and R with R R^T the inverse Hessian of -log p there, and log det R.

    Newton's method, with a damping that grows where a step fails or the Hessian is not positive.
    """

    def gradient_of(x):
        value, gradient = jax.value_and_grad(log_p)(x)
        return gradient, (value, gradient)

    def at(x):  # log p is traced once for its value and both derivatives
        hessian, (value, gradient) = jax.jacfwd(gradient_of, has_aux=True)(x)
        return _Place(x, value, gradient, -hessian)

    def body(carry):
        k, place, damping, _ = carry
        root = _inverse_root(place.hessian, damping)
        step = root.T @ (root @ place.gradient)
        small = (k > 0) & (damping == 0) & (place.gradient @ step < 1e-6)
        new = at(place.x + step)
        slack = 4 * jnp.finfo(x.dtype).eps * jnp.abs(place.value)
        better = (k == 0) | (new.value >= place.value - slack)  # false if either is NaN
        place = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, place)
        relaxed = jnp.where(damping > 1e-3, damping / 8, 0.0)
        return k + 1, place, jnp.where(better, relaxed, 8 * damping + 0.01), small

    # The first round goes nowhere and looks at x itself: log p is compiled once, not twice.
    zero = batching.zero_of(x)
    here = _Place(x, zero, jnp.zeros_like(x) + zero, jnp.eye(x.size, dtype=x.dtype) + zero)
    first = jnp.zeros((), jnp.int32), here, zero, zero > 0
    _, place, _, _ = lax.while_loop(lambda c: (c[0] < MODE_STEPS) & ~c[3], body, first)
    exact = _inverse_root(place.hessian, 0.0)
    # One after the other: two batched calls of LAPACK side by side can wait for each other.
    damping = jnp.where(jnp.all(jnp.isfinite(exact)), 0.0, 2.0)
    root = _inverse_root(place.hessian, damping).T
    return place.x, place.value, root, jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root))))


def _inverse_root(H: Float[Array, "D D"], damping) -> Float[Array, "D D"]:
    """L^{-1} of H = L L^T with its diagonal raised; NaN where that is not positive definite.

    With a damping above one it is, by Gershgorin's theorem.
    """
    rows = jnp.sum(jnp.abs(H), axis=1)
    raise_by = damping * jnp.maximum(rows, 1e-6 * jnp.max(rows) + 1e-12)
    return inverse_of_lower(cholesky(H + jnp.diag(raise_by)))
