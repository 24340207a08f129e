"""particle_batch= and data_batch=: only memory changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax import models
from jalax._model import batching, evaluation
from jalax._model.checks import prepare_model
from jalax.models import _rows


def logistic(n=30, d=3, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return models.logistic_regression(X, rng.random(n) < 0.4, **options)


def network(**options):
    rng = np.random.default_rng(1)
    return models.neural_network(rng.random((12, 5)), np.arange(12) % 3, num_hidden=4, **options)


def cloud(model, num):
    leaves, treedef = jax.tree.flatten(model.latent)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return treedef.unflatten(
        [jax.random.normal(k, (1, num, *x.shape)) for k, x in zip(keys, leaves, strict=True)]
    )


@jax.jit
def visited(model, theta, x, weights):
    visit = evaluation.evaluate(model, theta, x)
    return visit[1:4], visit.pull(weights)[0], evaluation.log_joint(model, theta, x)


def same_visit(one, other, x, rtol=1e-12):
    theta = jax.tree.map(lambda leaf: leaf + 0.1, one.theta)
    weights = jax.nn.softmax(jnp.linspace(0.0, 2.0, evaluation._num_particles(x)))[None]
    found = [visited(model, theta, x, weights) for model in (one, other)]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.slow_cases("7-network", "4-logistic")
@pytest.mark.parametrize("make", [logistic, network])
@pytest.mark.parametrize("size", [4, 7, 50])  # of 12 particles: 7 leaves a remainder
def test_blocks_of_particles_are_visited_alike(make, size, x64):
    model = make()
    same_visit(model, model.replace(particle_batch=size), cloud(model, 12))


@pytest.mark.slow_cases("5-network", "6-logistic")
@pytest.mark.parametrize("make", [logistic, network])
@pytest.mark.parametrize("size", [5, 6])  # of 30 rows and 12: 5 leaves a remainder of 12
def test_slices_of_the_data_add_up(make, size, x64):
    whole, sliced = make(), make(data_batch=size)
    same_visit(whole, sliced, cloud(whole, 6))


def test_the_curvature_of_slices_adds_up_too(x64):
    @jax.jit
    def curvature(model):
        return jax.hessian(lambda x: model.log_joint(0.3, x, model.data))(jnp.ones(3))

    np.testing.assert_allclose(curvature(logistic(data_batch=7)), curvature(logistic()), rtol=1e-12)


@pytest.mark.slow
def test_a_fit_in_blocks_and_slices_is_the_same(x64):
    key = jax.random.key(0)
    result = jalax.fit(logistic(), key=key)
    other = jalax.fit(logistic(data_batch=8), key=key, particle_batch=100)
    assert float(other.theta) == pytest.approx(float(result.theta), rel=1e-7)
    assert other.log_evidence == pytest.approx(result.log_evidence, abs=1e-7)


def test_what_a_particle_holds_is_counted():
    """Of the rows that depend on x, not of the data itself."""
    model = prepare_model(logistic(n=1000, d=50))
    held = 8 * batching.numbers_per_particle(model, model.theta)
    itemsize = model.latent.dtype.itemsize
    assert 3 * 1000 * itemsize <= held <= 10 * 1000 * itemsize


def test_what_is_computed_inside_another_jit_counts_too():
    def log_joint(theta, x, data):
        values = jax.jit(lambda x: jnp.sin(x * data))(x)  # two arrays of 500
        return jnp.sum(values) + theta

    model = prepare_model(jalax.Model(log_joint, jnp.zeros(()), jnp.ones(500)))
    held = 8 * batching.numbers_per_particle(model, jnp.zeros(()))
    assert 2 * 500 * 4 <= held < 3 * 500 * 4


@pytest.mark.slow
def test_blocks_are_chosen_where_all_would_not_fit_the_caches(monkeypatch):
    monkeypatch.setattr(batching, "_room", lambda: (100_000, 10_000))
    model = prepare_model(logistic(n=100))
    each = 8 * batching.numbers_per_particle(model, model.theta)
    assert batching.particles_at_once(model, model.theta, 10) is None
    size = batching.particles_at_once(model, model.theta, 1000)
    assert size * each <= 10_000
    assert 1000 % size == 0
    assert batching.particles_at_once(model, model.theta, 1009) == 10_000 // each
    same_visit(model, model.replace(particle_batch=1009), cloud(model, 1009), rtol=2e-4)


def test_the_memory_of_a_visit_does_not_grow_with_the_rows_of_all_slices():
    """The compiled gradient holds the values of one slice, not those of N x rows."""

    def temporary(model):
        model = prepare_model(model)
        visit = jax.jit(lambda x: evaluation.evaluate(model, model.theta, x)[1:3])
        return visit.lower(cloud(model, 50)).compile().memory_analysis().temp_size_in_bytes

    rows = 20_000 * 50 * 4
    assert temporary(logistic(n=20_000)) > rows
    assert temporary(logistic(n=20_000, data_batch=200)) < rows / 10


def test_many_rows_are_sliced_by_default(monkeypatch, x64):
    whole = logistic(n=100)
    x = cloud(whole, 4)
    expected = jax.jit(evaluation.log_joint)(whole, whole.theta, x)
    monkeypatch.setattr(_rows, "MANY", 99)
    monkeypatch.setattr(_rows, "SLICE", 32)
    sliced = logistic(n=100, prior_variance=4.0)
    text = str(jax.make_jaxpr(lambda x: sliced.log_joint(0.0, x, sliced.data))(x[0, 0]))
    assert "scan" in text
    sliced = sliced.replace(data=whole.data)
    density = jax.jit(lambda x: sliced.log_joint(0.0, x, sliced.data))
    np.testing.assert_allclose([density(x[0, i]) for i in range(4)], expected[0], rtol=1e-13)


def test_of_groups_too_what_one_particle_holds_is_counted():
    model = prepare_model(models.item_response(np.arange(60).reshape(6, 10) % 2))
    held = 8 * batching.numbers_per_particle(model, model.theta)
    itemsize = model.latent.dtype.itemsize
    assert 2 * 10 * itemsize <= held <= 10 * 10 * itemsize
    assert batching.groups_at_once(model, 2**26 // 3) == 3
