"""Importance sampling of many small independent integrals from a Student t or a wide normal.

For each group g the integral of exp(log_joint(x_g)) over x_g in R^d, from its mode and curvature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from _pool import SMALLEST, log_density, quantiles


class Shape(NamedTuple):
    """The proposal's standard form: a product of Student t's, or of normals without `freedom`."""

    freedom: float | None
    scale: float = 1.0


class Centres(NamedTuple):
    """For each group the mode (d) and a root of the inverse curvature (d, d)."""

    modes: np.ndarray
    roots: np.ndarray


def draws(
    centres: Centres, base: np.ndarray, rng: np.random.Generator, shape: Shape
) -> tuple[np.ndarray, np.ndarray]:
    """Draws (group, point, d) and their log-densities, each group with a shift of its own."""
    groups, dimension = centres.modes.shape
    moved = (base + rng.random((groups, 1, dimension))) % 1.0
    standard = quantiles(np.clip(moved, SMALLEST, 1 - SMALLEST), shape.freedom)
    logs = log_density(standard, shape.freedom) - dimension * np.log(shape.scale)
    values = centres.modes[:, None] + shape.scale * standard @ np.swapaxes(centres.roots, 1, 2)
    diagonal = np.abs(np.diagonal(centres.roots, axis1=1, axis2=2))
    return values, logs - np.log(diagonal).sum(1)[:, None]
