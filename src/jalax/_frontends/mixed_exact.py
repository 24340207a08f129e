"""The random effects given the data of a Gaussian model: in closed form, they are Gaussian."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from jalax._fit.result import FitResult
from jalax._frontends.mixed_parts import (
    Levels,
    Parts,
    Theta,
    covariance_of,
    first_positions,
    has_joint_levels,
    numbers,
    parts_of,
    size_of,
)
from jalax.models import _new_rows
from jalax.models._mixed import MixedDesign


class Exact:
    """Of a Gaussian model: b | y is Gaussian."""

    def __init__(self, result: FitResult, mixed: MixedDesign):
        self.theta, self.mixed = numbers(result.theta), mixed
        self.mean, self.covariance, self.of_beta = _solved(self.theta, mixed)

    def levels(self) -> Levels:
        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        sd = np.sqrt(np.maximum(variance, 0.0))
        return Levels(self.mean, sd, np.zeros_like(sd))

    def moments(self, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
        group, position, z = parts
        mean = np.sum(z * self.mean[group[:, None], position], axis=1)
        pairs = self.covariance[group[:, None, None], position[:, :, None], position[:, None, :]]
        return mean, np.einsum("nk,nkl,nl->n", z, pairs, z)

    def slopes(self, parts: Parts) -> np.ndarray:
        group, position, z = parts
        return np.einsum("nk,nkp->np", z, self._slopes()[group[:, None], position])

    def average(self, of: Callable, base: np.ndarray, parts: Parts) -> np.ndarray:
        return base + self.moments(parts)[0]  # the link is the identity

    def draw(self, key: jax.Array) -> np.ndarray:
        noise = np.asarray(jax.random.normal(key, self.mean.shape), float)
        return self.mean + np.einsum("gij,gj->gi", root_of(self.covariance), noise)

    def _slopes(self) -> np.ndarray:
        """(G, D, P): of beta exactly, of the others by central differences in float64."""
        flat, unravel = ravel_float64(self.theta)
        fixed = self.of_beta.shape[2]
        columns = [self.of_beta]
        for i in range(fixed, flat.size):
            step = 1e-4 * max(abs(flat[i]), 1e-4)
            ends = []
            for side in (1, -1):
                moved = flat.copy()
                moved[i] += side * step
                ends.append(_solved(unravel(moved), self.mixed)[0])
            columns.append(((ends[0] - ends[1]) / (2 * step))[:, :, None])
        return np.concatenate(columns, axis=2)


def ravel_float64(theta: Theta) -> tuple[np.ndarray, Callable[[np.ndarray], Theta]]:
    """As `ravel_pytree`, which would round to JAX's precision."""
    leaves, tree = jax.tree.flatten(theta)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unravel(flat: np.ndarray) -> Theta:
        pieces = zip(np.split(flat, ends), leaves, strict=True)
        return tree.unflatten([piece.reshape(leaf.shape) for piece, leaf in pieces])

    return np.concatenate([leaf.ravel() for leaf in leaves]), unravel


def _solved(theta: Theta, mixed: MixedDesign) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean (G, D), covariance (G, D, D) and d mean / d beta (G, D, p) of b given y.

    With b = Lambda u, u standard normal: Lambda' Z'Z Lambda / sigma^2 + I is well conditioned
    where a standard deviation is zero, too.
    """
    design = mixed.design
    fixed, random = _new_rows.same_rows(design)
    sigmas = {block.name: covariance_of(mixed, theta, block) for block in design.blocks}
    if has_joint_levels(mixed):
        return _solved_jointly(theta, mixed, sigmas)
    roots = {name: root_of(sigma) for name, sigma in sigmas.items()}
    scaled = {name: z @ roots[name] for name, z in random.Z.items()}
    (parts,) = parts_of(mixed, random._replace(Z=scaled))
    groups = 1 if mixed.outer is None else len(mixed.levels[design.blocks[0].name])
    size, variance = size_of(mixed), float(theta["sigma"]) ** 2
    precision = design.precisions[:, None, None] / variance
    group, position, z = parts
    inverse = np.tile(np.eye(size), (groups, 1, 1))
    where = group[:, None, None], position[:, :, None], position[:, None, :]
    np.add.at(inverse, where, z[:, :, None] * z[:, None, :] * precision)
    residual = design.y - fixed.offset - fixed.X @ theta["beta"]
    right = np.column_stack([residual, -fixed.X])
    sums = np.zeros((groups, size, right.shape[1]))
    np.add.at(sums, (group[:, None], position), z[:, :, None] * right[:, None, :] * precision)
    covariance = np.linalg.inv(inverse)
    means = covariance @ sums
    _multiply(mixed, roots, covariance, 1)
    _multiply(mixed, roots, covariance, 2)
    _multiply(mixed, roots, means, 1)
    return means[:, :, 0], covariance, means[:, :, 1:]


def _solved_jointly(
    theta: Theta, mixed: MixedDesign, sigmas: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of one group whose levels depend on each other, by dense matrices."""
    from scipy.linalg import block_diag

    design = mixed.design
    fixed, random = _new_rows.same_rows(design)
    by_name = sorted(block.name for block in design.blocks)
    root = block_diag(*(_all_levels(mixed, name, root_of(sigmas[name])) for name in by_name))
    (parts,) = parts_of(mixed, random)
    Z = np.zeros((design.y.size, size_of(mixed)))
    np.add.at(Z, (np.arange(len(Z))[:, None], parts.position), parts.z)
    scaled = Z @ root
    weighted = scaled.T * (design.precisions / float(theta["sigma"]) ** 2)
    covariance = np.linalg.inv(np.eye(len(root)) + weighted @ scaled)
    residual = design.y - fixed.offset - fixed.X @ theta["beta"]
    right = np.column_stack([residual, -fixed.X])
    means = root @ (covariance @ (weighted @ right))
    return means[None, :, 0], (root @ covariance @ root.T)[None], means[None, :, 1:]


def _all_levels(mixed: MixedDesign, name: str, root: np.ndarray) -> np.ndarray:
    """The root of the covariance of a block: of all its levels already, or of each."""
    law, levels = mixed.placed[name].law, mixed.levels[name].size
    return root if law.is_joint else np.kron(np.eye(levels), root)


def root_of(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _multiply(mixed: MixedDesign, roots: dict, of: np.ndarray, axis: int) -> None:
    """u to b along an axis of latents, in place."""
    first = first_positions(mixed)
    moved = np.moveaxis(of, axis, -1)
    for block in mixed.design.blocks:
        levels, effects = mixed.levels[block.name].shape[-1], len(block.effects)
        own = slice(first[block.name], first[block.name] + levels * effects)
        split = moved[..., own].reshape(*moved.shape[:-1], levels, effects)
        moved[..., own] = (split @ roots[block.name].T).reshape(*moved.shape[:-1], -1)
