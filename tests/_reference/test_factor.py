"""One factor for band, border, dense and diagonal, against dense NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jalax
import structures
from jalax._model.structure import Pattern
from jalax._reference import factor as factor_module
from jalax._reference.compressed import compressed_hessian
from jalax._reference.factor import (
    factorise,
    factorise_positive,
    log_det_in_double,
    log_det_of_model,
)
from jalax._reference.plan import plan_of
from profiles import examples

CASES = {
    "series": structures.series(300),
    "series in any order": structures.shuffled(structures.series(280)),
    "grid": structures.grid(18, 20),
    "two factors": structures.crossed((40, 25), 200),
    "three factors": structures.crossed((40, 25, 3), 300),
    "global": structures.with_global(300),
    "dense": Pattern.dense(30),
    "diagonal": Pattern.of([], [], 9),
    "one": Pattern.of([], [], 1),
    "two": Pattern.dense(2),
}


def factor_of(pattern, seed=0, dtype=float, least_colours=1):
    plan, H = plan_of(pattern, (), least_colours), structures.matrix(pattern, seed)
    return factorise(plan, structures.compressed(plan, H, dtype)), H


@jax.jit  # operation by operation these are a dozen programs a size
def of_identity(factor, one):
    """log det, L^-T z of each unit z, and the transpose and the product of both."""
    products = factor.from_white(one), factor.to_white_gradient(one), factor.solve(one)
    return factor.log_det, *products


solved = jax.jit(lambda factor, v: factor.solve(v))


def assert_is_factor_of(factor, H, error):
    """`error`: of H^{-1} and of the identity, relative to their size."""
    size = H.shape[0]
    inverse = np.linalg.inv(H)
    assert bool(factor.positive)
    log_det, from_white, transposed, product = of_identity(factor, np.eye(size))
    np.testing.assert_allclose(log_det, np.linalg.slogdet(H)[1], rtol=error, atol=error)
    root = np.asarray(from_white, float).T
    largest = np.abs(inverse).max()
    np.testing.assert_allclose(root @ root.T, inverse, atol=error * largest)
    # Its transpose, and both together.
    np.testing.assert_allclose(transposed, root, atol=error * np.sqrt(largest))
    np.testing.assert_allclose(product, inverse, atol=error * largest)


@pytest.mark.slow_cases(*(f"float64-{name}" for name in CASES))
@pytest.mark.parametrize("name", CASES)
def test_against_dense_numpy(name, precision):
    factor, H = factor_of(CASES[name])
    assert factor.pivots.dtype.name == precision
    assert_is_factor_of(factor, H, 2e-5 if precision == "float32" else 1e-12)


def test_the_cases_are_what_they_are_called():
    """A band, a diagonal, each with and without a border, and a border alone."""
    kinds = {name: plan_of(pattern) for name, pattern in CASES.items()}
    found = {name: (plan.block > 1, plan.border.size > 0) for name, plan in kinds.items()}
    assert found["series"] == found["series in any order"] == found["grid"] == (True, False)
    assert found["global"] == (True, True)
    assert found["two factors"] == found["three factors"] == (False, True)
    assert found["diagonal"] == found["one"] == (False, False)
    assert kinds["dense"].rest.size == kinds["two"].rest.size == 0
    assert kinds["series"].num_blocks * 32 > 300  # the last block is filled up


@pytest.mark.parametrize("name", ["global", "two factors", "diagonal"])
def test_one_vector_several_and_inside_of_a_program(name, x64):
    factor, H = factor_of(CASES[name])
    size = H.shape[0]
    v = np.random.default_rng(0).normal(size=(2, 3, size))
    for method in ("solve", "from_white", "to_white_gradient"):
        whole = getattr(factor, method)(v)
        assert whole.shape == v.shape
        np.testing.assert_allclose(getattr(factor, method)(v[1, 2]), whole[1, 2], atol=1e-13)
        inside = jax.jit(lambda f, v, m=method: getattr(f, m)(v))(factor, v)
        np.testing.assert_allclose(inside, whole, atol=1e-13)


def test_a_large_border_is_solved(x64, monkeypatch):
    """Of a size that no other test has: what is compiled stays."""
    monkeypatch.setattr(factor_module, "INVERTED_UP_TO", 20)
    factor, H = factor_of(Pattern.dense(33))
    np.testing.assert_allclose(factor.corner, np.linalg.cholesky(H), atol=1e-12)
    assert_is_factor_of(factor, H, 1e-12)


@pytest.mark.parametrize("name", ["dense", "global", "two factors", "grid"])
@pytest.mark.parametrize("method", ["solve", "from_white", "to_white_gradient"])
def test_nothing_is_solved_by_lapack_once_it_is_factorised(name, method):
    """Two such calls of many groups each wait for each other in XLA's pool of two threads.

    So did a fit of 161 groups of 38 latents, on two idle cores more often than not.
    """
    factor, H = factor_of(CASES[name])
    program = jax.make_jaxpr(lambda f, v: getattr(f, method)(v))(factor, np.zeros((3, len(H))))
    assert "dot_general" in str(program)
    assert "triangular_solve" not in str(program)
    assert "cholesky" not in str(program)


def test_a_diagonal_is_divided_by_its_root(x64):
    """The order of z is that of x: no latent is mixed with another."""
    pattern = Pattern.of([], [], 9)
    factor, H = factor_of(pattern)
    z = np.random.default_rng(0).normal(size=(4, 9))
    np.testing.assert_allclose(factor.from_white(z), z / np.sqrt(np.diag(H)), rtol=1e-13)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 5, 36, 70]),  # few: each is compiled
    st.sampled_from([0.0, 1.0, 2.5]),
    st.integers(0, 2),
)
@examples(8)
def test_any_pattern(seed, size, degree, hubs):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, size, (2, int(degree * size)))
    every, hub = np.tile(np.arange(size), hubs), np.repeat(rng.integers(0, size, hubs), size)
    pattern = Pattern.of(np.concatenate([rows, every]), np.concatenate([cols, hub]), size)
    with jax.enable_x64(True):
        assert_is_factor_of(*factor_of(pattern, seed % 1000), 1e-11)


# ---------------------------------------------------------------- not positive definite


@pytest.mark.slow_cases(*(f"float64-{x}" for x in ("series", "two factors", "dense", "diagonal")))
@pytest.mark.parametrize("name", ["series", "global", "two factors", "dense", "diagonal", "one"])
def test_what_is_not_positive_definite_is_said_and_mended(name, precision):
    """One negative direction of each: in the band, in the border, or anywhere."""
    pattern = CASES[name]
    plan, H = plan_of(pattern), structures.matrix(pattern)
    factor = factorise_positive(plan, structures.compressed(plan, H))
    assert (bool(factor.positive), float(factor.ridge)) == (True, 0.0)
    for place in (0, pattern.size // 2, pattern.size - 1):
        bad = H.copy()
        bad[place, place] = -3.0
        values = structures.compressed(plan, bad)
        assert not bool(factorise(plan, values).positive)
        factor = factorise_positive(plan, values)
        ridge = float(factor.ridge)
        assert ridge > 0
        added = bad + ridge * np.diag(np.abs(np.diag(bad)))
        assert np.linalg.eigvalsh(added).min() > 0
        before = bad + ridge / 8 * np.diag(np.abs(np.diag(bad)))
        assert np.linalg.eigvalsh(before).min() < 1e-4
        v = np.ones(pattern.size)
        error = 1e-3 if precision == "float32" else 1e-9
        np.testing.assert_allclose(solved(factor, v), np.linalg.solve(added, v), rtol=error)


def test_a_zero_and_a_nan_are_not_positive(x64):
    plan = plan_of(CASES["diagonal"])
    good = structures.compressed(plan, structures.matrix(CASES["diagonal"]))
    for bad in (0.0, np.nan):
        assert not bool(factorise(plan, good.at[0, 4].set(bad)).positive)
    assert not bool(factorise_positive(plan, good.at[0, 4].set(np.nan)).positive)  # it ends
    # Without curvature: a ridge gives it a little.
    assert bool(factorise_positive(plan, good.at[0, 4].set(0.0)).positive)


# ---------------------------------------------------------------- digits and compilation


def chain(theta, x, data):
    """Near a random walk: phi = 0.97."""
    prior = jnp.sum((x[1:] - 0.97 * x[:-1]) ** 2) + (1 - 0.97**2) * x[0] ** 2
    return -0.5 * prior / theta**2 + jnp.sum(data * x - jnp.exp(x))


def test_the_log_determinant_of_a_long_series_in_float32():
    size, sd = 3_000, 0.2
    rng = np.random.default_rng(0)
    data, x = rng.poisson(1.0, size), rng.normal(size=size).astype(np.float32)
    model = jalax.Model(
        chain, jnp.zeros(size), jnp.asarray(data, float), structure=structures.series(size)
    )
    plan = plan_of(model.structure)
    sd = np.float32(sd)
    main = np.full(size, 1 + 0.97**2)
    main[0] = main[-1] = 1.0
    H = np.diag(main / float(sd) ** 2 + np.exp(x.astype(float)))
    i = np.arange(size - 1)
    H[i + 1, i] = H[i, i + 1] = -0.97 / float(sd) ** 2
    exact = np.linalg.slogdet(H)[1]
    factor = factorise(plan, compressed_hessian(model, sd, x, plan))
    assert factor.pivots.dtype == np.float32
    assert abs(log_det_in_double(factor) - exact) < 1e-3
    assert abs(log_det_of_model(model, sd, x, plan) - exact) < 1e-8
    v = rng.normal(size=(2, size))
    np.testing.assert_allclose(factor.solve(jnp.asarray(v @ H)), v, atol=1e-4)


def test_other_indices_of_the_same_sizes_compile_nothing(x64):
    def look(seed):
        pattern = structures.crossed((40, 25), 200, seed)
        factor, H = factor_of(pattern, seed, least_colours=16)
        return factor.solve(np.ones(65)), np.linalg.solve(H, np.ones(65))

    np.testing.assert_allclose(*look(0), rtol=1e-10)
    once = factorise.program._cache_size()
    np.testing.assert_allclose(*look(1), rtol=1e-10)
    assert factorise.program._cache_size() == once
