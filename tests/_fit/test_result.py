"""FitResult: numbers against NumPy, text, files."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

import jalax
from jalax._evidence.log_evidence import Evidence
from jalax._fit.conclusion import path_is_off
from shared_models import pair

Y = np.array([0.5, 1.5, 4.0])
PARTICLES = np.random.default_rng(0).normal(1.0, 0.7, size=(10, 3))
MODEL = jalax.models.hierarchical_normal(Y)
KEY = jax.random.key(0)


def fit(model=MODEL, theta=0.0, **changes):
    arguments = {
        "key": KEY,
        "algorithm": jalax.JALAEM(step_size=0.05),
        "start": jalax.Given(PARTICLES, log_evidence=-7.0),
        "num_steps": 12,
        **changes,
    }
    return jalax.fit(model, theta, **arguments)


@pytest.fixture(scope="module")
def result():
    return fit()


GROUPED_DATA = np.arange(8.0).reshape(4, 2)
GROUPED_PARTICLES = np.random.default_rng(1).normal(size=(4, 10, 2))


def fit_groups(log_evidence):
    model = jalax.GroupedModel(pair, latent=jnp.zeros(2), data=GROUPED_DATA)
    start = jalax.Given(GROUPED_PARTICLES, log_evidence=log_evidence)
    return fit(model, start=start, algorithm=jalax.JALAEM(step_size=0.05, resample_below=0.0))


@pytest.fixture(scope="module")
def grouped():
    return fit_groups(np.arange(4.0))


def weighted(result, log_weights, particles):
    """The same result with particles and weights of our own."""
    return dataclasses.replace(
        result, log_weights=jnp.asarray(log_weights), particles=jnp.asarray(particles)
    )


# ---------------------------------------------------------------- weights and expectations


def test_weights_and_ess(result, grouped):
    for one in (result, grouped):
        expected = softmax(np.array(one.log_weights, float), axis=-1)
        np.testing.assert_allclose(one.weights, expected, rtol=1e-5)
        np.testing.assert_allclose(one.ess, 1 / np.sum(expected**2, axis=-1), rtol=1e-5)
    assert result.weights.shape == (10,)
    assert result.ess.shape == ()
    assert grouped.weights.shape == (4, 10)
    assert grouped.ess.shape == (4,)


def test_history_ess_is_the_lowest_of_the_groups(grouped):
    assert not grouped.history["resampled"].any()
    np.testing.assert_allclose(grouped.history["ess"][-1], np.min(grouped.ess), rtol=1e-6)


def test_expectation(result):
    weights, x = np.array(result.weights, float), np.array(result.particles, float)
    np.testing.assert_allclose(result.expectation(lambda x: x), weights @ x, rtol=1e-5)
    found = result.expectation(lambda x: {"square": x**2, "large": x[0] > 1.0, "one": 1.0})
    np.testing.assert_allclose(found["square"], weights @ x**2, rtol=1e-5)
    np.testing.assert_allclose(found["large"], weights @ (x[:, 0] > 1.0), rtol=1e-5)
    np.testing.assert_allclose(found["one"], 1.0, rtol=1e-5)
    outer = result.expectation(lambda x: jnp.outer(x, x))
    np.testing.assert_allclose(outer, np.einsum("n,ni,nj->ij", weights, x, x), rtol=1e-5)


def test_expectation_of_groups(grouped):
    weights, x = np.array(grouped.weights, float), np.array(grouped.particles, float)
    found = grouped.expectation(lambda x: x)
    assert found.shape == (4, 2)
    np.testing.assert_allclose(found, np.einsum("gn,gni->gi", weights, x), rtol=1e-4, atol=1e-6)
    found = grouped.expectation(lambda x: x[0] * x[1])
    np.testing.assert_allclose(
        found, np.sum(weights * x[..., 0] * x[..., 1], axis=1), rtol=1e-4, atol=1e-6
    )


def test_a_particle_of_weight_zero_may_hold_anything(result):
    log_weights = np.array([0.3, -np.inf, 1.2, -0.5], np.float32)
    particles = np.array([[1.0, 2, 3], [np.nan, np.inf, 0], [4, 5, 6], [7, 8, 9]], np.float32)
    one = weighted(result, log_weights, particles)
    alive = [0, 2, 3]
    weights = softmax(log_weights[alive])
    assert one.weights[1] == 0.0
    np.testing.assert_allclose(one.expectation(lambda x: x), weights @ particles[alive], rtol=1e-5)
    np.testing.assert_allclose(one.ess, 1 / np.sum(weights**2), rtol=1e-5)
    assert np.isfinite(one.resample(KEY, 1000)).all()


def test_weights_far_out_do_not_overflow(result):
    one = weighted(result, np.array([5000.0, 4999.0, 0.0], np.float32), np.ones((3, 3)))
    np.testing.assert_allclose(one.weights, softmax([5000.0, 4999.0, 0.0]), rtol=1e-5)


# ---------------------------------------------------------------- resampling


def test_resample_frequencies(result):
    """Systematic: every particle n w^i times, rounded up or down."""
    log_weights = np.array([0.0, 1.0, -1.0, -np.inf, 0.5], np.float32)
    one = weighted(result, log_weights, np.arange(5.0)[:, None])
    draws = np.array(one.resample(KEY, 1000))
    assert draws.shape == (1000, 1)
    counts = np.bincount(draws[:, 0].astype(int), minlength=5)
    expected = 1000 * softmax(log_weights)
    assert np.all(np.abs(counts - expected) <= 1.0)
    assert counts[3] == 0


def test_resample_of_groups_keeps_to_its_group(grouped):
    particles = np.arange(4.0)[:, None, None] * 10 + np.arange(10.0)[:, None]
    log_weights = np.random.default_rng(0).normal(size=(4, 10)).astype(np.float32)
    one = weighted(grouped, log_weights, particles)
    draws = np.array(one.resample(KEY, 500))
    assert draws.shape == (4, 500, 1)
    for group in range(4):
        counts = np.bincount((draws[group, :, 0] - 10 * group).astype(int), minlength=10)
        assert np.all(np.abs(counts - 500 * softmax(log_weights[group])) <= 1.0)


def test_resample_never_brings_back_the_dead(result):
    """In float32 these weights sum to a little less than one, and the last draw lies beyond."""
    log_weights = np.append(np.random.default_rng(5).normal(size=3000), -np.inf)
    particles = np.append(np.zeros(3000), np.nan)[:, None]
    one = weighted(result, log_weights.astype(np.float32), particles)
    assert jax.random.uniform(jax.random.key(65)) > 0.98
    assert np.isfinite(one.resample(jax.random.key(65), 100_000)).all()


def test_resample_depends_on_the_key(result):
    first = result.resample(jax.random.key(1), 7)
    np.testing.assert_array_equal(first, result.resample(jax.random.key(1), 7))
    others = [result.resample(jax.random.key(seed), 7) for seed in range(2, 8)]
    assert any(not np.array_equal(first, other) for other in others)


# ---------------------------------------------------------------- theta, text


def test_theta_average(result):
    theta = result.history["theta"]
    np.testing.assert_allclose(result.theta_average(), theta[6:].mean(), rtol=1e-6)
    np.testing.assert_allclose(result.theta_average(last=0.25), theta[9:].mean(), rtol=1e-6)
    np.testing.assert_allclose(result.theta_average(last=1), theta.mean(), rtol=1e-6)
    np.testing.assert_allclose(result.theta_average(last=1e-9), theta[-1], rtol=1e-6)
    np.testing.assert_allclose(theta[-1], result.theta)


def test_summary(result, grouped):
    text = result.summary()
    assert text == repr(result)
    for part in (
        "JALAEM: 12 steps, 10 particles",
        "status: max_steps (12 steps done)",
        f"{float(result.theta):.5g}",
        f"{result.path_log_evidence:.3f}",
        "log evidence",
        f"{float(result.ess):.1f} of 10",
    ):
        assert part in text
    assert "died" not in text
    assert "10 particles x 4 groups" in grouped.summary()


def test_summary_names_the_leaves_of_theta(result):
    theta = {"mean": jnp.array(1.25), "scale": jnp.arange(10.0)}
    text = dataclasses.replace(result, theta=theta).summary()
    assert "  mean  " in text
    assert "1.25" in text
    assert "  scale  " in text
    assert "(10 in all)" in text


# ---------------------------------------------------------------- evidence


def test_path_log_evidence(result, grouped):
    base, log_weights = result.state.log_evidence_base, result.state.log_weights
    expected = np.sum(base + logsumexp(log_weights, axis=-1) - np.log(10))
    np.testing.assert_allclose(result.path_log_evidence, expected, rtol=1e-5)
    assert result.history["log_evidence"].shape == (12,)
    np.testing.assert_allclose(result.history["log_evidence"][-1], expected, rtol=1e-5)
    np.testing.assert_allclose(
        grouped.path_log_evidence, grouped.history["log_evidence"][-1], rtol=1e-4
    )


def test_log_evidence_is_a_fresh_estimate_and_is_saved(result, tmp_path):
    exact = float(result.origin.model.exact_log_evidence(result.theta))
    assert abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error + 1e-4
    assert 0 < result.log_evidence_error <= 0.03
    result.save(tmp_path / "result.npz")
    again = jalax.load(tmp_path / "result.npz")
    assert (again.log_evidence, again.log_evidence_error) == (
        result.log_evidence,
        result.log_evidence_error,
    )
    assert again.evidence.interval() == result.evidence.interval()


def test_an_algorithm_without_evidence():
    pgd = fit(algorithm=jalax.PGD(step_size=0.05))
    assert "log_evidence" not in pgd.history
    assert "none: PGD gives no evidence" in pgd.summary()


def test_relative_evidence(result):
    relative = fit(start=jalax.Given(PARTICLES))
    # A fresh estimate does not need the start's.
    exact = float(relative.origin.model.exact_log_evidence(relative.theta))
    assert abs(relative.log_evidence - exact) < 4.5 * relative.log_evidence_error + 1e-4
    assert "log Z / Z_0 (path)" in relative.summary()
    np.testing.assert_array_equal(relative.theta, result.theta)
    np.testing.assert_allclose(relative.path_value - 7.0, result.path_log_evidence, rtol=1e-5)
    np.testing.assert_allclose(
        relative.history["log_evidence"] - 7.0, result.history["log_evidence"], rtol=1e-5
    )


def test_evidence_of_groups_in_one_number_or_one_a_group(grouped):
    """Only the sum is reported, so that a total and its shares are the same."""
    total = fit_groups(6.0)
    np.testing.assert_allclose(grouped.path_log_evidence, total.path_log_evidence, rtol=1e-5)


# ---------------------------------------------------------------- constrain


def scale_joint(scale, x, data):
    return -0.5 * jnp.sum((x / scale) ** 2) - 3 * jnp.log(scale) - 0.5 * jnp.sum((data - x) ** 2)


def test_constrain_optimises_one_scale_and_reports_the_other(tmp_path):
    def split(theta):
        return {"mean": theta[0], "scale": jnp.exp(theta[1])}

    def log_joint(theta, x, data):
        return scale_joint(theta["scale"], x - theta["mean"], data)

    theta, gamma, seen = np.array([0.1, 0.2]), 0.02, []
    found = fit(
        jalax.Model(log_joint, jnp.zeros(3), Y, constrain=split),
        theta,
        algorithm=jalax.PGD(step_size=gamma),
        num_steps=6,
        callbacks=[jalax.stop_when(lambda run: seen.append(run.theta))],
    )
    # The first step by hand: the gradient is that in log(scale).
    residual = (PARTICLES - theta[0]) / np.exp(theta[1])
    by_log_scale = np.mean(np.sum(residual**2, axis=1)) - 3
    first = found.history["theta"]
    np.testing.assert_allclose(first["scale"][0], np.exp(0.2 + gamma * by_log_scale), rtol=1e-5)

    assert set(found.theta) == set(first) == {"mean", "scale"}
    assert first["scale"].shape == (6,)
    assert found.state.theta.shape == (2,)
    np.testing.assert_allclose(found.theta["mean"], found.state.theta[0], rtol=1e-6)
    np.testing.assert_allclose(found.theta["scale"], np.exp(found.state.theta[1]), rtol=1e-6)
    for name in found.theta:
        np.testing.assert_allclose(first[name][-1], found.theta[name], rtol=1e-6)
        np.testing.assert_array_equal(seen[-1][name], found.theta[name])
    assert f"{float(found.theta['scale']):.5g}" in found.summary()
    found.save(tmp_path / "result.npz")
    assert_same_result(jalax.load(tmp_path / "result.npz"), found)


# ---------------------------------------------------------------- files


class Pair(NamedTuple):
    mean: jax.Array
    scale: jax.Array


def assert_same_tree(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)


def assert_same_result(a, b):
    for name in ("theta", "free", "particles", "log_weights", "history"):
        assert_same_tree(getattr(a, name), getattr(b, name))
    for field in dataclasses.fields(a):
        # origin, the model in memory, is not saved; an evidence only if it was asked for.
        other = ("state", "origin", "saved_evidence", "free")
        if field.name not in ("theta", "particles", "log_weights", "history", *other):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
            assert type(getattr(a, field.name)) is type(getattr(b, field.name))
    assert a.summary() == b.summary()


def with_theta(result, theta):
    """The result with another tree for theta, and the history to go with it."""
    theta = jax.tree.map(jnp.asarray, theta)
    rows = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 12), theta)
    return dataclasses.replace(result, theta=theta, history={**result.history, "theta": rows})


THETAS = {
    "number": 1.5,
    "dict": {"b": np.arange(3.0), "a": 0.5},
    "list": [0.5, np.ones((2, 2))],
    "tuple": (0.5, np.ones((2, 2))),
    "nested": {"a": [0.5, (1.5, {"b": np.zeros(0)})], "c": ()},
    "slashes": {"a": [1.0, 2.0], "a/0": 3.0, "a/b": {"c": 4.0}, "a/b/c": 5.0},
    "float16": np.ones(3, np.float16),
}


@pytest.mark.parametrize("name", THETAS)
def test_save_and_load(result, tmp_path, name):
    one = with_theta(result, THETAS[name])
    one.save(tmp_path / "result.npz")
    loaded = jalax.load(tmp_path / "result.npz")
    assert_same_result(loaded, one)
    assert isinstance(jax.tree.leaves(loaded.theta)[0], jax.Array)
    loaded.save(tmp_path / "again.npz")
    assert_same_result(jalax.load(tmp_path / "again.npz"), one)


def test_save_and_load_groups_in_double_precision(grouped, tmp_path, x64):
    rng = np.random.default_rng(0)
    particles = {"u": jnp.asarray(rng.normal(size=(4, 5, 2))), "v": [jnp.ones((4, 5))]}
    log_weights = jnp.asarray(rng.normal(size=(4, 5)))
    one = dataclasses.replace(grouped, particles=particles, log_weights=log_weights)
    assert one.particles["u"].dtype == np.float64
    one.save(str(tmp_path / "result.npz"))
    assert_same_result(jalax.load(str(tmp_path / "result.npz")), one)


def test_another_container_needs_like(result, tmp_path):
    one = with_theta(result, {"both": Pair(0.5, np.ones(2)), "none": None})
    one.save(tmp_path / "result.npz")
    loaded = jalax.load(tmp_path / "result.npz", like=one)
    assert_same_result(loaded, one)
    assert isinstance(loaded.theta["both"], Pair)


def test_a_loaded_result_still_works(result, tmp_path):
    result.save(tmp_path / "result.npz")
    loaded = jalax.load(tmp_path / "result.npz")
    assert loaded.status is jalax.Status.MAX_STEPS
    assert loaded.path_log_evidence == result.path_log_evidence
    np.testing.assert_array_equal(loaded.weights, result.weights)
    np.testing.assert_array_equal(loaded.resample(KEY, 9), result.resample(KEY, 9))
    np.testing.assert_array_equal(loaded.theta_average(), result.theta_average())


def test_a_result_without_a_step_is_saved_too(tmp_path):
    one = fit(algorithm=jalax.JALAEM(step_size=1e38))
    assert one.status == "diverged"
    one.save(tmp_path / "result.npz")
    assert_same_result(jalax.load(tmp_path / "result.npz"), one)


@pytest.mark.parametrize("algorithm", [jalax.JALAEM, jalax.PGD])
def test_a_fit_continued_from_a_file_equals_the_uninterrupted_one(tmp_path, algorithm):
    algorithm = algorithm(step_size=0.05)
    whole = fit(algorithm=algorithm)
    fit(algorithm=algorithm, num_steps=5).save(tmp_path / "result.npz")
    loaded = jalax.load(tmp_path / "result.npz")
    rest = fit(algorithm=algorithm, state=loaded.state, num_steps=7)
    assert_same_tree(rest.state, whole.state)
    assert_same_tree(rest.theta, whole.theta)
    joined = jax.tree.map(lambda *rows: np.concatenate(rows), loaded.history, rest.history)
    assert_same_tree(joined, whole.history)
    rest.save(tmp_path / "result.npz")  # and once more
    assert_same_result(jalax.load(tmp_path / "result.npz"), rest)


def test_a_path_far_from_the_fresh_evidence_is_not_shown():
    one = np.array([-100.0])
    fresh = Evidence(-100.0, 0.02, np.inf, "importance", 0.1, 0.9, 8000, 8, 1, one, ())
    assert path_is_off(-99.0, 0.2, fresh) == ""  # another theta may explain it
    assert path_is_off(-98.0, 1.0, fresh) == ""
    assert "differs by 4.0" in path_is_off(-96.0, 0.2, fresh)
    doubted = dataclasses.replace(fresh, messages=("something",))
    assert path_is_off(-96.0, 0.2, doubted) == ""  # no reason to believe the other


def test_a_path_too_long_for_its_evidence_says_so():
    """The bias of a path that follows its particles has no bound, and after many steps no sense."""
    model = jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))
    result = jalax.fit(
        model,
        0.0,
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(step_size=0.5, resample_below=0.95),
        num_particles=10,
        num_steps=2000,
        record=100,
    )
    exact = float(model.exact_log_evidence(result.theta))
    with pytest.warns(UserWarning, match=r"so long .* log_evidence, a fresh estimate"):
        assert abs(result.path_log_evidence - exact) > 3  # it is indeed of no use
    assert "and biased" in result.summary()
    assert abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error
