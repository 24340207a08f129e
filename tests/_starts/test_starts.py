"""Starts that find their own particles: right evidence, right moments, and fits from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax import models
from jalax._model import checks, evaluation
from jalax._particles import weight_math
from jalax._reference import tempering
from jalax._reference.mode_search import find_mode
from jalax._reference.references import AtMode

Y = np.array([0.5, -1.0, 2.0, 3.0])
THETA = 0.7

STARTS = {
    "Laplace": jalax.Laplace(),
    "Laplace, Gaussian": jalax.Laplace(degrees_of_freedom=jnp.inf),
    "Importance": jalax.Importance(
        (
            lambda key, theta, data: theta + jax.random.normal(key, (4,)),
            lambda theta, x, data: jnp.sum(jax.scipy.stats.norm.logpdf(x, theta, 1.0)),
        )
    ),
    "Tempered": jalax.Tempered(),
    "Tempered, JALA, from the prior": jalax.Tempered(
        reference=(
            lambda key, theta, data: theta + jax.random.normal(key, (4,)),
            lambda theta, x, data: jnp.sum(jax.scipy.stats.norm.logpdf(x, theta, 1.0)),
        ),
        moves=jalax.references.JALA(),
        cess=0.95,
    ),
    "Tempered, MALA, from the prior": jalax.Tempered(
        reference=(
            lambda key, theta, data: theta + jax.random.normal(key, (4,)),
            lambda theta, x, data: jnp.sum(jax.scipy.stats.norm.logpdf(x, theta, 1.0)),
        ),
    ),
}


SLOW = ("Tempered", "Tempered, JALA, from the prior", "Tempered, MALA, from the prior")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in STARTS]
)
def test_evidence_and_moments_are_exact_over_replicates(name, x64):
    """mean(Z_r) = Z and sum_r Z_r f_r / sum_r Z_r = E f, |t| < 4 (false alarm 6e-5 each)."""
    model = checks.prepare_model(models.hierarchical_normal(Y))
    theta = jnp.asarray(THETA)

    def replicate(key):
        cloud = STARTS[name](key, model, theta, 200)
        weights = weight_math.normalise(cloud.log_weights)
        x = cloud.particles[0, :, 0]
        mean = (Y[0] + THETA) / 2
        return (
            cloud.log_evidence.sum(),
            jnp.sum(weights[0] * x) - mean,
            jnp.sum(weights[0] * (x - mean) ** 2) - 0.5,
        )

    keys = jax.random.split(jax.random.key(0), 400)
    log_z, first, second = jax.jit(jax.vmap(replicate))(keys)
    z = np.exp(np.asarray(log_z) - float(model.exact_log_evidence(theta)))
    assert z.std() < 0.5
    for error in (z - 1, z * np.asarray(first), z * np.asarray(second)):
        spread = error.std() / np.sqrt(len(error))
        assert abs(error.mean()) < 4 * spread + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(jalax.Laplace(), id="Laplace"),
        pytest.param(jalax.Tempered(), id="Tempered"),
    ],
)
def test_a_fit_from_here_has_an_absolute_evidence(start, grouped, precision):
    """Against the closed form, plain and grouped."""
    exact = models.hierarchical_normal(Y)
    if grouped:
        log_joint = lambda theta, x, y: (  # noqa: E731
            -0.5 * (x - theta) ** 2 - 0.5 * (y - x) ** 2 - jnp.log(2 * jnp.pi)
        )
        model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(Y))
    else:
        model = exact
    result = jalax.fit(
        model,
        0.0,
        key=jax.random.key(1),
        algorithm=jalax.JALAEM(step_size=0.1, optimizer=optax.adam(0.05)),
        start=start,
        num_particles=500,
        num_steps=200,
    )
    truth = float(exact.exact_log_evidence(result.theta))
    assert abs(result.path_log_evidence - truth) < 0.3
    assert abs(result.log_evidence - truth) < 4.5 * result.log_evidence_error + 1e-3
    assert result.log_evidence_error <= 0.03
    assert abs(float(result.theta_average(0.5)) - Y.mean()) < 0.1


@pytest.mark.slow
def test_replay_is_unbiased_where_the_path_is_not(x64):
    """A grouped toy: the adaptive path's evidence is high, its replay is right."""
    y = 1.5 * np.random.default_rng(0).normal(size=20)
    log_normal = jax.scipy.stats.norm.logpdf

    def log_joint(theta, x, y):
        return log_normal(x, theta[0], jnp.exp(theta[1])) + log_normal(y, x, 1.0)

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(y))
    fits = jalax.fit_many(
        model,
        jnp.array([1.0, 0.5]),
        key=jax.random.key(0),
        num_fits=8,
        algorithm=jalax.JALAEM(step_size=0.2, optimizer=optax.adam(0.05)),
        start=jalax.Laplace(),
        num_particles=50,
        num_steps=120,
    )
    bias, errors, ratios = [], [], []
    for i, result in enumerate(fits):
        mean, sd = result.theta[0], jnp.sqrt(jnp.exp(2 * result.theta[1]) + 1)
        truth = float(jnp.sum(log_normal(y, mean, sd)))
        bias.append(result.path_log_evidence - truth)
        again = result.replay(jax.random.key(100 + i), num_replicates=32)
        errors.append(again.value - truth)
        ratios.append((again.value - truth) / again.error)
    print(f"bias of the path {np.mean(bias):.2f}, of its replay {np.mean(errors):.3f}")
    assert np.mean(bias) > 0.2
    assert abs(np.mean(errors)) < 0.1
    assert np.max(np.abs(ratios)) < 4.5


def test_ula_start_is_the_papers(x64):
    """200 steps from the prior: near the posterior, evidence relative."""
    model = models.hierarchical_normal(Y)
    start = jalax.ULA(fn=lambda key, theta, data: theta + jax.random.normal(key, (4,)))
    cloud = start(key=jax.random.key(0), model=model, theta=jnp.asarray(THETA), num_particles=4000)
    assert cloud.log_evidence is None
    # Step sizes grow to 0.1, so that the variance is near 1/2 / (1 - 0.1): ULA's own bias.
    np.testing.assert_allclose(cloud.particles[0].mean(0), (Y + THETA) / 2, atol=0.06)
    np.testing.assert_allclose(cloud.particles[0].var(0), 0.5 / 0.9, rtol=0.12)


@pytest.mark.slow
def test_genealogy_error_of_one_run(x64):
    """Lee and Whiteley's estimate against the spread over replicates, multinomial resampling."""
    path = {"m": np.linspace(0.0, 0.5, 9), "s": np.linspace(1.0, 0.9, 9)}

    def log_density(t, x):
        return -0.5 * jnp.sum(((x - t["m"]) / t["s"]) ** 2)

    def run(key, resample):
        key_start, key = jax.random.split(key)
        x = jax.random.normal(key_start, (200, 10))
        return jalax.transport(
            log_density,
            path,
            x,
            key=key,
            step_size=0.1,
            resample=resample,
            resample_below=0.9,
        )

    keys = jax.random.split(jax.random.key(0), 400)
    many = jax.jit(jax.vmap(lambda key: run(key, jalax.resampling.multinomial)))(keys)
    spread = float(np.std(many.log_evidence[:, -1]))
    each = [
        jax.tree.map(lambda leaf, i=i: leaf[i], many).log_evidence_error() for i in range(0, 400, 4)
    ]
    estimate = float(np.sqrt(np.mean(np.square(each))))
    assert abs(estimate / spread - 1) < 0.15


@pytest.mark.slow
def test_lines_without_a_temperature_between_are_the_importance_weights(x64):
    """One temperature: nothing is resampled after beta = 1 but what its weights carry."""
    model = checks.prepare_model(models.hierarchical_normal(Y))
    theta, key = jnp.asarray(THETA), jax.random.key(0)
    prepared = AtMode().prepare(key, model, theta)
    plan = tempering.Plan(
        beta=jnp.array([0.0, 1.0]),
        step_size=jnp.full((2, 1), 0.3),
        num=jnp.asarray(2),
        reached=jnp.asarray(True),
        acceptance=jnp.asarray(1.0),
        particles=None,
        log_weights=jnp.zeros((1, 50)),
    )
    leg = tempering.run_leg(
        key, model, theta, prepared, plan, num_particles=50, moves=jalax.references.MALA()
    )
    draws = prepared.sample(jax.random.split(key)[0], model, theta, 50)
    log_w = evaluation.log_joint(model, theta, draws) - prepared.log_density(model, theta, draws)
    np.testing.assert_allclose(jnp.exp(leg.log_descent), weight_math.normalise(log_w), rtol=1e-10)


@pytest.mark.slow
def test_the_mode_of_latents_in_very_different_units(precision):
    """A polynomial of order ten: the Hessian's condition number is 4e8, more than float32 holds."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 300)
    y = np.polyval(rng.normal(size=11), x) + 7.5 * rng.normal(size=300)
    theta = np.array([np.log(56.25) + 1, 1.0])
    with jax.enable_x64(True):
        exact = models.polynomial_regression(x, y, 10).exact_posterior(jnp.asarray(theta))
        covariance, mean = np.asarray(exact.covariance), np.asarray(exact.mean)
    model = checks.prepare_model(models.polynomial_regression(x, y, 10))
    mode = find_mode(model, jnp.asarray(theta, dtype=float))
    assert bool(mode.positive[0])
    assert bool(mode.converged[0])
    root = np.asarray(mode.root[0], float)
    np.testing.assert_allclose(
        np.sqrt(np.diagonal(root @ root.T)), np.sqrt(np.diagonal(covariance)), rtol=0.02
    )
    assert float(mode.log_det_root[0]) == pytest.approx(
        0.5 * np.linalg.slogdet(covariance)[1], abs=0.02
    )
    np.testing.assert_allclose(mode.inverse[0] @ mode.root[0], np.eye(11), atol=1e-3)
    off = (np.asarray(mode.x[0], float) - mean) / np.sqrt(np.diagonal(covariance))
    assert np.abs(off).max() < 0.1
