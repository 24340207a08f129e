"""What the machine does to a fit: signals, and too little memory. Nothing is lost in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._evidence import uncertainty
from jalax._runtime.failures import naming_knobs
from shared_models import pair

KEY = jax.random.key(0)
MODEL = jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))
PARTICLES = np.random.default_rng(0).normal(size=(20, 3))


def fit(callbacks=(), **options):
    plain = {"algorithm": jalax.JALAEM(step_size=0.05), "start": jalax.Given(PARTICLES)}
    return jalax.fit(MODEL, 0.0, key=KEY, callbacks=callbacks, **{**plain, **options})


class At(jalax.callbacks.Callback):
    """Does something once, when a step is reached."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def after_chunk(self, run):
        if run.step == self.step:
            self.action()


# --- Ctrl-C and SIGTERM --------------------------------------------------------------------------


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def press_ctrl_c():
    """What Python makes of it; the signal itself is ignored by a job in the background."""
    raise KeyboardInterrupt


def test_ctrl_c_returns_what_there_is():
    whole = fit(num_steps=40, chunk_size=10)
    result = fit([At(20, press_ctrl_c)], num_steps=40, chunk_size=10)
    assert result.status == "interrupted"
    assert result.message == "interrupted after step 20"
    assert len(result.history["step"]) == 20
    np.testing.assert_array_equal(result.history["theta"], whole.history["theta"][:20])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # as it was


def test_ctrl_c_during_the_last_scoring_steps(monkeypatch):
    def interrupted(*arguments, **options):
        press_ctrl_c()

    monkeypatch.setattr(uncertainty, "finish", interrupted)
    result = jalax.fit(MODEL, 0.0, key=KEY, algorithm=jalax.JALAEM())
    assert result.status == "interrupted"
    assert "interrupted before the last scoring step" in result.message


def test_ctrl_c_stops_many_fits():
    results = jalax.fit_many(
        MODEL,
        0.0,
        key=KEY,
        num_fits=2,
        num_steps=40,
        chunk_size=10,
        algorithm=jalax.JALAEM(step_size=0.05),
        start=jalax.Given(PARTICLES),
        callbacks=[At(20, press_ctrl_c)],
    )
    assert [str(status) for status in results.status] == ["interrupted"] * 2


def test_a_handler_of_the_users_own_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        result = fit([At(20, terminate)], num_steps=40, chunk_size=10)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1]
    assert result.status == "max_steps"


def test_a_fit_in_a_thread_leaves_the_signals_alone():
    """Python lets only the main thread set handlers."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(num_steps=3)))
    thread.start()
    thread.join()
    assert found[0].status == "max_steps"


SCRIPT = """
import sys, time, jax, jax.numpy as jnp, jalax
model = jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))

class Slow(jalax.callbacks.Callback):
    def begin(self, run):
        print("begins at", run.step, flush=True)

    def after_chunk(self, run):
        if run.step < 200:
            print("step", run.step, flush=True)
            time.sleep(0.05)

for k in range(3):
    result = jalax.fit(
        model, 0.0, key=jax.random.key(k), algorithm=jalax.JALAEM(step_size=0.05),
        start=jalax.Given(jnp.ones((20, 3))), num_steps=400, chunk_size=10,
        callbacks=[jalax.checkpoint(f"{sys.argv[1]}/{k}.npz", every=10**6), Slow()],
    )
    print("fit", k, result.status, float(result.theta))
"""


def script_of_three_fits(folder, lines=None):
    """What it prints, how it ends and the seconds to there from SIGTERM, sent after some lines."""
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        said = [child.stdout.readline() for _ in range(lines or 0)]
        began = time.monotonic()
        if lines:
            child.terminate()
        rest, _ = child.communicate(timeout=120)
    return "".join(said) + rest, child.returncode, time.monotonic() - began


@pytest.mark.slow
def test_sigterm_ends_a_script_of_three_fits_which_resumes(tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    stopped.mkdir(), whole.mkdir()
    said, status, seconds = script_of_three_fits(stopped, lines=6)
    assert status == -signal.SIGTERM  # 143 in a shell
    assert seconds < 5
    assert "fit 0" not in said  # it did not go on
    assert [path.name for path in stopped.iterdir()] == ["0.npz"]
    said, status, _ = script_of_three_fits(stopped)
    assert status == 0
    begins = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("begins")]
    assert begins[0] >= 50
    assert begins[1:] == [0, 0]
    straight, _, _ = script_of_three_fits(whole)

    def results(said):
        return [line for line in said.splitlines() if line.startswith("fit")]

    assert len(results(said)) == 3
    assert results(said) == results(straight)


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def a_terabyte_at_most():
    """Some machines promise any amount of memory, and kill the process that uses it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("a_terabyte_at_most")
@pytest.mark.parametrize("grouped", [False, True])
def test_out_of_memory_names_the_knobs(grouped):
    """Four terabytes, which the device refuses for real."""
    if grouped:
        data = jnp.zeros((1000, 1000))
        model = jalax.GroupedModel(pair, jnp.zeros(1000), data)
        words = "group_batch="
    else:
        model = jalax.Model(pair, jnp.zeros(1_000_000), jnp.zeros(1_000_000))
        words = "particle_batch="
    shape = model.latent.shape
    prior = jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, shape))
    with pytest.raises(MemoryError, match=r"no memory left.*num_particles.*mesh=") as caught:
        jalax.fit(
            model,
            0.0,
            key=KEY,
            algorithm=jalax.JALAEM(step_size=0.01),
            start=prior,
            num_particles=1_000_000,
            num_steps=3,
        )
    assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)


def exhausted():
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")


def exhausted_host():
    raise MemoryError("Unable to allocate 8 bytes")


@pytest.mark.parametrize("exhausted", [exhausted, exhausted_host])
def test_out_of_memory_on_the_way_keeps_what_there_is(exhausted):
    with pytest.warns(UserWarning, match="no memory left after step 20"):
        result = fit([At(20, exhausted)], num_steps=40, chunk_size=10)
    assert result.status == "stopped"
    assert "particle_batch=" in result.message
    assert len(result.history["step"]) == 20


def test_out_of_memory_in_the_scoring_steps_keeps_the_fit(monkeypatch):
    def finish(*arguments, **options):
        with naming_knobs(grouped=False):
            exhausted()

    monkeypatch.setattr(uncertainty, "finish", finish)
    with pytest.warns(UserWarning, match="no scoring step"):
        result = jalax.fit(MODEL, 0.0, key=KEY, algorithm=jalax.JALAEM())
    assert result.status == "max_steps"
    assert abs(float(result.theta) - 2.0) < 0.2  # the tail average: the exact answer is 2


def test_an_interrupt_that_jax_has_wrapped_is_one():
    """As seen: Ctrl-C while JAX compares arguments comes out as a ValueError, caused by it."""

    def wrapped():
        raise ValueError("Exception raised while checking equality") from KeyboardInterrupt()

    result = fit([At(20, wrapped)], num_steps=40, chunk_size=10)
    assert result.status == "interrupted"
    assert result.num_steps == 20

    def wrong():
        raise ValueError("a mistake of the callback")

    with pytest.raises(ValueError, match="a mistake of the callback"):
        fit([At(20, wrong)], num_steps=40, chunk_size=10)


def test_other_errors_of_the_runtime_are_no_memory_errors():
    def broken():
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        fit([At(20, broken)], num_steps=40, chunk_size=10)
