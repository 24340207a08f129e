"""A theta too large for the information about it: training by held-out log p, norms, networks."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._fit import choice
from jalax._fit import held_out as training
from jalax._model.checks import prepare_model
from jalax.callbacks import Callback, held_out

ROWS, WIDTH, LATENTS, NOISE = 60, 110, 2, 0.5
LOG_2PI = np.log(2 * np.pi)


def log_joint(theta, z, y):
    """Factor analysis with the noise known: log p of a row is that of a normal distribution."""
    r = (y - theta["mean"] - theta["loadings"] @ z) / NOISE
    constant = WIDTH * np.log(NOISE) + (WIDTH + 2) / 2 * LOG_2PI
    return -0.5 * (jnp.sum(z**2) + jnp.sum(r**2)) - constant


def exact_log_p(theta, y):
    loadings, mean = np.asarray(theta["loadings"], float), np.asarray(theta["mean"], float)
    covariance = loadings @ loadings.T + NOISE**2 * np.eye(WIDTH)
    r = np.asarray(y, float) - mean
    _, log_det = np.linalg.slogdet(covariance)
    squares = np.sum(r * np.linalg.solve(covariance, r.T).T, axis=1)
    return -0.5 * (squares + log_det + WIDTH * LOG_2PI)


@functools.cache
def rows():
    rng = np.random.default_rng(3)
    loadings = 0.3 * rng.normal(size=(WIDTH, LATENTS))
    z = rng.normal(size=(ROWS + 200, LATENTS))
    y = z @ loadings.T + NOISE * rng.normal(size=(ROWS + 200, WIDTH))
    return np.float32(y[:ROWS]), np.float32(y[ROWS:])


def theta_0():
    loadings = 0.1 * np.random.default_rng(4).normal(size=(WIDTH, LATENTS))
    return {"loadings": jnp.asarray(loadings), "mean": jnp.zeros(WIDTH)}


def a_model(data=None):
    data = rows()[0] if data is None else data
    return jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), jnp.asarray(data))


class Keep(Callback):
    """The lines of progress that a user would see."""

    def __init__(self):
        self.notes = []

    def after_chunk(self, run):
        self.notes.append(run.note)


def largest_likelihood():
    """Principal components: the maximum of the likelihood, which has learnt its rows by heart."""
    y = rows()[0].astype(float)
    mean = y.mean(0)
    values, axes = np.linalg.eigh(np.cov(y.T, bias=True))
    scale = np.sqrt(np.maximum(values[-LATENTS:] - NOISE**2, 0))
    return {"loadings": axes[:, -LATENTS:] * scale, "mean": mean}


@pytest.mark.parametrize(
    ("num_steps", "far"), [(500, 8.0), pytest.param(None, 0.1, marks=pytest.mark.slow)]
)
def test_the_default_moves_to_what_is_best_on_rows_it_has_not_seen(num_steps, far):
    keep, new = Keep(), rows()[1]
    result = jalax.fit(
        *(a_model(), theta_0()), key=jax.random.key(0), num_steps=num_steps, callbacks=[keep]
    )
    before, after = (exact_log_p(theta, new).mean() for theta in (theta_0(), result.theta))
    best = exact_log_p(largest_likelihood(), new).mean()
    assert best > before + 25  # there is something to learn
    assert after > best - far
    assert "because theta has 330 numbers" in result.choice
    told = [float(note.split()[5]) for note in keep.notes if note.startswith("log p of held-out")]
    held = training.held_out_groups(jax.random.key(0), ROWS)
    assert held.sum() == 12
    # At the end these rows were fitted, too: no worse than when they were last looked at.
    assert exact_log_p(result.theta, rows()[0][held]).mean() > max(told) - 0.05
    if num_steps is None:
        assert result.status == "stopped"
        assert re.search(r"log p of 12 held-out groups no longer rises: -\d\d", result.message)
        assert any("now with all groups" in note for note in keep.notes)
    else:
        assert result.status == "max_steps"


def watched_fit(watch, theta, algorithm, num_steps):
    options = {"algorithm": algorithm, "num_particles": 8, "num_steps": num_steps}
    return jalax.fit(a_model(), theta, key=jax.random.key(1), callbacks=[watch], **options)


def test_a_look_is_log_p_of_each_group():
    watch = held_out(a_model(rows()[1][:20]), every=5, num_draws=512)
    result = watched_fit(watch, theta_0(), jalax.PGD(step_size=1e-4), 5)
    (look,) = watch.looks
    expected = exact_log_p(result.theta, rows()[1][:20])
    assert look.log_p == pytest.approx(expected.mean(), abs=0.02)
    assert look.error == pytest.approx(expected.std() / np.sqrt(20), rel=0.02)
    assert np.isnan(look.rate)  # PGD has none to lower


def test_the_best_theta_is_kept_where_a_fit_gets_worse():
    """From the maximum a rate that is too large can only lead down."""
    watch = held_out(a_model(rows()[1]), every=2, patience=2, drops=0)
    method = jalax.JALAEM(
        step_size=0.3,
        preconditioner=jalax.options.InverseHessian(),
        optimizer=jalax.options.adam(0.3),
    )
    result = watched_fit(watch, jax.tree.map(jnp.float32, largest_likelihood()), method, 100)
    assert result.num_steps == 6  # the first look is the best, and two more are waited for
    assert [look.step for look in watch.looks] == [2, 4, 6]
    best = watch.looks[0].log_p
    assert best > max(look.log_p for look in watch.looks[1:])
    assert f"{best:.3f}" in result.message
    assert exact_log_p(result.theta, rows()[1]).mean() == pytest.approx(best, abs=0.05)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([1.0, 1.2, 0.8, 1.0], True),  # ten standard errors and more
        ([1.0, -1.2, 1.0, -0.7], False),
        ([-np.inf, 3.0], False),  # a group whose log p is lost is no gain
        ([np.inf, -3.0], True),  # and a loss, seen from the other side
        ([np.nan, 3.0], False),
    ],
)
def test_a_gain_is_one_of_all_groups(gains, expected):
    assert training.rises(np.array(gains), 0.5) is expected


def test_a_step_leaves_groups_that_are_held_out_alone():
    model = prepare_model(a_model())
    method = choice.for_large_theta(model).filled(theta_0()).canonical()
    assert method.minibatch == ROWS - 12  # the step of a fit has no more than it may visit
    method = dataclasses.replace(method, minibatch=15)
    particles = jax.random.normal(jax.random.key(2), (ROWS, 4, LATENTS))
    cloud = jalax.extend.Cloud(particles, jnp.zeros((ROWS, 4)), None)
    held = jnp.arange(ROWS) < 15

    @jax.jit
    def after_steps(key):
        state = method.init(key, model, theta_0(), cloud)
        state = state._replace(memory=state.memory._replace(held_out=held))
        for k in range(3):
            state, _ = method.step(jax.random.fold_in(key, k), model, state)
        return state

    state = after_steps(jax.random.key(3))
    moved = np.any(np.asarray(state.particles != particles), axis=(1, 2))
    np.testing.assert_array_equal(moved, ~np.asarray(held))
    assert sorted(np.asarray(state.memory.order).tolist()) == list(range(ROWS))


def test_rows_that_are_held_out_have_no_say_before_the_end():
    """Other rows in their place, and the steps of the pilot's first rate are the same."""
    held, told = training.held_out_groups(jax.random.key(0), ROWS), []
    for factor in (1.0, 3.0):
        data = np.where(held[:, None], factor * rows()[0], rows()[0])
        result = jalax.fit(a_model(data), theta_0(), key=jax.random.key(0), num_steps=12)
        told.append(result.history["theta"]["loadings"])
    np.testing.assert_array_equal(*told)


def test_it_begins_again_with_all_groups_for_as_many_visits(monkeypatch):
    """With a rate of next to nothing log p stands still: nine looks, the last as good as any."""
    for name, value in {"RATES": (1e-30,), "CLIMB": 4}.items():
        monkeypatch.setattr(training, name, value)
    held, masks, particles = training.held_out_groups(jax.random.key(0), ROWS), {}, {}

    class Look(Callback):
        def after_chunk(self, run):
            masks[run.step] = np.asarray(run.state.memory.held_out)
            particles[run.step] = np.asarray(run.state.particles[held])

    result = jalax.fit(a_model(), theta_0(), key=jax.random.key(0), callbacks=[Look()])
    watched = training.PILOT + 9 * 4
    again = watched + 9 * 4 * ROWS // 48
    end = again + int(np.ceil((again - watched) / 4))
    assert (result.status, result.num_steps) == ("stopped", end)
    steps = sorted(masks)
    for step in steps:  # the mask of a step is what the steps to it were taken with
        np.testing.assert_array_equal(
            masks[step], held if step <= watched else np.zeros(ROWS, bool)
        )
    # What is held out is not moved, but it is drawn anew with the others after 40 visits.
    before = [k for k in steps if k < training.VISITS]
    after = [k for k in steps if training.VISITS < k <= watched]
    assert all(np.array_equal(particles[k], particles[before[0]]) for k in before)
    assert all(not np.array_equal(particles[k], particles[before[0]]) for k in after)
    assert after


@pytest.mark.parametrize("where", ["watched", "with all groups"])
def test_it_goes_on_more_slowly_where_all_weights_are_lost(monkeypatch, where):
    """A fault planted once, particles of NaN, in a fit that is as short as the one above."""
    for name, value in {"RATES": (1e-30,), "CLIMB": 4}.items():
        monkeypatch.setattr(training, name, value)
    rates, lost = [], []

    class Poison(Callback):
        def steps_until_due(self, run):
            return 1

        def after_chunk(self, run):
            rates.append(training.rate_of(run.state))
            held = bool(np.any(run.state.memory.held_out))
            later = run.step > training.PILOT + 6 and run.step % training.VISITS
            if not lost and later and held == (where == "watched"):
                run.state = run.state._replace(particles=np.nan * run.state.particles)
                lost.append(len(rates))

    result = jalax.fit(a_model(), theta_0(), key=jax.random.key(0), callbacks=[Poison()])
    assert result.status == "stopped"
    np.testing.assert_allclose(rates[lost[0] + 1], rates[lost[0] - 1] / training.LOWER, rtol=1e-6)
    assert np.isfinite(np.concatenate(result.history["theta"]["mean"][-3:])).all()
    assert np.isfinite(exact_log_p(result.theta, rows()[1])).all()


def test_several_moves_of_a_visit_bring_particles_to_the_posterior():
    """theta is held by a learning rate of zero; the posterior of a row is normal and known."""
    method = jalax.JALAEM(
        step_size=0.3,
        preconditioner=jalax.options.InverseHessian(),
        optimizer=jalax.options.adam(0.0),
        minibatch=ROWS // 2,
        moves=8,
    )
    theta = jax.tree.map(jnp.float32, largest_likelihood())
    away = jalax.starts.Given(jnp.full((ROWS, 64, LATENTS), 2.0))
    options = {"algorithm": method, "start": away, "num_steps": 4, "key": jax.random.key(5)}
    result = jalax.fit(a_model(), theta, **options)
    loadings = largest_likelihood()["loadings"]
    precision = np.eye(LATENTS) + loadings.T @ loadings / NOISE**2
    r = rows()[0] - largest_likelihood()["mean"]
    mean = np.linalg.solve(precision, loadings.T @ r.T / NOISE**2).T
    found = np.asarray(result.expectation(lambda z: z))
    # 16 moves with h = 0.3: what is left of the way is 0.7^16, and 64 particles have their noise.
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.sqrt(np.mean(((found - mean) / sd) ** 2)) < 0.4


def of_norms(steps):
    """100,001 numbers, of which a row says something about the first three."""

    def log_p(theta, x, y):
        return -0.5 * jnp.sum((x - theta["a"][:3]) ** 2 + (y - x) ** 2) - theta["b"] ** 2

    model = jalax.Model(log_p, jnp.zeros(3), jnp.ones(3))
    theta = {"a": jnp.zeros(100_000), "b": jnp.ones(())}
    start = jalax.starts.Given(jnp.zeros((4, 3)))
    method = jalax.PGD(step_size=0.1)
    options = {"key": jax.random.key(0), "algorithm": method, "start": start}
    return functools.partial(jalax.fit, model, theta, num_steps=steps, chunk_size=3, **options)


def test_the_history_of_a_very_large_theta_has_norms(tmp_path):
    result = of_norms(6)()
    assert "theta" not in result.history
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.theta)])
    assert result.history["theta_norm"][-1] == pytest.approx(np.linalg.norm(flat), rel=1e-6)
    assert len(result.history["theta_norm"]) == 6
    with pytest.raises(ValueError, match="so large that the history has its norm only"):
        result.theta_average()
    result.save(tmp_path / "fit.npz")
    read = jalax.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(read.history["theta_norm"], result.history["theta_norm"])
    assert "100000 in all" in str(result)
    theta_panel = result.plot()[0]
    assert theta_panel.get_ylabel() == "norm of theta"
    np.testing.assert_array_equal(theta_panel.lines[0].get_ydata(), result.history["theta_norm"])


def test_a_checkpoint_of_a_very_large_theta_goes_on_to_the_same_bits(tmp_path):
    whole, path = of_norms(6)(), tmp_path / "fit.checkpoint"
    of_norms(3)(callbacks=[jalax.checkpoint(path)])
    result = of_norms(6)(callbacks=[jalax.checkpoint(path)])
    np.testing.assert_array_equal(result.history["theta_norm"], whole.history["theta_norm"])
    np.testing.assert_array_equal(result.theta["a"], whole.theta["a"])


def test_a_network_keeps_what_is_no_array():
    """As an Equinox module has it: functions and numbers among the leaves."""

    def log_p(network, x, y):
        weight, activation, shift = network
        return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((y - activation(weight) - shift - x) ** 2)

    y = jnp.asarray([0.3, -0.1, 0.4, 0.2])[:, None]
    model = jalax.GroupedModel(log_p, jnp.zeros(1), y)
    network = (jnp.zeros(1), jnp.tanh, 0.3)
    result = jalax.fit(model, network, key=jax.random.key(0))
    assert result.status == "converged"
    assert result.theta[1:] == (None, None)
    assert np.tanh(result.theta[0]) + 0.3 == pytest.approx(0.2, abs=1e-3)  # the mean of y
    whole = (result.theta[0], jnp.tanh, 0.3)
    known = jalax.log_evidence(model, whole, key=jax.random.key(1))
    # The constants of both normal densities are left out, and x integrates to sqrt(pi).
    expected = 4 * 0.5 * np.log(np.pi) - np.sum((np.asarray(y) - 0.2) ** 2) / 4
    assert known.value == pytest.approx(expected, abs=4 * known.error + 1e-3)


def test_random_numbers_in_a_large_log_joint_are_told():
    def dropped(theta, z, y):
        keep = jax.random.bernoulli(jax.random.key(0), 0.5, (WIDTH,))
        return log_joint(theta | {"mean": theta["mean"] * keep}, z, y)

    model = jalax.GroupedModel(dropped, jnp.zeros(LATENTS), jnp.asarray(rows()[0]))
    with pytest.warns(UserWarning, match="draws random numbers"):
        jalax.log_evidence(model, theta_0(), key=jax.random.key(0), max_particles=200)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 0}, "every"),
        ({"patience": 0}, "patience"),
        ({"drops": -1}, "drops"),
        ({"num_draws": 1}, "num_draws"),
    ],
)
def test_bad_options_of_held_out(options, sentence):
    with pytest.raises(ValueError, match=f"held_out's {sentence}"):
        held_out(a_model(), **options)


def test_held_out_wants_groups():
    with pytest.raises(TypeError, match=r"jalax\.GroupedModel of the held-out data, got ndarray"):
        held_out(rows()[1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"moves": 2}, r"JALAEM\.moves goes with minibatch="),
        ({"moves": 0, "minibatch": 10}, r"JALAEM\.moves must be"),
    ],
)
def test_bad_moves(options, sentence):
    algorithm = jalax.JALAEM(step_size=0.1, **options)
    with pytest.raises(ValueError, match=sentence):
        jalax.fit(a_model(), theta_0(), key=jax.random.key(0), algorithm=algorithm, num_steps=1)


@pytest.mark.parametrize("name", ["num_steps", "num_particles"])
def test_zero_is_no_default(name):
    with pytest.raises(ValueError, match=name):
        jalax.fit(a_model(), theta_0(), key=jax.random.key(0), **{name: 0})


def test_few_groups_are_all_watched_and_said_to_be():
    watch = training.Training(prepare_model(a_model(rows()[0][:20])), jax.random.key(0))
    assert watch.model.num_groups == 20
    keep = Keep()
    few = a_model(rows()[0][:20])
    jalax.fit(few, theta_0(), key=jax.random.key(0), num_steps=60, callbacks=[keep])
    assert "held-out" not in keep.notes[-1]
    assert "too few to hold some out" in keep.notes[-1]
