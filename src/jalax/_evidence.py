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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from jalax import _checks, _model, _tempering, _weights
from jalax._model import Model
from jalax._reference import (
    AtMode,
    Prepared,
    Proposal,
    as_reference,
    fitted_to,
    normalisation,
)
from jalax._tempering import MALA, pooled_k
from jalax._tree import Tree

# Beyond 0.7 the mean of the weights cannot be relied on (Vehtari et al.); beyond 0.5 it has no
# variance, and an error computed from the weights would lie. Here the error is the point.
K_HAT_LIMIT = 0.5


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
    if num_particles is None:
        num_particles = int(np.clip(4_000_000 // model.num_groups, 128, 1000))
    num_particles = _checks.check_count("num_particles", num_particles, 25)
    num_replicates = _checks.check_count("num_replicates", num_replicates, 2)
    if not error > 0:
        raise ValueError(f"error is the standard error asked for, positive; got {error}.")
    key_prepare, key_pilot, key_run = jax.random.split(key, 3)
    drawn_up = as_reference(AtMode() if reference is None else reference)
    prepared = _prepare(key_prepare, drawn_up, model, theta)
    messages = _reference_messages(prepared, key_prepare, model, theta)

    size = {"num_particles": num_particles}
    budget = max(1, max_particles // (num_particles * num_replicates))
    clouds = _Clouds(key_run, num_replicates, budget, error)
    pilot_keys = jax.random.split(key_pilot, num_replicates)
    moves = MALA() if moves is None else moves

    def try_importance(prepared: Prepared) -> tuple[_Total | None, float]:
        """The estimate if a pilot, and then its own weights, say that it has an error."""
        look = _importance(pilot_keys, model, theta, prepared, **size)
        k_hat = float(jnp.max(look.k_hat))
        ess = float(jnp.min(look.ess)) / (num_particles * num_replicates)
        if not (k_hat < K_HAT_LIMIT and ess > 0.02):
            return None, k_hat
        total = clouds.importance(model, theta, prepared, **size)
        return (total if total.k_hat < K_HAT_LIMIT else None), total.k_hat

    total, k_hat = try_importance(prepared)
    if total is not None:
        return _report(total, messages, 1, error)
    plan = _plan(key_pilot, model, theta, prepared, moves, **size)
    # The pilot's cloud knows the posterior better than its mode did: measure against that.
    better = _refit(plan.particles, plan.log_weights)
    total, k_hat_better = try_importance(better)
    if total is not None:
        return _report(total, messages, int(plan.num), error)
    if k_hat_better < k_hat:
        prepared = better
        plan = _plan(jax.random.fold_in(key_pilot, 1), model, theta, prepared, moves, **size)
    if not bool(plan.reached):
        messages.append("the tempered leg did not arrive at the posterior")
    if float(plan.acceptance) < 0.15:
        messages.append(f"moves were accepted only {float(plan.acceptance):.0%} of the time")
    total = clouds.tempered(model, theta, prepared, plan, moves, **size)
    return _report(total, messages, int(plan.num), error)


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


@dataclasses.dataclass
class _Clouds:
    """Rounds of replicates with fresh keys, until the error is reached or the budget spent."""

    key: jax.Array
    num_replicates: int
    budget: int
    error: float

    def keys(self, round_: int) -> jax.Array:
        return jax.random.split(jax.random.fold_in(self.key, round_), self.num_replicates)

    def enough(self, variance: np.ndarray) -> bool:
        return float(np.sqrt(variance.sum())) <= 0.9 * self.error  # the error is noisy itself

    def importance(self, model, theta, prepared, *, num_particles) -> _Total:
        """All draws are independent: the weights' own spread gives the error."""
        sums: Any = None
        for k in range(self.budget):
            now = _importance(self.keys(k), model, theta, prepared, num_particles=num_particles)
            sums = now if sums is None else _join(sums, now)
            count = (k + 1) * self.num_replicates * num_particles
            first = np.asarray(sums.log_sum, float)
            second = np.asarray(sums.log_sum_squares, float)
            # var(mean w) / mean(w)^2 = sum w^2 / (sum w)^2 - 1/n
            variance = np.maximum(np.exp(second - 2 * first) - 1 / count, 0.0)
            if self.enough(variance):
                break
        return _Total(
            "importance",
            first - np.log(count),
            variance,
            np.inf,
            float(jnp.max(sums.k_hat)),
            float(jnp.min(sums.ess)) / count,
            count,
            (k + 1) * self.num_replicates,
        )

    def tempered(self, model, theta, prepared, plan, moves, *, num_particles) -> _Total:
        """Replicates averaged in Z; their spread gives the error."""
        legs, k_hat, ess = [], -np.inf, np.inf
        for k in range(self.budget):
            leg = _legs(
                self.keys(k), model, theta, prepared, plan, moves, num_particles=num_particles
            )
            legs.append(np.asarray(leg.log_evidence, float))  # (R, G)
            k_hat = max(k_hat, float(jnp.max(leg.k_hat)))
            weights = _weights.normalise(leg.log_weights)
            each = _weights.effective_sample_size(weights)
            ess = min(ess, float(jnp.min(each)) / num_particles)
            log_z = np.concatenate(legs)
            count = len(log_z)
            groups, variance, freedom = average_in_z(log_z)
            if self.enough(variance) or not np.isfinite(variance).all():
                break
        return _Total(
            "tempered",
            groups,
            variance,
            freedom,
            k_hat,
            ess,
            count * num_particles,
            count,
        )


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
    error = float(np.sqrt(total.variance.sum()))
    # The log of an average is low by half its relative variance; over groups this adds up.
    groups = total.groups + total.variance / 2
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
    evidence = Evidence(
        value=float(groups.sum()),
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
    for message in messages:
        warnings.warn(f"log_evidence: {message}.", stacklevel=3)
    return evidence


# --- the compiled parts -----------------------------------------------------------------------


_refit = jax.jit(fitted_to)
_normalisation = jax.jit(normalisation)


@jax.jit
def _prepare(key, reference, model: Model, theta: Tree) -> Prepared:
    return reference.prepare(key, model, theta)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Sums:
    """log sum w, log sum w^2 and ESS of each group, and k-hat, over all draws of a round."""

    log_sum: Any
    log_sum_squares: Any
    k_hat: Any
    ess: Any


@partial(jax.jit, static_argnames="num_particles")
def _importance(keys, model: Model, theta: Tree, prepared: Prepared, num_particles: int) -> _Sums:
    def cloud(key):
        particles = prepared.sample(key, model, theta, num_particles)
        value = _model.log_joint(model, theta, particles)
        log_w = value - prepared.log_density(model, theta, particles)
        return jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)

    log_w = jnp.moveaxis(jax.vmap(cloud)(keys), 0, 1)  # (G, R, N)
    log_w = log_w.reshape(log_w.shape[0], -1)
    ess = _weights.effective_sample_size(_weights.normalise(log_w))
    return _Sums(logsumexp(log_w, axis=1), logsumexp(2 * log_w, axis=1), pooled_k(log_w), ess)


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


def _reference_messages(prepared: Any, key, model: Model, theta: Tree) -> list[str]:
    """What can be said against the reference before it is used."""
    metric = prepared.metric()
    if metric is not None and not bool(jnp.all(metric[1])):
        bad = int(jnp.sum(~metric[1]))
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
