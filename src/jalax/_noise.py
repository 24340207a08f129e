r"""Gaussian noise: the numbers of `jax.random.normal`, sooner.

On a CPU JAX makes random bits in a loop of five rounds, each with copies of its own, which for a
thousand particles takes longer than the rest of the noise. Written out, the rounds are one pass
over the numbers: four times as fast for 1,500 of them, a tenth to a third for many, and compiled
sooner (`python benchmarks/kernels.py`). The numbers are the same, to the bit (tests/test_noise.py).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

# Threefry-2x32 with 20 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def normal(key: Key[Array, ""], shape: tuple[int, ...], dtype: np.dtype) -> Float[Array, "..."]:
    """Standard normal numbers: `jax.random.normal(key, shape, dtype)`."""
    if not _is_plain(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    return lax.erf_inv(_uniform(key, shape, dtype)) * np.array(np.sqrt(2), dtype)


def _is_plain(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """JAX's default generator, and a float whose bits are one or both of its words."""
    return (
        dtype in (np.float32, np.float64)
        and math.prod(shape) < 2**32
        and getattr(jax.config, "jax_threefry_partitionable", False)
        and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
        and str(jax.random.key_impl(key)) == "threefry2x32"
    )


def _uniform(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Float[Array, "..."]:
    """Between -1 and 1, both excluded."""
    first, second = _threefry(jax.random.key_data(key), _count(shape))
    if dtype == np.float32:
        bits: Array = first ^ second
    else:
        bits = (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)
    # The mantissa of a number between 1 and 2.
    word, mantissa = bits.dtype.type, jnp.finfo(dtype).nmant
    bits = (bits >> word(8 * dtype.itemsize - mantissa)) | np.array(1.0, dtype).view(word)
    fraction = lax.bitcast_convert_type(bits, dtype) - np.array(1.0, dtype)
    low = np.nextafter(np.array(-1.0, dtype), np.array(0.0, dtype))
    return jnp.maximum(low, fraction * (np.array(1.0, dtype) - low) + low)


def _count(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """0, 1, 2, ... in the order of memory."""
    return lax.iota(np.uint32, math.prod(shape)).reshape(shape)


def _threefry(key: UInt32[Array, "2"], count: UInt32[Array, "..."]) -> tuple[Array, Array]:
    """Two random words for each number that is counted, of which the upper word is 0."""
    keys = key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY)
    x, y = jnp.broadcast_to(keys[0], count.shape), count + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(block + 1) % 3]
        y = y + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x, y
