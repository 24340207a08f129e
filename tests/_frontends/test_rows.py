"""Which rows a formula's model has, and how much each counts."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.stats

import jalax
from jalax import missing
from jalax._frontends.mixed_exact import Exact
from jalax._frontends.mixed_means import _weights
from jalax._frontends.mixed_parts import parts_of
from jalax._frontends.mixed_predict import Fit
from jalax.models import _mixed, _new_rows
from jalax.models._design import Asked, parse

RNG = np.random.default_rng(0)
ROWS = 40
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "count": RNG.poisson(3, ROWS),
        "x": RNG.normal(size=ROWS),
        "t": RNG.uniform(1, 3, ROWS),
        "w": RNG.integers(1, 4, ROWS),
        "arm": pd.Categorical(RNG.choice(["a", "b", "c"], ROWS), ordered=True),
        "school": np.repeat([f"s{i}" for i in range(8)], 5),
        "old": np.arange(ROWS) % 3 > 0,
        "other": np.nan,
    },
    index=[f"row {i}" for i in range(ROWS)],
)
FORMULA = "y ~ x + arm + (1|school)"


def holes():
    """FRAME with missing values in four rows, two of them in a column of text."""
    frame = FRAME.copy()
    frame.loc["row 3", "x"] = frame.loc["row 9", "y"] = np.nan
    frame.loc[["row 9", "row 20"], "school"] = None
    frame.loc["row 30", "arm"] = None
    return frame


def model(data, formula=FORMULA, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jalax.models.mixed(formula, data, **options)


def same(a, b):
    """Two models whose fits are the same to the bit."""
    assert repr(a) == repr(b)
    assert a.outside.labels == b.outside.labels
    jax.tree.map(np.testing.assert_array_equal, (a.data, a.theta), (b.data, b.theta))


# ---------------------------------------------------------------- missing values and subsets


def test_rows_with_missing_values_are_left_out():
    names = ["y", "x", "arm", "school"]
    same(model(holes()), model(holes().dropna(subset=names)))
    design = parse(FORMULA, holes())
    gone = ["row 3", "row 9", "row 20", "row 30"]
    assert list(design.frame.index) == [i for i in FRAME.index if i not in gone]
    assert design.left_out[:2] == (4, 40)
    assert set(design.left_out.columns) == set(names)


def test_and_are_named_in_one_warning():
    frame = FRAME.copy()
    frame.loc["row 3", "x"] = np.nan
    with pytest.warns(UserWarning, match=r"1 of 40 rows have missing values, in x, and"):
        jalax.models.mixed(FORMULA, frame)
    jalax.models.mixed("y ~ arm + (1|school)", frame)  # a warning is an error


def test_a_category_without_rows_is_no_level():
    frame = FRAME.copy()
    frame.loc[frame.arm == "b", "x"] = np.nan
    assert parse(FORMULA, frame).fixed == ("Intercept", "x", "arm[c]")


def test_missing_values_are_refused_on_request():
    frame = FRAME.copy()
    frame.loc["row 9", "y"] = np.nan
    with pytest.raises(ValueError, match=r"column 'y' has 1 missing value\(s\): drop those rows"):
        parse(FORMULA, frame, Asked(missing=missing.Refuse()))


@pytest.mark.parametrize(
    "subset",
    [
        FRAME.x > 0,
        (FRAME.x > 0).to_numpy(),
        (FRAME.x > 0).tolist(),
        (FRAME.x > 0).astype("boolean"),
        (FRAME.x > 0).astype(object).where(FRAME.x > -1, None),
        "positive",
    ],
)
def test_a_subset_is_the_filtered_data(subset):
    frame = FRAME.assign(positive=FRAME.x > 0)
    same(model(frame, subset=subset), model(FRAME[FRAME.x > 0]))


def test_a_row_outside_of_the_subset_may_have_holes():
    frame = holes()
    keep = ~frame.index.isin(["row 3", "row 9", "row 20", "row 30"])
    assert parse(FORMULA, frame, Asked(subset=keep, missing=missing.Refuse())).left_out is None


# ---------------------------------------------------------------- offsets and weights


def log_joint(model, theta, b):
    """Of all groups, with one random intercept each."""
    theta, b = jax.tree.map(jnp.asarray, (theta, {"school": b.reshape(-1, 1, 1)}))
    return jnp.sum(jax.vmap(model.log_joint.function, in_axes=(None, 0, 0))(theta, b, model.data))


THETA = {
    "beta": np.array([0.2, -0.4]),
    "sd": {"school": np.array([0.7])},
    "cor": {"school": np.zeros(0)},
}
SIGMA = {"sigma": np.array(1.3)}
B = RNG.normal(size=8)


def test_offsets_of_the_formula_and_of_a_column_add_up():
    a = parse("y ~ x + offset(log(t)) + (1|school)", FRAME, Asked(offset="w"))
    np.testing.assert_allclose(a.offset, np.log(FRAME.t) + FRAME.w)
    new = FRAME.iloc[:3].assign(w=[1.0, 5.0, 9.0])
    found = _new_rows.fixed_rows(a, new)
    np.testing.assert_allclose(found.offset, np.log(new.t) + new.w)
    with pytest.raises(ValueError, match="new_data has no column 'w'"):
        _new_rows.fixed_rows(a, new.drop(columns="w"))
    _, mixed = _mixed.build("y ~ arm + (1|school)", FRAME, "gaussian", Asked(offset="w"))
    _, _, offset = _weights(Fit(None, mixed), "arm")
    np.testing.assert_allclose(offset, FRAME.w.mean())


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_weight_is_a_row_so_often(family, x64):
    """log p(x, y) is the same for any x, and so is log p(y)."""
    theta = THETA | (SIGMA if family == "gaussian" else {})
    formula = f"{'y' if family == 'gaussian' else 'count'} ~ x + (1|school)"
    whole = model(FRAME.loc[np.repeat(FRAME.index, FRAME.w)], formula, family=family)
    expected = log_joint(whole, theta, B)
    for weights in ("w", FRAME.w, FRAME.w.to_numpy()):
        found = log_joint(model(FRAME, formula, family=family, weights=weights), theta, B)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_precision_weights_divide_the_variance(x64):
    weighted = model(FRAME, "y ~ x + (1|school)", precision_weights="t")
    school = np.repeat(np.arange(8), 5)
    eta = 0.2 - 0.4 * FRAME.x + B[school]
    expected = scipy.stats.norm.logpdf(FRAME.y, eta, 1.3 / np.sqrt(FRAME.t)).sum()
    expected += scipy.stats.norm.logpdf(B, 0, 0.7).sum()
    np.testing.assert_allclose(log_joint(weighted, THETA | SIGMA, B), expected, rtol=1e-12)


def test_precision_weights_beside_a_formula_for_sigma(x64):
    options = {"precision_weights": "t", "dispersion": "~ x"}
    weighted = model(FRAME, "y ~ x + (1|school)", **options)
    theta = THETA | {"dispersion": np.array([0.3, 0.5])}
    sigma = np.exp(0.3 + 0.5 * FRAME.x) / np.sqrt(FRAME.t)
    eta = 0.2 - 0.4 * FRAME.x + B[np.repeat(np.arange(8), 5)]
    expected = scipy.stats.norm.logpdf(FRAME.y, eta, sigma).sum()
    expected += scipy.stats.norm.logpdf(B, 0, 0.7).sum()
    np.testing.assert_allclose(log_joint(weighted, theta, B), expected, rtol=1e-12)
    _, mixed = _mixed.build("y ~ x + (1|school)", FRAME, "gaussian", Asked(**options))
    own = Fit(SimpleNamespace(theta=theta), mixed).own(None)
    np.testing.assert_allclose(own.at()["sigma"], sigma)


@pytest.mark.parametrize("both", [False, True])
def test_random_effects_of_weighted_rows_in_closed_form(both):
    asked = Asked(weights="w", precision_weights="t" if both else None)
    _, mixed = _mixed.build("y ~ x + (1|school)", FRAME, "gaussian", asked)
    theta = THETA | SIGMA
    (parts,) = parts_of(mixed, _new_rows.same_rows(mixed.design)[1])
    mean, variance = Exact(SimpleNamespace(theta=theta), mixed).moments(parts)
    noise = np.diag(1.69 / (FRAME.w * (FRAME.t if both else 1)))
    prior = 0.49 * (FRAME.school.to_numpy()[:, None] == FRAME.school.to_numpy())
    gain = prior @ np.linalg.inv(prior + noise)
    np.testing.assert_allclose(mean, gain @ (FRAME.y - 0.2 + 0.4 * FRAME.x), atol=1e-12)
    np.testing.assert_allclose(variance, np.diagonal(prior - gain @ prior), atol=1e-12)


def test_fits_with_other_weights_are_other_likelihoods():
    marks = []
    for options in ({}, {"weights": "w"}, {"weights": "t"}, {"precision_weights": "w"}):
        _, mixed = _mixed.build("y ~ x + (1|school)", FRAME, "gaussian", Asked(**options))
        result = object.__new__(jalax.results.MixedResult)
        object.__setattr__(result, "mixed", mixed)
        marks.append(result.likelihood_mark)
    assert len(set(marks)) == 4
    assert marks[0] == ""


def test_a_row_that_counts_twice_cannot_be_simulated():
    assert model(FRAME, weights="w").outside.simulate is None
    assert model(FRAME, weights=np.ones(ROWS)).outside.simulate is not None
    assert model(FRAME, precision_weights="w").outside.simulate is not None
    _, mixed = _mixed.build(FORMULA, FRAME, "gaussian", Asked(weights="w"))
    result = object.__new__(jalax.results.MixedResult)
    object.__setattr__(result, "mixed", mixed)
    for call in (result.simulate, result.bootstrap):
        with pytest.raises(ValueError, match="stands for several responses"):
            call(jax.random.key(0))


# ---------------------------------------------------------------- what is said


BAD = {
    "weights": ({"weights": [1, 2]}, ValueError, "one entry for each of the 40 rows"),
    "index": (
        {"weights": FRAME.w.reset_index(drop=True)},
        ValueError,
        "weights is a Series with another index than the data: pass its to_numpy",
    ),
    "negative": ({"weights": -FRAME.w}, ValueError, r"weights='\(weights\)' has -3"),
    "zero": ({"weights": 0 * FRAME.w}, ValueError, "is zero in every row"),
    "text": ({"weights": "school"}, ValueError, "column 'school' is not numeric"),
    "no column": ({"precision_weights": "v"}, ValueError, "there is no column 'v'"),
    "precision": ({"precision_weights": FRAME.old * 1}, ValueError, "an infinite variance"),
    "poisson": (
        {"precision_weights": "w", "family": "poisson"},
        ValueError,
        "divide the variance of a Gaussian response",
    ),
    "offset": ({"offset": FRAME.t}, TypeError, "offset must be the name of a column, got Series"),
    "no offset": ({"offset": "v"}, ValueError, "there is no column 'v'"),
    "subset": ({"subset": FRAME.x}, TypeError, "subset must be boolean.* got float64"),
    "query": ({"subset": "x > 0"}, ValueError, r"subset='x > 0' is no column .*data\['age'\] > 5"),
    "short": ({"subset": [True]}, ValueError, "one entry for each of the 40 rows"),
    "none": ({"subset": FRAME.x > 99}, ValueError, "subset is true for no row"),
    "missing": ({"missing": "drop"}, TypeError, r"jalax.missing.Drop\(\) or jalax.missing.Ref"),
    "nothing left": ({"offset": "other"}, ValueError, "every row has a missing value in other"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    options, kind, sentence = BAD[name]
    formula = "count ~ x + (1|school)"
    with pytest.raises(kind, match=sentence):
        jalax.mixed(formula, FRAME, key=jax.random.key(0), **options)


@pytest.mark.slow
def test_a_fit_says_what_it_left_out(tmp_path):
    data = jalax.datasets.dyestuff().to_frame()
    data.index = [f"row {i}" for i in range(30)]
    data.loc[["row 2", "row 7"], "yield_"] = np.nan
    formula, key = "yield_ ~ 1 + (1|batch)", jax.random.key(0)
    with pytest.warns(UserWarning, match="2 of 30 rows have missing values") as caught:
        result = jalax.mixed(formula, data, key=key)
    assert caught[0].filename == __file__
    alone = jalax.mixed(formula, data.dropna(), key=key)
    jax.tree.map(np.testing.assert_array_equal, result.theta, alone.theta)
    assert result.log_evidence == alone.log_evidence
    line = "2 observations deleted due to missingness (in yield_)"
    assert line in result.summary()
    assert "missingness" not in alone.summary()
    for rows in (result.fitted(), result.residuals()):
        assert list(rows.index) == list(data.dropna().index)
    result.save(tmp_path / "fit.npz")
    again = jalax.load(tmp_path / "fit.npz")
    assert line in again.summary()
    assert again.log_evidence == result.log_evidence
    pd.testing.assert_series_equal(again.fitted(), result.fitted(), rtol=1e-6)
