"""The data sets: shapes, counts, the standardisation and the stratified split."""

import jax
import numpy as np
import pytest

from jalax import datasets


def test_wisconsin_shape_and_classes():
    data = datasets.wisconsin()
    assert data.features.shape == (683, 9)
    assert data.labels.shape == (683,)
    assert data.features.dtype == data.labels.dtype == np.float64
    assert [(data.labels == label).sum() for label in (0, 1)] == [444, 239]
    assert data.feature_names[0] == "clump_thickness"
    assert len(data.feature_names) == 9


def test_wisconsin_is_standardised_with_the_population_sd():
    features = datasets.wisconsin().features
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(features.std(axis=0, ddof=0), 1, rtol=1e-12)


def test_wisconsin_rows_are_those_of_the_file():
    """Before the standardisation the features are integers from 1 to 10."""
    features = datasets.wisconsin().features
    for column in features.T:
        levels = np.unique(column)
        steps = np.diff(levels) / np.diff(levels).min()
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
        assert levels.size <= 10  # integers from 1 to 10
    # Known facts of the UCI file: malignant cells are thicker, and mean clump thickness is 4.44.
    labels = datasets.wisconsin().labels
    assert (features[labels == 1].mean(axis=0) > features[labels == 0].mean(axis=0)).all()
    thickness = features[:, 0]
    step = np.diff(np.unique(thickness)).min()
    np.testing.assert_allclose(1 + (0 - thickness.min()) / step, 4.4422, atol=1e-4)


@pytest.mark.parametrize("key", [0, 7, jax.random.key(3), jax.random.PRNGKey(3)])
def test_split_is_stratified_and_a_partition(key):
    data = datasets.wisconsin()
    train, test = datasets.train_test_split(data, key)
    assert [(test.labels == label).sum() for label in (0, 1)] == [89, 48]  # 20 % of 444, 239
    assert train.features.shape == (546, 9)
    assert train.feature_names == data.feature_names
    together = np.vstack([train.features, test.features])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(data.features, axis=0))


def test_split_is_reproducible_and_random():
    data = datasets.wisconsin()
    first, again = (datasets.train_test_split(data, 1)[1].features for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = datasets.train_test_split(data, 2)[1].features
    assert not np.array_equal(first, other)
    new, old = jax.random.key(5), jax.random.PRNGKey(5)  # two spellings of one key
    np.testing.assert_array_equal(
        datasets.train_test_split(data, new)[1].features,
        datasets.train_test_split(data, old)[1].features,
    )


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 20.0])
def test_split_refuses_a_wrong_fraction(fraction):
    with pytest.raises(ValueError, match=r"test_fraction must lie between 0 and 1"):
        datasets.train_test_split(datasets.wisconsin(), 0, fraction)


def test_cbpp():
    data = datasets.cbpp()
    assert data.herd.shape == data.incidence.shape == data.size.shape == data.period.shape == (56,)
    assert np.unique(data.herd).tolist() == list(range(1, 16))
    assert np.unique(data.period).tolist() == [1, 2, 3, 4]
    assert (data.incidence <= data.size).all()
    assert data.covariates.dtype == np.float64
    np.testing.assert_array_equal(data.covariates[:, 0], 1)
    np.testing.assert_array_equal(data.covariates[:, 1:] @ np.array([1, 2, 3]) + 1, data.period)


def test_sleepstudy_and_dyestuff():
    """Least squares gives lme4's fixed effects where the design is balanced."""
    sleep = datasets.sleepstudy()
    found = np.linalg.lstsq(sleep.covariates, sleep.reaction, rcond=None)[0]
    np.testing.assert_allclose(found, [251.4051048, 10.46728596], rtol=1e-8)
    assert np.unique(sleep.subject, return_counts=True)[1].tolist() == [10] * 18
    dye = datasets.dyestuff()
    assert dye.yield_.mean() == 1527.5
    assert np.unique(dye.batch, return_counts=True)[1].tolist() == [5] * 6
    np.testing.assert_array_equal(dye.covariates, np.ones((30, 1)))
