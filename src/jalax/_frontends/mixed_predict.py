"""`MixedResult.predict` and `fitted`: what a mixed model says about rows, old and new."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jalax._fit.result import FitResult
from jalax._frontends import mixed_posterior
from jalax._frontends.mixed_averages import (
    NODES,
    WEIGHTS,
    averaged,
    averaged_mean,
    is_inverse_link,
    prior_variance,
    spread_slopes,
)
from jalax._frontends.mixed_parts import (
    Parts,
    check_new_levels,
    numbers,
    parts_of,
    theta_covariance,
)
from jalax._runtime import arguments
from jalax.families._family import Family
from jalax.families._zeros import LOG_ODDS
from jalax.models import _new_rows
from jalax.models._design import Side
from jalax.models._mixed import MixedDesign


class Estimates(NamedTuple):
    """Of each row, (n,)."""

    link: np.ndarray
    variance: np.ndarray  # of `link`
    response: np.ndarray


class Own(NamedTuple):
    """A family's own parameters, of some of them one for each row."""

    numbers: dict[str, Any]
    rows: dict[str, np.ndarray]  # (n,)

    def at(self, some: Any = slice(None), axes: int = 0) -> dict[str, Any]:
        """Of some rows, with so many axes more."""
        shape = (-1, *(1,) * axes)
        return self.numbers | {name: row[some].reshape(shape) for name, row in self.rows.items()}


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

    def own(self, frame: Any) -> Own:
        """The family's own parameters of the rows."""
        design, theta = self.mixed.design, self.theta
        family = self.mixed.family

        def of_side(side: Side, coefficients: np.ndarray) -> np.ndarray:
            X = side.X if frame is None else _new_rows.side_rows(side, design, frame)
            return X @ coefficients

        rows: dict[str, np.ndarray] = {}
        if design.dispersion is not None:
            rows[str(family.dispersion)] = np.exp(of_side(design.dispersion, theta["dispersion"]))
        if design.zero is not None:
            rows[LOG_ODDS] = of_side(design.zero, theta["zero"])
        numbers = {name: theta[name] for name in family.own if name in theta}
        if design.precision is not None and frame is None:  # of new rows it does not matter
            sigma = rows.get("sigma", numbers.get("sigma"))
            rows["sigma"] = np.asarray(sigma) / np.sqrt(design.precision)
        return Own(numbers, rows)

    def mean(self, eta: np.ndarray, own: dict[str, Any]) -> np.ndarray:
        """Of the response; where it has none, eta, which only the link scale shows."""
        family = self.mixed.family
        return family.mean(eta, own) if family.has_mean else eta

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
        return Estimates(eta, variance, fit.mean(eta, fit.own(frame).at()))


@dataclasses.dataclass(frozen=True)
class Marginal(Effects):
    r"""The average over all levels that there could be, new ones: $\int h(\eta)\, N(\eta; x'\beta +
    o, z'\Sigma z)\, d\eta$ with the inverse link $h$.

    Its variance is that of the fixed effects and of Sigma, by the delta method on the link scale.
    Of a Gaussian model it is `Population`. The link scale is the link of this average.
    """

    def estimates(self, fit: Fit, frame: Any) -> Estimates:
        family, theta = fit.mixed.family, fit.theta
        check_has_mean(family)
        X, offset = fit.fixed(frame)
        eta = X @ theta["beta"] + offset
        Z = fit.effects(frame)
        spread = np.sqrt(prior_variance(fit.mixed, theta, Z))
        inverse, by_eta, by_spread = averaged(family.link, eta, spread)
        link = family.link.of(inverse)
        slope = family.link.slope(link)
        response = inverse
        if not is_inverse_link(family):
            response = averaged_mean(family, eta, spread, fit.own(frame).at())
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
        random = fit.random(frame)
        check_new_levels(fit.mixed, random)
        return _conditional(fit, frame, random)


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
    response = _conditional_mean(fit, posterior, base, parts, new, fit.own(frame))
    variance = variance + new + np.einsum("np,pq,nq->n", gradient, fit.covariance, gradient)
    return Estimates(base + mean, variance, response)


def _conditional_mean(fit: Fit, posterior, base, parts, new: np.ndarray, own: Own) -> np.ndarray:
    """The mean of the response over the posterior of b, and over the prior of new levels."""
    if not fit.mixed.family.has_mean:
        return base

    def of(eta, some):
        return fit.mean(eta, own.at(some, eta.ndim - 1))

    for part in parts[1:]:  # levels of other groups are independent; nearly normal will do
        mean, variance = posterior.moments(part)
        base, new = base + mean, new + variance
    response = posterior.average(of, base, parts[0])
    rows = new > 0
    if rows.any():
        lead = Parts(*(array[rows] for array in parts[0]))
        index = np.flatnonzero(rows)

        def of_new(eta, some):
            return of(eta, index[some])

        response[rows] = sum(
            weight * posterior.average(of_new, base[rows] + node * np.sqrt(new[rows]), lead)
            for node, weight in zip(NODES, WEIGHTS, strict=True)
        )
    return response


def _of_new_levels(random: _new_rows.Random) -> dict[str, np.ndarray]:
    return {name: z * (random.level[name] < 0)[:, None] for name, z in random.Z.items()}


# --- the scale -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scale:
    """On which scale numbers are shown."""

    def columns(
        self, mean: Callable, slope: Callable, found: Estimates, level: float
    ) -> dict[str, np.ndarray]:
        """`mean` and `slope` take a linear predictor to the response's scale."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Link(Scale):
    """The scale of the linear predictor: logits, logarithms, or that of a Gaussian response."""

    def columns(self, mean, slope, found, level):
        error, far = np.sqrt(found.variance), _quantile(level)
        ends = found.link - far * error, found.link + far * error
        return dict(zip(COLUMNS, (found.link, error, *ends), strict=True))


@dataclasses.dataclass(frozen=True)
class Response(Scale):
    """The scale of the response: probabilities, expected counts.

    An interval is that of the link scale, mapped; a standard error is by the delta method.
    """

    def columns(self, mean, slope, found, level):
        error, far = np.sqrt(found.variance), _quantile(level)
        ends = found.link - far * error, found.link + far * error
        low, high = np.sort([mean(end) for end in ends], axis=0)  # a mean may fall with eta
        error = error * np.abs(slope(found.link))
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


def check_has_order(family: Family) -> None:
    if not family.has_order:
        raise ValueError(
            f"each category of {family!r} but the first has a linear predictor of its own, and "
            "none has a mean: ask for result.probabilities(new_data)."
        )


def check_has_mean(family: Family) -> None:
    check_has_order(family)
    if not family.has_mean:
        raise ValueError(
            f"the response of {family!r} has no mean: ask for scale=jalax.predictions.Link(), or "
            "for result.probabilities(new_data)."
        )


def predict(fit: Fit, data: Any, effects: Effects, scale: Scale, level: float) -> Any:
    """`MixedResult.predict`."""
    import pandas

    check_choice("effects", effects, Effects, EFFECTS)
    check_choice("scale", scale, Scale, SCALES)
    level = arguments.check_fraction("level", level)
    check_has_order(fit.mixed.family)
    frame = fit.rows(data)
    found = effects.estimates(fit, frame)
    index = fit.mixed.design.frame.index if frame is None else frame.index
    family, own = fit.mixed.family, fit.own(frame).at()
    if isinstance(scale, Response):
        check_has_mean(family)

    def mean(eta):
        return family.mean(eta, own)

    def slope(eta):
        return family.slope(eta, own)

    return pandas.DataFrame(scale.columns(mean, slope, found, level), index=index)


def fitted(fit: Fit) -> np.ndarray:
    """The mean of each row's response over the posterior of b, without its errors."""
    check_has_mean(fit.mixed.family)
    X, offset = fit.fixed(None)
    parts = parts_of(fit.mixed, fit.random(None))
    posterior = mixed_posterior.posterior(fit.result, fit.mixed)
    base = X @ fit.theta["beta"] + offset
    return _conditional_mean(fit, posterior, base, parts, np.zeros(len(base)), fit.own(None))


def marginal_means_of_rows(fit: Fit) -> np.ndarray:
    """The mean of each row's response over all levels that there could be."""
    X, offset = fit.fixed(None)
    spread = np.sqrt(prior_variance(fit.mixed, fit.theta, fit.effects(None)))
    family, eta = fit.mixed.family, X @ fit.theta["beta"] + offset
    if is_inverse_link(family):
        return averaged(family.link, eta, spread)[0]
    return averaged_mean(family, eta, spread, fit.own(None).at())
