"""Patterns of Hessians: what is accepted, the border, the colours, the entries, and the probes."""

from __future__ import annotations

import sys
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy import sparse

import jalax
import structures
from jalax._model.checks import prepare_model
from jalax._model.evaluation import log_joint_of_vectors
from jalax._model.structure import Pattern, as_pattern
from jalax._reference.compressed import check_pattern, checked_plan, compressed_hessian, times
from jalax._reference.pattern import name_of, pattern_of, pieces_of
from jalax._reference.plan import plan_of
from jalax._reference.split import rounded, split
from jalax.problems import _data
from profiles import examples

# ---------------------------------------------------------------- what the user says


BAND = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    "given",
    [
        ([1, 2], [0, 1]),
        [np.array([0, 1, 1, 1]), np.array([1, 2, 2, 0], np.uint8)],
        BAND.astype(bool),
        BAND.T,
        jnp.asarray(BAND),
        sparse.csr_array(BAND),
        sparse.coo_matrix(BAND.T),
        structures.Pattern.of([2, 1], [1, 0], 4),
    ],
)
def test_a_structure_in_any_form(given):
    found = as_pattern(given, 4)
    expected = {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 3)}
    assert sorted(zip(found.rows, found.cols, strict=True)) == sorted(expected)
    both = np.eye(4) + np.diag([1, 1, 0], 1) + np.diag([1, 1, 0], -1)
    np.testing.assert_array_equal(found.matrix().toarray(), both)


def test_entries_that_a_sparse_matrix_stores_as_zero_count():
    stored = sparse.coo_array((np.zeros(1), ([2], [0])), shape=(3, 3))
    assert (2, 0) in zip(*(lambda p: (p.rows, p.cols))(as_pattern(stored, 3)), strict=True)


def chain(theta, x, data):
    return -0.5 * jnp.sum((x[1:] - jnp.tanh(theta) * x[:-1]) ** 2) - jnp.sum(jnp.exp(x) * data)


def test_the_structure_stays_with_the_model():
    model = jalax.Model(chain, jnp.zeros(5), jnp.ones(5), structure=structures.series(5))
    for other in (model.replace(data=jnp.zeros(5)), model.refreshed(), prepare_model(model)):
        assert other.structure is model.structure
    assert model.replace(structure=None).structure is None
    new = model.replace(structure=([4], [0]))
    assert (new.structure.rows.size, model.structure.rows.size) == (6, 9)
    with pytest.raises(ValueError, match=r"structure has shape \(5, 5\), and the latent has 4"):
        model.replace(latent=jnp.zeros(4))
    # On the host only: it is no part of what programs are compiled for.
    assert jax.tree.structure(model) == jax.tree.structure(new)
    assert jax.tree.map(lambda leaf: leaf, model).structure is None


def test_where_a_pattern_comes_from():
    model = jalax.Model(chain, jnp.zeros(5), jnp.ones(5))
    assert pattern_of(model, 0.5).rows.size == 15  # dense: there are few
    assert pattern_of(model.replace(structure=structures.series(5)), 0.5).rows.size == 9
    large = jalax.Model(chain, jnp.zeros(500), jnp.ones(500))
    message = "needs asdex: pip install 'jalax\\[sparse\\]', or say which by"
    with mock.patch.dict(sys.modules, asdex=None), pytest.raises(ImportError, match=message):
        pattern_of(large, 0.5)


def test_latents_have_names():
    model = jalax.Model(chain, {"a": jnp.zeros((2, 3)), "b": 0.0, "c": jnp.zeros(2)})
    names = [name_of(model, k) for k in (0, 5, 6, 8)]
    assert names == ["x['a'][0, 0]", "x['a'][1, 2]", "x['b']", "x['c'][1]"]
    assert pieces_of(model) == (6, 1, 2)


# ---------------------------------------------------------------- the border and the order


@pytest.mark.parametrize(
    ("pattern", "expected"),  # outside of the border, in it, rows of a block
    [
        (structures.series(100_000), (100_000, 0, 32)),
        (structures.shuffled(structures.series(1_000)), (1_000, 0, 32)),
        (structures.grid(30, 30), (900, 0, 32)),
        (structures.grid(60, 70), (4_200, 0, 64)),
        (structures.crossed((700, 300), 12_000), (700, 300, 1)),
        (structures.crossed((300, 700), 12_000), (700, 300, 1)),
        (structures.crossed((60, 60), 2_400), (60, 60, 1)),
        (structures.shuffled(structures.crossed((700, 300), 12_000)), (700, 300, 1)),
        (structures.crossed((400, 150, 12), 8_000), (400, 162, 1)),
        (structures.with_global(5_000), (5_000, 1, 32)),
        (Pattern.dense(300), (0, 300, 1)),
        (Pattern.of([], [], 700), (700, 0, 1)),
        (Pattern.of([], [], 1), (1, 0, 1)),
    ],
)
def test_the_border_is_found(pattern, expected):
    found = split(pattern)
    assert (found.rest.size, found.border.size, found.block) == expected
    assert sorted([*found.rest, *found.border]) == list(range(pattern.size))


def test_the_leaves_of_the_latent_are_tried_as_borders():
    """A series, and 150 effects that each meet a quarter of it."""
    T = 400
    part = structures.series(T)
    rows, cols = [part.rows], [part.cols]
    for extra in range(T, T + 150):
        rows.append(np.full(T // 4, extra))
        cols.append(np.arange(extra % 4, T, 4))
    pattern = Pattern.of(np.concatenate(rows), np.concatenate(cols), T + 150)
    found = split(pattern, (T, 150))
    assert (found.rest.size, found.border.size, found.block) == (T, 150, 32)


def test_two_factors_of_many_levels_are_refused():
    message = r"of these 5,000 latents has .* a border of at most 2,000: crossed factors may have"
    with pytest.raises(ValueError, match=message):
        split(structures.crossed((2_500, 2_500), 60_000))


def test_numbers_of_colours_are_round():
    assert [rounded(k) for k in (1, 2, 3, 4, 5, 7, 9, 13, 100)] == [1, 2, 3, 4, 6, 8, 12, 16, 128]


def assert_every_entry_is_read(pattern, seed=0):
    """Each from the product of its column's colour; exact, as these are integers."""
    plan = plan_of(pattern)
    H = np.zeros((pattern.size, pattern.size))
    H[pattern.rows, pattern.cols] = np.random.default_rng(seed).integers(1, 1000, pattern.rows.size)
    H = np.tril(H) + np.tril(H, -1).T
    values = np.asarray(structures.compressed(plan, H))
    place, colour, n = (np.asarray(a) for a in (plan.place, plan.colour, plan.rest.size))
    for i, j in zip(pattern.rows, pattern.cols, strict=True):
        if place[i] < place[j] and place[j] < n:
            i, j = j, i  # outside of the border either will do
        both = (i, j) if place[i] >= place[j] else (j, i)  # row last
        row, col = both if place[both[0]] < n or place[both[1]] >= n else both[::-1]
        assert values[colour[col], row] == H[row, col]
    return plan


PATTERNS = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.tuples(st.just(seed), st.integers(1, 90), st.floats(0, 3), st.integers(0, 3))
)


def random_pattern(seed: int, size: int, degree: float, hubs: int) -> Pattern:
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, size, (2, int(degree * size)))
    hub = rng.integers(0, size, hubs)
    every = np.tile(np.arange(size), hubs)
    return Pattern.of(
        np.concatenate([rows, every]), np.concatenate([cols, np.repeat(hub, size)]), size
    )


@given(PATTERNS)
@examples(60)
def test_colours_of_any_pattern(case):
    assert_every_entry_is_read(random_pattern(*case))


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        (structures.series(2_000), 3),
        (structures.grid(40, 40), 12),
        (structures.with_global(500), 4),
        (structures.crossed((300, 100, 5), 1_500), 48),
        (Pattern.of([], [], 50), 1),
    ],
)
def test_colours_are_few(pattern, most):
    """A latent that meets all others takes one more, not as many as there are."""
    assert assert_every_entry_is_read(pattern).num_colours <= most


def test_a_full_band_is_coloured_by_position(monkeypatch):
    monkeypatch.setattr("jalax._reference.plan.MOST_NEIGHBOURS", 10)
    rows, cols = np.nonzero(np.abs(np.subtract.outer(np.arange(400), np.arange(400))) <= 30)
    plan = assert_every_entry_is_read(Pattern.of(rows, cols, 400))
    assert plan.block == 32


# ---------------------------------------------------------------- the entries


def volatility(theta, x, data):
    """A series, its level and a slope, which meet all of it and not each other."""
    h, level = x["h"], x["level"]
    steps = h[1:] - jnp.tanh(theta) * h[:-1] - level[1] * jnp.sin(h[:-1])
    prior = -0.5 * jnp.sum(steps**2) - 0.5 * jnp.sum(level**2)
    return prior - 0.5 * jnp.sum(level[0] + h + data**2 * jnp.exp(-level[0] - h))


def effects(theta, x, data):
    eta = theta + sum(x[name][data["level"][name]] for name in x)
    prior = -0.5 * sum(jnp.sum(u**2) for u in x.values())
    return prior + jnp.sum(data["y"] * eta - jnp.logaddexp(0.0, eta))


def field(theta, x, data):
    smooth = jnp.sum((x[1:] - x[:-1]) ** 2) + jnp.sum(jnp.cosh(x[:, 1:] - x[:, :-1]))
    return -smooth - 0.1 * jnp.sum(x**2) + jnp.sum(data * x - jnp.exp(theta + x))


def regression(theta, x, data):
    return -jnp.sum(jnp.logaddexp(0.0, data @ x)) - 0.5 * jnp.sum(x**2) * jnp.exp(theta)


def effects_model(sizes, rows, seed=0):
    of = dict(zip("abc", structures.levels(sizes, rows, seed), strict=False))
    y = np.random.default_rng(seed).integers(0, 2, rows).astype(float)
    latent = {name: jnp.zeros(size) for name, size in zip(of, sizes, strict=True)}
    data = jax.tree.map(jnp.asarray, {"level": of, "y": y})
    return jalax.Model(effects, latent, data, structure=structures.crossed(sizes, rows, seed))


def volatility_model(T):
    i = np.arange(T)
    rows = np.concatenate([i[1:], np.full(T, T), np.full(T, T + 1)])
    cols = np.concatenate([i[:-1], i, i])
    latent = {"h": jnp.zeros(T), "level": jnp.zeros(2)}
    data = jnp.asarray(np.random.default_rng(0).normal(size=T))
    return jalax.Model(volatility, latent, data, structure=(rows, cols))


def field_model(a, b):
    data = jnp.asarray(np.random.default_rng(0).poisson(1.0, (a, b)), float)
    return jalax.Model(field, jnp.zeros((a, b)), data, structure=structures.grid(a, b))


def regression_model(size):
    data = jnp.asarray(np.random.default_rng(0).normal(size=(30, size)))
    return jalax.Model(regression, jnp.zeros(size), data, structure=np.ones((size, size), bool))


MODELS = {
    "volatility": lambda: volatility_model(150),
    "two factors": lambda: effects_model((50, 30), 300),
    "three factors": lambda: effects_model((40, 25, 3), 300),
    "field": lambda: field_model(11, 9),
    "regression": lambda: regression_model(8),
    "one": lambda: regression_model(1),
}


@pytest.mark.slow_cases(
    *(f"float64-{name}" for name in MODELS),
    *(f"float32-{name}" for name in ("two factors", "volatility", "one")),
)
@pytest.mark.parametrize("name", MODELS)
def test_the_entries_are_those_of_the_hessian(name, precision):
    model = MODELS[name]()
    size = model.structure.size
    x = jnp.asarray(np.random.default_rng(1).normal(size=size))
    theta = jnp.asarray(0.3)
    plan = plan_of(model.structure, pieces_of(model))
    values = compressed_hessian(model, theta, x, plan)
    assert values.dtype.name == precision
    log_p = log_joint_of_vectors(model, theta)
    H = -np.asarray(jax.jit(jax.hessian(lambda v: log_p(v, model.data)))(x), float)
    found = jax.jit(jax.vmap(lambda v: times(plan, values, v)))(jnp.eye(size))
    error = 1e-5 if precision == "float32" else 1e-13
    np.testing.assert_allclose(found, H, atol=error * np.abs(H).max())
    check_pattern(model, theta, model.structure, plan)


@pytest.mark.parametrize("name", ["volatility", "two factors", "field", "regression"])
def test_asdex_finds_the_pattern(name):
    model = MODELS[name]()
    rows, cols = jalax.references.find_structure(model.replace(structure=None), 0.3)
    np.testing.assert_array_equal(rows, model.structure.rows)
    np.testing.assert_array_equal(cols, model.structure.cols)


def test_a_loop_over_many_latents_is_no_work_for_asdex():
    def log_joint(theta, x, data):
        return -jax.jit(lambda x: jnp.sum(jax.lax.map(jnp.square, x)))(x)

    model = jalax.Model(log_joint, jnp.zeros(2_001))
    never = types.ModuleType("asdex")
    with (
        mock.patch.dict(sys.modules, asdex=never),
        pytest.raises(ValueError, match="log_joint has a loop"),
    ):
        pattern_of(model, 0.5)


def test_a_plan_is_checked():
    model = jalax.Model(chain, jnp.zeros(80), jnp.ones(80), structure=structures.series(80))
    assert checked_plan(model, jnp.asarray(0.5), 7).num_colours == 7
    with pytest.raises(ValueError, match="entries outside structure="):
        checked_plan(model.replace(structure=([], [])), jnp.asarray(0.5))


def test_other_data_and_other_indices_compile_nothing():
    traced = types.SimpleNamespace(times=0)

    def log_joint(theta, x, data):
        traced.times += 1
        return effects(theta, x, data)

    def look(seed, colours=1):
        model = effects_model((50, 30), 300, seed)
        model = jalax.Model(log_joint, model.latent, model.data, structure=model.structure)
        plan = plan_of(model.structure, pieces_of(model), colours)
        x, _ = ravel_pytree(model.latent)
        return plan, compressed_hessian(model, 0.3 + seed, x + seed, plan)

    first, values = look(0, 24)
    once = traced.times, compressed_hessian.program._cache_size()
    second, others = look(1, first.num_colours)
    assert (traced.times, compressed_hessian.program._cache_size()) == once
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert not np.array_equal(first.beside, second.beside)
    assert not np.allclose(values, others)


# ---------------------------------------------------------------- a pattern that lacks something


def without(pattern, entry):
    keep = np.arange(pattern.rows.size) != entry
    return Pattern.of(pattern.rows[keep], pattern.cols[keep], pattern.size)


@pytest.mark.slow_cases("float64-volatility", "float64-two factors", "float64-field")
@pytest.mark.parametrize("name", ["volatility", "two factors", "field"])
def test_a_missing_entry_is_found_and_named(name, precision):
    model = MODELS[name]()
    full = model.structure
    off = np.flatnonzero(full.rows != full.cols)
    for entry in np.random.default_rng(0).choice(off, 3, replace=False):
        lacking = without(full, entry)
        plan = plan_of(lacking, pieces_of(model))
        with pytest.raises(ValueError, match="has entries outside structure=") as caught:
            check_pattern(model, jnp.asarray(0.3), lacking, plan)
        i, j = (name_of(model, int(side[entry])) for side in (full.rows, full.cols))
        assert f"{i} meets {j}" in str(caught.value)


def test_a_diagonal_that_is_none():
    model = jalax.Model(chain, jnp.zeros(6), jnp.ones(6), structure=([], []))
    message = (
        "the Hessian of log_joint in x has entries outside structure=: x\\[\\d\\] meets x\\[\\d\\]"
    )
    with pytest.raises(ValueError, match=message):
        check_pattern(model, jnp.asarray(0.5), model.structure, plan_of(model.structure))


def test_a_hessian_that_is_not_finite():
    def log_joint(theta, x, data):
        return jnp.sum(jnp.log(x - 100.0) * jnp.sqrt(x - 100.0))

    model = jalax.Model(log_joint, jnp.zeros(3), structure=([], []))
    with pytest.raises(ValueError, match="structure= could not be checked"):
        check_pattern(model, jnp.asarray(0.5), model.structure, plan_of(model.structure))


# ---------------------------------------------------------------- independent blocks


def test_the_salamanders_mate_in_six_blocks():
    """Two sets of ten females and ten males, in each of three experiments."""
    table = {
        name: values.astype(str) if values.dtype.kind in "OU" else values
        for name, values in _data.table("salamander_mating.csv.gz").items()
    }
    model = jalax.models.mixed(
        "Mate ~ 0 + Cross + (1|Female) + (1|Male)", pandas.DataFrame(table), family="binomial"
    )
    blocks = jalax.references.find_blocks(model)
    assert blocks["Female"].shape == model.latent["Female"].shape == (60, 1)
    every = np.concatenate([blocks["Female"].ravel(), blocks["Male"].ravel()])
    assert np.bincount(every).tolist() == [20] * 6
    assert np.bincount(blocks["Female"].ravel()).tolist() == [10] * 6


def test_blocks_are_found_in_a_log_joint():
    def log_joint(theta, x, data):
        return -((x["a"][0] - x["b"][1]) ** 2) - x["a"][1] ** 2 - jnp.sum(x["b"] ** 2) * theta

    model = jalax.Model(log_joint, {"a": jnp.zeros(2), "b": jnp.zeros(2)}, theta=1.0)
    blocks = jalax.references.find_blocks(model)
    assert {name: block.tolist() for name, block in blocks.items()} == {"a": [0, 1], "b": [2, 0]}
