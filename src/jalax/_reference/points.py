"""Quasi-random points, the same for every group but for a random shift of its own.

Up to three latents: a rank-1 lattice, shifted by adding. Beyond: Sobol's net, shifted digit by
digit (exclusive or), which keeps its equidistribution. Both are tables of whole numbers that do not
depend on the key; averages over independent shifts are unbiased, and their spread is the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Key, UInt32

LATTICE_UP_TO = 3  # latents
# Of Cools, Kuo and Nuyens' lattice for any power of two points.
GENERATOR = (1, 182667, 469891)
STUDENT_UP_TO = 6  # latents
BEND = 0.4  # of the tails of the law beyond
LATENTS_UP_TO = 32  # beyond, few points fall where the posterior is
# Of points a group: by the number of latents, up to `STUDENT_UP_TO`, and beyond.
USUAL_NUMBER, USUAL_NUMBER_UP_TO, USUAL_NUMBER_BEYOND = {1: 256, 2: 512}, 1024, 2048
# So many of all groups together, of a lattice, which is nearly exact, and of a net, are enough for
# fewer of each, but not for less than a quarter of them, or than these.
MANY_OF_LATTICE, MANY_OF_NET, FEWEST_OF_NET = 2**17, 2**20, 256
# Of models that integrate within log p, where a point costs as much as many: so many times fewer.
WITHIN, FEWEST = 8, 16


@functools.cache
def table(num: int, dimension: int) -> np.ndarray:
    """(num, dimension) points as whole numbers of 32 bits; `num` is a power of two.

    The first half of them, the first quarter and so on are a lattice or net themselves, and so is
    every other part of that size.
    """
    bits = num.bit_length() - 1
    index = np.arange(num, dtype=np.uint64)
    digits = [(index >> np.uint64(bit)) & np.uint64(1) for bit in range(bits)]
    if dimension <= LATTICE_UP_TO:
        backwards = sum(
            (digit << np.uint64(bits - 1 - k) for k, digit in enumerate(digits)), index * 0
        )
        generator = np.array(GENERATOR[:dimension], np.uint64)
        return (backwards[:, None] * generator % num * (2**32 // num)).astype(np.uint32)
    with resources.files("jalax._reference").joinpath("sobol.npy").open("rb") as file:
        directions = np.load(file, allow_pickle=False)  # (64, 32): Joe and Kuo's, as in SciPy
    found = np.zeros((num, dimension), np.uint32)
    for bit, digit in enumerate(digits):
        chosen = digit.astype(bool)[:, None]
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


def usual_number(dimension: int, num_groups: int, fewer: int = 1) -> int:
    """Of points in each group: of many groups a quarter will do, since their errors average."""
    beyond = USUAL_NUMBER_UP_TO if dimension <= STUDENT_UP_TO else USUAL_NUMBER_BEYOND
    number = USUAL_NUMBER.get(dimension, beyond)
    is_lattice = dimension <= LATTICE_UP_TO
    fewest, many = (number // 4, MANY_OF_LATTICE) if is_lattice else (FEWEST_OF_NET, MANY_OF_NET)
    while number > fewest and num_groups * number > many:
        number //= 2
    return number if fewer == 1 else max(number // fewer, FEWEST)


def power_of_two(number: int) -> int:
    """The largest that is not more."""
    return 1 << (number.bit_length() - 1)


class Law(NamedTuple):
    """The distribution of each coordinate of a point, the coordinates independent."""

    quantile: Callable[[Array], Array]
    log_density: Callable[[Array], Array]


def law_for(dimension: int) -> Law:
    """Student's t, whose tails cover those of any prior; where it would miss, one nearer a bell.

    In more dimensions than a few most points of a Student-t lie outside of a bell.
    """
    return STUDENT if dimension <= STUDENT_UP_TO else SINH


def student_quantile(u: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Of Student's t with 4 degrees of freedom: 2 sqrt(c / r - 1), r = sqrt(4 u (1 - u)).

    c = 1 - d is cos(arccos(r) / 3), the root near one of 4 c^3 - 3 c = r. Newton's method finds d
    from a parabola, in less time than an arccos takes, and loses no digits where t is small.
    """
    r = jnp.sqrt(4 * u * (1 - u))
    left = (1 - 2 * u) ** 2 / (1 + r)  # 1 - r = 9 d - 12 d^2 + 4 d^3
    d = left * (1 / 9 + (8 / 9 - 3**0.5 / 2) * left)
    for _ in range(3):  # 1e-3 off at first, then 1e-6, 1e-12, 1e-24
        d = d - (d * (9 - d * (12 - 4 * d)) - left) / (9 - d * (24 - 12 * d))
    return jnp.sign(u - 0.5) * 4 * jnp.sqrt(d * (1 - d) * (2 - d) / r)


def student_log_density(t: Float[Array, "*any"]) -> Float[Array, "*any"]:
    return float(np.log(3 / 8)) - 2.5 * jnp.log1p(t * t / 4)


def sinh_quantile(u: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Of sinh(b z) / b, z normal: a bell in the middle, whose tails are those of exp(b z).

    Against a normal density its weights are bounded, and 99 % of the points count; of a Student-t
    with 4 degrees 94 %. Over twenty latents that makes 80 % and 32 %.
    """
    return jnp.sinh(BEND * norm.ppf(u)) / BEND


def sinh_log_density(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    z = jnp.arcsinh(BEND * x) / BEND
    return norm.logpdf(z) - jnp.log1p((BEND * x) ** 2) / 2


STUDENT = Law(student_quantile, student_log_density)
SINH = Law(sinh_quantile, sinh_log_density)
