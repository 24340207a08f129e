r"""Profile likelihood: the others of theta maximised again for each value of one number.

$\zeta(t) = \pm \sqrt{2 (\ell(\hat\theta) - \max_{\theta_j = t} \ell(\theta))}$ is nearly a straight
line in t, so that a few points and an interpolation give the ends of an interval.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence import prior as priors
from jalax._evidence.log_evidence import log_evidence_at
from jalax._evidence.record import FitRecord
from jalax._fit import refitting
from jalax._fit.simulation import model_of
from jalax._model import held
from jalax._model.hold import Held
from jalax._model.model import Model
from jalax._model.types import ARRIVED
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference.points import LATENTS_UP_TO
from jalax._runtime import arguments
from jalax._runtime.compilation import fold_in

if TYPE_CHECKING:
    from jalax._export.tables import Summary

# In standard errors to either side; where log p has not fallen enough there, again twice as far.
REACH = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
DOUBLINGS = 3
FAR_ENOUGH = 1.05  # times the quantile, so that the end lies between two points


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ProfileLikelihood:
    """log p of one number of theta, the others at their best: `FitResult.profile`.

    Attributes:
        name: of the number.
        values: (K,): on the user's scale, in ascending order of the optimiser's.
        log_evidence: (K,): log p there, with the others maximised.
        maximum: the highest log p.
        root: (K,): the signed root of twice the fall from the maximum.
        numbers: (K,): the values on the optimiser's scale.
        ends: the limits of the number on the user's scale, where it goes to -inf and inf on the
            optimiser's.
    """

    name: str
    values: np.ndarray
    log_evidence: np.ndarray
    maximum: float
    root: np.ndarray
    numbers: np.ndarray
    ends: tuple[float, float]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where log p has fallen by half the quantile of chi-square 1.

        A side on which it never falls so far ends at the limit of the number: 0 of a standard
        deviation, else infinity.
        """
        from scipy.interpolate import PchipInterpolator
        from scipy.special import ndtri

        level = arguments.check_fraction("level", level)
        q = float(ndtri(0.5 + level / 2))
        keep = _rising(self.root)
        curve = PchipInterpolator(self.root[keep], self.values[keep])
        # Not reached: the limit of the number, unless it was a fit that failed there.
        limits = np.where(np.isnan(self.root[[0, -1]]), np.nan, self.ends)
        low = limits[0] if self.root[keep][0] > -q else curve(-q)
        high = limits[1] if self.root[keep][-1] < q else curve(q)
        return (float(low), float(high)) if not low > high else (float(high), float(low))

    def summary(self) -> Summary:
        """A table: a string, shown as HTML in a notebook."""
        from jalax._export.after_fit import profile_summary

        return profile_summary(self)

    def __repr__(self) -> str:
        return self.summary()

    def plot(self, ax: Any = None) -> Any:
        """log p against the number, with its 95 % interval; returns the matplotlib axes."""
        from jalax._export.after_fit import plot_profile

        return plot_profile(self, ax)


def _rising(root: np.ndarray) -> np.ndarray:
    """Points of a curve that rises: what noise or a failed fit takes back is left out."""
    keep, last = [], -np.inf
    for k, value in enumerate(root):
        if np.isfinite(value) and value > last:
            keep.append(k)
            last = value
    return np.array(keep, int)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Intervals by profile likelihood: `confidence_intervals(method=jalax.Profile())`.

    Each number of theta is held at a dozen values, and the others fitted again.
    """

    def intervals(self, result: FitRecord, level: float) -> np.ndarray:
        """(P, 2), NaN for numbers that were held."""
        ends = np.full((len(result.names), 2), np.nan)
        for i in np.flatnonzero(~result.is_held):
            ends[i] = profile(result, result.names[i], level).interval(level)
        return ends


class _Line(NamedTuple):
    """The number of theta that is held, and where the others are expected to follow."""

    model: Model  # with nothing held
    which: np.ndarray  # (P,): what is held, on the optimiser's scale
    flat: np.ndarray  # (P,): theta there
    place: int  # of the number among them
    place_outside: int  # ... and on the user's scale
    error: float
    direction: np.ndarray  # (P,): how the others move with it


def profile(result: FitRecord, name: str, level: float = 0.95) -> ProfileLikelihood:
    """`FitResult.profile`."""
    from scipy.special import ndtri

    level = arguments.check_fraction("level", level)
    line = _line(result, name)
    enough = FAR_ENOUGH * float(ndtri(0.5 + level / 2))
    away = np.concatenate([-REACH[::-1], [0.0], REACH])
    log_p = _log_p(result, line, away)
    for k in range(DOUBLINGS):
        # A fit that failed: further out nothing is better.
        short = np.sqrt(np.maximum(2 * (np.nanmax(log_p) - log_p[[0, -1]]), 0.0)) < enough
        if not short.any():
            break
        further = 2**k * (REACH[-1] + REACH)
        more = np.concatenate([-further[::-1][: 6 * short[0]], further[: 6 * short[1]]])
        found = _log_p(result, line, np.resize(more, 2 * REACH.size + 1))[
            : more.size
        ]  # the same program
        away, log_p = np.concatenate([away, more]), np.concatenate([log_p, found])
        order = np.argsort(away)
        away, log_p = away[order], log_p[order]
    return _found(name, line, away, log_p)


def _found(name: str, line: _Line, away: np.ndarray, log_p: np.ndarray) -> ProfileLikelihood:
    numbers = line.flat[line.place] + line.error * away
    best = int(np.nanargmax(log_p))
    side = np.sign(away - away[best])
    root = side * np.sqrt(np.maximum(2 * (log_p[best] - log_p), 0.0))
    values = _on_users_scale(line, np.concatenate([numbers, [-np.inf, np.inf]]))
    ends = float(values[-2]), float(values[-1])
    return ProfileLikelihood(name, values[:-2], log_p, float(log_p[best]), root, numbers, ends)


def _on_users_scale(line: _Line, numbers: np.ndarray) -> np.ndarray:
    _, unravel = ravel_pytree(line.model.unconstrained(line.model.theta))

    def one(number):
        flat = jnp.asarray(line.flat).at[line.place].set(number)
        return ravel_pytree(line.model.constrained(unravel(flat)))[0][line.place_outside]

    dtype = jnp.asarray(line.flat).dtype
    return np.asarray(jax.vmap(one)(jnp.asarray(numbers, dtype)), float)


def _line(result: Any, name: str) -> _Line:
    model = model_of(result, "profile")
    index = _index(result, name)
    known = result.uncertainty
    bare = held.released(model).replace(theta=result.theta)
    full, _ = ravel_pytree(model.filled(result.free))
    free = np.arange(full.size) if model.held is None else np.asarray(model.held.free)
    depends = np.flatnonzero(known.jacobian[index])
    if depends.size != 1:
        raise ValueError(
            f"{name} depends on {depends.size} numbers of the optimiser's at once, and cannot be "
            "held by itself: there is no profile of it."
        )
    j = int(depends[0])
    variance = known.covariance[j, j]
    error = float(np.sqrt(variance)) if np.isfinite(variance) else 1.0
    column = np.where(np.isfinite(known.covariance[:, j]), known.covariance[:, j], 0.0)
    direction = np.zeros(full.size)
    direction[free] = column / column[j] if column[j] > 0 else 0.0
    direction[free[j]] = 1.0
    which = np.ones(full.size, bool)
    which[free] = False
    which[free[j]] = True
    flat = np.asarray(full, float)
    return _Line(bare, which, flat, int(free[j]), index, error, direction)


def _index(result: FitRecord, name: Any) -> int:
    names = result.names
    if name not in names:
        shown = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
        raise ValueError(f"theta has no number {name!r}; it has {shown}.")
    index = names.index(name)
    if result.is_held[index]:
        raise ValueError(f"{name} was held by fixed=: it has no profile.")
    return index


def _log_p(result: FitRecord, line: _Line, away: np.ndarray) -> np.ndarray:
    """log p with the number so many standard errors away; NaN where a fit did not arrive.

    All with the same random numbers: their differences have less noise than each has.
    """
    start, unravel = ravel_pytree(line.model.unconstrained(line.model.theta))
    flats = jnp.asarray(line.flat + line.error * np.outer(away, line.direction), start.dtype)
    key = fold_in(result.origin.key, 5)
    if line.which.all():  # theta is one number: there is nothing to fit
        found = (log_evidence_at(key, line.model, unravel(flat)) for flat in flats)
        return np.array([evidence.value for evidence in found])
    thetas = jax.vmap(lambda flat: line.model.constrained(unravel(flat)))(flats)
    model = held.held_at(line.model, line.model.theta, line.which)
    order, rows = model.held.order, flats[:, np.flatnonzero(line.which)]
    if trees.size(model.latent) > LATENTS_UP_TO:  # a step takes seconds: nothing would be won
        one = [model.replace(held=Held(order, row)) for row in rows]
        return np.array([_alone(result, m, thetas, k, key) for k, m in enumerate(one)])
    each = Held(jnp.broadcast_to(order, (len(away), order.size)), rows)
    keys = jnp.stack([key] * len(away))
    with warnings.catch_warnings():  # of fits that are not the result
        warnings.simplefilter("ignore")
        axes = {"theta": 0, "held": 0}
        fits = refitting.many_like(result)(model.replace(held=each), thetas, key=keys, axes=axes)
    return np.array([_height(fit) for fit in fits])


def _alone(result: FitRecord, model: Model, thetas: Tree, k: int, key: Any) -> float:
    theta = jax.tree.map(lambda leaf: leaf[k], thetas)
    return _height(refitting.one_like(result)(model, theta, key=key))


def _height(fit: Any) -> float:
    """log p where a fit arrived, with the prior that it maximised as well."""
    evidence = fit.known_evidence
    if evidence is None or fit.status not in ARRIVED:
        return np.nan
    return float(evidence.value) + priors.at(fit.origin.model, fit.free)
