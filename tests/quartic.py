"""A model with steep tails, and a rule for a step size at which they overflow."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

import jalax


@jalax.extend.register_dataclass
@dataclasses.dataclass(frozen=True)
class TooLong:
    """In the place of `jalax.options.PilotStep`: this step size, whatever it does."""

    size: float = dataclasses.field(metadata={"static": True})

    def tune(self, key, model, theta, particles, log_weights, point, preconditioner, kernel):
        return jnp.asarray(self.size, log_weights.dtype)


def log_joint(theta, x, y):
    return -0.5 * (x - theta) ** 2 - x**4 - 0.5 * (y - x) ** 2


def model():
    return jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.linspace(-2.0, 3.0, 20))
