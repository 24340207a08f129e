"""Residuals of a mixed model, and a test of its quantile residuals."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jalax._frontends import mixed_posterior
from jalax._frontends.mixed_parts import parts_of
from jalax._frontends.mixed_predict import (
    NODES,
    WEIGHTS,
    Conditional,
    Effects,
    Fit,
    Marginal,
    Response,
    check_choice,
    fitted,
    prior_variance,
)
from jalax._runtime import arguments
from jalax.models import _responses

AT_ONCE = 100_000  # pairs of a row and a response, for the sum over the nodes


@dataclasses.dataclass(frozen=True)
class Pearson:
    """y less its mean given the random effects, over the standard deviation of y given these.

    Of a Gaussian model that is sigma, as with `residuals(m, scaled = TRUE)` in lme4.
    """


@dataclasses.dataclass(frozen=True)
class Deviance:
    """The signed root of what a row adds to the deviance, as R's `glm` has it.

    Of a Gaussian model it is y less its mean.
    """


@dataclasses.dataclass(frozen=True)
class Quantile:
    """Randomised quantile residuals (Dunn and Smyth 1996): standard normal if the model is right.

    The distribution function of a row at y, at a random place within its jump where the response
    is a count, as the quantile of a normal distribution.

    Args:
        key: `jax.random.key(seed)`.
        effects: `jalax.predictions.Marginal()` integrates the random effects out, so that rows of
            one level depend on each other; `Conditional()` takes one draw of them from their
            posterior.
    """

    key: jax.Array
    effects: Effects = dataclasses.field(default_factory=Marginal)


KINDS = "jalax.residuals.Response(), Pearson(), Deviance() and Quantile(key)"


@dataclasses.dataclass(frozen=True)
class ResidualTest:
    """What `MixedResult.residual_test` found.

    Attributes:
        distance: Kolmogorov's distance of the quantile residuals from their distribution.
        p_value: the share of data sets of the fitted model that are as far off.
        simulated: (num,): the distances of these data sets.
    """

    distance: float
    p_value: float
    simulated: np.ndarray


def residuals(fit: Fit, kind: Any) -> np.ndarray:
    """`MixedResult.residuals`."""
    check_choice("kind", kind, (Response, Pearson, Deviance, Quantile), KINDS)
    if isinstance(kind, Quantile):
        from scipy.special import ndtri

        arguments.check_key(kind.key)
        uniform = quantiles(fit, kind.key, kind.effects)
        # Rounding must not make an infinite residual of a large one.
        return ndtri(np.clip(uniform, 1e-300, 1 - 1e-16))
    design, family = fit.mixed.design, fit.mixed.family
    own = _responses.dispersion(family, fit.theta)
    mean = fitted(fit)
    left = _responses.observed(family, design.y, design.size) - mean
    if isinstance(kind, Response):
        return left
    if isinstance(kind, Pearson):
        return left / np.sqrt(_responses.variance(family, mean, own, design.size))
    deviance = _responses.deviance(family, design.y, mean, own, design.size)
    return np.sign(left) * np.sqrt(np.maximum(deviance, 0.0))


def quantiles(fit: Fit, key: jax.Array, effects: Effects) -> np.ndarray:
    """The distribution function of each row at its response, uniform if the model is right."""
    check_choice("effects", effects, (Marginal, Conditional), "Marginal() and Conditional()")
    key_effects, key_place = jax.random.split(key)
    design = fit.mixed.design
    eta = design.X @ fit.theta["beta"] + design.offset
    Z = fit.effects(None)
    if isinstance(effects, Conditional):
        eta, spread = eta + _drawn_part(fit, key_effects), np.zeros(len(eta))
    else:
        spread = np.sqrt(prior_variance(fit.mixed, fit.theta, Z))
    place = np.asarray(jax.random.uniform(key_place, eta.shape), float)
    return _placed(fit, eta, spread, design.y[None], place[None])[0]


def _drawn_part(fit: Fit, key: jax.Array) -> np.ndarray:
    """z'b of each row for one draw of b from its posterior."""
    drawn = mixed_posterior.posterior(fit.result, fit.mixed).draw(key)
    (parts,) = parts_of(fit.mixed, fit.random(None))
    return np.sum(parts.z * drawn[parts.group[:, None], parts.position], axis=1)


def _placed(
    fit: Fit, eta: np.ndarray, spread: np.ndarray, y: np.ndarray, place: np.ndarray
) -> np.ndarray:
    """F(y - 1) + place (F(y) - F(y - 1)) of (num, n) responses; of a Gaussian one F(y)."""
    from scipy.special import ndtr

    family, size = fit.mixed.family, fit.mixed.design.size
    own = _responses.dispersion(family, fit.theta)
    if family == "gaussian":  # the convolution of two normal distributions
        return ndtr((y - eta) / np.sqrt(own**2 + spread**2))
    # Many simulated responses of a row are the same count: each is looked up once.
    base = int(y.max()) + 1
    pairs, back = np.unique(np.arange(len(eta)) * base + y.astype(int), return_inverse=True)
    row, value = np.divmod(pairs, base)
    lower, upper = np.zeros((2, len(row)))
    for first in range(0, len(row), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        i = row[some]
        trials = None if size is None else size[i]
        for node, weight in zip(*_nodes(spread), strict=True):
            at = eta[i] + node * spread[i]
            lower[some] += weight * _responses.cdf(family, value[some] - 1, at, own, trials)
            upper[some] += weight * _responses.cdf(family, value[some], at, own, trials)
    lower, upper = (bound[back].reshape(y.shape) for bound in (lower, upper))
    return lower + place * (upper - lower)


def _nodes(spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (NODES, WEIGHTS) if spread.any() else (np.zeros(1), np.ones(1))


def residual_test(fit: Fit, key: jax.Array, num: int) -> ResidualTest:
    """`MixedResult.residual_test`."""
    arguments.check_key(key)
    num = arguments.check_count("num", num)
    key_observed, key_simulated, key_place = jax.random.split(key, 3)
    design, theta = fit.mixed.design, fit.theta
    observed = _distance(quantiles(fit, key_observed, Marginal())[None])[0]
    eta = design.X @ theta["beta"] + design.offset
    spread = np.sqrt(prior_variance(fit.mixed, theta, fit.effects(None)))
    y = np.asarray(fit.result.simulate(key_simulated, num), float)
    place = np.asarray(jax.random.uniform(key_place, y.shape), float)
    others = _distance(_placed(fit, eta, spread, y, place))
    p = (1 + int(np.sum(others >= observed))) / (num + 1)
    return ResidualTest(float(observed), p, others)


def _distance(uniform: np.ndarray) -> np.ndarray:
    """Kolmogorov's, of each row of (num, n) from the uniform distribution."""
    n = uniform.shape[1]
    ordered = np.sort(uniform, axis=1)
    steps = np.arange(n + 1) / n
    return np.maximum(steps[1:] - ordered, ordered - steps[:-1]).max(axis=1)
