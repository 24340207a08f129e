"""A fit that stops, is killed, or finds a file that is not its own."""

from __future__ import annotations

import functools
import os
import re
import resource
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax._runtime import files

Y = np.array([0.5, 1.5, 4.0])
PARTICLES = np.random.default_rng(0).normal(1.0, 0.7, size=(10, 3))
ALGORITHMS = {
    "JALAEM": jalax.JALAEM(step_size=0.05, resample_below=0.9),
    "SOUL": jalax.SOUL(step_size=0.05),
}
JALA_EM = ALGORITHMS["JALAEM"]


def log_joint(theta, x, data):
    return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data["y"] - x) ** 2)


def fit(**changes):
    arguments = {
        "model": jalax.Model(log_joint, latent=jnp.zeros(3), data={"y": Y}),
        "theta": 0.0,
        "key": jax.random.key(0),
        "algorithm": JALA_EM,
        "start": jalax.Given(PARTICLES, log_evidence=-7.0),
        "num_steps": 30,
        "chunk_size": 10,
        **changes,
    }
    return jalax.fit(**arguments)


def stop_at(step):
    return jalax.stop_when(lambda run: run.step >= step)


class Begin(jalax.callbacks.Callback):
    """The step a fit began at."""

    def begin(self, run):
        self.step = run.step


def assert_same(a, b):
    """Bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def assert_same_result(a, b):
    assert_same(a.theta, b.theta)
    assert_same(a.particles, b.particles)
    assert_same(a.log_weights, b.log_weights)
    assert_same(a.history, b.history)
    assert_same(a.state, b.state)
    assert a.path_value == b.path_value


# ---------------------------------------------------------------- stop and go on


@pytest.mark.parametrize("name", ALGORITHMS)
def test_stop_and_continue_equals_the_uninterrupted_run(name):
    algorithm = ALGORITHMS[name]
    whole = fit(algorithm=algorithm)
    first = fit(algorithm=algorithm, callbacks=[stop_at(13)], chunk_size=13)
    assert int(first.state.step) == 13
    second = fit(algorithm=algorithm, state=first.state, num_steps=17, theta=None, start=None)
    assert_same(second.state, whole.state)
    assert_same(second.theta, whole.theta)
    assert_same(second.particles, whole.particles)
    joined = jax.tree.map(lambda *rows: np.concatenate(rows), first.history, second.history)
    assert_same(joined, whole.history)
    assert second.path_value == whole.path_value


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checkpoint_and_resume_equals_the_uninterrupted_run(tmp_path, name):
    algorithm, path = ALGORITHMS[name], tmp_path / "fit.npz"
    whole = fit(algorithm=algorithm)
    stopped = fit(algorithm=algorithm, callbacks=[jalax.checkpoint(path, every=4), stop_at(10)])
    assert stopped.status == "stopped"
    begin = Begin()
    resumed = fit(algorithm=algorithm, callbacks=[jalax.checkpoint(path, every=4), begin])
    assert begin.step == 12  # not from the beginning
    assert_same_result(resumed, whole)


def test_saving_does_not_change_the_run(tmp_path):
    assert_same_result(fit(callbacks=[jalax.checkpoint(tmp_path / "a.npz", every=7)]), fit())


def test_a_finished_fit_is_only_read_and_can_be_prolonged(tmp_path):
    path = tmp_path / "fit.npz"
    done = fit(callbacks=[jalax.checkpoint(path)])
    begin = Begin()
    again = fit(callbacks=[jalax.checkpoint(path), begin])
    assert begin.step == 30
    assert again.status == "max_steps"
    assert_same_result(again, done)
    assert_same_result(fit(callbacks=[jalax.checkpoint(path)], num_steps=45), fit(num_steps=45))


def test_a_continued_fit_has_checkpoints_too(tmp_path):
    path = tmp_path / "fit.npz"
    first = fit(num_steps=10)
    whole = fit(state=first.state, num_steps=20)
    fit(state=first.state, num_steps=20, callbacks=[jalax.checkpoint(path, every=5), stop_at(20)])
    begin = Begin()
    resumed = fit(state=first.state, num_steps=20, callbacks=[jalax.checkpoint(path), begin])
    assert begin.step == 20
    assert_same_result(resumed, whole)


# ---------------------------------------------------------------- a new process

SCRIPT = """
import os, sys
import jax, jax.numpy as jnp, numpy as np, optax
import jalax

path, kill_at = sys.argv[1], int(sys.argv[2])

def decay(step, first):
    return first / (1.0 + 0.01 * step)

class Kill(jalax.callbacks.Callback):
    def begin(self, run):
        print("begins at", run.step)
        sys.stdout.flush()

    def after_chunk(self, run):
        if kill_at and run.step >= kill_at:
            os._exit(9)  # no clean-up, no last save: as after kill -9

def log_joint(theta, x, data):
    scaled = (x - theta["m"]) * jnp.exp(-theta["s"])
    return -0.5 * jnp.sum(scaled**2) - 3 * theta["s"] - 0.5 * jnp.sum((data - x) ** 2)

def fit(*callbacks):
    return jalax.fit(
        jalax.Model(log_joint, latent=jnp.zeros(3), data=np.array([0.5, 1.5, 4.0])),
        {"m": 0.0, "s": 0.0},
        key=jax.random.key(4),
        algorithm=jalax.JALAEM(
            step_size=jalax.Schedule(decay, first=0.05),
            optimizer=optax.chain(optax.clip(1.0), optax.adam(0.05)),
            project=lambda t: {"m": t["m"], "s": jnp.clip(t["s"], -1.0, 1.0)},
        ),
        start=jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, (3,))),
        num_particles=20,
        num_steps=40,
        chunk_size=5,
        callbacks=callbacks,
    )

def numbers(result):
    leaves = jax.tree.leaves((result.state, result.history, result.theta))
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}

resumed = numbers(fit(jalax.checkpoint(path, every=7), Kill()))
whole = numbers(fit())
assert resumed.keys() == whole.keys()
differ = [i for i in whole if resumed[i].tobytes() != whole[i].tobytes()]
print(len(whole), "arrays, differ:", differ)
"""


def test_a_killed_process_run_again_equals_the_uninterrupted_run(tmp_path):
    script, path = tmp_path / "script.py", tmp_path / "fit.npz"
    script.write_text(SCRIPT)

    def run(kill_at):
        command = [sys.executable, str(script), str(path), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    killed = run(19)  # after the saves at 7 and 14
    assert killed.returncode == 9, killed.stderr
    assert killed.stdout == "begins at 0\n"
    assert path.exists()
    assert sorted(os.listdir(tmp_path)) == ["fit.npz", "script.py"]

    again = run(0)
    assert again.returncode == 0, again.stderr
    begins, outcome = again.stdout.splitlines()
    assert begins == "begins at 14"
    assert re.fullmatch(r"\d\d arrays, differ: \[\]", outcome), outcome
    assert again.stderr == ""  # piped: no progress bar, no warning


# ---------------------------------------------------------------- files that are refused


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint of a fit stopped at step 10."""
    path = tmp_path_factory.mktemp("checkpoint") / "fit.npz"
    fit(callbacks=[jalax.checkpoint(path), stop_at(10)])
    return path


def other_log_joint(theta, x, data):
    return log_joint(theta, x, data) - 0.1 * jnp.sum(x**2)


def model(log_joint=log_joint, y=Y):
    return jalax.Model(log_joint, latent=jnp.zeros(y.shape), data={"y": y})


OTHERS = {
    "data": ({"model": model(y=Y + 1e-3)}, "data"),
    "log_joint": ({"model": model(other_log_joint)}, "log_joint"),
    "constrain": (
        {"model": jalax.Model(log_joint, jnp.zeros(3), {"y": Y}, constrain=lambda t: 2.0 * t)},
        "log_joint",
    ),
    "algorithm": ({"algorithm": jalax.PGD(step_size=0.05)}, "algorithm"),
    "step size": ({"algorithm": jalax.JALAEM(step_size=0.051, resample_below=0.9)}, "step size"),
    "threshold": ({"algorithm": jalax.JALAEM(step_size=0.05, resample_below=0.8)}, "numbers"),
    "optimizer": (
        {"algorithm": jalax.JALAEM(step_size=0.05, resample_below=0.9, optimizer=optax.sgd(0.1))},
        "algorithm",
    ),
    "scheme": (
        {
            "algorithm": jalax.JALAEM(
                step_size=0.05, resample_below=0.9, resample=jalax.resampling.multinomial
            )
        },
        "algorithm",
    ),
    "key": ({"key": jax.random.key(1)}, "key"),
    "particles": ({"start": jalax.Given(PARTICLES[:9], log_evidence=-7.0)}, "shape"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_fit_is_refused(saved, name):
    changes, word = OTHERS[name]
    before, begin = saved.read_bytes(), Begin()
    with pytest.raises(files.FileError) as caught:
        fit(**changes, callbacks=[jalax.checkpoint(saved), begin])
    reason = str(caught.value)
    assert str(saved) in reason
    assert "another" in reason
    assert word in reason
    assert "Remove the file" in reason
    assert not hasattr(begin, "step"), "the loop had begun"
    assert saved.read_bytes() == before


def with_functions(*, rate=0.05, step_size=0.05, bound=3.0):
    """The three numbers are seen by the functions of the algorithm only."""
    return jalax.JALAEM(
        step_size=lambda step: step_size / (1.0 + step),
        optimizer=optax.adam(rate),
        project=lambda theta: jnp.minimum(theta, bound),
    )


def test_numbers_inside_functions_belong_to_the_fit(tmp_path):
    """The same code with another number in its closure is another algorithm."""
    path = tmp_path / "fit.npz"

    def begin_at(**numbers):
        begin, algorithm = Begin(), with_functions(**numbers)
        fit(algorithm=algorithm, callbacks=[jalax.checkpoint(path), begin, stop_at(10)])
        return begin.step

    assert begin_at() == 0
    assert begin_at() == 10  # re-created, and still itself
    accepted = []
    for numbers in ({"rate": 0.1}, {"step_size": 0.1}, {"bound": 2.0}):
        try:
            begin_at(**numbers)
        except files.FileError as error:
            if "algorithm" not in str(error):
                accepted.append((numbers, error))
        else:
            accepted.append(numbers)
    assert accepted == []


def test_functions_are_recognised_without_their_addresses(tmp_path):
    """What a new process would do: the same source, at another place in memory."""
    path, steps = tmp_path / "fit.npz", []
    for _ in range(2):
        names = {}
        exec("def decay(step, first, rate):\n    return first * rate**step", names)
        schedule = functools.partial(names["decay"], first=0.05, rate=0.99)
        begin = Begin()
        algorithm = jalax.PGD(step_size=schedule)
        fit(algorithm=algorithm, callbacks=[jalax.checkpoint(path), begin, stop_at(10)])
        steps.append(begin.step)
        del names, schedule, algorithm
    assert steps == [0, 10]


def refused(path, *words):
    begin = Begin()
    with pytest.raises(files.FileError) as caught:
        fit(callbacks=[jalax.checkpoint(path), begin])
    text = str(caught.value)
    assert not [word for word in (str(path), *words) if word not in text], text
    assert not hasattr(begin, "step")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved, tmp_path, kept):
    content = saved.read_bytes()
    path = tmp_path / "fit.npz"
    path.write_bytes(content[: int(kept * len(content))])
    refused(path, "truncated or not a jalax file")


def test_every_flipped_byte_is_noticed(saved, tmp_path):
    """Wherever it sits: in the numbers, in the header or in the zip's own tables."""
    content, path = saved.read_bytes(), tmp_path / "fit.npz"
    header, arrays = files.read(saved, "checkpoint")
    accepted, other = [], {}
    for place in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings(record=True):
                found, numbers = files.read(path, "checkpoint")
        except files.FileError as error:
            if str(path) not in str(error):
                other.setdefault(repr(error), []).append(place)
        except Exception as error:
            other.setdefault(repr(error), []).append(place)
        else:  # a byte that carries nothing, such as a date in the zip
            if found != header or any(not np.array_equal(numbers[k], arrays[k]) for k in arrays):
                accepted.append(place)
    assert not accepted, "damaged numbers were read"
    assert not other, "not a sentence for the user"


def test_a_flipped_byte_is_refused(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    numbers = np.asarray(files.read(saved, "checkpoint")[1]["state.particles"]).tobytes()
    content[content.index(numbers) + 5] ^= 0x01
    path = tmp_path / "fit.npz"
    path.write_bytes(content)
    refused(path)


def test_the_checksum_guards_the_numbers(saved, tmp_path):
    """A well-formed npz whose numbers were edited."""
    with np.load(saved) as file:
        content = dict(file)
    content["state.theta"] = content["state.theta"] + 1
    path = tmp_path / "fit.npz"
    np.savez(path, **content)
    refused(path, "damaged", "checksum")


def test_foreign_files_are_refused(tmp_path):
    npz, npy, text = tmp_path / "foreign.npz", tmp_path / "array.npy", tmp_path / "notes.txt"
    np.savez(npz, theta=np.zeros(3))
    refused(npz, "not a jalax file")
    text.write_text("theta = 0.3\n")
    refused(text, "not a jalax file")
    np.save(npy, np.zeros(3))
    refused(npy, "not a jalax file")
    folder = tmp_path / "folder"
    folder.mkdir()
    refused(folder, "not a jalax file")


def test_an_object_array_is_not_unpickled(tmp_path):
    path = tmp_path / "pickle.npz"
    np.savez(path, header=np.array([{"a": 1}], object), checksum=np.array("0"))
    refused(path, "not a jalax file")


def test_a_result_is_no_checkpoint_and_the_other_way_round(saved, tmp_path):
    path = tmp_path / "result.npz"
    fit().save(path)
    refused(path, "holds a jalax result, not a checkpoint")
    with pytest.raises(files.FileError, match="holds a jalax checkpoint, not a result"):
        jalax.load(saved)


def test_a_file_of_a_newer_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "fit.npz"
    monkeypatch.setattr(files, "FORMAT", files.FORMAT + 1)
    fit(callbacks=[jalax.checkpoint(path), stop_at(10)])
    monkeypatch.undo()
    refused(path, "newer jalax", "update jalax")


# ---------------------------------------------------------------- files that cannot be written


@pytest.mark.parametrize("parent", ["missing", "a file"])
def test_a_fit_goes_on_when_its_file_cannot_be_written(tmp_path, parent):
    (tmp_path / "a file").write_text("")
    path = tmp_path / parent / "fit.npz"
    with pytest.warns(UserWarning, match=r"(could not|cannot) be written.*goes on") as seen:
        result = fit(callbacks=[jalax.checkpoint(path, every=15)])
    assert all(str(path) in str(warning.message) for warning in seen)
    assert "cannot be written" in str(seen[0].message)  # as soon as the fit begins
    assert "could not be written at step 15" in str(seen[1].message)
    assert_same_result(result, fit())
    assert sorted(os.listdir(tmp_path)) == ["a file"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """The limit on the size of a file stands in for the disk: the write fails half way."""
    path = tmp_path / "fit.npz"
    fit(callbacks=[jalax.checkpoint(path), stop_at(10)])
    old = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, hard))
    try:
        with pytest.warns(UserWarning, match="could not be written"):
            result = fit(callbacks=[jalax.checkpoint(path)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_same_result(result, fit())
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["fit.npz"]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch, error):
    path, savez = tmp_path / "fit.npz", np.savez
    fit(callbacks=[jalax.checkpoint(path), stop_at(10)])
    old = path.read_bytes()

    def half(file, **content):
        savez(file, **dict(list(content.items())[:3]))
        raise error

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(error):
        fit(callbacks=[jalax.checkpoint(path)])
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["fit.npz"]
    begin = Begin()
    assert_same_result(fit(callbacks=[jalax.checkpoint(path), begin]), fit())
    assert begin.step == 10


def test_no_temporary_files_are_left(tmp_path):
    fit(callbacks=[jalax.checkpoint(tmp_path / "fit.npz", every=1)])
    assert os.listdir(tmp_path) == ["fit.npz"]


def test_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(callbacks=[jalax.checkpoint("fit.npz"), stop_at(10)])
    begin = Begin()
    fit(callbacks=[jalax.checkpoint("fit.npz"), begin])
    assert begin.step == 10
