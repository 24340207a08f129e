"""Nested factors whose levels are integrated one at a time, against quadrature of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal, norm

import jalax
from jalax._model import inner
from jalax.models._mixed import build, with_all_effects

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def children(sizes=(36, 3, 8, 1), seed=0, gaussian=False):
    """Children of mothers in communities of uneven size; rows in no order."""
    rng, rows, mother = np.random.default_rng(seed), [], 0
    for community, mothers in enumerate(sizes):
        u = rng.normal()
        for _ in range(mothers):
            v = 2 * rng.normal()
            for _ in range(rng.integers(1, 4)):
                x = rng.normal()
                eta = 0.3 + x + u + v
                y = eta + rng.normal() if gaussian else rng.random() < 1 / (1 + np.exp(-eta))
                rows.append((community, mother, x, float(y)))
            mother += 1
    frame = pandas.DataFrame(rows, columns=["c", "m", "x", "y"])
    return frame.sample(frac=1, random_state=1).reset_index(drop=True)


THETA = {"beta": [0.2, 0.7], "sd": {"c": [0.8], "m": [1.9]}, "cor": {"c": [], "m": []}}


def theta_of(plain):
    def is_leaf(x):
        return isinstance(x, (list, float))

    return jax.tree.map(lambda x: jnp.asarray(x, float), plain, is_leaf=is_leaf)


def group_of(model, g):
    return jax.tree.map(lambda leaf: leaf[g], model.data)


def log_joint_of(model, theta, name, u, g):
    x = {name: jnp.full((1, 1), u)}
    return float(jax.jit(model.log_joint.function)(theta, x, group_of(model, g)))


def log_bernoulli(y, eta):
    return y * eta - np.logaddexp(0, eta)


@pytest.mark.slow_cases("float64-0", "float64-2")
@pytest.mark.parametrize("community", [0, 2])
def test_mothers_are_integrated_out_as_by_gauss_and_hermite(community, precision):
    frame = children()
    model, _ = build("y ~ x + (1|c) + (1|m)", frame, "binomial")
    assert model.num_groups == 4
    assert jax.tree.map(jnp.shape, model.latent) == {"c": (1, 1)}
    for u in (-1.3, 2.0):
        expected = norm(0, 0.8).logpdf(u)
        for _, rows in frame[frame.c == community].groupby("m"):
            eta = 0.2 + 0.7 * rows.x.to_numpy()[:, None] + u + 1.9 * NODES
            likelihood = np.exp(log_bernoulli(rows.y.to_numpy()[:, None], eta).sum(axis=0))
            expected += np.log(WEIGHTS @ likelihood)
        found = log_joint_of(model, theta_of(THETA), "c", u, community)
        assert found == pytest.approx(expected, abs=1e-4)


def test_white_latents_give_the_same_marginal_likelihood(x64):
    model, _ = build("y ~ x + (1|c) + (1|m)", children(), "binomial")
    theta, white = theta_of(THETA), model.whitened()
    u = 0.7
    plain = log_joint_of(model, theta, "c", 0.8 * u, 1) + np.log(0.8)
    assert log_joint_of(white, theta, "c", u, 1) == pytest.approx(plain, abs=1e-9)


def test_a_gaussian_model_has_its_closed_form(precision):
    frame = children((34, 5), gaussian=True)
    model, _ = build("y ~ x + (1|c) + (1|m)", frame, "gaussian")
    theta = theta_of(THETA | {"sigma": 0.9})
    for g, u in ((0, 0.4), (1, -1.0)):
        rows = frame[frame.c == g]
        mean = 0.2 + 0.7 * rows.x.to_numpy() + u
        same = rows.m.to_numpy()[:, None] == rows.m.to_numpy()
        law = multivariate_normal(mean, 1.9**2 * same + 0.9**2 * np.eye(len(rows)))
        expected = norm(0, 0.8).logpdf(u) + law.logpdf(rows.y.to_numpy())
        assert log_joint_of(model, theta, "c", u, g) == pytest.approx(expected, abs=2e-4)


def test_slopes_of_the_inner_factor_are_a_plane(x64):
    frame = children((20, 2))
    model, _ = build("y ~ x + (1|c) + (x|m)", frame, "binomial")
    theta = theta_of(THETA | {"sd": {"c": [0.8], "m": [1.2, 0.7]}, "cor": {"c": [], "m": [0.4]}})
    root = np.linalg.cholesky([[1.44, 0.4 * 0.84], [0.4 * 0.84, 0.49]])
    z = np.stack(np.meshgrid(NODES, NODES, indexing="ij")).reshape(2, -1)
    weights, b, u = np.outer(WEIGHTS, WEIGHTS).ravel(), root @ z, 0.5
    expected = norm(0, 0.8).logpdf(u)
    for _, rows in frame[frame.c == 1].groupby("m"):
        x, y = rows.x.to_numpy()[:, None], rows.y.to_numpy()[:, None]
        eta = 0.2 + 0.7 * x + u + b[0] + x * b[1]
        expected += np.log(weights @ np.exp(log_bernoulli(y, eta).sum(axis=0)))
    assert log_joint_of(model, theta, "c", u, 1) == pytest.approx(expected, abs=1e-4)


def test_three_levels_are_integrated_from_the_inside(x64):
    frame = children((16, 3))
    frame["k"] = np.arange(len(frame)) // 2 * 1000 + frame.m  # children's classes, within mothers
    model, _ = build("y ~ x + (1|c) + (1|m) + (1|k)", frame, "binomial")
    assert list(model.latent) == ["c"]
    theta = theta_of(
        THETA | {"sd": {"c": [0.8], "m": [1.1], "k": [0.6]}, "cor": {"c": [], "m": [], "k": []}}
    )
    u, expected = -0.4, norm(0, 0.8).logpdf(-0.4)
    for _, mother in frame[frame.c == 1].groupby("m"):
        given = np.zeros(NODES.size)
        for _, rows in mother.groupby("k"):
            eta = 0.2 + 0.7 * rows.x.to_numpy()[:, None, None] + u
            eta = eta + 1.1 * NODES[:, None] + 0.6 * NODES
            rows_density = log_bernoulli(rows.y.to_numpy()[:, None, None], eta).sum(axis=0)
            given += np.log(np.exp(rows_density) @ WEIGHTS)
        expected += np.log(WEIGHTS @ np.exp(given))
    assert log_joint_of(model, theta, "c", u, 1) == pytest.approx(expected, abs=1e-4)


def test_the_derivatives_are_those_of_the_integrals(x64):
    """Points that stand still while theta moves: the slope of log p is the integral's own."""
    model, _ = build("y ~ x + (1|c) + (1|m)", children(), "binomial")
    flat, unravel = ravel_pytree((theta_of(THETA), jnp.full((1, 1), 0.6)))

    def value(numbers):
        theta, u = unravel(numbers)
        return model.log_joint(theta, {"c": u}, group_of(model, 2))

    value_at, slope_at = jax.jit(value), jax.jit(jax.grad(value))
    h, eye = 1e-4, np.eye(flat.size)
    by_value = [(value_at(flat + h * e) - value_at(flat - h * e)) / (2 * h) for e in eye]
    np.testing.assert_allclose(slope_at(flat), by_value, atol=2e-4)
    by_slope = [(slope_at(flat + h * e) - slope_at(flat - h * e)) / (2 * h) for e in eye]
    np.testing.assert_allclose(jax.jit(jax.hessian(value))(flat), by_slope, atol=2e-3)


@pytest.mark.slow
def test_the_error_of_the_integrals_is_known(x64):
    model, _ = build("y ~ x + (1|c) + (1|m)", children(), "binomial")
    theta = theta_of(THETA | {"sd": {"c": [0.8], "m": [4.0]}})  # a wide one, where it can be seen
    x, data = {"c": jnp.zeros((1, 1))}, group_of(model, 0)
    frame = children()
    exact = norm(0, 0.8).logpdf(0)
    z = np.linspace(-12, 12, 20001)
    prior = norm.pdf(z) * (z[1] - z[0])
    for _, rows in frame[frame.c == 0].groupby("m"):
        eta = 0.2 + 0.7 * rows.x.to_numpy()[:, None] + 4 * z
        exact += np.log(prior @ np.exp(log_bernoulli(rows.y.to_numpy()[:, None], eta).sum(axis=0)))
    usual, finer = model.log_joint(theta, x, data), model.outside.finer(theta, x, data)
    assert 1e-5 < abs(usual - exact) < 1e-2
    assert abs(finer - exact) < abs(usual - exact) / 10


def test_draws_have_the_moments_of_the_posterior(x64):
    frame = children()
    model, mixed = build("y ~ x + (1|c) + (1|m)", frame, "binomial")
    theta = theta_of(THETA)
    u = jnp.full((64, 1, 1), 0.5)  # all particles alike: the mothers alone vary
    drawn = jax.jit(model.outside.within.function)(theta, {"c": u}, group_of(model, 1))
    assert drawn["c"].shape == (64 * inner.DRAWS, 1, 1)
    v = np.asarray(drawn["m"])[:, :, 0]
    assert (v[:, 3:] == 0).all()  # beyond the community's three
    mothers = mixed.levels["m"][1, :3]
    block = next(b for b in mixed.design.blocks if b.name == "m")
    for place, level in enumerate(mothers):
        rows = frame[frame.m.astype(str) == str(block.labels[level])]
        eta = 0.2 + 0.7 * rows.x.to_numpy()[:, None] + 0.5 + 1.9 * NODES
        w = WEIGHTS * np.exp(log_bernoulli(rows.y.to_numpy()[:, None], eta).sum(axis=0))
        w = w / w.sum()
        mean = w @ (1.9 * NODES)
        sd = np.sqrt(w @ (1.9 * NODES - mean) ** 2)
        assert v[:, place].mean() == pytest.approx(mean, abs=0.03)
        assert v[:, place].std() == pytest.approx(sd, rel=0.02)


@pytest.mark.slow
def test_draws_in_a_plane_have_their_mean_and_covariance(x64):
    mean, covariance = np.array([1.0, -2.0]), np.array([[1.0, 0.6], [0.6, 2.0]])

    def log_density(known, at):
        away = at() - known
        return -0.5 * jnp.sum(away @ np.linalg.inv(covariance) * away, axis=1)

    start = jnp.zeros((3, 2))
    found = inner.log_integrals(log_density, mean, start)
    np.testing.assert_allclose(found, 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1], atol=1e-4)
    uniforms = inner.spread_uniforms(jnp.arange(256.0), 3, 2).reshape(-1, 3, 2)
    v = jax.vmap(lambda u: inner.draws(log_density, mean, start, u))(uniforms)
    for unit in np.moveaxis(np.asarray(v), 1, 0):
        np.testing.assert_allclose(unit.mean(axis=0), mean, atol=0.02)
        np.testing.assert_allclose(np.cov(unit.T), covariance, atol=0.08)


def test_only_large_groups_of_a_chain_are_nested():
    few, _ = build("y ~ x + (1|c) + (1|m)", children((5, 3)), "binomial")
    assert sorted(few.latent) == ["c", "m"]
    frame = children((20, 20))
    frame["a"], frame["b"] = frame.m * 3 + np.arange(len(frame)) % 3, frame.c * 5 + frame.m % 5
    crossed, _ = build("y ~ x + (1|c) + (1|a) + (1|b)", frame.assign(a=frame.a % 60), "binomial")
    assert len(crossed.latent) == 3


def test_all_effects_as_latents_have_the_usual_density(x64):
    model, mixed = build("y ~ x + (1|c) + (1|m)", children(), "binomial")
    whole, theta = with_all_effects(model, mixed), theta_of(THETA)
    v = np.linspace(-1, 1, 36)[:, None]
    frame = children()
    rows = frame[frame.c == 0]
    block = next(b for b in mixed.design.blocks if b.name == "m")
    effect = {block.labels[level]: v[k, 0] for k, level in enumerate(mixed.levels["m"][0])}
    eta = 0.2 + 0.7 * rows.x + 0.3 + np.array([effect[str(m)] for m in rows.m])
    expected = norm(0, 0.8).logpdf(0.3) + norm(0, 1.9).logpdf(v).sum()
    expected += log_bernoulli(rows.y, eta).sum()
    x = {"c": jnp.full((1, 1), 0.3), "m": jnp.asarray(v)}
    found = whole.log_joint(theta, x, group_of(whole, 0))
    assert float(found) == pytest.approx(expected, abs=1e-9)


def test_white_latents_of_the_outer_factor():
    """Those of a singular fit: log p(y, b) and log p(y, z) differ by log sd, with b = sd z."""
    model = jalax.models.mixed("y ~ x + (1|c) + (1|m)", children(), family="binomial")
    white, theta = model.whitened(), theta_of(THETA | {"sd": {"c": [0.5], "m": [1.9]}})
    z = {"c": jnp.full((1, 1), 0.7)}
    b = white.latent_outside(theta, z, group_of(white, 0))
    assert set(b) == {"c"}
    assert float(b["c"][0, 0]) == pytest.approx(0.35, rel=1e-6)
    whole = log_joint_of(model, theta, "c", 0.35, 0) + np.log(0.5)
    assert log_joint_of(white, theta, "c", 0.7, 0) == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_guimmun_by_formula_has_the_exact_answer():
    problem = jalax.problems.guimmun()
    formula, exact = problem.formula, problem.reference
    frame = formula.frame()
    result = jalax.mixed(formula.text, frame, family=formula.family, key=jax.random.key(0))
    assert result.status == jalax.Status.CONVERGED
    evidence = result.known_evidence
    assert abs(evidence.value - exact.log_evidence) < 4.5 * max(evidence.error, 2e-3)
    apart = (result.theta["beta"] - exact.theta["beta"]) / exact.standard_errors["beta"]
    assert np.abs(apart).max() < 0.02
    for factor in ("mom", "comm"):
        away = np.log(float(result.theta["sd"][factor][0])) - exact.theta[f"log_sd_{factor}"]
        assert abs(away) < 0.02 * exact.standard_errors[f"log_sd_{factor}"]
    # The score of the intercept is zero: means given the data add up to the answers.
    assert result.fitted().sum() == pytest.approx(frame["immun"].sum(), abs=1.0)
    levels = result.random_effects()
    assert len(levels["mom"]) == 1595
    assert len(levels["comm"]) == 161


@pytest.mark.slow
def test_a_file_predicts_as_the_fit_does(tmp_path):
    frame = children((34, 9, 12, 6, 20), seed=3)
    result = jalax.mixed("y ~ x + (1|c) + (1|m)", frame, family="binomial", key=jax.random.key(0))
    again = jalax.load(result.save(tmp_path / "nested.npz") or tmp_path / "nested.npz")
    first, second = result.predict(), again.predict()
    np.testing.assert_allclose(first["estimate"], second["estimate"], atol=2e-3)
    assert result.simulate(jax.random.key(1), 3).shape == (3, len(frame))
    mode = result.random_effects(at=jalax.predictions.Mode())["m"]["Intercept"]
    mean = result.random_effects()["m"]["Intercept"]
    assert np.corrcoef(mode, mean)[0, 1] > 0.99
