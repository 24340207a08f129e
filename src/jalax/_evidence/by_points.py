"""Passes of quasi-random points at a fixed theta, as an estimate of the evidence.

The cheapest route, and the most accurate where a group has few latents: `log_evidence` tries it
first, and `Scoring` ends with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax._evidence.rounding import rounding
from jalax._evidence.rounds import Budget, Total, simulation_errors
from jalax._model.algorithm import Measurement
from jalax._model.evaluation import ravel_latent
from jalax._model.frequencies import counted_measurement
from jalax._model.information import Moments
from jalax._model.model import Model
from jalax._particles import trees, weight_math
from jalax._particles.pareto import NO_VARIANCE, USUAL_LIMIT, host_pareto_k
from jalax._particles.trees import Tree
from jalax._reference import group_points, points
from jalax._reference.group_points import Sums
from jalax._runtime.compilation import (
    LEVEL_0_OLD_EMITTERS,
    LEVEL_2,
    LEVEL_2_OLD_EMITTERS,
    Program,
    fold_in,
)

LARGE = 10.0  # times the mean: smaller weights are no tail


class _Passes(NamedTuple):
    """Of all passes so far; the base is the first one."""

    modes: Float[Array, "G D"]
    base: Float[Array, " G"]
    log_weights: Float[Array, "G N"]
    sums: Sums
    laplace: Float[Array, " G"]


def suits(model: Model, budget: Budget) -> bool:
    """Points can be tried, within this budget; `Total.trusted` says whether they were good."""
    size = trees.size(model.latent)
    if size > points.LATENTS_UP_TO or budget.num_particles is not None:
        return False
    draws = points.usual_number(size, model.num_groups) * budget.num_replicates
    return budget.max_particles is None or draws <= budget.max_particles


def estimate(key, model: Model, theta: Tree, budget: Budget) -> Total | None:
    """Passes until the errors are small enough; None where the points cannot be trusted.

    Or where they cannot give the error that the other routes would.
    """
    error = budget.error or group_points.error_aimed_at(model)
    passes, flat = _no_passes(model, theta), ravel_pytree(theta)[0]
    for k in range(group_points.MOST_ROUNDS):
        keys = jax.random.split(fold_in(key, k), budget.num_replicates)
        passes = _measure(keys, model, theta, passes, budget.fraction is not None)
        sums, log_weights = passes.sums, passes.log_weights
        seen = group_points.measured(
            sums, passes.base, flat, passes.modes, log_weights, passes.laplace
        )
        seen = counted_measurement(model, seen)
        if k == 0:
            added = rounding(model, theta, seen.modes)
        total = total_of(seen, added, budget.fraction is not None)
        if not total.trusted or not np.isfinite(total.error):
            return None
        if total.error <= error and _is_clear(total, budget):
            return total
    allowed: Any = budget.filled(model).error
    return total if total.error <= allowed else None


def _is_clear(total: Total, budget: Budget) -> bool:
    """theta's simulation error is as small as asked for."""
    if total.moments is None or budget.fraction is None:
        return True
    return simulation_errors(total.moments)[0] <= budget.fraction


def total_of(seen: Measurement, added: np.ndarray | None, scores: bool = True) -> Total:
    """The evidence of a measurement, without what float32 has `added` to log_joint.

    That is known at the modes, see `rounding`; elsewhere it may be as large, with either sign, and
    half a unit in the last place of log p may have the same sign in every group.
    """
    eps, size = float(np.finfo(seen.modes.dtype).eps), np.abs(seen.groups)
    if added is None:
        added, rounded = np.zeros_like(seen.groups), 8 * eps * float(size.sum())
    else:
        rounded = float(np.linalg.norm(added) + eps / 2 * size.sum())
    ess = float(_lowest_ess(seen.log_weights)) / seen.log_weights.shape[1]
    parts: Any = (seen.score, seen.noise, seen.complete, seen.missing, seen.missing[None])
    number, num_points = seen.num_measured, seen.log_weights.shape[1]
    return Total(
        "points" if seen.num_temperatures == 1 else "legs",
        seen.groups - added,
        seen.variance,
        _freedom(seen.variance, number, rounded),
        _k_hat(seen.pooled),
        ess,
        number * num_points,
        number,
        Moments(*parts) if scores else None,
        rounded,
        NO_VARIANCE,  # their errors come from independent shifts, not from the weights alone
        seen.laplace,
        NO_VARIANCE if seen.num_temperatures == 1 else USUAL_LIMIT,  # moves make up for some tail
    )


def _k_hat(pooled: np.ndarray) -> float:
    """Of the weights, groups pooled.

    Many weights near a largest one are no tail, though no Pareto distribution fits them either.
    """
    k_hat = host_pareto_k(pooled)
    return k_hat if np.max(pooled) > np.log(LARGE) else min(k_hat, 0.0)


def _freedom(variance: np.ndarray, number: int, rounded: float) -> float:
    """By Satterthwaite over the groups; rounding counts as known."""
    total = variance.sum()
    if not total > 0:
        return np.inf
    freedom = (number - 1) * total**2 / np.sum(variance**2)
    return float(freedom * (1 + rounded**2 / total) ** 2)


# --- the compiled parts -----------------------------------------------------------------------


def _of_the_worst(log_weights: Float[Array, "G N"]) -> Float[Array, ""]:
    return jnp.min(weight_math.effective_sample_size(weight_math.normalise(log_weights)))


_lowest_ess = Program(_of_the_worst, small=LEVEL_0_OLD_EMITTERS, large={})


def _nothing(model: Model, theta: Tree) -> _Passes:
    flat, (example, _) = ravel_pytree(theta)[0], ravel_latent(model)
    groups = model.num_groups
    number = points.usual_number(example.size, groups)
    log_weights = jnp.zeros((groups, number), example.dtype)
    modes = jnp.broadcast_to(example, (groups, example.size))
    flat = flat.astype(jnp.result_type(flat, example))
    sums = group_points.no_sums(groups, number, flat)
    return _Passes(modes, log_weights[:, 0], log_weights, sums, log_weights[:, 0])


_no_passes = Program(_nothing, small=LEVEL_0_OLD_EMITTERS, large={})


def _passes_at(keys, model: Model, theta: Tree, passes: _Passes, scores: bool) -> _Passes:
    num = passes.log_weights.shape[1]

    def one(before: _Passes, key) -> tuple[_Passes, None]:
        seen = group_points.look(key, model, theta, before.modes, num, scores)
        base = jnp.where(before.sums.number == 0, seen.log_p, before.base)
        sums = group_points.added(before.sums, base, seen)
        return _Passes(seen.modes, base, seen.log_weights, sums, seen.laplace), None

    return lax.scan(one, passes, keys)[0]


_measure = Program(
    _passes_at, small=LEVEL_2_OLD_EMITTERS, large=LEVEL_2, static_argnames=("scores",)
)
