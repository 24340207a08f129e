"""Latents with two modes are flagged, those with one are not; nothing is compiled for the look."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._fit import loop

QUIET = jalax.callbacks.Callback()
log_normal = jax.scipy.stats.norm.logpdf


def two_bells(theta, x, y):
    """Ten latents near 5 or near -5, and an observation that hardly tells."""
    bells = jnp.logaddexp(log_normal(x, 5.0).sum(), log_normal(x, -5.0).sum()) - jnp.log(2.0)
    return bells + log_normal(y, theta + 0.1 * x.sum(), 3.0)


def three_bells(theta, x, y):
    """Ten latents near -15, or with next to no probability near 4, or with less near -5."""
    means, log_shares = jnp.array([-15.0, 4.0, -5.0]), jnp.array([0.0, -16.0, -32.0])
    bells = jax.nn.logsumexp(log_shares + log_normal(x[:, None], means).sum(axis=0))
    return bells + log_normal(y, theta + 0.1 * x.sum(), 3.0)


def exchangeable(theta, x, y):
    """The means of two components: which is which, nobody knows."""
    rows = jnp.logaddexp(log_normal(y, x[0]), log_normal(y, x[1])) - jnp.log(2.0)
    return log_normal(x, 0.0, jnp.exp(theta)).sum() + rows.sum()


def counts(theta, x, y):
    """One skewed mode."""
    eta = theta["mean"] + x
    prior = log_normal(x, 0.0, jnp.exp(theta["log_sd"])).sum()
    return prior + jnp.sum(y * eta - jnp.exp(eta))


def fitted(log_joint, latent, data, theta, seed):
    model = jalax.GroupedModel(log_joint, latent, jnp.asarray(data, float))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = jalax.fit(model, theta, key=jax.random.key(seed), progress=QUIET)
    return result, [str(warning.message) for warning in caught]


def of_two_bells(seed):
    data = np.random.default_rng(seed).normal(size=8)
    return fitted(two_bells, jnp.full(10, 0.1), data, 0.0, seed)


def of_labels(seed):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(4, 30)) + np.where(rng.integers(0, 2, size=(4, 30)), 4.0, -2.0)
    return fitted(exchangeable, jnp.array([0.1, -0.1]), data, 0.0, seed)


def of_counts(seed):
    rng = np.random.default_rng(seed)
    data = rng.poisson(np.exp(0.3 + 0.8 * rng.normal(size=(10, 3))))
    return fitted(counts, jnp.zeros(3), data, {"mean": 0.0, "log_sd": 0.0}, seed)


@pytest.mark.slow_cases("float64-of_two_bells", "float64-of_labels")
@pytest.mark.parametrize("of", [of_two_bells, of_labels])
def test_two_modes_are_flagged(of, precision):
    result, said = of(0)
    assert not result.evidence.trusted
    assert "second mode" in result.evidence.messages[0]
    assert any(line.startswith("log_evidence: in") for line in said)


def test_the_weight_that_is_missed_is_the_second_labelling():
    """Exchangeable labels: each of four groups misses exactly log 2."""
    result, _ = of_labels(0)
    assert f"log p misses {4 * np.log(2):.2g}," in result.evidence.messages[0]


@pytest.mark.slow_cases("float64")
def test_a_fit_goes_on_from_the_heaviest_mode(precision):
    """The search begins near the lightest, and two are heavier. y is N(theta - 15, 9.1)."""
    data, variance = np.random.default_rng(0).normal(size=8), 9.1
    result, said = fitted(three_bells, jnp.full(10, -2.0), data, 0.0, 0)
    exact = -4 * np.log(2 * np.pi * variance) - 0.5 * np.var(data) * 8 / variance
    assert result.status == "converged"
    assert result.evidence.trusted
    assert not said
    assert "a second climb from other modes" in result.choice
    assert abs(result.theta - (data.mean() + 15)) < 1e-3 * np.sqrt(variance / 8)
    assert abs(result.log_evidence - exact) < 5 * result.log_evidence_error + 1e-4


@pytest.mark.slow_cases("float64")
def test_one_mode_is_not(precision):
    result, said = of_counts(0)
    assert result.evidence.trusted
    assert not said


def test_the_look_is_no_program_of_its_own():
    of_counts(1)
    before = loop.run_chunk.cache_size()
    of_counts(2)
    assert loop.run_chunk.cache_size() == before


@pytest.mark.slow
def test_twenty_seeds_are_flagged_and_fifty_are_not():
    for seed in range(20):
        assert not of_two_bells(seed)[0].evidence.trusted
        assert not of_labels(seed)[0].evidence.trusted
    for seed in range(50):
        assert of_counts(seed)[0].evidence.trusted
