"""Programs on disk: named after all they are made of, and never taken for one another."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax import models
from jalax._particles import weight_math
from jalax._runtime import kept
from jalax._runtime.compilation import Jit
from jalax._runtime.function_keys import Static
from jalax.models._logistic import _log_joint

LOG_WEIGHTS = jnp.log(jnp.arange(1.0, 13.0)).reshape(3, 4)


@pytest.fixture
def folder(tmp_path, cache_is_off_afterwards):
    del cache_is_off_afterwards
    return jalax.compilation_cache(tmp_path)


def files(folder):
    return sorted((folder / "programs").rglob("*") if (folder / "programs").exists() else [])


def programs(folder):
    return [file for file in files(folder) if file.is_file()]


def fresh() -> Jit:
    """A program as another process would meet it; its answer has an oracle in NumPy."""
    return Jit(weight_math.log_mean_exp)


def expected(log_weights):
    return np.log(np.mean(np.exp(log_weights), axis=-1))


# --- on disk and back -------------------------------------------------------------------------


def test_a_program_is_read_and_not_compiled_again(folder):
    first = fresh()(LOG_WEIGHTS)
    np.testing.assert_allclose(first, expected(LOG_WEIGHTS), rtol=1e-5)
    (file,) = programs(folder)
    written = file.stat().st_mtime_ns
    second = fresh()
    found = second._found((LOG_WEIGHTS,), {})
    assert found.eval_shape(LOG_WEIGHTS) == jax.eval_shape(weight_math.log_mean_exp, LOG_WEIGHTS)
    np.testing.assert_array_equal(second(LOG_WEIGHTS), first)
    assert found.program._cache_size() == 0
    assert found._lowered is None
    assert [file.stat().st_mtime_ns for file in programs(folder)] == [written]


def test_every_kind_of_argument_has_its_own_program(folder):
    fresh()(LOG_WEIGHTS)
    for other in (LOG_WEIGHTS[:2], LOG_WEIGHTS.astype(jnp.float16), np.zeros((3, 4), np.int32)):
        before = len(programs(folder))
        np.testing.assert_allclose(fresh()(other), expected(np.asarray(other)), rtol=1e-2)
        assert len(programs(folder)) == before + 1


def test_switches_of_jax_are_part_of_the_name(folder):
    fresh()(LOG_WEIGHTS)
    with jax.default_matmul_precision("highest"):
        fresh()(LOG_WEIGHTS)
    assert len(programs(folder)) == 2
    with jax.debug_nans(True):
        assert not isinstance(fresh()._found((LOG_WEIGHTS,), {}), kept.Kept)


def test_compiler_options_are_part_of_the_name(folder):
    fresh()(LOG_WEIGHTS)
    Jit(weight_math.log_mean_exp, {"xla_backend_optimization_level": 1})(LOG_WEIGHTS)
    assert len(programs(folder)) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:200] + b"x" + b[201:]])
def test_a_damaged_file_is_compiled_again(folder, damage):
    first = fresh()(LOG_WEIGHTS)
    (file,) = programs(folder)
    file.write_bytes(damage(file.read_bytes()))
    np.testing.assert_array_equal(fresh()(LOG_WEIGHTS), first)


def test_a_program_that_xla_refuses_is_compiled_again(folder):
    """Whole, but not for this machine, for example."""
    first = fresh()(LOG_WEIGHTS)
    (file,) = programs(folder)
    shapes, payload = kept._read(file)
    assert payload is not None
    machine_code = payload.index(b"ELF") if b"ELF" in payload else len(payload) // 2
    broken = payload[:machine_code] + bytes(64) + payload[machine_code + 64 :]
    kept._write(file, pickle.dumps((shapes, broken)))
    np.testing.assert_array_equal(fresh()(LOG_WEIGHTS), first)


def test_a_file_that_somebody_else_may_have_written_is_not_read(folder, monkeypatch):
    fresh()(LOG_WEIGHTS)
    (file,) = programs(folder)
    assert kept._read(file)[1] is not None
    file.chmod(0o620)
    assert kept._read(file) == (None, None)
    file.chmod(0o602)
    assert kept._read(file) == (None, None)
    file.chmod(0o600)
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert kept._read(file) == (None, None)


def test_a_folder_that_cannot_be_written(folder):
    (folder / "programs").write_text("in the way")
    np.testing.assert_allclose(fresh()(LOG_WEIGHTS), expected(LOG_WEIGHTS), rtol=1e-5)


def test_a_program_found_in_jaxs_cache_is_not_written(folder):
    """XLA leaves functions out when it writes a program that it has read."""
    fresh()(LOG_WEIGHTS)
    (file,) = programs(folder)
    file.unlink()
    jax.clear_caches()
    np.testing.assert_allclose(fresh()(LOG_WEIGHTS), expected(LOG_WEIGHTS), rtol=1e-5)
    assert programs(folder) == []


def test_without_the_folder_nothing_is_kept(folder):
    jax.config.update("jax_compilation_cache_dir", None)
    fresh()(LOG_WEIGHTS)
    assert files(folder) == []


def test_inside_of_another_program(folder):
    inside = jax.jit(lambda x: fresh()(x))(LOG_WEIGHTS)
    np.testing.assert_allclose(inside, expected(LOG_WEIGHTS), rtol=1e-5)
    assert files(folder) == []


# --- names ------------------------------------------------------------------------------------


def mine(theta, x, data):
    return -0.5 * jnp.sum((x - theta) ** 2)


@functools.wraps(_log_joint)
def disguised(theta, x, data):
    return mine(theta, x, data)


class Subclass(jalax.Model):
    pass


X, Y = np.eye(3), [0, 1, 1]


def structure(model):
    return jax.tree.structure(model)


UNKNOWN = {
    "function": mine,
    "lambda": lambda theta: theta,
    "under-the-name-of-one-of-ours": disguised,
    "inside-of-a-partial": functools.partial(_log_joint, data_batch=mine),
    "inside-of-a-closure": optax.apply_if_finite(optax.GradientTransformation(mine, mine), 3),
    "bound-method": Subclass(_log_joint, X).replace,
    "class": Subclass,
    "object": object(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_code_from_elsewhere_has_no_name(name):
    with pytest.raises(kept._Unknown):
        kept.describe(UNKNOWN[name])


@pytest.mark.parametrize("model", [jalax.Model(mine, jnp.zeros(3)), Subclass(_log_joint, X)])
def test_a_model_with_code_from_elsewhere_has_no_name(model):
    with pytest.raises(kept._Unknown):
        kept._describe_structure(structure(model))


def counts(family):
    return models.random_intercept([1, 2, 0, 1], np.ones((4, 1)), [0, 0, 1, 1], family=family)


STRUCTURES = {
    "model": lambda: structure(models.logistic_regression(X, Y)),
    "in batches": lambda: structure(models.logistic_regression(X, Y, data_batch=2)),
    "smaller batches": lambda: structure(models.logistic_regression(X, Y, data_batch=1)),
    "algorithm": lambda: structure(jalax.JALAEM()),
    "binomial": lambda: structure(counts(models.Binomial(3))),
    "Poisson": lambda: structure(counts(models.Poisson())),
    "another resampling": lambda: structure(jalax.JALAEM(resample=jalax.stratified)),
}
VALUES = {
    "adam": lambda: tuple(map(Static.of, optax.adam(0.05))),
    "slower adam": lambda: tuple(map(Static.of, optax.adam(0.01))),
    "clipped": lambda: optax.chain(optax.clip(1.0), optax.adam(0.05)),
    "clipped less": lambda: optax.chain(optax.clip(2.0), optax.adam(0.05)),
    "one": lambda: 1,
    "one as a float": lambda: 1.0,
    "true": lambda: True,
    "text": lambda: "1",
    "tuple": lambda: (1,),
    "list": lambda: [1],
    "array": lambda: np.arange(3.0),
    "another array": lambda: np.arange(3.0) + 1e-12,
    "array in float32": lambda: jnp.arange(3, dtype=jnp.float32),
    "partial": lambda: functools.partial(_log_joint, data_batch=3),
    "another partial": lambda: functools.partial(_log_joint, data_batch=4),
}


def texts():
    found = {name: kept._describe_structure(make()) for name, make in STRUCTURES.items()}
    return found | {name: kept.describe(make()) for name, make in VALUES.items()}


def test_equal_things_have_equal_names_and_others_have_others():
    once, again = texts(), texts()
    assert once == again
    assert len(set(once.values())) == len(once)


def test_names_are_those_of_every_process():
    code = "import json, test_kept; print(json.dumps(test_kept.texts()))"
    found = []
    for seed in ("1", "2"):  # of Python's hashes
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            cwd=Path(__file__).parent,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]


def test_another_text_of_jalax_is_another_world(tmp_path, monkeypatch):
    world = kept._world.__wrapped__
    copied = shutil.copytree(Path(kept.__file__).parent, tmp_path / "jalax")
    monkeypatch.setattr(kept, "__file__", str(copied / "_runtime/kept.py"))
    assert world() == kept._world()
    with open(copied / "models" / "_logistic.py", "a") as file:
        file.write("# a word more\n")
    assert world() != kept._world()
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert world() != kept._world()
