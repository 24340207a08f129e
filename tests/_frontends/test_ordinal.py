"""Ordinal mixed models: the wine of R's ordinal, and what one does after the fit."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.special

import jalax
from jalax import predictions, problems
from jalax.problems import _data


@pytest.fixture(scope="module")
def wine():
    raw = _data.table("wine.csv.gz")
    frame = pd.DataFrame({name: raw[name] for name in ("rating", "temp", "contact", "judge")})
    frame["rating"] = frame["rating"].astype(int)
    key = jax.random.key(0)
    return jalax.mixed("rating ~ temp + contact + (1|judge)", frame, family="ordinal", key=key)


def test_the_wine_of_clmm(wine):
    """The book's exact maximum, which has thresholds as the first and the logs of the gaps."""
    known = problems.wine().reference
    first, gaps = float(known.theta["k1"]), np.asarray(known.theta["log_gaps"])
    thresholds = np.cumsum([first, *np.exp(gaps)])
    np.testing.assert_allclose(wine.theta["thresholds"], thresholds, atol=2e-3)
    np.testing.assert_allclose(np.abs(wine.theta["beta"]), np.abs(known.theta["beta"]), atol=2e-3)
    assert abs(wine.log_evidence - known.log_evidence) < 4.5 * wine.evidence.error + 1e-4
    assert [name for name in wine.names if "|" in name and " " not in name] == [
        "1|2",
        "2|3",
        "3|4",
        "4|5",
    ]


def test_probabilities_of_the_categories(wine):
    found = wine.probabilities(effects=predictions.Population())
    design = wine.mixed.design
    eta = design.X @ np.asarray(wine.theta["beta"], float)
    below = scipy.special.expit(np.asarray(wine.theta["thresholds"], float) - eta[:, None])
    expected = np.diff(np.column_stack([np.zeros(len(eta)), below, np.ones(len(eta))]), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert list(found.columns) == ["1", "2", "3", "4", "5"]
    given = wine.probabilities()
    np.testing.assert_allclose(given.sum(axis=1), 1, atol=1e-9)
    # Given the data the observed category is likelier than without random effects, on the whole.
    rows, category = np.arange(len(eta)), design.y.astype(int) - 1
    gain = np.log(given.to_numpy()[rows, category]) - np.log(found.to_numpy()[rows, category])
    assert gain.sum() > 0


def test_there_is_no_mean(wine):
    for ask in (wine.fitted, wine.predict, lambda: wine.residuals(jalax.residuals.Pearson())):
        with pytest.raises(ValueError, match="probabilities"):
            ask()
    link = wine.predict(effects=predictions.Population(), scale=predictions.Link())
    expected = wine.mixed.design.X @ np.asarray(wine.theta["beta"], float)
    np.testing.assert_allclose(link["estimate"], expected, atol=1e-6)
    uniform = wine.residuals(jalax.residuals.Quantile(jax.random.key(1)))
    assert abs(float(uniform.std()) - 1) < 0.35
    assert "Thresholds" in str(wine.summary())


def test_a_file_brings_it_back(wine, tmp_path):
    wine.save(tmp_path / "wine.npz")
    again = jalax.load(tmp_path / "wine.npz")
    assert again.mixed.family == jalax.families.Ordinal()
    # The particles of a file are weighted where the fit had last looked, a short step before.
    np.testing.assert_allclose(again.probabilities(), wine.probabilities(), atol=1e-5)


@pytest.mark.parametrize(
    ("formula", "options", "sentence"),
    [
        ("rating ~ 0 + temp + (1|judge)", {"family": "ordinal"}, "thresholds in place of an"),
        ("temp ~ contact + (1|judge)", {"family": "ordinal"}, "the order of the categories"),
        ("log(rating) ~ 1 + (1|judge)", {"family": "ordinal"}, "is a column, an ordered"),
        ("temp ~ 1 + (1|judge)", {}, "family='ordinal'"),
        ("rating ~ 1 + (1|judge)", {"family": "beta"}, "shares between 0 and 1"),
        ("rating ~ 1 + (1|judge)", {"family": "betabinomial"}, r"needs p\(successes, trials\)"),
        ("rating ~ 1 + (1|judge)", {"family": "poisson", "zero": "~ 1"}, "has no zeros"),
        ("rating ~ 1 + (1|judge)", {"family": "poisson", "dispersion": "~ 1"}, "no parameter"),
        ("rating ~ 1 + (1|judge)", {"dispersion": "temp"}, "without a left side"),
        ("rating ~ 1 + (1|judge)", {"dispersion": "~ (1|temp)"}, "has a random effect"),
        ("rating ~ 1 + (1|judge)", {"zero": 3}, "without a left side"),
        ("rating ~ 1 + (1|judge)", {"weights": [1, 2]}, "one entry for each of the 30 rows"),
        ("rating ~ 1 + (1|judge)", {"weights": "none"}, "there is no column 'none'"),
        ("Surv(rating, judge) ~ 1 + (1|temp)", {"family": "weibull"}, "not numeric|is 1 where"),
        ("Surv(rating, seen) ~ 1 + (1|judge)", {"family": "gamma"}, "has censored times"),
        ("rating ~ 1 + (1|judge)", {"family": "ordbeta"}, "use 'beta' with zero"),
        ("rating ~ 1 + (1|judge)", {"family": "quasipoisson"}, "is no likelihood"),
        ("cbind(rating, seen) ~ 1 + (1|judge)", {"family": "poisson"}, "count out of trials"),
    ],
)
def test_bad_input(formula, options, sentence):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rating": rng.integers(1, 5, 30), "temp": ["cold", "warm"] * 15})
    frame["contact"], frame["judge"] = ["no"] * 15 + ["yes"] * 15, list("abcde") * 6
    frame["seen"] = 1
    with pytest.raises((ValueError, TypeError), match=sentence):
        jalax.mixed(formula, frame, key=jax.random.key(0), **options)
