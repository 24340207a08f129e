"""Mixed models by formula: the matrices, the density, the fits against lme4."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats

import jalax
from jalax._model import evaluation
from jalax.models import _density, _mixed
from jalax.models._correlations import Free
from jalax.models._design import parse
from jalax.models._formula import bar_terms
from jalax.models._laws import Unstructured

RNG = np.random.default_rng(0)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "count": RNG.poisson(3, ROWS),
        "yes": RNG.integers(0, 2, ROWS),
        "trials": RNG.integers(8, 12, ROWS),
        "x": RNG.normal(size=ROWS),
        "t": RNG.uniform(1, 3, ROWS),
        "arm": RNG.choice(["a", "b", "c"], ROWS),
        "school": np.repeat([f"s{i}" for i in range(6)], 10),
        "room": np.tile(np.repeat([1, 2], 5), 6).astype(str),
        "teacher": np.tile([f"t{i}" for i in range(5)], 12),
        "one": "same",
    }
)


# ---------------------------------------------------------------- the formula


def test_bar_terms_are_found_by_their_parentheses():
    formula = "y ~ scale(x) + (scale(x)|g) + log(t) + (1|a/b) + (0 + x || g)"
    assert bar_terms(formula) == ["(scale(x)|g)", "(1|a/b)", "(0 + x || g)"]


def test_the_matrices_are_those_of_the_columns():
    design = parse("y ~ x + arm + offset(log(t)) + (1 + x|school)", FRAME)
    assert design.fixed == ("Intercept", "x", "arm[b]", "arm[c]")
    np.testing.assert_allclose(design.X[:, 1], FRAME.x)
    np.testing.assert_allclose(design.X[:, 3], FRAME.arm == "c")
    np.testing.assert_allclose(design.offset, np.log(FRAME.t))
    (block,) = design.blocks
    assert block.effects == ("Intercept", "x")
    assert [block.labels[i] for i in block.index] == FRAME.school.tolist()
    np.testing.assert_allclose(block.matrix, np.column_stack([np.ones(ROWS), FRAME.x]))


def test_a_factor_as_random_effect_has_a_column_a_level():
    (block,) = parse("y ~ 1 + (arm|teacher)", FRAME).blocks
    assert block.effects == ("Intercept", "arm[b]", "arm[c]")
    np.testing.assert_allclose(block.matrix[:, 2], FRAME.arm == "c")


@pytest.mark.parametrize(
    ("formula", "effects"),
    [
        ("y ~ x + (x|school)", [("Intercept", "x")]),
        ("y ~ x + (x||school)", [("Intercept",), ("x",)]),
        ("y ~ x + (1|school) + (0 + x|school)", [("Intercept",), ("x",)]),
    ],
)
def test_which_effects_are_correlated(formula, effects):
    assert [block.effects for block in parse(formula, FRAME).blocks] == effects


def test_nested_factors_are_groups_and_crossed_ones_are_not():
    nested, design = _mixed.build("y ~ 1 + (1|school/room)", FRAME, "gaussian")
    assert isinstance(nested, jalax.GroupedModel)
    assert (nested.num_groups, design.outer) == (6, "school")
    shapes = {name: leaf.shape for name, leaf in nested.latent.items()}
    assert shapes == {"school": (1, 1), "school:room": (2, 1)}
    crossed, design = _mixed.build("y ~ 1 + (1|school) + (1|teacher)", FRAME, "gaussian")
    assert not isinstance(crossed, jalax.GroupedModel)
    assert design.outer is None
    assert {k: v.shape for k, v in crossed.latent.items()} == {"school": (6, 1), "teacher": (5, 1)}


def test_polars_and_dicts_are_read_too():
    class Polars:  # what counts is its method; polars itself is not a dependency
        def to_pandas(self):
            return FRAME

    a = parse("y ~ x + (1|school)", FRAME)
    for data in (Polars(), {name: FRAME[name].to_numpy() for name in FRAME}):
        np.testing.assert_array_equal(parse("y ~ x + (1|school)", data).X, a.X)


# ---------------------------------------------------------------- the density


FAMILIES = ("gaussian", "binomial", "bernoulli", "poisson", "negativebinomial")


def rows_of(family):
    if family == "binomial":
        return "p(count, trials)"
    return {"gaussian": "y", "bernoulli": "yes"}.get(family, "count")


def log_density(family, theta, y, trials, eta):
    """By scipy's distributions."""
    if family == "gaussian":
        return scipy.stats.norm.logpdf(y, eta, theta["sigma"])
    if family == "binomial":
        return scipy.stats.binom.logpmf(y, trials, 1 / (1 + np.exp(-eta)))
    if family == "bernoulli":
        return scipy.stats.bernoulli.logpmf(y.astype(int), 1 / (1 + np.exp(-eta)))
    if family == "poisson":
        return scipy.stats.poisson.logpmf(y, np.exp(eta))
    k = theta["shape"]
    return scipy.stats.nbinom.logpmf(y, k, k / (k + np.exp(eta)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("groups", ["(x|school)", "(x|school) + (1|teacher)"])
def test_the_log_joint_is_that_of_scipy(family, groups, x64):
    response = rows_of(family)
    frame = FRAME.assign(count=np.minimum(FRAME["count"], FRAME.trials))
    model = jalax.models.mixed(f"{response} ~ x + offset(t) + {groups}", frame, family=family)
    rng = np.random.default_rng(1)
    theta = {"beta": rng.normal(size=2), "sd": {"school": np.array([0.7, 1.3])}}
    theta["cor"] = {"school": np.array([0.4])}
    b = {"school": rng.normal(size=(6, 2))}
    if "teacher" in groups:
        theta["sd"]["teacher"], theta["cor"]["teacher"] = np.array([0.5]), np.zeros(0)
        b["teacher"] = rng.normal(size=(5, 1))
    theta |= {"gaussian": {"sigma": 1.7}, "negativebinomial": {"shape": 2.3}}.get(family, {})
    school = np.repeat(np.arange(6), 10)
    eta = theta["beta"][0] + theta["beta"][1] * frame.x + frame.t
    eta = eta + b["school"][school, 0] + b["school"][school, 1] * frame.x
    covariance = np.array([[0.49, 0.4 * 0.91], [0.4 * 0.91, 1.69]])
    prior = scipy.stats.multivariate_normal.logpdf(b["school"], np.zeros(2), covariance).sum()
    if "teacher" in groups:
        eta = eta + b["teacher"][np.tile(np.arange(5), 12), 0]
        prior += scipy.stats.norm.logpdf(b["teacher"], 0, 0.5).sum()
    y = frame[response if family != "binomial" else "count"]
    expected = prior + log_density(family, theta, y, frame.trials, eta).sum()
    theta, b = jax.tree.map(jnp.asarray, (theta, b))
    if isinstance(model, jalax.GroupedModel):
        each = {"school": b["school"][:, None]}
        values = jax.vmap(model.log_joint.function, in_axes=(None, 0, 0))(theta, each, model.data)
        found = jnp.sum(values)
    else:
        found = model.log_joint.function(theta, b, model.data)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_padding_of_nested_levels_does_not_change_the_evidence(x64):
    """Rooms with no rows are latents with nothing but their own density."""
    frame = FRAME[(FRAME.room == "1") | (FRAME.school.isin(["s0", "s3"]))]
    model = jalax.models.mixed("y ~ 1 + (1|school/room)", frame)
    theta = {
        "beta": jnp.array([0.2]),
        "sd": {"school": jnp.array([0.8]), "school:room": jnp.array([0.6])},
        "cor": {"school": jnp.zeros(0), "school:room": jnp.zeros(0)},
        "sigma": jnp.array(0.9),
    }
    room = frame.school + frame.room
    same_school = frame.school.to_numpy()[:, None] == frame.school.to_numpy()
    same_room = room.to_numpy()[:, None] == room.to_numpy()
    covariance = 0.64 * same_school + 0.36 * same_room + 0.81 * np.eye(len(frame))
    exact = scipy.stats.multivariate_normal.logpdf(frame.y, np.full(len(frame), 0.2), covariance)
    evidence = jalax.log_evidence(model, theta, key=jax.random.key(0))
    assert abs(evidence.value - exact) < 4.5 * evidence.error + 1e-6


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_correlations_there_and_back(size, x64):
    pairs = size * (size - 1) // 2
    z = jnp.asarray(np.random.default_rng(size).normal(size=pairs))
    free = {"beta": jnp.zeros(1), "sd": {"g": jnp.linspace(-1, 1, size)}, "cor": {"g": z}}
    laws = (("g", Unstructured(size, Free(size))),)
    theta = _density.constrain(jalax.families.Poisson(), laws, free)
    matrix = np.eye(size)
    matrix[np.tril_indices(size, -1)] = theta["cor"]["g"]
    matrix = matrix + np.tril(matrix, -1).T
    assert np.linalg.eigvalsh(matrix).min() > 0
    back = _density.unconstrain(jalax.families.Poisson(), laws, theta)
    np.testing.assert_allclose(back["cor"]["g"], z, rtol=1e-8)
    np.testing.assert_allclose(back["sd"]["g"], free["sd"]["g"], atol=1e-12)


# ---------------------------------------------------------------- fits

# The formulas and lme4's numbers, as the benchmark has them.
FITS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "mixed.py"))["FITS"]


@pytest.mark.slow  # cbpp is also in the test of the README
@pytest.mark.parametrize("name", FITS)
def test_the_fits_of_lme4(name):
    formula, family, data, expected, log_likelihood = FITS[name]
    frame = getattr(jalax.datasets, data)().to_frame()
    result = jalax.mixed(formula, frame, family=family, key=jax.random.key(3))
    assert result.status == jalax.Status.CONVERGED
    for label, value, error, simulation, *_ in result._rows():
        target, standard_error = expected[label]
        # A mean over the groups: false alarms at 4.5 errors are one in 1e5.
        assert abs(value - target) < 4.5 * simulation, label
        assert simulation <= 0.05 * error, label
        if standard_error is not None:
            assert abs(error / standard_error - 1) < 0.03, label
    evidence = result.evidence
    assert abs(evidence.value - log_likelihood) < 4.5 * evidence.error
    assert result.aic == pytest.approx(-2 * evidence.value + 2 * len(expected))
    text = result.summary()
    for part in ("Fixed effects", "Random effects", "z value", *expected):
        assert part in text
    frame = text.to_frame()
    assert frame.loc["Intercept", "estimate"] == pytest.approx(float(result.theta["beta"][0]))


@pytest.mark.slow
def test_random_effects_are_the_shrunken_means():
    data = jalax.datasets.dyestuff().to_frame()
    result = jalax.mixed("yield_ ~ 1 + (1|batch)", data, key=jax.random.key(0))
    found = result.random_effects()["batch"]
    means = data.groupby("batch").yield_.mean()
    between, within = 1388.333333, 2451.25 / 5
    shrink = between / (between + within)
    spread = np.sqrt(between * within / (between + within))
    assert found.index.tolist() == means.index.tolist()
    ess = np.asarray(result.ess)
    # The particles are those of the last theta, about a tenth of a standard error off the mean.
    tolerance = 4.5 * spread / np.sqrt(ess) + 0.1 * 17.7
    assert np.all(np.abs(found["Intercept"] - shrink * (means - 1527.5)) < tolerance)
    assert np.all(np.abs(found["Intercept sd"] / spread - 1) < 4.5 / np.sqrt(2 * ess) + 0.1)


def quadrature_fit(family, y, x, index, theta):
    """Random intercepts by the trapezoidal rule: 60 points of Gauss's are off by 0.002."""
    nodes = np.linspace(-8, 8, 801)
    log_w = scipy.stats.norm.logpdf(nodes) + np.log(nodes[1] - nodes[0])

    def log_likelihood(t):
        named = {"shape": np.exp(t[3])} if family == "negativebinomial" else {}
        eta = t[0] + t[1] * x[:, None] + np.exp(t[2]) * nodes
        rows = log_density(family, named, y[:, None], 1, eta)
        each = np.zeros((index.max() + 1, nodes.size))
        np.add.at(each, index, rows)
        return scipy.special.logsumexp(each + log_w, axis=1).sum()

    end = scipy.optimize.minimize(lambda t: -log_likelihood(t), theta, method="Nelder-Mead")
    end = scipy.optimize.minimize(lambda t: -log_likelihood(t), end.x, method="BFGS")
    return end.x, -end.fun


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bernoulli", "poisson", "negativebinomial"])
def test_the_other_families_against_quadrature(family):
    rng = np.random.default_rng(4)
    index = np.repeat(np.arange(40), 12)
    x = rng.normal(size=index.size)
    eta = 0.3 + 0.5 * x + 0.7 * rng.normal(size=40)[index]
    y = {
        "bernoulli": lambda: rng.random(eta.size) < 1 / (1 + np.exp(-eta)),
        "poisson": lambda: rng.poisson(np.exp(eta)),
        "negativebinomial": lambda: rng.negative_binomial(3, 3 / (3 + np.exp(eta))),
    }[family]().astype(float)
    extra = [1.0] if family == "negativebinomial" else []
    target, log_likelihood = quadrature_fit(family, y, x, index, [0.3, 0.5, -0.3, *extra])
    target[2:] = np.exp(target[2:])
    frame = {"y": y, "x": x, "g": index.astype(str)}
    result = jalax.mixed("y ~ x + (1|g)", frame, family=family, key=jax.random.key(0))
    found = np.array([row[1] for row in result._rows()])
    simulation = np.array([row[3] for row in result._rows()])
    assert np.all(np.abs(found - target) < 4.5 * simulation + 1e-4), (found, target, simulation)
    assert abs(result.log_evidence - log_likelihood) < 4.5 * result.log_evidence_error


def test_many_models_are_no_reason_to_warn():
    """One function serves all families and factors: that is no recompilation of the user's."""
    for family in FAMILIES:
        model = jalax.models.mixed(f"{rows_of(family)} ~ 1 + (1|school)", FRAME, family=family)
        theta = jax.tree.map(jnp.asarray, model.theta)
        particles = {"school": jnp.zeros((6, 2, 1, 1))}
        evaluation.log_joint(model, model.unconstrained(theta), particles)  # a warning is an error
