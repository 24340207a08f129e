"""Arrays for the device, of what the host has, without a program.

`jnp.asarray` compiles one for each shape, which takes longer than all else it does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

OF_HOST = (np.ndarray, np.generic, bool, int, float)


def as_array(value: Any, dtype: Any = None) -> jax.Array:
    """`jnp.asarray(value, dtype)`, but never weakly typed where it comes from the host."""
    if not isinstance(value, OF_HOST):
        return jnp.asarray(value, dtype)
    kind = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
    return jax.device_put(np.array(value, kind))  # a copy: the array may share its memory
