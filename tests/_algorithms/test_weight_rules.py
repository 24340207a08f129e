"""`weights=` of JALA-EM: what tempering and clipping do, and what the result says about it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq

import jalax
from algorithms import model, particles


def uneven(spread, num=50, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(spread), num)) * np.array(spread)[:, None]


def softened_by(rule, log_weights):
    """In one program."""
    return jax.jit(lambda a: rule.soften(a))(jnp.asarray(log_weights))


def ess(log_weights):
    weights = np.exp(log_weights - log_weights.max(axis=-1, keepdims=True))
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1)


@pytest.mark.slow_cases("float32")
def test_tempering_finds_the_exponent_that_leaves_the_ess_asked_for(precision):
    log_weights = uneven([0.1, 2.0, 30.0, 1e5])
    softened = softened_by(jalax.weights.TemperedWeights(0.4), log_weights)
    np.testing.assert_array_equal(softened.log_weights[0], jnp.asarray(log_weights)[0])
    assert softened.exponent[0] == 1
    for row, exponent, after in zip(
        log_weights[1:], softened.exponent[1:], softened.log_weights[1:], strict=True
    ):
        right = brentq(lambda e, row=row: ess(e * row) - 20, 0, 1, xtol=1e-14)
        assert float(exponent) == pytest.approx(right, rel=1e-3)
        assert ess(np.asarray(after, float)) == pytest.approx(20, rel=1e-3)


def test_dead_particles_stay_dead_and_few_living_ones_become_equal():
    log_weights = uneven([5.0, 5.0])
    log_weights[0, :10] = -np.inf
    log_weights[1, 3:] = -np.inf  # three of 50: no exponent gives an ESS of 25
    softened = softened_by(jalax.weights.TemperedWeights(0.5), log_weights)
    np.testing.assert_array_equal(np.isfinite(softened.log_weights), np.isfinite(log_weights))
    assert ess(np.asarray(softened.log_weights[0], float)) == pytest.approx(25, rel=1e-3)
    assert ess(np.asarray(softened.log_weights[1], float)) == pytest.approx(3, rel=1e-2)


def test_clipping_truncates_at_root_n_times_the_mean(precision):
    log_weights = uneven([0.3, 4.0], num=40)
    weights = np.exp(log_weights)
    expected = np.minimum(weights, weights.mean(axis=1, keepdims=True) * np.sqrt(40))
    softened = softened_by(jalax.weights.ClippedWeights(), log_weights)
    np.testing.assert_allclose(np.exp(softened.log_weights), expected, rtol=1e-5)
    assert np.any(expected < weights)


def fit(weights, resample_below=0.3, step_size=0.5):
    return jalax.fit(
        model(),
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(
            step_size=step_size,
            optimizer=optax.adam(0.05),
            resample_below=resample_below,
            weights=weights,
        ),
        start=jalax.Given(particles(30), log_evidence=0.0),
        num_steps=20,
    )


@pytest.mark.parametrize(
    "weights", [jalax.weights.TemperedWeights(0.6), jalax.weights.ClippedWeights()]
)
def test_changed_weights_give_no_path_evidence_and_say_so(weights):
    result = fit(weights)
    with pytest.warns(UserWarning, match=f"{type(weights).__name__} changed the weights"):
        assert result.path_log_evidence is None
    assert "log_evidence" not in result.history
    assert result.history["weight_exponent"].shape == (20,)
    assert np.isfinite(result.log_evidence)  # afresh, at theta
    exact = fit(jalax.weights.ExactWeights())
    assert np.all(exact.history["weight_exponent"] == 1)
    assert exact.path_log_evidence is not None


def test_the_ess_stays_at_the_floor():
    result = fit(jalax.weights.TemperedWeights(0.6))
    assert np.all(result.history["ess"] >= 0.6 * 30 * (1 - 1e-3))
    assert not result.history["resampled"].any()
    assert result.history["weight_exponent"].min() < 0.9
    assert fit(jalax.weights.ExactWeights(), resample_below=0.0).history["ess"].min() < 0.6 * 30


def test_a_floor_that_is_never_reached_changes_nothing():
    exact = fit(jalax.weights.ExactWeights(), resample_below=0.0, step_size=0.05)
    soft = fit(jalax.weights.TemperedWeights(0.01), resample_below=0.0, step_size=0.05)
    np.testing.assert_array_equal(soft.particles["a"], exact.particles["a"])
    np.testing.assert_array_equal(soft.log_weights, exact.log_weights)


@pytest.mark.slow
def test_many_latents_exact_weights_collapse_tempered_ones_do_not():
    """3,000 latents in one cloud; the maximiser is mean(y)."""
    y = np.random.default_rng(1).normal(2.0, np.sqrt(2.0), size=3000)
    hierarchical = jalax.models.hierarchical_normal(jnp.asarray(y))

    def ends(weights):
        return jalax.fit(
            hierarchical,
            0.0,
            key=jax.random.key(2),
            algorithm=jalax.JALAEM(step_size=0.2, optimizer=optax.sgd(0.3 / 3000), weights=weights),
            start=jalax.FromSampler(lambda key, t, data: t + jax.random.normal(key, (3000,))),
            num_particles=50,
            num_steps=200,
        )

    tempered = ends(jalax.weights.TemperedWeights())
    with pytest.warns(UserWarning, match="the weights collapsed"):
        exact = ends(jalax.weights.ExactWeights())
    assert np.median(exact.history["ess"]) < 2
    assert tempered.history["ess"].min() > 39.9
    # theta is the mean over 3,000 latents and 40 effective particles of a sum with variance 1/2:
    # its simulation error is below 0.01. ULA's own bias in the mean of a Gaussian is none.
    assert float(tempered.theta) == pytest.approx(y.mean(), abs=0.05)
