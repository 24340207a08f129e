"""The posterior of the random effects in one table, by the names of their levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._evidence.record import FitRecord
from jalax._export.posterior import Latents, posterior_numbers
from jalax.models._laws import own_of
from jalax.models._mixed import MixedDesign


def mixed_latents(result: FitRecord, mixed: MixedDesign, level: float) -> Latents:
    """`FitResult.latents` of a mixed model: factor by factor, level by level."""
    weights = np.asarray(result.weights, float)
    theta: Any = result.theta
    names: list[str] = []
    rows, shrinkage = [], []
    for block in mixed.design.blocks:
        levels = mixed.levels[block.name].ravel()
        order = np.argsort(levels)[(levels < 0).sum() :]  # -1: padding, no level
        numbers = posterior_numbers(np.asarray(result.particles[block.name]), weights, level)
        numbers = numbers.reshape(levels.size, len(block.effects), -1)[order]
        law, known, _ = mixed.placed[block.name]
        prior = law.variances(own_of(theta, block.name), known, len(numbers))
        rows.append(numbers.reshape(-1, numbers.shape[-1]))
        shrinkage.append((1 - numbers[:, :, 1] ** 2 / prior).ravel())
        labels = [block.labels[i] for i in levels[order]]
        names += [f"{e} | {block.name}[{label}]" for label in labels for e in block.effects]
    return Latents.of(names, np.concatenate(rows), level, np.concatenate(shrinkage))
