"""Scores, information and the shift of the posterior, each against a closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy.special import digamma, polygamma

import jalax
from jalax import datasets, models
from jalax._evidence import uncertainty
from jalax._model import information
from jalax._model.checks import prepare_model
from jalax._model.evaluation import Point, evaluate
from jalax._particles import langevin, weight_math
from jalax._particles.langevin import Dense
from jalax._reference import curvature, mode_search
from jalax._reference.mode_search import find_mode
from jalax._starts.importance import Laplace

pytestmark = pytest.mark.usefixtures("x64")


def test_metric_makes_both_informations_diagonal():
    rng = np.random.default_rng(0)
    scale = np.diag([1e-6, 1.0, 1e5])  # parameters in odd units
    a, b = rng.normal(size=(2, 3, 3))
    complete, missing = scale @ (a @ a.T + np.eye(3)) @ scale, scale @ (b @ b.T) @ scale / 9
    metric = information.metric(jnp.array(complete), jnp.array(missing))
    basis = np.asarray(metric.basis)
    np.testing.assert_allclose(basis.T @ complete @ basis, np.eye(3), atol=1e-8)
    observed = basis.T @ (complete - missing) @ basis
    np.testing.assert_allclose(observed, np.diag(metric.share), atol=1e-8)
    np.testing.assert_allclose(metric.inverse @ basis, np.eye(3), atol=1e-8)
    score = scale @ rng.normal(size=3)
    step = metric.solve(jnp.array(score), metric.share)
    np.testing.assert_allclose(step, np.linalg.solve(complete - missing, score), rtol=1e-6)


def poisson_gamma(theta, x, y):
    """e^x ~ Gamma(shape theta, rate 1): y is negative binomial, and theta's score is known."""
    return (theta + y) * x - 2 * jnp.exp(x) - gammaln(theta) - gammaln(y + 1.0)


Y = np.array([0.0, 1.0, 3.0, 7.0, 2.0, 0.0])


def exact_score(theta):
    return (digamma(theta + Y) - digamma(theta)).sum() - Y.size * np.log(2)


def exact_information(theta):
    return (polygamma(1, theta) - polygamma(1, theta + Y)).sum()


def cloud_of(model, theta, key, num):
    cloud = Laplace()(key, model, theta, num)
    visit = evaluate(model, theta, cloud.particles)
    return cloud, visit.grad_x


def expansion_of(model, theta):
    """At the mode, which knows nothing of the particles."""
    mode = find_mode(model, theta)
    matrix = curvature.inverse_hessian(model, theta, mode.x).matrix
    return curvature.expansion(model, theta, mode.x, matrix)


def test_one_newton_step_is_the_mode_of_a_gaussian():
    y = jnp.arange(3.0)
    model = prepare_model(models.hierarchical_normal(y))
    at = jnp.array([[0.3, 0.4, 0.9]])

    @jax.jit
    def step(theta):
        matrix = curvature.inverse_hessian(model, theta, at).matrix
        return curvature.newton(model, theta, at, matrix)

    found = step(jnp.asarray(0.5))
    np.testing.assert_allclose(found[0], (y + 0.5) / 2, rtol=1e-12)


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("steadied", [False, True])
def test_score_and_information_are_unbiased(steadied):
    """Many small clouds: the bias of 1/N is corrected, the noise is what is reported."""
    model = prepare_model(jalax.GroupedModel(poisson_gamma, jnp.zeros(()), jnp.array(Y)))
    theta = jnp.asarray(1.3)

    def one(key):
        cloud, grad_x = cloud_of(model, theta, key, 64)
        how = {}
        if steadied:
            how = {"expansion": expansion_of(model, theta), "grad_x": grad_x}
        return information.moments(model, theta, cloud.particles, cloud.log_weights, **how)

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000))
    score = np.asarray(found.score)[:, 0]
    t = (score.mean() - exact_score(1.3)) / (score.std() / np.sqrt(score.size))
    assert abs(t) < 4  # false alarm 6e-5
    np.testing.assert_allclose(np.mean(found.noise), score.var(), rtol=0.15)
    if not steadied:  # with an expansion M has a bias, and is used to choose directions only
        observed = np.asarray(found.observed)[:, 0, 0]
        t = (observed.mean() - exact_information(1.3)) / (observed.std() / np.sqrt(observed.size))
        assert abs(t) < 4


@pytest.mark.slow
def test_stein_takes_out_noise():
    model = prepare_model(jalax.GroupedModel(poisson_gamma, jnp.zeros(()), jnp.array(Y)))
    theta = jnp.asarray(1.3)
    cloud, grad_x = cloud_of(model, theta, jax.random.key(1), 4000)
    plain = information.moments(model, theta, cloud.particles, cloud.log_weights)
    steady = information.moments(
        model,
        theta,
        cloud.particles,
        cloud.log_weights,
        expansion=expansion_of(model, theta),
        grad_x=grad_x,
    )
    assert float(steady.noise[0, 0]) < 0.5 * float(plain.noise[0, 0])


@pytest.mark.slow
def test_a_gaussian_posterior_leaves_no_noise():
    """Whatever the particles: score and information of a linear mixed model are exact."""
    data = datasets.sleepstudy()
    model = models.linear_mixed(data.reaction, data.covariates, data.subject, data.covariates)
    prepared, theta = prepare_model(model), model.theta
    cloud, grad_x = cloud_of(prepared, theta, jax.random.key(0), 20)
    expansion = expansion_of(prepared, theta)
    found = information.moments(
        prepared, theta, cloud.particles, cloud.log_weights, expansion=expansion, grad_x=grad_x
    )
    flat, unravel = jax.flatten_util.ravel_pytree(theta)
    score = jax.grad(lambda t: model.exact_log_evidence(unravel(t)))(flat)
    np.testing.assert_allclose(found.score, score, rtol=1e-6, atol=1e-8)
    assert float(jnp.max(jnp.abs(found.noise))) < 1e-12
    missing = expansion.covariance()
    many, _ = cloud_of(prepared, theta, jax.random.key(1), 20_000)
    # Compiled: operation by operation 20,000 scores of 18 groups take minutes.
    moments = jax.jit(information.moments)
    sampled = moments(prepared, theta, many.particles, many.log_weights).missing
    root = np.sqrt(np.diagonal(missing))
    np.testing.assert_allclose(
        sampled / np.outer(root, root), missing / np.outer(root, root), atol=0.03
    )


@pytest.mark.slow
def test_the_shift_is_the_move_of_the_posterior_mean():
    data = datasets.sleepstudy()
    model = models.linear_mixed(data.reaction, data.covariates, data.subject, data.covariates)
    theta = model.theta
    change = jax.tree.map(jnp.zeros_like, theta) | {"beta": jnp.array([3.0, -0.5])}
    before = model.exact_posterior(theta)
    after = model.exact_posterior(jax.tree.map(jnp.add, theta, change))
    prepared = prepare_model(model)
    metric = curvature.inverse_hessian(prepared, theta, before.mean)
    assert isinstance(metric, Dense)
    np.testing.assert_allclose(metric.matrix, before.covariance, rtol=1e-8)
    flat = jax.flatten_util.ravel_pytree(change)[0]
    c = curvature.shift(prepared, theta, before.mean, metric, flat)
    np.testing.assert_allclose(c[:, 0], after.mean - before.mean, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_conjugate_gradients_find_the_same_shift():
    """Beyond the dense limit, against the closed form x = (y + theta) / 2."""
    y = np.random.default_rng(0).normal(size=mode_search.DENSE_UP_TO + 100)
    model = prepare_model(models.hierarchical_normal(y))
    at = jnp.asarray((y + 0.5) / 2)[None]
    metric = curvature.inverse_hessian(model, jnp.asarray(0.5), at)
    assert isinstance(metric, langevin.Diagonal)
    c = curvature.shift(model, jnp.asarray(0.5), at, metric, jnp.array([0.2]))
    np.testing.assert_allclose(c[0, 0], 0.1, rtol=1e-6)


@pytest.mark.slow
def test_weights_with_a_shift_fixed_in_advance():
    """A Gaussian that jumps by three standard deviations: exact, and alive, only with the shift."""
    num, jump, h = 50, 3.0, 0.3

    def log_ratio(key, c):
        """One move from N(0, 1) to N(jump, 1), both unnormalised: log mean e^A, and the ESS."""
        key_x, key_move = jax.random.split(key)
        x = jax.random.normal(key_x, (1, num, 1))
        point = Point(-jnp.sum(x**2, axis=-1) / 2, -x, None)
        shift = jnp.full((1, 1, 1), c)
        new, path = langevin.move(key_move, x, point.grad_x, h, None, shift)
        there = Point(-jnp.sum((new - jump) ** 2, axis=-1) / 2, jump - new, None)
        a = langevin.jarzynski_increment(point, there, path, h)
        ess = weight_math.effective_sample_size(weight_math.normalise(a))
        return weight_math.log_mean_exp(a)[0], ess[0]

    keys = jax.random.split(jax.random.key(0), 4000)
    for c, lively in ((jump, True), (2.5, True), (0.0, False)):
        log_z, ess = jax.vmap(lambda key, c=c: log_ratio(key, c))(keys)
        assert (float(jnp.mean(ess)) > 0.7 * num) == lively
        if lively:
            z = np.exp(np.asarray(log_z))
            assert abs(z.mean() - 1) < 4 * z.std() / np.sqrt(z.size)  # false alarm 6e-5


def test_standard_errors_on_the_users_scale_are_those_of_the_delta_method():
    """Var(J t) = J V J^T; a number that depends on a direction without information has none."""
    covariance = np.array([[1.0, 0.5, np.nan], [0.5, 4.0, np.nan], [np.nan, np.nan, np.nan]])
    jacobian = np.array([[2.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 3.0]])
    known = uncertainty.Uncertainty(
        ("a", "b", "c"), covariance, covariance, 7.0, np.eye(3), jacobian
    )
    found = known.errors(covariance)
    np.testing.assert_allclose(found[:2], [2.0, np.sqrt(1.0 + 4.0 - 2 * 0.5)])
    assert np.isnan(found[2])
