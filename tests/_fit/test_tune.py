"""lppd and tune: against NumPy, and against step sizes that are known to be bad."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import jalax
from jalax import models

rng = np.random.default_rng(0)
X, W = rng.normal(size=(41, 3)), np.array([1.0, -2.0, 0.5])
Y = X @ W + rng.normal(size=41)


def one_step(model, particles, log_weights):
    """A fit that has not moved: the particles and weights it was given."""
    start = jalax.Given(jnp.asarray(particles), jnp.asarray(log_weights))
    algorithm = jalax.JALAEM(step_size=1e-12, optimizer=optax.sgd(0.0), resample_below=0.0)
    return jalax.fit(model, key=jax.random.key(0), algorithm=algorithm, start=start, num_steps=1)


@pytest.mark.parametrize(
    "make",
    [
        models.gaussian_regression,
        pytest.param(models.student_t_regression, marks=pytest.mark.slow),
    ],
)
def test_lppd_is_the_mean_log_of_the_weighted_density(make, x64):
    particles, log_weights = rng.normal(size=(5, 3)), np.log([0.5, 0.2, 0.1, 0.1, 0.1])
    fit = one_step(make(X, Y), particles, log_weights)
    scale, freedom = np.exp(0.5 * fit.theta[0]), np.inf
    if make is models.student_t_regression:
        freedom = np.exp(fit.theta[2])
    density = stats.t.pdf((Y[:7] - particles @ X[:7].T) / scale, freedom) / scale
    expected = np.mean(np.log(np.exp(log_weights) @ density))
    assert float(jalax.lppd(fit, make(X[:7], Y[:7]).data)) == pytest.approx(expected, abs=1e-4)


def test_lppd_ignores_dead_particles_and_takes_a_predictive_of_the_users(x64):
    model = jalax.Model(lambda theta, x, y: -0.5 * x**2 - 0.5 * (y - x - theta) ** 2, 0.0, 1.0)
    fit = one_step(model.replace(theta=jnp.zeros(())), np.array([0.0, 7.0]), [0.0, -np.inf])
    found = jalax.lppd(
        fit,
        jnp.array([0.0, 2.0]),
        log_predictive=lambda theta, x, y: jnp.where(x > 5, jnp.nan, stats_normal(y - x - theta)),
    )
    assert float(found) == pytest.approx(np.mean(stats.norm.logpdf([0.0, 2.0])), abs=1e-5)


def stats_normal(z):
    return jax.scipy.stats.norm.logpdf(z)


def tuned(step_sizes, **options):
    return jalax.tune(
        models.gaussian_regression(X, Y),
        jnp.zeros(2),
        key=jax.random.key(1),
        algorithm=jalax.PGD(step_size=np.array(step_sizes)),
        rows=("X", "y"),
        start=jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, (3,))),
        num_particles=40,
        num_steps=200,
        **options,
    )


def test_tune_finds_the_step_size_that_works():
    """The first never leaves the prior, the third is far beyond stability and diverges."""
    largest = np.linalg.eigvalsh(X.T @ X).max() + 1
    found = tuned([1e-14, 0.3 / largest, 1e4])
    assert found.best == 1
    assert float(found.algorithm.step_size) == pytest.approx(0.3 / largest, rel=1e-5)
    assert np.isfinite(found.scores[:2]).all()
    assert np.isneginf(found.scores[2]).all()
    # The predictive density of the true weights and variance, which nothing beats by much.
    truth = np.mean(stats.norm.logpdf(Y - X @ W))
    assert abs(found.scores[1].mean() - truth) < 0.3
    # The prior never gains: it stops after one look and ten without a gain.
    assert (found.num_steps[0] == 110).all()
