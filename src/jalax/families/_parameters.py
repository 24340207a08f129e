"""A family's own parameters: where they may lie, and where a fit starts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


@dataclasses.dataclass(frozen=True)
class Positive:
    """Any positive number, by its logarithm."""

    first: float = 1.0

    def constrain(self, z: Array) -> Array:
        return jnp.exp(z)

    def unconstrain(self, value: Any) -> Array:
        return jnp.log(value)


@dataclasses.dataclass(frozen=True)
class Between:
    """Between two numbers, by its logit."""

    low: float
    high: float
    first: float

    def constrain(self, z: Array) -> Array:
        return self.low + (self.high - self.low) / (1 + jnp.exp(-z))

    def unconstrain(self, value: Any) -> Array:
        return jnp.log(value - self.low) - jnp.log(self.high - value)


@dataclasses.dataclass(frozen=True)
class Increasing:
    """Numbers in increasing order, by the first of them and the logarithms of the gaps."""

    def constrain(self, z: Array) -> Array:
        return jnp.cumsum(jnp.concatenate([z[:1], jnp.exp(z[1:])]))

    def unconstrain(self, value: Any) -> Array:
        value = jnp.asarray(value)
        return jnp.concatenate([value[:1], jnp.log(jnp.diff(value))])


@dataclasses.dataclass(frozen=True)
class Above:
    """More than some number, by the logarithm of the difference."""

    least: float
    first: float

    def constrain(self, z: Array) -> Array:
        return self.least + jnp.exp(z)

    def unconstrain(self, value: Any) -> Array:
        return jnp.log(value - self.least)
