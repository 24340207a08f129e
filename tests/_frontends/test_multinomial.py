"""Categories without an order: against sums over them by hand, and quadrature in two dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.special

import jalax
from jalax import families, models
from jalax.models import _new_rows
from jalax.models._mixed import build

GROUPS, ROWS = 30, 12
NAMES = ("beer", "wine", "apple juice")  # the first is the baseline; not in the alphabet's order
BETA = np.array([[0.4, 0.7], [-0.3, -0.5]])  # of wine and of juice: intercept and slope
SIGMA = np.array([[0.8, 0.4], [0.4, 0.6]])


def frame(seed=0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), ROWS)
    x = rng.standard_normal(group.size)
    u = rng.multivariate_normal(np.zeros(2), SIGMA, GROUPS)
    eta = BETA[:, 0] + x[:, None] * BETA[:, 1] + u[group]
    known = np.concatenate([np.zeros((group.size, 1)), eta], axis=1)
    drink = np.argmax(known + rng.gumbel(size=known.shape), axis=1)
    column = pd.Categorical.from_codes(drink, NAMES)
    return pd.DataFrame({"drink": column, "x": x, "g": [f"g{i:02d}" for i in group]})


def log_p(eta, y):
    """(..., 2) and the category, 0, 1 or 2."""
    known = np.concatenate([np.zeros((*eta.shape[:-1], 1)), eta], axis=-1)
    chosen = np.take_along_axis(known, np.broadcast_to(y[..., None], (*eta.shape[:-1], 1)), -1)
    return chosen[..., 0] - scipy.special.logsumexp(known, axis=-1)


def test_the_density_and_the_names():
    """A random slope too: log p(x, y) by hand, and a name for each number of theta."""
    data = frame()
    with jax.enable_x64(True):
        model = models.mixed("drink ~ x + (x|g)", data, family="multinomial")
        rng = np.random.default_rng(1)
        b, beta = rng.standard_normal((GROUPS, 1, 4)), rng.standard_normal(4)
        theta = dict(model.theta, beta=jnp.asarray(beta))
        groups = [
            model.log_joint(
                theta, {"g": jnp.asarray(b[i])}, jax.tree.map(lambda leaf, i=i: leaf[i], model.data)
            )
            for i in (0, 7)
        ]
    sd = np.asarray(model.theta["sd"]["g"])
    for i, found in zip((0, 7), groups, strict=True):
        mine = data[data["g"] == f"g{i:02d}"]
        effects = (beta + b[i, 0]).reshape(2, 2)  # of wine and of juice
        eta = effects[:, 0] + mine["x"].to_numpy()[:, None] * effects[:, 1]
        prior = np.sum(-0.5 * (b[i, 0] / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi))
        exact = log_p(eta, mine["drink"].cat.codes.to_numpy().astype(int)).sum() + prior
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    columns = [f"{name}: {term}" for name in NAMES[1:] for term in ("Intercept", "x")]
    assert model.outside.labels[:4] == tuple(columns)
    assert "cor wine: Intercept, apple juice: x | g" in model.outside.labels
    assert model.outside.labels[-4:] == tuple(f"sd {column} | g" for column in columns)


def test_two_categories_are_binomial():
    data = frame()
    data = data[data["drink"] != "beer"]
    data["other"] = (data["drink"] == "apple juice").astype(int)
    two = models.mixed("drink ~ x + (1|g)", data, family="categorical")
    one = models.mixed("other ~ x + (1|g)", data, family="binomial")
    theta = dict(one.theta, beta=jnp.array([0.3, -0.8]))
    x = {"g": jnp.full((1, 1), 0.7)}
    first = (jax.tree.map(lambda leaf: leaf[3], model.data) for model in (two, one))
    found, known = (
        model.log_joint(theta, x, data) for model, data in zip((two, one), first, strict=True)
    )
    np.testing.assert_allclose(found, known, rtol=1e-6)


def test_crossed_factors_and_draws():
    """One joint latent of crossed factors; the shares of draws are the probabilities."""
    data = frame()
    data["h"] = np.arange(len(data)) % 5
    model = models.mixed("drink ~ 1 + (1|g) + (1|h)", data, family="multinomial")
    assert not model.grouped
    theta = dict(model.theta, beta=jnp.array([1.0, -1.0]))
    x = jax.tree.map(jnp.zeros_like, model.latent)
    keys = jax.random.split(jax.random.key(0), 40)
    simulate = jax.jit(jax.vmap(lambda key: model.outside.simulate(key, theta, x, model.data)["y"]))
    drawn = np.asarray(simulate(keys)).ravel()
    shares = families.Multinomial().probabilities(np.array([1.0, -1.0]))
    np.testing.assert_allclose(shares, np.exp([0, 1, -1]) / np.exp([0, 1, -1]).sum())
    far = np.sqrt(-np.log(1e-6 / 2) / (2 * drawn.size))
    assert np.all(np.abs([np.mean(drawn == k) for k in (1, 2, 3)] - shares) < far)


def test_new_rows_are_coded_like_the_old_ones():
    data = frame()
    _, mixed = build("drink ~ x + (x||g)", data, "multinomial")
    design = mixed.design
    known, random = _new_rows.same_rows(design)
    found, new = _new_rows.fixed_rows(design, data), _new_rows.random_rows(design, data)
    np.testing.assert_array_equal(found.X, known.X)
    assert found.X.shape == (len(data), 2, 4)
    for name, z in random.Z.items():
        np.testing.assert_array_equal(new.Z[name], z)
        np.testing.assert_array_equal(new.level[name], random.level[name])


@pytest.mark.parametrize(
    ("formula", "options", "sentence"),
    [
        ("cbind(a, b) ~ 1 + (1|g)", {}, "rows of their own"),
        ("drink ~ offset(x) + (1|g)", {}, "has an offset"),
        ("drink ~ 1 + (1|g)", {"zero": "~ 1"}, "has no zeros"),
        ("drink ~ 1 + (1|g)", {"dispersion": "~ 1"}, "no parameter"),
        ("same ~ 1 + (1|g)", {}, "one category, 'a'"),
    ],
)
def test_what_is_refused(formula, options, sentence):
    data = frame().assign(a=1, b=2, same="a")
    with pytest.raises(ValueError, match=sentence):
        models.mixed(formula, data, family="multinomial", **options)


def quadrature(theta, data):
    """log p by the trapezoidal rule over both random effects of a level."""
    beta = np.asarray(theta["beta"], float).reshape(2, 2)
    sd, cor = np.asarray(theta["sd"]["g"], float), float(theta["cor"]["g"][0])
    nodes = np.linspace(-5.5, 5.5, 89)
    weights = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()
    a, b = np.meshgrid(nodes, nodes, indexing="ij")
    u = np.stack([sd[0] * a, sd[1] * (cor * a + np.sqrt(1 - cor**2) * b)], axis=-1)
    log_weight, total = np.log(weights[:, None] * weights), 0.0
    for _, mine in data.groupby("g"):
        fixed = beta[:, 0] + mine["x"].to_numpy()[:, None] * beta[:, 1]
        eta = fixed[:, None, None] + u
        rows = log_p(eta, mine["drink"].cat.codes.to_numpy().astype(int)[:, None, None])
        total += scipy.special.logsumexp(rows.sum(axis=0) + log_weight)
    return total


@pytest.mark.slow
def test_a_fit_is_at_the_maximum_by_quadrature(tmp_path):
    data = frame()
    result = jalax.mixed("drink ~ x + (1|g)", data, family="multinomial", key=jax.random.key(0))
    assert str(result.status) == "converged"
    exact = quadrature(result.theta, data)
    assert abs(result.evidence.value - exact) < 4.5 * result.evidence.error
    errors = np.sqrt(np.diagonal(result.vcov()))
    leaves, tree = jax.tree.flatten(result.theta)
    flat = np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves])
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    score = np.zeros(flat.size)
    for i, error in enumerate(errors):
        for side in (1, -1):
            moved = flat.copy()
            moved[i] += 0.02 * side * error
            score[i] += side * quadrature(tree.unflatten(np.split(moved, ends)), data)
    score /= 0.04 * errors
    step = np.asarray(result.vcov(), float) @ score
    assert np.all(np.abs(step / errors) < 0.02)
    truth = BETA.ravel()
    assert np.all(np.abs(result.theta["beta"] - truth) < 4 * errors[:4])
    _check_after(result, data, tmp_path)


def _check_after(result, data, tmp_path):
    """What is read off a fit, and what it refuses."""
    assert "wine: Intercept" in str(result.summary())
    assert list(result.coef()) == list(result.names[:4])
    shares = result.probabilities()
    assert list(shares.columns) == list(NAMES)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    # At the maximum likelihood intercepts, averages over the posterior are near the shares.
    counts = [np.mean(data["drink"] == name) for name in NAMES]
    np.testing.assert_allclose(shares.mean(), counts, atol=2e-3)
    middle = result.probabilities({"x": [0.0]}, effects=jalax.predictions.Population())
    beta = np.asarray(result.theta["beta"], float)
    np.testing.assert_allclose(middle["wine"] / middle["beer"], np.exp(beta[0]), rtol=1e-5)
    np.testing.assert_allclose(result.probabilities(data), shares, rtol=1e-6)
    effects = result.random_effects()["g"]
    assert effects.shape == (GROUPS, 6)
    assert "apple juice: Intercept | g[g03]" in str(result.latents())
    assert set(np.unique(result.simulate(jax.random.key(1), 2))) == {1.0, 2.0, 3.0}
    for ask in (
        result.predict,
        result.fitted,
        result.residuals,
        lambda: result.residuals(jalax.residuals.Quantile(jax.random.key(0))),
        lambda: result.residual_test(jax.random.key(0)),
        lambda: result.marginal_means("x"),
    ):
        with pytest.raises(ValueError, match="probabilities"):
            ask()
    result.save(tmp_path / "fit.npz")
    again = jalax.load(tmp_path / "fit.npz")
    # A file has the particles' weights where they were last seen, a step before.
    np.testing.assert_allclose(again.probabilities(), shares, rtol=5e-3)
    assert str(again.summary()) == str(result.summary())
