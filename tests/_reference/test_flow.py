"""What a flow leaves of the noise of score and information, against quadrature."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import jalax
from jalax._reference import flow, group_points

LATENTS = 4
KEYS = jax.random.split(jax.random.key(0), 32)
Y = np.random.default_rng(0).poisson(3.0, size=(5, LATENTS))
THETA = np.array([0.8, -0.4])


def poisson(theta, x, y):
    log_normal = jax.scipy.stats.norm.logpdf
    prior = jnp.sum(log_normal(x, theta[0], jnp.exp(theta[1])))
    return prior + jnp.sum(jax.scipy.stats.poisson.logpmf(y, jnp.exp(x)))


def normal(theta, x, y):
    log_normal = jax.scipy.stats.norm.logpdf
    return jnp.sum(log_normal(x, theta[0], jnp.exp(theta[1])) + log_normal(y, x, 0.7))


def by_quadrature(theta):
    """log p of the Poisson model: its latents are independent."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    x = theta[0] + np.exp(theta[1]) * nodes
    rows = stats.poisson.logpmf(Y[..., None], np.exp(x))
    return special.logsumexp(rows, b=weights / weights.sum(), axis=-1).sum()


def derivatives(function, at, step=1e-3):
    """The gradient and minus the Hessian, by central differences of fourth order."""
    offsets, first = np.array([-2, -1, 1, 2]), np.array([1, -8, 8, -1]) / 12
    units = step * np.eye(at.size)

    def gradient(point):
        along = [[function(point + k * unit) for k in offsets] for unit in units]
        return np.array(along) @ first / step

    slopes = [np.array([gradient(at + k * unit) for k in offsets]).T @ first for unit in units]
    return gradient(at), -np.array(slopes) / step


@functools.cache
def normal_passes(precision):
    """Those of all keys, for each of them."""
    assert jnp.result_type(float).name == precision
    return passes(normal, True, num=64)


def passes(log_joint, informs, num=256):
    """Score and information of each key."""
    model = jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), jnp.asarray(Y, float))
    theta, modes = jnp.asarray(THETA, float), jnp.zeros((5, LATENTS), float)

    def one(key):
        seen = group_points.look(key, model, theta, modes, num, informs=informs)
        seen = group_points.with_metric(seen, jnp.eye(2))
        return seen.score, seen.complete - seen.missing

    return [np.asarray(part, float) for part in jax.jit(jax.vmap(one))(KEYS)]


def test_a_poisson_model_against_quadrature(x64, monkeypatch):
    """Both means are right; with the flow their spread is a fraction of what it is without."""
    exact = derivatives(by_quadrature, THETA)
    steady = passes(poisson, True)
    monkeypatch.setattr(group_points, "is_worth_it", lambda *sizes: False)
    plain = passes(poisson, False)
    for expected, before, after in zip(exact, plain, steady, strict=True):
        error = after.std(axis=0, ddof=1) / np.sqrt(len(KEYS))
        # 256 points have a bias of their own order of error, which the spread does not know.
        np.testing.assert_array_less(np.abs(after.mean(axis=0) - expected), 5 * error + 2e-3)
        assert (after.std(axis=0) < before.std(axis=0) / 3).all(), (after.std(0), before.std(0))


@pytest.mark.parametrize("key", [0, 1])
def test_a_normal_model_has_no_noise_left(key, precision):
    """y ~ N(mu, s^2 + .49): one pass has its score and information, but for rounding."""

    def log_p(theta):
        return stats.norm.logpdf(Y, theta[0], np.sqrt(np.exp(2 * theta[1]) + 0.49)).sum()

    score, information = (part[key] for part in normal_passes(precision))
    exact = derivatives(log_p, THETA)
    loose = 2e-3 if precision == "float32" else 1e-5
    scale = np.abs(np.diagonal(exact[1]))
    np.testing.assert_allclose(score, exact[0], atol=loose * np.sqrt(scale.max()))
    # The curvature is not weighted by a constant: 64 points have an error of their own there.
    np.testing.assert_allclose(information, exact[1], atol=0.05 * scale.max())


def test_up_to_three_latents_there_is_none():
    assert not flow.is_worth_it(3, 2)
    assert flow.is_worth_it(4, 2)
    assert not flow.is_worth_it(30, 100)  # each point would cost more by it than by log p


def test_standard_errors_of_a_fit(x64):
    """Second derivatives in every other measurement, and I_c of the climb beside them."""
    model = jalax.GroupedModel(poisson, jnp.zeros(LATENTS), jnp.asarray(Y, float))
    quiet = {"progress": jalax.callbacks.Callback(), "algorithm": jalax.Scoring()}
    result = jalax.fit(model, jnp.array([0.5, 0.0]), key=jax.random.key(1), **quiet)
    score, information = derivatives(by_quadrature, np.asarray(result.theta))
    exact = np.sqrt(np.diag(np.linalg.inv(information)))
    assert result.status == "converged"
    assert np.abs(np.linalg.solve(information, score) / exact).max() < 0.02
    np.testing.assert_allclose(result.standard_errors(), exact, rtol=0.01)


def test_points_that_are_not_visited_have_no_say(x64, monkeypatch):
    """Of all blocks but the first: the curvature in the mean is that of the prior, whatever x."""
    monkeypatch.setattr(group_points, "WORTH_BLOCKS", 0)
    model = jalax.GroupedModel(poisson, jnp.zeros(LATENTS), jnp.asarray(Y, float))
    theta, modes = jnp.asarray(THETA, float), jnp.zeros((5, LATENTS), float)
    options = {"few": True, "curvature_blocks": 8}
    seen = jax.jit(lambda: group_points.look(KEYS[0], model, theta, modes, 512, **options))()
    assert np.isfinite(seen.log_weights).sum(axis=1).tolist() == [128] * 5
    np.testing.assert_allclose(seen.complete[0, 0], Y.size * np.exp(-2 * THETA[1]), rtol=1e-9)
