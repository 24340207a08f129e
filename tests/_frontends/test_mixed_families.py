"""Mixed models of every family: fits against quadrature over one latent a group, by scipy."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.interpolate
import scipy.special
import scipy.stats
from jax.flatten_util import ravel_pytree

import jalax
from jalax import families

GROUPS, ROWS = 40, 8
# The trapezoidal rule: a posterior is much narrower than the prior, and Gauss's points too few.
NODES = np.linspace(-7, 7, 701)
WEIGHTS = np.exp(-(NODES**2) / 2)
NORMAL = scipy.stats.norm


def frame(draw, seed=0):
    """x, and a response drawn at eta = 0.3 + 0.5 x + 0.6 u."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), ROWS)
    x = rng.standard_normal(group.size)
    eta = 0.3 + 0.5 * x + 0.6 * rng.standard_normal(GROUPS)[group]
    return pd.DataFrame({"x": x, "g": group} | draw(rng, eta, x))


def quadrature(theta, data, log_rows):
    """log p by the trapezoidal rule; `log_rows(theta, eta, data)` of (n, nodes)."""
    beta, sd = np.asarray(theta["beta"], float), float(theta["sd"]["g"][0])
    x, n = data["x"].to_numpy(), len(data)
    X = np.column_stack([np.ones(n), x])[:, 2 - len(beta) :]
    eta = (X @ beta)[:, None] + sd * NODES
    rows = log_rows(theta, eta, data)
    groups = np.zeros((GROUPS, NODES.size))
    np.add.at(groups, data["g"].to_numpy(), rows)
    return float(np.sum(scipy.special.logsumexp(groups, axis=1, b=WEIGHTS / WEIGHTS.sum())))


def column(data, name):
    return data[name].to_numpy(float)[:, None]


def weibull(rng, eta, x):
    time = (rng.exponential(size=eta.size) * np.exp(-eta)) ** (1 / 1.5)
    censor = rng.exponential(2.0, eta.size)
    return {"t": np.minimum(time, censor), "seen": (time <= censor).astype(int)}


def log_weibull(theta, eta, data):
    k, t, seen = float(theta["shape"]), column(data, "t"), column(data, "seen")
    law = scipy.stats.weibull_min(k, scale=np.exp(-eta / k))
    return np.where(seen > 0, law.logpdf(t), law.logsf(t))


def log_ordinal(distribution):
    def of(theta, eta, data):
        ends = np.concatenate([[-np.inf], np.asarray(theta["thresholds"], float), [np.inf]])
        y = column(data, "y").astype(int)
        return np.log(distribution(ends[y] - eta) - distribution(ends[y - 1] - eta))

    return of


def log_zero_inflated(theta, eta, data):
    odds = np.asarray(theta["zero"], float)
    pi = scipy.special.expit(odds[0] + odds[1] * column(data, "x"))
    law, y = scipy.stats.poisson(np.exp(eta)), column(data, "y")
    return np.where(y == 0, np.log(pi + (1 - pi) * law.pmf(0)), np.log1p(-pi) + law.logpmf(y))


def log_hurdle(theta, eta, data):
    pi, y = scipy.special.expit(float(theta["zero"][0])), column(data, "y")
    k = float(theta["shape"])
    inner = scipy.stats.gamma.logpdf(np.where(y > 0, y, 1), k, scale=np.exp(eta) / k)
    return np.where(y == 0, np.log(pi), np.log1p(-pi) + inner)


def log_heteroscedastic(theta, eta, data):
    gamma = np.asarray(theta["dispersion"], float)
    return NORMAL.logpdf(column(data, "y"), eta, np.exp(gamma[0] + gamma[1] * column(data, "x")))


def log_conway(theta, eta, data):
    """By sums over all counts, at points of eta between which it is smooth."""
    scale, k = float(theta["scale"]), np.arange(400)
    points, log_factorial = np.linspace(eta.min(), eta.max(), 400), scipy.special.gammaln(k + 1)

    def at(location):
        terms = (k * location[:, None] - log_factorial) / scale
        total = scipy.special.logsumexp(terms, axis=1)
        return total, np.exp(terms - total[:, None])

    location = points * scale if scale > 1 else points
    for _ in range(60):
        _, p = at(location)
        mean = p @ k
        variance = p @ k**2 - mean**2
        location = location + scale * mean / variance * (points - np.log(mean))
    assert np.allclose(at(location)[1] @ k, np.exp(points), rtol=1e-10)
    of = scipy.interpolate.CubicSpline(points, np.stack([location, at(location)[0]], axis=1))(eta)
    y = column(data, "y")
    return (y * of[..., 0] - scipy.special.gammaln(y + 1)) / scale - of[..., 1]


def log_tweedie(theta, eta, data):
    """By the law of each number of amounts; their series does not know the mean."""
    p, phi, y = float(theta["power"]), float(theta["scale"]), column(data, "y")
    shape, unit = (2 - p) / (p - 1), phi * (p - 1) * np.exp((p - 1) * eta)
    rate, positive = np.exp((2 - p) * eta) / (phi * (2 - p)), np.where(y > 0, y, 1.0)
    j = np.arange(1, 120)
    log_z = shape * np.log(positive / (phi * (p - 1))) - np.log(phi * (2 - p))
    terms = j * log_z - scipy.special.gammaln(j + 1) - scipy.special.gammaln(j * shape)
    series = scipy.special.logsumexp(terms, axis=1, keepdims=True) - np.log(positive)
    return np.where(y > 0, series - positive / unit, 0.0) - rate


def conway_draws(rng, eta, x):
    """Counts that vary less than Poisson's, by their distribution function."""
    k, locations = np.arange(200), np.exp(eta)[:, None] + 0.25
    terms = (k * np.log(locations) - scipy.special.gammaln(k + 1)) / 0.5
    below = np.cumsum(scipy.special.softmax(terms, axis=1), axis=1)
    return {"y": np.sum(rng.random((eta.size, 1)) > below, axis=1)}


def tweedie_draws(rng, eta, x):
    count = rng.poisson(np.exp(0.5 * eta) / (0.8 * 0.5))
    return {
        "y": np.where(count > 0, rng.gamma(np.maximum(count, 1) * 1.0), 0.0)
        * 0.8
        * 0.5
        * np.exp(0.5 * eta)
    }


def ordered(rng, eta, x):
    cut = eta + rng.logistic(size=eta.size)
    return {"y": 1 + (cut > -0.5) + (cut > 0.8) + (cut > 2.0)}


def inflated(rng, eta, x):
    away = rng.random(eta.size) < scipy.special.expit(-1 + 0.5 * x)
    return {"y": np.where(away, 0, rng.poisson(np.exp(eta)))}


def hurdle(rng, eta, x):
    return {"y": np.where(rng.random(eta.size) < 0.3, 0, rng.gamma(2.0, np.exp(eta) / 2.0))}


# formula, what `jalax.mixed` is given besides, data, log p of the rows
CASES = {
    "gamma": (
        "y ~ x + (1|g)",
        {"family": "Gamma"},
        lambda rng, eta, x: {"y": rng.gamma(2.0, np.exp(eta) / 2.0)},
        lambda t, eta, d: scipy.stats.gamma.logpdf(
            column(d, "y"), float(t["shape"]), scale=np.exp(eta) / float(t["shape"])
        ),
    ),
    "inversegaussian": (
        "y ~ x + (1|g)",
        {"family": "inverse.gaussian"},
        lambda rng, eta, x: {"y": rng.wald(np.exp(eta), 3.0)},
        lambda t, eta, d: scipy.stats.invgauss.logpdf(
            column(d, "y"), np.exp(eta) / float(t["shape"]), scale=float(t["shape"])
        ),
    ),
    "lognormal": (
        "y ~ x + (1|g)",
        {"family": "lognormal"},
        lambda rng, eta, x: {"y": np.exp(eta + 0.5 * rng.standard_normal(eta.size))},
        lambda t, eta, d: scipy.stats.lognorm.logpdf(
            column(d, "y"), float(t["sigma"]), scale=np.exp(eta)
        ),
    ),
    "student": (
        "y ~ x + (1|g)",
        {"family": families.StudentT(df=4.0)},
        lambda rng, eta, x: {"y": eta + 0.5 * rng.standard_t(4, eta.size)},
        lambda t, eta, d: scipy.stats.t.logpdf(column(d, "y"), 4.0, eta, float(t["sigma"])),
    ),
    "beta": (
        "y ~ x + (1|g)",
        {"family": "beta"},
        lambda rng, eta, x: {
            "y": rng.beta(5 * scipy.special.expit(eta), 5 * scipy.special.expit(-eta))
        },
        lambda t, eta, d: scipy.stats.beta.logpdf(
            column(d, "y"),
            float(t["precision"]) * scipy.special.expit(eta),
            float(t["precision"]) * scipy.special.expit(-eta),
        ),
    ),
    "betabinomial": (
        "cbind(y, left) ~ x + (1|g)",
        {"family": "betabinomial"},
        lambda rng, eta, x: dict(
            zip(
                ("y", "left"),
                (
                    y := rng.binomial(
                        9, rng.beta(4 * scipy.special.expit(eta), 4 * scipy.special.expit(-eta))
                    ),
                    9 - y,
                ),
                strict=True,
            )
        ),
        lambda t, eta, d: scipy.stats.betabinom.logpmf(
            column(d, "y"),
            9,
            float(t["precision"]) * scipy.special.expit(eta),
            float(t["precision"]) * scipy.special.expit(-eta),
        ),
    ),
    "probit": (
        "y ~ x + (1|g)",
        {"family": families.Binomial(link=families.Probit())},
        lambda rng, eta, x: {"y": (eta + rng.standard_normal(eta.size) > 0).astype(int)},
        lambda t, eta, d: NORMAL.logcdf(np.where(column(d, "y") > 0, eta, -eta)),
    ),
    "cloglog": (
        "y ~ x + (1|g)",
        {"family": families.Binomial(link="cloglog")},
        lambda rng, eta, x: {"y": (rng.exponential(size=eta.size) < np.exp(eta)).astype(int)},
        lambda t, eta, d: np.where(
            column(d, "y") > 0, np.log(-np.expm1(-np.exp(eta))), -np.exp(eta)
        ),
    ),
    "nbinom1": (
        "y ~ x + (1|g)",
        {"family": "nbinom1"},
        lambda rng, eta, x: {"y": rng.negative_binomial(np.exp(eta) / 0.8, 1 / 1.8)},
        lambda t, eta, d: scipy.stats.nbinom.logpmf(
            column(d, "y"), np.exp(eta) / float(t["excess"]), 1 / (1 + float(t["excess"]))
        ),
    ),
    "compois": ("y ~ x + (1|g)", {"family": "compois"}, conway_draws, log_conway),
    "tweedie": ("y ~ x + (1|g)", {"family": "tweedie"}, tweedie_draws, log_tweedie),
    "truncated": (
        "y ~ x + (1|g)",
        {"family": "truncated_poisson"},
        lambda rng, eta, x: {"y": scipy.stats.poisson.ppf(_above_zero(rng, eta), np.exp(eta))},
        lambda t, eta, d: (
            scipy.stats.poisson.logpmf(column(d, "y"), np.exp(eta))
            - np.log(-np.expm1(-np.exp(eta)))
        ),
    ),
    "ordinal": (
        "y ~ x + (1|g)",
        {"family": "ordinal"},
        ordered,
        log_ordinal(scipy.special.expit),
    ),
    "ordinal probit": (
        "y ~ x + (1|g)",
        {"family": families.Ordinal(link="probit")},
        ordered,
        log_ordinal(NORMAL.cdf),
    ),
    "weibull": ("Surv(t, seen) ~ x + (1|g)", {"family": "weibull"}, weibull, log_weibull),
    "zero": (
        "y ~ x + (1|g)",
        {"family": "poisson", "zero": "~ x"},
        inflated,
        log_zero_inflated,
    ),
    "hurdle": ("y ~ x + (1|g)", {"family": "gamma", "zero": "~ 1"}, hurdle, log_hurdle),
    "dispersion": (
        "y ~ x + (1|g)",
        {"dispersion": "~ x"},
        lambda rng, eta, x: {"y": eta + np.exp(-0.5 + 0.4 * x) * rng.standard_normal(eta.size)},
        log_heteroscedastic,
    ),
    "weights": (
        "y ~ x + (1|g)",
        {"family": "poisson", "weights": "w"},
        lambda rng, eta, x: {"y": rng.poisson(np.exp(eta)), "w": rng.integers(1, 4, eta.size)},
        lambda t, eta, d: column(d, "w") * scipy.stats.poisson.logpmf(column(d, "y"), np.exp(eta)),
    ),
}


def _above_zero(rng, eta):
    """A uniform number in the part of the distribution function above zero."""
    none = np.exp(-np.exp(eta))
    return none + (1 - none) * rng.random(eta.size)


def gradient(theta, data, log_rows, errors):
    """Of the quadrature at theta, in units of the standard errors."""
    flat = np.asarray(ravel_pytree(theta)[0], float)
    found = []
    for i, error in enumerate(errors):
        step = np.zeros(flat.size)
        step[i] = 0.02 * error
        ends = [quadrature(_float64(theta, flat + s), data, log_rows) for s in (step, -step)]
        found.append((ends[0] - ends[1]) / 0.04)
    return np.array(found)


def _float64(theta, flat):
    leaves, tree = jax.tree.flatten(theta)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    pieces = zip(np.split(flat, ends), leaves, strict=True)
    return tree.unflatten([piece.reshape(np.shape(leaf)) for piece, leaf in pieces])


FAST = ("hurdle", "weibull")  # the ordinal ones are in test_ordinal.py


@pytest.mark.parametrize(
    "case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_a_fit_is_at_the_maximum_by_quadrature(case):
    """log p within 4.5 errors of quadrature, and a score of less than 0.02 standard errors."""
    formula, options, draw, log_rows = CASES[case]
    data = frame(draw)
    result = jalax.mixed(formula, data, key=jax.random.key(0), **options)
    assert str(result.status) == "converged"
    exact = quadrature(result.theta, data, log_rows)
    assert abs(result.evidence.value - exact) < 4.5 * result.evidence.error
    errors = np.sqrt(np.diagonal(result.vcov()))
    covariance = np.asarray(result.vcov(), float)
    score = gradient(result.theta, data, log_rows, errors) / errors
    step = covariance @ score
    assert np.all(np.abs(step / errors) < 0.02)
    summary = str(result.summary())
    assert "converged" in summary
    assert len(result.names) == len(errors)


@pytest.mark.slow
def test_a_constant_formula_for_the_scale_of_compois_is_the_scale():
    """By sums of each row, and by the curves that all rows share."""
    data = frame(CASES["compois"][2])
    data = data[data["g"] < 15]
    rows, shared = (
        jalax.mixed("y ~ x + (1|g)", data, family="compois", key=jax.random.key(0), **options)
        for options in ({"dispersion": "~ 1"}, {})
    )
    scale = np.exp(float(rows.theta["dispersion"][0]))
    assert abs(scale / float(shared.theta["scale"]) - 1) < 1e-4
    np.testing.assert_allclose(rows.theta["beta"], shared.theta["beta"], atol=1e-4)
    error = rows.evidence.error + shared.evidence.error
    assert abs(rows.log_evidence - shared.log_evidence) < 4.5 * error
