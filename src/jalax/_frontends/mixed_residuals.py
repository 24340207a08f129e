"""Residuals of a mixed model, and a test of its quantile residuals."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jalax._frontends import mixed_posterior
from jalax._frontends.mixed_averages import NODES, WEIGHTS, prior_variance
from jalax._frontends.mixed_parts import parts_of
from jalax._frontends.mixed_predict import (
    Conditional,
    Effects,
    Fit,
    Marginal,
    Response,
    check_choice,
    check_has_order,
    fitted,
)
from jalax._runtime import arguments
from jalax.families import Gaussian, Identity

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
    check_has_order(fit.mixed.family)
    if isinstance(kind, Quantile):
        from scipy.special import ndtri

        arguments.check_key(kind.key)
        uniform = quantiles(fit, kind.key, kind.effects)
        # Rounding must not make an infinite residual of a large one.
        return ndtri(np.clip(uniform, 1e-300, 1 - 1e-16))
    design, family = fit.mixed.design, fit.mixed.family
    own, mean = fit.own(None).at(), fitted(fit)
    left = family.observed(design.y, design.size) - mean
    if isinstance(kind, Response):
        return left
    if isinstance(kind, Pearson):
        return left / np.sqrt(family.variance(mean, own, design.size))
    deviance = family.deviance(design.y, mean, own, design.size)
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
    placed, event = _placed(fit, eta, spread, design.y[None], place[None])[0], design.response.event
    # Of a censored time all that is known is that it is more.
    return placed if event is None else np.where(event == 0, placed + place * (1 - placed), placed)


def _drawn_part(fit: Fit, key: jax.Array) -> np.ndarray:
    """z'b of each row for one draw of b from its posterior."""
    drawn = mixed_posterior.posterior(fit.result, fit.mixed).draw(key)
    (parts,) = parts_of(fit.mixed, fit.random(None))
    return np.sum(parts.z * drawn[parts.group[:, None], parts.position], axis=1)


def _placed(
    fit: Fit, eta: np.ndarray, spread: np.ndarray, y: np.ndarray, place: np.ndarray
) -> np.ndarray:
    """P(Y < y) + place P(Y = y) of (num, n) responses; of a continuous one P(Y <= y)."""
    from scipy.special import ndtr

    family, size, own = fit.mixed.family, fit.mixed.design.size, fit.own(None)
    if isinstance(family, Gaussian) and isinstance(family.link, Identity):
        # The convolution of two normal distributions.
        return ndtr((y - eta) / np.sqrt(own.at()["sigma"] ** 2 + spread**2))
    # Many simulated responses of a row are the same count: each is looked up once.
    row = np.broadcast_to(np.arange(len(eta)), y.shape)
    pairs, back = np.unique(np.stack([row.ravel(), y.ravel()]), axis=1, return_inverse=True)
    row, value = pairs[0].astype(int), pairs[1]
    lower, upper = np.zeros((2, len(row)))
    for first in range(0, len(row), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        i = row[some]
        trials = None if size is None else size[i]
        for node, weight in zip(*_nodes(spread), strict=True):
            at = eta[i] + node * spread[i]
            jump = family.jump(value[some], at, own.at(i), trials)
            lower[some] += weight * jump[0]
            upper[some] += weight * jump[1]
    lower, upper = (bound[back.ravel()].reshape(y.shape) for bound in (lower, upper))
    return lower + place * (upper - lower)


def _nodes(spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (NODES, WEIGHTS) if spread.any() else (np.zeros(1), np.ones(1))


def residual_test(fit: Fit, key: jax.Array, num: int) -> ResidualTest:
    """`MixedResult.residual_test`."""
    arguments.check_key(key)
    num = arguments.check_count("num", num)
    check_has_order(fit.mixed.family)
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
