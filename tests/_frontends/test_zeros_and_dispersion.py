"""After fits with formulas for zeros and for dispersion, and with censored times."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats

import jalax
from jalax import predictions

POPULATION, MARGINAL = predictions.Population(), predictions.Marginal()
GROUPS, ROWS = 30, 8


def frame(seed=0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), ROWS)
    x = rng.standard_normal(group.size)
    eta = 0.4 + 0.5 * x + 0.5 * rng.standard_normal(GROUPS)[group]
    away = rng.random(group.size) < scipy.special.expit(-1 + 0.8 * x)
    count = np.where(away, 0, rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(eta))))
    measure = eta + np.exp(-0.7 + 0.4 * x) * rng.standard_normal(group.size)
    time = rng.exponential(size=group.size) * np.exp(-eta)
    seen = (time < 1.0).astype(int)
    table = {"x": x, "g": group, "count": count, "y": measure}
    return pd.DataFrame(table | {"t": np.minimum(time, 1.0), "seen": seen})


@pytest.fixture(scope="module")
def zeros():
    options = {"family": "poisson", "zero": "~ x", "dispersion": None}
    return jalax.mixed("count ~ x + (1|g)", frame(), key=jax.random.key(0), **options)


@pytest.fixture(scope="module")
def spread():
    return jalax.mixed("y ~ x + (1|g)", frame(), key=jax.random.key(1), dispersion="~ x")


def test_the_mean_has_the_share_of_zeros(zeros):
    new = pd.DataFrame({"x": [-1.0, 0.5, 2.0]})
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, float), zeros.theta)
    X = np.column_stack([np.ones(3), new["x"]])
    rest = scipy.special.expit(-X @ theta["zero"])
    found = zeros.predict(new, effects=POPULATION)
    np.testing.assert_allclose(found["estimate"], rest * np.exp(X @ theta["beta"]), rtol=1e-5)
    link = zeros.predict(new, effects=POPULATION, scale=predictions.Link())
    np.testing.assert_allclose(link["estimate"], X @ theta["beta"], rtol=1e-5)
    lower = rest * np.exp(link["lower"])
    np.testing.assert_allclose(found["lower"], lower, rtol=1e-5)
    average = zeros.predict(new, effects=MARGINAL)["estimate"]
    wider = np.exp(theta["sd"]["g"][0] ** 2 / 2)  # of a log-normal mean
    np.testing.assert_allclose(average, found["estimate"] * wider, rtol=1e-5)


@pytest.mark.slow
def test_simulated_data_have_that_mean(zeros, spread):
    """400 data sets: the mean of all rows within 4.5 errors, the rows of a group together."""
    for fit in (zeros, spread):
        drawn = fit.simulate(jax.random.key(2), 400)
        mean = drawn.reshape(400, -1).mean(axis=1)
        expected = fit.predict(effects=MARGINAL)["estimate"].mean()
        assert abs(mean.mean() - expected) < 4.5 * mean.std() / 20
    # and the standard deviation of each row, of which a half differ by more than a fifth
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, float), spread.theta)
    x = spread.mixed.design.X
    sigma = np.exp(x @ theta["dispersion"])
    exact = np.sqrt(sigma**2 + theta["sd"]["g"][0] ** 2)
    ratio = np.log(spread.simulate(jax.random.key(3), 2000).std(axis=0) / exact)
    assert np.abs(ratio).max() < 5 / np.sqrt(2 * 2000)
    assert np.ptp(np.log(exact)) > 0.5


def test_residuals(zeros, spread):
    for fit, seed in ((zeros, 4), (spread, 5)):
        uniform = scipy.stats.norm.cdf(
            fit.residuals(jalax.residuals.Quantile(jax.random.key(seed)))
        )
        assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-4
    pearson = spread.residuals(jalax.residuals.Pearson())
    sigma = np.exp(spread.mixed.design.X @ np.asarray(spread.theta["dispersion"], float))
    left = spread.residuals()
    np.testing.assert_allclose(pearson, left / sigma, rtol=1e-5)
    with pytest.raises(ValueError, match="Quantile"):
        zeros.residuals(jalax.residuals.Pearson())


def test_a_file_brings_them_back(zeros, spread, tmp_path):
    for fit in (zeros, spread):
        fit.save(tmp_path / "fit.npz")
        again = jalax.load(tmp_path / "fit.npz")
        assert again.mixed.family == fit.mixed.family
        assert again.mixed.design.asked == fit.mixed.design.asked
        for data in (None, pd.DataFrame({"x": [0.0, 1.0]})):
            found, known = (one.predict(data, effects=POPULATION) for one in (again, fit))
            pd.testing.assert_frame_equal(found, known)


def test_the_summary_has_their_coefficients(zeros, spread):
    assert "Zeros (log-odds)" in str(zeros.summary())
    assert "zero x" in zeros.names
    assert "Dispersion (logarithm)" in str(spread.summary())
    assert "dispersion Intercept" in spread.names
    assert "Poisson" in repr(zeros.mixed.family)


def test_censored_times():
    """Rates of the groups are integrated out; what cannot be simulated says so."""
    fit = jalax.mixed(
        "Surv(t, seen) ~ x + (1|g)", frame(), family="exponential", key=jax.random.key(6)
    )
    uniform = scipy.stats.norm.cdf(fit.residuals(jalax.residuals.Quantile(jax.random.key(7))))
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-4
    assert 0.3 < frame()["seen"].mean() < 0.95
    with pytest.raises(ValueError, match="simulate"):
        fit.simulate(jax.random.key(8))
