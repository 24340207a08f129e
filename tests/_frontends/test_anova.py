"""Likelihood ratio tests of nested mixed models, against lme4's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jalax
from jalax._frontends.anova import _tail, simulated_ratios

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()
SLEEP = jalax.datasets.sleepstudy().to_frame()


def mixed(formula, data=SLEEP, **options):
    return jalax.mixed(formula, data, key=KEY, progress=QUIET, **options)


@pytest.fixture(scope="module")
def level():
    return mixed("reaction ~ 1 + (1|subject)")


@pytest.fixture(scope="module")
def intercept():
    return mixed("reaction ~ days + (1|subject)")


@pytest.fixture(scope="module")
def slope():
    return mixed("reaction ~ days + (days|subject)")


def test_a_fixed_effect(level, intercept):
    """anova(lmer(Reaction ~ 1 + (1|Subject)), lmer(Reaction ~ Days + (1|Subject))), by ML."""
    table = jalax.anova(intercept, level)  # put in order
    small, large = table.rows
    assert (small.num_parameters, large.num_parameters) == (3, 4)
    for row, log_lik, aic, bic in (
        (small, -955.27, 1916.5, 1926.1),
        (large, -897.04, 1802.1, 1814.8),
    ):
        assert row.log_likelihood == pytest.approx(log_lik, abs=0.01)
        assert row.aic == pytest.approx(aic, abs=0.1)
        assert row.bic == pytest.approx(bic, abs=0.1)
    assert large.ratio == pytest.approx(116.46, abs=0.01)
    assert large.degrees_of_freedom == (1,)
    assert large.p_value == pytest.approx(stats.chi2.sf(large.ratio, 1))
    assert "chi-square 1" in table.notes[0]
    assert "< 2.2e-16" in str(table)


def test_a_slope_with_few_groups_asks_for_a_bootstrap(intercept, slope):
    """18 subjects; lme4 prints 42.139 on 2 degrees of freedom."""
    row = jalax.anova(intercept, slope).rows[1]
    assert row.ratio == pytest.approx(42.139, abs=0.01)
    assert np.isnan(row.p_value)
    assert "with 18 groups: pass key=" in row.method


@pytest.mark.slow
def test_and_with_a_key_it_simulates(intercept, slope):
    row = jalax.anova(intercept, slope, key=jax.random.key(1), num_simulated=40).rows[1]
    assert row.p_value == pytest.approx(1 / 41)  # none of forty is as far out
    assert "parametric bootstrap, 40 data sets" in row.method
    ratios = simulated_ratios(intercept, slope, jax.random.key(2), 100)
    # Half chi-square 1, half 2: its mean is 1.5, its variance 3.25 (2 x 1.5 + 0.25)
    assert ratios.min() > -0.01
    assert ratios.mean() == pytest.approx(1.5, abs=4.5 * np.sqrt(3.25 / 100))


def many_groups():
    """40 regions of two towns of three counts, with a covariate."""
    rng = np.random.default_rng(0)
    region = np.repeat(np.arange(40), 6)
    town = np.repeat(np.arange(80), 3)
    x = rng.normal(size=240)
    eta = 1.0 + 0.5 * rng.normal(size=40)[region] + 0.3 * rng.normal(size=80)[town] + 0.2 * x
    names = {"region": region.astype(str), "town": town.astype(str)}
    return {"y": rng.poisson(np.exp(eta)), "x": x, **names}


def test_one_more_variance_over_many_groups():
    """Also: fits whose rows lie in other groups, 40 of six and 80 of three."""
    data = many_groups()
    small = mixed("y ~ x + (1|region)", data, family="poisson")
    large = mixed("y ~ x + (1|region) + (1|town)", data, family="poisson")
    row = jalax.anova(small, large).rows[1]
    assert row.degrees_of_freedom == (0, 1)
    assert row.p_value == pytest.approx(stats.chi2.sf(row.ratio, 1) / 2)
    other = mixed("y ~ x + (1|town)", data, family="poisson")
    assert jalax.anova(other, large).rows[1].degrees_of_freedom == (0, 1)
    kinds = jalax.compare({"region": small, "town": other})  # once "different observations"
    assert {row.name for row in kinds.rows} == {"region", "town"}
    with pytest.raises(ValueError, match="neither is nested in the other"):
        jalax.anova(small, other)


def test_the_tail_of_the_mixtures():
    assert _tail(0.0, (0, 1)) == 1.0
    assert _tail(-0.3, (0, 1)) == 1.0  # noise
    assert _tail(2.7055, (0, 1)) == pytest.approx(0.05, abs=1e-5)
    assert _tail(5.1389, (1, 2)) == pytest.approx(0.05, abs=1e-4)


def test_a_correlation_is_inside_of_its_range(slope):
    apart = mixed("reaction ~ days + (days||subject)")
    row = jalax.anova(apart, slope).rows[1]
    assert row.degrees_of_freedom == (1,)
    assert row.ratio == pytest.approx(0.0639, abs=0.005)  # lme4
    assert row.p_value == pytest.approx(0.8004, abs=0.01)


def test_plain_fits():
    """Two Gaussian models of the same data, one with its mean held."""
    y = np.linspace(-1.0, 2.0, 12)

    def log_joint(theta, x, y):
        norm = jax.scipy.stats.norm.logpdf
        return norm(x) + norm(y, theta["mean"] + jnp.exp(theta["log_sd"]) * x)

    model = jalax.GroupedModel(log_joint, 0.0, jnp.asarray(y))
    start = {"mean": 0.0, "log_sd": 0.0}
    ask = {"key": KEY, "progress": QUIET}
    held = jalax.fit(model, start, fixed={"mean": 0.0}, **ask)
    free = jalax.fit(model, start, **ask)
    row = jalax.anova(held, free).rows[1]
    exact = [
        max(stats.norm.logpdf(y, mean, np.hypot(1, sd)).sum() for sd in np.linspace(0, 3, 3001))
        for mean in (0.0, y.mean())
    ]
    assert row.ratio == pytest.approx(2 * (exact[1] - exact[0]), abs=2e-3)
    assert row.degrees_of_freedom == (1,)
    assert np.isnan(row.bic)


def test_bad_input(level, slope):
    design, larger = level.mixed.design, slope.mixed.design
    moved = design.response._replace(y=design.y + 1)
    others = dataclasses.replace(
        level, mixed=level.mixed._replace(design=design._replace(response=moved))
    )
    counts = dataclasses.replace(level, mixed=level.mixed._replace(family=jalax.families.Poisson()))
    through_zero = dataclasses.replace(  # without the intercept
        slope, mixed=slope.mixed._replace(design=larger._replace(X=larger.X[:, 1:]))
    )
    for fits, sentence in (
        ((level,), "anova tests two or more fits"),
        ((level, 3.0), "anova takes FitResults, got float"),
        ((level, others), "these fits have different observations"),
        ((level, counts), "these fits have different families"),
        ((level, level), "equally many parameters"),
        ((level, through_zero), "is not nested in"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            jalax.anova(*fits)
