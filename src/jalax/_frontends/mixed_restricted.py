"""What a fit by REML says otherwise than one by maximum likelihood."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._evidence.uncertainty import Uncertainty, jacobian_of
from jalax._fit.result import FitResult
from jalax._frontends.mixed_exact import ravel_float64
from jalax._frontends.mixed_parts import Theta, numbers
from jalax._model.types import Status
from jalax._runtime import files
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_1, jit
from jalax._runtime.function_keys import Static
from jalax.models._density import from_white
from jalax.models._mixed import MixedDesign
from jalax.models._restricted import Compressed, curvature, restricted_likelihood, root_of

MOST_STEPS = 20  # of Newton's method; three or four where the fit arrived
ARRIVED = 1e-8  # standard errors of a step that is not worth taking
TOLERANCE = 0.1  # by which log p may seem to fall, where points had noise
ROUNDED = 1e-7  # of what is known in closed form, but written down in float32


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


def improved(result: FitResult, mixed: MixedDesign) -> dict[str, Any]:
    """The fields of a fit by REML that its closed form knows better than points do.

    Newton's method from where the fit arrived, in float64. A fit that did not arrive, or came to a
    boundary, keeps its own, with the covariance of its fixed effects.
    """
    if mixed.restricted is None or result.saved_uncertainty is None:
        return {}
    found = _climbed(result, mixed) if result.status == Status.CONVERGED else None
    if found is None or result.saved_evidence is None:
        beta, covariance = _least_squares(mixed, numbers(result.theta))
        return {"saved_uncertainty": _with_fixed(result.saved_uncertainty, covariance)}
    beta, covariance = _least_squares(mixed, found.theta)
    theta = _cast(found.theta | {"beta": beta}, result.theta)
    model = result.origin.model
    free = model.unconstrained(theta)
    known = _with_fixed(result.saved_uncertainty, covariance)
    known.covariance[len(beta) :, len(beta) :] = found.covariance
    exact = dataclasses.replace(
        known, simulation=ROUNDED**2 * known.covariance, jacobian=jacobian_of(model, free)
    )
    evidence = result.saved_evidence
    shift = (found.value - evidence.value) / len(evidence.groups)
    error = ROUNDED * max(1.0, abs(found.value))
    evidence = dataclasses.replace(
        evidence, value=found.value, error=error, groups=evidence.groups + shift
    )
    return {
        "theta": theta,
        "free": free,
        "message": f"theta has settled after {result.num_steps} steps, and in closed form",
        "saved_evidence": evidence,
        "saved_uncertainty": exact,
    }


class _Climbed(NamedTuple):
    theta: Theta  # without beta
    value: float  # the restricted log-likelihood
    covariance: np.ndarray  # of the free numbers after beta, on the optimiser's scale


def _climbed(result: FitResult, mixed: MixedDesign) -> _Climbed | None:
    """To the maximum of the restricted likelihood; None: there is none near."""
    model, rows, design = result.origin.model, mixed.restricted, mixed.design
    count = design.y.size if design.weights is None else float(design.weights.sum())
    precision = 0.0
    if design.precision is not None:
        often = 1.0 if design.weights is None else design.weights
        precision = float(np.sum(often * np.log(design.precision)))
    free_numbers = np.flatnonzero(~result.is_held[len(design.fixed) :])
    with jax.enable_x64(True):
        free = _mapped(model.outside.unconstrain, numbers(result.theta))
        flat, unravel = ravel_float64(numbers({n: free[n] for n in free if n != "beta"}))
        root, first = _root(mixed), None
        for _ in range(MOST_STEPS):
            seen = _look(rows, root, model.constrain, unravel(flat), count, precision)
            value, gradient, hessian = (np.asarray(part, float) for part in seen)
            first = value if first is None else first
            information = -hessian[np.ix_(free_numbers, free_numbers)]
            if not np.isfinite(information).all() or np.linalg.eigvalsh(information).min() <= 0:
                return None
            step = np.linalg.solve(information, gradient[free_numbers])
            if step @ gradient[free_numbers] < ARRIVED**2:
                theta = numbers(_mapped(model.constrain, unravel(flat)))
                return _Climbed(theta, float(value), np.linalg.inv(information))
            flat[free_numbers] += step
            if value < first - TOLERANCE:
                return None
    return None


@jit(LEVEL_0_OLD_EMITTERS, static_argnames=("root", "constrain"))
def _look(
    rows: Compressed, root: Static, constrain: Static, free: Theta, count: Any, precision: Any
) -> tuple[jax.Array, ...]:
    """The restricted log-likelihood, its gradient and its Hessian."""
    flat, unravel = ravel_pytree(free)

    def height(t):
        theta = constrain(unravel(t))
        return restricted_likelihood(rows, root, theta, count, precision)

    def slope(t):
        gradient = jax.jacfwd(height)(t)
        return gradient, gradient

    hessian, gradient = jax.jacfwd(slope, has_aux=True)(flat)
    return height(flat), gradient, hessian


@jit(LEVEL_0_OLD_EMITTERS, static_argnames="function")
def _mapped(function: Static, theta: Theta) -> Theta:
    return function(theta)


def _root(mixed: MixedDesign) -> Static:
    blocks = sorted(mixed.design.blocks, key=lambda block: block.name)
    shapes = tuple(
        (block.name, mixed.levels[block.name].shape[-1], len(block.effects)) for block in blocks
    )
    return Static.of(functools.partial(root_of, shapes, functools.partial(from_white, mixed.laws)))


def _least_squares(mixed: MixedDesign, theta: Theta) -> tuple[np.ndarray, np.ndarray]:
    """beta by generalised least squares at these variances, and (X'V^{-1}X)^{-1}."""
    rows = mixed.restricted
    assert rows is not None
    with jax.enable_x64(True):
        others = {name: theta[name] for name in theta if name != "beta"}
        matrix = np.asarray(_curvature(rows, _root(mixed), others))
    back = np.linalg.inv(rows.triangle[:-1, :-1])
    inverse = np.linalg.inv(matrix[:-1, :-1])
    beta = back @ (rows.triangle[:-1, -1] + rows.triangle[-1, -1] * inverse @ matrix[:-1, -1])
    return beta, back @ inverse @ back.T


@jit(LEVEL_1, static_argnames="root")
def _curvature(rows: Compressed, root: Static, theta: Theta) -> jax.Array:
    return curvature(rows, root, theta)[0]


def _with_fixed(known: Uncertainty, covariance: np.ndarray) -> Uncertainty:
    """With the fixed effects' covariance of lme4, (X'V^{-1}X)^{-1} at the fitted variances.

    Given these the two are independent in large samples. The variances' own part of the inverse
    information is that of the restricted likelihood already.
    """
    count, whole = len(covariance), known.covariance.copy()
    for cross in (whole[:count, count:], whole[count:, :count]):
        cross[np.isfinite(cross)] = 0.0
    whole[:count, :count] = covariance
    return dataclasses.replace(known, covariance=whole)


def _cast(theta: Theta, like: Theta) -> Theta:
    return jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), theta, like)


def likelihood_mark(mixed: MixedDesign) -> str:
    """Of the weights of rows, and of the fixed effects that REML integrates out."""
    design = mixed.design
    X = None if mixed.restricted is None else design.X
    parts = design.weights, design.precision, design.frequencies, X
    return "" if all(part is None for part in parts) else files.fingerprint(parts)


def check_profile(mixed: MixedDesign | None, name: str | None) -> None:
    """`name` None: of all numbers of theta."""
    if mixed is None or mixed.restricted is None:
        return
    if name is None or name in mixed.design.fixed:
        raise ValueError(
            "REML has no profile of a fixed effect, which it integrates out: fit again without "
            "likelihood=jalax.REML(), as lme4's confint does, or profile a standard deviation."
        )
