"""Families as responses: against scipy's distributions and R's families."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jalax.models import _responses

FAMILIES = list(_responses.LINKS)
ETA = np.array([-1.2, 0.0, 0.7, 1.9])
SIZE = np.array([1.0, 5.0, 12.0, 40.0])
OWN = {"gaussian": 1.7, "negativebinomial": 2.3}


def distribution(family, eta, own, size):
    """scipy's, of the count or the measurement."""
    if family == "gaussian":
        return scipy.stats.norm(eta, own)
    if family in ("binomial", "bernoulli"):
        return scipy.stats.binom(1 if family == "bernoulli" else size, 1 / (1 + np.exp(-eta)))
    if family == "poisson":
        return scipy.stats.poisson(np.exp(eta))
    return scipy.stats.nbinom(own, own / (own + np.exp(eta)))


def parts(family):
    size = SIZE if family == "binomial" else np.ones(4) if family == "bernoulli" else None
    return OWN.get(family, 1.0), size


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_variance_and_distribution_function_are_scipys(family):
    own, size = parts(family)
    known = distribution(family, ETA, own, SIZE)
    trials = 1.0 if size is None else size
    mean = _responses.mean(family, ETA)
    np.testing.assert_allclose(mean, known.mean() / trials, rtol=1e-12)
    variance = _responses.variance(family, mean, own, size)
    np.testing.assert_allclose(variance, known.var() / trials**2, rtol=1e-12)
    for y in (-1.0, 0.0, 1.0, 3.0):
        y = np.minimum(y, trials) if size is not None else np.full(4, y)
        found = _responses.cdf(family, y, ETA, own, size)
        np.testing.assert_allclose(found, known.cdf(y), rtol=1e-10, atol=1e-15)
    slope = (_responses.mean(family, ETA + 1e-6) - _responses.mean(family, ETA - 1e-6)) / 2e-6
    np.testing.assert_allclose(_responses.mean_slope(family, ETA), slope, rtol=1e-8)


def log_density(family, y, mean, own, size):
    if family == "gaussian":
        return scipy.stats.norm.logpdf(y, mean, own)
    if size is not None:
        return scipy.stats.binom.logpmf(y, size, mean)
    if family == "poisson":
        return scipy.stats.poisson.logpmf(y, mean)
    return scipy.stats.nbinom.logpmf(y, own, own / (own + mean))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_deviance_is_twice_the_distance_to_the_saturated_model(family):
    own, size = parts(family)
    y = np.array([0.0, 1.0, 1.0, 0.0]) if family == "bernoulli" else np.array([1.0, 0.0, 3.0, 7.0])
    mean = _responses.mean(family, ETA)
    best = _responses.observed(family, y, size)
    best = best if family != "poisson" and family != "negativebinomial" else np.maximum(y, 1e-300)
    apart = log_density(family, y, best, own, size) - log_density(family, y, mean, own, size)
    apart = 2 * apart * (own**2 if family == "gaussian" else 1)
    found = _responses.deviance(family, y, mean, own, size)
    np.testing.assert_allclose(found, apart, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_distribution(family):
    """20,000 draws: a mean or variance beyond 5 errors is one false alarm in 100,000 families."""
    own, size = parts(family)
    theta = {_responses.DISPERSION[family]: own} if family in OWN else {}
    known = distribution(family, ETA, own, SIZE)
    data = {} if size is None else {"size": jnp.asarray(size)}
    num = 20_000

    @jax.jit
    def many(keys):
        return jax.vmap(lambda key: _responses.draw(key, family, theta, jnp.asarray(ETA), data))(
            keys
        )

    y = np.asarray(many(jax.random.split(jax.random.key(0), num)), float)
    assert y.shape == (num, 4)
    mean, variance, _, kurtosis = known.stats("mvsk")
    assert np.all(np.abs(y.mean(axis=0) - mean) < 5 * np.sqrt(variance / num))
    error = variance * np.sqrt((kurtosis + 2) / num)
    # That of a fair coin has no error of the first order.
    assert np.all(np.abs(y.var(axis=0) - variance) < 5 * error + 25 * variance / num)
    if family != "gaussian":
        assert np.array_equal(y, np.round(y))
        zero = np.mean(y == 0, axis=0)
        p = known.pmf(0)
        assert np.all(np.abs(zero - p) < 5 * np.sqrt(p * (1 - p) / num) + 1e-12)
