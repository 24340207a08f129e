r"""Gaussian noise: the numbers of `jax.random.normal`, sooner.

On a CPU JAX makes random bits in a loop of five rounds, each with copies of its own, which for a
thousand particles takes longer than the rest of the noise. Written out, the rounds are one pass
over the numbers. In float64 XLA then spends most of its time in one scalar logarithm and three
polynomials for erf^-1, of which the last two serve one number in a thousand: here a logarithm that
the compiler can vectorise, and one quotient of polynomials, do. What is gained: `python
benchmarks/kernels.py`. The numbers are the same (tests/_runtime/test_normals.py): to the bit in
float32, to 14 digits in float64, where XLA has 10 in the tails (`python reliability/erf_inv.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

# Threefry-2x32 with 20 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
THREEFRY = "threefry2x32"  # JAX's name of it

# 1 / x between 1 + 1/sqrt 2 and 1 + sqrt 2, up to 0.0013.
NEAR_RECIPROCAL = (1.47775591, -0.72244411, 0.11686289)
# erf^-1(u) / u as P(w) / Q(w) for 0 <= w <= 37, all that float64 can ask for. Found by
# reliability/erf_inv.py. They are positive: nothing cancels.
P = (
    0.8862269254527578,
    0.3367165112049042,
    0.09275864741510632,
    0.018244034490990785,
    0.002742852903422463,
    0.0003258226887116188,
    3.0675577272949745e-05,
    2.284229184589885e-06,
    1.3500597681479194e-07,
    6.3486570133538336e-09,
    2.1213737107751705e-10,
    4.11630380495583e-12,
    1.41665735430259e-14,
)
Q = (
    1.0,
    0.11814450866151667,
    0.06070472832268853,
    0.005788944170921719,
    0.001244107781924473,
    9.092709156434608e-05,
    1.012652204422985e-05,
    5.362884712068127e-07,
    3.3561498199016564e-08,
    1.1757478800612739e-09,
    3.5078545849596454e-11,
    3.18232432535821e-13,
    2.7771734780816303e-16,
)


def normal(key: Key[Array, ""], shape: tuple[int, ...], dtype: np.dtype) -> Float[Array, "..."]:
    """Standard normal numbers: `jax.random.normal(key, shape, dtype)`."""
    if not is_plain(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    return from_words(*threefry(jax.random.key_data(key), _count(shape)), dtype)


def is_plain(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """JAX's default generator, and a float whose bits are one or both of its words."""
    return (
        dtype in (np.float32, np.float64)
        and math.prod(shape) < 2**32
        and getattr(jax.config, "jax_threefry_partitionable", False)
        and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
        and str(jax.random.key_impl(key)) == THREEFRY
    )


def from_words(first: Array, second: Array, dtype: np.dtype) -> Float[Array, "..."]:
    """A standard normal number from two random words."""
    inverse = lax.erf_inv if dtype == np.float32 else erf_inv
    return inverse(_uniform(first, second, dtype)) * np.array(np.sqrt(2), dtype)


def erf_inv(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """erf^-1 in float64, -1 < u < 1: u P(w) / Q(w), w = -log(1 - u^2), off by 1e-14 at most."""
    w = -_log((1 - u) * (1 + u))
    return u * _polynomial(P, w) / _polynomial(Q, w)


def _log(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """log y in float64, of a normal positive number, up to about 1e-16 (1 + |log y|).

    y = 2^e m with m between 1/sqrt 2 and sqrt 2, and log m = 2 artanh s with s = (m-1) / (m+1),
    whose series needs eleven terms where |s| < 0.172.
    """
    bits = lax.bitcast_convert_type(y, np.int64)
    e = (bits - np.sqrt(0.5).view(np.int64)) >> np.int64(52)
    m = lax.bitcast_convert_type(bits - (e << np.int64(52)), np.float64)
    s = (m - 1) * _reciprocal(m + 1)
    series = _polynomial([1 / (2 * k + 1) for k in range(11)], s * s)
    return e.astype(np.float64) * math.log(2) + 2 * s * series


def _reciprocal(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / x by Newton's iteration, each round of which squares the error.

    A division would have XLA cut the loop over the numbers in two, and draw the words in both.
    """
    r = _polynomial(NEAR_RECIPROCAL, x)
    for _ in range(3):
        r = r * (2 - x * r)
    return r


def _polynomial(coefficients: Sequence[float], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """By Horner's rule; the constant comes first."""
    *rest, last = coefficients
    value = jnp.full_like(x, last)
    for c in reversed(rest):
        value = value * x + c
    return value


def _uniform(first: Array, second: Array, dtype: np.dtype) -> Float[Array, "..."]:
    """Between -1 and 1, both excluded."""
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


def threefry(key: UInt32[Array, "2"], count: UInt32[Array, "..."]) -> tuple[Array, Array]:
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
