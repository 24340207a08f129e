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
    given = np.asarray(value)
    kind = jax.dtypes.canonicalize_dtype(given.dtype if dtype is None else dtype)
    return jax.device_put(given.astype(kind))  # a copy: the device may share its memory
