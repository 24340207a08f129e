"""Averages over random effects that have the distribution they have without data."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax.families._family import Family
from jalax.families._links import Identity, Log
from jalax.families._links import Link as FamilyLink
from jalax.models._laws import PARTS, own_of
from jalax.models._mixed import MixedDesign

# The trapezoidal rule on a normal density. For the logit with a standard deviation of 10, Gauss and
# Hermite's 100 points are off by 7e-4, these by 5e-7; with 4 by 2e-7 and by nothing but rounding.
NODES = np.linspace(-8.5, 8.5, 121)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))


def prior_variance(mixed: MixedDesign, theta: dict, Z: dict[str, np.ndarray]) -> np.ndarray:
    """z' Sigma z of each row, over all blocks."""
    total = np.zeros(len(next(iter(Z.values()))))
    for block in mixed.design.blocks:
        law, known, _ = mixed.placed[block.name]
        z = Z[block.name]
        if z.any():
            sigma = law.of_new_level(own_of(theta, block.name), known, block.name)
            total = total + np.einsum("ni,ij,nj->n", z, sigma, z)
    return total


def spread_slopes(
    mixed: MixedDesign, theta: dict, Z: dict[str, np.ndarray], spread: np.ndarray
) -> np.ndarray:
    """(n, P - p): the derivative of sqrt(z' Sigma z) in the numbers of theta after beta."""
    columns = []
    for part in sorted(set(theta) - {"beta"}):
        if part in PARTS:
            names = sorted(theta[part])
            columns += [_variance_slopes(mixed, theta, Z, part, name) for name in names]
        else:  # it does not depend on it
            columns.append(np.zeros((len(spread), np.size(theta[part]))))
    return np.concatenate(columns, axis=1) / (2 * np.maximum(spread, 1e-300)[:, None])


def _variance_slopes(
    mixed: MixedDesign, theta: dict, Z: dict[str, np.ndarray], part: str, name: str
) -> np.ndarray:
    """(n, numbers): the derivative of z' Sigma z in the numbers of a block in one part of theta.

    By central differences, which are exact in standard deviations and correlations.
    """
    (law, known, _), z, value = mixed.placed[name], Z[name], np.asarray(theta[part][name], float)
    columns = [np.zeros((len(z), 0))]
    for k in range(value.size):
        step = 1e-4 * max(abs(value[k]), 1e-4) * (np.arange(value.size) == k)
        ends = [
            law.of_new_level(own_of(theta, name) | {part: value + side * step}, known, name)
            for side in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step[k])
        columns.append(np.einsum("ni,ij,nj->n", z, slope, z)[:, None])
    return np.concatenate(columns, axis=1)


def is_inverse_link(family: Family) -> bool:
    """Is the mean of the response the inverse link of eta, and nothing else?"""
    return type(family).mean is Family.mean


def averaged(
    link: FamilyLink, eta: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of the inverse link over N(eta, spread^2), and its slopes in the two."""
    if isinstance(link, Identity):
        return eta, np.ones_like(eta), np.zeros_like(eta)
    if isinstance(link, Log):
        value = np.exp(eta + spread**2 / 2)
        return value, value, value * spread
    value, by_eta, by_spread = np.zeros((3, len(eta)))
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        at = eta + node * spread
        slope = weight * link.slope(at)
        value += weight * link.mean(at)
        by_eta += slope
        by_spread += node * slope
    return value, by_eta, by_spread


def averaged_mean(
    family: Family, eta: np.ndarray, spread: np.ndarray, own: dict[str, Any]
) -> np.ndarray:
    """The mean of the response over N(eta, spread^2)."""
    nodes = zip(NODES, WEIGHTS, strict=True)
    return sum(weight * family.mean(eta + node * spread, own) for node, weight in nodes)
