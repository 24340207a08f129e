"""Whole fits against exact answers: the paper's Gaussian regression, a hierarchical normal model,
the step-size bias that JALA-EM does not have, and Proposition 2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import step_size
from step_size import exact_posterior_start, regression_data

import jalax
from jalax import models
from jalax._model.types import Cloud
from jalax._runtime.options import canonical

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.slow
def test_gaussian_regression_in_the_papers_setting():
    """d_y=500, d_x=8, N=50, K=250, h=5e-5, Adam 5e-3 from (1, 1), no resampling; 20 data sets."""
    data = [regression_data(seed, 500) for seed in range(20)]
    many = {"X": np.stack([X for X, _ in data]), "y": np.stack([y for _, y in data])}
    one = models.gaussian_regression(*data[0])
    fits = jalax.fit_many(
        one.replace(data=many),
        jnp.ones(2),
        key=jax.random.key(1),
        axes={"data": 0},
        algorithm=jalax.JALAEM(step_size=5e-5, optimizer=optax.adam(5e-3), resample_below=0.0),
        start=exact_posterior_start(one),
        num_particles=50,
        num_steps=250,
    )
    errors = []
    for (X, y), fit in zip(data, fits, strict=True):
        exact = models.gaussian_regression(X, y).exact_log_evidence(fit.theta)
        errors.append(abs(fit.path_log_evidence - float(exact)))
        assert np.all(fit.history["dead"] == 0)
    # Measured: median 0.09; the evidence itself moves by about 90 along these paths.
    assert np.median(errors) < 0.2


HIERARCHICAL = {
    "JALAEM": jalax.JALAEM(step_size=0.02, optimizer=optax.adam(0.02)),
    "PGD": jalax.PGD(step_size=0.01),
    "IPLA": jalax.IPLA(step_size=0.01),
    "SOUL": jalax.SOUL(step_size=0.2, optimizer=optax.sgd(0.005)),
    "SFLA": jalax.SFLA(step_size=2e-4, epsilon=0.001, beta=1e4),
}


@pytest.mark.slow_cases(
    *("float32-JALAEM", "float64-PGD"),
    *(f"float{bits}-{name}" for bits in (32, 64) for name in ("IPLA", "SFLA", "SOUL")),
)
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_hierarchical_normal(name, precision):
    """100 latents, theta* = mean(y): every algorithm gets there."""
    y = 1.0 + np.sqrt(2.0) * np.random.default_rng(0).normal(size=100)
    model = models.hierarchical_normal(y)
    fit = jalax.fit(
        model,
        0.0,
        key=jax.random.key(2),
        algorithm=HIERARCHICAL[name],
        start=jalax.FromSampler(lambda key, theta, data: theta + jax.random.normal(key, (100,))),
        num_particles=100,
        num_steps=2000,
    )
    assert abs(float(fit.theta_average(last=0.25)) - y.mean()) < 0.05


@pytest.mark.slow
def test_pgds_error_grows_with_its_step_size_and_jala_ems_does_not():
    _, pgd, jala = step_size.errors((0.1, 0.4, 0.8))
    assert np.all(np.diff(pgd) > 0)
    assert pgd[-1] > 5 * pgd[0]
    assert jala.max() < 0.2 * pgd[-1]
    assert jala.max() < 0.02


@pytest.mark.slow
def test_proposition_2():
    """MSE of the gradient along a fixed theta-path falls like 1/N: slope -1 +- 0.15."""
    X, y = regression_data(5, 40, 3)
    model = models.gaussian_regression(X, y)
    path = np.linspace([0.5, 0.5], [0.0, 0.2], 11)

    def update(gradient, k, theta):
        return jnp.asarray(path)[k + 1] - theta, k + 1

    follow = optax.GradientTransformation(lambda theta: jnp.zeros((), jnp.int32), update)
    algorithm = canonical(jalax.JALAEM(step_size=0.01, optimizer=follow, resample_below=0.5))
    exact = jax.grad(model.exact_log_evidence)(jnp.asarray(path[-1]))

    def gradient(key, num):
        key_start, key_run = jax.random.split(key)
        x = model.exact_posterior(jnp.asarray(path[0])).sample(key_start, num)
        cloud = Cloud(x[None], jnp.zeros((1, num)), None)
        state = algorithm.init(key, model, jnp.asarray(path[0]), cloud)
        keys = jax.random.split(key_run, len(path) - 1)
        state, _ = jax.lax.scan(lambda s, k: algorithm.step(k, model, s), state, keys)
        return state.memory.point.grad_theta

    counts = np.array([30, 100, 300, 1000])
    mse = []
    for num in counts:
        keys = jax.random.split(jax.random.key(num), 1000)
        estimates = jax.jit(jax.vmap(lambda key, num=num: gradient(key, num)))(keys)
        mse.append(float(jnp.mean(jnp.sum((estimates - exact) ** 2, axis=1))))
    slope = np.polyfit(np.log(counts), np.log(mse), 1)[0]
    assert abs(slope + 1) < 0.15
