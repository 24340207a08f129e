"""Quasi-random points: SciPy's net, a lattice, Student's quantiles, and known integrals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

import jalax
from jalax._reference import group_points, points
from jalax._reference.group_points import follow_mode
from jalax._reference.small_matrices import cholesky, inverse_of_lower

KEY = jax.random.key(0)


@pytest.mark.parametrize("dimension", [4, 6, 20])
def test_the_table_is_sobols_net(dimension):
    ours = points.table(256, dimension) / 2.0**32
    net = qmc.Sobol(dimension, scramble=False).random(256)
    np.testing.assert_array_equal(np.sort(ours, axis=0), np.sort(net, axis=0))
    order, other = np.lexsort(ours.T), np.lexsort(net.T)
    np.testing.assert_array_equal(ours[order], net[other])


@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_points_are_in_the_open_cube_and_evenly_spread(dimension, precision):
    u = points.uniforms(KEY, 512, dimension, jnp.dtype(precision))
    assert u.dtype.name == precision
    assert u.min() > 0
    assert u.max() < 1
    # One point in each of 512 intervals of every coordinate.
    for column in np.floor(np.asarray(u, float) * 512).T:
        assert sorted(column) == list(range(512))


def test_shifts_make_an_average_unbiased_and_better_than_random_draws(x64):
    """E[exp(u1 + u2)] = (e - 1)^2, over 200 shifts of 1024 points."""

    def mean(key):
        u = points.uniforms(key, 1024, 2, jnp.dtype(float))
        return jnp.mean(jnp.exp(u.sum(axis=1)))

    found = np.asarray(jax.jit(jax.vmap(mean))(jax.random.split(KEY, 200)))
    exact, error = (np.e - 1) ** 2, found.std(ddof=1) / np.sqrt(200)
    assert abs(found.mean() - exact) < 4.5 * error
    # The variance of one draw is E[exp(2 u)]^2 - E[exp(u)]^4.
    drawn = np.sqrt((((np.e**2 - 1) / 2) ** 2 - exact**2) / 1024)
    assert found.std() < drawn / 10


def test_students_quantile_and_density(x64):
    u = np.concatenate([[1e-9, 0.5, 1 - 1e-9], np.linspace(0.001, 0.999, 97)])
    t = points.student_quantile(jnp.asarray(u))
    np.testing.assert_allclose(t, stats.t(4).ppf(u), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(points.student_log_density(t), stats.t(4).logpdf(t), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_factors(size, x64):
    A = np.random.default_rng(size).normal(size=(size, size))
    H = A @ A.T + np.eye(size)
    L = cholesky(jnp.asarray(H))
    np.testing.assert_allclose(L, np.linalg.cholesky(H), atol=1e-12)
    np.testing.assert_allclose(inverse_of_lower(L) @ L, np.eye(size), atol=1e-12)
    assert np.isnan(cholesky(jnp.asarray(-H))).any()


@pytest.mark.parametrize("first", [0.0, 30.0, -8.0])
def test_the_mode_of_a_skewed_density(first, x64):
    """log p = a x - b e^x: the mode is log(a / b), its curvature a; from far away as well."""
    a, b = 3.0, 2.0

    def log_density(x):
        return jnp.sum(a * x - b * jnp.exp(x))

    follow = jax.jit(lambda start: follow_mode(log_density, start))
    mode, value, root, log_det = follow(jnp.full(2, first))
    np.testing.assert_allclose(mode, np.log(a / b), atol=1e-6)
    np.testing.assert_allclose(value, 2 * (a * np.log(a / b) - a), atol=1e-5)
    np.testing.assert_allclose(root, np.eye(2) / np.sqrt(a), atol=1e-5)
    np.testing.assert_allclose(log_det, -np.log(a), atol=1e-5)


@pytest.mark.slow_cases("4")
@pytest.mark.parametrize("dimension", [1, 4])
def test_points_in_blocks_are_the_points(dimension, x64, monkeypatch):
    """A quarter of them are the points of a smaller pass, all blocks those of one block."""

    def log_joint(theta, x, y):
        log_normal = jax.scipy.stats.norm.logpdf
        prior = jnp.sum(log_normal(x, theta[0], jnp.exp(theta[1])))
        return prior + jnp.sum(jax.scipy.stats.poisson.logpmf(y, jnp.exp(x)))

    y = np.random.default_rng(0).poisson(3.0, size=(5, dimension))
    model = jalax.GroupedModel(log_joint, jnp.zeros(dimension), jnp.asarray(y, float))

    def looker(num):
        def look(few):
            theta, modes = jnp.array([1.0, -0.5]), jnp.zeros((5, dimension))
            seen = group_points.look(KEY, model, theta, modes, num, True, few, 1)
            return seen.log_p, seen.score, seen.missing, seen.dead

        return jax.jit(look)

    whole = {num: looker(num)(jnp.asarray(False)) for num in (64, 256, 1024)}
    monkeypatch.setattr(group_points, "WORTH_BLOCKS", 0)
    assert [group_points.num_blocks(model, num) for num in whole] == [4, 4, 8]
    for num, a_quarter in ((256, 64), (1024, 256)):
        look = looker(num)
        for few, same in ((False, num), (True, a_quarter)):
            for ours, theirs in zip(look(jnp.asarray(few)), whole[same], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9)
