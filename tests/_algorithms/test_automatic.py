"""The automatic fit of JALA-EM: `jalax.fit(model, theta_0, key=key, algorithm=jalax.JALAEM())`.

What fit chooses by itself is in test_choice.py.

Reference answers: Wisconsin by randomised quasi-Monte-Carlo with 2.1e6 draws; the others by lme4
(Gauss-Hermite quadrature for cbpp). |theta - answer| <= 4.5 simulation errors has a false-alarm
rate of 7e-6 for each normal error; coverage of at least 87 in 100 at 95 % has one of 5e-4.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from scipy import stats
from scipy.optimize import minimize
from step_size import ml_ii, regression_data

import jalax
import quartic
from jalax import datasets, models
from jalax._evidence import uncertainty
from shared_models import CBPP, MIXED, cbpp, eight_schools, sleepstudy, wisconsin


def fit(*args, **options):
    return jalax.fit(*args, **{"algorithm": jalax.JALAEM()} | options)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], float)


def assert_fitted(result, theta, errors, log_likelihood, status="converged"):
    """theta, its two errors and the evidence, each against an answer from elsewhere."""
    assert result.status == status, result.message
    simulation, standard = flat(result.simulation_errors()), flat(result.standard_errors())
    assert np.all(np.abs(flat(result.theta) - theta) <= 4.5 * simulation), (result, theta)
    assert np.all(simulation <= 0.05 * standard), result
    np.testing.assert_allclose(standard, errors, rtol=0.03)
    assert result.log_evidence_error <= 0.03
    assert abs(result.log_evidence - log_likelihood) <= 4.5 * result.log_evidence_error, result


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "seeds"), [(32, range(3)), (32, range(3, 13)), (64, range(3))])
def test_wisconsin(bits, seeds):
    with jax.enable_x64(bits == 64):
        fit_wisconsin(seeds)


def fit_wisconsin(seeds):
    model = wisconsin()
    for seed in seeds:
        for theta_0 in (0.0, 10.0, -5.0):
            result = fit(model, theta_0, key=jax.random.key(seed))
            assert_fitted(result, 0.98665, 0.7524, -73.33891)
            assert abs(float(result.theta) - 0.98665) <= 0.02
            assert abs(float(result.standard_errors()) - 0.752) <= 0.02


# --- mixed models -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        pytest.param("cbpp", range(2), marks=pytest.mark.slow),  # the README's test fits it too
        *(pytest.param(name, range(2, 12), marks=pytest.mark.slow) for name in MIXED),
    ],
)
def test_mixed_models(name, seeds):
    make, answer = MIXED[name]
    model = make()
    truth = answer(model)
    for seed in seeds:
        assert_fitted(fit(model, key=jax.random.key(seed)), *truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
def test_mixed_models_in_64_bits(name, x64):
    make, answer = MIXED[name]
    model = make()
    assert_fitted(fit(model, key=jax.random.key(0)), *answer(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sleepstudy slope", "dyestuff"])
@pytest.mark.filterwarnings("ignore:log_joint is about")  # it is, at this start
def test_a_start_far_away(name):
    """All zeros: hundreds of standard deviations from the data."""
    make, answer = MIXED[name]
    model = make()
    result = fit(model, jax.tree.map(jnp.zeros_like, model.theta), key=jax.random.key(0))
    assert_fitted(result, *answer(model))


@pytest.mark.slow
def test_lme4_standard_errors():
    """Those of the fixed effects, which lme4 computes in another way."""
    intercept, slope = sleepstudy(), sleepstudy(slope=True)
    for model, errors in ((intercept, [9.506185, 0.801735]), (slope, [6.632276, 1.502237])):
        found = fit(model, key=jax.random.key(3)).standard_errors()["beta"]
        np.testing.assert_allclose(found, errors, rtol=0.03)


# --- regressions --------------------------------------------------------------------------------


@pytest.mark.slow
def test_gaussian_regression(precision):
    model = models.gaussian_regression(*regression_data(0, 500))
    with jax.enable_x64(True):
        X, y = regression_data(0, 500)
        exact_model = models.gaussian_regression(X, y)
        exact = ml_ii(exact_model)
        hessian = jax.hessian(lambda t: -exact_model.exact_log_evidence(t))(jnp.asarray(exact))
        errors = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
        log_likelihood = float(exact_model.exact_log_evidence(jnp.asarray(exact)))
    result = fit(model, jnp.array([1.0, 1.0]), key=jax.random.key(0))
    assert_fitted(result, exact, errors, log_likelihood)


@pytest.mark.slow
def test_polynomial_of_order_ten(precision):
    """Condition number of the posterior above 1e8, in both precisions."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 300)
    y = np.polyval(rng.normal(size=11), x) + 7.5 * rng.normal(size=300)
    with jax.enable_x64(True):
        exact_model = models.polynomial_regression(x, y, 10)
        begin = np.array([np.log(56.25) + 1, 1.0])
        value = jax.jit(jax.value_and_grad(lambda t: -exact_model.exact_log_evidence(t)))
        found = minimize(lambda t: [np.asarray(v) for v in value(t)], begin, jac=True, tol=1e-10)
        hessian = jax.hessian(lambda t: -exact_model.exact_log_evidence(t))(jnp.asarray(found.x))
        errors = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
        posterior = exact_model.exact_posterior(jnp.asarray(found.x))
        assert np.linalg.cond(posterior.covariance) > 1e8
    model = models.polynomial_regression(x, y, 10)
    result = fit(model, jnp.asarray(begin, dtype=float), key=jax.random.key(0))
    assert np.isfinite(result.history["ess"]).all()
    assert_fitted(result, found.x, errors, -found.fun)


@pytest.mark.slow
def test_a_parameter_at_the_bound_of_a_projection_does_not_drag_the_others(x64):
    """Gaussian errors: nu runs to the edge of its box. The same as with nu fixed there."""
    X, y = regression_data(0, 500)
    model = models.student_t_regression(X, y)
    algorithm = jalax.JALAEM(project=models.student_t_box)
    held = fit(model, jnp.ones(3), key=jax.random.key(0), algorithm=algorithm)
    assert held.status == "boundary"
    assert "theta[2]" in held.message
    assert float(held.theta[2]) == pytest.approx(np.log(5.0), abs=1e-12)

    def at_five(theta, w, data):
        return model.log_joint(jnp.append(theta, jnp.log(5.0)), w, data)

    fixed = fit(jalax.Model(at_five, jnp.zeros(8), model.data), jnp.ones(2), key=jax.random.key(1))
    known, simulation = fixed.standard_errors(), fixed.simulation_errors()
    both = np.hypot(simulation, held.simulation_errors()[:2])
    assert (np.abs(held.theta[:2] - fixed.theta) <= 4.5 * both).all()
    np.testing.assert_allclose(held.standard_errors()[:2], known, rtol=0.03)
    assert np.isnan(held.standard_errors()[2])
    errors = np.hypot(held.log_evidence_error, fixed.log_evidence_error)
    assert abs(held.log_evidence - fixed.log_evidence) <= 4.5 * errors


@pytest.mark.slow
def test_student_t_regression(x64):
    """Around the answer log_evidence, at other thetas and keys, falls as the errors say it does."""
    X, _ = regression_data(0, 500)
    rng = np.random.default_rng(1)
    y = X @ rng.normal(size=8) + rng.standard_t(4, size=500)
    model = models.student_t_regression(X, y)
    result = fit(model, jnp.array([0.5, 0.5, np.log(4.0)]), key=jax.random.key(0))
    assert result.status == "converged"
    for i, error in enumerate(flat(result.standard_errors())):
        sides = [
            jalax.log_evidence(
                model, result.theta.at[i].add(side * error), key=jax.random.key(7), error=0.01
            ).value
            for side in (-1, 1)
        ]
        conditional = 1 / np.sqrt(np.linalg.inv(result.uncertainty.covariance)[i, i])
        fall = result.log_evidence - np.mean(sides)
        expected = 0.5 * (error / conditional) ** 2
        assert abs(fall - expected) < 0.12 * expected + 0.03  # a parabola up to its cubic terms


# --- calibration --------------------------------------------------------------------------------


def poisson_gamma(theta, x, y):
    """y ~ Poisson(e^x), e^x ~ Gamma(shape e^theta, rate 1), x = log rate."""
    shape = jnp.exp(theta)
    return (shape + y) * x - 2 * jnp.exp(x) - gammaln(shape) - gammaln(y + 1.0)


def beta_binomial(theta, x, y):
    """y ~ Binomial(10, logit^-1 x), logit^-1 x ~ Beta(e^theta, e^theta)."""
    shape = jnp.exp(theta)
    choose = gammaln(11.0) - gammaln(y + 1.0) - gammaln(11.0 - y)
    beta = 2 * gammaln(shape) - gammaln(2 * shape)
    p, q = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
    return (y + shape) * p + (10.0 - y + shape) * q + choose - beta


CONJUGATE = {
    "Poisson-gamma": (
        poisson_gamma,
        lambda t, y: stats.nbinom.logpmf(y, np.exp(t), 0.5).sum(),
        lambda rng: rng.poisson(rng.gamma(2.0, 1.0, 40)),
    ),
    "beta-binomial": (
        beta_binomial,
        lambda t, y: stats.betabinom.logpmf(y, 10, np.exp(t), np.exp(t)).sum(),
        lambda rng: rng.binomial(10, rng.beta(0.8, 0.8, 40)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONJUGATE)
def test_calibration(name):
    """95 % intervals of the simulation error of theta, and of the evidence, over 100 seeds."""
    log_joint, exact, draw = CONJUGATE[name]
    y = draw(np.random.default_rng(5)).astype(float)
    best = minimize(lambda t: -exact(t[0], y), [0.5], method="Nelder-Mead", tol=1e-10)
    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.array(y), theta=jnp.zeros(()))
    hits = np.zeros(2, int)
    for seed in range(100):
        result = fit(model, key=jax.random.key(seed))
        error = float(result.simulation_errors())
        hits[0] += abs(float(result.theta) - best.x[0]) <= 1.96 * error
        low, high = result.evidence.interval(0.95)
        hits[1] += low <= -best.fun <= high
    print(f"{name}: theta {hits[0]}, evidence {hits[1]} of 100")
    assert hits.min() >= 87


# --- boundaries ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_eight_schools(bits):
    """The likelihood is highest at tau = 0: mu = 7.6856, log-likelihood -29.674."""
    with jax.enable_x64(bits == 64):
        fit_eight_schools(eight_schools())


@pytest.mark.slow
def test_eight_schools_with_standardised_effects():
    """Towards tau = 0 the effects do not matter any more: no information is missing, or there."""
    fit_eight_schools(eight_schools(standardised=True))


def fit_eight_schools(model):
    for seed in range(5):
        result = fit(model, key=jax.random.key(seed))
        assert result.status == "boundary"
        assert "log_tau" in result.message
        assert not re.search(r"\bmu\b", result.message)  # as a word: the message says "maximum"
        assert abs(float(result.theta["mu"]) - 7.6856) <= 0.15
        assert abs(result.log_evidence + 29.674) <= 0.1
        errors = result.standard_errors()
        assert np.isnan(errors["log_tau"])
        assert np.isnan(result.confidence_intervals()["log_tau"]).all()
        # At tau = 0 mu is a weighted mean: its standard error is known.
        weights = 1 / np.array([15.0, 10, 16, 11, 9, 11, 10, 18]) ** 2
        np.testing.assert_allclose(errors["mu"], 1 / np.sqrt(weights.sum()), rtol=0.03)


@pytest.mark.slow
def test_two_parameters_that_only_count_together():
    """theta[0] + theta[1] is identified, neither of them is."""
    y = np.random.default_rng(0).normal(1.0, 1.5, 60)

    def log_joint(theta, x, y):
        normal = jax.scipy.stats.norm.logpdf
        return normal(x, theta[0] + theta[1], 1.0) + normal(y, x, 1.0)

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.array(y))
    result = fit(model, jnp.zeros(2), key=jax.random.key(0))
    assert result.status == "boundary"
    assert "theta[0]" in result.message
    assert "theta[1]" in result.message
    assert abs(float(result.theta.sum()) - y.mean()) < 0.02
    assert np.isnan(flat(result.standard_errors())).all()


@pytest.mark.slow
def test_too_few_steps_say_what_is_moving():
    result = fit(cbpp(), key=jax.random.key(0), num_steps=3)
    assert result.status == "max_steps"
    assert "moving" in result.message


def test_a_diverging_fit_says_what_was_tried():
    algorithm = jalax.JALAEM(step_size=quartic.TooLong(1e6))
    result = fit(quartic.model(), 0.0, key=jax.random.key(0), algorithm=algorithm)
    assert result.status == "diverged"
    assert "halving the step size 5 times" in result.message
    assert float(result.state.memory.step_size) == 1e6 / 2**6
    with pytest.warns(UserWarning, match="diverged"):
        assert result.path_log_evidence is None


# --- bad starts and scales ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scales(scale):
    """The units of y do not matter."""
    data = datasets.dyestuff()
    model = models.linear_mixed(scale * data.yield_, data.covariates, data.batch)
    result = fit(model, key=jax.random.key(0))
    assert result.status == "converged", result.message
    error = flat(result.simulation_errors())
    want = [1527.5 * scale, np.log(1388.333333) / 2 + np.log(scale)]
    found = flat(result.theta)[:2]
    assert np.all(np.abs(found - want) <= 4.5 * error[:2] + 1e-6 * np.abs(want))
    change = 30 * np.log(scale)  # of the density of 30 observations
    assert abs(result.log_evidence + change + 163.66353) <= 4.5 * result.log_evidence_error + 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:log_joint is about")  # it is, at this start
def test_an_example_latent_far_from_the_mode():
    y = 500.0 + np.random.default_rng(0).normal(size=50) * np.sqrt(2)
    model = models.hierarchical_normal(y)  # its example latent is zero
    result = fit(model, 0.0, key=jax.random.key(0))
    assert result.status == "converged"
    assert abs(float(result.theta) - y.mean()) <= 4.5 * float(result.simulation_errors())
    np.testing.assert_allclose(float(result.standard_errors()), np.sqrt(2 / 50), rtol=0.03)


# --- the parts ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_parameters_than_an_information_matrix_is_held_for():
    """310 coefficients: Adam takes over."""
    rng = np.random.default_rng(0)
    data = {"f": jnp.array(rng.normal(size=(40, 310))), "y": jnp.array(rng.normal(size=40))}

    def log_joint(theta, x, data):
        normal = jax.scipy.stats.norm.logpdf
        return normal(x, data["f"] @ theta, 1.0) + normal(data["y"], x, 1.0)

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), data)
    result = fit(model, jnp.zeros(310), key=jax.random.key(0), num_steps=40)
    assert result.status in ("converged", "max_steps")
    # y ~ N(F theta, 2): with more coefficients than rows the residuals can be made to vanish.
    residual = np.asarray(data["y"] - data["f"] @ result.theta)
    assert np.mean(residual**2) < 0.2 * np.mean(np.asarray(data["y"]) ** 2)


@pytest.mark.slow
def test_step_size_rules(x64):
    X, y = regression_data(0, 60)
    model = models.gaussian_regression(X, y)
    theta = jnp.array([0.0, 0.0])
    power = jalax.options.auto_step_size(
        model, theta, key=jax.random.key(0), rule=jalax.options.PowerIteration(fraction=0.99)
    )
    largest = np.linalg.eigvalsh(X.T @ X).max() + 1.0  # the Hessian of U at unit variances
    np.testing.assert_allclose(power, 0.99 / largest, rtol=1e-3)
    options = {"key": jax.random.key(0), "rule": jalax.options.PowerIteration(fraction=1.0)}
    whitened = jalax.options.auto_step_size(
        model, theta, preconditioner=jalax.options.InverseHessian(), **options
    )
    np.testing.assert_allclose(whitened, 1.0, rtol=1e-6)
    pilot = jalax.options.auto_step_size(model, theta, key=jax.random.key(0))
    assert 0.01 / largest < pilot < 2 / largest


@pytest.mark.slow
def test_confidence_intervals_and_the_users_scale(x64):
    """A positive parameter stays positive, and its standard error is that of the delta method."""
    y = np.random.default_rng(0).normal(2.0, 3.0, 80)

    def log_joint(theta, x, y):
        normal = jax.scipy.stats.norm.logpdf
        return normal(x, theta["m"], theta["sd"]) + normal(y, x, 1.0)

    def constrain(theta):
        return {"m": theta["m"], "sd": jnp.exp(theta["sd"])}

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.array(y), constrain=constrain)
    result = fit(model, {"m": 0.0, "sd": 0.0}, key=jax.random.key(0))
    variance = y.var() - 1  # of x
    np.testing.assert_allclose(float(result.theta["sd"]), np.sqrt(variance), rtol=2e-3)
    # se(s^2) = s_y^2 sqrt(2/n), and d sd = d s^2 / (2 sd)
    error = y.var() * np.sqrt(2 / 80) / (2 * np.sqrt(variance))
    np.testing.assert_allclose(float(result.standard_errors()["sd"]), error, rtol=0.03)
    low, high = np.asarray(result.confidence_intervals(0.9)["sd"])
    log_error = error / np.sqrt(variance)
    expected = np.sqrt(variance) * np.exp(np.array([-1, 1]) * 1.6449 * log_error)
    np.testing.assert_allclose([low, high], expected, rtol=0.01)


@pytest.mark.slow
def test_fit_many_is_automatic_too():
    model = cbpp()
    keys = jax.random.split(jax.random.key(0), 3)
    fits = jalax.fit_many(model, model.theta, key=keys)
    assert [str(status) for status in fits.status] == ["converged"] * 3
    for fit in fits:
        assert np.all(np.abs(flat(fit.theta) - CBPP[0]) <= 4.5 * flat(fit.simulation_errors()))
        assert abs(fit.log_evidence - CBPP[2]) <= 4.5 * fit.log_evidence_error


@pytest.mark.slow
def test_save_and_load_keep_the_errors(tmp_path):
    result = fit(eight_schools(), key=jax.random.key(0))
    result.save(tmp_path / "fit.npz")
    again = jalax.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(flat(again.standard_errors()), flat(result.standard_errors()))
    assert again.log_evidence == result.log_evidence
    assert again.status == "boundary"


@pytest.mark.slow
def test_the_path_replayed_agrees_with_a_fresh_estimate():
    check = fit(cbpp(), key=jax.random.key(0)).evidence_check(jax.random.key(1))
    assert check.agrees, check
    assert check.error < 0.3


def three_normals():
    """The model of test_protocol.py, of tests/_fit and of others: its programs are compiled once.

    The maximum is at 2, the mean of y, with y ~ N(theta, 2).
    """
    return models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))


def test_the_progress_line_shows_phase_and_error():
    from jalax._fit.callbacks import progress_line

    lines = []
    fit(
        three_normals(),
        0.0,
        key=jax.random.key(0),
        chunk_size=5,
        callbacks=[jalax.stop_when(lambda run: bool(lines.append(progress_line(run))))],
    )
    assert lines[0].startswith("moving: theta")
    assert lines[-1].startswith("done: theta")
    assert any(line.startswith("averaging") for line in lines)
    exact = stats.norm.logpdf([0.5, 1.5, 4.0], 2.0, np.sqrt(2.0)).sum()
    assert f"logz {exact:.1f}" in lines[-1]
    assert "+/- 0." in lines[-1]


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "interrupted"), (np.linalg.LinAlgError, "max_steps")]
)
def test_nothing_is_lost_when_the_finish_fails(monkeypatch, error, status):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(uncertainty, "finish", fail)
    result = fit(three_normals(), 0.0, key=jax.random.key(0))
    assert result.status == status
    assert "settled after" in result.message
    assert len(result.history["ess"]) > 20
    assert abs(float(result.theta) - 2.0) < 0.1
