"""A fit from several starts: which maxima there are, and which is the highest.

The likelihood of a latent variable model may have more than one. A fit climbs to one of them;
others from starts around theta_0, all in one program, say whether there are more.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jalax._evidence.record import Maxima
from jalax._fit.callbacks import Callback
from jalax._fit.checkpoint import checkpoint
from jalax._fit.fit_many import fit_many
from jalax._fit.result import FitResult
from jalax._model import checks
from jalax._model.algorithm import Algorithm
from jalax._model.model import Model
from jalax._model.types import ARRIVED, Status
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._reference.points import LATENTS_UP_TO
from jalax._runtime import arguments
from jalax._runtime.compilation import fold_in

# How far the starts are from theta_0, in units of 1 + |theta_0| on the optimiser's scale, one after
# the other and again: from a neighbour to another order of magnitude.
SPREADS = (0.25, 0.5, 1.0, 2.0)
TRIES = 20  # draws of one start; each is half as far away as the last
SAME = 0.3  # standard errors between two ends that are one maximum
HIGHER = 4.5  # errors of the difference
# Of a start: so many steps, or so many times as many as the first fit took. It leads nowhere after.
PATIENCE, TIMES = 60, 2
ASKED_TO_STOP = (Status.STOPPED, Status.TIME_LIMIT, Status.INTERRUPTED)


def restarted(
    once: Callable[[Tree], FitResult],
    model: Model,
    theta: Tree,
    key: jax.Array,
    number: int,
    options: dict[str, Any],
) -> FitResult:
    """The fit that ended highest, with all maxima that were found.

    `once` is the fit from one start, with everything that it checks; the others explore, and where
    one of them ends higher, `once` begins there again.
    """
    best = first = once(theta)
    if first.status in ASKED_TO_STOP:
        return first
    starts = dispersed(fold_in(key, 1), model, theta, number)
    options = options | {"num_steps": max(PATIENCE, TIMES * first.num_steps)}
    ends = [first, *explored(once, model, starts, fold_in(key, 2), options)]
    highest = max(ends, key=_height)
    if _height(highest) > _height(first) + _slack(highest, first):
        again = once(highest.theta)
        best = again if _height(again) > -np.inf else highest
        ends = [best if end is highest else end for end in ends]
    return dataclasses.replace(best, maxima=maxima_of(ends))


def check_restarts(
    number: Any,
    algorithm: Algorithm | None,
    refused: dict[str, Any],
    callbacks: Sequence[Callback],
) -> int:
    """`restarts=` is a number, and stands beside nothing that has one start or no log p."""
    number = arguments.check_count("restarts", number)
    if algorithm is not None and not (algorithm.gives_evidence and algorithm.stops_by_itself):
        raise ValueError(
            "restarts= compares log p where fits have stopped by themselves, which "
            f"{type(algorithm).__name__} does not: use jalax.Scoring() or jalax.JALAEM()."
        )
    given = [name for name, value in refused.items() if value is not None]
    given += ["jalax.checkpoint"] * any(isinstance(callback, checkpoint) for callback in callbacks)
    if given:
        raise ValueError(
            f"restarts= has several starts, and {given[0]} is for one: leave one of the two out."
        )
    return number


def dispersed(key: jax.Array, model: Model, theta: Tree, number: int) -> list[Tree]:
    """Starts around theta_0 with a finite density, on the user's scale."""
    model = checks.prepare_model(model)
    middle, unravel = ravel_pytree(checks.prepare_theta(theta, model))
    return [
        model.constrained(unravel(_finite(fold_in(key, k), model, middle, unravel, spread)))
        for k, spread in zip(range(number), itertools.cycle(SPREADS), strict=False)
    ]


def _finite(key, model: Model, middle: Array, unravel: Callable, spread: float) -> Array:
    for k in range(TRIES):
        noise = spread * (1 + jnp.abs(middle)) * jax.random.normal(fold_in(key, k), middle.shape)
        there = middle + (noise / 2**k).astype(middle.dtype)
        try:
            checks.check_example(model, unravel(there), weighted=False)
        except ValueError:
            continue
        return there
    return middle


def explored(
    once: Callable, model: Model, starts: list[Tree], key: jax.Array, options: dict[str, Any]
) -> list[FitResult]:
    """A fit from each start, in one program; what they warn of is not about the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if trees.size(model.latent) > LATENTS_UP_TO:  # a step takes seconds: nothing would be won
            return [once(start) for start in starts]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        asked: dict[str, Any] = {"key": key, "axes": {"theta": 0}, "progress": Callback()}
        return list(fit_many(model, stacked, **asked, **options))


def maxima_of(ends: list[FitResult]) -> Maxima:
    """The distinct ones of those that arrived, the highest first."""
    found: list[tuple[FitResult, int]] = []
    arrived = sorted((end for end in ends if _height(end) > -np.inf), key=_height, reverse=True)
    for end in arrived:
        place = next((k for k, (other, _) in enumerate(found) if _are_one(other, end)), None)
        if place is None:
            found.append((end, 1))
        else:
            found[place] = found[place][0], found[place][1] + 1
    evidences = [end.known_evidence for end, _ in found]
    numbers = [trees.numbers_of(end.theta) for end, _ in found]
    return Maxima(
        theta=np.reshape(numbers, (len(found), trees.size(ends[0].theta))),
        log_evidence=np.array([evidence.value for evidence in evidences if evidence]),
        error=np.array([evidence.error for evidence in evidences if evidence]),
        num_starts=np.array([count for _, count in found], float),
        num_lost=len(ends) - len(arrived),
    )


def _height(end: FitResult) -> float:
    """log p where a fit has arrived somewhere."""
    evidence = end.known_evidence
    if evidence is None or end.status not in ARRIVED:
        return -np.inf
    return float(evidence.value)


def _slack(a: FitResult, b: FitResult) -> float:
    errors = [end.known_evidence.error for end in (a, b) if end.known_evidence is not None]
    return 0.01 + HIGHER * float(np.linalg.norm(errors))


def _are_one(a: FitResult, b: FitResult) -> bool:
    """As high, and at the same theta but for numbers that have no standard error."""
    if _height(a) - _height(b) > _slack(a, b):
        return False
    known = a.known_uncertainty
    errors = np.nan if known is None else known.errors(known.covariance)
    apart = np.abs(trees.numbers_of(a.theta) - trees.numbers_of(b.theta))
    return not bool(np.any(apart > SAME * errors))
