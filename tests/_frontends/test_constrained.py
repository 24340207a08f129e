"""Hand-written models on a constrained scale: closed forms, shapes, standard errors, walls."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import optimize, stats

import jalax
from jalax._frontends.constrained import Bijection
from jalax._model import checks
from jalax._model.types import Cloud

COUNTS = np.array([3, 0, 5, 2, 9, 1])


def gamma_poisson(theta, x, data):
    """A rate x ~ Gamma(shape, rate), a count y ~ Poisson(x)."""
    prior = jax.scipy.stats.gamma.logpdf(x, theta["shape"], scale=1 / theta["rate"])
    return prior + jax.scipy.stats.poisson.logpmf(data, x)


def counts_model(y=COUNTS):
    theta = {"shape": 2.0, "rate": 0.8}
    model = jalax.GroupedModel(gamma_poisson, latent=1.0, data=y, theta=theta)
    return jalax.Constrained(model, theta=constraints.positive, latent=constraints.positive)


def negative_binomial(shape, rate, y=COUNTS):
    return stats.nbinom.logpmf(y, shape, rate / (1 + rate)).sum()


def dirichlet_multinomial(theta, x, data):
    """Probabilities x["p"] ~ Dirichlet(theta), counts y ~ Multinomial(p)."""
    logs = jnp.log(x["p"])
    prior = jnp.sum((theta - 1) * logs) + jax.scipy.special.gammaln(jnp.sum(theta))
    coefficient = jax.scipy.special.gammaln(jnp.sum(data) + 1.0)
    coefficient -= jnp.sum(jax.scipy.special.gammaln(data + 1.0))
    prior -= jnp.sum(jax.scipy.special.gammaln(theta))
    # A second latent without a constraint, independent of the rest, integrates to one.
    extra = jax.scipy.stats.norm.logpdf(x["extra"])
    return prior + coefficient + jnp.sum(data * logs) + extra


def test_a_positive_latent_has_the_evidence_of_the_negative_binomial():
    evidence = jalax.log_evidence(counts_model(), key=jax.random.key(1))
    # 4.5 errors: false alarms once in 150,000 seeds.
    assert evidence.trusted
    assert abs(evidence.value - negative_binomial(2.0, 0.8)) < 4.5 * evidence.error


@pytest.mark.usefixtures("x64")
def test_a_simplex_latent_has_the_evidence_of_the_dirichlet_multinomial():
    y, theta = np.array([4, 0, 7]), np.array([0.7, 1.5, 2.0])
    latent = {"p": jnp.array([0.2, 0.3, 0.5]), "extra": 0.0}
    model = jalax.Model(dirichlet_multinomial, latent, y, theta=theta)
    model = jalax.Constrained(model, latent={"p": constraints.simplex})
    assert model.latent["p"].shape == (2,)
    np.testing.assert_allclose(model.outside.latent(theta, model.latent, y)["p"], latent["p"], 1e-5)
    evidence = jalax.log_evidence(model, key=jax.random.key(2))
    exact = stats.dirichlet_multinomial.logpmf(y, theta, y.sum())
    assert abs(evidence.value - exact) < 4.5 * evidence.error


CASES = {
    "positive": (constraints.positive, np.array(0.3)),
    "interval": (constraints.interval(-1.0, 3.0), np.array([0.5, 2.0])),
    "simplex": (constraints.simplex, np.array([0.2, 0.3, 0.5])),
    "cholesky": (constraints.lower_cholesky, np.array([[0.5, 0.0], [-1.0, 2.0]])),
    "ordered": (constraints.ordered_vector, np.array([-1.0, 0.5, 4.0])),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_the_jacobian_is_that_of_the_map(name):
    """log |det| against a matrix of derivatives over the free coordinates of x."""
    constraint, value = CASES[name]
    model = jalax.Model(lambda theta, x, data: 0.0 * jnp.sum(x), latent=jnp.asarray(value))
    model = jalax.Constrained(model, latent=constraint)
    z = model.latent
    outside = partial(model.outside.latent.function, 0.0, data=None)
    matrix = np.asarray(jax.jit(jax.jacobian(outside))(z))
    matrix = matrix.reshape(value.size, -1)
    if name == "simplex":
        matrix = matrix[:-1]  # the density is over all probabilities but the last
    elif name == "cholesky":
        matrix = matrix[np.tril_indices(2)[0] * 2 + np.tril_indices(2)[1]]
    _, log_det = np.linalg.slogdet(matrix.reshape(z.size, z.size))
    log_joint = jax.jit(model.log_joint.function)
    np.testing.assert_allclose(float(log_joint(0.0, z, None)), log_det, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(outside)(z), value, rtol=1e-9, atol=1e-12)


def test_theta_is_on_the_users_scale():
    model = counts_model()
    free = checks.prepare_theta({"shape": 3.0, "rate": 0.5}, model)
    np.testing.assert_allclose(free["shape"], np.log(3.0), rtol=1e-6)
    np.testing.assert_allclose(model.constrained(free)["rate"], 0.5, rtol=1e-6)
    assert model.theta == {"shape": 2.0, "rate": 0.8}


def test_a_model_made_again_is_the_same_to_the_compiler():
    first, second = (jax.tree.structure(counts_model(y)) for y in (COUNTS, COUNTS + 1))
    assert first == second
    base = jalax.Model(dirichlet_multinomial, {"p": jnp.ones(3) / 3, "extra": 0.5})
    bounds = [jalax.Constrained(base, latent={"extra": constraints.interval(0, b)}) for b in (1, 2)]
    assert bounds[0].log_joint != bounds[1].log_joint
    assert Bijection.of(constraints.interval(0, 1), "x") == Bijection.of(
        constraints.interval(0, 1), "x"
    )


def test_group_batch_and_kind_are_kept():
    model = jalax.GroupedModel(gamma_poisson, 1.0, COUNTS, theta={"shape": 2.0, "rate": 1.0})
    model = model.replace(group_batch=2)
    made = jalax.Constrained(model, latent=constraints.positive)
    assert type(made) is jalax.GroupedModel
    assert made.group_batch == 2
    assert made.constrain is None


@pytest.mark.slow
def test_standard_errors_by_the_delta_method():
    """Against the second derivatives of the closed-form likelihood."""
    y = stats.nbinom.rvs(3.0, 1 / 3, size=60, random_state=3)
    result = jalax.fit(counts_model(y), key=jax.random.key(0))
    assert result.status == "converged"

    def loss(log_theta):
        return -negative_binomial(*np.exp(log_theta), y)

    best = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", tol=1e-10).x
    step = 1e-3 * np.eye(2)
    hessian = np.array(
        [
            [
                loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b)
                for b in step
            ]
            for a in step
        ]
    ) / (4e-6)
    log_errors = dict(zip(["shape", "rate"], np.sqrt(np.diag(np.linalg.inv(hessian))), strict=True))
    exact = dict(zip(["shape", "rate"], np.exp(best), strict=True))
    errors, simulation = result.standard_errors(), result.simulation_errors()
    for name in exact:
        assert abs(float(result.theta[name]) - exact[name]) < 4.5 * float(simulation[name])
        # Relative error of a standard error asked for by the fit: a few per cent.
        expected = exact[name] * log_errors[name]
        assert abs(float(errors[name]) / expected - 1) < 0.1
    assert abs(result.log_evidence + loss(best)) < 4.5 * result.log_evidence_error
    assert result.particles.shape[0] == 60
    assert bool((result.particles > 0).all())
    mean = np.asarray(result.expectation(lambda x: x))
    shape, rate = (float(result.theta[name]) for name in ("shape", "rate"))
    posterior = (shape + y) / (rate + 1)  # Gamma(shape + y, rate + 1)
    spread = np.sqrt(shape + y) / (rate + 1)
    # 500 weighted particles of ess over 250: 5 errors over 60 groups, once in 30,000 seeds.
    assert np.all(np.abs(mean - posterior) < 5 * spread / np.sqrt(250))


def wall(theta, x, data):
    """An exponential latent, whose density is -inf below zero."""
    inside = jnp.log(theta) - theta * x - 0.5 * (data - x) ** 2
    return jnp.where(x > 0, inside, -jnp.inf)


def overflow(theta, x, data):
    return -0.5 * (x - theta) ** 2 - jnp.exp(x)


def cloud_at(center, scale):
    particles = center + scale * np.linspace(-1, 1, 51)[None]
    return Cloud(jnp.asarray(particles), jnp.zeros((1, 51)), None)


def test_a_wall_far_from_the_start_particles_is_not_pointed_out():
    model = jalax.Model(wall, latent=1.0, data=0.5)
    theta = jnp.array(1.0)
    checks.check_start(model, theta, cloud_at(2.5, 1.0))  # a warning is an error
    free = jalax.Constrained(model, latent=constraints.positive)
    checks.check_start(free, theta, cloud_at(0.0, 2.0))


def test_an_overflow_is_no_wall():
    model = jalax.Model(overflow, latent=1.0)
    checks.check_start(model, jnp.array(0.0), cloud_at(0.0, 80.0), weighted=False)


def test_a_latent_beside_a_theta_that_is_mapped():
    mapped = jalax.Model(wall, 1.0, 0.5, constrain=jnp.exp)
    assert jalax.Constrained(mapped, latent=constraints.positive).constrain == mapped.constrain
