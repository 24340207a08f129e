"""Matrix products in full float32, which JAX rounds to TF32 on NVIDIA GPUs.

An error of 1e-3 is not small in a log-weight: those of 900 latents add up to 0.07. `precision=` of
a product goes before, and so does JAX's own switch, `jax.default_matmul_precision`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def in_full(function: Callable) -> Callable:
    """The function, whose products are in full unless JAX's switch says otherwise."""

    @functools.wraps(function)
    def traced(*args, **kwargs):
        config: Any = jax.config
        asked = config.jax_default_matmul_precision
        with jax.default_matmul_precision(asked or "highest"):
            return function(*args, **kwargs)

    return traced
