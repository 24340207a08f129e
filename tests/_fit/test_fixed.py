"""Numbers of theta that are held, and a prior on theta, against densities in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import jalax

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()
# Eight schools (Rubin 1981): effects and their standard errors.
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
S = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def log_joint(theta, x, data):
    """y_j ~ N(mu + tau x_j, s_j), x_j a standard normal."""
    y, s = data
    mean = theta["mu"] + theta["tau"] * x
    return jax.scipy.stats.norm.logpdf(x) + jax.scipy.stats.norm.logpdf(y, mean, s)


def without_tau(mu, x, data):
    return log_joint({"mu": mu, "tau": 7.0}, x, data)


def positive(theta):
    return {"mu": theta["mu"], "tau": jnp.exp(theta["tau"])}


def schools(density=log_joint, **options):
    data = jnp.asarray(Y), jnp.asarray(S)
    return jalax.GroupedModel(density, jnp.zeros(()), data, **options)


def fit(model, theta, **options):
    return jalax.fit(model, theta, key=KEY, progress=QUIET, **options)


def exact(mu: float, tau: float) -> float:
    return float(stats.norm.logpdf(Y, mu, np.hypot(S, tau)).sum())


START = {"mu": 0.0, "tau": 1.0}  # log tau, on the optimiser's scale


@pytest.fixture(scope="module")
def held():
    return fit(schools(constrain=positive), START, fixed={"tau": np.log(7.0)})


def test_a_held_number_is_that_of_the_model_without_it(held):
    """Same key, same answer; and the answer is the weighted mean of the schools."""
    alone = fit(schools(without_tau), 0.0)
    assert held.status == alone.status == "converged"
    np.testing.assert_allclose(held.theta["mu"], alone.theta, rtol=1e-5)
    np.testing.assert_allclose(held.log_evidence, alone.log_evidence, rtol=1e-6)
    weight = 1 / (S**2 + 49)
    np.testing.assert_allclose(held.theta["mu"], weight @ Y / weight.sum(), rtol=1e-4)
    errors = held.standard_errors()
    np.testing.assert_allclose(errors["mu"], weight.sum() ** -0.5, rtol=1e-3)


def test_a_held_number_has_its_value_and_no_error(held):
    assert float(held.theta["tau"]) == pytest.approx(7.0, rel=1e-6)
    assert np.isnan(held.standard_errors()["tau"])
    assert np.isnan(held.confidence_intervals()["tau"]).all()
    assert held.num_parameters == 1
    assert held.history["theta"]["tau"] == pytest.approx(7.0, rel=1e-6)
    np.testing.assert_allclose(held.log_evidence, exact(float(held.theta["mu"]), 7.0), atol=1e-3)


class Counter:
    count = 0


TRACED = Counter()


def counted(theta, x, data):
    TRACED.count += 1
    return log_joint(theta, x, data)


def test_other_values_do_not_compile_again():
    model = schools(counted, constrain=positive)
    fit(model, START, fixed={"tau": np.log(7.0)})
    before = TRACED.count
    again = fit(model, START, fixed={"tau": np.log(3.0)})
    assert TRACED.count == before
    assert float(again.theta["tau"]) == pytest.approx(3.0, rel=1e-6)


def test_a_peer_holds_it_too():
    start = jalax.FromSampler(lambda key, theta, data: jax.random.normal(key))
    options = {"start": start, "num_particles": 300, "fixed": {"tau": np.log(7.0)}}
    algorithm = jalax.PGD(step_size=0.3)
    found = fit(schools(constrain=positive), START, algorithm=algorithm, num_steps=400, **options)
    assert float(found.theta["tau"]) == pytest.approx(7.0, rel=1e-6)
    weight = 1 / (S**2 + 49)
    away = float(found.theta["mu"]) - weight @ Y / weight.sum()
    assert abs(away) < 0.3 * weight.sum() ** -0.5  # the noise and the step-size bias of PGD


@pytest.mark.slow
def test_by_the_name_of_one_number_of_an_array():
    """The mean of two columns with the second effect held at its least-squares value."""
    data = jalax.datasets.dyestuff()
    X = np.column_stack([data.covariates, np.linspace(-1, 1, len(data.yield_))])
    model = jalax.models.linear_mixed(data.yield_, X, data.batch)
    found = fit(model, model.theta, fixed={"beta[1]": 0.0})
    one = jalax.models.linear_mixed(data.yield_, data.covariates, data.batch)
    alone = fit(one, one.theta)
    np.testing.assert_allclose(found.theta["beta"][0], alone.theta["beta"][0], rtol=1e-5)
    np.testing.assert_allclose(found.log_evidence, alone.log_evidence, atol=2e-3)


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        ({"sigma": 1.0}, "theta has no 'sigma'; it has mu, tau."),
        ({"tau": np.nan}, "must be a finite number, got nan"),
        ({"tau": [1.0, 2.0]}, "must be a finite number, got"),
        ({"mu": 0.0, "tau": 0.0}, "holds every number of theta"),
        ({}, "fixed must be a dict of values by name"),
        ("tau", "fixed must be a dict of values by name"),
    ],
)
def test_what_cannot_be_held(fixed, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence.replace("[", "\\[")):
        fit(schools(), {"mu": 0.0, "tau": 1.0}, fixed=fixed)


# ------------------------------------------------------------------- a prior on theta
RATE = 0.1


def gamma_prior(theta):
    """tau ~ Gamma(2, rate), which keeps it off zero; mu ~ N(0, 20)."""
    log_gamma = 2 * jnp.log(RATE) + jnp.log(theta["tau"]) - RATE * theta["tau"]
    return log_gamma + jax.scipy.stats.norm.logpdf(theta["mu"], 0.0, 20.0)


def exact_posterior(mu: float, tau: float) -> float:
    prior = stats.gamma.logpdf(tau, 2, scale=1 / RATE) + stats.norm.logpdf(mu, 0, 20)
    return exact(mu, tau) + prior


@pytest.fixture(scope="module")
def map_fit():
    return fit(schools(constrain=positive), START, log_prior=gamma_prior)


@pytest.fixture(scope="module")
def exact_map():
    found = optimize.minimize(
        lambda t: -exact_posterior(*t), [5.0, 5.0], method="Nelder-Mead", options={"xatol": 1e-8}
    )
    return found.x


def test_the_maximum_a_posteriori_of_eight_schools(map_fit, exact_map):
    """Without the prior tau goes to zero; with it, and no Jacobian, to the mode in tau."""
    assert map_fit.status == "converged"
    errors = map_fit.standard_errors()
    assert abs(float(map_fit.theta["mu"]) - exact_map[0]) < 0.01 * float(errors["mu"])
    assert abs(float(map_fit.theta["tau"]) - exact_map[1]) < 0.01 * float(errors["tau"])


def test_its_evidence_is_without_the_prior(map_fit, exact_map):
    assert map_fit.log_evidence == pytest.approx(exact(*exact_map), abs=2e-3)
    assert map_fit.evidence.groups.sum() == pytest.approx(map_fit.log_evidence, abs=1e-4)


def test_theta_integrated_out(map_fit, exact_map):
    """Laplace's formula with the exact Hessian in (mu, tau)."""
    h = 1e-3 * np.array([1.0, 1.0])
    hessian = np.empty((2, 2))
    for i in range(2):
        for j in range(2):
            a, b = np.eye(2)[i] * h[i], np.eye(2)[j] * h[j]
            up = exact_posterior(*(exact_map + a + b)) + exact_posterior(*(exact_map - a - b))
            down = exact_posterior(*(exact_map + a - b)) + exact_posterior(*(exact_map - a + b))
            hessian[i, j] = -(up - down) / (4 * h[i] * h[j])
    laplace = exact_posterior(*exact_map) + np.log(2 * np.pi) - np.linalg.slogdet(hessian)[1] / 2
    assert map_fit.full_log_evidence == pytest.approx(laplace, abs=5e-3)


def narrow_prior(theta):
    return gamma_prior(theta) + jax.scipy.stats.norm.logpdf(theta["mu"], 8.0, 1.0)


def test_compare_takes_the_priors_of_the_fits(map_fit):
    narrow = fit(schools(constrain=positive), START, log_prior=narrow_prior)
    table = jalax.compare({"wide": map_fit, "narrow": narrow})
    assert table.kind == "full"
    by_name = {row.name: row.log_evidence for row in table.rows}
    assert by_name["wide"] == pytest.approx(map_fit.full_log_evidence)
    assert by_name["narrow"] == pytest.approx(narrow.full_log_evidence)


def test_compare_refuses_a_prior_twice_and_a_prior_of_some(map_fit, held):
    with pytest.raises(ValueError, match="has a log_prior of its own"):
        jalax.compare({"a": map_fit, "b": map_fit}, theta_log_prior=lambda theta: 0.0)
    with pytest.raises(ValueError, match="has a log_prior, and 'b' has none"):
        jalax.compare({"a": map_fit, "b": held})


def test_separable_logistic_regression_has_a_maximum_with_a_prior():
    """y is 1 wherever x > 0: without a prior the slope goes to infinity. Against quadrature."""
    x = np.linspace(-2, 2, 24)
    y = (x > 0).astype(float)
    groups = np.repeat(np.arange(6), 4)

    def density(theta, b, data):
        eta = theta["slope"] * data["x"] + jnp.exp(theta["log_sd"]) * b
        return jax.scipy.stats.norm.logpdf(b) + jnp.sum(data["y"] * eta - jax.nn.softplus(eta))

    data = {"x": jnp.asarray(x.reshape(6, 4)), "y": jnp.asarray(y.reshape(6, 4))}

    def log_prior(theta):
        norm = jax.scipy.stats.norm.logpdf
        return norm(theta["slope"], 0.0, 2.5) + norm(theta["log_sd"], -1.0, 0.5)

    model = jalax.GroupedModel(density, jnp.zeros(()), data)
    found = fit(model, {"slope": 0.0, "log_sd": 0.0}, log_prior=log_prior)
    node, weight = np.polynomial.hermite_e.hermegauss(60)

    def posterior(t):
        eta = t[0] * x[:, None] + np.exp(t[1]) * node
        rows = y[:, None] * eta - np.logaddexp(0, eta)
        each = np.add.reduceat(rows, np.unique(groups, return_index=True)[1], axis=0)
        log_p = np.log(np.exp(each) @ weight / np.sqrt(2 * np.pi)).sum()
        return log_p + stats.norm.logpdf(t[0], 0, 2.5) + stats.norm.logpdf(t[1], -1, 0.5)

    best = optimize.minimize(lambda t: -posterior(t), [2.0, -1.0], options={"gtol": 1e-8}).x
    assert found.status == "converged"
    errors = found.standard_errors()
    for name, value in zip(("slope", "log_sd"), best, strict=True):
        assert abs(float(found.theta[name]) - value) < 0.01 * float(errors[name])


@pytest.mark.parametrize(
    ("log_prior", "sentence"),
    [
        (3.0, "log_prior must be a function of theta"),
        (lambda theta: theta["mu"] * jnp.ones(2), "log_prior must return a scalar"),
        (lambda theta: jnp.log(-1.0 - 0.0 * theta["mu"]), "log_prior is nan at the start value"),
    ],
)
def test_what_is_no_prior(log_prior, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        fit(schools(), {"mu": 0.0, "tau": 1.0}, log_prior=log_prior)


def test_no_prior_no_integral(held):
    with pytest.raises(ValueError, match="this fit has none"):
        _ = held.full_log_evidence
