"""`MixedResult.predict` and `fitted`: what a mixed model says about rows, old and new."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from jalax._fit.result import FitResult
from jalax._frontends import mixed_posterior
from jalax._frontends.mixed_parts import (
    Parts,
    covariance_of,
    numbers,
    parts_of,
    theta_covariance,
)
from jalax._runtime import arguments
from jalax.models import _new_rows, _responses
from jalax.models._mixed import MixedDesign

# The trapezoidal rule on a normal density. For the logit with a standard deviation of 10, Gauss and
# Hermite's 100 points are off by 7e-4, these by 5e-7; with 4 by 2e-7 and by nothing but rounding.
NODES = np.linspace(-8.5, 8.5, 121)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))


class Estimates(NamedTuple):
    """Of each row, (n,)."""

    link: np.ndarray
    variance: np.ndarray  # of `link`
    response: np.ndarray


class Fit(NamedTuple):
    """What predictions are made of."""

    result: FitResult
    mixed: MixedDesign

    @property
    def theta(self) -> dict[str, Any]:
        return numbers(self.result.theta)

    @property
    def covariance(self) -> np.ndarray:
        return theta_covariance(self.result.uncertainty)

    def rows(self, data: Any) -> Any:
        """`new_data` as a DataFrame; None: the rows of the fit."""
        return None if data is None else _new_rows.read(data)

    def fixed(self, frame: Any) -> _new_rows.Fixed:
        design = self.mixed.design
        if frame is None:
            return _new_rows.same_rows(design)[0]
        return _new_rows.fixed_rows(design, frame)

    def random(self, frame: Any) -> _new_rows.Random:
        design = self.mixed.design
        if frame is None:
            return _new_rows.same_rows(design)[1]
        return _new_rows.random_rows(design, frame)

    def effects(self, frame: Any) -> dict[str, np.ndarray]:
        """z by block, without levels."""
        design = self.mixed.design
        if frame is None:
            return _new_rows.same_rows(design)[1].Z
        return _new_rows.effect_rows(design, frame)


# --- with random effects, without, or averaged over them -----------------------------------------


@dataclasses.dataclass(frozen=True)
class Effects:
    """What is put in for the random effects."""

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Population(Effects):
    """Random effects of zero, `re.form = NA` in lme4: the middle of all levels, on the link scale.

    The variance is that of the fixed effects.
    """

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        X, offset = fit.fixed(frame)
        eta = X @ fit.theta["beta"] + offset
        size = X.shape[1]
        variance = np.einsum("np,pq,nq->n", X, fit.covariance[:size, :size], X)
        return Estimates(eta, variance, _responses.mean(fit.mixed.family, eta))


@dataclasses.dataclass(frozen=True)
class Marginal(Effects):
    r"""The average over all levels that there could be, new ones: $\int h(\eta)\, N(\eta; x'\beta +
    o, z'\Sigma z)\, d\eta$ with the inverse link $h$.

    Its variance is that of the fixed effects and of Sigma, by the delta method on the link scale.
    Of a Gaussian model it is `Population`. The link scale is the link of this average.
    """

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        family, theta = fit.mixed.family, fit.theta
        X, offset = fit.fixed(frame)
        eta = X @ theta["beta"] + offset
        Z = fit.effects(frame)
        spread = np.sqrt(prior_variance(fit.mixed, theta, Z))
        response, by_eta, by_spread = averaged(family, eta, spread)
        link = _link(family, response)
        slope = _responses.mean_slope(family, link)
        by_theta = spread_slopes(fit.mixed, theta, Z, spread)
        of_eta, of_spread = by_eta / slope, by_spread / slope
        gradient = np.concatenate([of_eta[:, None] * X, of_spread[:, None] * by_theta], axis=1)
        variance = np.einsum("np,pq,nq->n", gradient, fit.covariance, gradient)
        return Estimates(link, variance, response)


@dataclasses.dataclass(frozen=True)
class Conditional(Effects):
    r"""The random effects of the levels in the data, `re.form = NULL` in lme4.

    The link scale has $x'\beta + o + z'E[b \mid y]$. The response scale has the mean of
    $h(x'\beta + o + z'b)$ over the posterior of b, where lme4 puts the mode of b in.

    The variance is that of $z'b$ given y, and that of $x'\beta + z'E[b \mid y]$ as theta varies
    with its covariance. So it has the fixed effects, the random effects, the correlation of the
    two (a higher intercept is lower random effects), and the standard deviations. Of a Gaussian
    model all of it is in closed form, else by the weighted particles; numbers of theta without a
    standard error, at a boundary, are taken as known.

    A level that was not in the data is refused; `ConditionalOrNew` allows it.
    """

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        random = fit.random(frame)
        for factor, labels in random.unknown.items():
            raise ValueError(
                f"{labels[0]} is no level of {factor!r} in the data of the fit: with "
                "effects=jalax.predictions.ConditionalOrNew() its random effect is zero, with the "
                "variance between levels."
            )
        return _conditional(fit, frame, random)


@dataclasses.dataclass(frozen=True)
class ConditionalOrNew(Effects):
    """As `Conditional`, but levels that were not in the data are allowed.

    Their random effects have the distribution that they have without data: mean zero (as with
    `allow.new.levels = TRUE` in lme4) and Sigma, which the interval holds. On the response scale
    the estimate is averaged over it, too.
    """

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        return _conditional(fit, frame, fit.random(frame))


def _conditional(fit: Fit, frame: Any, random: _new_rows.Random) -> Estimates:
    mixed, theta = fit.mixed, fit.theta
    X, offset = fit.fixed(frame)
    posterior = mixed_posterior.posterior(fit.result, mixed)
    parts = parts_of(mixed, random)
    base = X @ theta["beta"] + offset
    gradient = np.zeros((len(base), len(fit.covariance)))
    gradient[:, : X.shape[1]] = X
    mean, variance = np.zeros((2, len(base)))
    for part in parts:
        own = posterior.moments(part)
        mean, variance = mean + own[0], variance + own[1]
        gradient = gradient + posterior.slopes(part)
    new = prior_variance(mixed, theta, _of_new_levels(random))
    response = _conditional_mean(fit, posterior, base, parts, new)
    variance = variance + new + np.einsum("np,pq,nq->n", gradient, fit.covariance, gradient)
    return Estimates(base + mean, variance, response)


def _conditional_mean(fit: Fit, posterior, base, parts, new: np.ndarray) -> np.ndarray:
    """The mean of the response over the posterior of b, and over the prior of new levels."""

    def of(eta):
        return _responses.mean(fit.mixed.family, eta)

    for part in parts[1:]:  # levels of other groups are independent; nearly normal will do
        mean, variance = posterior.moments(part)
        base, new = base + mean, new + variance
    response = posterior.average(of, base, parts[0])
    rows = new > 0
    if rows.any():
        lead = Parts(*(array[rows] for array in parts[0]))
        response[rows] = sum(
            weight * posterior.average(of, base[rows] + node * np.sqrt(new[rows]), lead)
            for node, weight in zip(NODES, WEIGHTS, strict=True)
        )
    return response


def _of_new_levels(random: _new_rows.Random) -> dict[str, np.ndarray]:
    return {name: z * (random.level[name] < 0)[:, None] for name, z in random.Z.items()}


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
    last = np.zeros((len(spread), int(mixed.family in _responses.DISPERSION)))
    all_of = np.concatenate([*of_cor, *of_sd, last], axis=1)
    return all_of / np.maximum(spread, 1e-300)[:, None]


def averaged(
    family: str, eta: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of the inverse link over N(eta, spread^2), and its slopes in the two."""
    link = _responses.LINKS[family]
    if link == "identity":
        return eta, np.ones_like(eta), np.zeros_like(eta)
    if link == "log":
        value = np.exp(eta + spread**2 / 2)
        return value, value, value * spread
    value, by_eta, by_spread = np.zeros((3, len(eta)))
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        at = eta + node * spread
        slope = weight * _responses.mean_slope(family, at)
        value += weight * _responses.mean(family, at)
        by_eta += slope
        by_spread += node * slope
    return value, by_eta, by_spread


def _link(family: str, response: np.ndarray) -> np.ndarray:
    link = _responses.LINKS[family]
    if link == "identity":
        return response
    return np.log(response) - (np.log1p(-response) if link == "logit" else 0.0)


# --- the scale -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scale:
    """On which scale numbers are shown."""

    def columns(self, family: str, found: Estimates, level: float) -> dict[str, np.ndarray]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Link(Scale):
    """The scale of the linear predictor: logits, logarithms, or that of a Gaussian response."""

    def columns(self, family: str, found: Estimates, level: float) -> dict[str, np.ndarray]:
        error, far = np.sqrt(found.variance), _quantile(level)
        ends = found.link - far * error, found.link + far * error
        return dict(zip(COLUMNS, (found.link, error, *ends), strict=True))


@dataclasses.dataclass(frozen=True)
class Response(Scale):
    """The scale of the response: probabilities, expected counts.

    An interval is that of the link scale, mapped; a standard error is by the delta method.
    """

    def columns(self, family: str, found: Estimates, level: float) -> dict[str, np.ndarray]:
        error, far = np.sqrt(found.variance), _quantile(level)
        ends = found.link - far * error, found.link + far * error
        low, high = (_responses.mean(family, end) for end in ends)
        error = error * _responses.mean_slope(family, found.link)
        return dict(zip(COLUMNS, (found.response, error, low, high), strict=True))


COLUMNS = ("estimate", "std. error", "lower", "upper")


def _quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def check_choice(name: str, value: Any, kind: Any, examples: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be one of {examples}, got {value!r}.")


EFFECTS = (
    "jalax.predictions.Conditional(), ConditionalOrNew(), Population() and Marginal()"  # for words
)
SCALES = "jalax.predictions.Response() and Link()"


def predict(fit: Fit, data: Any, effects: Effects, scale: Scale, level: float) -> Any:
    """`MixedResult.predict`."""
    import pandas

    check_choice("effects", effects, Effects, EFFECTS)
    check_choice("scale", scale, Scale, SCALES)
    level = arguments.check_fraction("level", level)
    frame = fit.rows(data)
    found = effects.estimates(fit, frame)
    index = fit.mixed.design.frame.index if frame is None else frame.index
    return pandas.DataFrame(scale.columns(fit.mixed.family, found, level), index=index)


def fitted(fit: Fit) -> np.ndarray:
    """The mean of each row's response over the posterior of b, without its errors."""
    X, offset = fit.fixed(None)
    parts = parts_of(fit.mixed, fit.random(None))
    posterior = mixed_posterior.posterior(fit.result, fit.mixed)
    base = X @ fit.theta["beta"] + offset
    return _conditional_mean(fit, posterior, base, parts, np.zeros(len(base)))


def marginal_means_of_rows(fit: Fit) -> np.ndarray:
    """The mean of each row's response over all levels that there could be."""
    X, offset = fit.fixed(None)
    spread = np.sqrt(prior_variance(fit.mixed, fit.theta, fit.effects(None)))
    return averaged(fit.mixed.family, X @ fit.theta["beta"] + offset, spread)[0]
