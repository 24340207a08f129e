"""Batches and minibatches of groups: the same answers, and Proposition 1 once more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jalax
from fixed_path import THETA_PATH, Y, assert_exact, follow_path, t_statistics
from jalax import models
from jalax._algorithms import minibatches
from jalax._model import evaluation, information
from jalax._model.types import Cloud
from jalax._particles import weight_math
from jalax._runtime.options import canonical
from shared_models import MIXED, answers, pair_normalised, quadrature

# --- group_batch: only memory changes -----------------------------------------------------------


def same(a, b, rtol):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 15])
def test_what_is_computed_in_batches_is_the_same(size, x64):
    model = models.item_response(answers(15, 6))
    batched = model.replace(group_batch=size)
    x = jax.random.normal(jax.random.key(0), (15, 40))
    log_w = 0.3 * jax.random.normal(jax.random.key(1), (15, 40))
    weights = weight_math.normalise(log_w)
    theta = jax.tree.map(lambda leaf: leaf + 0.1, model.theta)
    one, other = (evaluation.evaluate(m, theta, x) for m in (model, batched))
    same(one[1:4], other[1:4], 1e-12)
    same(one.pull(weights)[0], other.pull(weights)[0], 1e-12)
    same(*(information.moments(m, theta, x, log_w, 4) for m in (model, batched)), 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MIXED if name != "cbpp joint"])
def test_batches_and_padding_do_not_change_a_fit(name, x64):
    make, _ = MIXED[name]
    model, key = make(), jax.random.key(0)
    result = jalax.fit(model, key=key)

    # A row more, masked. With three, sleepstudy's points times its data would be so many that a
    # climb approaches with a quarter of them, and ends a thousandth of a standard error elsewhere.
    def pad(leaf):
        return (
            leaf if leaf.ndim < 2 else jnp.pad(leaf, [(0, 0), (0, 1)] + [(0, 0)] * (leaf.ndim - 2))
        )

    padded = model.replace(data=jax.tree.map(pad, model.data))
    assert not padded.data["mask"][:, -1:].any()
    for other in (jalax.fit(model, key=key, group_batch=4), jalax.fit(padded, key=key)):
        same(other.theta, result.theta, 1e-5)
        same(other.standard_errors(), result.standard_errors(), 1e-5)
        assert other.log_evidence == pytest.approx(result.log_evidence, abs=1e-5)
        same(other.history["ess"], result.history["ess"], 1e-4)


# --- minibatch ----------------------------------------------------------------------------------


def test_the_gradient_of_a_minibatch_stands_for_all_groups(x64):
    """One step of SGD: theta moves by G/B times the gradient of the visited groups."""
    model = models.item_response(answers(12, 5))
    algorithm = canonical(
        jalax.JALAEM(
            step_size=0.1, optimizer=jalax.Optax(optax.sgd, learning_rate=1.0), minibatch=4
        )
    )
    x = jax.random.normal(jax.random.key(0), (12, 30))
    state = algorithm.init(jax.random.key(1), model, model.theta, Cloud(x, jnp.zeros_like(x), None))
    moves, visited = [], []
    step = jax.jit(lambda state: algorithm.step(jax.random.key(2), model, state))
    for k in range(3):
        new, _ = step(state._replace(step=jnp.int32(k)))
        order = new.memory.order
        index = np.asarray(order[4 * k : 4 * k + 4])
        visited += index.tolist()
        part = model.replace(data=jax.tree.map(lambda leaf, i=index: leaf[i], model.data))
        gradient = jax.grad(
            lambda t, part=part, i=index: jnp.sum(evaluation.log_joint(part, t, x[i])) / 30
        )(model.theta)
        move = jax.tree.map(jnp.subtract, new.theta, model.theta)
        same(move, jax.tree.map(lambda g: 3 * g, gradient), 1e-10)
        moves.append(ravel_pytree(move)[0])
        # Who is not visited stays as it was.
        rest = np.setdiff1d(np.arange(12), index)
        np.testing.assert_array_equal(new.particles[rest], x[rest])
        assert (np.asarray(new.particles)[index] != np.asarray(x)[index]).any(axis=1).all()
        state = state._replace(memory=state.memory._replace(order=order))
    assert sorted(visited) == list(range(12))  # everybody had a turn
    whole = jax.grad(lambda t: jnp.sum(evaluation.log_joint(model, t, x)) / 30)(model.theta)
    same(jnp.mean(jnp.stack(moves), axis=0), ravel_pytree(whole)[0], 1e-10)


def run_minibatch(num_particles=30, replicates=2500, refresh=True):
    """Groups of a fixed theta-path, two of six a step: t-statistics as in Proposition 1."""
    y = np.concatenate([Y, Y + 0.3])
    model = jalax.GroupedModel(pair_normalised, jnp.zeros(()), jnp.asarray(y))
    algorithm = canonical(
        jalax.JALAEM(step_size=0.25, optimizer=follow_path(), resample_below=0.95, minibatch=2)
    )
    first, end = THETA_PATH[0], THETA_PATH[-1]
    log_z0 = -0.25 * (y - first) ** 2 - 0.5 * jnp.log(4 * jnp.pi)

    def replicate(key):
        key_start, key = jax.random.split(key)
        xi = jax.random.normal(key_start, (6, num_particles))
        x = (y[:, None] + first) / 2 + jnp.sqrt(0.5) * xi
        state = algorithm.init(key, model, jnp.asarray(first), Cloud(x, jnp.zeros_like(x), log_z0))
        keys = jax.random.split(key, len(THETA_PATH) - 1)
        state, _ = jax.lax.scan(lambda s, k: algorithm.step(k, model, s), state, keys)
        if refresh:
            state = minibatches.weighed_to_theta(model, state)
        w = weight_math.normalise(state.log_weights)
        means = {"x": jnp.sum(w[4] * state.particles[4])}
        group = state.log_evidence_base + weight_math.log_mean_exp(state.log_weights)
        return jnp.sum(group), group[4], means

    keys = jax.random.split(jax.random.key(8), replicates)
    total, group, means = jax.jit(jax.vmap(replicate))(keys)
    exact = np.asarray(-0.25 * (y - end) ** 2 - 0.5 * np.log(4 * np.pi))
    own = t_statistics(np.asarray(group) - exact[4], means, {"x": float((y[4] + end) / 2)})
    all_groups = t_statistics(np.asarray(total) - exact.sum(), {}, {})
    return all_groups | {f"group 4: {name}": t for name, t in own.items() if name != "sd"}


def test_a_group_left_out_keeps_exact_weights(x64):
    assert_exact(run_minibatch())


@pytest.mark.slow
def test_the_test_sees_weights_of_an_old_theta(x64):
    statistics = run_minibatch(refresh=False)
    with pytest.raises(AssertionError):
        assert_exact(statistics)


@pytest.mark.slow
def test_a_minibatch_fit_ends_with_evidence_and_errors_of_all_groups(x64):
    """300 persons, 8 items: against the full fit, and the evidence against quadrature."""
    y = answers(300, 8)
    model = models.item_response(y)
    algorithm = jalax.JALAEM(minibatch=60)
    result = jalax.fit(model, key=jax.random.key(0), algorithm=algorithm)
    full = jalax.fit(model, key=jax.random.key(1))
    assert result.status == full.status == jalax.Status.CONVERGED
    for name in ("slope", "intercept"):
        off = np.asarray(result.theta[name] - full.theta[name])
        noise = np.hypot(result.simulation_errors()[name], full.simulation_errors()[name])
        assert np.all(np.abs(off) <= 4.5 * noise), name
        ratio = np.asarray(result.standard_errors()[name] / full.standard_errors()[name])
        np.testing.assert_allclose(ratio, 1, atol=0.05)
    assert abs(result.log_evidence - quadrature(result.theta, y)) <= 4.5 * result.log_evidence_error
    assert "log_evidence" not in result.history
    # The weights of all groups are those of the last theta: so is the evidence they carry.
    last = quadrature(result.state.theta, y)
    assert abs(result.path_log_evidence - last) < 1.0


# --- N --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_number_of_particles_grows_with_the_root_of_the_groups():
    def log_joint(theta, x, y):
        return -0.5 * (x - theta) ** 2 - 0.5 * (y - x) ** 2 - jnp.log(2 * jnp.pi)

    y = 1.0 + np.sqrt(2.0) * np.random.default_rng(0).normal(size=22_500)
    model = jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(y, float))
    algorithm = jalax.JALAEM()
    result = jalax.fit(model, 0.0, key=jax.random.key(0), algorithm=algorithm)
    assert result.log_weights.shape == (22_500, 150)
    assert result.gradient_bias == pytest.approx(1.0)
    assert "sqrt(G)/N = 1.00" in result.summary()
    simulation = float(result.simulation_errors())
    assert abs(float(result.theta) - y.mean()) <= 4.5 * simulation + 1e-4
