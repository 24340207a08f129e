"""Legs from the Laplace Gaussian at a fixed theta, as an estimate of the evidence.

For many latents, where importance sampling leaves too few of its draws. Pilot legs, which are not
weighed, say how many temperatures the others take and how many of them there are; their spread is
the error.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence.rounding import rounding
from jalax._evidence.rounds import Budget, Total, average_in_z
from jalax._model.evaluation import ravel_latent
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.pareto import USUAL_LIMIT, pareto_k
from jalax._particles.trees import Tree
from jalax._reference import leg, legs, points
from jalax._reference.compressed import checked_plan
from jalax._reference.mode_search import DENSE_UP_TO
from jalax._runtime.compilation import LEVEL_2_OLD_EMITTERS, Program, fold_in
from jalax._runtime.processes import to_host

LONGEST = 256  # temperatures
PILOTS = 4  # legs, whose own spread is seen too: weights do not tell all of it
MOST_TIMES = 12  # as many replicates as asked for, where their error would be large


def suits(model: Model, budget: Budget) -> bool:
    """Legs can be tried; `Total.trusted` says whether they were good."""
    size = trees.size(model.latent)
    if size <= points.LATENTS_UP_TO or (size > DENSE_UP_TO and model.structure is None):
        return False
    return budget.num_particles is None and budget.max_particles is None and budget.fraction is None


def estimate(key, model: Model, theta: Tree, budget: Budget) -> tuple[Total, int]:
    """Replicates averaged in Z, and how many temperatures they took."""
    if model.structure is not None:
        model = model.replace(plan=checked_plan(model, theta), structure=None)
    example, _ = ravel_latent(model)
    # As those of many groups, the errors of many latents add up.
    usual: Any = budget.filled(model).error
    allowed = budget.error or max(usual, 0.002 * np.sqrt(model.num_groups * example.size))
    modes = jnp.broadcast_to(example, (model.num_groups, example.size))
    replicates, number = budget.num_replicates, leg.NUM_TEMPERATURES
    pilots = min(PILOTS, replicates)

    # One program for the pilots and for all that are weighed.
    def some(which: int, modes, legs_each: int) -> leg.Leg:
        keys = jax.random.split(fold_in(key, which), (model.num_groups, replicates))
        return to_host(_legs(keys, model, theta, modes, _path(number), jnp.int32(legs_each)))

    pilot = some(number, modes, pilots)
    while number < LONGEST and pilot.spread.max() > legs.LARGE_SPREAD:
        number *= 2
        pilot = some(number, pilot.mode[:, 0], pilots)
    # More legs are worth more than longer ones, where none of them varies much.
    needed = _variance_of_one(pilot, pilots) / (replicates * allowed**2)
    times = int(np.clip(np.round(needed), 1, MOST_TIMES))
    found = [some(2 * LONGEST + k, pilot.mode[:, 0], replicates) for k in range(times)]
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *found)
    return _total(model, theta, together), number


def _variance_of_one(pilot: leg.Leg, pilots: int) -> float:
    """Of log p by one leg of each group: as its weights tell, or as the pilots differ."""
    log_p = pilot.log_p[:, :pilots, 0].astype(float)
    told = np.sum(pilot.spread[:, :pilots].mean(axis=1)) / leg.NUM_PARTICLES
    return max(told, np.sum(np.var(log_p, axis=1, ddof=1)) if pilots > 1 else 0.0)


def _path(number: int) -> leg.Path:
    return leg.Path(jnp.asarray(number, jnp.int32), jnp.zeros((), jnp.int32))


def _total(model: Model, theta: Tree, found: leg.Leg) -> Total:
    groups, variance, freedom = average_in_z(np.asarray(found.log_p[..., 0].T, float))
    added = rounding(model, theta, found.mode[:, 0])
    rounded = float(np.finfo(found.mode.dtype).eps * np.abs(groups).sum() / 2)
    if added is not None:
        groups, rounded = groups - added, rounded + float(np.linalg.norm(added))
    weights = np.exp(found.log_weights - found.log_weights.max(axis=-1, keepdims=True))
    ess = weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1) / weights.shape[-1]
    number = found.log_p.shape[1]
    return Total(
        "legs",
        groups,
        variance,
        freedom,
        float(pareto_k(jnp.asarray(found.carried).reshape(1, -1))[0]),
        float(ess.min()),
        number * leg.NUM_PARTICLES,
        number,
        None,
        rounded,
        USUAL_LIMIT,
        float(np.sum(found.laplace[:, 0], dtype=float)),
        USUAL_LIMIT,
    )


_legs = Program(legs.several, small=LEVEL_2_OLD_EMITTERS, large=LEVEL_2_OLD_EMITTERS)
