"""Factor analysis and item response, against SciPy, quadrature and their own closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import multivariate_normal, norm

import jalax
from jalax import models
from shared_models import answers, quadrature


def factors(num_rows, num_variables=20, num_factors=3, seed=0):
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(num_variables, num_factors))
    mean, sd = rng.normal(size=num_variables), np.exp(0.3 * rng.normal(size=num_variables))
    x = rng.normal(size=(num_rows, num_factors))
    return mean + x @ loadings.T + sd * rng.normal(size=(num_rows, num_variables))


def test_factor_analysis_against_scipy(x64):
    y = factors(7, num_variables=4, num_factors=2)
    model = models.factor_analysis(y, 2)
    rng = np.random.default_rng(5)
    theta = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), model.theta)
    loadings = np.asarray(model.loadings(theta))
    assert np.all(np.triu(loadings, 1) == 0)
    noise = np.diag(np.exp(2 * np.asarray(theta["log_sd"])))
    marginal = multivariate_normal(theta["mean"], loadings @ loadings.T + noise)
    assert float(model.exact_log_evidence(theta)) == pytest.approx(marginal.logpdf(y).sum())
    posterior = model.exact_posterior(theta)
    x = rng.normal(size=2)
    for i in range(7):
        joint = multivariate_normal(np.zeros(2), np.eye(2)).logpdf(x)
        joint += multivariate_normal(theta["mean"] + loadings @ x, noise).logpdf(y[i])
        mine = model.log_joint(theta, jnp.asarray(x), {"y": jnp.asarray(y[i])})
        assert float(mine) == pytest.approx(joint)
        # Bayes: log p(x, y) - log p(y) is the posterior's density.
        at = multivariate_normal(posterior.mean[i], posterior.covariance[i]).logpdf(x)
        assert at == pytest.approx(joint - marginal.logpdf(y[i]))


def test_the_start_of_factor_analysis_is_near_the_covariance():
    y = factors(3000, num_variables=6, num_factors=2)
    model = models.factor_analysis(y, 2)
    loadings = np.asarray(model.loadings(model.theta))
    start = loadings @ loadings.T + np.diag(np.exp(2 * np.asarray(model.theta["log_sd"])))
    assert np.abs(start - np.cov(y.T)).max() < 0.3 * np.diagonal(np.cov(y.T)).max()


@pytest.mark.slow_cases("float64")
def test_item_response_against_quadrature(precision):
    y = answers(40, 6)
    y[3, 2] = y[7, :4] = np.nan
    model = models.item_response(y)
    theta = {"slope": jnp.linspace(0.5, 2.0, 6), "intercept": jnp.linspace(-1.0, 1.0, 6)}
    one = float(model.log_joint(theta, jnp.asarray(0.4), jax.tree.map(lambda a: a[3], model.data)))
    logits = 0.4 * np.linspace(0.5, 2.0, 6) + np.linspace(-1.0, 1.0, 6)
    terms = np.where(y[3] == 1, np.log(expit(logits)), np.log(expit(-logits)))
    assert one == pytest.approx(terms[~np.isnan(y[3])].sum() + norm.logpdf(0.4), rel=1e-5)
    evidence = jalax.log_evidence(model, theta, key=jax.random.key(0))
    assert abs(evidence.value - quadrature(theta, y)) <= 4.5 * evidence.error
    assert evidence.error < 0.1


def test_a_generator_without_hidden_layers_is_principal_components(x64):
    """Its marginal is a Gaussian: y ~ N(b, W^T W + sigma^2 I)."""
    rng = np.random.default_rng(3)
    y = rng.normal(size=(12, 2, 3))
    model = models.generator(y, num_latents=2, hidden=())
    W, b = (np.asarray(model.theta[name][0]) for name in ("weights", "biases"))
    sd = float(jnp.exp(model.theta["log_sd"]))
    exact = multivariate_normal(b, W.T @ W + sd**2 * np.eye(6)).logpdf(y.reshape(12, 6)).sum()
    evidence = jalax.log_evidence(model, key=jax.random.key(0))
    assert abs(evidence.value - exact) <= 4.5 * evidence.error
    assert evidence.error < 0.1


@pytest.mark.slow
def test_a_generator_learns_to_draw():
    """Digits, 16 x 16: after some steps the pictures are nearer to their reconstructions."""
    pictures = jalax.datasets.mnist((4, 9), 64).images[:, 6:22, 6:22]
    model = models.generator(pictures, num_latents=4, hidden=(32,))
    x, theta = jnp.asarray([0.3, -0.2, 0.5, 1.0]), model.theta
    (W1, W2), (b1, b2) = ([np.asarray(a, float) for a in theta[k]] for k in ("weights", "biases"))
    by_hand = np.tanh(np.asarray(x) @ W1 + b1) @ W2 + b2
    np.testing.assert_allclose(model.picture(theta, x), by_hand, rtol=1e-5, atol=1e-6)
    result = jalax.fit(
        model,
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(step_size=1e-3, optimizer=optax.adam(0.01), minibatch=16),
        start=jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, (4,))),
        num_particles=10,
        num_steps=400,
    )
    drawn = result.expectation(lambda x: model.picture(result.theta, x))
    left = np.mean((np.asarray(drawn) - pictures.reshape(64, -1)) ** 2)
    assert left < 0.7 * np.var(pictures - pictures.mean(axis=0))


@pytest.mark.slow
def test_global_weights_of_factor_analysis_collapse_and_say_so(x64):
    """1000 rows, 3000 latents under one set of weights, and the same with weights of their own."""
    grouped = models.factor_analysis(factors(1000), 3)
    one = grouped.log_joint.function

    def whole(theta, x, data):
        return jnp.sum(jax.vmap(one, in_axes=(None, 0, 0))(theta, x, data))

    joint = jalax.Model(whole, jnp.zeros((1000, 3)), grouped.data, theta=grouped.theta)
    posterior = grouped.exact_posterior(grouped.theta)
    root = np.linalg.cholesky(np.asarray(posterior.covariance))
    noise = np.random.default_rng(0).normal(size=(1000, 50, 3))
    x = posterior.mean[:, None] + np.einsum("gij,gnj->gni", root, noise)
    log_z0 = grouped.exact_log_evidence(grouped.theta)
    options = {
        "key": jax.random.key(0),
        "algorithm": jalax.JALAEM(step_size=0.02, optimizer=optax.adam(0.02)),
        "num_steps": 60,
    }
    start = jalax.Given(jnp.swapaxes(x, 0, 1), log_evidence=log_z0)
    with pytest.warns(UserWarning, match="weights collapsed"):
        result = jalax.fit(joint, start=start, **options)
    assert "use jalax.GroupedModel" in result.message
    with pytest.warns(UserWarning, match="weights collapsed"):
        assert result.path_log_evidence is None
    result = jalax.fit(grouped, start=jalax.Given(x, log_evidence=log_z0), **options)
    assert result.history["ess"].min() > 10
    assert "collapsed" not in result.message
    exact = float(grouped.exact_log_evidence(result.theta))
    error = result.history["log_evidence_error"][-1]
    # An error of 3.9 in a sum over 1000 groups: right, and so large that it is said.
    with pytest.warns(UserWarning, match="gives its log-evidence an error of"):
        assert abs(result.path_log_evidence - exact) <= 4.5 * error
    assert error < 5


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [100, 1000, 5000, 20_000])
def test_the_evidence_of_factor_analysis_at_any_number_of_groups(num_groups, x64):
    """20 variables, 3 factors: 6 seeds, each within 4.5 errors, and their mean within 4.

    The errors asked for are large, so that the bias of a log of an average, which adds up over
    the groups to half the variance, would be seen if it were not corrected.
    """
    model = models.factor_analysis(factors(num_groups), 3)
    exact = float(model.exact_log_evidence(model.theta))
    error = max(0.05, 2e-4 * num_groups)
    found = [
        jalax.log_evidence(model, model.theta, key=jax.random.key(k), error=error) for k in range(6)
    ]
    off = np.array([(e.value - exact) / e.error for e in found])
    assert np.abs(off).max() < 4.5
    assert abs(off.mean()) < 4 / np.sqrt(6)


@pytest.mark.slow
def test_item_response_of_2000_persons(x64):
    """Items against the maximum of the quadrature's likelihood, evidence against quadrature."""
    y = answers(2000, 30)
    model = models.item_response(y)
    result = jalax.fit(model, key=jax.random.key(0))
    free, unravel = jax.flatten_util.ravel_pytree(model.theta)

    nodes, weights = np.polynomial.hermite_e.hermegauss(61)

    @jax.jit
    @jax.value_and_grad
    def minus_log_likelihood(flat):
        theta = unravel(flat)
        logits = nodes[:, None] * theta["slope"] + theta["intercept"]
        each = y @ logits.T - jnp.sum(jax.nn.softplus(logits), axis=1)
        log_weights = jnp.log(weights / weights.sum())
        return -jnp.sum(jax.nn.logsumexp(each + log_weights, axis=1))

    best = minimize(
        lambda t: tuple(np.asarray(v, float) for v in minus_log_likelihood(t)),
        np.asarray(free),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-3},
    )
    known = unravel(jnp.asarray(best.x))
    errors = result.simulation_errors()
    for name in ("slope", "intercept"):
        off = np.abs(np.asarray(result.theta[name]) - np.asarray(known[name]))
        assert np.all(off <= 4.5 * np.asarray(errors[name])), name
    exact = quadrature(result.theta, y)
    assert abs(result.log_evidence - exact) <= 4.5 * result.log_evidence_error
