"""Every algorithm on a plain and a grouped model, on a mesh or not; also a script for processes.

python -m jalax.launch --processes 2 tests/multidevice/fits.py OUT.npz [ALGORITHM ...]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jalax

sys.path.insert(0, str(Path(__file__).parents[1]))
import algorithms
from algorithms import ALGORITHMS

GROUPS, PARTICLES, STEPS = 8, 16, 200
FEWER = {"CoinEM": 30}  # its path is unstable here: a rounding error grows tenfold in seven steps
CASES = [(name, kind) for name in ALGORITHMS for kind in ("plain", "grouped")]


def cases(names: list[str]) -> list[tuple[str, str]]:
    """All cases of some algorithms; of none, all."""
    return [case for case in CASES if not names or case[0] in names]


def model(kind: str) -> jalax.Model:
    """The model of THE table; grouped: eight groups instead of two."""
    if kind == "plain":
        return algorithms.model()
    rng = np.random.default_rng(1)
    data = {
        "y": jnp.array(rng.normal(size=(GROUPS, 3))),
        "scale": jnp.array(rng.uniform(0.5, 1.5, size=GROUPS)),
    }
    latent = algorithms.model().latent
    return jalax.GroupedModel(algorithms.log_joint, latent, data, theta=algorithms.theta())


def particles(kind: str) -> Any:
    rng = np.random.default_rng(2)
    lead = (PARTICLES,) if kind == "plain" else (GROUPS, PARTICLES)
    return {"a": jnp.array(rng.normal(size=(*lead, 2))), "b": jnp.array(rng.normal(size=lead))}


def algorithm(name: str, kind: str) -> Any:
    """Of THE table, whose step sizes suit two groups.

    A plain gradient step on theta that suits two groups is too long for eight: its path is unstable
    (on one device, particles changed by 1e-15 change theta by 2e-9 after 200 steps).
    """
    chosen: Any = ALGORITHMS[name]
    if kind == "grouped" and name in ("PGD", "IPLA"):
        return dataclasses.replace(chosen, step_size=chosen.step_size * 2 / GROUPS)
    return chosen


def fit(name: str, kind: str, mesh: Any = None, num_steps: int | None = None, **options) -> Any:
    num_steps = num_steps or FEWER.get(name, STEPS)
    return fit_with(algorithm(name, kind), kind, mesh, num_steps, **options)


def fit_with(chosen: Any, kind: str, mesh: Any, num_steps: int, **options) -> Any:
    finds_them = chosen.finds_its_particles
    return jalax.fit(
        model(kind),
        key=jax.random.key(3),
        algorithm=chosen,
        start=None if finds_them else jalax.Given(particles(kind)),
        num_particles=PARTICLES if finds_them else None,
        num_steps=num_steps,
        mesh=mesh,
        **options,
    )


def mesh_for(kind: str) -> jax.sharding.Mesh:
    """Particles over all devices; of the grouped model over two, and groups over the others."""
    count = jax.device_count()
    if kind == "plain":
        return jax.make_mesh((count,), ("particles",))
    return jax.make_mesh((count // 2, 2), ("groups", "particles"))


def numbers(result: Any) -> dict[str, np.ndarray]:
    """What must not depend on the devices."""
    out = {f"theta.{k}": np.asarray(v) for k, v in result.history["theta"].items()}
    out["log_evidence"] = np.asarray(result.history.get("log_evidence", []))
    out["particles"] = np.asarray(jalax.runtime.to_host(result.particles)["a"])
    return out


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    every = {}
    for name, kind in cases(sys.argv[2:]):
        found = numbers(fit(name, kind, mesh_for(kind)))
        every.update({f"{name} {kind} {key}": value for key, value in found.items()})
    if jax.process_index() == 0:
        np.savez(sys.argv[1], **every)
