"""Families as responses: densities, moments and draws against scipy's distributions."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from jalax import families
from jalax.families._catalogue import ABSENT, NAMES, OTHERS, read, written
from jalax.families._family import HOST, JAX
from jalax.families._links import LINKS
from jalax.families._zeros import LOG_ODDS, WithZeros

ETA = np.array([-1.2, 0.1, 0.7, 1.9])
SIZE = np.array([1.0, 5.0, 12.0, 40.0])
KAPPA = np.array([-1.0, 0.2, 1.5])
MEAN, SHARE = np.exp(ETA), scipy.special.expit(ETA)
NORMAL, LOG = scipy.stats.norm, families.Log()


class Categories(scipy.stats.rv_discrete):
    """1..4 of a cumulative model."""

    def __init__(self, below):
        self.p = np.diff(np.concatenate([np.zeros((1, 4)), below, np.ones((1, 4))]), axis=0)

    def logpdf(self, y):
        return np.log(self.p[np.asarray(y, int) - 1, np.arange(4)])

    def cdf(self, y):
        return np.array([self.p[: int(k), i].sum() for i, k in enumerate(y)])


class Generalized:
    """Consul and Jain's law, its probabilities added up."""

    def __init__(self, mean, scale):
        k = np.arange(2000)[:, None]
        root = np.sqrt(scale)
        first, share = mean / root, 1 - 1 / root
        rate = first + share * k
        log_p = np.log(first) + (k - 1) * np.log(rate) - rate - scipy.special.gammaln(k + 1)
        self.p, self.k = np.exp(log_p), k

    def logpdf(self, y):
        return np.log(self.p[np.asarray(y, int), np.arange(4)])

    def cdf(self, y):
        return np.array([self.p[: int(v) + 1, i].sum() for i, v in enumerate(y)])

    def mean(self):
        return np.sum(self.k * self.p, axis=0)

    def var(self):
        return np.sum((self.k - self.mean()) ** 2 * self.p, axis=0)


class Conway:
    """Conway and Maxwell's law with that mean, its probabilities added up."""

    def __init__(self, mean, scale):
        k = np.arange(1000)[:, None]

        def log_p(location):
            terms = (k * location - scipy.special.gammaln(k + 1)) / scale
            return terms - scipy.special.logsumexp(terms, axis=0)

        def above(location, i):
            return np.sum(k[:, 0] * np.exp(log_p(location)[:, 0])) - mean[i]

        find = [scipy.optimize.brentq(above, -9, 9, (i,), 1e-14, 1e-14) for i in range(4)]
        self.log_p, self.k = log_p(np.array(find)), k

    def logpmf(self, y):
        return self.log_p[np.asarray(y, int), np.arange(4)]

    def pmf(self, y):
        return np.exp(self.logpmf(np.full(4, y)))

    def cdf(self, y):
        return np.array([np.exp(self.log_p[: int(v) + 1, i]).sum() for i, v in enumerate(y)])

    def mean(self):
        return np.sum(self.k * np.exp(self.log_p), axis=0)

    def var(self):
        return np.sum((self.k - self.mean()) ** 2 * np.exp(self.log_p), axis=0)


class Tweedie:
    """A Poisson number of Gamma amounts: the law of each number, added up."""

    def __init__(self, mean, power, scale):
        self.rate = mean ** (2 - power) / (scale * (2 - power))
        self.j = np.arange(1, 400)[:, None]
        unit = scale * (power - 1) * mean ** (power - 1)
        self.amount = scipy.stats.gamma(self.j * (2 - power) / (power - 1), scale=unit)

    def logpdf(self, y):
        log_p = scipy.stats.poisson.logpmf(self.j, self.rate) + self.amount.logpdf(y)
        return np.where(y > 0, scipy.special.logsumexp(log_p, axis=0), -self.rate)

    def pmf(self, y):
        return np.exp(-self.rate)

    def cdf(self, y):
        sums = np.sum(scipy.stats.poisson.pmf(self.j, self.rate) * self.amount.cdf(y), axis=0)
        return np.where(y < 0, 0.0, np.exp(-self.rate) + sums)

    def mean(self):
        return np.sum(scipy.stats.poisson.pmf(self.j, self.rate) * self.amount.mean(), axis=0)

    def var(self):
        square = self.amount.var() + self.amount.mean() ** 2
        return np.sum(scipy.stats.poisson.pmf(self.j, self.rate) * square, axis=0) - MEAN**2


class Positive:
    """A count that is not zero."""

    def __init__(self, law):
        self.law, self.rest = law, 1 - law.pmf(0)

    def logpdf(self, y):
        return self.law.logpmf(y) - np.log(self.rest)

    def cdf(self, y):
        return (self.law.cdf(y) - self.law.pmf(0)) / self.rest

    def mean(self):
        return self.law.mean() / self.rest

    def var(self):
        return (self.law.var() + self.law.mean() ** 2) / self.rest - self.mean() ** 2


def negative_binomial(k):
    return scipy.stats.nbinom(k, k / (k + MEAN))


COUNTS, AMOUNTS = np.array([1.0, 0.0, 3.0, 7.0]), np.array([0.3, 1.2, 3.1, 0.8])
SHARES, MANY = np.array([0.2, 0.5, 0.9, 0.97]), np.array([1.0, 2.0, 3.0, 7.0])
# family, own parameters, trials, responses, scipy's law of the count or the measurement
CASES = {
    "gaussian": (families.Gaussian(), {"sigma": 1.7}, None, AMOUNTS, NORMAL(ETA, 1.7)),
    "gaussian, log": (families.Gaussian(LOG), {"sigma": 1.7}, None, AMOUNTS, NORMAL(MEAN, 1.7)),
    "student": (
        families.StudentT(),
        {"sigma": 0.7, "df": 4.5},
        None,
        AMOUNTS,
        scipy.stats.t(4.5, ETA, 0.7),
    ),
    "student, df given": (
        families.StudentT(df=5.0),
        {"sigma": 0.7},
        None,
        AMOUNTS,
        scipy.stats.t(5, ETA, 0.7),
    ),
    "lognormal": (
        families.LogNormal(),
        {"sigma": 0.4},
        None,
        AMOUNTS,
        scipy.stats.lognorm(0.4, scale=MEAN),
    ),
    "gamma": (
        families.Gamma(),
        {"shape": 2.3},
        None,
        AMOUNTS,
        scipy.stats.gamma(2.3, scale=MEAN / 2.3),
    ),
    "inversegaussian": (
        families.InverseGaussian(),
        {"shape": 2.3},
        None,
        AMOUNTS,
        scipy.stats.invgauss(MEAN / 2.3, scale=2.3),
    ),
    "beta": (
        families.Beta(),
        {"precision": 3.1},
        None,
        SHARES,
        scipy.stats.beta(3.1 * SHARE, 3.1 * (1 - SHARE)),
    ),
    "beta, probit": (
        families.Beta(families.Probit()),
        {"precision": 3.1},
        None,
        SHARES,
        scipy.stats.beta(3.1 * NORMAL.cdf(ETA), 3.1 * NORMAL.sf(ETA)),
    ),
    "binomial": (families.Binomial(), {}, SIZE, COUNTS, scipy.stats.binom(SIZE, SHARE)),
    "binomial, probit": (
        families.Binomial("probit"),
        {},
        SIZE,
        COUNTS,
        scipy.stats.binom(SIZE, NORMAL.cdf(ETA)),
    ),
    "binomial, cloglog": (
        families.Binomial("cloglog"),
        {},
        SIZE,
        COUNTS,
        scipy.stats.binom(SIZE, -np.expm1(-MEAN)),
    ),
    "binomial, cauchit": (
        families.Binomial("cauchit"),
        {},
        SIZE,
        COUNTS,
        scipy.stats.binom(SIZE, scipy.stats.cauchy.cdf(ETA)),
    ),
    "bernoulli": (
        families.Bernoulli(),
        {},
        None,
        np.array([0.0, 1.0, 1.0, 0.0]),
        scipy.stats.binom(1, SHARE),
    ),
    "betabinomial": (
        families.BetaBinomial(),
        {"precision": 2.2},
        SIZE,
        COUNTS,
        scipy.stats.betabinom(SIZE, 2.2 * SHARE, 2.2 * (1 - SHARE)),
    ),
    "poisson": (families.Poisson(), {}, None, COUNTS, scipy.stats.poisson(MEAN)),
    "poisson, sqrt": (families.Poisson("sqrt"), {}, None, COUNTS, scipy.stats.poisson(ETA**2)),
    "negativebinomial": (
        families.NegativeBinomial(),
        {"shape": 2.3},
        None,
        COUNTS,
        negative_binomial(2.3),
    ),
    "negativebinomial1": (
        families.NegativeBinomial1(),
        {"excess": 0.8},
        None,
        COUNTS,
        scipy.stats.nbinom(MEAN / 0.8, 1 / 1.8),
    ),
    "generalizedpoisson": (
        families.GeneralizedPoisson(),
        {"scale": 2.0},
        None,
        COUNTS,
        Generalized(MEAN, 2.0),
    ),
    "truncated poisson": (
        families.Truncated(families.Poisson()),
        {},
        None,
        MANY,
        Positive(scipy.stats.poisson(MEAN)),
    ),
    "truncated negativebinomial": (
        families.Truncated(families.NegativeBinomial()),
        {"shape": 2.3},
        None,
        MANY,
        Positive(negative_binomial(2.3)),
    ),
    "conwaymaxwellpoisson": (
        families.ConwayMaxwellPoisson(),
        {"scale": 0.6},
        None,
        COUNTS,
        Conway(MEAN, 0.6),
    ),
    "conwaymaxwellpoisson, overdispersed": (
        families.ConwayMaxwellPoisson(),
        {"scale": 2.5},
        None,
        COUNTS,
        Conway(MEAN, 2.5),
    ),
    "truncated conwaymaxwellpoisson": (
        families.Truncated(families.ConwayMaxwellPoisson()),
        {"scale": 1.4},
        None,
        MANY,
        Positive(Conway(MEAN, 1.4)),
    ),
    "tweedie": (
        families.Tweedie(),
        {"power": 1.6, "scale": 0.8},
        None,
        np.array([0.0, 1.2, 3.1, 0.8]),
        Tweedie(MEAN, 1.6, 0.8),
    ),
    "ordinal": (
        families.Ordinal(),
        {"thresholds": KAPPA},
        None,
        np.array([1.0, 2.0, 3.0, 4.0]),
        Categories(scipy.special.expit(KAPPA[:, None] - ETA)),
    ),
    "ordinal, probit": (
        families.Ordinal("probit"),
        {"thresholds": KAPPA},
        None,
        np.array([4.0, 3.0, 2.0, 1.0]),
        Categories(NORMAL.cdf(KAPPA[:, None] - ETA)),
    ),
    "ordinal, cloglog": (
        families.Ordinal("cloglog"),
        {"thresholds": KAPPA},
        None,
        np.array([3.0, 3.0, 2.0, 4.0]),
        Categories(-np.expm1(-np.exp(KAPPA[:, None] - ETA))),
    ),
    "ordinal, cauchit": (
        families.Ordinal("cauchit"),
        {"thresholds": KAPPA},
        None,
        np.array([2.0, 3.0, 2.0, 3.0]),
        Categories(scipy.stats.cauchy.cdf(KAPPA[:, None] - ETA)),
    ),
    "exponential": (families.Exponential(), {}, None, AMOUNTS, scipy.stats.expon(scale=1 / MEAN)),
    "weibull": (
        families.Weibull(),
        {"shape": 1.6},
        None,
        AMOUNTS,
        scipy.stats.weibull_min(1.6, scale=np.exp(-ETA / 1.6)),
    ),
    "lognormaltime": (
        families.LogNormalTime(),
        {"sigma": 0.6},
        None,
        AMOUNTS,
        scipy.stats.lognorm(0.6, scale=MEAN),
    ),
}


def test_every_family_has_a_row():
    shown = {family.name for family, *_ in CASES.values()}
    assert shown | {"multinomial"} == set(NAMES)  # that one is in test_multinomial.py


def data_of(family, y, size, xp=HOST):
    data = {"y": y, "event": np.ones(4)} | ({} if size is None else {"size": size})
    return data | family.constants(y, size, xp)


def log_density(family, own, eta, y, size, dtype):
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), data_of(family, y, size))
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), own)
    return jax.jit(family.log_density)(own, jnp.asarray(eta, dtype), data)


def law(case):
    family, own, size, y, known = CASES[case]
    log_p = known.logpdf if hasattr(known, "logpdf") else known.logpmf
    return family, own, size, y, known, log_p(y)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_cases("truncated conwaymaxwellpoisson")
def test_the_density_is_scipys(case):
    family, own, size, y, _, exact = law(case)
    with jax.enable_x64(True):
        found = np.asarray(log_density(family, own, ETA, y, size, jnp.float64))
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)
    found = np.asarray(log_density(family, own, ETA, y, size, jnp.float32))
    np.testing.assert_allclose(found, exact, rtol=3e-6, atol=3e-6)


@pytest.mark.slow_cases("truncated conwaymaxwellpoisson", "conwaymaxwellpoisson, overdispersed")
@pytest.mark.parametrize("case", CASES)
def test_padding_has_no_part_in_a_gradient(case):
    """There all data are 0 and eta is: what is masked must not become NaN on the way back."""
    family, own, size, y, *_ = law(case)
    data = jax.tree.map(lambda x: jnp.zeros(4), data_of(family, y, size))
    own = jax.tree.map(jnp.asarray, own)

    def total(own, eta):
        rows = family.log_density(own, eta, data)
        return jnp.sum(jnp.where(jnp.zeros(4, bool), rows, 0.0))

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(own, jnp.zeros(4))
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("case", CASES)
def test_moments_and_the_distribution_function_are_scipys(case):
    family, own, size, y, known, _ = law(case)
    trials = 1.0 if size is None else size
    np.testing.assert_allclose(family.cdf(y, ETA, own, size), known.cdf(y), rtol=1e-9, atol=1e-14)
    lower, upper = family.jump(y, ETA, own, size)
    np.testing.assert_array_equal(upper, family.cdf(y, ETA, own, size))
    if family.is_discrete:
        np.testing.assert_allclose(lower, known.cdf(y - 1), rtol=1e-9, atol=1e-14)
        assert np.all(family.cdf(np.full(4, -1.0), ETA, own, size) == 0)
    if not family.has_mean:
        return
    mean = family.mean(ETA, own)
    np.testing.assert_allclose(mean, known.mean() / trials, rtol=1e-9)
    step = 1e-5
    slope = (family.mean(ETA + step, own) - family.mean(ETA - step, own)) / (2 * step)
    np.testing.assert_allclose(family.slope(ETA, own), slope, rtol=1e-7)
    if type(family).variance is not families.Family.variance:
        found = family.variance(mean, own, size)
        np.testing.assert_allclose(found, known.var() / trials**2, rtol=1e-9)
    else:
        with pytest.raises(ValueError, match="Quantile"):
            family.variance(mean, own, size)


# Of the others a link is all that is another, or the law is drawn by an own line of JAX's.
DRAWN = ("betabinomial", "generalizedpoisson", "inversegaussian", "ordinal")
DRAWN += (
    "conwaymaxwellpoisson",
    "tweedie",
    "negativebinomial1",
    "weibull",
    "lognormaltime",
    "binomial",
    "negativebinomial",
)


@pytest.mark.parametrize(
    "case", [c if c in DRAWN else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_draws_have_the_distribution(case):
    """5,000 draws of four rows: a distance that a right program has once in 100,000 families."""
    family, own, size, y, known, _ = law(case)
    data = jax.tree.map(jnp.asarray, data_of(family, y, size))
    own = jax.tree.map(jnp.asarray, own)
    keys = jax.random.split(jax.random.key(0), 5_000)
    drawn = jax.jit(jax.vmap(lambda key: family.draw(key, own, jnp.asarray(ETA), data)))(keys)
    drawn = np.asarray(drawn, float)
    far = np.sqrt(-np.log(1e-6 / 2) / (2 * len(drawn)))  # Dvoretzky, Kiefer and Wolfowitz
    for quantile in (0.05, 0.3, 0.6, 0.9):
        at = np.quantile(drawn, quantile, axis=0)
        assert np.all(np.abs(np.mean(drawn <= at, axis=0) - known.cdf(at)) < far)
    assert not family.is_discrete or np.array_equal(drawn, np.round(drawn))


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "negativebinomial", "gamma"])
def test_the_deviance_is_twice_the_distance_to_the_saturated_model(name):
    family, own, size, y, *_ = CASES[name]
    mean = family.mean(ETA, own)
    best = family.observed(y, size)
    if name != "gaussian":  # whose link takes any mean
        best = np.clip(best, 1e-12, None if size is None else 1 - 1e-12)
    with jax.enable_x64(True):
        saturated = log_density(family, own, family.link.of(best), y, size, jnp.float64)
        apart = 2 * np.asarray(saturated - log_density(family, own, ETA, y, size, jnp.float64))
    factor = own["sigma"] ** 2 if name == "gaussian" else 1 / own["shape"] if name == "gamma" else 1
    found = family.deviance(y, mean, own, size)
    np.testing.assert_allclose(found, apart * factor, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["probit", "cloglog", "logit", "cauchit"])
def test_no_digits_are_lost_far_out_in_float32(name):
    """Against the same in float64 by scipy, where a probability is as small as 1e-30."""
    link = LINKS[name]
    eta = np.array([-60.0, -12.0, -5.0, -0.5, 0.5, 2.0, 3.5])
    exact = {
        "probit": lambda z: scipy.special.log_ndtr(z),
        "logit": lambda z: scipy.special.log_expit(z),
        "cloglog": lambda z: np.where(z < -20, z, np.log(-np.expm1(-np.exp(z)))),
        "cauchit": lambda z: np.log(np.arctan2(1, -z) / np.pi),
    }[name]
    log_below, log_between = jax.jit(link.log_below), jax.jit(link.log_between)
    found = np.asarray(log_below(jnp.asarray(eta, jnp.float32)), float)
    np.testing.assert_allclose(found, exact(eta), rtol=2e-6, atol=1e-7)  # a sum of them counts
    slopes = jax.jit(jax.vmap(jax.grad(link.log_below)))
    slope = np.asarray(slopes(jnp.asarray(eta, jnp.float32)), float)
    step = 1e-4
    np.testing.assert_allclose(
        slope, (exact(eta + step) - exact(eta - step)) / (2 * step), rtol=1e-4, atol=1e-11
    )
    # Categories between two thresholds that are close, on either side of zero.
    low = np.array([-7.0, -3.0, 0.3, 2.5])
    for gap in (1e-3, 0.5, 4.0):
        with jax.enable_x64(True):
            wide = np.asarray(log_between(jnp.asarray(low), jnp.asarray(low + gap)))
        below = link.mean(low + gap) - link.mean(low)
        np.testing.assert_allclose(wide, np.log(below), rtol=1e-7)
        high = jnp.asarray(low, jnp.float32) + jnp.float32(gap)
        narrow = np.asarray(log_between(jnp.asarray(low, jnp.float32), high))
        np.testing.assert_allclose(narrow, wide, rtol=1e-3 if gap < 0.1 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_and_its_inverse(name):
    link, eta = LINKS[name], np.array([0.2, 0.7, 1.4])
    np.testing.assert_allclose(link.of(link.mean(eta)), eta, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(link.inverse)(jnp.asarray(eta)), link.mean(eta), rtol=1e-6)
    slope = (link.mean(eta + 1e-6) - link.mean(eta - 1e-6)) / 2e-6
    np.testing.assert_allclose(link.slope(eta), slope, rtol=1e-8)


@pytest.mark.parametrize(
    "base",
    [
        *("poisson", "gamma", "tweedie"),
        pytest.param("truncated poisson", marks=pytest.mark.slow),
        pytest.param("conwaymaxwellpoisson", marks=pytest.mark.slow),
    ],
)
def test_zeros_of_their_own(base):
    """Inflated where the family has zeros, a hurdle where it has none."""
    family, own, _, _, known = CASES[base]
    both = WithZeros(family)
    odds = np.array([-0.4, 0.3, 1.0, -2.0])
    pi = scipy.special.expit(odds)
    own = own | {LOG_ODDS: odds}
    y = np.array([0.0, 2.0, 0.0, 3.0])
    inner = known.logpdf if hasattr(known, "logpdf") else known.logpmf
    with np.errstate(all="ignore"):
        positive = np.log1p(-pi) + inner(np.where(y > 0, y, 1.0))
    zero = pi + (1 - pi) * (known.pmf(0) if family.has_zero else 0.0)
    with jax.enable_x64(True):
        found = log_density(both, own, ETA, y, None, jnp.float64)
        constants = both.constants(jnp.asarray(y), None, JAX)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(constants))
    np.testing.assert_allclose(found, np.where(y == 0, np.log(zero), positive), rtol=1e-12)
    np.testing.assert_allclose(both.mean(ETA, own), (1 - pi) * known.mean(), rtol=1e-9)
    lower, upper = both.jump(y, ETA, own, None)
    cdf = np.where(y > 0, known.cdf(np.maximum(y, 1)), known.pmf(0) if family.has_zero else 0)
    np.testing.assert_allclose(upper, pi + (1 - pi) * cdf, rtol=1e-9)
    np.testing.assert_array_equal(lower[y == 0], 0)
    keys = jax.random.split(jax.random.key(1), 4_000)
    inner_own = {name: jnp.asarray(value) for name, value in own.items()}
    drawn = jax.jit(jax.vmap(lambda key: both.draw(key, inner_own, jnp.asarray(ETA), {})))(keys)
    far = np.sqrt(-np.log(1e-6 / 2) / (2 * len(keys)))
    assert np.all(np.abs(np.mean(np.asarray(drawn) == 0, axis=0) - zero) < far)


def test_censored_times_are_survival():
    """log p(T > t), by scipy."""
    for name in ("exponential", "weibull", "lognormaltime"):
        family, own, _, y, known = CASES[name]
        data = {"y": y, "event": np.zeros(4)} | family.constants(y, None, HOST)
        with jax.enable_x64(True):
            data = jax.tree.map(jnp.asarray, data)
            found = family.log_density(jax.tree.map(jnp.asarray, own), jnp.asarray(ETA), data)
        np.testing.assert_allclose(found, known.logsf(y), rtol=1e-10)


def test_names_of_other_packages_and_of_files():
    for name, family in NAMES.items():
        assert families.find(name.upper()) == family
        assert read(json.loads(json.dumps(written(family)))) == family
    for name, ours in OTHERS.items():
        assert families.find(name) == NAMES[ours]
    probit = families.Binomial(link=families.Probit())
    assert read(written(probit)) == probit != families.Binomial()
    heavy = families.StudentT(df=4.0)
    assert read(written(heavy)) == heavy != families.StudentT()
    for name in ABSENT:
        with pytest.raises(ValueError, match=f"no family '{name}'"):
            families.find(name)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: families.Gamma(link="inverse"), r"use jalax.families.Log\(\)"),
        (lambda: families.Binomial(link=families.Log()), r"Logit\(\).*Probit\(\)"),
        (lambda: families.StudentT(df=-1), "must be positive"),
        (lambda: families.Truncated(families.Binomial()), "is for families.Poisson"),
        (lambda: families.find(families.Poisson), r"Poisson\(\), not Poisson"),
        (lambda: families.find(3), "must be a name"),
        (lambda: families.find("nonsense"), "must be one of gaussian"),
    ],
)
def test_what_is_refused(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        make()
