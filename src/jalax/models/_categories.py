"""Categories without an order: a linear predictor for each of them but the first.

Coefficients and random effects are one row of numbers, category by category, and the matrices of a
row of the data have a row for each linear predictor: (n, J - 1, (J - 1) p).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ._covariances import Unstructured
from ._design import Design


def per_category(design: Design) -> Design:
    """The design of all linear predictors, from that of one."""
    assert design.response.categories is not None
    if design.offset.any():
        raise ValueError(
            f"{design.formula!r} has an offset, which categories without an order cannot have: "
            "leave it out."
        )
    baseline, *others = design.response.categories
    if not others:
        raise ValueError(
            f"the response {design.response.name!r} has one category, {baseline!r}: nothing varies."
        )

    for name, covariance in design.covariances.items():
        if not isinstance(covariance, Unstructured):
            raise ValueError(
                f"the random effects {name!r} of categories without an order are correlated across "
                f"these in any way: leave {covariance!r} out."
            )

    def names(of: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{category}: {name}" for category in others for name in of)

    count = len(others)
    blocks = tuple(
        dataclasses.replace(
            block, effects=names(block.effects), matrix=repeated(block.matrix, count)
        )
        for block in design.blocks
    )
    fixed, X = names(design.fixed), repeated(design.X, count)
    return design._replace(fixed=fixed, X=X, blocks=blocks, predictors=count)


def repeated(matrix: np.ndarray, count: int) -> np.ndarray:
    """(n, q) for so many linear predictors, (n, count, count q): each has columns of its own."""
    wide = np.eye(count)[None, :, :, None] * matrix[:, None, None, :]
    return wide.reshape(len(matrix), count, -1)
