"""Where the fit of a mixed model starts: at the model without random effects, roughly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jalax._runtime.arrays import as_array
from jalax.families._family import Family
from jalax.families._links import Identity
from jalax.families._multinomial import Multinomial
from jalax.families._ordinal import Ordinal
from jalax.families._zeros import WithZeros

from ._covariances import Placed
from ._design import Design, Side
from ._laws import with_own

Theta = dict[str, Any]


def first_theta(design: Design, family: Family, placed: Mapping[str, Placed]) -> Theta:
    """A generalised linear model without random effects, and deviations on its scale."""
    beta, spread = _glm(design, family)
    count = sum(len(block.effects) for block in design.blocks)
    owns = {}
    for block in design.blocks:
        each = block.matrix.reshape(design.y.size, -1, len(block.effects))  # linear predictor
        scale = np.sqrt((each**2).sum(axis=1).mean(axis=0)) + 1e-30
        law, known, _ = placed[block.name]
        owns[block.name] = law.first(spread / np.sqrt(2 * count) / scale, known)
    theta = with_own({"beta": beta}, owns) | _first_own(design, family, spread)
    return jax.tree.map(lambda leaf: as_array(leaf, float), theta)


def _first_own(design: Design, family: Family, spread: float) -> Theta:
    own: Theta = {}
    for name, support in family.own.items():
        if name == "thresholds":
            assert design.response.categories is not None
            assert isinstance(family, Ordinal)
            own[name] = family.thresholds(design.y, len(design.response.categories))
        else:
            own[name] = spread / np.sqrt(2) if name == "sigma" else support.first * np.ones(())
    if design.dispersion is not None:
        own["dispersion"] = _constant(design.dispersion, np.log(own.pop(str(family.dispersion))))
    if design.zero is not None:
        share = np.clip(np.mean(design.y == 0) / 2, 0.01, 0.99)
        own["zero"] = _constant(design.zero, np.log(share / (1 - share)))
    return own


def _constant(side: Side, value: float) -> np.ndarray:
    """Coefficients whose linear predictor is near that in every row."""
    return np.linalg.lstsq(side.X, np.full(len(side.X), value), rcond=None)[0]


MOST_ETA = 15.0  # in either direction, on the way to a first beta


def _glm(design: Design, family: Family) -> tuple[np.ndarray, float]:
    """beta by iterated least squares, and a spread on the scale of eta."""
    X, y, offset, link = design.X, design.y, design.offset, family.link
    if isinstance(family, (Ordinal, Multinomial)):
        return np.zeros(X.shape[-1]), 1.0
    target, size = family.observed(y, design.size), design.size
    eta = link.of(family.first(y, size))
    weight, ridge = np.ones_like(y), 1e-4 * (X**2).sum(axis=0) / y.size + 1e-12
    beta = np.linalg.lstsq(X, eta - offset, rcond=None)[0]
    own_scale = isinstance(link, Identity)
    spread = float(np.std(eta - offset - X @ beta)) if own_scale else 1.0
    if own_scale:
        return beta, max(spread, 1e-8 * (1.0 + float(np.abs(y).max())))
    trials = 1.0 if size is None else size
    for _ in range(25):
        eta = np.clip(X @ beta + offset, -MOST_ETA, MOST_ETA)
        mean = link.mean(eta)
        variance = family.working(mean)
        if variance is None:
            break
        slope = link.slope(eta)
        weight = trials * slope**2 / np.maximum(variance, 1e-30)
        # Separable data would send beta away.
        score = X.T @ (weight * (target - mean) / np.where(slope == 0, 1e-30, slope)) - ridge * beta
        beta = beta + np.linalg.solve((X.T * weight) @ X + np.diag(ridge), score)
    if not np.isfinite(beta).all():
        beta = np.zeros(X.shape[1])
    return beta, _spread_of(family, y, X @ beta + offset)


def _spread_of(family: Family, y: np.ndarray, eta: np.ndarray) -> float:
    """What of eta is not explained, where the response has a scale of its own there."""
    if "sigma" not in family.own:
        return 1.0
    if isinstance(family, WithZeros):
        y, eta = y[y > 0], eta[y > 0]
    left = np.std(np.log(y) - eta) if (y > 0).all() else np.std(y - family.link.mean(eta))
    return max(float(left), 1e-8)
