"""Scoring against closed forms and the book's references, in both precisions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import jalax
from jalax import problems
from jalax._algorithms import newton

QUIET = jalax.callbacks.Callback()


def fit(model, theta, seed=0, **options):
    options = {"algorithm": jalax.Scoring(), "progress": QUIET} | options
    return jalax.fit(model, theta, key=jax.random.key(seed), **options)


def allowed(degrees):
    """The t quantile of what is beyond 4.5 standard deviations of a normal."""
    return stats.t(degrees).isf(stats.norm.sf(4.5))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], float)


def assert_right(result, reference):
    """log p within 4.5 errors, theta within 0.02 standard errors, these within 1 %."""
    evidence = result.evidence
    assert result.status == "converged", result
    assert evidence.trusted, evidence
    assert evidence.error < 0.01
    error = np.hypot(evidence.error, reference.error)
    off = abs(evidence.value - reference.log_evidence)
    assert off < allowed(evidence.degrees_of_freedom) * error + 1e-6, (evidence, reference)
    errors = flat(reference.standard_errors)
    apart = (flat(result.theta) - flat(reference.theta)) / errors
    assert np.abs(apart).max() < 0.02
    np.testing.assert_allclose(flat(result.standard_errors()), errors, rtol=0.01)
    assert (np.abs(apart) < 4.5 * flat(result.simulation_errors()) / errors + 1e-3).all()


@pytest.mark.slow_cases(
    "float32-wine", "float64-wine", "float64-kidney", "float64-seeds", "float32-orange",
    "float64-orange", "float32-lsat_rasch", "float64-lsat_rasch", "float32-lsat_2pl",
    "float64-lsat_2pl", "float32-toenail", "float64-toenail", "float32-toenail_visit",
    "float64-toenail_visit", "float32-theophylline", "float64-theophylline",
    "float32-kidney_gamma", "float64-kidney_gamma", "float32-seeds", "float32-pumps",
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    ["pumps", "seeds", "kidney", "wine", "orange", "lsat_rasch", "lsat_2pl", "kidney_gamma",
     "toenail", "toenail_visit", "theophylline"],
)  # fmt: skip
def test_the_books_answers(name, precision):
    problem = problems.get(name)
    for seed in range(3):
        assert_right(fit(problem.model, problem.theta, seed), problem.reference)


@pytest.mark.slow
def test_electricity():
    """361 groups of 6 latents; the reference has an error of 0.004."""
    problem = problems.electricity()
    result = fit(problem.model, problem.theta)
    reference, evidence = problem.reference, result.evidence
    error = np.hypot(evidence.error, reference.error)
    assert evidence.error < 0.1
    assert (
        abs(evidence.value - reference.log_evidence) < allowed(evidence.degrees_of_freedom) * error
    )
    apart = (flat(result.theta) - flat(reference.theta)) / flat(reference.standard_errors)
    assert np.abs(apart).max() < 0.05


def normal_groups(theta, x, y):
    log_normal = jax.scipy.stats.norm.logpdf
    return log_normal(x, theta["mean"], jnp.exp(theta["log_sd"])) + log_normal(y, x, 1.0)


def test_normal_groups_have_closed_forms(precision):
    """y_i ~ N(m, s^2 + 1)."""
    y = 2.0 + 1.8 * np.random.default_rng(0).normal(size=50)
    model = jalax.GroupedModel(normal_groups, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, {"mean": 0.0, "log_sd": 0.0})
    variance = y.var()
    np.testing.assert_allclose(result.theta["mean"], y.mean(), atol=1e-4)
    np.testing.assert_allclose(np.exp(2 * result.theta["log_sd"]), variance - 1, rtol=1e-4)
    errors = result.standard_errors()
    np.testing.assert_allclose(errors["mean"], np.sqrt(variance / 50), rtol=1e-3)
    change = 2 * (variance - 1)  # of the variance with log s
    np.testing.assert_allclose(errors["log_sd"], np.sqrt(2 / 50) * variance / change, rtol=1e-3)
    exact = stats.norm(y.mean(), np.sqrt(variance)).logpdf(y).sum()
    evidence = result.evidence
    assert evidence.error < 1e-3
    assert abs(evidence.value - exact) < allowed(evidence.degrees_of_freedom) * evidence.error
    group = stats.norm(y.mean(), np.sqrt(variance)).logpdf(y)
    np.testing.assert_allclose(evidence.groups, group, atol=1e-3)


def test_the_points_are_the_posterior(x64):
    """N(., s^2 / (s^2 + 1)) around the shrunken observation."""
    y = np.array([0.5, 3.0, -2.0, 4.0, 1.0, -3.0])
    model = jalax.GroupedModel(normal_groups, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, {"mean": 0.0, "log_sd": 0.0})
    s2 = np.exp(2 * float(result.theta["log_sd"]))
    weights = np.exp(result.log_weights - result.log_weights.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    mean = (weights * result.particles).sum(axis=1)
    expected = (s2 * y + float(result.theta["mean"])) / (s2 + 1)
    np.testing.assert_allclose(mean, expected, atol=1e-3)
    second = (weights * (np.asarray(result.particles) - mean[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(second, s2 / (s2 + 1), rtol=1e-3)


def test_errors_of_the_evidence_are_those_of_its_spread(x64):
    """240 keys on the pumps: the spread is the reported error, and nothing is far out."""
    problem = problems.pumps()
    many = jalax.fit_many(
        problem.model,
        problem.theta,
        key=jax.random.key(5),
        num_fits=240,
        algorithm=jalax.Scoring(),
        num_particles=64,
        progress=QUIET,
    )
    off = np.array([one.evidence.value - problem.reference.log_evidence for one in many])
    error = np.array([one.evidence.error for one in many])
    freedom = np.array([one.evidence.degrees_of_freedom for one in many])
    assert (np.abs(off / error) < allowed(freedom)).all()
    assert 0.8 < np.sqrt(np.mean((off / error) ** 2)) < 1.25
    apart = np.array([flat(one.theta) for one in many]) - flat(problem.reference.theta)
    simulation = np.array([flat(one.simulation_errors()) for one in many])
    assert (np.abs(apart) < 6 * simulation).all()


def test_the_tails_of_a_prior_are_covered(precision):
    """Never a success: beyond the likelihood the posterior has the tail of its prior, N(0, 4^2).

    A normal law on the curvature at the mode misses it, and its weights have no variance.
    """
    trials = np.array([2.0, 4.0, 7.0])

    def log_joint(theta, x, n):
        return jax.scipy.stats.norm.logpdf(x, theta, 4.0) - n * jax.nn.softplus(x)

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(trials))
    evidence = jalax.log_evidence(model, 0.0, key=jax.random.key(0))
    x = np.linspace(-60, 60, 400_001)
    density = stats.norm.logpdf(x, 0, 4) - trials[:, None] * np.logaddexp(0, x)
    exact = np.log(np.trapezoid(np.exp(density), x, axis=1)).sum()
    assert evidence.route == "points"
    assert evidence.k_hat < 0.4
    assert evidence.error < 1e-3
    assert abs(evidence.value - exact) < allowed(evidence.degrees_of_freedom) * evidence.error


def test_the_rounding_of_log_joint_is_no_part_of_the_evidence(precision):
    """Counts near 300: gammaln takes 1,400 away from terms as large, and float32 rounds each.

    Against quadrature in float64; float32 alone would be a hundred errors off.
    """
    y = np.random.default_rng(0).poisson(300, size=40)

    def log_joint(theta, x, y):
        log_p = jax.scipy.stats.norm.logpdf(x, theta, 0.1)
        return log_p + y * x - jnp.exp(x) - jax.scipy.special.gammaln(y + 1.0)

    model = jalax.GroupedModel(log_joint, jnp.asarray(5.7), jnp.asarray(y))
    evidence = jalax.log_evidence(model, 5.7, key=jax.random.key(0))
    x = np.linspace(4.5, 7, 200_001)
    density = stats.norm.logpdf(x, np.asarray(5.7, jnp.result_type(float)), 0.1)
    density = density + stats.poisson.logpmf(y[:, None], np.exp(x))
    exact = np.log(np.trapezoid(np.exp(density), x, axis=1)).sum()
    assert evidence.error < 1e-3
    assert abs(evidence.value - exact) < allowed(evidence.degrees_of_freedom) * evidence.error


def test_nor_of_that_of_a_fit_whose_terms_depend_on_theta():
    """Negative binomial counts near 400: gammaln(y + k) is rounded anew at every k.

    log p is measured one short step before the theta that is returned. Against quadrature at that.
    """
    rng = np.random.default_rng(0)
    y = rng.poisson(rng.gamma(7.0, 60.0, size=200)).astype(float)

    def log_joint(theta, x, y):
        k, mean = jnp.exp(theta["log_k"]), jnp.exp(theta["mean"] + 0.3 * x)
        gammaln = jax.scipy.special.gammaln
        log_p = gammaln(y + k) - gammaln(k) - gammaln(y + 1) + k * jnp.log(k / (k + mean))
        return log_p + y * jnp.log(mean / (k + mean)) + jax.scipy.stats.norm.logpdf(x)

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(y))
    x = np.linspace(-8, 8, 4001)
    for seed in range(3):
        result = fit(model, {"mean": 6.0, "log_k": 2.0}, seed)
        k = np.exp(float(result.theta["log_k"]))
        mean = np.exp(float(result.theta["mean"]) + 0.3 * x)
        density = stats.nbinom.pmf(y[:, None], k, k / (k + mean)) * stats.norm.pdf(x)
        exact = np.log(np.trapezoid(density, x, axis=1)).sum()
        evidence = result.evidence
        assert evidence.error < 0.01
        assert abs(evidence.value - exact) < allowed(evidence.degrees_of_freedom) * evidence.error


def test_a_variance_of_zero_is_a_boundary():
    """The data vary less than the noise: s has its maximum at 0, log s none."""
    y = 0.5 * np.random.default_rng(1).normal(size=40)
    model = jalax.GroupedModel(normal_groups, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, {"mean": 0.0, "log_sd": 0.0})
    assert result.status == "boundary"
    assert "log_sd" in result.message
    errors = result.standard_errors()
    assert np.isnan(errors["log_sd"])
    np.testing.assert_allclose(errors["mean"], np.sqrt(1 / 40), rtol=0.01)
    exact = stats.norm(y.mean(), 1.0).logpdf(y).sum()
    np.testing.assert_allclose(result.log_evidence, exact, atol=0.01)


def test_on_the_way_to_a_boundary_no_short_step_is_the_last():
    """The groups vary a little less than they would with s = 0: log p rises slowly on the way."""
    rng = np.random.default_rng([81, 0, 40])
    y = 0.3 + 0.4 * rng.normal(size=(20, 1)) + rng.normal(size=(20, 5))

    def log_joint(theta, x, y):
        log_normal = jax.scipy.stats.norm.logpdf
        mean = theta["mean"] + jnp.exp(theta["log_sd"]) * x
        return log_normal(x) + jnp.sum(log_normal(y, mean, jnp.exp(theta["log_sigma"])))

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, {"mean": 0.0, "log_sd": 0.0, "log_sigma": 0.0}, 81)
    assert result.status == "boundary"
    exact = stats.norm(y.mean(), y.std()).logpdf(y).sum()
    assert abs(result.log_evidence - exact) < 2e-4


def test_many_fits_are_the_fits(x64):
    problem = problems.pumps()
    keys = jax.random.split(jax.random.key(3), 2)
    many = jalax.fit_many(
        problem.model, problem.theta, key=keys, algorithm=jalax.Scoring(), progress=QUIET
    )
    for key, one in zip(keys, many, strict=True):
        alone = jalax.fit(
            problem.model, problem.theta, key=key, algorithm=jalax.Scoring(), progress=QUIET
        )
        assert one.status == alone.status == "converged"
        np.testing.assert_allclose(flat(one.theta), flat(alone.theta), rtol=1e-9)
        np.testing.assert_allclose(one.log_evidence, alone.log_evidence, rtol=1e-9)


def test_batches_of_groups_give_the_same(x64):
    problem = problems.pumps()  # ten of them
    batches = problem.model.replace(group_batch=4)
    whole, some = (fit(model, problem.theta) for model in (problem.model, batches))
    np.testing.assert_allclose(flat(whole.theta), flat(some.theta), rtol=1e-8)
    np.testing.assert_allclose(whole.log_evidence, some.log_evidence, rtol=1e-10)


def walled(theta, x, y):
    """No density where x > 1: half of the points of the first pass."""
    return normal_groups({"mean": theta, "log_sd": 0.0}, x, y) + jnp.where(x > 1, -jnp.inf, 0.0)


@pytest.mark.filterwarnings("ignore:log_evidence")
def test_points_without_density_have_no_weight(x64):
    y = np.array([0.5, 1.5, 1.0, 0.8])
    model = jalax.GroupedModel(walled, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, 0.3, num_particles=4096)
    assert result.history["dead"].max() > 0
    half = np.sqrt(0.5)  # the posterior is N((m + y) / 2, 1/2), cut at 1

    def log_p(m):
        cut = stats.norm.logcdf((1 - (m + y) / 2) / half)
        return (stats.norm(m, np.sqrt(2)).logpdf(y) + cut).sum()

    exact = log_p(float(result.theta))
    assert abs(result.log_evidence - exact) < 0.02


def test_it_says_what_it_is_not_for():
    many = jalax.Model(lambda theta, x, data: -jnp.sum((x - theta) ** 2), jnp.zeros(2001))
    with pytest.raises(
        ValueError, match=r"has 2001 latents, and Scoring is for up to 2000.*: use jalax.JALAEM"
    ):
        fit(many, 0.0)
    problem = problems.pumps()
    with pytest.raises(ValueError, match=r"power of two.*num_particles is 100"):
        fit(problem.model, problem.theta, num_particles=100)
    with pytest.raises(ValueError, match=r"num_measurements must be 2 or more, got 1"):
        fit(problem.model, problem.theta, algorithm=jalax.Scoring(num_measurements=1))
    for wrong, message in (
        ({"damping": -1.0}, r"Scoring.damping must be 0 or more, got -1.0"),
        ({"relaxation": 0.5}, r"Scoring.relaxation must be 1 or more, got 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(problem.model, problem.theta, algorithm=jalax.Scoring(**wrong))


def test_a_climb_without_a_way_is_measured_where_it_is():
    """log p has no value but at theta_0: twenty trials fail, and what is known is reported."""
    y = np.array([0.5, 1.5, 4.0])

    def log_joint(theta, x, y):
        log_normal = jax.scipy.stats.norm.logpdf
        wall = jnp.where(theta == 0.0, 0.0, jnp.nan)
        return log_normal(x, theta, 1.0) + log_normal(y, x, 1.0) + wall

    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(y))
    result = fit(model, 0.0)
    exact = stats.norm(0.0, np.sqrt(2.0)).logpdf(y).sum()
    assert result.status == "max_steps"
    assert result.history["phase"][-1] == 3
    assert abs(result.history["log_evidence"][-1] - exact) < 0.01


def test_a_climb_that_creeps_or_circles_ends():
    """And one that has nothing to compare a step with, at a change of phase, begins to count."""

    def steps_of(rises):
        pace = newton.no_pace(jnp.zeros(1))
        for count, rise in enumerate(rises, 1):
            pace = newton.next_pace(pace, jnp.asarray(rise))
            if newton.stands_still(pace):
                return count
        return None

    start = [jnp.inf, 5.0]
    assert steps_of([*start, *[5e-5] * 30]) == 2 + newton.LATELY  # 6e-4 in all
    assert steps_of([*start, *[1e-3, -1e-3] * 30]) == 2 + newton.LATELY
    assert steps_of([*start, *[2e-4] * 30]) is None  # 0.001 in five steps
    assert steps_of([*start, *[-2e-3, *[5e-4] * 12] * 3]) is None  # it makes up for a fall
    assert steps_of([*start, -8.0, jnp.inf, *[0.1] * 40]) is None  # other points, another log p
