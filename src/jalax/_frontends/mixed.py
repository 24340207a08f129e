"""`jalax.mixed`: a mixed model from a formula, fitted, and reported the way lme4 does."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jalax._export.posterior import Latents
from jalax._export.tables import Summary
from jalax._fit import origins
from jalax._fit.callbacks import Callback
from jalax._fit.fit import fit
from jalax._fit.result import FitResult
from jalax._frontends import (
    mixed_categories,
    mixed_effects,
    mixed_files,
    mixed_means,
    mixed_plots,
    mixed_predict,
    mixed_residuals,
    mixed_restricted,
    mixed_summary,
)
from jalax._frontends.mixed_effects import Centre, Mean
from jalax._frontends.mixed_latents import mixed_latents
from jalax._frontends.mixed_likelihood import MixedLikelihood
from jalax._frontends.mixed_predict import Conditional, Effects, Fit, Link, Response, Scale
from jalax._frontends.mixed_residuals import Pearson, ResidualTest
from jalax._frontends.mixed_rows import to_rows
from jalax._model.algorithm import Algorithm
from jalax._particles import trees
from jalax._runtime import arguments
from jalax.models._contrasts import Contrasts, check
from jalax.models._covariances import Covariance
from jalax.models._design import Asked
from jalax.models._kept_rows import Drop, Missing
from jalax.models._mixed import build
from jalax.models._r_words import named_options
from jalax.models._restricted import REML

# What is done where nothing else is asked for.
CONDITIONAL, RESPONSE, LINK = Conditional(), Response(), Link()
PEARSON, MEAN, DROP = Pearson(), Mean(), Drop()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MixedResult(MixedLikelihood):
    """A `FitResult` of `jalax.mixed`.

    `theta` is {"beta": (p,), "sd": {factor: (q,)}, "cor": {factor: (q (q - 1) / 2,)}} and the
    family's own parameters by name, such as "sigma" of a Gaussian one, or instead of these the
    coefficients of "dispersion", and those of "zero". With `covariances=` there may be "range" and
    "tails" by factor, and "cor" has what correlation there is.
    """

    def coef(self) -> dict[str, float]:
        """The fixed effects by name."""
        known = super().coef()
        return known if self.mixed is None else {n: known[n] for n in self.mixed.design.fixed}

    def latents(self, level: float = 0.95) -> Latents:
        """Posterior mean, standard deviation and interval of each random effect, by name.

        As of any result, and with the shrinkage: `jalax.results.Latents` says what that is.
        """
        if self.mixed is None:
            return super().latents(level)
        return mixed_latents(self, self.mixed, arguments.check_fraction("level", level))

    @property
    def aic(self) -> float | None:
        """-2 log p_theta(y) + 2 x parameters; its Monte-Carlo error is twice the evidence's."""
        value = self.log_evidence
        return None if value is None else -2 * value + 2 * self.num_parameters

    @property
    def bic(self) -> float | None:
        """-2 log p_theta(y) + log(observations) x parameters."""
        value = self.log_evidence
        if value is None or self.mixed is None:
            return None
        return -2 * value + np.log(self.mixed.num_rows) * self.num_parameters

    def simulate(self, key, num: int = 1) -> np.ndarray:
        """(num, n): new responses of the data's rows, with new random effects."""
        assert self.mixed is not None
        self._check_simulate()
        return to_rows(self.mixed, super().simulate(key, num)["y"])

    def random_effects(self, *, at: Centre = MEAN) -> dict[str, Any]:
        """The random effects given the data, a DataFrame a factor with a row a level.

        A column for each effect has its posterior mean at the fitted theta, one with " sd" its
        posterior standard deviation, and one with " mc error" the Monte-Carlo error of the mean.
        Of a Gaussian model they are in closed form, lme4's `ranef` and `condVar`, and the error is
        zero. Else they are those of the weighted particles. The error has nothing of theta's own.

        Args:
            at: `jalax.predictions.Mean()`, or `Mode()`, lme4's `ranef` of any family.
        """
        assert self.mixed is not None
        return mixed_effects.table(self, self.mixed, at)

    def predict(
        self,
        new_data: Any = None,
        *,
        effects: Effects = CONDITIONAL,
        scale: Scale = RESPONSE,
        level: float = 0.95,
    ) -> Any:
        """Predictions of the mean of each row, with intervals.

        Args:
            new_data: a pandas or polars DataFrame, or a dict of columns, coded as the data of the
                fit were (levels of factors, `scale()`, splines); by default the data of the fit.
            effects: from `jalax.predictions`: `Conditional()`, with the random effects of the
                levels in the data, `ConditionalOrNew()`, where other levels are allowed, too,
                `Population()`, with random effects of zero, or `Marginal()`, averaged over all
                levels that there could be. Each says what its intervals hold.
            scale: `jalax.predictions.Response()`, as probabilities or counts, or `Link()`.
            level: of the intervals.

        Returns:
            A DataFrame with the columns "estimate", "std. error", "lower" and "upper". The
            intervals are Wald intervals of the mean on the link scale, not of a new response.

        >>> import jax, jalax
        >>> data = jalax.datasets.dyestuff().to_frame()
        >>> result = jalax.mixed("yield_ ~ 1 + (1|batch)", data, key=jax.random.key(0))
        >>> new = {"batch": ["A", "F"]}
        >>> result.predict(new)["estimate"].round(0).tolist()
        [1511.0, 1485.0]
        """
        return mixed_predict.predict(self._fit, new_data, effects, scale, level)

    def probabilities(self, new_data: Any = None, *, effects: Effects = CONDITIONAL) -> Any:
        """The probabilities of the categories of a response, ordered or not.

        Args:
            new_data: as in `predict`.
            effects: `jalax.predictions.Conditional()`, averaged over the random effects given the
                data, or `Population()`, with random effects of zero.

        Returns:
            A DataFrame with a column a category.
        """
        return mixed_categories.probabilities(self._fit, new_data, effects)

    def fitted(self) -> Any:
        """The mean of each row's response given the data, a pandas Series.

        It is averaged over the posterior of the random effects, where lme4 puts their modes in.
        """
        return self._series(mixed_predict.fitted(self._fit), "fitted")

    def residuals(self, kind: Any = RESPONSE) -> Any:
        """Residuals of each row, a pandas Series.

        Args:
            kind: from `jalax.residuals`: `Response()`, the response (of a binomial one the share)
                less `fitted()`; `Pearson()`; `Deviance()`; or `Quantile(key)`.
        """
        return self._series(mixed_residuals.residuals(self._fit, kind), "residual")

    def residual_test(self, key: jax.Array, num: int = 200) -> ResidualTest:
        """Do the quantile residuals have the distribution that they should have?

        Kolmogorov's distance of `jalax.residuals.Quantile` from its distribution, compared with
        that of data sets that are simulated from the fitted model with new random effects: rows of
        a level depend on each other, so that a table of the distance does not apply. Theta is not
        fitted again to these, which makes the test cautious.

        Args:
            key: `jax.random.key(seed)`.
            num: how many data sets; the p value is at least 1 / (num + 1).
        """
        return mixed_residuals.residual_test(self._fit, key, num)

    def plot_residuals(self, kind: Any = PEARSON, ax: Any = None) -> np.ndarray:
        """Residuals in four panels: against fitted values, normal quantiles, scale, by group.

        Args:
            kind: as in `residuals`; of a count, `jalax.residuals.Quantile(key)` should be normal,
                and is drawn against the means over all levels, since it holds random effects.
            ax: four matplotlib axes; by default those of a new figure.

        Returns:
            The axes, an array of four.
        """
        return mixed_plots.plot_residuals(self._fit, kind, ax)

    def _report_panels(self) -> dict[str, Callable[[Any], None]]:
        if self.mixed is None or not self.mixed.family.has_order:
            return {}
        return mixed_plots.report_panels(self._fit)

    def marginal_means(self, factor: str, *, scale: Scale = RESPONSE, level: float = 0.95) -> Any:
        """The mean of each level of a factor in the fixed effects, as R's emmeans.

        All combinations of the other factors count alike, covariates are at their means, and
        random effects are zero. Means are taken on the link scale and then mapped.

        Args:
            factor: its column.
            scale: as in `predict`.
            level: of the Wald intervals.

        Returns:
            A DataFrame with a row a level, and the columns of `predict`.
        """
        return mixed_means.marginal_means(self._fit, factor, scale, level)

    def contrasts(self, factor: str, *, scale: Scale = LINK, level: float = 0.95) -> Any:
        """The differences of all pairs of `marginal_means`, with Wald tests.

        There is no correction for testing several. On the response scale differences of logits are
        odds ratios, and those of logarithms ratios.

        Args:
            factor: its column.
            scale: `jalax.predictions.Link()` or `Response()`.
            level: of the intervals.
        """
        return mixed_means.contrasts(self._fit, factor, scale, level)

    @property
    def _fit(self) -> Fit:
        assert self.mixed is not None
        return Fit(self, self.mixed)

    def _series(self, values: np.ndarray, name: str) -> Any:
        import pandas

        assert self.mixed is not None
        return pandas.Series(values, index=self.mixed.design.frame.index, name=name)

    def summary(self) -> Summary:
        """The tables of lme4's `summary`, with the simulation errors of a Monte-Carlo fit."""
        if self.mixed is None or self.known_evidence is None or self.known_uncertainty is None:
            return super().summary()
        quality = mixed_summary.quality(self, self.mixed)
        return mixed_summary.summarise(self, self.mixed, self._rows(), quality)

    def _model_section(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        if self.mixed is None:
            return {}
        section = mixed_files.pack(self.mixed, arrays)
        return {} if section is None else {"mixed": section | mixed_files.changes(self.origin)}

    @classmethod
    def _from_fields(cls, fields: dict, header: dict, arrays: dict, model: Any) -> FitResult:
        if header.get("mixed") is None:  # a pickle without the columns
            return FitResult._from_fields(fields, header, arrays, model)
        model, design = mixed_files.unpack(header["mixed"], arrays, fields)
        origin = None
        if header.get("origin") is not None and model is not None:
            origin = origins.unpack(header["origin"], arrays, model, fields["free"])
        return cls(**fields, origin=origin, mixed=design)

    def _rows(self) -> list[tuple[str, float, float, float, float, float]]:
        """Name, estimate, standard error, simulation error and interval of each number of theta."""
        values = trees.numbers_of(self.theta)
        known = self.uncertainty
        errors, simulation = known.errors(known.covariance), known.errors(known.simulation)
        ends = [
            jax.tree.map(lambda leaf, i=i: leaf[..., i], self.confidence_intervals())
            for i in (0, 1)
        ]
        low, high = (trees.numbers_of(end) for end in ends)
        return list(zip(self.names, values, errors, simulation, low, high, strict=True))


@named_options("jalax.mixed")
def mixed(
    formula: str,
    data: Any,
    *,
    family: Any = "gaussian",
    dispersion: str | None = None,
    zero: str | None = None,
    weights: Any = None,
    precision_weights: Any = None,
    frequencies: Any = None,
    offset: str | None = None,
    contrasts: Mapping[str, Contrasts] | None = None,
    covariances: Mapping[str, Covariance] | None = None,
    subset: Any = None,
    missing: Missing = DROP,
    likelihood: REML | None = None,
    key: jax.Array | None = None,
    algorithm: Algorithm | None = None,
    num_particles: int | None = None,
    num_steps: int | None = None,
    restarts: int | None = None,
    fixed: Mapping[str, Any] | None = None,
    log_prior: Callable[[Any], Any] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Callback | None = None,
) -> MixedResult:
    """Fit a mixed model by maximum marginal likelihood, or by REML.

    Args:
        formula: in the syntax of lme4 as far as formulae reads it: `y ~ x + (1|g)` (a random
            intercept), `(x|g)` (and a slope, correlated), `(x||g)` (not correlated), `(1|a/b)`
            (b nested in a), `(1|a) + (1|b)` (crossed), `p(successes, trials)` for binomial counts,
            `offset(log(t))`.
        data: a pandas or polars DataFrame, or a dict of columns.
        family: a name, such as "binomial" or "gamma" (`jalax.families` has them all, and knows
            those of R's packages), or an object with its link,
            `jalax.families.Binomial(link=jalax.families.Probit())`.
        dispersion: a formula such as `"~ x"` for the logarithm of the family's own scale or shape.
        zero: a formula for the log-odds of zeros beside those of the family; of a family without
            zeros, such as "gamma" or "truncated poisson", that is a hurdle model.
        weights: a column of the data, or numbers of its rows; a row counts as often as it says, of
            any family (glmmTMB's `weights`).
        precision_weights: the same; the variance of a Gaussian row is sigma^2 over it (lmer's
            `weights`).
        frequencies: the same, of whole groups: 1,000 persons with 30 patterns of answers are 30
            groups, and each row has the number of persons with the pattern that it is part of.
        offset: a column to add to the linear predictor, beside any `offset()` of the formula.
        contrasts: how factors of the fixed effects are coded, `{"arm": jalax.contrasts.Helmert()}`;
            by themselves they are by treatment, and the first level is the reference.
        covariances: of random effects that are not to be unstructured, by the names they have in
            the summary: `{"site": jalax.covariances.Exponential(coordinates)}`. Some can be asked
            for in the formula, too: `diag(x | g)`, `cs(0 + f | g)`, `ar1(0 + C(week) | g)`.
        subset: which rows to fit: booleans, such as `data["age"] > 5`, or a column of these. Where
            it is not known whether, they are left out.
        missing: `jalax.missing.Drop()` leaves rows with missing values out, with a warning and a
            line in the summary; `jalax.missing.Refuse()` refuses them.
        likelihood: `jalax.REML()`, for Gaussian responses; None: maximum likelihood.
        key: `jax.random.key(seed)`.
        algorithm, num_particles, num_steps, restarts, callbacks, progress: as in `jalax.fit`.
        fixed: as in `jalax.fit`, by the names of the summary: `fixed={"sd Intercept | g": 0.5}`.
        log_prior: as in `jalax.fit`, of theta as in `MixedResult`.

    Returns:
        A `MixedResult`, whose `summary()` reads like lme4's. `random_effects()` has the levels.

    >>> import jax, jalax
    >>> data = jalax.datasets.dyestuff().to_frame()
    >>> result = jalax.mixed("yield_ ~ 1 + (1|batch)", data, key=jax.random.key(0))
    >>> abs(float(result.theta["beta"][0]) - 1527.5) < 1.0
    True
    """
    arguments.check_key(key)
    asked = Asked(
        dispersion=dispersion,
        zero=zero,
        weights=weights,
        precision_weights=precision_weights,
        frequencies=frequencies,
        offset=offset,
        contrasts=check(contrasts),
        covariances=covariances,
        subset=subset,
        missing=missing,
        likelihood=likelihood,
    )
    model, design = build(formula, data, family, asked)
    mixed_restricted.check_options(design, fixed, log_prior)
    if design.design.left_out is not None:
        warnings.warn(design.design.left_out.sentence, stacklevel=3)
    result = fit(
        model,
        key=key,
        algorithm=algorithm,
        num_particles=num_particles,
        num_steps=num_steps,
        restarts=restarts,
        fixed=fixed,
        log_prior=log_prior,
        callbacks=callbacks,
        progress=progress,
    )
    known = {field.name: getattr(result, field.name) for field in dataclasses.fields(FitResult)}
    return MixedResult(**known | mixed_restricted.improved(result, design), mixed=design)
