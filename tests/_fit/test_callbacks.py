"""Between two chunks: stopping, showing, interrupting; and runs that lose their particles."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax._fit import callbacks
from jalax._runtime import heartbeat

MODEL = jalax.models.hierarchical_normal([0.5, 1.5, 4.0])
PARTICLES = np.random.default_rng(0).normal(1.0, 0.7, size=(10, 3))


def fit(**changes):
    arguments = {
        "model": MODEL,
        "theta": 0.0,
        "key": jax.random.key(0),
        "algorithm": jalax.JALAEM(step_size=0.05),
        "start": jalax.Given(PARTICLES, log_evidence=-7.0),
        "num_steps": 40,
        "chunk_size": 10,
        **changes,
    }
    return jalax.fit(**arguments)


class Recorder(jalax.callbacks.Callback):
    """Writes down every call; `at_chunk` is done after the second chunk."""

    def __init__(self, at_chunk=lambda run: None):
        self.calls, self.at_chunk = [], at_chunk

    def begin(self, run):
        self.calls.append(("begin", run.step))

    def after_chunk(self, run):
        self.calls.append(("chunk", run.step))
        return self.at_chunk(run) if run.step >= 20 else None

    def end(self, run):
        self.calls.append(("end", run.step))


def steps_of(result):
    return len(result.history["ess"])


# ---------------------------------------------------------------- the history


@pytest.mark.parametrize("record", [3, 10, 100])
def test_record_keeps_every_so_many_steps_and_the_last(record):
    whole, thin = fit(num_steps=35), fit(num_steps=35, record=record)
    steps = [k for k in range(1, 36) if k % record == 0 or k == 35]
    assert list(thin.history["step"]) == steps
    assert list(whole.history["step"]) == list(range(1, 36))
    rows = np.array(steps) - 1
    for name in ("theta", "ess", "log_evidence"):
        np.testing.assert_array_equal(thin.history[name], whole.history[name][rows])
    assert thin.path_log_evidence == whole.path_log_evidence
    assert thin.num_steps == whole.num_steps == 35


def test_record_when_the_fit_goes_on_and_when_it_resumes(tmp_path):
    first = fit(num_steps=7, record=5)
    more = fit(num_steps=6, record=5, state=first.state, start=None)
    assert list(more.history["step"]) == [10, 13]
    assert more.num_steps == 6
    options = {"record": 4, "callbacks": [jalax.checkpoint(tmp_path / "run", every=10)]}
    fit(num_steps=20, **options)
    resumed = fit(num_steps=27, **options)
    assert list(resumed.history["step"]) == [4, 8, 12, 16, 20, 24, 27]


# ---------------------------------------------------------------- stopping


def test_a_callback_is_called_at_the_begin_after_each_chunk_and_at_the_end():
    recorder = Recorder()
    result = fit(callbacks=[recorder], num_steps=35)
    chunks = [("chunk", step) for step in (10, 20, 30, 35)]
    assert recorder.calls == [("begin", 0), *chunks, ("end", 35)]
    assert result.status == jalax.Status.MAX_STEPS
    assert steps_of(result) == 35


@pytest.mark.parametrize("answer", [True, np.bool_(True), jnp.array(True)])
def test_stop_when_true(answer):
    result = fit(callbacks=[jalax.stop_when(lambda run: answer if run.step >= 20 else False)])
    assert result.status == jalax.Status.STOPPED
    assert steps_of(result) == int(result.state.step) == 20


def test_stop_when_gives_its_reason():
    def settled(run):
        return f"ess {run.history['ess'].shape} at step {run.step}" if run.step >= 30 else False

    result = fit(callbacks=[jalax.stop_when(settled)])
    assert result.status == "stopped"
    assert result.message == "ess (30,) at step 30"
    assert "ess (30,) at step 30" in result.summary()


def test_stop_when_without_a_reason_goes_on():
    assert fit(callbacks=[jalax.stop_when(lambda run: "")]).status == "max_steps"


def test_what_stop_when_sees_is_what_the_result_holds():
    seen = []
    result = fit(callbacks=[jalax.stop_when(lambda run: seen.append((run.theta, run.history)))])
    assert len(seen) == 4
    theta, history = seen[-1]
    assert theta == result.theta
    np.testing.assert_array_equal(history["theta"], result.history["theta"])
    np.testing.assert_array_equal(seen[1][1]["theta"], result.history["theta"][:20])


def test_stopping_leaves_the_steps_before_as_they_are():
    stopped = fit(callbacks=[jalax.stop_when(lambda run: run.step >= 20)])
    whole = fit()
    for name in whole.history:
        np.testing.assert_array_equal(stopped.history[name], whole.history[name][:20])


def test_time_limit():
    at_once = fit(callbacks=[jalax.time_limit(0.0)])
    assert at_once.status == jalax.Status.TIME_LIMIT
    assert "0.0 s" in at_once.message
    assert steps_of(at_once) == 1  # the step in which it was reached is kept
    assert fit(callbacks=[jalax.time_limit(1000.0)]).status == "max_steps"


def test_time_limit_does_not_wait_for_a_long_chunk():
    """Half a second of one that takes ten."""
    options = {"num_steps": 1_000_000, "chunk_size": 100_000}
    fit(callbacks=[jalax.time_limit(0.0)], **options)  # compiles
    began = time.monotonic()
    result = fit(callbacks=[jalax.time_limit(0.5)], **options)
    assert result.status == "time_limit"
    assert 1 < result.num_steps < 100_000
    assert time.monotonic() - began < 5


def test_a_time_limit_that_passes_during_a_compilation_is_said(caplog):
    """Which cannot be stopped."""

    def slow_to_trace(theta, x, data):
        time.sleep(1.5)
        return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data - x) ** 2)

    model = jalax.Model(slow_to_trace, jnp.zeros(2), jnp.ones(2), theta=0.0)
    with caplog.at_level("INFO", logger="jalax"):
        result = jalax.fit(
            model,
            key=jax.random.key(0),
            algorithm=jalax.PGD(step_size=0.1),
            start=jalax.Given(jnp.zeros((5, 2))),
            callbacks=[jalax.time_limit(0.1)],
            num_steps=100,
            progress=jalax.callbacks.Callback(),
        )
    assert result.status == "time_limit"
    assert result.num_steps == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "time limit of 0.1 s passed, the fit ends after the compilation, or the step, that is "
        "under way"
    ]


def test_time_limit_counts_what_happens_between_the_chunks():
    pause = jalax.stop_when(lambda run: time.sleep(0.05))
    result = fit(callbacks=[pause, jalax.time_limit(0.12)], chunk_size=1)
    assert result.status == "time_limit"
    assert 1 <= steps_of(result) <= 3
    assert result.seconds >= 0.12


def test_the_first_of_two_reasons_counts():
    first = jalax.stop_when(lambda run: "one")
    second = jalax.stop_when(lambda run: "two")
    assert fit(callbacks=[first, second]).message == "one"
    assert fit(callbacks=[second, first]).message == "two"


def test_a_users_own_callback_can_stop_the_fit():
    class Twenty(jalax.callbacks.Callback):
        def after_chunk(self, run):
            return (jalax.Status.STOPPED, "twenty are enough") if run.step >= 20 else None

    result = fit(callbacks=[Twenty()])
    assert (result.status, result.message, steps_of(result)) == ("stopped", "twenty are enough", 20)


def test_a_callback_need_not_inherit():
    """`callbacks`: "an object with begin(run), after_chunk(run) and end(run)"."""

    class Own:
        def __init__(self):
            self.calls = []

        def begin(self, run):
            self.calls.append("begin")

        def after_chunk(self, run):
            self.calls.append("chunk")

        def end(self, run):
            self.calls.append("end")

    own = Own()
    fit(callbacks=[own], num_steps=20)
    assert own.calls == ["begin", "chunk", "chunk", "end"]


# ---------------------------------------------------------------- Ctrl-C


def press_ctrl_c(run):
    # A run in the background inherits an ignored SIGINT: press with Python's own handler on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def raise_keyboard_interrupt(run):
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [press_ctrl_c, raise_keyboard_interrupt])
def test_ctrl_c_returns_what_there_is(interrupt):
    recorder, other = Recorder(interrupt), Recorder()
    result = fit(callbacks=[other, recorder])
    assert result.status == jalax.Status.INTERRUPTED
    assert "20" in result.message
    assert steps_of(result) == int(result.state.step) == 20
    for watch in (recorder, other):
        assert [name for name, _ in watch.calls] == ["begin", "chunk", "chunk", "end"]
    whole = fit()
    np.testing.assert_array_equal(result.history["theta"], whole.history["theta"][:20])
    rest = fit(state=result.state, num_steps=20)
    np.testing.assert_array_equal(rest.theta, whole.theta)
    np.testing.assert_array_equal(rest.particles, whole.particles)


def test_ctrl_c_before_the_first_chunk():
    class AtBegin(Recorder):
        def begin(self, run):
            super().begin(run)
            raise KeyboardInterrupt

    first, late = Recorder(), Recorder()
    result = fit(callbacks=[first, AtBegin(), late])
    assert result.status == "interrupted"
    assert first.calls == [("begin", 0), ("end", 0)]
    assert late.calls == []  # what has not begun does not end
    assert float(result.theta) == 0.0
    np.testing.assert_allclose(result.particles, PARTICLES, rtol=1e-6)
    assert "interrupted" in result.summary()


def test_an_error_in_a_callback_reaches_the_user_and_the_others_still_end():
    def fail(run):
        raise RuntimeError("disk on fire")

    broken, other = Recorder(fail), Recorder()
    with pytest.raises(RuntimeError, match="disk on fire"):
        fit(callbacks=[other, broken])
    assert other.calls[-1] == broken.calls[-1] == ("end", 20)


# ---------------------------------------------------------------- progress bar


def test_progress_is_silent_when_nobody_sees_it(capfd):
    fit()
    fit(callbacks=[jalax.progress_bar()])
    captured = capfd.readouterr()
    assert captured.err == ""
    assert captured.out == ""


SHOW = """
import sys
import jax, jax.numpy as jnp, numpy as np, jalax

model = jalax.models.hierarchical_normal([0.5, 1.5, 4.0])
particles = np.random.default_rng(0).normal(1.0, 0.7, size=(10, 3))

def fit(name, step_size=0.05, log_evidence=-7.0, **options):
    print("[" + name + "]", file=sys.stderr, flush=True)
    try:
        result = jalax.fit(
            model, 0.0, key=jax.random.key(0), algorithm=jalax.JALAEM(step_size=step_size),
            start=jalax.Given(particles, log_evidence=log_evidence), num_steps=40, chunk_size=10,
            **options,
        )
        ess = result.history["ess"][-1] if len(result.history["ess"]) else "none"
        print(name, result.status, float(result.theta), ess)
    except Exception as error:
        print(name, "raised", repr(error))

fit("absolute")
fit("relative", log_evidence=None)
fit("twice", callbacks=[jalax.progress_bar()])
fit("none", progress=jalax.callbacks.Callback())
fit("diverged", step_size=1e38)
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    """(what the terminal shows, what is printed) by name of the fit; stderr is a terminal."""
    script = tmp_path_factory.mktemp("terminal") / "show.py"
    script.write_text(SHOW)
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 120))  # a new pseudo-terminal has no width at all
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=slave, text=True
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # Linux says EIO once the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown.decode()
    parts = re.split(r"\[(\w+)\]\r?\n", shown.decode())
    screens = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = dict(line.split(" ", 1) for line in printed.splitlines())
    return screens, lines


def test_a_long_fit_without_a_terminal_says_that_it_lives(monkeypatch, caplog, capfd):
    monkeypatch.setattr(heartbeat, "EVERY", 0.05)
    pause = jalax.stop_when(lambda run: time.sleep(0.1))
    with caplog.at_level("INFO", logger="jalax"):
        fit(callbacks=[pause], progress=None)
    assert re.match(r"JALAEM: compiling, or in the first steps, \d+ s", caplog.messages[0])
    assert re.match(
        r"JALAEM: step \d+, theta \S+, logz \S+ .*, ess \d+, \d+ s", caplog.messages[-1]
    )
    assert capfd.readouterr().err == ""
    caplog.clear()
    monkeypatch.setattr(heartbeat.LOG, "propagate", False)  # nobody has set up logging
    fit(callbacks=[pause], progress=None)
    assert "jalax: JALAEM: step" in capfd.readouterr().err
    assert not caplog.messages
    assert not [t for t in threading.enumerate() if "_beat" in t.name]  # nothing is left behind


def test_progress_shows_in_a_terminal(terminal):
    screens, printed = terminal
    status, theta, ess = printed["absolute"].split()
    last = screens["absolute"].rstrip().split("\r")[-1]
    assert status == "max_steps"
    assert "JALAEM" in last
    assert "40/40" in last
    assert f"theta {float(theta):.4g}" in last
    assert re.search(r"logz -?\d+\.\d\d", last)
    assert f"ess {float(ess):.0f}" in last
    assert "step/s" in last


def test_progress_says_when_the_evidence_is_relative(terminal):
    last = terminal[0]["relative"].rstrip().split("\r")[-1]
    assert re.search(r"log Z/Z0 -?\d+\.\d\d", last)
    assert "logz" not in last


def test_progress_of_an_algorithm_without_evidence():
    lines = []
    result = fit(
        algorithm=jalax.SOUL(step_size=0.05),
        callbacks=[jalax.stop_when(lambda run: lines.append(callbacks.progress_line(run)))],
    )
    assert len(lines) == 4
    assert lines[-1] == f"theta {float(result.theta):.4g}, ess 10"


def test_one_progress_bar_only(terminal):
    assert terminal[0]["twice"].count("40/40") == terminal[0]["absolute"].count("40/40")


def test_progress_can_be_turned_off(terminal):
    assert terminal[0]["none"] == ""
    assert terminal[1]["none"].startswith("max_steps")


def test_progress_of_a_fit_that_diverges_at_its_first_step(terminal):
    assert terminal[1]["diverged"].startswith("diverged 0.0 ")


# ---------------------------------------------------------------- divergence


@pytest.fixture(scope="module")
def diverged():
    return fit(algorithm=jalax.JALAEM(step_size=1e3), num_steps=200, chunk_size=50)


def test_a_step_size_far_too_large_diverges(diverged):
    assert diverged.status == jalax.Status.DIVERGED
    done = int(diverged.state.step)
    assert 0 < done < 40
    assert {len(rows) for rows in diverged.history.values()} == {done}
    assert f"step {done}" in diverged.message
    assert "JALAEM.step_size" in diverged.message


def test_the_last_finite_state_is_kept(diverged):
    assert np.isfinite(float(diverged.theta))
    assert np.isfinite(diverged.particles).all()
    assert not np.isnan(diverged.log_weights).any()
    assert np.isfinite(diverged.log_weights).any()
    np.testing.assert_allclose(np.sum(diverged.weights), 1.0, rtol=1e-5)
    assert np.isfinite(diverged.history["theta"]).all()


def test_it_is_the_state_of_the_last_good_step(diverged):
    done = int(diverged.state.step)
    good = fit(algorithm=jalax.JALAEM(step_size=1e3), num_steps=done, chunk_size=7)
    assert good.status == "max_steps"
    for a, b in zip(jax.tree.leaves(diverged.state), jax.tree.leaves(good.state), strict=True):
        np.testing.assert_array_equal(a, b)
    after = fit(algorithm=jalax.JALAEM(step_size=1e3), num_steps=1, state=good.state)
    assert after.status == "diverged"
    assert int(after.state.step) == done


def test_no_evidence_along_a_broken_path(diverged):
    with pytest.warns(UserWarning, match=r"diverged"):
        assert diverged.path_log_evidence is None
    with pytest.warns(UserWarning, match=r"diverged"):
        assert diverged.log_evidence is None
    assert "diverged" in diverged.summary()


def test_divergence_at_the_first_step():
    recorder = Recorder()
    result = fit(algorithm=jalax.JALAEM(step_size=1e38), callbacks=[recorder])
    assert result.status == "diverged"
    assert int(result.state.step) == 0
    assert float(result.theta) == 0.0
    np.testing.assert_allclose(result.particles, PARTICLES, rtol=1e-6)
    assert recorder.calls[-1] == ("end", 0)
    assert "diverged" in result.summary()


def test_a_peer_diverges_too():
    result = fit(algorithm=jalax.SOUL(step_size=1e3), start=jalax.Given(PARTICLES))
    assert result.status == "diverged"
    assert "SOUL.step_size" in result.message
    assert np.isfinite(float(result.theta))
    assert np.isfinite(result.particles).all()
    assert int(result.state.step) == len(result.history.get("ess", ()))


# ---------------------------------------------------------------- dead particles


def log_joint_with_edges(theta, x, data):
    """NaN for x beyond one edge, and for theta beyond another."""
    inside = -0.5 * jnp.sum((x / data["scale"]) ** 2) - 0.5 * (theta - jnp.sum(x)) ** 2
    return jnp.where((x[0] > data["edge"]) | (theta > data["theta_edge"]), jnp.nan, inside)


def fit_with_edges(algorithm, particles, num_steps, **data):
    data = {"scale": 1.0, "edge": 1e30, "theta_edge": 1e30, **data}
    return jalax.fit(
        jalax.Model(log_joint_with_edges, latent=jnp.zeros(1), data=data),
        0.03,
        key=jax.random.key(3),
        algorithm=algorithm,
        start=jalax.Given(particles[:, None]),
        num_steps=num_steps,
    )


def jala_em(step_size, learning_rate=0.1, resample_below=0.5):
    optimizer = jalax.Optax(optax.sgd, learning_rate=learning_rate)
    return jalax.JALAEM(step_size=step_size, optimizer=optimizer, resample_below=resample_below)


# A narrow posterior and a step of h = 2.2 s^2, so that a particle x goes to -1.2 x with a noise
# of 0.02: of these forty only the first, from -3 to 3.6, crosses the edge, in the first step.
FIRST_DIES = np.append(-3.0, np.random.default_rng(0).normal(0.0, 0.01, size=39))
SCALE = 0.01
H = 2.2 * SCALE**2
KEEPING_THE_DEAD = {
    "JALAEM": jala_em(H, resample_below=0.0),
    "PGD": jalax.PGD(step_size=H, optimizer=jalax.Optax(optax.sgd, learning_rate=0.1)),
}


def fit_first_dies(algorithm, num_steps):
    return fit_with_edges(algorithm, FIRST_DIES, num_steps, scale=SCALE, edge=2.0)


@pytest.mark.parametrize("name", KEEPING_THE_DEAD)
def test_a_dead_particle_is_counted_and_weighs_nothing(x64, name):
    result = fit_first_dies(KEEPING_THE_DEAD[name], num_steps=1)
    assert list(result.history["dead"]) == [1]
    assert np.isneginf(result.log_weights[0])
    assert result.weights[0] == 0.0
    assert np.all(result.weights[1:] > 0)
    np.testing.assert_allclose(np.sum(result.weights), 1.0, rtol=1e-12)
    assert np.isfinite(result.particles).all()
    assert float(result.ess) <= 39.0 + 1e-9


@pytest.mark.parametrize("name", KEEPING_THE_DEAD)
def test_a_dead_particle_does_not_reach_theta(x64, name):
    """The next gradient is that of the living, by hand."""
    one = fit_first_dies(KEEPING_THE_DEAD[name], num_steps=1)
    living, weights = np.array(one.particles)[1:, 0], np.array(one.weights)[1:]
    gradient = np.sum(weights * (living - float(one.theta)))
    two = fit_first_dies(KEEPING_THE_DEAD[name], num_steps=2)
    np.testing.assert_allclose(two.theta, one.theta + 0.1 * gradient, rtol=1e-12)
    assert two.status == "max_steps"
    assert np.isneginf(two.log_weights[0])
    assert np.isfinite(two.history["mean_log_joint"]).all()
    assert np.isfinite(two.history["grad_norm"]).all()
    assert "1 died" in two.summary()


def test_resampling_replaces_the_dead(x64):
    result = fit_first_dies(jala_em(H, resample_below=1.0), num_steps=1)
    assert list(result.history["dead"]) == [1]
    assert list(result.history["resampled"]) == [True]
    np.testing.assert_array_equal(result.log_weights, np.zeros(40))
    assert np.all(np.abs(result.particles) < 0.5)  # copies of the living
    assert np.isfinite(result.path_value)


def test_many_deaths_on_the_way(x64):
    """An edge in the bulk of the posterior: particles die at random, again and again."""
    particles = np.random.default_rng(0).uniform(-1, 0.9, size=40)
    result = fit_with_edges(jala_em(0.05), particles, num_steps=60, edge=1.0)
    assert result.status == "max_steps"
    assert result.history["dead"].sum() > 10
    for name in ("theta", "ess", "log_evidence", "mean_log_joint", "grad_norm"):
        assert np.isfinite(result.history[name]).all(), name
    assert np.isfinite(result.particles).all()
    weights = np.array(result.weights)
    assert np.all(np.array(result.particles)[weights > 0] <= 1.0)
    np.testing.assert_array_equal(weights == 0, np.isneginf(result.log_weights))


def test_all_dead_at_once_is_a_divergence(x64):
    result = fit_with_edges(jala_em(0.05, 0.01), np.full(40, 3.0), num_steps=50, theta_edge=0.1)
    assert result.status == "diverged"
    assert 0 < len(result.history["ess"]) < 50
    assert 0.05 < float(result.theta) <= 0.1
    assert np.isfinite(result.log_weights).all()
    assert result.history["dead"].sum() == 0  # up to the last good step nobody had died
