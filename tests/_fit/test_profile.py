"""Profile likelihoods and their intervals, against a density in closed form and lme4."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import jalax

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()
Y = np.array([-31.0, -19.0, -12.0, -4.0, 3.0, 14.0, 21.0, 36.0])
S = np.array([9.0, 10.0, 8.0, 11.0, 9.0, 11.0, 10.0, 8.0])


def log_joint(theta, x, data):
    """y_j ~ N(mu + tau x_j, s_j), x_j a standard normal."""
    y, s = data
    mean = theta["mu"] + theta["tau"] * x
    return jax.scipy.stats.norm.logpdf(x) + jax.scipy.stats.norm.logpdf(y, mean, s)


def positive(theta):
    return {"mu": theta["mu"], "tau": jnp.exp(theta["tau"])}


def model(y=Y):
    data = jnp.asarray(y), jnp.asarray(S)
    return jalax.GroupedModel(log_joint, jnp.zeros(()), data, constrain=positive)


def fit(y=Y, **options):
    start = {"mu": 0.0, "tau": 2.0}
    return jalax.fit(model(y), start, key=KEY, progress=QUIET, **options)


def exact_profile(tau: float, y=Y) -> float:
    weight = 1 / (S**2 + tau**2)
    mu = weight @ y / weight.sum()
    return float(stats.norm.logpdf(y, mu, np.hypot(S, tau)).sum())


@pytest.fixture(scope="module")
def fitted():
    return fit()


@pytest.fixture(scope="module")
def profile(fitted):
    return fitted.profile("tau")


def test_log_p_along_the_profile(profile):
    exact = np.array([exact_profile(tau) for tau in profile.values])
    np.testing.assert_allclose(profile.log_evidence, exact, atol=2e-3)
    assert np.all(np.diff(profile.values) > 0)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_its_interval(profile, level):
    """Within 0.3 % of its width of the roots of the exact profile."""
    best = optimize.minimize_scalar(lambda t: -exact_profile(t), bounds=(1, 60))
    fall = -best.fun - stats.chi2.ppf(level, 1) / 2
    low, high = (
        optimize.brentq(lambda t: exact_profile(t) - fall, *ends)
        for ends in ((1e-3, best.x), (best.x, 200.0))
    )
    found = profile.interval(level)
    np.testing.assert_allclose(found, (low, high), atol=3e-3 * (high - low))


def test_a_side_that_never_falls_ends_at_zero():
    """Little spread between the groups: tau may be zero."""
    close = Y / 3
    best = optimize.minimize_scalar(lambda t: -exact_profile(t, close), bounds=(0, 60))
    assert exact_profile(0.0, close) > -best.fun - 1.92
    found = fit(close).profile("tau")
    low, high = found.interval()
    fall = -best.fun - stats.chi2.ppf(0.95, 1) / 2
    exact = optimize.brentq(lambda t: exact_profile(t, close) - fall, max(best.x, 1e-3), 200.0)
    assert low == 0.0
    assert high == pytest.approx(exact, rel=0.01)


def test_with_another_number_held():
    """With tau held the profile of mu is a parabola."""
    found = fit(fixed={"tau": np.log(20.0)}).profile("mu").interval()
    weight = 1 / (S**2 + 400)
    middle, error = weight @ Y / weight.sum(), weight.sum() ** -0.5
    np.testing.assert_allclose(found, middle + 1.95996 * error * np.array([-1, 1]), rtol=2e-3)


def test_of_all_numbers_by_the_method_of_confidence_intervals(fitted, profile):
    ends = fitted.confidence_intervals(method=jalax.Profile())
    np.testing.assert_allclose(ends["tau"], profile.interval(), rtol=1e-5)
    assert ends["mu"].shape == (2,)


def test_the_figure_shows_the_fall(profile):
    pytest.importorskip("matplotlib").use("Agg")
    axes = profile.plot()
    line = axes.lines[0]
    np.testing.assert_allclose(line.get_ydata(), profile.log_evidence - profile.maximum)
    assert axes.get_xlabel() == "tau"


def test_bad_input(fitted):
    with pytest.raises(ValueError, match="theta has no number 'sigma'; it has mu, tau"):
        fitted.profile("sigma")
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        fitted.profile("tau", level=95)
    with pytest.raises(TypeError, match=r"method must be None or jalax.Profile\(\)"):
        fitted.confidence_intervals(method="profile")


# confint(lmer(Reaction ~ Days + (Days|Subject), sleepstudy, REML = FALSE), method = "profile")
SLEEP = {
    "Intercept": (237.680690, 265.129515),
    "days": (7.358653, 13.575919),
    "sd Intercept | subject": (14.381390, 37.716012),
    "sd days | subject": (3.801182, 8.753320),
    "cor Intercept, days | subject": (-0.481500, 0.684998),
    "sigma": (22.898257, 28.857997),
}


@pytest.mark.slow
def test_the_intervals_of_lme4():
    data = jalax.datasets.sleepstudy().to_frame()
    found = jalax.mixed("reaction ~ days + (days|subject)", data, key=KEY, progress=QUIET)
    ends = jalax.Profile().intervals(found, 0.95)
    for name, expected in SLEEP.items():
        low, high = ends[found.names.index(name)]
        np.testing.assert_allclose((low, high), expected, atol=0.01 * np.ptp(expected))
