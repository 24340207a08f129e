"""Tempered: from a reference to the posterior through intermediate temperatures."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles.trees import Tree
from jalax._reference import tempering
from jalax._reference.references import AtMode, as_reference, check_reference
from jalax._reference.tempering import MALA
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tempered:
    r"""Start from a tempered leg, $q^{1-\beta} p^\beta$ with $\beta$ from 0 to 1.

    Args:
        reference: the normalised q; by default a Student-t on the Laplace mode. A pair
            (sampler, log_density), such as the prior, or `jalax.references.Modes(...)`.
        moves: `jalax.references.MALA()` or `jalax.references.JALA()`.
        cess: the conditional ESS, as a fraction, kept from one temperature to the next.
        pilot_particles: size of the cloud that chooses temperatures and step sizes.
        max_temperatures: a limit; a leg that does not arrive has no evidence (NaN).
    """

    reference: Any = dataclasses.field(default_factory=AtMode)
    moves: Any = dataclasses.field(default_factory=MALA)
    cess: float = dataclasses.field(default=0.8, metadata={"static": True})
    pilot_particles: int = dataclasses.field(default=500, metadata={"static": True})
    max_temperatures: int = dataclasses.field(default=100, metadata={"static": True})

    def check(self, model: Model, theta: Tree) -> None:
        check_reference(self.reference, model, theta)
        tempering.check_moves("Tempered.moves", self.moves)
        arguments.check_fraction("Tempered.cess", self.cess)
        arguments.check_count("Tempered.pilot_particles", self.pilot_particles, 2)
        arguments.check_count("Tempered.max_temperatures", self.max_temperatures, 2)

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        key_prepare, key_pilot, key_leg = jax.random.split(key, 3)
        prepared = as_reference(self.reference).prepare(key_prepare, model, theta)
        plan = tempering.pilot(
            key_pilot,
            model,
            theta,
            prepared,
            num_particles=self.pilot_particles,
            moves=self.moves,
            cess=self.cess,
            max_temperatures=self.max_temperatures,
        )
        leg = tempering.run_leg(
            key_leg, model, theta, prepared, plan, num_particles=num_particles, moves=self.moves
        )
        evidence = jnp.where(plan.reached, leg.log_evidence, jnp.nan)
        # A rough error: each temperature adds 1/CESS - 1/N; `log_evidence` has a better one.
        variance = (plan.num - 1) * (1 / self.cess - 1) / num_particles
        error = jnp.broadcast_to(jnp.sqrt(variance), evidence.shape)
        k_hat = jnp.broadcast_to(tempering.pooled_k(leg.log_descent), evidence.shape)
        return Cloud(leg.particles, leg.log_weights, evidence, error, k_hat)
