r"""Score and information about theta, from weighted particles of the posterior.

With $s = \nabla_\theta \log p_\theta(x, y)$ and expectations over $p_\theta(x \mid y)$, group by
group: the score of the marginal likelihood is $E[s]$ (Fisher), and its information is (Louis)

$$I = I_c - M, \qquad I_c = E[-\nabla^2_\theta \log p_\theta(x, y)], \qquad M = \mathrm{Cov}[s].$$

Scores are centred within each group, and each group's covariance is multiplied by
$1 / (1 - \sum_i w_i^2)$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jalax._model import batching, evaluation
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, Program

LIMIT = 300  # parameters: the information is a dense matrix, and N scores of this size are held
WIDE = 3.0  # a standard error, relative to 1 + |theta|, that calls for a look at its maximum


# For the complete-data information: evaluations of log p, and numbers of the data read by them.
SECOND_DERIVATIVES = 4_000_000
SECOND_NUMBERS = 200_000_000


# Less than this share of the complete-data information is no information: theta is at a boundary,
# or not identified in that direction.
FLAT = 0.05


def fits(theta: Tree) -> bool:
    """theta has no more numbers than an information matrix is held for."""
    return trees.size(theta) <= LIMIT


class Moments(NamedTuple):
    """What one weighted cloud says about theta, P numbers."""

    score: Float[Array, " P"]
    noise: Float[Array, "P P"]  # the Monte-Carlo covariance of the score
    complete: Float[Array, "P P"]  # I_c
    missing: Float[Array, "P P"]  # M
    batches: Float[Array, "B P P"]  # M from each of B batches of particles: its noise

    @property
    def observed(self) -> Float[Array, "P P"]:
        return self.complete - self.missing


class Expansion(NamedTuple):
    """The score to second order in x around a point of each group."""

    at: Float[Array, "G D"]
    slope: Float[Array, "G D P"]  # B, its derivative in x
    curve: Float[Array, "G D D P"]  # Q, its second derivative
    matrix: Float[Array, "G D D"]  # P, standing in for the covariance of x

    def score(self, offset: Float[Array, "G N D"]) -> Float[Array, "G N P"]:
        first = jnp.einsum("gnd,gdp->gnp", offset, self.slope)
        return first + jnp.einsum("gnd,gdep,gne->gnp", offset, self.curve, offset) / 2

    def stein(self, particles: Tree, grad_x: Tree) -> Float[Array, "G N P"]:
        r"""Terms of mean zero that cancel the second-order part of the scores.

        $E[J \cdot \nabla_x \log p + \nabla \cdot J] = 0$ for every vector field J. This one says
        how a Gaussian posterior moves with theta, $J_p = P B_p + \frac12 P Q_p (x - \bar x)$, and
        what is left of the score of a Gaussian posterior is then a constant.
        """
        offset = trees.ravel_particles(particles) - self.at[:, None]
        gradient = trees.ravel_particles(grad_x)
        turned = jnp.einsum("gde,gefp->gdfp", self.matrix, self.curve) / 2
        constant = jnp.einsum("gde,gep->gdp", self.matrix, self.slope)
        field = constant[:, None] + jnp.einsum("gdep,gne->gndp", turned, offset)
        divergence = jnp.einsum("gddp->gp", turned)[:, None]
        return jnp.einsum("gndp,gnd->gnp", field, gradient) + divergence

    def covariance(self) -> Float[Array, "P P"]:
        turned = jnp.einsum("gde,gefp->gdfp", self.matrix, self.curve)  # P Q_p
        curved = jnp.einsum("gdep,gedq->pq", turned, turned) / 2
        return curved + jnp.einsum("gdp,gde,geq->pq", self.slope, self.matrix, self.slope)


def moments(
    model: Model,
    theta: Tree,
    particles: Tree,
    log_weights: Float[Array, "G N"],
    num_batches: int = 1,
    expansion: Expansion | None = None,
    grad_x: Tree = None,
) -> Moments:
    r"""Score and information of one weighted cloud; N must be a multiple of the batches.

    With `expansion`, the score is split into its second-order expansion in x and the rest. The
    covariance of the former is that under a Gaussian, $B_p^\top P B_q + \frac12 \mathrm{tr}
    (Q_p P Q_q P)$, and only the remainder is left to the particles: far less noise where nearly
    all information is missing, and a bias (none for a Gaussian posterior) that a direction to
    move in can bear. With `grad_x` too, the x-gradient of log p at the particles, Stein's
    identity takes the noise out of the score, without a bias.
    """

    def sums(part, particles, log_weights, expansion, grad_x):
        return _moments(part, theta, particles, log_weights, num_batches, expansion, grad_x)

    each = log_weights.shape[1] * max(4 * trees.size(theta), batching.data_size(model))
    return evaluation.sum_over_groups(
        model, sums, particles, log_weights, expansion, grad_x, each=each
    )


def _moments(
    model: Model,
    theta: Tree,
    particles: Tree,
    log_weights: Float[Array, "G N"],
    num_batches: int,
    expansion: Expansion | None,
    grad_x: Tree,
) -> Moments:
    """The sums over the groups of one batch."""
    flat, unravel = ravel_pytree(theta)
    weights = weight_math.normalise(log_weights)
    scores = _scores(model, theta, particles)  # (G, N, P)
    scores = jnp.where(weights[..., None] > 0, scores, 0.0)
    # P passes over the cloud: of a large one, the first draws of each group will do.
    passes = flat.size * weights.shape[0]
    numbers = SECOND_NUMBERS // (passes * max(1, batching.data_size(model)))
    few = max(32, min(SECOND_DERIVATIVES // passes, numbers))
    first = jax.tree.map(lambda x: x[:, :few], particles)
    share = weights[:, :few]
    # A draw so far out that its weight is 0 may have no derivative, and 0 times that is NaN.
    first = trees.select(share > 0, first, evaluation.heaviest(particles, log_weights))
    share = share / jnp.maximum(jnp.sum(share, axis=1, keepdims=True), 1e-30)

    def values(t):
        return jnp.sum(share * evaluation.log_joint(model, unravel(t), first))

    complete = -jax.hessian(values)(flat)
    each = jnp.einsum("gn,gnp->gp", weights, scores)
    centred = scores - each[:, None]
    spread = weights / jnp.maximum(1 - jnp.sum(weights**2, axis=1), 1e-6)[:, None]
    parts = centred.reshape((centred.shape[0], num_batches, -1, flat.size))
    spread = num_batches * spread.reshape(parts.shape[:3])
    batches = jnp.einsum("gbn,gbnp,gbnq->bpq", spread, parts, parts)
    if expansion is not None:
        offset = trees.ravel_particles(particles) - expansion.at[:, None]
        second = expansion.score(offset)
        second = second - jnp.einsum("gn,gnp->gp", weights, second)[:, None]
        second = second.reshape(parts.shape)
        sampled = jnp.einsum("gbn,gbnp,gbnq->bpq", spread, second, second)
        batches = batches + expansion.covariance() - sampled
    # A ratio of two averages: its first-order bias, and its variance by the delta method.
    if expansion is not None and grad_x is not None:
        steady = scores + expansion.stein(particles, grad_x)
        steady = jnp.where(weights[..., None] > 0, steady, 0.0)
        each = jnp.einsum("gn,gnp->gp", weights, steady)
        centred = steady - each[:, None]
    score = jnp.sum(each, axis=0) + jnp.einsum("gn,gnp->p", weights**2, centred)
    noise = jnp.einsum("gn,gnp,gnq->pq", weights**2, centred, centred)
    return Moments(score, noise, complete, jnp.mean(batches, axis=0), batches)


def _scores(model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N P"]:
    """The gradient in theta at every particle: forwards for a few numbers, else backwards."""
    flat, unravel = ravel_pytree(theta)
    if flat.size <= 4:
        return jax.jacfwd(lambda t: evaluation.log_joint(model, unravel(t), particles))(flat)
    one = model.density()

    def score(x, data):
        return jax.grad(lambda t: one(unravel(t), x, data))(flat)

    return evaluation.over_groups(model, jax.vmap(score, in_axes=(0, None)), particles, each=0)


def scores_by_group(model: Model, theta: Tree, cloud: Any) -> Float[Array, "G P"]:
    """E[s] of each group of one weighted cloud."""
    flat, unravel = ravel_pytree(theta)
    weights = weight_math.normalise(cloud.log_weights)

    def each(t):
        value = evaluation.log_joint(model, unravel(t), cloud.particles)
        return jnp.sum(jnp.where(weights > 0, weights * value, 0.0), axis=1)

    return jax.jacfwd(each)(flat)


class Metric(NamedTuple):
    r"""I_c and I in common coordinates: $I_c = T^{-T} T^{-1}$, $I = T^{-T} \mu T^{-1}$."""

    basis: Float[Array, "P P"]  # T, one direction of theta a column
    inverse: Float[Array, "P P"]  # T^{-1}
    share: Float[Array, " P"]  # mu: the share of I_c that is not missing, ascending

    def solve(self, score: Float[Array, " P"], share: Float[Array, " P"]) -> Float[Array, " P"]:
        """I^{-1} g with the given eigenvalues in the place of mu; infinite: do not go there."""
        return self.basis @ ((self.basis.T @ score) / share)

    def square(self, step: Float[Array, " P"], share: Float[Array, " P"]) -> Float[Array, ""]:
        """step' I step: the squared length of a step in standard errors."""
        return jnp.sum(share * (self.inverse @ step) ** 2)


def scaled(moments: Moments, factor: float) -> Moments:
    """The moments of some groups, standing for `factor` times as many, with their own noise."""
    if factor == 1:
        return moments
    all_groups = jax.tree.map(lambda part: factor * part, moments)
    return all_groups._replace(noise=factor**2 * moments.noise)


def held(moments: Moments, free: Any) -> Moments:
    """What is left to say about the free parameters while the others, at a bound, stay put."""
    both = free[:, None] & free[None, :]
    diagonal = both | jnp.eye(free.shape[0], dtype=bool)  # keeps its units
    return Moments(
        jnp.where(free, moments.score, 0.0),
        jnp.where(both, moments.noise, 0.0),
        jnp.where(diagonal, moments.complete, 0.0),
        jnp.where(both, moments.missing, 0.0),
        jnp.where(both, moments.batches, 0.0),
    )


def bounded(
    project: Callable[[Tree], Tree], theta: Tree, score: Any, complete: Any
) -> tuple[Bool[Array, " P"], Float[Array, " P"]]:
    """Which parameters an EM-like step leaves to `project`, and how far these can go.

    At the bound of a box the score points out of it. The others must then be solved for by
    themselves: the clipped coordinate of I^{-1} g would drag them along.
    """
    size = jnp.maximum(jnp.abs(jnp.diagonal(complete)), 1e-30)
    flat, unravel = ravel_pytree(theta)
    there = flat + (score / size).astype(flat.dtype)
    landed, _ = ravel_pytree(project(unravel(there)))
    return landed == there, landed - flat


def metric(complete: Float[Array, "P P"], missing: Float[Array, "P P"]) -> Metric:
    """Both informations diagonal at once; scales of theta may differ by many powers of ten."""
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(complete)), 1e-30))
    size, axes = jnp.linalg.eigh(complete * scale[:, None] * scale)
    # Far from the answer I_c need not be positive: the size of its curvature still counts.
    size = jnp.maximum(jnp.abs(size), 10 * jnp.finfo(size.dtype).eps * jnp.max(jnp.abs(size)))
    root = axes / jnp.sqrt(size) * scale[:, None]
    share, turn = jnp.linalg.eigh(root.T @ (complete - missing) @ root)
    inverse = turn.T @ ((axes * jnp.sqrt(size)).T / scale)
    return Metric(root @ turn, inverse, share)


_compiled_metric = Program(metric, small=LEVEL_0_OLD_EMITTERS, large={})


def host_metric(complete: Any, missing: Any) -> Any:
    """`metric` in NumPy's float64, for work outside a compiled program."""
    return jax.tree.map(lambda x: np.asarray(x, float), _compiled_metric(complete, missing))
