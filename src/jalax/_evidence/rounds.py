"""Rounds of fresh clouds at a fixed theta, and the compiled programs that draw them.

Importance sampling, tempered legs, and what their particles say about theta; `log_evidence` decides
which of them to trust.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from jalax._model import batching, evaluation, information, sharding
from jalax._model.information import FLAT, Moments
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.pareto import NO_VARIANCE, SURE_VARIANCE, USUAL_LIMIT
from jalax._particles.trees import Tree
from jalax._reference import curvature, tempering
from jalax._reference.references import AtMode, Prepared, fitted_to, normalisation
from jalax._reference.tempering import pooled_k
from jalax._runtime.compilation import (
    LEVEL_0_OLD_EMITTERS,
    LEVEL_1,
    LEVEL_2,
    LEVEL_2_OLD_EMITTERS,
    Jit,
    Program,
    fold_in,
    jit,
)
from jalax._runtime.nodes import register_dataclass
from jalax._runtime.processes import to_host

LEAST_ESS = 0.02  # as a share of the draws, in the worst group
INFORMATION_ERROR = 0.005  # relative Monte-Carlo error allowed in a standard error


MOST_DRAWS = 200_000_000  # in all groups together
MOST_NUMBERS = 200_000_000  # of the data, read for the sake of theta alone


class Budget(NamedTuple):
    """How many draws, and what is enough."""

    num_particles: int | None = None
    num_replicates: int = 8
    max_particles: int | None = None
    error: float | None = None
    fraction: float | None = None  # the simulation error of theta, in standard errors
    usual: int = 200_000  # draws in each of few groups

    def filled(self, model: Model) -> Budget:
        """With what suits the model in the place of None."""
        groups = model.num_groups
        # The errors of many groups add up, and so does what the evidence is to tell apart.
        error = max(0.03, 0.003 * float(np.sqrt(groups)), 3e-5 * groups)
        return self._replace(
            num_particles=self.num_particles or default_particles(model),
            max_particles=self.max_particles or min(self.usual, MOST_DRAWS // groups),
            error=self.error or error,
        )


def default_particles(model: Model) -> int:
    """In one cloud and group: as many as memory allows, up to 1000, and evenly on all devices."""
    count = int(np.clip(1_000_000 // model.num_groups, 32, 1000))
    return count + -count % batching.shards(model, "particles")


@dataclasses.dataclass
class Total:
    """The sum of several rounds, ready to be reported."""

    route: str
    groups: np.ndarray  # log mean Z of each group
    variance: np.ndarray  # of that, relative, each group
    freedom: float
    k_hat: float
    ess: float
    num_particles: int
    num_replicates: int
    moments: Moments | None
    rounding: float = 0.0  # of the sum over all groups, and what else no spread shows
    most_k_hat: float = SURE_VARIANCE
    laplace: float | None = None  # log p by Laplace's approximation
    doubtful_k_hat: float = NO_VARIANCE

    @property
    def trusted(self) -> bool:
        """Importance sampling is enough: its weights have a variance, and enough of them count."""
        return self.k_hat < self.most_k_hat and self.ess > LEAST_ESS

    @property
    def value(self) -> float:
        # The log of an average is low by half its relative variance; over groups this adds up.
        return float((self.groups + self.variance / 2).sum())

    @property
    def error(self) -> float:
        return float(np.hypot(np.sqrt(self.variance.sum()), self.rounding))


@dataclasses.dataclass
class Clouds:
    """Rounds of fresh clouds, until the errors are small enough or the budget is spent."""

    key: jax.Array
    budget: Any  # a Budget with nothing left out

    @property
    def num_particles(self) -> int:
        return self.budget.num_particles

    @property
    def rounds(self) -> int:
        draws = self.num_particles * self.budget.num_replicates
        return max(1, self.budget.max_particles // draws)

    def once(self) -> Clouds:
        """Other keys, and one round."""
        key = jax.random.fold_in(self.key, 1_000_000)
        return Clouds(key, self.budget._replace(max_particles=1, fraction=None))

    def enough(
        self, model: Model, draws: int, variance: np.ndarray, moments: Moments | None
    ) -> bool:
        # 0.9: the errors are noisy themselves.
        if not float(np.sqrt(variance.sum())) <= 0.9 * self.budget.error:
            return False
        if moments is None or self.budget.fraction is None:
            return True
        # Where theta is still unclear, the finish has another way to look.
        if draws * trees.size(model.data) > MOST_NUMBERS:
            return True
        simulation, spread = simulation_errors(moments)
        return simulation <= 0.9 * self.budget.fraction and spread <= INFORMATION_ERROR

    def importance(self, model, theta, prepared) -> Total:
        """All draws are independent: the weights' own spread gives the error."""
        sums: Any = None
        each: list[Moments] = []
        k_hats: list[float] = []
        draws = self.num_particles * self.budget.num_replicates
        scores = self.budget.fraction is not None
        for k in range(self.rounds):
            key = fold_in(self.key, k)
            now, moments, _ = importance(key, model, theta, prepared, draws, scores)
            sums = now if sums is None else _join(sums, now)
            count = (k + 1) * draws
            first = np.asarray(sums.log_sum, float)
            second = np.asarray(sums.log_sum_squares, float)
            # var(mean w) / mean(w)^2 = sum w^2 / (sum w)^2 - 1/n
            alive = np.isfinite(first)  # not all weights of the group are zero
            squares = np.exp(np.where(alive, second - 2 * np.where(alive, first, 0.0), np.inf))
            variance = np.maximum(squares - 1 / count, 0.0)
            k_hats.append(float(now.k_hat))
            k_hat = _k_of_rounds(k_hats)
            if moments is not None:
                each.append(moments)
                moments = _average(each)
            if self.enough(model, count, variance, moments) or not k_hat < SURE_VARIANCE:
                break
        return Total(
            "importance",
            first - np.log(count),
            variance,
            np.inf,
            k_hat,
            float(np.min(np.asarray(sums.ess))) / count,
            count,
            (k + 1) * self.budget.num_replicates,
            moments,
        )

    def tempered(self, model, theta, prepared, plan, moves) -> Total:
        """Replicates averaged in Z; their spread gives the error."""
        legs, descents, ess, moments = [], [], np.inf, None
        each: list[Moments] = []
        for k in range(self.rounds):
            keys = jax.random.split(jax.random.fold_in(self.key, k), self.budget.num_replicates)
            leg = _legs(keys, model, theta, prepared, plan, moves, self.num_particles)
            legs.append(to_host(leg.log_evidence).astype(float))  # (R, G)
            descents.append(leg.log_descent + leg.log_evidence[..., None])  # (R, G, N)
            weights = weight_math.normalise(leg.log_weights)
            lowest = jnp.min(weight_math.effective_sample_size(weights))
            ess = min(ess, float(lowest) / self.num_particles)
            log_z = np.concatenate(legs)
            count = len(log_z)
            groups, variance, freedom = average_in_z(log_z)
            if self.budget.fraction is not None:
                each.append(_moments_of_legs(model, theta, leg))
                moments = _average(each)
            draws = count * self.num_particles
            if self.enough(model, draws, variance, moments) or not np.isfinite(variance).all():
                break
        return Total(
            "tempered",
            groups,
            variance,
            freedom,
            _k_of_descents(descents),
            ess,
            count * self.num_particles,
            count,
            moments,
        )


def _average(each: list[Moments]) -> Moments:
    """The mean of several rounds; its noise is that of one divided by their number."""
    mean = jax.tree.map(lambda *parts: np.mean(np.stack(parts), axis=0), *each)
    return mean._replace(noise=mean.noise / len(each))


def simulation_errors(moments: Moments) -> tuple[float, float]:
    """Of I^{-1} g in standard errors, and of the standard errors themselves, relative.

    Both are the worst over the directions that are identified.
    """
    _, noise, complete, missing, batches = (np.asarray(part, float) for part in moments)
    metric = information.host_metric(complete, missing)
    known = metric.share >= FLAT
    if not known.any():
        return 0.0, 0.0
    basis = metric.basis[:, known] / np.sqrt(metric.share[known])
    score = np.linalg.eigvalsh(basis.T @ noise @ basis)[-1]
    if len(batches) < 2:
        return float(np.sqrt(max(score, 0.0))), 0.0
    # C = I^{-1} changes by C dM C, a standard error by half of that relative to its square.
    covariance = basis @ basis.T
    changes = np.einsum("ip,bpq,qi->bi", covariance, batches - missing, covariance)
    relative = changes.std(axis=0, ddof=1) / np.sqrt(len(batches)) / np.diagonal(covariance) / 2
    return float(np.sqrt(max(score, 0.0))), float(relative.max())


def _k_of_rounds(each: list[float]) -> float:
    """The mean: the largest of many would be noise, unless it is far beyond that."""
    worst = max(each)
    return worst if not worst < USUAL_LIMIT else float(np.mean(each))


def _k_of_descents(descents: list[Array]) -> float:
    """One k-hat of the first draws of all legs, each with the weight that it came to carry."""
    every = jnp.concatenate(descents)
    return float(pooled_k(jnp.swapaxes(every, 0, 1).reshape(every.shape[1], -1)))


def average_in_z(log_z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Replicates (R, G) averaged in Z, not in log Z: log mean, its variance, its degrees."""
    count = len(log_z)
    top = log_z.max(axis=0)
    z = np.exp(log_z - top)
    mean = z.mean(axis=0)
    variance = z.var(axis=0, ddof=1) / mean**2 / count
    # Welch and Satterthwaite: a sum over groups of variances, each with R - 1 degrees.
    squares = np.maximum((variance**2).sum(), np.finfo(float).tiny)
    freedom = variance.sum() ** 2 / squares * (count - 1)
    return top + np.log(mean), variance, float(freedom)


# --- the compiled parts -----------------------------------------------------------------------


refit = Jit(fitted_to)
check_normalisation = Jit(normalisation)


def _prepare(key, reference, model: Model, theta: Tree) -> Prepared:
    return reference.prepare(key, model, theta)


prepare = Program(_prepare, small=LEVEL_0_OLD_EMITTERS, large=LEVEL_1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Sums:
    """log sum w, log sum w^2 and ESS of each group, and k-hat, over all draws of a round."""

    log_sum: Any
    log_sum_squares: Any
    k_hat: Any
    ess: Any


def _weighted_draws(
    key, model: Model, theta: Tree, prepared: Prepared, draws: int, scores: bool
) -> tuple[_Sums, Moments | None, tuple[Tree, Array]]:
    particles = prepared.sample(key, model, theta, draws)
    log_w = evaluation.log_joint(model, theta, particles)
    log_w = log_w - prepared.log_density(model, theta, particles)
    log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)  # (G, draws)
    ess = weight_math.effective_sample_size(weight_math.normalise(log_w))
    sums = _Sums(logsumexp(log_w, axis=1), logsumexp(2 * log_w, axis=1), pooled_k(log_w), ess)
    batches = 8 if draws % 8 == 0 else 1
    found = information.moments(model, theta, particles, log_w, batches) if scores else None
    sums, found = sharding.replicate(model, (sums, found))
    return sums, found, (particles, log_w)


importance = Program(
    _weighted_draws, small=LEVEL_2_OLD_EMITTERS, large=LEVEL_2, static_argnames=("draws", "scores")
)


def _join(a: _Sums, b: _Sums) -> _Sums:
    return _Sums(
        jnp.logaddexp(a.log_sum, b.log_sum),
        jnp.logaddexp(a.log_sum_squares, b.log_sum_squares),
        b.k_hat,  # of the newest round; `_k_of_rounds` joins them
        a.ess + b.ess,
    )


@jit(static_argnames="num_particles")
def make_plan(key, model, theta, prepared, moves, num_particles: int) -> tempering.Plan:
    return tempering.pilot(
        key,
        model,
        theta,
        prepared,
        num_particles=num_particles,
        moves=moves,
        cess=0.8,
        max_temperatures=200,
    )


@jit(static_argnames="num_particles")
def _legs(keys, model, theta, prepared, plan, moves, num_particles: int) -> tempering.Leg:
    def leg(key):
        return tempering.run_leg(
            key, model, theta, prepared, plan, num_particles=num_particles, moves=moves
        )

    return jax.vmap(leg)(keys)


def has_low_noise(model: Model, theta: Tree) -> bool:
    return curvature.expands(trees.size(model.latent), trees.size(theta))


def low_noise(key, model: Model, theta: Tree) -> Moments | None:
    """Moments helped by the curvature at the mode; see `information.moments`."""
    if not has_low_noise(model, theta):
        return None
    prepared = prepare(key, AtMode(), model, theta)
    return _low_noise(key, model, theta, prepared, 8 * default_particles(model))


@jit(static_argnames="draws")
def _low_noise(key, model: Model, theta: Tree, prepared: Any, draws: int) -> Moments:
    particles = prepared.sample(key, model, theta, draws)
    visit = evaluation.evaluate(model, theta, particles)
    log_w = visit.log_joint - prepared.log_density(model, theta, particles)
    log_w = jnp.where(visit.alive, log_w, -jnp.inf)
    root, mode = prepared.mode.root, prepared.mode.x
    expansion = curvature.expansion(model, theta, mode, jnp.einsum("gij,gkj->gik", root, root))
    found = information.moments(model, theta, particles, log_w, 1, expansion, visit.grad_x)
    return sharding.replicate(model, found)


@jit()
def _moments_of_legs(model: Model, theta: Tree, legs: tempering.Leg) -> Moments:
    """Replicates weighted by their Z, group by group; the noise from their spread."""
    each = jax.vmap(lambda leg: information.scores_by_group(model, theta, leg))(legs)
    share = weight_math.normalise(legs.log_evidence.T).T  # (R, G)
    count = share.shape[0]
    score = jnp.einsum("rg,rgp->gp", share, each)
    apart = each - score
    noise = jnp.einsum("rg,rgp,rgq->pq", share**2, apart, apart) * count / (count - 1)
    # All replicates as one cloud, each group's weights carrying the replicate's Z.
    level = legs.log_evidence - weight_math.log_mean_exp(legs.log_weights)
    pooled = jnp.swapaxes(legs.log_weights + level[..., None], 0, 1)
    particles = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape((x.shape[1], -1, *x.shape[3:])), legs.particles
    )
    log_weights = pooled.reshape(pooled.shape[0], -1)
    whole = information.moments(model, theta, particles, log_weights, count)
    whole = whole._replace(score=jnp.sum(score, axis=0), noise=noise)
    return sharding.replicate(model, whole)
