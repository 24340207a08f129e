"""The end of a fit: one scoring step with fresh particles, standard errors, and the evidence.

The clouds that give the evidence at the averaged theta also give independent scores g and Louis'
information I: theta + I^{-1} g is nearer to the maximum, and its simulation error is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence import log_evidence, rounds
from jalax._evidence.log_evidence import Evidence
from jalax._evidence.rounds import Budget
from jalax._model import information
from jalax._model.information import FLAT, LIMIT, WIDE, Metric, Moments
from jalax._model.model import Model
from jalax._particles import numbers, trees
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_1, fold_in, jit

MAX_SCORING = 6
UNCLEAR = 0.02  # relative error of a standard error that calls for another look
UNSURE = 0.5  # a standard error, relative to 1 + |theta|, that calls for white latents
STEEP = 0.3  # of the score in a flat direction; at a boundary it is near 0
MAX_PARTICLES = 500_000  # draws in each group, for one scoring step


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """What is known about theta, P numbers on the scale of the optimiser.

    Attributes:
        names: of the P numbers.
        covariance: the inverse of Louis' information; NaN in the rows of numbers that are at a
            boundary or not identified.
        simulation: the Monte-Carlo covariance of the estimate, NaN in the same rows.
        degrees_of_freedom: of the simulation error.
        flat: directions of theta without information, a row of P coefficients each.
        jacobian: of theta on the user's scale with respect to the P numbers.
    """

    names: tuple[str, ...]
    covariance: np.ndarray
    simulation: np.ndarray
    degrees_of_freedom: float
    flat: np.ndarray
    jacobian: np.ndarray

    @property
    def simulation_fraction(self) -> float:
        """The largest simulation error, as a fraction of its standard error."""
        ratio = np.diagonal(self.simulation) / np.diagonal(self.covariance)
        return float(np.sqrt(np.nanmax(ratio))) if np.isfinite(ratio).any() else np.nan

    def errors(self, covariance: np.ndarray) -> np.ndarray:
        """Standard errors on the user's scale, by the delta method; NaN where there are none."""
        known = np.isfinite(np.diagonal(covariance))
        filled = np.where(np.isfinite(covariance), covariance, 0.0)
        variance = np.einsum("ip,pq,iq->i", self.jacobian, filled, self.jacobian)
        lost = (self.jacobian[:, ~known] != 0).any(axis=1)
        lost = lost | ~self.jacobian.any(axis=1)  # held by fixed=, and not estimated
        return np.where(lost, np.nan, np.sqrt(np.maximum(variance, 0.0)))

    def on_users_scale(self, covariance: np.ndarray) -> np.ndarray:
        """A covariance of the user's theta, by the delta method; NaN in rows that have none."""
        known = np.isfinite(np.diagonal(covariance))
        filled = np.where(np.isfinite(covariance), covariance, 0.0)
        out = self.jacobian @ filled @ self.jacobian.T
        lost = (self.jacobian[:, ~known] != 0).any(axis=1)
        out[lost], out[:, lost] = np.nan, np.nan
        return out

    def is_unsure(self, theta: Tree) -> bool:
        """Whether a standard error is so large that a variance may be zero, a correlation one."""
        if len(self.flat):
            return True
        errors = np.sqrt(np.diagonal(self.covariance))
        return bool(np.any(errors > UNSURE * (1 + np.abs(trees.numbers_of(theta)))))

    def describe_flat(self, directions: np.ndarray | None = None) -> str:
        """The flat directions in words: the names with the largest coefficients."""
        lines = []
        for row in self.flat if directions is None else directions:
            row = row / np.abs(row).max()
            large = np.abs(row) > 0.3
            order = [i for i in np.argsort(-np.abs(row)) if large[i]]
            if len(order) == 1:
                lines.append(self.names[order[0]])
            else:
                lines.append(
                    "the direction " + " ".join(f"{row[i]:+.2g} {self.names[i]}" for i in order[:4])
                )
        return ", ".join(dict.fromkeys(lines))


def names_of(model: Model, theta: Tree) -> tuple[str, ...]:
    """One name for each number of the fit's theta."""
    hold, held = model.outside.hold, model.held
    if hold is None or held is None:
        return numbers.names_of(theta)
    return tuple(hold.names[i] for i in np.asarray(held.free))


class Solved(NamedTuple):
    """The scoring step in the directions that have information."""

    step: np.ndarray
    length: float  # in standard errors, over all directions together
    noise: float  # the length that noise alone would give it
    gain: float  # what log p_theta(y) rises by
    uphill: np.ndarray  # of the flat directions those along which it still rises, a row each
    uncertainty: Uncertainty


def solve(key, model: Model, theta: Tree, moments: Moments, freedom: float) -> Solved:
    score, noise, complete, missing, batches = (np.asarray(part, float) for part in moments)
    metric = information.host_metric(complete, missing)
    unclear = (metric.share < FLAT) | (_share_errors(metric, batches - missing) > UNCLEAR)
    if unclear.any():
        look = _closer(key, model, theta, metric, unclear)
        if look is not None:
            score, noise, metric = look
            batches = batches[:1]
    known = metric.share >= FLAT
    doubtful = ~known | is_wide(metric, trees.numbers_of(theta))
    if doubtful.any() and rounds.has_low_noise(model, theta):
        for i in np.flatnonzero(doubtful):
            known[i] = _is_parabola(key, model, theta, score, metric, int(i))
    inverse, lost = inverse_information(metric, known, complete)
    step = inverse @ score
    length = float(np.sqrt(max(score @ step, 0.0)))
    # The step is noisy because the score is, and because the information is.
    by_batch = np.einsum("pq,bqr,r->bp", inverse, batches - missing, step)
    covariance, simulation = inverse.copy(), inverse @ noise @ inverse
    if len(by_batch) > 1:
        simulation = simulation + np.cov(by_batch.T).reshape(simulation.shape) / len(by_batch)
    # What a last step leaves behind because log p_theta(y) is no exact parabola, and rounding.
    simulation = simulation + 0.01 * np.outer(step, step) + 1e-6 * covariance
    for matrix in (covariance, simulation):
        matrix[lost], matrix[:, lost] = np.nan, np.nan
    bias = float(np.einsum("ij,ji->", inverse, noise))

    jacobian = jacobian_of(model, theta)
    uncertainty = Uncertainty(
        names_of(model, theta), covariance, simulation, freedom, metric.basis.T[~known], jacobian
    )
    noise_length = float(np.sqrt(max(bias, 0.0)))
    gain = (float(score @ step) - bias) / 2
    uphill = uphill_of(score, noise, metric, known)
    return Solved(step, length, noise_length, gain, uphill, uncertainty)


def inverse_information(
    metric: Metric, known: np.ndarray, complete: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """I^{-1} with nothing in flat directions, and which numbers of theta are lost with these."""
    share = np.where(known, metric.share, np.inf)
    basis = np.asarray(metric.basis)
    inverse = (basis / share) @ basis.T
    # A number is lost if a fair part of it lies in flat directions, each in units of its own.
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(complete)), 1e-300))
    flat_space, _ = np.linalg.qr(basis[:, ~known] * unit[:, None])
    return inverse, (flat_space**2).sum(axis=1) > 0.25


def jacobian_of(model: Model, theta: Tree) -> np.ndarray:
    """Of theta on the user's scale with respect to its numbers on that of the optimiser."""
    if not model.maps_theta:
        return np.eye(trees.size(theta))
    return np.asarray(_jacobian(model, theta), float)


@jit(LEVEL_1)
def _jacobian(model: Model, theta: Tree) -> Any:
    flat, unravel = ravel_pytree(theta)

    def constrained(t):
        return ravel_pytree(model.constrained(unravel(t)))[0]

    return jax.jacfwd(constrained)(flat)


def uphill_of(
    score: np.ndarray, noise: np.ndarray, metric: Metric, known: np.ndarray
) -> np.ndarray:
    """Directions that pass for flat though the score is not zero there: no boundary, a long way.

    The basis has the length of one standard error of the complete data, over which a boundary or
    a direction that is not identified changes log p_theta(y) by less than one.
    """
    basis = np.asarray(metric.basis)
    slope = np.abs(basis.T @ score)
    error = np.sqrt(np.maximum(np.einsum("pi,pq,qi->i", basis, noise, basis), 0.0))
    return basis.T[~known & (slope > STEEP + 3 * error)]


def _score(key, model: Model, flat: np.ndarray, theta: Tree) -> np.ndarray:
    """The score at another theta with little noise; the same key moves its draws with theta."""
    found = rounds.low_noise(key, model, trees.with_numbers(theta, flat))
    assert found is not None
    return np.asarray(found.score, float)


def is_wide(metric: Metric, theta: np.ndarray, wide: float = WIDE) -> np.ndarray:
    """Directions with so large a standard error that the likelihood may have no maximum there.

    Where the latent does not depend on a parameter any more (a standard deviation near zero that
    multiplies it), nothing is missing, but there is no information either.
    """
    errors = np.abs(metric.basis) / np.sqrt(np.maximum(metric.share, 1e-12))
    return (errors > wide * (1 + np.abs(theta))[:, None]).any(axis=0)


def _share_errors(metric: Metric, batches: np.ndarray) -> np.ndarray:
    """Relative error of a standard error in each direction, from the batches' deviations."""
    if len(batches) < 2:
        return np.zeros(metric.share.size)
    changes = np.einsum("pi,bpq,qi->bi", metric.basis, batches, metric.basis)
    size = changes.std(axis=0, ddof=1) / np.sqrt(len(batches))
    return size / np.maximum(np.abs(metric.share), FLAT) / 2


def _closer(key, model: Model, theta: Tree, metric: Metric, unclear: np.ndarray) -> tuple | None:
    """A second look at directions where nearly all information is missing: noise may hide it.

    There the information is found again as the slope of the score. None where the latent is too
    large for it.
    """
    here = rounds.low_noise(key, model, theta)
    if here is None:
        return None
    flat = trees.numbers_of(theta)
    shares = np.diag(metric.share)
    for i in np.flatnonzero(unclear):
        v = 0.3 * metric.basis[:, i]
        up, down = (_score(key, model, flat + side * v, theta) for side in (1, -1))
        shares[i] = shares[:, i] = -metric.basis.T @ (up - down) / 0.6
    share, turn = np.linalg.eigh(shares)
    numbers: Any = metric.basis @ turn, turn.T @ metric.inverse, share
    return np.asarray(here.score, float), np.asarray(here.noise, float), Metric(*numbers)


def _is_parabola(key, model, theta: Tree, score: np.ndarray, metric: Metric, i: int) -> bool:
    """Is there a maximum in a direction with little information, or none?

    A small share of information may be all there is, and enough (a random slope), or the shadow
    of a boundary at infinity. Over one standard error to either side of a proper maximum the
    score changes by one; on the way to a boundary it does not.
    """
    if not metric.share[i] > 1e-6:
        return False
    v = metric.basis[:, i] / np.sqrt(metric.share[i])
    flat = trees.numbers_of(theta)
    for side in (-1, 1):
        there = _score(key, model, flat + side * v, theta)
        if not 1 / 3 < -side * v @ (there - score) < 3:
            return False
    return True


class Finished(NamedTuple):
    theta: Tree
    evidence: Evidence
    uncertainty: Uncertainty
    settled: bool  # the last scoring step was short
    uphill: str = ""  # a direction without a standard error along which log p_theta(y) still rises


def finish(
    key,
    model: Model,
    theta: Tree,
    *,
    fraction: float,
    project: Callable[[Tree], Tree] | None = None,
) -> Finished:
    """Score with fresh particles until the step is short, and keep the last one's evidence."""
    if trees.size(theta) > LIMIT:
        raise ValueError(too_many(trees.size(theta)))
    budget = Budget(fraction=fraction, usual=MAX_PARTICLES)
    for k in range(MAX_SCORING):
        evidence, moments = log_evidence.estimate(fold_in(key, k), model, theta, budget)
        assert moments is not None
        key_probe = fold_in(key, MAX_SCORING + k)
        flat = trees.numbers_of(theta)
        held = np.zeros(flat.size, bool)
        if project is not None:
            free, _ = information.bounded(project, theta, moments.score, moments.complete)
            moments, held = information.held(moments, free), ~np.asarray(free)
        solved = solve(key_probe, model, theta, moments, evidence.degrees_of_freedom)
        solved = solved._replace(uncertainty=_without(solved.uncertainty, held))
        root = np.sqrt(flat.size)
        settled = solved.length <= max(0.03 * root, 3 * solved.noise)
        if not np.isfinite(solved.step).all():
            return Finished(theta, evidence, solved.uncertainty, settled)
        # Far away the quadratic is not to be trusted beyond a standard error in each direction.
        short = 1.0 if settled else min(1.0, root / solved.length)
        theta = trees.with_numbers(theta, flat + short * solved.step)
        theta = theta if project is None else project(theta)
        if settled:
            break
    uphill = solved.uncertainty.describe_flat(solved.uphill)
    settled = settled and not uphill
    value = evidence.value + solved.gain
    groups = evidence.groups + solved.gain / evidence.groups.size
    evidence = dataclasses.replace(evidence, value=value, groups=groups)
    return Finished(theta, evidence, solved.uncertainty, settled, uphill)


def _without(known: Uncertainty, held: np.ndarray) -> Uncertainty:
    """No standard errors for parameters that a projection holds at a bound."""
    covariance, simulation = known.covariance.copy(), known.simulation.copy()
    for matrix in (covariance, simulation):
        matrix[held], matrix[:, held] = np.nan, np.nan
    flat = np.concatenate([known.flat.reshape(-1, held.size), np.eye(held.size)[held]])
    return dataclasses.replace(known, covariance=covariance, simulation=simulation, flat=flat)


def uncertainty_at(key, model: Model, theta: Tree, fraction: float) -> Uncertainty:
    """Standard errors at a theta that is not moved any more."""
    size = trees.size(theta)
    if size > LIMIT:
        raise ValueError(too_many(size))
    budget = Budget(fraction=fraction, usual=MAX_PARTICLES)
    evidence, moments = log_evidence.estimate(key, model, theta, budget)
    assert moments is not None
    key_probe = fold_in(key, 1)
    return solve(key_probe, model, theta, moments, evidence.degrees_of_freedom).uncertainty


def too_many(size: int) -> str:
    return (
        f"standard errors need the information about all parameters, a dense matrix: theta has "
        f"{size} numbers, and the limit is {LIMIT}."
    )


def as_dict(uncertainty: Uncertainty) -> dict[str, Any]:
    """Plain lists, for a file."""
    out = dataclasses.asdict(uncertainty)
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in out.items()}


def from_dict(plain: dict[str, Any]) -> Uncertainty:
    arrays = {
        name: np.asarray(plain[name], float)
        for name in ("covariance", "simulation", "flat", "jacobian")
    }
    return Uncertainty(
        names=tuple(plain["names"]), degrees_of_freedom=plain["degrees_of_freedom"], **arrays
    )
