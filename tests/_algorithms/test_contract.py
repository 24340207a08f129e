"""What every algorithm promises, for every row of the table in tests/algorithms.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as table
import jalax
from jalax._fit import driver, loop
from jalax._model.checks import prepare_theta
from jalax._model.types import Cloud
from jalax._runtime.options import canonical

KEY = jax.random.key(3)
# The automatic fit takes long to compile, and two of the rivals are made of what others are.
LONG = ("JALAEM-automatic", "KIPLMC", "MonteCarloEM")
names = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in table.ALGORITHMS
    ],
)
with_step_size = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, algorithm in table.ALGORITHMS.items()
        if any(field.name == "step_size" for field in dataclasses.fields(algorithm))
    ],
)
both = pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])


def fit(name, grouped=False, num_steps=30, **options):
    return jalax.fit(
        table.model(grouped),
        key=options.pop("key", KEY),
        algorithm=table.ALGORITHMS[name],
        start=jalax.Given(table.particles(16, grouped), log_evidence=-1.0),
        num_steps=num_steps,
        **options,
    )


def assert_identical(a: jalax.FitResult, b: jalax.FitResult):
    for one, other in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(one, other)


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


@pytest.mark.slow_cases(*(f"float32-grouped-{name}" for name in table.ALGORITHMS))
@pytest.mark.slow_cases(*(f"float64-plain-{name}" for name in table.ALGORITHMS))
@names
@both
def test_a_step_keeps_tree_shape_dtype_and_weak_type(name, grouped, precision):
    model, algorithm = table.model(grouped), canonical(table.ALGORITHMS[name])
    lead = table.particles(16, grouped)
    if not grouped:
        lead = jax.tree.map(lambda leaf: leaf[None], lead)
    cloud = Cloud(lead, jnp.zeros((2 if grouped else 1, 16)), None)
    state = jax.eval_shape(algorithm.init, KEY, model, prepare_theta(None, model), cloud)
    after, info = jax.eval_shape(algorithm.step, KEY, model, state)
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert shapes(state) == shapes(after)
    assert all(leaf.shape == () for leaf in info)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(after.particles)} == {precision}
    assert after.log_weights.dtype.name == precision


@names
def test_float32_stays_float32_when_64_bits_are_on(name, x64):
    """No silent upcast of the user's arrays."""
    model, algorithm = table.model(), canonical(table.ALGORITHMS[name])
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)  # noqa: E731
    lead = jax.tree.map(lambda leaf: leaf[None], single(table.particles(16)))
    model = model.replace(latent=single(model.latent), data=single(model.data))
    cloud = Cloud(lead, jnp.zeros((1, 16), jnp.float32), None)
    state = jax.eval_shape(algorithm.init, KEY, model, single(table.theta()), cloud)
    after, _ = jax.eval_shape(algorithm.step, KEY, model, state)
    assert shapes(state) == shapes(after)
    for tree in (after.theta, after.particles, after.log_weights):
        assert {leaf.dtype.name for leaf in jax.tree.leaves(tree)} == {"float32"}


class Calls:
    number = 0


@pytest.mark.slow_cases("IPLA", "SFLA", "PGD-adam", "JALAEM-dense", "JALAEM-exact", "CoinEM")
@names
@pytest.mark.filterwarnings("ignore:.*fourth time")
def test_log_joint_is_traced_once(name):
    calls = Calls()

    def counted(theta, x, data, _row=name):  # a function of its own for each row of the table
        calls.number += 1
        return table.log_joint(theta, x, data)

    base = table.model()
    model = jalax.Model(counted, base.latent, base.data, theta=base.theta)
    run = lambda steps, data: jalax.fit(  # noqa: E731
        model.replace(data=data),
        key=KEY,
        algorithm=table.ALGORITHMS[name],
        start=jalax.Given(table.particles(16)),
        num_steps=steps,
    )
    run(5, base.data)
    # SOUL's chain moves one particle at a time, but each particle is one call all the same. An
    # automatic fit ends with an evidence, whose rounding is seen by a second trace, in 64 bits.
    once = 2 if name == "JALAEM-automatic" else 1
    assert calls.number == once
    compiled = loop.run_chunk.cache_size()
    run(9, jax.tree.map(lambda leaf: leaf + 1.0, base.data))
    assert calls.number == once
    assert loop.run_chunk.cache_size() == compiled


@pytest.mark.slow_cases(
    *(
        f"float64-{kind}-{name}"
        for kind in ("plain", "grouped")
        for name in table.ALGORITHMS
        if name not in ("JALAEM", "Scoring")
    )
)
@names
@both
def test_chunk_size_does_not_matter(name, grouped, precision):
    whole = fit(name, grouped, chunk_size=100)
    for size in (1, 7):
        other = fit(name, grouped, chunk_size=size)
        assert_identical(whole, other)
        for a, b in zip(
            jax.tree.leaves(whole.history), jax.tree.leaves(other.history), strict=True
        ):
            np.testing.assert_array_equal(a, b)


@names
@both
def test_stop_and_resume_is_the_uninterrupted_run(name, grouped, tmp_path):
    whole = fit(name, grouped)
    first = fit(name, grouped, num_steps=11)
    assert_identical(whole, fit(name, grouped, num_steps=19, state=first.state))
    path = tmp_path / "fit.npz"
    fit(name, grouped, num_steps=11, callbacks=[jalax.checkpoint(path, every=5)])
    resumed = fit(name, grouped, callbacks=[jalax.checkpoint(path, every=5)])
    assert_identical(whole, resumed)
    np.testing.assert_array_equal(whole.history["ess"], resumed.history["ess"])


@names
def test_same_key_same_result_other_key_other_result(name):
    assert_identical(fit(name), fit(name))
    other = fit(name, key=jax.random.key(4))
    same = np.array_equal(fit(name).particles["a"], other.particles["a"])
    assert same == (name in table.DETERMINISTIC)


@pytest.mark.slow_cases(
    "IPLA", "JALAEM-dense", "JALAEM-exact", "PGD-adam", "PGD", "SFLA", "SOUL", "SAEM", "MomentumPGD"
)
@with_step_size
def test_vmap_over_the_step_size(name, x64):
    sizes = np.array([0.01, 0.02, 0.05])
    algorithm = table.ALGORITHMS[name]
    options = {"start": jalax.Given(table.particles(16)), "num_steps": 20}
    # The steps agree to some 1e-15. What an automatic fit makes of them in the end is another
    # matter in this model, whose scale has no maximum: the last digit of the particles at the start
    # moves theta by 1e-10 to 6.5e-9 of itself (4 changes at random), and so does another order of
    # the sums. Ten times the most of that.
    rtol = 6.5e-8 if name == "JALAEM-automatic" else 1e-10
    many = jalax.fit_many(
        table.model(),
        key=jnp.stack([KEY] * 3),
        algorithm=_with(algorithm, sizes),
        axes={"step_size": 0},
        **options,
    )
    for size, result in zip(sizes, many, strict=True):
        one = jalax.fit(table.model(), key=KEY, algorithm=_with(algorithm, size), **options)
        path, alone = (fitted.history["theta"]["m"] for fitted in (result, one))
        np.testing.assert_allclose(path, alone, rtol=1e-10)
        np.testing.assert_allclose(result.theta["m"], one.theta["m"], rtol=rtol)
        np.testing.assert_allclose(result.particles["a"], one.particles["a"], rtol=1e-9)


def _with(algorithm, step_size):
    return dataclasses.replace(algorithm, step_size=step_size)


@names
@both
def test_history_has_a_row_a_step(name, grouped):
    result = fit(name, grouped, num_steps=13)
    # In this model the scale has no maximum: an automatic fit finds that out when it finishes.
    automatic = name == "JALAEM-automatic"
    assert result.status == ("boundary" if automatic else "max_steps")
    assert all(len(leaf) == 13 for leaf in jax.tree.leaves(result.history))
    assert result.history["theta"]["m"][-1] == result.state.theta["m"]
    assert ("log_evidence" in result.history) == table.ALGORITHMS[name].gives_evidence


@pytest.mark.slow_cases("IPLA", "SFLA", "PGD-adam", "JALAEM-dense", "JALAEM-exact", "CoinEM")
@names
@pytest.mark.filterwarnings("ignore:log_evidence")  # what is left of it has no bell shape
def test_dead_particles_do_not_poison_theta(name):
    """log p is NaN beyond a wall: particles there get weight zero and are counted."""
    wall = 0.6 if name in table.RIVALS else 1.5  # the particles of some keep together

    def log_joint(theta, x, data):
        value = table.log_joint(theta, x, data)
        # The derivative with respect to theta is NaN there as well.
        return value + jnp.where(x["a"][0] > wall, jnp.nan, 0.0) * theta["m"]

    base = table.model()
    model = jalax.Model(log_joint, base.latent, base.data, theta=base.theta)
    start = jax.tree.map(lambda leaf: leaf * 0.1, table.particles(64))
    result = jalax.fit(
        model,
        key=KEY,
        algorithm=table.ALGORITHMS[name],
        start=jalax.Given(start),
        num_steps=60,
    )
    assert result.history["dead"].sum() > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.history["theta"]))
    assert np.isfinite(result.particles["a"]).all()


def test_capacity_is_shared_by_small_chunks():
    assert driver.capacity_of(1) == driver.capacity_of(100) == 128
    assert driver.capacity_of(1000) == 1024
