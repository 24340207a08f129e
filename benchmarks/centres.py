"""Legs from the centre of the posterior, and from its mode: how much one leg varies.

At the reference's theta of the book's problems with one large latent, 24 legs of 256 particles in
16 steps each way, as `jalax.log_evidence` takes them: the standard deviation of log Z by one leg,
and what the weights of a leg tell of it. Float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import Row, machine, quick, seconds, write

from jalax._model import checks
from jalax._model.evaluation import ravel_latent
from jalax._reference import leg, legs
from jalax._reference.compressed import checked_plan
from jalax._runtime.blas import one_thread
from jalax._runtime.compilation import LEVEL_2_OLD_EMITTERS, Jit
from jalax.problems._catalogue import get

PROBLEMS = ("spatial", "crossed_120", "verbagg", "finpines", "pound_dollar", "crossed_1000")
LEGS = 4 if quick() else 24
ROUNDS = {"centre": leg.ROUNDS_BEFORE, "mode": 1}  # before a leg: without two, it has no centre


def legs_of(name: str) -> Callable[[], legs.Leg]:
    problem = get(name)
    known = problem.theta if problem.reference.theta is None else problem.reference.theta
    model = checks.prepare_model(problem.model)
    theta = checks.prepare_theta(jax.tree.map(jnp.asarray, known), model, least=0)
    if model.structure is not None:
        model = model.replace(plan=checked_plan(model, theta), structure=None)
    keys = jax.random.split(jax.random.key(0), (1, LEGS))
    path = leg.Path(jnp.asarray(leg.NUM_TEMPERATURES), jnp.asarray(0))
    program = Jit(legs.several, LEVEL_2_OLD_EMITTERS)
    return lambda: program(keys, model, theta, ravel_latent(model)[0][None], path, LEGS)


def row(name: str) -> Row:
    found: dict[str, Any] = {"problem": name}
    for start, rounds in ROUNDS.items():
        leg.ROUNDS_BEFORE = rounds
        run = legs_of(name)
        legs_found = run()
        log_p = np.asarray(legs_found.log_p[0, :, 0], float)
        told = np.sqrt(np.mean(legs_found.spread) / leg.NUM_PARTICLES)
        found[f"sd from the {start}"] = float(np.std(log_p, ddof=1))
        found[f"told, {start}"] = float(told)
        found[f"s a leg, {start}"] = seconds(run) / LEGS
    found["variance divided by"] = (found["sd from the mode"] / found["sd from the centre"]) ** 2
    return found


def main() -> None:
    rows = []
    with one_thread():
        for name in PROBLEMS[:2] if quick() else PROBLEMS:
            rows.append(row(name))
            print(rows[-1], flush=True)
    write("centres", [__doc__.strip(), rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
