"""Residuals of mixed models, against R and against what they should be distributed like."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from matplotlib.figure import Figure
from scipy.special import expit

import jalax
from jalax import predictions, residuals
from jalax._frontends.mixed_predict import Fit
from jalax._frontends.mixed_residuals import quantiles

PEARSON, DEVIANCE = residuals.Pearson(), residuals.Deviance()


@pytest.fixture(scope="module")
def sleep():
    data = jalax.datasets.sleepstudy().to_frame()
    return jalax.mixed("reaction ~ days + (days|subject)", data, key=jax.random.key(0))


@pytest.fixture(scope="module")
def cbpp():
    data = jalax.datasets.cbpp().to_frame()
    formula = "p(incidence, size) ~ period + (1|herd)"
    return jalax.mixed(formula, data, family="binomial", key=jax.random.key(0))


GROUPS, EACH = 40, 20


def counts(shape):
    """Counts in groups: Poisson, or with more variance than that."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(GROUPS), EACH)
    x = rng.normal(size=group.size)
    rate = np.exp(0.8 + 0.4 * x + 0.5 * rng.normal(size=GROUPS)[group])
    if shape is not None:
        rate = rate * rng.gamma(shape, 1 / shape, rate.size)
    return {"y": rng.poisson(rate), "x": x, "g": group.astype(str)}


@pytest.fixture(scope="module")
def right():
    formula = "y ~ x + (1|g)"
    return jalax.mixed(formula, counts(None), family="poisson", key=jax.random.key(0))


@pytest.fixture(scope="module")
def wrong():
    formula = "y ~ x + (1|g)"
    return jalax.mixed(formula, counts(1.5), family="poisson", key=jax.random.key(0))


def test_residuals_of_a_gaussian_model_are_those_of_lme4(sleep):
    """residuals(m); residuals(m, "pearson", scaled = TRUE)"""
    rows = [0, 4, 9, 56, 179]
    left = [-4.660893869, 24.459835183, 36.247471497, 132.548763712, -5.402300175]
    over = [-0.1821237418, 0.9557644590, 1.4163646127, 5.1793234293, -0.2110940841]
    np.testing.assert_allclose(sleep.residuals().iloc[rows], left, atol=0.02)
    np.testing.assert_allclose(sleep.residuals(PEARSON).iloc[rows], over, atol=3e-3)
    np.testing.assert_allclose(sleep.residuals(DEVIANCE), sleep.residuals())
    y = np.asarray(jalax.datasets.sleepstudy().reaction)
    np.testing.assert_allclose(sleep.fitted() + sleep.residuals(), y)


def test_residuals_of_a_binomial_model_are_near_lme4s(cbpp):
    """residuals(g, type) with nAGQ = 25; lme4 puts the mode of b in, and we average over b."""
    rows = [0, 1, 4, 19, 55]
    known = {
        residuals.Response(): [-0.165843, 0.107858, -0.018169, 0.034818, -0.028964],
        PEARSON: [-1.343259, 1.069975, -0.235762, 0.411702, -0.668892],
        DEVIANCE: [-1.441750, 0.984494, -0.239752, 0.398985, -0.939013],
    }
    for kind, values in known.items():
        np.testing.assert_allclose(cbpp.residuals(kind).iloc[rows], values, atol=0.06)


def test_residuals_of_a_binomial_model_follow_from_its_fitted_values(cbpp):
    """By R's definitions, spelled out."""
    data = jalax.datasets.cbpp()
    p, n, y = np.asarray(cbpp.fitted()), data.size, data.incidence
    np.testing.assert_allclose(cbpp.residuals(), y / n - p)
    np.testing.assert_allclose(cbpp.residuals(PEARSON), (y - n * p) / np.sqrt(n * p * (1 - p)))
    best = scipy.stats.binom.logpmf(y, n, y / n)
    deviance = 2 * (best - scipy.stats.binom.logpmf(y, n, p))
    np.testing.assert_allclose(cbpp.residuals(DEVIANCE) ** 2, deviance, rtol=1e-6, atol=1e-9)


def test_quantile_residuals_of_a_gaussian_model_in_closed_form(sleep):
    data, theta = jalax.datasets.sleepstudy(), sleep.theta
    a, b = np.asarray(theta["sd"]["subject"], float)
    variance = (
        a**2 + 2 * a * b * float(theta["cor"]["subject"][0]) * data.days + (b * data.days) ** 2
    )
    expected = data.reaction - data.covariates @ np.asarray(theta["beta"], float)
    expected = expected / np.sqrt(variance + float(theta["sigma"]) ** 2)
    found = sleep.residuals(residuals.Quantile(jax.random.key(1)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_quantile_residuals_lie_in_their_jumps(cbpp):
    """F(y - 1) to F(y) of each row, the herd integrated out by scipy."""
    data = jalax.datasets.cbpp()
    beta, sd = np.asarray(cbpp.theta["beta"], float), float(cbpp.theta["sd"]["herd"][0])
    eta = data.covariates @ beta
    found = scipy.stats.norm.cdf(cbpp.residuals(residuals.Quantile(jax.random.key(1))))
    inside = []
    for i in range(0, 56, 5):

        def cdf(y, i=i):
            def at(u):
                p = expit(eta[i] + sd * u)
                return scipy.stats.norm.pdf(u) * scipy.stats.binom.cdf(y, data.size[i], p)

            return scipy.integrate.quad(at, -8, 8, epsabs=1e-10)[0]

        low, high = cdf(data.incidence[i] - 1), cdf(data.incidence[i])
        assert low - 1e-8 <= found[i] <= high + 1e-8
        inside.append((found[i] - low) / (high - low))
    assert min(inside) < 0.4  # random places, and not an end
    assert max(inside) > 0.6


def test_quantile_residuals_given_a_draw_of_the_random_effects(cbpp):
    """With the herds' own b there is less spread left than without, and another draw is another."""
    kinds = [residuals.Quantile(jax.random.key(i), predictions.Conditional()) for i in (1, 2)]
    first, second = (cbpp.residuals(kind) for kind in kinds)
    assert np.all(np.isfinite(first))
    assert not np.allclose(first, second)
    # Those of a right model: 56 of them within Kolmogorov's 0.1 % of the normal distribution.
    assert scipy.stats.kstest(first, "norm").pvalue > 0.001


def test_the_right_model_passes(right):
    """The p value is uniform or larger: one false alarm in 50 seeds of the data."""
    assert right.residual_test(jax.random.key(2)).p_value > 0.02


def test_the_wrong_model_fails(wrong):
    """Poisson, fitted to counts with twice the variance and more."""
    found = wrong.residual_test(jax.random.key(2))
    assert found.p_value == pytest.approx(1 / 201)
    assert found.distance > found.simulated.max()
    assert found.simulated.shape == (200,)


def test_distances_are_kolmogorovs(right):
    uniform = quantiles(Fit(right, right.mixed), jax.random.key(3), predictions.Marginal())
    found = right.residual_test(jax.random.key(2))
    assert 0 < found.distance < 1
    from jalax._frontends.mixed_residuals import _distance

    expected = scipy.stats.kstest(uniform, "uniform").statistic
    np.testing.assert_allclose(_distance(uniform[None])[0], expected, rtol=1e-12)


@pytest.mark.slow
def test_simulated_data_have_the_models_moments(right):
    """Mean, and the covariance of two rows of a group; 500 data sets, 5 errors."""
    y = right.simulate(jax.random.key(4), 500)
    beta, sd = np.asarray(right.theta["beta"], float), float(right.theta["sd"]["g"][0])
    design = right.mixed.design
    mean = np.exp(design.X @ beta + sd**2 / 2)
    error = y.std(axis=0) / np.sqrt(len(y))
    assert np.all(np.abs(y.mean(axis=0) - mean) < 5 * error)
    pair = (y[:, 0] - mean[0]) * (y[:, 1] - mean[1])
    covariance = mean[0] * mean[1] * np.expm1(sd**2)
    assert design.blocks[0].index[0] == design.blocks[0].index[1]
    assert abs(pair.mean() - covariance) < 5 * pair.std() / np.sqrt(len(y))
    apart = (y[:, 0] - mean[0]) * (y[:, -1] - mean[-1])
    assert abs(apart.mean()) < 5 * apart.std() / np.sqrt(len(y))


def test_the_figure_has_the_residuals(sleep, right):
    axes = Figure().subplots(2, 2)
    drawn = sleep.plot_residuals(ax=axes)
    assert drawn.shape == (4,)
    values = np.asarray(sleep.residuals(PEARSON))
    np.testing.assert_allclose(drawn[0].lines[0].get_ydata(), values)
    np.testing.assert_allclose(drawn[0].lines[0].get_xdata(), sleep.fitted())
    np.testing.assert_allclose(drawn[1].lines[0].get_ydata(), np.sort(values))
    np.testing.assert_allclose(drawn[2].lines[0].get_ydata(), np.sqrt(np.abs(values)))
    assert len(drawn[3].get_xticklabels()) == 18
    drawn = right.plot_residuals(residuals.Quantile(jax.random.key(5)), ax=axes)
    means = right.predict(effects=predictions.Marginal())["estimate"]
    np.testing.assert_allclose(drawn[0].lines[-3].get_xdata(), means)
    with pytest.raises(ValueError, match="plot_residuals draws 4 panels, and ax= holds 1"):
        sleep.plot_residuals(ax=Figure().subplots())


def test_a_report_shows_them_with_the_random_effects(cbpp, sleep, tmp_path):
    for fit, kind, label in ((sleep, "pearson", "308"), (cbpp, "quantile", "herd")):
        fit.report(tmp_path / "fit.html")
        page = (tmp_path / "fit.html").read_text(encoding="utf-8")
        captions = re.findall("<figcaption>(.*?)</figcaption>", page)
        assert captions[-4:] == [
            *("residuals and fitted values", "normal quantiles"),
            *("scale and location", "by group"),
        ]
        assert f"{kind} residuals" in page
        latents = page[page.index("<h2>Latents</h2>") : page.index("<h2>Figures</h2>")]
        assert label in latents
        first = fit.latents()
        assert f">{first.mean[0]:.5g}<" in latents
        assert "shrinkage" in latents


def test_kinds_are_objects(sleep):
    with pytest.raises(TypeError, match=r"kind must be one of jalax.residuals.Response\(\), Pear"):
        sleep.residuals("pearson")
    with pytest.raises(TypeError, match="a key is missing"):
        sleep.residuals(residuals.Quantile(None))
