"""What a fit by REML says otherwise than one by maximum likelihood."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jalax._evidence.uncertainty import Uncertainty
from jalax._fit.result import FitResult
from jalax._frontends.mixed_parts import Theta, numbers
from jalax._runtime.compilation import LEVEL_1, jit
from jalax._runtime.function_keys import Static
from jalax.models._mixed import MixedDesign, from_white
from jalax.models._restricted import Compressed, curvature, root_of


def check_options(
    mixed: MixedDesign, fixed: Mapping[str, Any] | None, log_prior: Callable | None
) -> None:
    """What REML cannot have beside it."""
    if mixed.restricted is None:
        return
    if log_prior is not None:
        raise ValueError(
            "REML integrates the fixed effects out under a flat prior, and takes no log_prior=: "
            "leave likelihood= out, and the fit is the maximum a posteriori."
        )
    names = mixed.design.fixed
    for name in fixed or {}:
        if name in names or str(name).partition("[")[0] == "beta":
            raise ValueError(
                f"fixed= holds {name!r}, a fixed effect, and REML integrates these out: leave "
                "likelihood= out, or take the column times its value as offset=."
            )


def uncertainty_of(result: FitResult, mixed: MixedDesign) -> Uncertainty | None:
    """With the fixed effects' covariance of lme4, (X'V^{-1}X)^{-1} at the fitted variances.

    Given these the two are independent in large samples. The variances' own part of the inverse
    information is that of the restricted likelihood already.
    """
    known = result.saved_uncertainty
    if known is None or mixed.restricted is None:
        return known
    count, covariance = len(mixed.design.fixed), known.covariance.copy()
    for cross in (covariance[:count, count:], covariance[count:, :count]):
        cross[np.isfinite(cross)] = 0.0
    covariance[:count, :count] = covariance_of_fixed(result.theta, mixed)
    return dataclasses.replace(known, covariance=covariance)


def covariance_of_fixed(theta: Any, mixed: MixedDesign) -> np.ndarray:
    """(p, p)."""
    rows = mixed.restricted
    assert rows is not None
    blocks = sorted(mixed.design.blocks, key=lambda block: block.name)
    shapes = tuple(
        (block.name, mixed.levels[block.name].shape[-1], len(block.effects)) for block in blocks
    )
    with jax.enable_x64(True):
        root = Static.of(functools.partial(root_of, shapes, from_white))
        matrix = np.asarray(_curvature(rows, root, numbers(theta)))
    back = np.linalg.inv(rows.triangle)
    return back @ np.linalg.inv(matrix) @ back.T


@jit(LEVEL_1, static_argnames="root")
def _curvature(rows: Compressed, root: Static, theta: Theta) -> jax.Array:
    return curvature(rows, root, theta)


def integrated_out(mixed: MixedDesign) -> str:
    """A mark of the fixed effects that REML integrates out."""
    if mixed.restricted is None:
        return ""
    return hashlib.sha256(np.ascontiguousarray(mixed.design.X).tobytes()).hexdigest()


def check_profile(mixed: MixedDesign | None, name: str | None) -> None:
    """`name` None: of all numbers of theta."""
    if mixed is None or mixed.restricted is None:
        return
    if name is None or name in mixed.design.fixed:
        raise ValueError(
            "REML has no profile of a fixed effect, which it integrates out: fit again without "
            "likelihood=jalax.REML(), as lme4's confint does, or profile a standard deviation."
        )
