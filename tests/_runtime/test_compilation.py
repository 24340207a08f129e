"""How programs are compiled: plainly for small models, ahead of time, and kept on disk."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.smc import resampling

import jalax
from jalax._fit import loop
from jalax._model import model as model_module
from jalax._model.types import State
from jalax._runtime import compilation
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_2_ONE_PASS_SUMS, Program

QUIET = jalax.callbacks.Callback()
KEY = jax.random.key(0)

# log_joint reads a number when it is traced: a program with the old number would be a wrong one.
FIT = """
import collections, json, sys
import jax, jax.monitoring, jax.numpy as jnp
import jalax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: seen.update([name.rsplit("/")[-1]]))
jalax.runtime.compilation_cache(sys.argv[1])
def log_joint(theta, x, y):
    shift = float(open(sys.argv[1] + "/shift").read())
    return -0.5 * jnp.sum((x - theta - shift) ** 2 + (y - x) ** 2)
model = jalax.Model(log_joint, jnp.zeros(3), jnp.array([0.5, 1.5, 4.0]))
result = jalax.fit(
    model, 0.0, key=jax.random.key(1), algorithm=jalax.PGD(step_size=0.05), num_steps=300,
    start=jalax.Given(jnp.zeros((200, 3))), progress=jalax.callbacks.Callback(),
)
print(json.dumps([float(result.theta), seen["cache_misses"]]))
"""


def fit_in_a_process(folder, shift):
    """theta, and how many programs were not in the folder."""
    (folder / "shift").write_text(str(shift))
    command = [sys.executable, "-c", FIT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_next_process_compiles_nothing_unless_the_function_changed(tmp_path):
    first = fit_in_a_process(tmp_path, 0.0)
    np.testing.assert_allclose(first[0], 2.0, atol=0.2)
    assert first[1] > 1
    assert fit_in_a_process(tmp_path, 0.0) == [first[0], 0]
    theta, misses = fit_in_a_process(tmp_path, 5.0)
    np.testing.assert_allclose(theta, -3.0, atol=0.2)
    assert misses > 0


@pytest.mark.slow
def test_programs_that_were_cut_short_are_compiled_again(tmp_path):
    """What a killed process leaves, or one that is still writing."""
    whole = fit_in_a_process(tmp_path, 0.0)
    programs = list(tmp_path.glob("*-cache"))
    assert len(programs) > 1
    for program in programs:
        os.truncate(program, program.stat().st_size // 2)
    assert fit_in_a_process(tmp_path, 0.0)[0] == whole[0]


@pytest.mark.usefixtures("cache_is_off_afterwards")
def test_the_default_folder_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jalax.runtime.compilation_cache() == tmp_path / "jalax"
    assert (tmp_path / "jalax").is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jalax.runtime.compilation_cache() == tmp_path / ".cache" / "jalax"


def logistic(rows):
    X = np.random.default_rng(0).normal(size=(rows, 5))
    return jalax.models.logistic_regression(X, (X[:, 0] > 0).astype(float))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere there is one version")
def test_small_models_of_short_runs_are_compiled_plainly():
    program = Program(lambda *args: None, small=LEVEL_0_OLD_EMITTERS, large={})
    auto, told = jalax.JALAEM(), jalax.JALAEM(step_size=0.1)
    assert program.version((KEY, auto, logistic(200))) is program.small
    assert program.version((KEY, logistic(200))) is program.small
    assert program.version((KEY, auto, logistic(20_000))) is program.large
    assert program.version((KEY, told, logistic(200))) is program.large
    assert program.version((KEY, jalax.PGD(step_size=0.1), logistic(200))) is program.large
    # Passes of Scoring whatever their size.
    scoring, latent = jalax.Scoring(), jnp.zeros(40)
    joint = jalax.Model(lambda theta, x, y: -jnp.sum(x**2), latent, jnp.zeros(20_000))
    assert program.version((KEY, scoring, joint)) is program.small
    assert program.version((KEY, auto, joint)) is program.large
    assert program.version((KEY, scoring, logistic(20_000))) is program.small


def test_an_xla_without_one_of_these_options(monkeypatch):
    monkeypatch.setitem(LEVEL_0_OLD_EMITTERS, "xla_no_such_option", True)
    compilation._unknown_options.cache_clear()
    try:
        known = compilation.known_options(LEVEL_0_OLD_EMITTERS)
        assert "xla_no_such_option" not in known
        assert known["xla_backend_optimization_level"] == 0
        assert compilation.Jit(lambda x: x + 1, LEVEL_0_OLD_EMITTERS)(1) == 2
    finally:
        compilation._unknown_options.cache_clear()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere there is one version")
def test_float64_over_few_particles_adds_up_in_one_pass(x64):
    told, single = jalax.JALAEM(step_size=0.1), jalax.JALAEM(step_size=jnp.float32(0.1))
    few = State(0, 0.0, (), jnp.zeros((3, compilation.FEW)), jnp.zeros(3), ())
    many = few._replace(log_weights=jnp.zeros((3, compilation.FEW + 1)))
    assert loop.run_chunk.version((KEY, told, few)) is loop.run_chunk.double
    assert loop.run_chunk.version((KEY, told, many)) is loop.run_chunk.large
    assert loop.run_chunk.version((KEY, single, few)) is loop.run_chunk.large
    assert loop.run_chunk.version((KEY, jalax.JALAEM(), few)) is loop.run_chunk.small


def test_one_pass_is_one_and_exact_enough(x64):
    numbers = np.random.default_rng(0).normal(size=1_000_000) + 1
    sums = compilation.Jit(lambda x: jnp.sum(2 * x), LEVEL_2_ONE_PASS_SUMS).lower(numbers).compile()
    assert "reduce-window" not in sums.as_text()  # what XLA makes of it otherwise
    np.testing.assert_allclose(sums(numbers), 2 * math.fsum(numbers), rtol=1e-13)


@pytest.mark.slow
def test_both_versions_agree(monkeypatch):
    model = logistic(60)
    small = jalax.fit(
        model, key=KEY, num_steps=5, algorithm=jalax.JALAEM(), progress=jalax.callbacks.Callback()
    )
    monkeypatch.setattr(model_module, "SMALL", 0)
    large = jalax.fit(
        model, key=KEY, num_steps=5, algorithm=jalax.JALAEM(), progress=jalax.callbacks.Callback()
    )
    np.testing.assert_allclose(small.theta, large.theta, rtol=1e-3)
    np.testing.assert_allclose(small.log_evidence, large.log_evidence, atol=1e-2)


class LeftAfterOneChunk(jalax.callbacks.Callback):
    def after_chunk(self, run):
        raise KeyboardInterrupt


def test_what_is_compiled_ahead_is_what_runs():
    """One program of the loop and of its start, not a second one for their real arguments.

    Both have run when the fit is left, before it compiles what it ends with.
    """
    model = logistic(61)
    before = loop.run_chunk.cache_size()
    compiled = []
    listen = lambda name, _, **more: compiled.append((name, more.get("fun_name")))  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        left = jalax.fit(
            model,
            key=KEY,
            num_steps=5,
            algorithm=jalax.JALAEM(),
            progress=QUIET,
            callbacks=[LeftAfterOneChunk()],
        )
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert left.status == "interrupted"
    assert len(left.history["ess"]) > 0
    assert loop.run_chunk.cache_size() == before + 1
    name = "/jax/core/compile/backend_compile_duration"
    assert compiled.count((name, "jit(chunk)")) == 1
    assert compiled.count((name, "jit(_first)")) == 1


@pytest.mark.parametrize("name", ["systematic", "stratified", "multinomial"])
def test_ancestors_are_blackjaxs(name):
    weights = jax.nn.softmax(jax.random.normal(KEY, (70,)))
    for seed in range(5):
        key = jax.random.key(seed)
        ours = getattr(jalax.resampling, name)(key, weights, 50)
        assert (ours == getattr(resampling, name)(key, weights, 50)).all()


def products(model):
    """The precisions of the products in a program that visits a model's density."""
    visit = compilation.Jit(lambda x: model.density()(1.0, x, model.data))
    text = visit.lower(model.latent).as_text()
    return re.findall(r"dot_general.*?precision = \[(\w+), (\w+)\]", text)


def test_products_are_those_of_float32_unless_asked_otherwise():
    """A GPU's default is TF32, whose errors are those of log-weights: 0.07 of the pines' log p."""

    def log_joint(theta, x, data):
        quick = jnp.matmul(data, x, precision="default")  # the user says so
        return -theta * jnp.sum((data @ x) ** 2) - jnp.sum(quick**2)

    model = jalax.Model(log_joint, jnp.zeros(3), jnp.eye(3))
    assert products(model) == [("DEFAULT", "DEFAULT"), ("HIGHEST", "HIGHEST")]
    with jax.default_matmul_precision("tensorfloat32"):  # so does JAX's switch, and no less
        assert ("HIGHEST", "HIGHEST") not in products(model)
