"""Step sizes, schedules and optimisers as data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax._runtime.function_keys import Static
from jalax._runtime.options import as_optimizer, canonical, descend, strong_float
from shared_models import pair

Y = np.array([0.5, 1.5, 4.0])
PARTICLES = np.random.default_rng(0).normal(1.0, 0.7, size=(10, 3))


MODEL = jalax.Model(pair, latent=jnp.zeros(3), data=Y)


def fit(algorithm, num_steps, **options):
    options = {"start": jalax.Given(PARTICLES), **options}
    key = jax.random.key(0)
    return jalax.fit(MODEL, 0.0, key=key, algorithm=algorithm, num_steps=num_steps, **options)


# ---------------------------------------------------------------- Schedule


def test_schedule_is_its_function_of_the_step():
    decay = jalax.Schedule(lambda step, first, rate: first * rate**step, first=0.1, rate=0.5)
    np.testing.assert_allclose([decay(k) for k in range(3)], [0.1, 0.05, 0.025])
    assert "rate" in repr(decay)


def test_schedule_has_its_parameters_as_leaves():
    schedule = jalax.Schedule(lambda step, b, a: a * step + b, b=2.0, a=1.0)
    assert jax.tree.leaves(schedule) == [1.0, 2.0]  # by name
    doubled = jax.tree.map(lambda leaf: 2 * leaf, schedule)
    assert isinstance(doubled, jalax.Schedule)
    assert doubled(3) == 2 * 3 + 4
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(schedule)]
    assert paths == [".a", ".b"]


def test_schedules_of_one_function_share_their_structure():
    def make(a):
        return jalax.Schedule(lambda step, a: a * step, a=a)

    other = jalax.Schedule(lambda step, a: a + step, a=1.0)
    assert jax.tree.structure(make(1.0)) == jax.tree.structure(make(2.0))
    assert jax.tree.structure(make(1.0)) != jax.tree.structure(other)


def test_schedule_under_jit_and_vmap():
    schedule = jalax.Schedule(lambda step, a: a / (1 + step), a=jnp.array([1.0, 2.0]))
    found = jax.jit(jax.vmap(lambda s: s(3)))(schedule)
    np.testing.assert_allclose(found, [0.25, 0.5])


GAMMAS = np.array([0.05, 0.02, 0.1, 0.01])


def test_step_k_uses_the_step_size_of_k(x64):
    """PGD moves theta by gamma_k times a gradient which the state shows (X_0's is known)."""
    schedule = jalax.Schedule(lambda step, table: table[step], table=GAMMAS)
    algorithm = jalax.PGD(step_size=schedule)
    gradient, theta = np.mean(np.sum(PARTICLES, axis=1)), 0.0
    result, gammas = None, []
    for _ in GAMMAS:
        result = fit(algorithm, 1, state=None if result is None else result.state)
        gammas.append((float(result.theta) - theta) / gradient)
        gradient, theta = float(result.state.memory.point.grad_theta), float(result.theta)
    np.testing.assert_allclose(gammas, GAMMAS, rtol=1e-9)
    whole = fit(algorithm, 4)
    np.testing.assert_allclose(whole.theta, theta, rtol=1e-12)


def test_the_particles_move_by_the_step_size_of_k(x64):
    """All but step 2 are too small to see, in the move and in the weights."""
    algorithm = jalax.JALAEM(
        step_size=lambda step: jnp.where(step == 2, 0.1, 1e-16),
        optimizer=optax.sgd(0.0),
        resample_below=0,
    )
    before, after, later = (fit(algorithm, k) for k in (2, 3, 5))
    np.testing.assert_allclose(before.particles, PARTICLES, atol=1e-6)
    np.testing.assert_allclose(before.log_weights, 0.0, atol=1e-6)
    assert np.all(np.abs(after.particles - before.particles) > 1e-4)
    assert np.std(after.log_weights) > 1e-3
    np.testing.assert_allclose(later.particles, after.particles, atol=1e-6)
    np.testing.assert_allclose(later.log_weights, after.log_weights, atol=1e-5)


# ---------------------------------------------------------------- Optax


def test_optax_tells_numbers_from_settings():
    optimizer = jalax.Optax(
        optax.adam, learning_rate=0.05, b1=np.float64(0.8), eps=jnp.array(1e-6), nesterov=True
    )
    assert set(optimizer.numbers) == {"learning_rate", "b1", "eps"}
    assert optimizer.others == {"nesterov": True}
    assert len(jax.tree.leaves(optimizer)) == 3
    assert "learning_rate=0.05" in repr(optimizer)
    assert "nesterov=True" in repr(optimizer)
    again = jax.tree.map(lambda leaf: leaf, optimizer)
    assert again.others == {"nesterov": True}
    assert again.numbers.keys() == optimizer.numbers.keys()


def test_optax_settings_are_part_of_the_structure():
    def structure(**options):
        return jax.tree.structure(jalax.Optax(optax.adam, **options))

    assert structure(learning_rate=0.1) == structure(learning_rate=0.2)
    assert structure(learning_rate=0.1) != structure(learning_rate=0.1, nesterov=True)
    assert structure(learning_rate=0.1) != structure(learning_rate=0.1, b1=0.9)
    schedule = optax.exponential_decay(0.1, 10, 0.5)
    twin = optax.exponential_decay(0.1, 10, 0.5)
    other = optax.exponential_decay(0.1, 10, 0.6)
    assert structure(learning_rate=schedule) == structure(learning_rate=twin)
    assert structure(learning_rate=schedule) != structure(learning_rate=other)


OPTIMIZERS = {
    "sgd": (optax.sgd, {"learning_rate": 0.1}),
    "momentum": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optax.adam, {"learning_rate": 0.1, "b1": 0.8}),
    "schedule": (optax.adam, {"learning_rate": optax.exponential_decay(0.1, 2, 0.5)}),
    "rmsprop": (optax.rmsprop, {"learning_rate": 0.1}),
    "adamw": (optax.adamw, {"learning_rate": 0.1, "weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("made", ["jalax.Optax", "ready-made"])
def test_descend_takes_the_steps_of_optax(x64, name, made):
    factory, options = OPTIMIZERS[name]
    reference = factory(**options)
    given = jalax.Optax(factory, **options) if made == "jalax.Optax" else factory(**options)
    optimizer = jax.tree.map(strong_float, as_optimizer(given))
    theta = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
    expected, state, reference_state = theta, optimizer.init(theta), reference.init(theta)
    step = jax.jit(descend)
    for k in range(3):
        gradient = jax.tree.map(lambda leaf, k=k: jnp.sin(leaf) + k, theta)
        theta, state = step(optimizer, gradient, state, theta)
        updates, reference_state = reference.update(gradient, reference_state, expected)
        expected = optax.apply_updates(expected, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), theta, expected)


def test_as_optimizer():
    assert as_optimizer(None) is None
    optax_ = jalax.Optax(optax.sgd, learning_rate=0.1)
    assert as_optimizer(optax_) is optax_
    ready = as_optimizer(optax.chain(optax.clip(1.0), optax.adam(0.1)))
    assert jax.tree.leaves(ready) == []  # all static


def test_the_optimiser_of_a_fit(x64):
    """Two steps of SGD with momentum: theta_1 by hand, theta_2 from the gradient in the state."""
    optimizer = jalax.Optax(optax.sgd, learning_rate=0.01, momentum=0.5)
    algorithm = jalax.PGD(step_size=0.05, optimizer=optimizer)
    first = np.mean(np.sum(PARTICLES, axis=1))
    one, two = fit(algorithm, 1), fit(algorithm, 2)
    np.testing.assert_allclose(one.theta, 0.01 * first, rtol=1e-10)
    second = float(one.state.memory.point.grad_theta)
    np.testing.assert_allclose(two.theta, 0.01 * (first + second + 0.5 * first), rtol=1e-10)


# ---------------------------------------------------------------- canonical


@pytest.mark.parametrize("number", [0.1, 1, True, np.float32(0.1), np.int64(2), np.array(0.1)])
def test_numbers_become_strong_floats(precision, number):
    found = strong_float(number)
    assert isinstance(found, jax.Array)
    assert not found.weak_type
    expected = np.float32 if isinstance(number, np.float32) else np.dtype(precision)
    assert found.dtype == expected
    assert float(found) == pytest.approx(float(number), rel=1e-6)


def test_canonical_algorithms_have_strong_leaves(precision):
    algorithms = [
        jalax.JALAEM(
            step_size=jalax.Schedule(lambda k, a: a, a=1),
            optimizer=jalax.Optax(optax.adam, learning_rate=0.1),
            preconditioner=[1, 2.0],
            resample_below=1,
        ),
        jalax.PGD(step_size=0.1, optimizer=optax.adam(0.1)),
        jalax.IPLA(step_size=1),
        jalax.SOUL(step_size=0.1, num_inner=3),
        jalax.SFLA(step_size=0.1, epsilon=1, beta=10),
    ]
    for algorithm in algorithms:
        found = canonical(algorithm)
        assert type(found) is type(algorithm)
        leaves = jax.tree.leaves(found)
        assert leaves
        for leaf in leaves:
            assert isinstance(leaf, jax.Array)
            assert leaf.dtype == precision
            assert not leaf.weak_type


def test_canonical_twins_share_structure_and_types():
    def make(h, below):
        return canonical(
            jalax.JALAEM(
                step_size=h,
                resample_below=below,
                optimizer=optax.adam(1e-2),
                project=lambda theta: theta,
                resample=jalax.resampling.stratified,
            )
        )

    one, two = make(0.1, 0.5), make(1, np.float64(0.25))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert [leaf.dtype for leaf in jax.tree.leaves(one)] == [
        leaf.dtype for leaf in jax.tree.leaves(two)
    ]


def test_canonical_makes_functions_comparable():
    found = canonical(jalax.JALAEM(step_size=lambda k: 0.1, project=lambda theta: theta))
    assert isinstance(found.step_size, jalax.Schedule)
    assert isinstance(found.resample, Static)
    assert isinstance(found.project, Static)
    assert canonical(found).step_size(0) == 0.1  # and once more


def test_canonical_leaves_what_is_not_there():
    found = canonical(jalax.JALAEM())
    assert found.step_size is None
    assert found.optimizer is None
    assert found.preconditioner is None
    assert found.project is None
