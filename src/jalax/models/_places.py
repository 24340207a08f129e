"""Where the random effects of rows are among the latents of their group."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._model.structure import meeting


def structure_of(
    latent: dict[str, Any], level: dict[str, np.ndarray], others: list[tuple[Any, Any]]
) -> Any:
    """Effects meet where their levels are in the same row, and by the covariance of levels."""
    rows, cols = zip(*[meeting(places_of(latent, level)), *others], strict=True)
    return np.concatenate(rows), np.concatenate(cols)


def places_of(latent: dict[str, Any], level: dict[str, np.ndarray]) -> np.ndarray:
    """(n, K): of each row, in the ravelled latent of its group."""
    positions, begin = [], 0
    for name in sorted(latent):  # the order of the ravelled latent
        levels, effects = latent[name].shape
        index = np.reshape(level[name], (-1, 1)) if levels > 1 else 0
        rows = len(level[name])
        positions.append(
            np.broadcast_to(begin + index * effects + np.arange(effects), (rows, effects))
        )
        begin += levels * effects
    return np.concatenate(positions, axis=1)
