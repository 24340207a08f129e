"""log_evidence: log p_theta(y) at a fixed theta, with an error that means something.

The cheapest route that can be trusted, in this order: quasi-random points at the mode of each
group, where it has few latents; importance sampling with a Student-t on the Laplace mode; of many
latents, legs from the Laplace Gaussian; a tempered pilot, and importance sampling with a Student-t
refitted to its cloud; tempered legs. The Pareto k-hat of the weights decides. Whatever was learnt
on a pilot is frozen, and the estimate uses fresh keys.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jalax._evidence import by_legs, by_points
from jalax._evidence.rounds import (
    Budget,
    Clouds,
    Total,
    check_normalisation,
    make_plan,
    prepare,
    refit,
)
from jalax._model import checks, modules, sharding
from jalax._model.frequencies import check_route
from jalax._model.information import Moments
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._reference.pattern import warn_of_many
from jalax._reference.references import (
    AtMode,
    Prepared,
    Proposal,
    as_reference,
    check_reference,
)
from jalax._reference.tempering import MALA, check_moves
from jalax._runtime import arguments, layouts
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import fold_in, split
from jalax._runtime.failures import naming_knobs
from jalax._runtime.layouts import Layout
from jalax._runtime.processes import to_host

# Beyond 0.7 the mean of the weights cannot be relied on (Vehtari et al.); beyond 0.5 it has no
# variance, and an error computed from the weights would lie. Here the error is the point.
NUM_REFITS = 2  # how often the reference of the tempered route is fitted anew to a pilot


@dataclasses.dataclass(frozen=True)
class Evidence:
    """An estimate of log p_theta(y).

    Attributes:
        value: the log-evidence, corrected for the bias of the log of an average.
        error: its standard error.
        degrees_of_freedom: of that error; infinite where it comes from many independent draws.
        route: "points" (quasi-random), "legs" (from the Laplace Gaussian), "importance"
            (independent draws) or "tempered".
        k_hat: the Pareto k-hat of the weights, groups pooled; of the tempered route, of the
            weights that the first draws came to carry.
        ess: the lowest effective sample size over groups, as a fraction of the particles.
        num_particles: draws in all, in each group.
        num_replicates: independent clouds; of points, independent shifts.
        num_temperatures: of the tempered route and of legs, else 1.
        groups: the log-evidence of each group.
        messages: why it should not be trusted; empty if nothing is known against it.
        laplace: log p by Laplace's approximation, where its mode and curvature were at hand.
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
    laplace: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether no check had anything to say; `messages` has what they said."""
        return not self.messages

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval, with the t quantile of the error's degrees of freedom."""
        from scipy.special import ndtri, stdtrit  # scipy comes with jax

        tail = 0.5 + arguments.check_fraction("level", level) / 2
        finite = np.isfinite(self.degrees_of_freedom)
        q = float(stdtrit(self.degrees_of_freedom, tail) if finite else ndtri(tail))
        return self.value - q * self.error, self.value + q * self.error

    def __repr__(self) -> str:
        detail = f"{self.route}, k-hat {self.k_hat:.2f}, ess {self.ess:.2f}"
        doubt = "".join(f"; {message}" for message in self.messages)
        return f"Evidence({self.value:.4f} +- {self.error:.4f}; {detail}{doubt})"


def as_dict(evidence: Evidence) -> dict[str, Any]:
    """Plain numbers and lists, for a file or another process."""
    return dataclasses.asdict(evidence) | {"groups": evidence.groups.tolist()}


def from_dict(plain: dict[str, Any]) -> Evidence:
    groups, messages = np.array(plain["groups"]), tuple(plain["messages"])
    return Evidence(**plain | {"groups": groups, "messages": messages})


def log_evidence(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    num_particles: int | None = None,
    num_replicates: int = 8,
    error: float | None = None,
    reference: Any = None,
    moves: Any = None,
    max_particles: int | None = None,
    mesh: Mesh | Layout | None = None,
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
        error: the standard error asked for; by default 0.01, more for more than 3,000 groups (0.3
            for 100,000); where quasi-random points do not suit, 0.03, more for more than 100 groups
            (0.1 for 1000, 3 for 100,000).
        reference: what the evidence is measured against: `jalax.references.AtMode()` (the default),
            `jalax.references.Modes(...)` for several modes, or a pair (sampler, log_density).
        moves: of the tempered route, `jalax.references.MALA()` (the default) or `JALA()`.
        max_particles: the budget: draws in each group, by default 200,000, and 200 million in all.
        mesh: spread the draws ("particles"), groups or data over many devices, as in `jalax.fit`.

    Returns:
        An `Evidence`. It warns when there is a reason not to trust it. What it cannot see: a
        mode far from the reference, and constants missing from log_joint.

    >>> import jax, jalax
    >>> model = jalax.models.hierarchical_normal(jax.numpy.array([0.5, 1.5, 4.0]))
    >>> evidence = jalax.log_evidence(model, 2.0, key=jax.random.key(0))
    >>> bool(abs(evidence.value - model.exact_log_evidence(2.0)) < 4 * evidence.error + 1e-4)
    True
    """
    arguments.check_key(key)
    assert key is not None
    model, theta = modules.parted(checks.prepare_model(model), theta)
    layout, structure = sharding.layout_for(model, mesh), model.structure
    model, theta, key = layouts.with_auto_axes((model, theta, key))
    model = sharding.lay_out(model.replace(structure=structure), layout)
    with layouts.use_mesh(layout):
        theta = checks.prepare_theta(theta, model, least=0)  # nothing is fitted
        checks.check_log_joint(model, theta)
    if reference is None:
        warn_of_many(model, stacklevel=2)
    if num_particles is not None:
        num_particles = arguments.check_count("num_particles", num_particles, 25)
        layouts.check_particles(model.layout, num_particles)
    num_replicates = arguments.check_count("num_replicates", num_replicates, 2)
    if error is not None:
        expected = "a positive number, the standard error asked for"
        error = arguments.check_number("error", error, expected, lambda number: number > 0)
    if max_particles is not None:
        max_particles = arguments.check_count("max_particles", max_particles)
    if moves is not None:
        check_moves("moves", moves)
    tries_points = reference is None and moves is None
    reference = AtMode() if reference is None else reference
    with layouts.use_mesh(layout):
        check_reference(reference, model, theta)
    budget = Budget(num_particles, num_replicates, max_particles, error)
    evidence, _ = estimate(key, model, theta, budget, reference, moves, tries_points)
    _warn(evidence, stacklevel=3)
    return evidence


def log_evidence_at(key, model: Model, free: Tree) -> Evidence:
    """`log_evidence` with its defaults, at a theta on the fit's scale."""
    evidence, _ = estimate(key, model, free, Budget())
    _warn(evidence, stacklevel=4)
    return evidence


def _warn(evidence: Evidence, stacklevel: int) -> None:
    for message in evidence.messages:
        warnings.warn(f"log_evidence: {message}.", stacklevel=stacklevel)


def estimate(
    key,
    model: Model,
    theta: Tree,
    budget: Budget,
    reference: Any = None,
    moves: Any = None,
    tries_points: bool = True,
) -> tuple[Evidence, Moments | None]:
    """The evidence and, where a `fraction` is asked for, score and information at theta."""
    with layouts.use_mesh(model.layout), naming_knobs(model.grouped), one_thread():
        if tries_points and by_points.suits(model, budget):
            total = by_points.estimate(fold_in(key, 1), model, theta, budget)
            if total is not None:
                return report(total, [], 1, np.inf), total.moments
        check_route(model, "log p of this model is not estimated by points")
        return _estimate(key, model, theta, budget, reference, moves, tries_points)


def _estimate(
    key,
    model: Model,
    theta: Tree,
    budget: Budget,
    reference: Any,
    moves: Any,
    tries_legs: bool,
) -> tuple[Evidence, Moments | None]:
    key_prepare, key_pilot, key_run = split(key, 3)
    drawn_up = as_reference(AtMode() if reference is None else reference)
    prepared = prepare(key_prepare, drawn_up, model, theta)
    if reference is not None:  # asked for by the user: there is no fit to lose
        _check_mode(prepared)
    messages = _reference_messages(prepared, key_prepare, model, theta)
    clouds = Clouds(key_run, budget.filled(model))
    asked = clouds.budget.error
    moves = MALA() if moves is None else moves

    def try_importance(prepared: Prepared) -> Total | None:
        """The estimate if a first round, and then all weights, say that it has an error."""
        total = clouds.importance(model, theta, prepared)
        return total if total.trusted else None

    total = try_importance(prepared)
    if total is not None:
        return report(total, messages, 1, asked), total.moments
    if tries_legs and by_legs.suits(model, budget):
        total, number = by_legs.estimate(key_pilot, model, theta, budget)
        if total.trusted and total.variance.max() < 0.25:
            return report(total, messages, number, np.inf), None
    legs = []
    for k in range(1 + NUM_REFITS):
        key_k = fold_in(key_pilot, k)
        plan = make_plan(key_k, model, theta, prepared, moves, clouds.num_particles)
        legs.append((prepared, plan))
        if k == NUM_REFITS:
            break
        # The pilot's cloud knows the posterior better than its reference did: measure against it.
        prepared = refit(prepared, plan.particles, plan.log_weights)
        total = try_importance(prepared)
        if total is not None:
            return report(total, messages, int(plan.num), asked), total.moments
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
    return report(total, messages, int(plan.num), asked), total.moments


def report(total: Total, messages: list[str], temperatures: int, asked: float) -> Evidence:
    error, groups = total.error, total.groups + total.variance / 2
    if not np.isfinite(groups).all():
        messages.append("the estimate is not finite")
    if total.k_hat >= total.doubtful_k_hat:
        messages.append(
            f"Pareto k-hat {total.k_hat:.2f} is {total.doubtful_k_hat} or more: the reference "
            "misses part of the posterior's tails"
        )
    if total.variance.max() > 0.25:
        messages.append("the replicates disagree by factors: the posterior is not explored")
    if not error <= asked:
        messages.append(f"the error asked for, {asked:.2g}, was not reached within the budget")
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
        laplace=total.laplace,
    )


def _check_mode(prepared: Any) -> None:
    for part in getattr(prepared, "parts", [prepared]):
        value = to_host(part.mode.log_joint) if hasattr(part, "mode") else np.zeros(1)
        bad = ~np.isfinite(value)
        if bad.any():
            place = f" of group {np.argmax(bad)}" if len(value) > 1 else ""
            raise ValueError(
                f"log_joint is {value[bad][0]} at the mode{place}, which is searched from the "
                "model's example latent: check latent, theta and the data for values outside the "
                "model's domain."
            )


def _reference_messages(prepared: Any, key, model: Model, theta: Tree) -> list[str]:
    """What can be said against the reference before it is used."""
    metric = prepared.metric()
    sound = None if metric is None else to_host(metric[1])
    if sound is not None and not sound.all():
        bad = int((~sound).sum())
        return [
            f"no proper mode was found in {bad} of {model.num_groups} group(s): the Hessian there "
            "is not positive definite, or the search did not converge"
        ]
    if isinstance(prepared, Proposal):
        mean, error = check_normalisation(key, prepared, model, theta)
        if abs(mean - 1) > 5 * error + 0.02:
            return [
                "the reference's log_density is not the normalised density of its sampler (its "
                f"integral over the draws comes out as {mean:.3g}): the evidence is off by a factor"
            ]
    return []
