"""Predictions of mixed models against lme4, glmmTMB and quadrature."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from scipy.special import expit, logit

import jalax
from jalax import families, predictions
from jalax._frontends import mixed_exact, mixed_parts, mixed_posterior
from jalax._frontends.mixed_averages import averaged, prior_variance, spread_slopes
from jalax._frontends.mixed_means import _weights
from jalax._frontends.mixed_predict import Fit
from jalax.models import _mixed, _new_rows

LINK = predictions.Link()
POPULATION, MARGINAL = predictions.Population(), predictions.Marginal()
NEW = predictions.ConditionalOrNew()


@pytest.fixture(scope="module")
def sleep():
    """lmer(Reaction ~ Days + (Days | Subject), sleepstudy, REML = FALSE)"""
    data = jalax.datasets.sleepstudy().to_frame()
    return jalax.mixed("reaction ~ days + (days|subject)", data, key=jax.random.key(0))


@pytest.fixture(scope="module")
def cbpp():
    """glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial)"""
    data = jalax.datasets.cbpp().to_frame()
    formula = "p(incidence, size) ~ period + (1|herd)"
    return jalax.mixed(formula, data, family="binomial", key=jax.random.key(0))


def grid_of(m, beta=None, sd=None, num=2001):
    """Of binomial rows with one intercept a herd: the posterior of b, by the trapezoidal rule."""
    design = m.mixed.design
    (block,) = design.blocks
    beta = np.asarray(m.theta["beta"], float) if beta is None else beta
    sd = float(m.theta["sd"][block.name][0]) if sd is None else sd
    b = np.linspace(-9 * sd, 9 * sd, num)
    eta = (design.X @ beta + design.offset)[:, None] + b
    log_p = np.tile(scipy.stats.norm.logpdf(b, 0, sd), (len(block.labels), 1))
    rows = scipy.stats.binom.logpmf(design.y[:, None], design.size[:, None], expit(eta))
    np.add.at(log_p, block.index, rows)
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    return b, eta, p / p.sum(axis=1, keepdims=True), block.index


def herd_means(m, beta=None, sd=None):
    b, _, p, _ = grid_of(m, beta, sd)
    return p @ b


# ---------------------------------------------------------------- random effects


def test_random_effects_of_a_gaussian_model_are_those_of_lme4(sleep):
    """ranef(m, condVar = TRUE)$Subject; theta is off by a few thousandths of its errors."""
    found = sleep.random_effects()["subject"]
    assert found.index[:4].tolist() == ["308", "309", "310", "330"]
    intercept = [2.81578902, -40.04785492, -38.43249687, 22.83176473]
    slope = [9.075506778, -8.644151662, -5.513470605, -4.658664862]
    np.testing.assert_allclose(found["Intercept"].iloc[:4], intercept, atol=0.02)
    np.testing.assert_allclose(found["days"].iloc[:4], slope, atol=0.005)
    np.testing.assert_allclose(found["Intercept sd"], 11.87286426, rtol=1e-3)
    np.testing.assert_allclose(found["days sd"], 2.271064777, rtol=1e-3)
    assert (found[["Intercept mc error", "days mc error"]] == 0).all(axis=None)


def test_random_effects_of_a_binomial_model_are_those_of_quadrature(cbpp):
    """Within errors, which are small beside those of as many independent draws."""
    found = cbpp.random_effects()["herd"]
    b, _, p, _ = grid_of(cbpp)
    mean = p @ b
    sd = np.sqrt(p @ b**2 - mean**2)
    (block,) = cbpp.mixed.design.blocks
    assert found.index.tolist() == list(block.labels)
    # The points belong to a theta that is a thousandth of an error away.
    shift = 2e-3 * float(np.max(cbpp.standard_errors()["beta"]))
    assert np.all(np.abs(found["Intercept"] - mean) < 4.5 * found["Intercept mc error"] + shift)
    np.testing.assert_allclose(found["Intercept sd"], sd, rtol=0.003)
    of_draws = sd / np.sqrt(np.asarray(cbpp.ess))
    assert np.all(found["Intercept mc error"] < 0.1 * of_draws)


def test_modes_of_a_binomial_model_are_where_the_slope_is_zero(cbpp):
    """By bisection in float64, herd by herd; the curvature there is in closed form."""
    found = cbpp.random_effects(at=predictions.Mode())["herd"]
    design, sd = cbpp.mixed.design, float(cbpp.theta["sd"]["herd"][0])
    fixed = design.X @ np.asarray(cbpp.theta["beta"], float)
    for i, (_, row) in enumerate(found.iterrows()):
        own = design.blocks[0].index == i
        y, size, eta = design.y[own], design.size[own], fixed[own]

        def slope(b, y=y, size=size, eta=eta):
            return np.sum(y - size * expit(eta + b)) - b / sd**2

        mode = scipy.optimize.brentq(slope, -10, 10, xtol=1e-12)
        share = expit(eta + mode)
        bend = np.sum(size * share * (1 - share)) + 1 / sd**2
        assert row["Intercept"] == pytest.approx(mode, abs=2e-4)
        assert row["Intercept sd"] == pytest.approx(bend**-0.5, rel=2e-4)
        assert row["Intercept mc error"] == 0
    with pytest.raises(TypeError, match="at must be jalax"):
        cbpp.random_effects(at="mode")


def test_modes_of_a_gaussian_model_are_its_means(sleep):
    mean, mode = (
        sleep.random_effects(at=at)["subject"] for at in (predictions.Mean(), predictions.Mode())
    )
    np.testing.assert_allclose(mode, mean, atol=2e-3)


def test_how_the_random_effects_move_with_theta(cbpp):
    """Against quadrature at thetas around."""
    beta, sd = np.asarray(cbpp.theta["beta"], float), float(cbpp.theta["sd"]["herd"][0])
    (parts,) = mixed_parts.parts_of(cbpp.mixed, _new_rows.same_rows(cbpp.mixed.design)[1])
    slopes = mixed_posterior.posterior(cbpp, cbpp.mixed).slopes(parts)
    herd = cbpp.mixed.design.blocks[0].index
    for i in range(5):
        step = 1e-4 * np.eye(5)[i]
        ends = [herd_means(cbpp, beta + s * step[:4], sd + s * step[4]) for s in (1, -1)]
        expected = ((ends[0] - ends[1]) / 2e-4)[herd]
        np.testing.assert_allclose(slopes[:, i], expected, atol=0.005)


# ---------------------------------------------------------------- with random effects


def test_predictions_of_a_gaussian_model_are_those_of_lme4_and_glmmtmb(sleep):
    """predict(m); predict(t, se.fit = TRUE) with t <- glmmTMB(...), for rows of the data."""
    found = sleep.predict()
    assert list(found.columns) == ["estimate", "std. error", "lower", "upper"]
    assert len(found) == 180
    rows = found.iloc[[0, 4, 9, 56, 179]]
    mean = [254.2208939, 332.3920648, 430.1060285, 321.6131363, 369.5259002]
    error = [12.945135151, 7.795937176, 14.268903842, 8.925316297, 13.812875612]
    np.testing.assert_allclose(rows["estimate"], mean, atol=0.02)
    np.testing.assert_allclose(rows["std. error"], error, rtol=2e-3)
    np.testing.assert_allclose(found["upper"] - found["estimate"], 1.959964 * found["std. error"])
    pd.testing.assert_frame_equal(found, sleep.predict(scale=LINK))


def test_new_levels_of_a_gaussian_model(sleep):
    """predict(t, new, allow.new.levels = TRUE, se.fit = TRUE)"""
    new = pd.DataFrame({"subject": ["308", "999", "335"], "days": [3.0, 11.0, 11.0]}, list("abc"))
    found = sleep.predict(new, effects=NEW)
    assert found.index.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(found["estimate"], [312.8493, 366.5451, 248.9141], atol=0.03)
    np.testing.assert_allclose(found["std. error"], [8.30993, 71.064615, 18.972466], rtol=2e-3)
    known = sleep.predict(new.iloc[[0, 2]])
    pd.testing.assert_frame_equal(known, found.iloc[[0, 2]])


def test_a_level_that_the_data_had_not_is_refused(sleep):
    new = {"subject": ["308", "999"], "days": [3.0, 11.0]}
    message = (
        "'999' is no level of 'subject' in the data of the fit: with "
        "effects=jalax.predictions.ConditionalOrNew() its random effect is zero, with the variance "
        "between levels."
    )
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (all of the message is looked at)
        sleep.predict(new)
    assert str(caught.value) == message


def test_predictions_of_a_binomial_model_by_quadrature(cbpp):
    """The means of eta and of the probability over the posterior, and the variance of eta."""
    _, eta, p, herd = grid_of(cbpp)
    on_link = cbpp.predict(scale=LINK)
    rows = p[herd]
    mean = np.sum(rows * eta, axis=1)
    np.testing.assert_allclose(on_link["estimate"], mean, atol=2e-3)
    given = np.sum(rows * eta**2, axis=1) - mean**2
    beta, sd = np.asarray(cbpp.theta["beta"], float), float(cbpp.theta["sd"]["herd"][0])
    gradient = np.concatenate([cbpp.mixed.design.X, np.zeros((56, 1))], axis=1)
    for i in range(5):
        step = 1e-4 * np.eye(5)[i]
        ends = [herd_means(cbpp, beta + s * step[:4], sd + s * step[4]) for s in (1, -1)]
        gradient[:, i] += ((ends[0] - ends[1]) / 2e-4)[herd]
    known = cbpp.uncertainty
    covariance = known.jacobian @ known.covariance @ known.jacobian.T
    error = np.sqrt(given + np.einsum("np,pq,nq->n", gradient, covariance, gradient))
    np.testing.assert_allclose(on_link["std. error"], error, rtol=0.01)
    found = cbpp.predict()
    np.testing.assert_allclose(found["estimate"], np.sum(rows * expit(eta), axis=1), atol=1e-3)
    np.testing.assert_allclose(found["lower"], expit(on_link["lower"]))
    np.testing.assert_allclose(found["estimate"], cbpp.fitted())


def test_predictions_of_a_binomial_model_are_near_glmmtmbs(cbpp):
    """predict(t, se.fit = TRUE), by Laplace's approximation and with modes: near, not the same."""
    found = cbpp.predict(scale=LINK)
    rows = found.iloc[[0, 1, 4, 19, 55]]
    error = [0.3783301285, 0.4302000636, 0.3934829132, 0.4175683538, 0.5598080793]
    np.testing.assert_allclose(rows["std. error"], error, rtol=0.05)
    mode = [-0.8062026884, -1.7976115723, -1.6994877228, -1.8016305539, -3.5123170010]
    np.testing.assert_allclose(rows["estimate"], mode, atol=0.06)
    new = cbpp.predict({"herd": ["1", "99"], "period": ["2", "3"]}, effects=NEW, scale=LINK)
    np.testing.assert_allclose(new["std. error"], [0.4302000636, 0.7222061596], rtol=0.05)


def test_expected_cases_add_up_to_those_in_the_data(cbpp):
    """The equation of the maximum likelihood estimate for each period, by Fisher's identity."""
    design = cbpp.mixed.design
    expected = design.X.T @ (design.size * cbpp.fitted())
    np.testing.assert_allclose(expected, design.X.T @ design.y, atol=0.05)


@pytest.fixture(scope="module")
def crossed():
    """Counts with two crossed factors, one joint latent of 17 numbers."""
    rng = np.random.default_rng(0)
    a, b, x = rng.integers(0, 12, 200), rng.integers(0, 5, 200), rng.normal(size=200)
    eta = 0.5 + 0.3 * x + 0.6 * rng.normal(size=12)[a] + 0.4 * rng.normal(size=5)[b]
    frame = {"y": rng.poisson(np.exp(eta)), "x": x, "a": a.astype(str), "b": b.astype(str)}
    formula = "y ~ x + (1|a) + (1|b)"
    return jalax.mixed(formula, frame, family="poisson", key=jax.random.key(0))


@pytest.mark.slow
def test_expected_counts_add_up_with_crossed_factors(crossed):
    """The same equation. Points that belong to theta one step before would be 1 % off."""
    design = crossed.mixed.design
    np.testing.assert_allclose(design.X.T @ crossed.fitted(), design.X.T @ design.y, rtol=1e-3)


@pytest.mark.slow
def test_a_new_level_of_one_of_two_factors(crossed):
    """b of the other factor as it is, and the variance between levels of this one."""
    new = {"x": [0.2, 0.2], "a": ["3", "99"], "b": ["1", "1"]}
    found = crossed.predict(new, effects=NEW, scale=LINK)
    effects = crossed.random_effects()
    beta = np.asarray(crossed.theta["beta"], float) @ [1, 0.2]
    a, b = effects["a"]["Intercept"]["3"], effects["b"]["Intercept"]["1"]
    np.testing.assert_allclose(found["estimate"], [beta + a + b, beta + b], rtol=1e-6)
    more = found["std. error"] ** 2 - float(crossed.theta["sd"]["a"][0]) ** 2
    assert 0 < more[1] < 0.5
    response = crossed.predict(new, effects=NEW)["estimate"]
    sd = float(crossed.theta["sd"]["a"][0])
    known = crossed.expectation(lambda x: x["b"][1, 0])  # near, but of the theta before
    assert abs(float(known) - b) < 0.1
    # exp of a normal variable on top of b's posterior, which is nearly normal itself
    of_b = effects["b"]["Intercept sd"]["1"] ** 2
    assert response[1] == pytest.approx(np.exp(beta + b + (of_b + sd**2) / 2), rel=5e-3)


def test_a_new_level_on_the_response_scale_is_averaged(cbpp):
    new = {"herd": ["99"] * 4, "period": ["1", "2", "3", "4"]}
    found = cbpp.predict(new, effects=NEW)
    averaged_over = cbpp.predict(new, effects=MARGINAL)
    np.testing.assert_allclose(found["estimate"], averaged_over["estimate"], rtol=1e-6)
    link = cbpp.predict(new, effects=NEW, scale=LINK)
    zero = cbpp.predict(new, effects=POPULATION, scale=LINK)
    np.testing.assert_allclose(link["estimate"], zero["estimate"], rtol=1e-12)
    sd = float(cbpp.theta["sd"]["herd"][0])
    np.testing.assert_allclose(link["std. error"] ** 2, zero["std. error"] ** 2 + sd**2)


# ---------------------------------------------------------------- without, and averaged


def test_predictions_without_random_effects_are_those_of_lme4(cbpp):
    """predict(g, re.form = NA, type = "response") with nAGQ = 25, and the errors of X vcov X'."""
    new = {"period": ["1", "2", "3", "4"]}  # no herd is needed
    found = cbpp.predict(new, effects=POPULATION)
    link = cbpp.predict(new, effects=POPULATION, scale=LINK)
    share = [0.19793932301, 0.08388980144, 0.07398463972, 0.04839724981]
    error = [0.2335113371, 0.3110170385, 0.3310415573, 0.4307192711]
    np.testing.assert_allclose(found["estimate"], share, rtol=2e-3)
    np.testing.assert_allclose(link["std. error"], error, rtol=5e-3)
    slope = np.multiply(share, np.subtract(1, share))
    np.testing.assert_allclose(found["std. error"], slope * error, rtol=1e-2)


def test_the_average_over_levels_by_an_integral(cbpp):
    new = {"period": ["1", "2", "3", "4"]}
    found = cbpp.predict(new, effects=MARGINAL)
    beta, sd = np.asarray(cbpp.theta["beta"], float), float(cbpp.theta["sd"]["herd"][0])
    L = np.column_stack([np.ones(4), np.vstack([np.zeros(3), np.eye(3)])])

    def average(beta, sd):
        def at(eta):
            density = scipy.stats.norm(eta, sd).pdf
            return scipy.integrate.quad(lambda x: expit(x) * density(x), -15, 15, epsabs=1e-12)[0]

        return np.array([at(eta) for eta in L @ beta])

    np.testing.assert_allclose(found["estimate"], average(beta, sd), rtol=1e-6)
    # by the delta method on the link scale
    slopes = []
    for i in range(5):
        step = 1e-4 * np.eye(5)[i]
        ends = [logit(average(beta + s * step[:4], sd + s * step[4])) for s in (1, -1)]
        slopes.append((ends[0] - ends[1]) / 2e-4)
    known = cbpp.uncertainty
    covariance = known.jacobian @ known.covariance @ known.jacobian.T
    error = np.sqrt(np.einsum("pn,pq,qn->n", slopes, covariance, slopes))
    link = cbpp.predict(new, effects=MARGINAL, scale=LINK)
    np.testing.assert_allclose(link["std. error"], error, rtol=1e-4)
    np.testing.assert_allclose(link["estimate"], logit(found["estimate"]))


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0, 10.0])
def test_averages_of_the_inverse_links(spread):
    """A wide random intercept, too, where few points of Gauss and Hermite go wrong."""
    eta = np.array([-3.0, 0.4])
    nodes = np.linspace(-12, 12, 20_001)
    weights = scipy.stats.norm.pdf(nodes) * (nodes[1] - nodes[0])
    at = eta[:, None] + spread * nodes
    value, by_eta, by_spread = averaged(families.Logit(), eta, np.full(2, spread))
    slope = expit(at) * expit(-at)
    np.testing.assert_allclose(value, expit(at) @ weights, rtol=1e-4)
    np.testing.assert_allclose(by_eta, slope @ weights, rtol=1e-3)
    np.testing.assert_allclose(by_spread, (slope * nodes) @ weights, rtol=1e-3, atol=1e-12)
    if spread <= 4:
        value, by_eta, by_spread = averaged(families.Log(), eta, np.full(2, spread))
        np.testing.assert_allclose(value, np.exp(at) @ weights, rtol=1e-6)
        np.testing.assert_allclose(by_spread, (np.exp(at) * nodes) @ weights, rtol=1e-6, atol=1e-12)


def test_how_the_spread_moves_with_theta():
    """sqrt(z' Sigma z) with a correlated slope and a second factor, one number at a time."""
    rng = np.random.default_rng(6)
    frame = {"y": rng.poisson(2, 30), "x": rng.normal(size=30)}
    frame |= {"g": np.repeat(list("abcde"), 6), "h": np.tile(list("pqr"), 10)}
    _, mixed = _mixed.build("y ~ x + (x|g) + (1|h)", frame, "negativebinomial")
    theta = {"beta": np.zeros(2), "cor": {"g": np.array([0.4]), "h": np.zeros(0)}}
    theta |= {"sd": {"g": np.array([0.7, 1.2]), "h": np.array([0.5])}, "shape": np.array(2.0)}
    flat, unravel = mixed_exact.ravel_float64(theta)
    Z = _new_rows.same_rows(mixed.design)[1].Z

    def spread(numbers):
        return np.sqrt(prior_variance(mixed, unravel(numbers), Z))

    assert spread(flat)[0] == pytest.approx(
        np.sqrt(0.49 + 2 * 0.4 * 0.84 * frame["x"][0] + 1.44 * frame["x"][0] ** 2 + 0.25)
    )
    slopes = spread_slopes(mixed, theta, Z, spread(flat))
    assert slopes.shape == (30, 5)
    for i in range(5):
        step = 1e-6 * np.eye(7)[i + 2]
        expected = (spread(flat + step) - spread(flat - step)) / 2e-6
        np.testing.assert_allclose(slopes[:, i], expected, atol=1e-8)


def test_choices_are_objects(sleep):
    for options, message in [
        ({"effects": "population"}, "effects must be one of jalax.predictions.Conditional(), "),
        ({"effects": predictions.Population}, "effects must be one of "),
        ({"scale": "link"}, "scale must be one of jalax.predictions.Response() and Link(), got 'l"),
    ]:
        with pytest.raises(TypeError, match=r"must be one of") as caught:
            sleep.predict(**options)
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError, match="level must be a number between 0 and 1, got 95"):
        sleep.predict(level=95)


# ---------------------------------------------------------------- means of a factor


def test_marginal_means_and_contrasts_are_those_of_emmeans(cbpp):
    """b <- fixef(g); V <- vcov(g); L <- cbind(1, rbind(0, diag(3))); L %*% b, and their errors."""
    found = cbpp.marginal_means("period", scale=LINK)
    assert found.index.tolist() == ["1", "2", "3", "4"]
    mean = [-1.399223728, -2.390632612, -2.527033322, -2.978704679]
    error = [0.2335113371, 0.3110170385, 0.3310415573, 0.4307192711]
    np.testing.assert_allclose(found["estimate"], mean, atol=2e-3)
    np.testing.assert_allclose(found["std. error"], error, rtol=5e-3)
    share = cbpp.marginal_means("period")
    np.testing.assert_allclose(share["estimate"], expit(found["estimate"]))
    # for(i in 1:6) { d <- L[pr[1, i], ] - L[pr[2, i], ]; c(d %*% b, sqrt(d %*% V %*% d)) }
    pairs = cbpp.contrasts("period")
    assert pairs.index.tolist() == ["1 - 2", "1 - 3", "1 - 4", "2 - 3", "2 - 4", "3 - 4"]
    apart = np.array([0.991408, 1.127809, 1.579481, 0.136401, 0.588072, 0.451671])
    error = np.array([0.306768, 0.326767, 0.427596, 0.380817, 0.470394, 0.484430])
    np.testing.assert_allclose(pairs["estimate"], apart, atol=3e-3)
    np.testing.assert_allclose(pairs["std. error"], error, rtol=5e-3)
    np.testing.assert_allclose(pairs["z value"], apart / error, atol=0.02)
    p = 2 * scipy.stats.norm.sf(apart / error)
    np.testing.assert_allclose(pairs["Pr(>|z|)"], p, rtol=0.03)
    ratios = cbpp.contrasts("period", scale=predictions.Response())
    assert ratios.index[0] == "1 / 2"
    np.testing.assert_allclose(ratios["estimate"], np.exp(apart), rtol=5e-3)
    np.testing.assert_allclose(ratios["upper"], np.exp(pairs["upper"]))


def test_marginal_means_weigh_the_cells_of_other_factors_alike():
    """By hand, from the cells of X: unbalanced data do not matter, covariates are at their mean."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "y": rng.normal(size=80),
            "a": rng.choice(["p", "q"], 80, p=[0.8, 0.2]),
            "b": rng.choice(["u", "v", "w"], 80),
            "x": rng.normal(5, 2, 80),
            "g": np.repeat([f"g{i}" for i in range(8)], 10),
        }
    )
    _, mixed = _mixed.build("y ~ a * x + a:b + offset(2 * x) + (1|g)", frame, "gaussian")
    labels, L, offset = _weights(Fit(None, mixed), "a")
    assert labels == ["p", "q"]
    names = list(mixed.design.fixed)
    mean = frame.x.mean()
    for row, label in enumerate(labels):
        expected = dict.fromkeys(names, 0.0)
        for name in names:
            parts = name.split(":")
            value = 1.0
            for part in parts:
                if part in ("a[q]", "a[p]"):
                    value *= part == f"a[{label}]"
                elif part.startswith("b["):
                    value *= 1 / 3
                elif part == "x":
                    value *= mean
            expected[name] = value
        np.testing.assert_allclose(L[row], list(expected.values()), err_msg=label)
    np.testing.assert_allclose(offset, 2 * mean)
    with pytest.raises(ValueError, match="'x' is no factor of the fixed effects; these are: a, b"):
        _weights(Fit(None, mixed), "x")
