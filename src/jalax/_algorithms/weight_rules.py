r"""What JALA-EM does with weights that have grown too uneven: `weights=`.

In high dimension the log-weights of a step differ by more than any number of particles can
bear. An object here takes the log-weights A after a step and gives back those to go on with.
Exact ones keep $E[e^A] = Z_k / Z_0$ (paper, Proposition 1); the others trade it for particles
that stay many, and the path then carries no evidence.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jalax._particles import weight_math
from jalax._runtime.nodes import register_dataclass

TRIALS = 16


class Softened(NamedTuple):
    log_weights: Float[Array, "G N"]
    exponent: Float[Array, " G"]  # lambda of e^(lambda A); 1: nothing was changed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ExactWeights:
    """The weights as they are.

    Args:
        dtype: `jnp.float64` keeps the log-weights and the evidence in double precision beside a
            model in float32. JAX must have 64 bits enabled; data, theta and latents stay float32
            if they are given so. By default the precision of what log_joint returns.
    """

    dtype: Any = dataclasses.field(default=None, metadata={"static": True})
    exact = True

    def check(self, resample_below: float) -> None:
        if self.dtype is None:
            return
        if not jnp.issubdtype(self.dtype, jnp.floating):
            raise TypeError(
                f"ExactWeights.dtype must be a float type such as jnp.float64, got {self.dtype!r}."
            )
        if jnp.dtype(self.dtype) != jax.dtypes.canonicalize_dtype(self.dtype):
            raise ValueError(
                "ExactWeights(dtype=jnp.float64) needs JAX's 64 bits: write "
                "jax.config.update('jax_enable_x64', True) first, and give data, theta and latent "
                "as float32 arrays to keep the model in float32."
            )

    def soften(self, log_weights: Float[Array, "G N"]) -> Softened:
        return Softened(log_weights, jnp.ones_like(log_weights[:, 0]))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TemperedWeights:
    r"""$e^{\lambda A}$ with the largest $\lambda \le 1$ that keeps ESS at `ess` N, by group.

    The floor is how many particles predictions are averaged over. 0.8 was chosen (among 0.5, 0.8
    and 0.95) on the networks of `jalax reproduce neural-network` with the splits of seeds 3 and 4.

    Args:
        ess: the floor of the effective sample size, a fraction of N between 0 and 1. JALA-EM's
            `resample_below` must not be above it, or every step would resample.
    """

    ess: float = 0.8
    exact = False
    dtype = None

    def check(self, resample_below: float) -> None:
        if not 0 < float(self.ess) < 1:
            raise ValueError(
                f"TemperedWeights.ess is a fraction of the particles, above 0 and below 1, got "
                f"{self.ess}."
            )
        if resample_below > float(self.ess):
            raise ValueError(
                f"TemperedWeights(ess={float(self.ess)}) keeps the ESS at this fraction of N, and "
                f"resample_below={resample_below} would resample at every step: set it to "
                f"{float(self.ess)} or less."
            )

    def soften(self, log_weights: Float[Array, "G N"]) -> Softened:
        alive = jnp.isfinite(log_weights)
        # Among the living: with fewer of them than the floor no exponent but 0 would do.
        floor = jnp.minimum(self.ess * log_weights.shape[1], 0.999 * jnp.sum(alive, axis=1))

        def enough(exponent: Float[Array, "G T"]) -> Bool[Array, "G T"]:
            scaled = jnp.where(alive[:, None], exponent[..., None] * log_weights[:, None], -jnp.inf)
            ess = weight_math.effective_sample_size(weight_math.normalise(scaled))
            return ess >= floor[:, None]

        # The logarithm of lambda, from where log-weights differ by a thousandth at most, up to 0:
        # four rounds of TRIALS at once (on a GPU they take the time of one) leave 3e-4 of it.
        spread = jnp.max(jnp.where(alive, log_weights, -jnp.inf), axis=1) - jnp.min(
            jnp.where(alive, log_weights, jnp.inf), axis=1
        )
        low = -jnp.log(1e3 * jnp.clip(spread, 1e-3, None))
        high = jnp.zeros_like(low)
        fractions = jnp.linspace(0, 1, TRIALS, dtype=low.dtype)
        for _ in range(4):
            trials = low[:, None] + (high - low)[:, None] * fractions
            last = jnp.sum(enough(jnp.exp(trials)), axis=1) - 1  # ESS falls as lambda grows
            low = jnp.take_along_axis(trials, jnp.maximum(last, 0)[:, None], axis=1)[:, 0]
            next_one = jnp.minimum(last + 1, TRIALS - 1)[:, None]
            high = jnp.take_along_axis(trials, next_one, axis=1)[:, 0]
        exponent = jnp.exp(low)
        return Softened(jnp.where(alive, exponent[:, None] * log_weights, -jnp.inf), exponent)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ClippedWeights:
    r"""Truncated importance weights, $\min(w, \bar w \sqrt N)$ (Ionides, 2008), by group."""

    exact = False
    dtype = None

    def check(self, resample_below: float) -> None:
        """There is nothing to set."""

    def soften(self, log_weights: Float[Array, "G N"]) -> Softened:
        num = log_weights.shape[1]
        most = weight_math.log_mean_exp(log_weights)[:, None] + 0.5 * jnp.log(num)
        return Softened(jnp.minimum(log_weights, most), jnp.ones_like(log_weights[:, 0]))
