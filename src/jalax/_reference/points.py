"""Quasi-random points, the same for every group but for a random shift of its own.

Up to three latents: a rank-1 lattice, shifted by adding. Beyond: Sobol's net, shifted digit by
digit (exclusive or), which keeps its equidistribution. Both are tables of whole numbers that do not
depend on the key; averages over independent shifts are unbiased, and their spread is the error.
"""

from __future__ import annotations

import functools
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

LATTICE_UP_TO = 3  # latents
# Of Cools, Kuo and Nuyens' lattice for any power of two points.
GENERATOR = (1, 182667, 469891)


@functools.cache
def table(num: int, dimension: int) -> np.ndarray:
    """(num, dimension) points as whole numbers of 32 bits; `num` is a power of two."""
    index = np.arange(num, dtype=np.uint64)[:, None]
    if dimension <= LATTICE_UP_TO:
        generator = np.array(GENERATOR[:dimension], np.uint64)
        return (index * generator % num * (2**32 // num)).astype(np.uint32)
    with resources.files("jalax._reference").joinpath("sobol.npy").open("rb") as file:
        directions = np.load(file, allow_pickle=False)  # (64, 32): Joe and Kuo's, as in SciPy
    found = np.zeros((num, dimension), np.uint32)
    for bit in range(num.bit_length() - 1):
        chosen = ((index >> np.uint64(bit)) & np.uint64(1)).astype(bool)
        found ^= np.where(chosen, directions[:dimension, bit], 0).astype(np.uint32)
    return found


def uniforms(
    key: Key[Array, ""], num: int, dimension: int, dtype: jnp.dtype
) -> Float[Array, "N D"]:
    """The points of one group, with its own shift, in (0, 1) and as near to 0 as to 1."""
    shift: UInt32[Array, " D"] = jax.random.bits(key, (dimension,), jnp.uint32)
    points = jnp.asarray(table(num, dimension))
    points = points + shift if dimension <= LATTICE_UP_TO else points ^ shift
    kept = 23 if dtype == jnp.float32 else 32  # the middle of each cell has one digit more
    cells = (points >> (32 - kept)).astype(dtype)
    return (cells + 0.5) * dtype.type(2.0**-kept)


def student_quantile(u: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Of Student's t with 4 degrees of freedom, in closed form."""
    a = 4 * u * (1 - u)
    root = jnp.sqrt(a)
    q = jnp.cos(jnp.arccos(jnp.minimum(root, 1.0)) / 3) / root
    return jnp.sign(u - 0.5) * 2 * jnp.sqrt(jnp.maximum(q - 1, 0.0))


def student_log_density(t: Float[Array, "*any"]) -> Float[Array, "*any"]:
    return float(np.log(3 / 8)) - 2.5 * jnp.log1p(t * t / 4)
