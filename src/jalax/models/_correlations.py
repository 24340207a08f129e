r"""How the random effects of a block are correlated: its numbers of theta, a density, draws.

Numbers are c = b / sd, the random effects in units of their standard deviations, (..., q). Each
kind has a root C of its correlations, C C' = R, by which white numbers x become c = C x. What a
kind knows besides theta, distances and the like, is an argument: a part of the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from ._gaussian import LOG_2PI
from ._random_effects import (
    correlations,
    numbers,
    root_of_correlations,
    root_of_numbers,
    substituted,
)

Known = Mapping[str, Any]


def divided(a: Array, by: Array) -> Array:
    """Nothing where there is nothing to divide by."""
    return jnp.where(by == 0, 0.0, a / jnp.where(by == 0, 1.0, by))


class Correlation:
    """Of q numbers; `part` is the entry of theta that its own numbers are in."""

    part: ClassVar[str] = "cor"

    def words(self, effects: tuple[str, ...], over: str) -> tuple[str, ...]:
        """What its numbers are called, without the block; `over` is the factor it runs over."""
        return ()

    def first(self, known: Known) -> np.ndarray:
        """Where a fit starts, on the user's scale."""
        return np.zeros(0)

    def constrain(self, z: Array, size: int) -> Array:
        """The user's numbers from any real ones."""
        return z

    def unconstrain(self, value: Array, size: int) -> Array:
        return value

    def spread(self, value: Array, x: Array, known: Known) -> Array:
        """c from white x."""
        raise NotImplementedError

    def flat(self, value: Array, c: Array, known: Known) -> Array:
        """The inverse of `spread`."""
        raise NotImplementedError

    def log_root(self, value: Array, size: int, known: Known) -> Array:
        """log |C|."""
        raise NotImplementedError

    def log_density(self, value: Array, c: Array, known: Known) -> Array:
        """log N(c; 0, R), added up over all c but the last axis."""
        x, size = self.flat(value, c, known), c.shape[-1]
        each = self.log_root(value, size, known) * (c.size // size)
        return -0.5 * (jnp.sum(x**2) + c.size * LOG_2PI) - each

    def matrix(self, value: np.ndarray, size: int, known: Known) -> np.ndarray:
        """R, in NumPy; what is known of distances has its size."""
        raise NotImplementedError

    def pairs(self, known: Known) -> tuple[np.ndarray, np.ndarray]:
        """Where R^{-1} is not zero, below the diagonal."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Free(Correlation):
    """Any correlations, row by row below the diagonal."""

    size: int

    def words(self, effects, over):
        pairs = ((i, j) for i in range(len(effects)) for j in range(i))
        return tuple(f"cor {effects[j]}, {effects[i]}" for i, j in pairs)

    def first(self, known):
        return np.zeros(self.size * (self.size - 1) // 2)

    def constrain(self, z, size):
        return correlations(root_of_numbers(z, size), z)

    def unconstrain(self, value, size):
        return numbers(root_of_correlations(value, size), value)

    def spread(self, value, x, known):
        root = root_of_correlations(value, x.shape[-1])
        rows = [sum(c * x[..., k] for k, c in enumerate(row)) for row in root]
        return jnp.stack(rows, axis=-1)

    def flat(self, value, c, known):
        root = root_of_correlations(value, c.shape[-1])
        return jnp.stack(substituted(root, c, divided), axis=-1)

    def log_root(self, value, size, known):
        return sum(jnp.log(row[-1]) for row in root_of_correlations(value, size))

    def matrix(self, value, size, known):
        found = np.eye(size)
        found[np.tril_indices(size, -1)] = value
        return found + np.tril(found, -1).T


@dataclasses.dataclass(frozen=True)
class Nil(Correlation):
    """None at all."""

    def spread(self, value, x, known):
        return x

    def flat(self, value, c, known):
        return c

    def log_root(self, value, size, known):
        return jnp.zeros((), value.dtype)

    def matrix(self, value, size, known):
        return np.eye(size)


@dataclasses.dataclass(frozen=True)
class Equal(Correlation):
    """One correlation rho of all pairs, above -1 / (q - 1), by its logit.

    R has the eigenvalue 1 + (q - 1) rho for the mean, and 1 - rho for what differs from it.
    """

    def words(self, effects, over):
        return ("cor",)

    def first(self, known):
        return np.zeros(1)

    def constrain(self, z, size):
        least = -1 / (size - 1)
        return least + (1 - least) * jax.nn.sigmoid(z)

    def unconstrain(self, value, size):
        least = -1 / (size - 1)
        return jnp.log(value - least) - jnp.log(1 - value)

    def _roots(self, value, size):
        return jnp.sqrt(1 + (size - 1) * value[0]), jnp.sqrt(1 - value[0])

    def spread(self, value, x, known):
        of_mean, of_rest = self._roots(value, x.shape[-1])
        mean = jnp.mean(x, axis=-1, keepdims=True)
        return of_mean * mean + of_rest * (x - mean)

    def flat(self, value, c, known):
        of_mean, of_rest = self._roots(value, c.shape[-1])
        mean = jnp.mean(c, axis=-1, keepdims=True)
        return divided(mean, of_mean) + divided(c - mean, of_rest)

    def log_root(self, value, size, known):
        of_mean, of_rest = self._roots(value, size)
        return jnp.log(of_mean) + (size - 1) * jnp.log(of_rest)

    def matrix(self, value, size, known):
        return (1 - value[0]) * np.eye(size) + value[0]


class Chain(Correlation):
    """Each number depends on the one before it: c_k = r_k c_{k-1} + sqrt(1 - r_k^2) x_k.

    `known` has "order", the positions of the numbers along the chain, "place", the inverse, and
    "gap", how far each is from the one before. R^{-1} has three diagonals in that order.
    """

    def neighbours(self, value: Array, gap: Array) -> tuple[Array, Array]:
        """r_k, and 1 - r_k^2."""
        raise NotImplementedError

    def between(self, value: np.ndarray, far: np.ndarray) -> np.ndarray:
        """The correlation of numbers so far from each other, in NumPy."""
        raise NotImplementedError

    def spread(self, value, x, known):
        r, left = self.neighbours(value, jnp.asarray(known["gap"], x.dtype))
        x = jnp.moveaxis(x[..., known["order"]], -1, 0)

        def step(before, now):
            here, r, root = now
            c = r * before + root * here
            return c, c

        _, rest = jax.lax.scan(step, x[0], (x[1:], r, jnp.sqrt(left)))
        c = jnp.concatenate([x[:1], rest])
        return jnp.moveaxis(c, 0, -1)[..., known["place"]]

    def flat(self, value, c, known):
        r, left = self.neighbours(value, jnp.asarray(known["gap"], c.dtype))
        c = c[..., known["order"]]
        rest = divided(c[..., 1:] - r * c[..., :-1], jnp.sqrt(left))
        x = jnp.concatenate([c[..., :1], rest], axis=-1)
        return x[..., known["place"]]

    def log_root(self, value, size, known):
        _, left = self.neighbours(value, jnp.asarray(known["gap"], value.dtype))
        return 0.5 * jnp.sum(jnp.log(left))

    def matrix(self, value, size, known):
        where = np.concatenate([[0.0], np.cumsum(np.asarray(known["gap"], float))])
        where = where[np.asarray(known["place"])]
        return self.between(np.asarray(value, float), np.abs(where[:, None] - where))

    def pairs(self, known):
        order = np.asarray(known["order"])
        return order[1:], order[:-1]


@dataclasses.dataclass(frozen=True)
class Powers(Chain):
    """phi to the number of steps between two: AR(1)."""

    def words(self, effects, over):
        return (f"phi {over}".strip(),)

    def first(self, known):
        return np.full(1, 0.3)

    def constrain(self, z, size):
        return jnp.tanh(z)

    def unconstrain(self, value, size):
        return jnp.arctanh(value)

    def neighbours(self, value, gap):
        r = value[0] ** gap
        return r, (1 - r) * (1 + r)

    def between(self, value, far):
        return value[0] ** np.round(far)


class Ranged(Correlation):
    """With a range, a distance."""

    part = "range"

    def words(self, effects, over):
        return (f"range {over}".strip(),)

    def constrain(self, z, size):
        return jnp.exp(z)

    def unconstrain(self, value, size):
        return jnp.log(value)


@dataclasses.dataclass(frozen=True)
class Decay(Ranged, Chain):
    """exp(-distance / range) along a line."""

    def first(self, known):
        return np.full(1, np.sum(known["gap"]) / 4)

    def neighbours(self, value, gap):
        return jnp.exp(-gap / value[0]), -jnp.expm1(-2 * gap / value[0])

    def between(self, value, far):
        return np.exp(-far / value[0])


# By twice the smoothness: the correlation at a distance in units of the range, Matern's with
# k = 1/2, 3/2 and 5/2, where Bessel's function is a polynomial times exp(-t).
MATERN = {
    1: lambda t, exp: exp(-t),
    3: lambda t, exp: (1 + t) * exp(-t),
    5: lambda t, exp: (1 + t + t**2 / 3) * exp(-t),
}
NUGGET = 16  # roundings, added to the diagonal: neighbours of a smooth field are nearly equal


@dataclasses.dataclass(frozen=True)
class Field(Ranged):
    """By the distances of all pairs, `known["distance"]`."""

    twice: int = 1  # the smoothness

    def first(self, known):
        far = np.asarray(known["distance"])
        return np.full(1, np.median(far[far > 0]) / 2)

    def _root(self, value, known):
        far = jnp.asarray(known["distance"], value.dtype) / value[0]
        size = far.shape[0]
        nugget = NUGGET * jnp.finfo(value.dtype).eps * jnp.eye(size, dtype=value.dtype)
        return jnp.linalg.cholesky(MATERN[self.twice](far, jnp.exp) + nugget)

    def spread(self, value, x, known):
        return jnp.matmul(x, self._root(value, known).T, precision="highest")

    def flat(self, value, c, known):
        rows = c.reshape(-1, c.shape[-1])
        return solve_triangular(self._root(value, known), rows.T, lower=True).T.reshape(c.shape)

    def log_root(self, value, size, known):
        return jnp.sum(jnp.log(jnp.diagonal(self._root(value, known))))

    def matrix(self, value, size, known):
        return MATERN[self.twice](np.asarray(known["distance"], float) / value[0], np.exp)

    def pairs(self, known):
        return np.tril_indices(len(known["distance"]), -1)


@dataclasses.dataclass(frozen=True)
class Given(Correlation):
    """A matrix that is known: `known` has its "precision", a "root", and "log root".

    Its diagonal need not be one: then sd is that of a level with one on the diagonal.
    """

    def spread(self, value, x, known):
        return jnp.matmul(x, jnp.asarray(known["root"], x.dtype).T, precision="highest")

    def log_density(self, value, c, known):
        inside = jnp.matmul(c, jnp.asarray(known["precision"], c.dtype), precision="highest")
        each = jnp.asarray(known["log root"], c.dtype) * (c.size // c.shape[-1])
        return -0.5 * (jnp.sum(c * inside) + c.size * LOG_2PI) - each

    def matrix(self, value, size, known):
        root = np.asarray(known["root"], float)
        return root @ root.T

    def pairs(self, known):
        return np.nonzero(np.tril(known["precision"], -1))
