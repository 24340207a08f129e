"""Averages over random effects that have the distribution they have without data."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._frontends.mixed_parts import covariance_of
from jalax.families._family import Family
from jalax.families._links import Identity, Log
from jalax.families._links import Link as FamilyLink
from jalax.models._mixed import MixedDesign

# The trapezoidal rule on a normal density. For the logit with a standard deviation of 10, Gauss and
# Hermite's 100 points are off by 7e-4, these by 5e-7; with 4 by 2e-7 and by nothing but rounding.
NODES = np.linspace(-8.5, 8.5, 121)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))


def prior_variance(mixed: MixedDesign, theta: dict, Z: dict[str, np.ndarray]) -> np.ndarray:
    """z' Sigma z of each row, over all blocks."""
    return sum(
        np.einsum("ni,ij,nj->n", Z[block.name], covariance_of(theta, block), Z[block.name])
        for block in mixed.design.blocks
    )


def spread_slopes(
    mixed: MixedDesign, theta: dict, Z: dict[str, np.ndarray], spread: np.ndarray
) -> np.ndarray:
    """(n, P - p): the derivative of sqrt(z' Sigma z) in the numbers of theta after beta."""
    blocks = sorted(mixed.design.blocks, key=lambda block: block.name)
    of_cor, of_sd = [], []
    for block in blocks:
        z, sd = Z[block.name], theta["sd"][block.name]
        scaled = z * sd
        correlation = covariance_of(theta | {"sd": {block.name: np.ones_like(sd)}}, block)
        i, j = np.tril_indices(len(block.effects), -1)
        of_cor.append(scaled[:, i] * scaled[:, j])
        of_sd.append(z * (scaled @ correlation))
    known = {"cor": of_cor, "sd": of_sd}  # of the others it does not depend
    none = {name: [np.zeros((len(spread), np.size(theta[name])))] for name in theta}
    columns = [known.get(name, none[name]) for name in sorted(theta) if name != "beta"]
    all_of = np.concatenate([column for part in columns for column in part], axis=1)
    return all_of / np.maximum(spread, 1e-300)[:, None]


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
