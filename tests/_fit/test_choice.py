"""Which algorithm fit takes when it is told none, and what follows from it."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import jalax
from jalax._fit import choice
from shared_models import CBPP, cbpp, wisconsin

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()


def log_joint(theta, x, y):
    log_normal = jax.scipy.stats.norm.logpdf
    return log_normal(x, theta["mean"], jnp.exp(theta["log_sd"])) + log_normal(y, x, 1.0)


Y = 2.0 + 1.8 * np.random.default_rng(0).normal(size=20)
ZERO = {"mean": 0.0, "log_sd": 0.0}


def groups():
    return jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(Y))


def fit(model, theta=None, **options):
    return jalax.fit(model, theta, key=KEY, **{"progress": QUIET} | options)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], float)


def assert_exact(result):
    """y_i ~ N(m, s^2 + 1)."""
    errors = result.simulation_errors()
    assert result.status == "converged", result
    assert abs(result.theta["mean"] - Y.mean()) < 4.5 * errors["mean"]
    exact = stats.norm(Y.mean(), Y.std()).logpdf(Y).sum()
    assert abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error + 1e-4


def test_groups_with_few_latents_are_scored():
    result = fit(groups(), ZERO)
    assert result.algorithm == "Scoring"
    assert "chosen because 20 groups have 1 latent each" in result.summary()
    assert_exact(result)


@pytest.mark.slow
def test_what_the_user_names_is_taken():
    result = fit(groups(), ZERO, algorithm=jalax.JALAEM())
    assert (result.algorithm, result.choice) == ("JALAEM", "")
    assert "chosen" not in result.summary()
    assert_exact(result)


def far_too_many(theta, x, data):
    return -jnp.sum((x - theta) ** 2) / 2


@pytest.mark.parametrize(
    ("model", "theta", "options", "reason"),
    [
        (groups, ZERO, {"start": jalax.Laplace()}, "a start was given, and Scoring has none"),
        (groups, ZERO, {"num_particles": 300}, "a power of two points, and num_particles is 300"),
        (
            lambda: jalax.Model(lambda t, x, y: -jnp.sum((x - jnp.sum(t)) ** 2), jnp.zeros(40)),
            np.zeros(25),
            {},
            "theta has 25 numbers, and with more than 32 latents in a group Scoring is for up to",
        ),
        (
            lambda: jalax.Model(far_too_many, jnp.zeros(1500)),
            np.zeros(24),
            {},
            "theta has 24 numbers and a group 1500 latents, too many for Scoring without jalax.",
        ),
        (
            lambda: jalax.GroupedModel(
                lambda t, x, y: -((y - x - jnp.sum(t)) ** 2), jnp.zeros(()), jnp.asarray(Y)
            ),
            np.zeros(301),
            {},
            "theta has 301 numbers",
        ),
    ],
)
def test_where_it_does_not_suit_there_is_a_reason(model, theta, options, reason):
    chosen = choice.choose(None, model(), theta, **options)
    assert isinstance(chosen.algorithm, jalax.JALAEM)
    assert reason in chosen.reason


def test_a_million_latents_without_structure_are_said_at_once():
    model = jalax.Model(far_too_many, jnp.zeros(1_000_000))
    began = time.monotonic()
    with pytest.warns(UserWarning, match="the model has 1,000,000 latents in one block and no str"):
        chosen = choice.choose(None, model, 0.0)
    assert time.monotonic() - began < 1
    assert isinstance(chosen.algorithm, jalax.JALAEM)
    assert "the model has 1000000 latents, and Scoring is for up to 2000, or more" in chosen.reason


@pytest.mark.slow
def test_and_the_summary_says_it():
    result = fit(groups(), ZERO, num_steps=2, start=jalax.Laplace())
    assert result.algorithm == "JALAEM"
    assert result.choice == "because a start was given, and Scoring has none"
    assert f"chosen {result.choice}" in result.summary()


def test_a_power_of_two_of_points_is_taken():
    result = fit(groups(), ZERO, num_particles=64)
    assert result.algorithm == "Scoring"
    assert result.log_weights.shape == (20, 64)
    assert_exact(result)


def heavy(theta, x, y):
    """Ten latents with the tails of Cauchy's distribution: heavier than those of any points."""
    prior = jnp.sum(jax.scipy.stats.cauchy.logpdf(x, theta, 1.0))
    return prior + jnp.sum(jax.scipy.stats.norm.logpdf(y, x, 2.0))


@pytest.mark.slow
def test_where_the_points_are_bad_jala_em_goes_on():
    model = jalax.Model(heavy, jnp.zeros(10), jnp.asarray(Y[:10]))
    result = fit(model, 0.0)
    assert (result.algorithm, result.status) == ("JALAEM", "converged")
    assert "Scoring's points have weights with a heavy tail" in result.choice
    x = np.linspace(-500, 500, 200_001)
    prior = stats.cauchy.pdf(x, float(result.theta))
    each = np.trapezoid(prior * stats.norm.pdf(Y[:10, None], x, 2.0), x, axis=1)
    assert abs(result.log_evidence - np.log(each).sum()) < 4.5 * result.log_evidence_error


@pytest.mark.slow_cases("float64--3.0", "float64-0.0", "float32-0.0", "float64-2.0", "float32-2.0")
@pytest.mark.parametrize("log_tau", [-3.0, 0.0, 2.0])
def test_a_spread_near_zero_does_not_hide_the_mean(log_tau, precision):
    """Eight schools, centred: log p has its limit as tau goes to zero, and with it goes what the
    latents say about mu. The weighted mean is exact there, and so are its standard error and log p.
    """
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def schools(theta, x, data):
        log_normal = jax.scipy.stats.norm.logpdf
        spread = jnp.exp(theta["log_tau"])
        return log_normal(x, theta["mu"], spread) + log_normal(data[0], x, data[1])

    model = jalax.GroupedModel(schools, jnp.zeros(()), (jnp.asarray(y), jnp.asarray(sd)))
    mean, error = np.average(y, weights=sd**-2.0), np.sqrt(1 / np.sum(sd**-2.0))
    for mu in (0.0, 20.0):
        result = fit(model, {"mu": mu, "log_tau": log_tau})
        assert result.status == "boundary"
        assert "log_tau" in result.message
        assert abs(result.theta["mu"] - mean) < 0.02 * error
        assert abs(result.log_evidence - stats.norm(mean, sd).logpdf(y).sum()) < 0.01
        known = result.standard_errors()["mu"]
        assert np.isnan(known) or abs(known / error - 1) < 0.05


def test_a_parameter_without_information_is_named():
    """Where x exp(b) is far below the noise, nothing is known of x, of its mean, or of b."""

    def hidden(theta, x, y):
        log_normal = jax.scipy.stats.norm.logpdf
        seen = theta["level"] + jnp.exp(theta["log_slope"]) * x
        return log_normal(x, theta["mean"], 1.0) + log_normal(y, seen, 1.8)

    model = jalax.GroupedModel(hidden, jnp.zeros(()), jnp.asarray(Y))
    result = fit(model, {"level": 0.0, "mean": 0.3, "log_slope": -30.0})
    assert (result.algorithm, result.status) == ("Scoring", "boundary")
    assert "a second climb with shorter steps, because Scoring came to" in result.choice
    assert "log_slope" in result.message
    assert "mean" in result.message
    errors = result.standard_errors()
    assert np.isnan([errors["mean"], errors["log_slope"]]).all()
    assert abs(result.theta["level"] - Y.mean()) < 0.01
    assert abs(errors["level"] / (1.8 / np.sqrt(Y.size)) - 1) < 0.01
    assert abs(result.log_evidence - stats.norm(Y.mean(), 1.8).logpdf(Y).sum()) < 0.01


@pytest.mark.slow
def test_of_many_fits_it_is_chosen_once():
    many = jalax.fit_many(groups(), ZERO, key=KEY, num_fits=3, progress=QUIET)
    assert [one.algorithm for one in many] == ["Scoring"] * 3
    for one in many:
        assert one.choice == "because 20 groups have 1 latent each"
        assert_exact(one)
    by_steps = jalax.fit_many(
        groups(), ZERO, key=KEY, algorithm=jalax.JALAEM(), num_fits=2, num_steps=3, progress=QUIET
    )
    assert [one.algorithm for one in by_steps] == ["JALAEM"] * 2


def test_a_state_goes_on_with_the_algorithm_that_made_it(tmp_path):
    for algorithm in (None, jalax.JALAEM()):
        whole = fit(groups(), ZERO, algorithm=algorithm)
        begun = fit(groups(), ZERO, algorithm=algorithm, num_steps=5)
        begun.save(tmp_path / "fit.npz")
        for state in (begun.state, jalax.load(tmp_path / "fit.npz").state):
            result = fit(groups(), ZERO, state=state)
            assert result.algorithm == whole.algorithm
            assert result.theta["mean"] == whole.theta["mean"]
            assert result.log_evidence == whole.log_evidence


def test_a_checkpoint_too(tmp_path):
    """Of a fit that was chosen one algorithm and went on with the other, as of any."""
    path = tmp_path / "fit.npz"
    fit(groups(), ZERO, algorithm=jalax.JALAEM(), callbacks=[jalax.checkpoint(path)], num_steps=5)
    result = fit(groups(), ZERO, callbacks=[jalax.checkpoint(path)])
    assert (result.algorithm, result.choice) == ("JALAEM", "as in its checkpoint")
    assert_exact(result)
    path.unlink()
    fit(groups(), ZERO, callbacks=[jalax.checkpoint(path)], num_steps=5)
    result = fit(groups(), ZERO, callbacks=[jalax.checkpoint(path)])
    assert result.algorithm == "Scoring"
    assert_exact(result)


def test_the_reason_is_kept_in_a_file(tmp_path):
    result = fit(groups(), ZERO)
    result.save(tmp_path / "fit.npz")
    assert jalax.load(tmp_path / "fit.npz").choice == result.choice


def test_no_path_no_evidence_along_it():
    result = fit(groups(), ZERO)
    with pytest.warns(UserWarning, match="Scoring measures the evidence at its last theta"):
        assert result.path_log_evidence is None
    with pytest.raises(ValueError, match="Scoring"):
        result.replay(KEY)


@pytest.mark.slow_cases("float64-cbpp", "float64-wisconsin")
@pytest.mark.parametrize("name", ["cbpp", "wisconsin"])
def test_models_of_the_first_round(name, precision):
    """Wisconsin by randomised quasi-Monte-Carlo with 2.1e6 draws; cbpp by lme4's quadrature."""
    truth, errors, answer = CBPP if name == "cbpp" else ([0.98665], [0.7524], -73.33891)
    result = fit(cbpp()) if name == "cbpp" else fit(wisconsin(), 0.0)
    assert (result.algorithm, result.status) == ("Scoring", "converged")
    np.testing.assert_allclose(flat(result.standard_errors()), errors, rtol=0.01)
    apart = np.abs(flat(result.theta) - truth)
    assert (apart < 4.5 * flat(result.simulation_errors()) + 1e-5 * np.array(errors)).all()
    assert abs(result.log_evidence - answer) < 5 * result.log_evidence_error + 2e-5
