"""Fits with covariances of random effects, against closed forms and quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

import jalax
from jalax import covariances as cov
from jalax import predictions, residuals
from jalax._frontends.mixed_averages import prior_variance, spread_slopes
from jalax._frontends.mixed_exact import _solved
from jalax._frontends.mixed_parts import numbers
from jalax.models._design import Asked
from jalax.models._mixed import build

QUIET = jalax.callbacks.Callback()
KEY = jax.random.key(0)
GROUPS, WEEKS = 16, 4
GROUP, WEEK = np.repeat(np.arange(GROUPS), WEEKS), np.tile(np.arange(WEEKS), GROUPS)
SITES = {
    f"s{i:02}": tuple(xy) for i, xy in enumerate(np.random.default_rng(5).uniform(0, 9, (12, 2)))
}
WHERE = np.array(list(SITES.values()))
FAR = np.linalg.norm(WHERE[:, None] - WHERE, axis=2)
PEDIGREE = np.eye(12) + 0.5 * (np.arange(12)[:, None] // 3 == np.arange(12) // 3) * (1 - np.eye(12))
SITE = np.repeat(np.arange(12), 5)


def series(sigma, noise=0.5, seed=0):
    """A response with effects of four weeks in each group, twice each week."""
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(GROUPS, WEEKS)) @ np.linalg.cholesky(sigma).T
    y = 2 + np.concatenate([b.ravel(), b.ravel()]) + noise * rng.normal(size=2 * GROUP.size)
    twice = {"g": np.tile(GROUP, 2).astype(str), "week": np.tile(WEEK, 2)}
    return pd.DataFrame({"y": y, "x": np.tile(WEEK - 1.5, 2)} | twice)


def field(correlation, seed=0):
    rng = np.random.default_rng(seed)
    b = 1.5 * np.linalg.cholesky(correlation) @ rng.normal(size=12)
    y = 1 + b[SITE] + 0.5 * rng.normal(size=SITE.size)
    return pd.DataFrame({"y": y, "site": np.array(list(SITES))[SITE]})


def at_its_maximum(y, Z, sigma_of, start):
    """log p of N(mean, Z Sigma Z' + noise), maximised in float64, and where.

    The numbers are the mean, the logarithm of sigma, and those of Sigma.
    """

    def negative(t):
        V = Z @ sigma_of(t[2:]) @ Z.T + np.exp(2 * t[1]) * np.eye(len(y))
        root = np.linalg.cholesky(V)
        white = np.linalg.solve(root, y - t[0])
        return 0.5 * white @ white + np.log(np.diag(root)).sum() + 0.5 * len(y) * np.log(2 * np.pi)

    best = optimize.minimize(negative, [y.mean(), -0.5, *start], method="BFGS")
    return -best.fun, best.x


def equal(t):
    rho = -1 / 3 + 4 / 3 * special.expit(t[4])
    return np.outer(np.exp(t[:4]), np.exp(t[:4])) * ((1 - rho) * np.eye(4) + rho)


LAG = np.abs(np.arange(4)[:, None] - np.arange(4))
SERIES = {
    "diag": ("y ~ 1 + diag(x | g)", lambda t: np.diag(np.exp(2 * t)), [0.0, -0.5]),
    "cs": ("y ~ 1 + cs(0 + C(week) | g)", equal, [0.0, 0.0, 0.0, 0.0, 0.0]),
    "ar1": (
        "y ~ 1 + ar1(0 + C(week) | g)",
        lambda t: np.exp(2 * t[0]) * np.tanh(t[1]) ** LAG,
        [0.0, 0.5],
    ),
    "exp": (
        "y ~ 1 + exp(0 + C(week) | g)",
        lambda t: np.exp(2 * t[0]) * np.exp(-LAG * np.exp(-t[1])),
        [0.0, 0.5],
    ),
}
# logLik(glmmTMB(formula, data)) of glmmTMB 1.1.5, of the same formulas with week as a factor, in
# exp as numFactor(week). Of Gaussian responses Laplace's approximation is exact.
GLMMTMB = {"diag": -167.378368, "cs": -164.843694, "ar1": -160.327709, "exp": -160.327709}
FIELDS = {
    "exp": (cov.Exponential(SITES), lambda t: np.exp(2 * t[0] - FAR * np.exp(-t[1])), [0.0, 1.0]),
    "mat": (
        cov.Matern(SITES),
        lambda t: np.exp(2 * t[0] - FAR * np.exp(-t[1])) * (1 + FAR * np.exp(-t[1])),
        [0.0, 1.0],
    ),
    "known": (cov.Known(PEDIGREE, list(SITES)), lambda t: np.exp(2 * t[0]) * PEDIGREE, [0.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERIES)
def test_effects_of_a_level_against_the_closed_form(name):
    formula, sigma_of, start = SERIES[name]
    frame = series(1.44 * 0.6**LAG)
    result = jalax.mixed(formula, frame, key=KEY, progress=QUIET)
    groups = frame.g.astype(int).to_numpy()
    z = np.eye(4)[frame.week] if name != "diag" else np.column_stack([np.ones(len(frame)), frame.x])
    size = z.shape[1]
    Z = np.zeros((len(frame), GROUPS * size))
    for k in range(size):
        Z[np.arange(len(frame)), groups * size + k] = z[:, k]
    log_p, best = at_its_maximum(
        frame.y.to_numpy(), Z, lambda t: np.kron(np.eye(GROUPS), sigma_of(t)), start
    )
    assert log_p == pytest.approx(GLMMTMB[name], abs=1e-4)
    assert result.status == "converged"
    assert result.log_evidence == pytest.approx(log_p, abs=0.01 + 4 * result.log_evidence_error)
    count = len(result.theta["sd"]["g"])
    np.testing.assert_allclose(result.theta["sd"]["g"], np.exp(best[2 : 2 + count]), rtol=0.03)
    np.testing.assert_allclose(result.theta["sigma"], np.exp(best[1]), rtol=0.02)


@pytest.fixture(scope="module", params=FIELDS)
def joint(request):
    """A field over sites, its closed form, and the matrix of this at its maximum."""
    covariance, sigma_of, start = FIELDS[request.param]
    frame = field(PEDIGREE if request.param == "known" else np.exp(-FAR / 3))
    asked = {"site": covariance}
    result = jalax.mixed("y ~ 1 + (1 | site)", frame, covariances=asked, key=KEY, progress=QUIET)
    Z = np.eye(12)[SITE]
    log_p, best = at_its_maximum(frame.y.to_numpy(), Z, sigma_of, start)
    return result, frame, log_p, best, sigma_of(best[2:])


@pytest.mark.slow
def test_joint_levels_against_the_closed_form(joint):
    result, _, log_p, best, _ = joint
    assert result.status == "converged"
    assert result.log_evidence == pytest.approx(log_p, abs=0.005)
    np.testing.assert_allclose(result.theta["sd"]["site"][0], np.exp(best[2]), rtol=0.02)
    if "range" in result.theta:
        np.testing.assert_allclose(result.theta["range"]["site"][0], np.exp(best[3]), rtol=0.04)
        assert "range | site" in result.names


@pytest.mark.slow
def test_after_a_fit_of_joint_levels(joint, tmp_path):
    result, frame, _, best, sigma = joint
    Z = np.eye(12)[SITE]
    V = Z @ sigma @ Z.T + np.exp(2 * best[1]) * np.eye(len(frame))
    exact = sigma @ Z.T @ np.linalg.solve(V, frame.y - best[0])
    table = result.random_effects()["site"]
    np.testing.assert_allclose(table["Intercept"], exact, atol=0.02)
    variance = np.diag(sigma - sigma @ Z.T @ np.linalg.solve(V, Z @ sigma))
    np.testing.assert_allclose(table["Intercept sd"], np.sqrt(variance), rtol=0.05)
    result.save(tmp_path / "fit.jalax")
    loaded = jalax.load(tmp_path / "fit.jalax")
    pd.testing.assert_frame_equal(loaded.predict(), result.predict(), rtol=1e-4)
    new = pd.DataFrame({"site": ["nowhere"]})
    with pytest.raises(ValueError, match="depend on each other"):
        result.predict(new, effects=predictions.ConditionalOrNew())
    marginal = result.predict(effects=predictions.Marginal())["estimate"]
    np.testing.assert_allclose(marginal, best[0], atol=0.05)
    drawn = result.simulate(jax.random.key(1), 2000)[:, ::5]  # a row a site
    found, expected = np.cov(drawn.T), sigma + np.exp(2 * best[1]) * np.eye(12)
    np.testing.assert_allclose(found, expected, atol=4.5 * 1.5 * expected.max() / np.sqrt(2000))
    assert result.latents().to_frame().shape[0] == 12


def test_random_effects_of_joint_levels_in_closed_form():
    """And how they move with theta: b | y = Sigma Z' V^{-1} (y - X beta)."""
    frame = field(PEDIGREE)
    asked = Asked(covariances={"site": FIELDS["exp"][0]})
    _, mixed = build("y ~ 1 + (1 | site)", frame, "gaussian", asked)
    theta = {
        "beta": np.array([0.7]),
        "sd": {"site": np.array([1.3])},
        "cor": {"site": np.zeros(0)},
        "range": {"site": np.array([2.5])},
        "sigma": np.array(0.6),
    }
    mean, covariance, of_beta = _solved(theta, mixed)
    Z, sigma = np.eye(12)[SITE], 1.69 * np.exp(-FAR / 2.5)
    gain = sigma @ Z.T @ np.linalg.inv(Z @ sigma @ Z.T + 0.36 * np.eye(SITE.size))
    np.testing.assert_allclose(mean[0], gain @ (frame.y - 0.7), atol=1e-8)
    np.testing.assert_allclose(covariance[0], sigma - gain @ Z @ sigma, atol=1e-8)
    np.testing.assert_allclose(of_beta[0, :, 0], -gain.sum(axis=1), atol=1e-8)


@pytest.mark.parametrize("name", [*SERIES, "us"])
def test_how_the_prior_variance_moves_with_theta(name, x64):
    """The derivative of the standard deviation of z'b, by JAX."""
    formula = "y ~ 1 + (x | g)" if name == "us" else SERIES[name][0]
    model, mixed = build(formula, series(np.eye(4)), "gaussian")
    theta = jax.tree.map(lambda leaf: leaf + 0.1, model.theta)
    Z = {"g": np.array(mixed.design.blocks[0].matrix[:5])}
    law = mixed.placed["g"].law

    def spread(theta):
        own = {part: theta[part]["g"] for part in ("sd", "cor", "range") if part in theta}
        white = jax.jacfwd(lambda x: law.effects(own, x, {}))(jnp.zeros((1, law.size)))
        return jnp.linalg.norm(Z["g"] @ white.reshape(law.size, law.size), axis=1)

    user = numbers(theta)
    found = np.sqrt(prior_variance(mixed, user, Z))
    np.testing.assert_allclose(found, jax.jit(spread)(theta), rtol=1e-9)
    slopes = jax.jit(jax.jacfwd(spread))({n: leaf for n, leaf in theta.items() if n != "beta"})
    exact = np.concatenate([np.reshape(leaf, (5, -1)) for leaf in jax.tree.leaves(slopes)], axis=1)
    np.testing.assert_allclose(spread_slopes(mixed, user, Z, found), exact, atol=1e-7)


# ---------------------------------------------------------------- other responses


def poisson_series(seed=0):
    rng = np.random.default_rng(seed)
    groups = 60
    b = rng.normal(size=(groups, 2)) @ np.linalg.cholesky(0.64 * np.array([[1, 0.6], [0.6, 1]])).T
    frame = pd.DataFrame({"g": np.repeat(np.arange(groups), 2), "week": np.tile([1, 2], groups)})
    return frame.assign(y=rng.poisson(np.exp(1 + b.ravel())))


@pytest.mark.slow
def test_a_poisson_series_against_quadrature():
    """Two weeks: two latents a group, by Gauss and Hermite's points."""
    frame = poisson_series()
    formula = "y ~ 1 + ar1(0 + C(week) | g)"
    result = jalax.mixed(formula, frame, family="poisson", key=KEY, progress=QUIET)
    y = frame.y.to_numpy().reshape(-1, 2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def negative(t):
        sd, phi = np.exp(t[1]), np.tanh(t[2])
        b = sd * np.column_stack([z[:, 0], phi * z[:, 0] + np.sqrt(1 - phi**2) * z[:, 1]])
        rows = stats.poisson.logpmf(y[:, None], np.exp(t[0] + b)).sum(axis=2)
        return -special.logsumexp(rows, b=w, axis=1).sum()

    best = optimize.minimize(negative, [1.0, -0.3, 0.5], method="BFGS")
    assert result.log_evidence == pytest.approx(-best.fun, abs=0.01)
    found = [result.theta["beta"][0], result.theta["sd"]["g"][0], result.theta["cor"]["g"][0]]
    exact = [best.x[0], np.exp(best.x[1]), np.tanh(best.x[2])]
    np.testing.assert_allclose(found, exact, rtol=0.02)


@pytest.mark.slow
def test_binary_answers_with_heavy_tails_against_quadrature():
    """One latent a group, on a line of points."""
    rng = np.random.default_rng(1)
    groups, rows, df = 60, 8, 3.0
    b = 1.2 * rng.standard_t(df, groups)
    frame = pd.DataFrame({"g": np.repeat(np.arange(groups), rows)})
    frame["y"] = rng.binomial(1, special.expit(0.4 + b[frame.g])).astype(float)
    asked = {"g": cov.StudentT(df=df)}
    how = {"family": "bernoulli", "covariances": asked, "key": KEY, "progress": QUIET}
    result = jalax.mixed("y ~ 1 + (1 | g)", frame, **how)
    ones = frame.y.to_numpy().reshape(groups, rows).sum(axis=1)
    # In units of the scale, evenly in the distribution function of a Cauchy law.
    u = (np.arange(20_000) + 0.5) / 20_000
    z = np.tan(np.pi * (u - 0.5))
    weight = stats.t.pdf(z, df) / stats.cauchy.pdf(z) / u.size

    def negative(t):
        eta = t[0] + np.exp(t[1]) * z
        each = ones[:, None] * special.log_expit(eta)
        each = each + (rows - ones[:, None]) * special.log_expit(-eta)
        return -special.logsumexp(each, b=weight, axis=1).sum()

    best = optimize.minimize(negative, [0.4, 0.2], method="BFGS")
    assert result.log_evidence == pytest.approx(-best.fun, abs=0.01)
    found = result.theta["beta"][0], result.theta["sd"]["g"][0]
    np.testing.assert_allclose(found, [best.x[0], np.exp(best.x[1])], rtol=0.01, atol=0.005)
    assert len(result._report_panels()) == 4


# ---------------------------------------------------------------- heavy tails

OUTLYING, PLAIN = [3, 9, 15], [0, 1, 2, 4]
ROWS = 6


def with_outliers():
    """Twenty groups of six rows, three of them far from the others."""
    rng = np.random.default_rng(3)
    b = 0.3 * rng.normal(size=20)
    b[OUTLYING] = [5.0, -4.0, 4.5]
    y = 1 + np.repeat(b, ROWS) + 0.5 * rng.normal(size=20 * ROWS)
    return pd.DataFrame({"y": y, "g": np.repeat([f"g{i:02}" for i in range(20)], ROWS)})


def by_quadrature(frame, df):
    """log p at its maximum by 6,000 points of a line, and theta; df None: normal, 0: estimated."""
    y, nodes = frame.y.to_numpy().reshape(-1, ROWS), np.linspace(-30, 30, 6001)

    def negative(t):
        law = stats.norm() if df is None else stats.t(np.exp(t[3]) if df == 0 else df)
        prior = law.logpdf(nodes / np.exp(t[1])) - t[1]
        away = y - t[0]
        square = (away**2).sum(1)[:, None] - 2 * away.sum(1)[:, None] * nodes + ROWS * nodes**2
        rows = -0.5 * square * np.exp(-2 * t[2]) - ROWS * (t[2] + 0.5 * np.log(2 * np.pi))
        return -(special.logsumexp(rows + prior, axis=1) + np.log(nodes[1] - nodes[0])).sum()

    best = optimize.minimize(negative, [1.0, -0.5, -0.7] + [0.5] * (df == 0), method="BFGS")
    return -best.fun, best.x


@pytest.fixture(scope="module", params=[3.0, 0], ids=["df=3", "df estimated"])
def heavy(request):
    frame, df = with_outliers(), request.param
    asked = {"g": cov.StudentT(df=df or None)}
    formula = "y ~ 1 + (1 | g)"
    result = jalax.mixed(formula, frame, covariances=asked, key=KEY, progress=QUIET)
    return result, frame, *by_quadrature(frame, df)


@pytest.mark.slow
def test_three_outlying_groups_against_quadrature(heavy):
    result, frame, log_p, best = heavy
    assert result.log_evidence == pytest.approx(log_p, abs=0.005)
    np.testing.assert_allclose(result.theta["sd"]["g"][0], np.exp(best[1]), rtol=0.01)
    if "tails" in result.theta:
        np.testing.assert_allclose(result.theta["tails"]["g"][0], np.exp(best[3]), rtol=0.01)
    normal, _ = by_quadrature(frame, None)
    assert log_p > normal + 7  # which is what a Gaussian fit says, and lme4


@pytest.mark.slow
def test_after_a_fit_with_heavy_tails(heavy, tmp_path):
    result, frame, _, _ = heavy
    means = frame.groupby("g").y.mean().to_numpy() - float(result.theta["beta"][0])
    found = result.random_effects()["g"]["Intercept"].to_numpy()
    # Outlying groups are hardly shrunken, where a normal distribution shrinks all alike.
    shrinkage = 1 - found / means
    assert np.abs(shrinkage[OUTLYING]).max() < 0.04
    result.save(tmp_path / "fit.jalax")
    loaded = jalax.load(tmp_path / "fit.jalax")
    # A file does not know at which theta, one step before, its particles were weighted: that is a
    # few hundredths of a posterior standard deviation.
    again, first = loaded.predict()["estimate"], result.predict()["estimate"]
    np.testing.assert_allclose(again, first, atol=0.01)
    with pytest.raises(ValueError, match="those of 'g' are Student's"):
        result.predict(effects=predictions.Marginal())
    with pytest.raises(ValueError, match="Mean"):
        result.random_effects(at=predictions.Mode())
    with pytest.raises(ValueError, match="Conditional"):
        result.residuals(residuals.Quantile(KEY))
    quantile = residuals.Quantile(KEY, effects=predictions.Conditional())
    assert np.isfinite(result.residuals(quantile)).all()
    rows = "scale Intercept | g" in str(result.summary()), "sd Intercept" in str(result.summary())
    assert rows == (True, False)
    assert result.simulate(jax.random.key(1), 3).shape == (3, len(frame))


@pytest.mark.slow
def test_white_latents_are_the_same_model(x64):
    asked = {"site": cov.Known(PEDIGREE, list(SITES))}
    frame = field(PEDIGREE)
    model = jalax.models.mixed("y ~ 1 + (1 | site)", frame, covariances=asked)
    both = [jalax.log_evidence(one, model.theta, key=KEY) for one in (model, model.whitened())]
    error = np.hypot(*(evidence.error for evidence in both))
    assert abs(both[0].value - both[1].value) < 4.5 * error + 1e-6


@pytest.mark.slow
def test_no_variance_between_sites_is_a_boundary():
    """Means of sites that are equal: the model without them is as good."""
    y = np.tile([0.3, -0.7, 1.1, 0.2, -0.9], 12)
    frame = field(PEDIGREE).assign(y=y)
    asked = {"site": cov.Exponential(SITES)}
    result = jalax.mixed("y ~ 1 + (1 | site)", frame, covariances=asked, key=KEY, progress=QUIET)
    assert result.status == "boundary"
    exact = stats.norm(y.mean(), y.std()).logpdf(y).sum()
    assert result.log_evidence == pytest.approx(exact, abs=0.02)


@pytest.mark.slow
def test_anova_knows_what_is_nested():
    frame = series(1.44 * 0.6**LAG)
    formulas = ("y ~ x + diag(x | g)", "y ~ x + (x | g)")
    fits = [jalax.mixed(one, frame, key=KEY, progress=QUIET) for one in formulas]
    assert jalax.anova(*fits).rows[1].degrees_of_freedom == (1,)
    heavy = {"g": cov.StudentT()}
    wider = jalax.mixed("y ~ x + (x | g)", frame, covariances=heavy, key=KEY, progress=QUIET)
    with pytest.raises(ValueError, match="not nested"):
        jalax.anova(fits[1], wider)


@pytest.mark.slow
def test_numbers_of_a_covariance_are_held_by_name():
    frame = series(1.44 * 0.6**LAG)
    formula = "y ~ 1 + ar1(0 + C(week) | g)"
    held = {"phi C(week) | g": 0.5}
    result = jalax.mixed(formula, frame, fixed=held, key=KEY, progress=QUIET)
    assert float(result.theta["cor"]["g"][0]) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("kind", ["joint", "grouped"])
def test_effects_given_rows_of_different_precision(kind, x64):
    """E[b | y] = Sigma Z' V^{-1} (y - X beta), V = Z Sigma Z' + sigma^2 / w, row by row."""
    data = field(np.exp(-FAR / 2)).assign(w=np.random.default_rng(2).uniform(0.3, 3, SITE.size))
    joint = {"site": cov.Exponential(SITES)} if kind == "joint" else None
    asked = Asked(precision_weights="w", covariances=joint)
    _, mixed = build("y ~ 1 + (1|site)", data, "gaussian", asked)
    theta = {"beta": np.ones(1), "cor": {"site": np.zeros(0)}, "sd": {"site": np.array([1.5])}}
    theta |= {"sigma": np.array(0.6)} | ({"range": {"site": np.array([2.0])}} if joint else {})
    Sigma = 1.5**2 * (np.exp(-FAR / 2) if joint else np.eye(12))
    Z = np.eye(12)[SITE]
    V = Z @ Sigma @ Z.T + np.diag(0.36 / data["w"].to_numpy())
    mean = Sigma @ Z.T @ np.linalg.solve(V, data["y"].to_numpy() - 1)
    np.testing.assert_allclose(_solved(theta, mixed)[0].ravel(), mean, atol=1e-6)


@pytest.mark.parametrize("covariance", [cov.Exponential(SITES), cov.AR1(), cov.StudentT(df=4.0)])
def test_reml_says_what_it_is_not_for(covariance):
    data = field(np.exp(-FAR / 2))
    with pytest.raises(ValueError, match="REML is for normal random effects"):
        jalax.models.mixed(
            "y ~ 1 + (1|site)", data, covariances={"site": covariance}, likelihood=jalax.REML()
        )
