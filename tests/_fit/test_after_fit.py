"""What is asked of a fit afterwards: latents and covariances, against what is known exactly."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri, softmax

import jalax
from jalax._export import posterior
from jalax._export.latents import chosen_latents

RNG = np.random.default_rng(3)
GROUPS = np.repeat([f"g{i:02d}" for i in range(20)], 6)
TIME = np.tile(np.arange(6.0), 20)
COVARIATES = np.column_stack([np.ones(120), TIME])
Y = 10 + 2 * TIME + RNG.normal(size=120)
Y = Y + np.repeat(2.0 * RNG.normal(size=20), 6) + np.repeat(RNG.normal(size=20), 6) * TIME


def linear_mixed():
    return jalax.models.linear_mixed(Y, COVARIATES, GROUPS, COVARIATES)


@pytest.fixture(scope="module")
def slopes():
    """Random intercepts and slopes of 20 groups, whose posterior and likelihood are Gaussian."""
    return jalax.fit(linear_mixed(), key=jax.random.key(0))


# ---------------------------------------------------------------- latents


def test_latents_are_those_of_the_exact_posterior(slopes):
    exact_posterior = jax.jit(lambda model, theta: model.exact_posterior(theta))
    exact = exact_posterior(slopes.origin.model, slopes.theta)
    mean = np.asarray(exact.mean, float).ravel()
    sd = np.sqrt(np.diagonal(np.asarray(exact.covariance, float), axis1=1, axis2=2)).ravel()
    found, num = slopes.latents(), slopes.log_weights.shape[-1]
    # That of independent draws, which quasi-random points stay below.
    assert np.all(np.abs(found.mean - mean) < found.mc_error)
    assert np.all(found.mc_error < 1.5 * sd / np.sqrt(num))
    np.testing.assert_allclose(found.sd, sd, rtol=1 / np.sqrt(2 * num))


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_intervals_are_those_of_a_normal_distribution(slopes, level):
    found, num = slopes.latents(level=level), slopes.log_weights.shape[-1]
    q = ndtri(0.5 + level / 2)
    density = np.exp(-(q**2) / 2) / np.sqrt(2 * np.pi)
    tail = (1 - level) / 2
    error = np.sqrt(tail * (1 - tail) / num) / density  # of a quantile of independent draws
    np.testing.assert_allclose((found.low - found.mean) / found.sd, -q, atol=2 * error)
    np.testing.assert_allclose((found.high - found.mean) / found.sd, q, atol=2 * error)
    assert found.level == level


def test_latents_have_the_names_of_their_groups(slopes):
    found = slopes.latents()
    assert found.names[:3] == ("x[g00, 0]", "x[g00, 1]", "x[g01, 0]")
    assert len(found) == 40
    assert found.shrinkage is None  # log_joint does not tell the prior
    frame = found.to_frame()
    assert list(frame.columns) == ["mean", "sd", "lower", "upper", "mc_error"]
    np.testing.assert_array_equal(frame.loc["x[g07, 1]", "mean"], found.mean[15])
    np.testing.assert_array_equal(frame["upper"], found.high)
    text = repr(found)
    assert "posterior of 40 latent number(s)" in text
    assert "97.5 %" in text
    assert f"{found.mean[0]:.5g}" in text
    assert "... and 10 more" in text
    assert "<table>" in found._repr_html_()


def by_hand(result, level):
    """Number by number, by the code of the figures."""
    rows = []
    for one in chosen_latents(result, None, limit=1000):
        deviation = one.values - one.mean
        sd = np.sqrt(one.weights @ deviation**2)
        low, high = one.quantiles([0.5 - level / 2, 0.5 + level / 2])
        rows.append((one.mean, sd, low, high, np.sqrt(one.weights**2 @ deviation**2)))
    return np.array(rows)


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
@pytest.mark.parametrize("lead", [(5,), ()])
def test_all_numbers_at_once_are_those_one_by_one(slopes, monkeypatch, at_once, lead):
    """Of groups and of one joint latent, with dead particles that hold anything."""
    rng = np.random.default_rng(0)
    log_weights = rng.normal(size=(*lead, 30))
    x = {"a": rng.normal(size=(*lead, 30, 2, 3)), "b": rng.normal(size=(*lead, 30))}
    log_weights[..., 4:7] = -np.inf
    x["a"][..., 4, :, :], x["b"][..., 5] = np.nan, np.inf
    one = dataclasses.replace(
        slopes, particles=x, log_weights=jnp.asarray(log_weights), origin=None
    )
    monkeypatch.setattr(posterior, "MOST_AT_ONCE", at_once)
    found = one.latents(0.9)
    rows = np.stack([found.mean, found.sd, found.low, found.high, found.mc_error], axis=1)
    np.testing.assert_allclose(rows, by_hand(one, 0.9), rtol=1e-5, atol=1e-6)
    assert len(found) == (35 if lead else 7)


def test_one_particle_has_all_of_the_weight(slopes):
    log_weights, x = np.full((1, 3), -np.inf), np.array([[[1.0], [2.0], [3.0]]])
    log_weights[0, 1] = 0.0
    found = dataclasses.replace(
        slopes, particles=x, log_weights=jnp.asarray(log_weights), origin=None
    ).latents()
    assert (found.mean[0], found.sd[0], found.low[0], found.high[0]) == (2.0, 0.0, 2.0, 2.0)


def test_a_particle_with_weight_that_is_no_number_is_not_hidden(slopes):
    x = np.array([[[1.0], [np.nan], [3.0]], [[1.0], [2.0], [3.0]]])
    found = dataclasses.replace(
        slopes, particles=x, log_weights=jnp.zeros((2, 3)), origin=None
    ).latents()
    for column in (found.mean, found.sd, found.low, found.high, found.mc_error):
        np.testing.assert_array_equal(np.isnan(column), [True, False])


def test_the_error_of_a_weighted_mean():
    """Over many clouds of independent draws, with weights, the error is the means' spread."""
    rng = np.random.default_rng(1)
    draws = rng.normal(1.5, 2.0, size=(4000, 100, 1))
    weights = softmax(0.3 * draws[:, :, 0] - 0.02 * draws[:, :, 0] ** 2, axis=1)
    rows = posterior.posterior_numbers(draws, weights, 0.95)
    # The mean of 4000 variances is known to 2 %, that of the estimate to a bias of 1/100.
    assert np.sqrt(np.mean(rows[:, 4] ** 2)) == pytest.approx(rows[:, 0].std(), rel=0.06)


# ---------------------------------------------------------------- vcov, coef, observations


def test_vcov_is_the_inverse_of_the_exact_hessian(slopes, x64):
    model = linear_mixed()
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), slopes.theta)
    flat, unravel = ravel_pytree(theta)
    hessian = jax.jit(jax.hessian(lambda t: model.exact_log_evidence(unravel(t))))(flat)
    exact, found = np.linalg.inv(-np.asarray(hessian)), slopes.vcov()
    assert found.shape == (6, 6)
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    # The information is measured by the points, to a few thousandths.
    np.testing.assert_allclose(found / scale, exact / scale, atol=0.02)


def test_vcov_has_the_squares_of_the_standard_errors(slopes):
    errors = np.asarray(ravel_pytree(slopes.standard_errors())[0], float)
    np.testing.assert_allclose(np.sqrt(np.diag(slopes.vcov())), errors, rtol=1e-6)


def test_vcov_is_mapped_by_the_jacobian_and_nan_where_nothing_is_known(slopes):
    jacobian = np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 1.0, 0.5]])
    covariance = np.array([[4.0, 1.0, 0.5], [1.0, 9.0, 0.3], [0.5, 0.3, 1.0]])
    known = dataclasses.replace(
        slopes.uncertainty, names=("a", "b", "c"), covariance=covariance, jacobian=jacobian
    )
    found = known.on_users_scale(covariance)
    np.testing.assert_allclose(found, jacobian @ covariance @ jacobian.T)
    np.testing.assert_allclose(np.sqrt(np.diag(found)), known.errors(covariance))
    covariance[2], covariance[:, 2] = np.nan, np.nan
    found = known.on_users_scale(covariance)
    np.testing.assert_array_equal(np.isnan(found[2]), True)
    np.testing.assert_array_equal(np.isnan(np.diag(found)), np.isnan(known.errors(covariance)))
    np.testing.assert_allclose(found[:2, :2], [[4.0, 2.0], [2.0, 36.0]])


def test_coef_has_every_number_by_name(slopes):
    found = slopes.coef()
    assert tuple(found) == slopes.names
    assert found["beta[1]"] == float(slopes.theta["beta"][1])
    assert all(type(value) is float for value in found.values())


def test_num_observations_are_the_rows_that_a_mask_marks(slopes):
    assert slopes.num_observations == 120
    model = jalax.models.linear_mixed(Y[:117], COVARIATES[:117], GROUPS[:117])
    origin = dataclasses.replace(slopes.origin, model=model)
    assert dataclasses.replace(slopes, origin=origin).num_observations == 117
    for data in (jnp.ones(3), {"y": jnp.ones(3)}, {"mask": jnp.ones(3)}, None):
        other = jalax.Model(lambda theta, x, data: 0.0, jnp.zeros(2), data)
        origin = dataclasses.replace(slopes.origin, model=other)
        assert dataclasses.replace(slopes, origin=origin).num_observations is None
    assert dataclasses.replace(slopes, origin=None).num_observations is None
