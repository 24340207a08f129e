"""REML: the term in log p against its definition row by row, and the fits against lme4's."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

import jalax
from jalax._frontends import mixed_exact, mixed_restricted
from jalax.models import _mixed, _restricted
from jalax.models._design import Asked

REML = jalax.REML()
RNG = np.random.default_rng(0)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "x": RNG.normal(size=ROWS),
        "year": RNG.integers(1990, 2020, ROWS).astype(float),
        "t": RNG.uniform(1, 3, ROWS),
        "w": RNG.integers(1, 4, ROWS),
        "arm": RNG.choice(["a", "b", "c"], ROWS),
        "school": RNG.choice([f"s{i}" for i in range(6)], ROWS),
        "teacher": RNG.choice([f"t{i}" for i in range(5)], ROWS),
    }
)
FRAME["room"] = FRAME.school + RNG.choice(["a", "b", "c"], ROWS)
# The formula, the options, and whether a group has more effects than rows.
CASES = {
    "intercepts": ("y ~ x + arm + (1|school)", {}),
    "slopes": ("y ~ x + (x|school)", {}),
    "nested": ("y ~ x + (1|school/room)", {}),
    "crossed": ("y ~ x + (x|school) + (1|teacher)", {}),
    "many effects": ("y ~ 1 + (arm + x + t|room)", {}),
    "weights": ("y ~ x + (x|school)", {"weights": "w", "precision_weights": "t"}),
}


def built(name, data=FRAME):
    formula, options = CASES[name]
    return _mixed.build(formula, data, "gaussian", Asked(**options, likelihood=REML))


def theta_of(model):
    """Some theta, on the user's scale."""
    rng = np.random.default_rng(1)
    theta = jax.tree.map(lambda leaf: rng.uniform(0.3, 0.8, leaf.shape), dict(model.theta))
    theta["cor"] = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.3), theta["cor"])
    return theta | {"beta": rng.normal(size=model.theta["beta"].shape)}


def dense(design):
    """Z of each block, with a column for every level and effect."""
    columns, rows = [], len(design.y)
    for block in design.blocks:
        wide = np.zeros((rows, len(block.labels), len(block.effects)))
        wide[np.arange(rows), block.index] = block.matrix
        columns.append(wide.reshape(rows, -1))
    return columns


def covariance_of(theta, name):
    """Sigma from its standard deviations and the correlations below its diagonal."""
    sd = np.asarray(theta["sd"][name], float)
    cor = np.eye(sd.size)
    cor[np.tril_indices(sd.size, -1)] = np.asarray(theta["cor"][name], float)
    return (cor + np.tril(cor, -1).T) * np.outer(sd, sd)


def variance(design, theta):
    """V of the rows."""
    V = np.diag(float(theta["sigma"]) ** 2 / design.precisions)
    for block, Z in zip(design.blocks, dense(design), strict=True):
        V = V + Z @ np.kron(np.eye(len(block.labels)), covariance_of(theta, block.name)) @ Z.T
    return V


def by_rows(design, theta):
    """(p/2) log 2 pi - (1/2) log det X'V^{-1}X."""
    H = design.X.T @ np.linalg.solve(variance(design, theta), design.X)
    return len(H) / 2 * np.log(2 * np.pi) - np.linalg.slogdet(H)[1] / 2


def term_of(model):
    """The part of log p that integrates beta out, of theta."""
    _, rows, root = model.log_joint.function.args
    return jax.jit(partial(_restricted._log_term, rows, root))


def one_large_matrix(name, monkeypatch):
    """Of crossed factors the code that is for hundreds of effects, too."""
    if name.endswith("large"):
        monkeypatch.setattr(_restricted, "STEP_BY_STEP", 1)
    return name.removesuffix(", large")


@pytest.mark.parametrize("name", [*CASES, "crossed, large"])
def test_what_integrates_beta_out(name, monkeypatch):
    name = one_large_matrix(name, monkeypatch)
    model, mixed = built(name)
    theta, exact = theta_of(model), by_rows(mixed.design, theta_of(model))
    # In float32 as in float64.
    assert abs(float(term_of(model)(jax.tree.map(jnp.asarray, theta))) - exact) < 2e-5
    with jax.enable_x64(True):
        found = term_of(model)(jax.tree.map(jnp.asarray, theta))
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    H = mixed.design.X.T @ np.linalg.solve(variance(mixed.design, theta), mixed.design.X)
    found = mixed_restricted._least_squares(mixed, theta)[1]
    np.testing.assert_allclose(found, np.linalg.inv(H), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["slopes", pytest.param("crossed", marks=pytest.mark.slow), "crossed, large"]
)
def test_its_derivatives(name, x64, monkeypatch):
    """By differences of the definition: the gradient backwards, the Hessian forwards over it."""
    name = one_large_matrix(name, monkeypatch)
    model, mixed = built(name)
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, theta_of(model)))

    def exact(t):
        return by_rows(mixed.design, mixed_exact.ravel_float64(theta_of(model))[1](t))

    def differences(of, t, step):
        t = np.asarray(t)
        ends = [[of(t + s * step * e) for s in (1, -1)] for e in np.eye(t.size)]
        return np.array([(high - low) / (2 * step) for high, low in ends])

    def of_flat(t):
        return term_of(model)(unravel(t))

    gradient = jax.jit(jax.grad(of_flat))(flat)
    np.testing.assert_allclose(gradient, differences(exact, flat, 1e-5), atol=1e-7)
    hessian = differences(lambda t: differences(exact, t, 1e-4), flat, 1e-4)
    np.testing.assert_allclose(jax.jit(jax.hessian(of_flat))(flat), hessian, atol=1e-4)


def test_columns_far_from_zero_keep_their_digits():
    """In float32: det X'V^{-1}X would be lost, years have a mean of 2000 and a spread of ten."""
    model, mixed = _mixed.build(
        "y ~ year + I(year**2) + (1|school)", FRAME, "gaussian", Asked(likelihood=REML)
    )
    theta = theta_of(model)
    found = term_of(model)(jax.tree.map(jnp.asarray, theta))
    # In coordinates in which the definition has its digits, too.
    orthogonal, triangle = np.linalg.qr(mixed.design.X)
    H = orthogonal.T @ np.linalg.solve(variance(mixed.design, theta), orthogonal)
    log_det = np.linalg.slogdet(H)[1] + 2 * np.log(np.abs(np.diagonal(triangle))).sum()
    assert abs(float(found) - (3 / 2 * np.log(2 * np.pi) - log_det / 2)) < 1e-4


def test_a_variance_of_zero_is_no_singularity():
    model, mixed = built("slopes")
    theta = theta_of(model)
    theta["sd"] = {"school": np.array([0.5, 0.0])}
    found = term_of(model)(jax.tree.map(jnp.asarray, theta))
    np.testing.assert_allclose(found, by_rows(mixed.design, theta), atol=2e-5)


@pytest.mark.parametrize("name", ["slopes", "weights", "crossed", "crossed, large"])
def test_the_closed_form_of_the_likelihood(name, monkeypatch, x64):
    """By which the end of a fit is found."""
    name = one_large_matrix(name, monkeypatch)
    model, mixed = built(name)
    options, data = CASES[name][1], FRAME
    if "weights" in options:  # the definition is that of rows that count once
        data = FRAME.loc[np.repeat(FRAME.index, FRAME.w)].reset_index(drop=True)
        formula = CASES[name][0]
        asked = Asked(precision_weights="t", likelihood=REML)
        plain = _mixed.build(formula, data, "gaussian", asked)[1].design
    else:
        plain = mixed.design
    theta = theta_of(model)
    count, precision = len(data), np.log(plain.precisions).sum()
    _, _, root = model.log_joint.function.args
    with jax.enable_x64(True):
        found = jax.jit(_restricted.restricted_likelihood, static_argnums=1)(
            mixed.restricted, root, theta, count, precision
        )
    np.testing.assert_allclose(found, restricted(plain, theta)[0], rtol=1e-10)
    beta, _ = mixed_restricted._least_squares(mixed, theta)
    np.testing.assert_allclose(beta, restricted(plain, theta)[1], rtol=1e-8)


def restricted(design, theta):
    """The restricted log-likelihood, by rows."""
    V = variance(design, theta)
    H = design.X.T @ np.linalg.solve(V, design.X)
    beta = np.linalg.solve(H, design.X.T @ np.linalg.solve(V, design.y - design.offset))
    left = design.y - design.offset - design.X @ beta
    log_det = np.linalg.slogdet(V)[1] + np.linalg.slogdet(H)[1]
    square = left @ np.linalg.solve(V, left)
    freedom = len(left) - len(beta)
    return -(freedom * np.log(2 * np.pi) + log_det + square) / 2, beta


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slopes", "nested", "crossed"])
def test_the_evidence_has_beta_integrated_out(name, precision):
    """At any variances, with beta at its generalised least squares."""
    model, mixed = built(name)
    theta = theta_of(model)
    expected, theta["beta"] = restricted(mixed.design, theta)
    found = jalax.log_evidence(model, jax.tree.map(jnp.asarray, theta), key=jax.random.key(0))
    assert abs(found.value - expected) < 4.5 * found.error + 1e-6


PENICILLIN = """272326232321 272326232321 252125242420 262325232320 252226222320 242225232219
242023212219 262226242421 242124222220 242124232219 262326242421 252226242420 262426242522
262326232320 262325242422 252225232320 252124232320 252224232319 242123212119 262326242421
252124222218 252225222220 242124222419 242124222118"""
FITS = {
    # lmer(Yield ~ 1 + (1|Batch), Dyestuff): lme4's manual and book.
    "dyestuff": (
        "yield_ ~ 1 + (1|batch)",
        {"sd Intercept | batch": 42.001, "sigma": 49.510},
        {"Intercept": (1527.5, 19.383)},
        319.6543,
    ),
    # lmer(Reaction ~ Days + (Days|Subject), sleepstudy)
    "sleepstudy": (
        "reaction ~ days + (days|subject)",
        {
            "sd Intercept | subject": 24.741,
            "sd days | subject": 5.922,
            "cor Intercept, days | subject": 0.066,
            "sigma": 25.592,
        },
        {"Intercept": (251.405, 6.825), "days": (10.467, 1.546)},
        1743.628,
    ),
    # fit(MixedModel, @formula(diameter ~ 1+(1|plate)+(1|sample)), ..., REML=true)
    "penicillin": (
        "diameter ~ 1 + (1|plate) + (1|sample)",
        {
            "sd Intercept | plate": 0.846704,
            "sd Intercept | sample": 1.931555,
            "sigma": 0.549923,
        },
        {"Intercept": (22.9722, 0.808572)},
        330.8605889912561,
    ),
}


def data_of(name):
    if name != "penicillin":
        return getattr(jalax.datasets, name)().to_frame()
    plates = PENICILLIN.split()
    diameter = [int(row[k : k + 2]) for row in plates for k in range(0, 12, 2)]
    plate, sample = np.repeat(list("abcdefghijklmnopqrstuvwx"), 6), list("ABCDEF") * 24
    return pd.DataFrame({"diameter": diameter, "plate": plate, "sample": sample})


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_the_fits_of_lme4(name):
    formula, others, fixed, criterion = FITS[name]
    result = jalax.mixed(formula, data_of(name), key=jax.random.key(0), likelihood=REML)
    assert result.status == jalax.Status.CONVERGED
    assert abs(-2 * result.log_evidence - criterion) < 5e-4
    assert f"REML criterion: {int(criterion)}." in result.summary()
    assert "restricted maximum likelihood" in result.summary()
    for label, value, error, simulation, *_ in result._rows():
        target, target_error = fixed[label] if label in fixed else (others[label], None)
        assert abs(value - target) < 6e-4, label  # the last digit that is published
        assert simulation < 1e-6 * error
        if target_error is not None:
            assert abs(error - target_error) < 6e-4, label
    assert result.coef() == pytest.approx({k: v[0] for k, v in fixed.items()}, abs=0.01)
    errors = np.sqrt(np.diagonal(result.vcov()))[: len(fixed)]
    assert errors == pytest.approx([error for _, error in fixed.values()], rel=1e-3)


@pytest.fixture(scope="module")
def unbalanced():
    formula = "y ~ x + (1|school)"
    frame = FRAME.assign(y=FRAME.y + RNG.normal(size=6)[FRAME.school.str[1:].astype(int)])
    return jalax.mixed(formula, frame, key=jax.random.key(0), likelihood=REML), frame


@pytest.mark.slow
def test_unbalanced_data(unbalanced, tmp_path):
    """The maximum by scipy, over the definition by rows; then what follows from the fit."""
    result, _ = unbalanced
    design = result.mixed.design

    def theta(t):
        sd, sigma = np.exp(t)
        return {"sd": {"school": np.array([sd])}, "cor": {"school": np.zeros(0)}, "sigma": sigma}

    end = scipy.optimize.minimize(lambda t: -restricted(design, theta(t))[0], [0.0, 0.0])
    known = theta(end.x)
    assert abs(result.log_evidence + end.fun) < 1e-6
    error = result.standard_errors()
    assert abs(result.theta["sigma"] - known["sigma"]) < 1e-4 * error["sigma"]
    sd = result.theta["sd"]["school"] - known["sd"]["school"]
    assert np.abs(sd) < 1e-4 * error["sd"]["school"]
    np.testing.assert_allclose(
        result.theta["beta"], restricted(design, known)[1], atol=1e-4 * error["beta"].min()
    )
    covariance = np.linalg.inv(design.X.T @ np.linalg.solve(variance(design, known), design.X))
    np.testing.assert_allclose(result.vcov()[:2, :2], covariance, rtol=1e-3)
    # The variances' part is that of the restricted likelihood.
    step, hessian = 1e-3, np.zeros((2, 2))
    for i, j in np.ndindex(2, 2):
        a, b = step * np.eye(2)[[i, j]]
        signs = [(s, t) for s in (1, -1) for t in (1, -1)]
        values = [s * t * restricted(design, theta(end.x + s * a + t * b))[0] for s, t in signs]
        hessian[i, j] = sum(values) / (4 * step**2)
    scale = np.diag([float(known["sd"]["school"][0]), float(known["sigma"])])
    expected = scale @ np.linalg.inv(-hessian) @ scale
    np.testing.assert_allclose(result.vcov()[2:, 2:], expected, rtol=0.01)
    at_zero = result.predict(effects=jalax.predictions.Population())
    errors = np.sqrt(np.einsum("np,pq,nq->n", design.X, covariance, design.X))
    np.testing.assert_allclose(at_zero["std. error"], errors, rtol=1e-3)
    result.save(tmp_path / "fit.npz")
    again = jalax.load(tmp_path / "fit.npz")
    assert again.summary() == result.summary()
    assert repr(again.origin.model) == repr(result.origin.model)


@pytest.mark.slow
def test_groups_that_do_not_differ():
    """The limit is the linear model's: lm's REML, (n - p) (log 2 pi s^2 + 1) + log det X'X."""
    y = FRAME.y - FRAME.y.groupby(FRAME.school).transform("mean")
    result = jalax.mixed(
        "y ~ x + (1|school)", FRAME.assign(y=y), key=jax.random.key(0), likelihood=REML
    )
    assert result.status == jalax.Status.BOUNDARY
    X = result.mixed.design.X
    left = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    freedom = ROWS - 2
    variance = left @ left / freedom
    log_det = np.linalg.slogdet(X.T @ X)[1]
    criterion = freedom * (np.log(2 * np.pi * variance) + 1) + log_det
    assert abs(-2 * result.log_evidence - criterion) < 0.02
    errors = np.sqrt(variance * np.diagonal(np.linalg.inv(X.T @ X)))
    np.testing.assert_allclose(np.sqrt(np.diagonal(result.vcov()))[:2], errors, rtol=0.01)


@pytest.mark.slow
def test_what_a_restricted_likelihood_cannot_tell(unbalanced):
    result, frame = unbalanced
    smaller, other = (
        jalax.mixed(formula, frame, key=jax.random.key(0), likelihood=likelihood)
        for formula, likelihood in (("y ~ 1 + (1|school)", REML), ("y ~ x + (1|school)", None))
    )
    for fit in (smaller, other):
        with pytest.raises(ValueError, match="REML fits are compared with REML fits of the same"):
            jalax.anova(result, fit)
        with pytest.raises(ValueError, match="or one of them is a REML fit and the other is none"):
            jalax.compare({"a": result, "b": fit})
    for ask in (
        lambda: result.profile("x"),
        lambda: result.confidence_intervals(method=jalax.Profile()),
    ):
        with pytest.raises(ValueError, match="REML has no profile of a fixed effect"):
            ask()
    low, high = result.profile("sigma").interval()
    assert low < result.theta["sigma"] < high
    assert result.bootstrap(jax.random.key(1), 4).usable.any()


BAD = {
    "a name": ({"likelihood": "REML"}, TypeError, r"likelihood must be jalax.REML\(\), or None"),
    "boolean": ({"likelihood": True}, TypeError, r"likelihood must be jalax.REML\(\), or None"),
    "counts": ({"family": "poisson"}, ValueError, "Gaussian responses with the identity link"),
    "log": (
        {"family": jalax.families.Gaussian(link="log")},
        ValueError,
        "Gaussian responses with the identity link",
    ),
    "dispersion": ({"dispersion": "~ x"}, ValueError, "REML has one sigma"),
    "prior": ({"log_prior": lambda theta: 0.0}, ValueError, "takes no log_prior="),
    "beta": ({"fixed": {"x": 1.0}}, ValueError, "fixed= holds 'x', a fixed effect"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    options, kind, sentence = BAD[name]
    frame, options = FRAME.assign(y=FRAME.w), {"likelihood": REML} | options
    with pytest.raises(kind, match=sentence):
        jalax.mixed("y ~ x + (1|school)", frame, key=jax.random.key(0), **options)


def test_too_many_random_effects_that_depend_on_each_other(monkeypatch):
    monkeypatch.setattr(_restricted, "MOST_EFFECTS", 10)
    with pytest.raises(ValueError, match=r"REML is for up to 10 random effects .* here are 11"):
        _mixed.build("y ~ 1 + (1|school) + (1|teacher)", FRAME, "gaussian", Asked(likelihood=REML))
