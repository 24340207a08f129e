"""log_evidence: log p_theta(y) at a fixed theta, with an error that means something.

The cheapest route that can be trusted, in this order: importance sampling with a Student-t on
the Laplace mode; a tempered pilot, and importance sampling with a Student-t refitted to its
cloud; tempered legs. The Pareto k-hat of the weights decides. Whatever was learnt on a pilot is
frozen, and the estimate uses fresh keys.
"""

from __future__ import annotations

import dataclasses
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from jalax import _checks, _curvature, _information, _model, _tempering, _weights
from jalax._information import FLAT, Moments
from jalax._model import Model
from jalax._options import QUICKLY
from jalax._reference import (
    AtMode,
    Prepared,
    Proposal,
    as_reference,
    fitted_to,
    normalisation,
)
from jalax._starts.importance import importance_cloud, thinned
from jalax._tempering import MALA, pooled_k
from jalax._tree import Tree
from jalax._types import Cloud

# Beyond 0.7 the mean of the weights cannot be relied on (Vehtari et al.); beyond 0.5 it has no
# variance, and an error computed from the weights would lie. Here the error is the point.
K_HAT_LIMIT = 0.5
IMPORTANCE_BELOW = 0.4  # k-hat has an error of 0.1 itself
INFORMATION_ERROR = 0.005  # relative Monte-Carlo error allowed in a standard error
NUM_REFITS = 2  # how often the reference of the tempered route is fitted anew to a pilot


@dataclasses.dataclass(frozen=True)
class Evidence:
    """An estimate of log p_theta(y).

    Attributes:
        value: the log-evidence, corrected for the bias of the log of an average.
        error: its standard error.
        degrees_of_freedom: of that error; infinite where it comes from many independent draws.
        route: "importance" or "tempered".
        k_hat: the Pareto k-hat of the weights, groups pooled (largest over temperatures).
        ess: the lowest effective sample size over groups, as a fraction of the particles.
        num_particles: draws in all, in each group.
        num_replicates: independent clouds.
        num_temperatures: of the tempered route, else 1.
        groups: the log-evidence of each group.
        messages: why it should not be trusted; empty if nothing is known against it.
    """

    value: float
    error: float
    degrees_of_freedom: float
    route: str
    k_hat: float
    ess: float
    num_particles: int
    num_replicates: int
    num_temperatures: int
    groups: np.ndarray
    messages: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        return not self.messages

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval, with the t quantile of the error's degrees of freedom."""
        from scipy.special import ndtri, stdtrit  # scipy comes with jax

        tail = 0.5 + level / 2
        finite = np.isfinite(self.degrees_of_freedom)
        q = float(stdtrit(self.degrees_of_freedom, tail) if finite else ndtri(tail))
        return self.value - q * self.error, self.value + q * self.error

    def __repr__(self) -> str:
        detail = f"{self.route}, k-hat {self.k_hat:.2f}, ess {self.ess:.2f}"
        doubt = "".join(f"; {message}" for message in self.messages)
        return f"Evidence({self.value:.4f} +- {self.error:.4f}; {detail}{doubt})"


def log_evidence(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    num_particles: int | None = None,
    num_replicates: int = 8,
    error: float = 0.03,
    reference: Any = None,
    moves: Any = None,
    max_particles: int = 200_000,
) -> Evidence:
    r"""Estimate $\log p_\theta(y) = \log \int p_\theta(x, y)\, dx$ at a given theta.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel` whose log_joint is fully normalised. A
            constant left out of log_joint is missing from the evidence, and nothing can tell.
        theta: where; by default the model's own.
        key: `jax.random.key(seed)`.
        num_particles: in one cloud and group.
        num_replicates: independent clouds in one round; more rounds follow until the error
            asked for is reached.
        error: the standard error asked for.
        reference: what the evidence is measured against: `jalax.AtMode()` (the default),
            `jalax.Modes(...)` for several modes, or a pair (sampler, log_density).
        moves: of the tempered route, `jalax.MALA()` (the default) or `jalax.JALA()`.
        max_particles: the budget: draws in each group.

    Returns:
        An `Evidence`. It warns when there is a reason not to trust it. What it cannot see: a
        mode far from the reference, and constants missing from log_joint.

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> evidence = jalax.log_evidence(model, 2.0, key=jax.random.key(0))
    >>> bool(abs(evidence.value - model.exact_log_evidence(2.0)) < 4 * evidence.error + 1e-4)
    True
    """
    _checks.check_key(key)
    assert key is not None
    model = _checks.prepare_model(model)
    theta = _checks.prepare_theta(theta, model)
    _checks.check_log_joint(model, theta)
    if num_particles is not None:
        num_particles = _checks.check_count("num_particles", num_particles, 25)
    num_replicates = _checks.check_count("num_replicates", num_replicates, 2)
    if not error > 0:
        raise ValueError(f"error is the standard error asked for, positive; got {error}.")
    budget = Budget(num_particles, num_replicates, max_particles, error)
    evidence, _ = estimate(key, model, theta, budget, reference, moves)
    for message in evidence.messages:
        warnings.warn(f"log_evidence: {message}.", stacklevel=2)
    return evidence


def start_cloud(key, model: Model, theta: Tree, num_particles: int, scores: bool) -> Cloud:
    """What `Laplace(num_draws=...)` draws, by the programs that the finish of a fit uses too."""
    key_prepare, key_draw, key_thin = jax.random.split(key, 3)
    prepared = prepare(key_prepare, AtMode(), model, theta)
    draws = Budget().num_replicates * default_particles(model)
    sums, _, (particles, log_w) = _importance(key_draw, model, theta, prepared, draws, scores)
    k_hat = jnp.broadcast_to(sums.k_hat, sums.ess.shape)
    return _thin(key_thin, particles, log_w, k_hat, num_particles)


@partial(jax.jit, static_argnames="num_particles", compiler_options=QUICKLY)
def _thin(key, particles: Tree, log_weights, k_hat, num_particles: int) -> Cloud:
    return thinned(key, importance_cloud(particles, log_weights, k_hat), num_particles)


class Budget(NamedTuple):
    """How many draws, and what is enough."""

    num_particles: int | None = None
    num_replicates: int = 8
    max_particles: int = 200_000
    error: float = 0.03
    fraction: float | None = None  # the simulation error of theta, in standard errors


def default_particles(model: Model) -> int:
    """In one cloud and group: as many as memory allows, up to 1000."""
    return int(np.clip(4_000_000 // model.num_groups, 128, 1000))


def estimate(
    key, model: Model, theta: Tree, budget: Budget, reference: Any = None, moves: Any = None
) -> tuple[Evidence, Moments | None]:
    """The evidence and, where a `fraction` is asked for, score and information at theta."""
    key_prepare, key_pilot, key_run = jax.random.split(key, 3)
    drawn_up = as_reference(AtMode() if reference is None else reference)
    prepared = prepare(key_prepare, drawn_up, model, theta)
    messages = _reference_messages(prepared, key_prepare, model, theta)
    num_particles = budget.num_particles or default_particles(model)
    clouds = _Clouds(key_run, num_particles, budget)
    moves = MALA() if moves is None else moves

    def try_importance(prepared: Prepared) -> _Total | None:
        """The estimate if a first round, and then all weights, say that it has an error."""
        total = clouds.importance(model, theta, prepared)
        trusted = total.k_hat < IMPORTANCE_BELOW and total.ess > 0.02
        return total if trusted else None

    total = try_importance(prepared)
    if total is not None:
        return _report(total, messages, 1, budget.error), total.moments
    legs = []
    for k in range(1 + NUM_REFITS):
        key_k = jax.random.fold_in(key_pilot, k)
        plan = _plan(key_k, model, theta, prepared, moves, num_particles)
        legs.append((prepared, plan))
        if k == NUM_REFITS:
            break
        # The pilot's cloud knows the posterior better than its reference did: measure against it.
        prepared = _refit(plan.particles, plan.log_weights)
        total = try_importance(prepared)
        if total is not None:
            return _report(total, messages, int(plan.num), budget.error), total.moments
    if not bool(plan.reached):
        messages.append("the tempered leg did not arrive at the posterior")
    if float(plan.acceptance) < 0.15:
        messages.append(f"moves were accepted only {float(plan.acceptance):.0%} of the time")
    total = clouds.tempered(model, theta, *legs[-1], moves)
    # Legs that start from two references and explore the posterior agree.
    other = clouds.once().tempered(model, theta, *legs[-2], moves)
    apart = abs(other.value - total.value)
    if not apart <= 4.5 * np.hypot(other.error, total.error):
        messages.append(f"legs from two references differ by {apart:.2f}")
    return _report(total, messages, int(plan.num), budget.error), total.moments


@dataclasses.dataclass
class _Total:
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

    @property
    def value(self) -> float:
        # The log of an average is low by half its relative variance; over groups this adds up.
        return float((self.groups + self.variance / 2).sum())

    @property
    def error(self) -> float:
        return float(np.sqrt(self.variance.sum()))


@dataclasses.dataclass
class _Clouds:
    """Rounds of fresh clouds, until the errors are small enough or the budget is spent."""

    key: jax.Array
    num_particles: int
    budget: Budget

    @property
    def rounds(self) -> int:
        draws = self.num_particles * self.budget.num_replicates
        return max(1, self.budget.max_particles // draws)

    def once(self) -> _Clouds:
        """Other keys, and one round."""
        key = jax.random.fold_in(self.key, 1_000_000)
        budget = self.budget._replace(max_particles=0, fraction=None)
        return _Clouds(key, self.num_particles, budget)

    def enough(self, variance: np.ndarray, moments: Moments | None) -> bool:
        # 0.9: the errors are noisy themselves.
        if not float(np.sqrt(variance.sum())) <= 0.9 * self.budget.error:
            return False
        if moments is None or self.budget.fraction is None:
            return True
        simulation, information = simulation_errors(moments)
        return simulation <= 0.9 * self.budget.fraction and information <= INFORMATION_ERROR

    def importance(self, model, theta, prepared) -> _Total:
        """All draws are independent: the weights' own spread gives the error."""
        sums: Any = None
        each: list[Moments] = []
        draws = self.num_particles * self.budget.num_replicates
        scores = self.budget.fraction is not None
        for k in range(self.rounds):
            key = jax.random.fold_in(self.key, k)
            now, moments, _ = _importance(key, model, theta, prepared, draws, scores)
            sums = now if sums is None else _join(sums, now)
            count = (k + 1) * draws
            first = np.asarray(sums.log_sum, float)
            second = np.asarray(sums.log_sum_squares, float)
            # var(mean w) / mean(w)^2 = sum w^2 / (sum w)^2 - 1/n
            alive = np.isfinite(first)  # not all weights of the group are zero
            squares = np.exp(np.where(alive, second - 2 * np.where(alive, first, 0.0), np.inf))
            variance = np.maximum(squares - 1 / count, 0.0)
            k_hat = float(np.max(sums.k_hat))
            if moments is not None:
                each.append(moments)
                moments = _average(each)
            if self.enough(variance, moments) or not k_hat < IMPORTANCE_BELOW:
                break
        return _Total(
            "importance",
            first - np.log(count),
            variance,
            np.inf,
            k_hat,
            float(np.min(sums.ess)) / count,
            count,
            (k + 1) * self.budget.num_replicates,
            moments,
        )

    def tempered(self, model, theta, prepared, plan, moves) -> _Total:
        """Replicates averaged in Z; their spread gives the error."""
        legs, k_hat, ess, moments = [], -np.inf, np.inf, None
        each: list[Moments] = []
        for k in range(self.rounds):
            keys = jax.random.split(jax.random.fold_in(self.key, k), self.budget.num_replicates)
            leg = _legs(keys, model, theta, prepared, plan, moves, self.num_particles)
            legs.append(np.asarray(leg.log_evidence, float))  # (R, G)
            k_hat = max(k_hat, float(jnp.max(leg.k_hat)))
            weights = _weights.normalise(leg.log_weights)
            lowest = jnp.min(_weights.effective_sample_size(weights))
            ess = min(ess, float(lowest) / self.num_particles)
            log_z = np.concatenate(legs)
            count = len(log_z)
            groups, variance, freedom = average_in_z(log_z)
            if self.budget.fraction is not None:
                each.append(_moments_of_legs(model, theta, leg))
                moments = _average(each)
            if self.enough(variance, moments) or not np.isfinite(variance).all():
                break
        return _Total(
            "tempered",
            groups,
            variance,
            freedom,
            k_hat,
            ess,
            count * self.num_particles,
            count,
            moments,
        )


def _average(each: list[Moments]) -> Moments:
    """Of several rounds; the noise of their mean is that of one divided by their number."""
    mean = jax.tree.map(lambda *parts: np.mean(np.stack(parts), axis=0), *each)
    return mean._replace(noise=mean.noise / len(each))


def simulation_errors(moments: Moments) -> tuple[float, float]:
    """Of I^{-1} g in standard errors, and of the standard errors themselves, relative.

    Both are the worst over the directions that are identified.
    """
    _, noise, complete, missing, batches = (np.asarray(part, float) for part in moments)
    metric = _information.host_metric(complete, missing)
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


def _report(total: _Total, messages: list[str], temperatures: int, asked: float) -> Evidence:
    error, groups = total.error, total.groups + total.variance / 2
    if not np.isfinite(groups).all():
        messages.append("the estimate is not finite")
    if total.k_hat >= K_HAT_LIMIT:
        messages.append(
            f"Pareto k-hat {total.k_hat:.2f} is {K_HAT_LIMIT} or more: the reference misses part "
            "of the posterior's tails"
        )
    if total.variance.max() > 0.25:
        messages.append("the replicates disagree by factors: the posterior is not explored")
    if not error <= asked:
        messages.append(f"the error asked for, {asked}, was not reached within the budget")
    return Evidence(
        value=total.value,
        error=error,
        degrees_of_freedom=total.freedom,
        route=total.route,
        k_hat=total.k_hat,
        ess=total.ess,
        num_particles=total.num_particles,
        num_replicates=total.num_replicates,
        num_temperatures=temperatures,
        groups=groups,
        messages=tuple(messages),
    )


# --- the compiled parts -----------------------------------------------------------------------


_refit = jax.jit(fitted_to)
_normalisation = jax.jit(normalisation)


@partial(jax.jit, compiler_options=QUICKLY)
def prepare(key, reference, model: Model, theta: Tree) -> Prepared:
    return reference.prepare(key, model, theta)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Sums:
    """log sum w, log sum w^2 and ESS of each group, and k-hat, over all draws of a round."""

    log_sum: Any
    log_sum_squares: Any
    k_hat: Any
    ess: Any


@partial(jax.jit, static_argnames=("draws", "scores"))
def _importance(
    key, model: Model, theta: Tree, prepared: Prepared, draws: int, scores: bool
) -> tuple[_Sums, Moments | None, tuple[Tree, Array]]:
    particles = prepared.sample(key, model, theta, draws)
    log_w = _model.log_joint(model, theta, particles)
    log_w = log_w - prepared.log_density(model, theta, particles)
    log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)  # (G, draws)
    ess = _weights.effective_sample_size(_weights.normalise(log_w))
    sums = _Sums(logsumexp(log_w, axis=1), logsumexp(2 * log_w, axis=1), pooled_k(log_w), ess)
    batches = 8 if draws % 8 == 0 else 1
    found = _information.moments(model, theta, particles, log_w, batches) if scores else None
    return sums, found, (particles, log_w)


def _join(a: _Sums, b: _Sums) -> _Sums:
    return _Sums(
        jnp.logaddexp(a.log_sum, b.log_sum),
        jnp.logaddexp(a.log_sum_squares, b.log_sum_squares),
        jnp.maximum(a.k_hat, b.k_hat),
        a.ess + b.ess,
    )


@partial(jax.jit, static_argnames="num_particles")
def _plan(key, model, theta, prepared, moves, num_particles: int) -> _tempering.Plan:
    return _tempering.pilot(
        key,
        model,
        theta,
        prepared,
        num_particles=num_particles,
        moves=moves,
        cess=0.8,
        max_temperatures=200,
    )


@partial(jax.jit, static_argnames="num_particles")
def _legs(keys, model, theta, prepared, plan, moves, num_particles: int) -> _tempering.Leg:
    def leg(key):
        return _tempering.run_leg(
            key, model, theta, prepared, plan, num_particles=num_particles, moves=moves
        )

    return jax.vmap(leg)(keys)


def low_noise(key, model: Model, theta: Tree) -> Moments | None:
    """Moments helped by the curvature at the mode; see `_information.moments`."""
    prepared = prepare(key, AtMode(), model, theta)
    if prepared.mode.root.ndim != 3 or prepared.mode.x.shape[1] > _curvature.EXPAND_UP_TO:
        return None
    return _low_noise(key, model, theta, prepared, 8 * default_particles(model))


@partial(jax.jit, static_argnames="draws")
def _low_noise(key, model: Model, theta: Tree, prepared: Any, draws: int) -> Moments:
    particles = prepared.sample(key, model, theta, draws)
    visit = _model.evaluate(model, theta, particles)
    log_w = visit.log_joint - prepared.log_density(model, theta, particles)
    log_w = jnp.where(visit.alive, log_w, -jnp.inf)
    root, mode = prepared.mode.root, prepared.mode.x
    expansion = _curvature.expansion(model, theta, mode, jnp.einsum("gij,gkj->gik", root, root))
    return _information.moments(model, theta, particles, log_w, 1, expansion, visit.grad_x)


@jax.jit
def _moments_of_legs(model: Model, theta: Tree, legs: _tempering.Leg) -> Moments:
    """Replicates weighted by their Z, group by group; the noise from their spread."""
    each = jax.vmap(lambda leg: _information.scores_by_group(model, theta, leg))(legs)
    share = _weights.normalise(legs.log_evidence.T).T  # (R, G)
    count = share.shape[0]
    score = jnp.einsum("rg,rgp->gp", share, each)
    apart = each - score
    noise = jnp.einsum("rg,rgp,rgq->pq", share**2, apart, apart) * count / (count - 1)
    # All replicates as one cloud, each group's weights carrying the replicate's Z.
    level = legs.log_evidence - _weights.log_mean_exp(legs.log_weights)
    pooled = jnp.swapaxes(legs.log_weights + level[..., None], 0, 1)
    particles = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape((x.shape[1], -1, *x.shape[3:])), legs.particles
    )
    log_weights = pooled.reshape(pooled.shape[0], -1)
    whole = _information.moments(model, theta, particles, log_weights, count)
    return whole._replace(score=jnp.sum(score, axis=0), noise=noise)


def _reference_messages(prepared: Any, key, model: Model, theta: Tree) -> list[str]:
    """What can be said against the reference before it is used."""
    metric = prepared.metric()
    sound = None if metric is None else np.asarray(metric[1])
    if sound is not None and not sound.all():
        bad = int((~sound).sum())
        return [
            f"no proper mode was found in {bad} of {model.num_groups} group(s): the Hessian there "
            "is not positive definite, or the search did not converge"
        ]
    if isinstance(prepared, Proposal):
        mean, error = _normalisation(key, prepared, model, theta)
        if abs(mean - 1) > 5 * error + 0.02:
            return [
                "the reference's log_density is not the normalised density of its sampler (its "
                f"integral over the draws comes out as {mean:.3g}): the evidence is off by a factor"
            ]
    return []
