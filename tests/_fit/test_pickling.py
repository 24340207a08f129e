"""Copies and pickles of results, in this process and in another."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import pickle
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._runtime.files import FileError
from jalax._runtime.function_keys import Static
from shared_models import pair

Y = np.array([0.5, 1.5, 4.0])
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def result():
    """By Scoring, with its evidence and standard errors, of a model of jalax's own."""
    return jalax.fit(jalax.models.hierarchical_normal(Y), 0.0, key=KEY)


def scale_joint(theta, x, data):
    scale = theta["scale"]
    return -0.5 * jnp.sum((x / scale) ** 2) - jnp.log(scale) - 0.5 * jnp.sum((data - x) ** 2)


def positive(theta):
    return {"scale": jnp.exp(theta["scale"])}


@pytest.fixture(scope="module")
def grouped():
    """Of functions of this file, with `constrain` and a step size of the user's."""
    model = jalax.GroupedModel(
        scale_joint, jnp.zeros(()), jnp.asarray(Y), theta={"scale": 0.3}, constrain=positive
    )
    start = jalax.Given(np.random.default_rng(0).normal(size=(3, 20)))
    algorithm = jalax.JALAEM(step_size=0.05, resample_below=0.9)
    return jalax.fit(model, key=KEY, algorithm=algorithm, start=start, num_steps=5)


def assert_same(a, b):
    names = ("theta", "free", "particles", "log_weights", "history")
    for name in names:
        x, y = getattr(a, name), getattr(b, name)
        assert jax.tree.structure(x) == jax.tree.structure(y)
        for one, other in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    assert a.summary() == b.summary()
    assert a.names == b.names


# ---------------------------------------------------------------- copies


def test_a_copy_shares_its_numbers(result):
    other = copy.copy(result)
    assert type(other) is jalax.FitResult
    assert other is not result
    assert other.particles is result.particles
    assert other.origin is result.origin
    assert_same(other, result)


def test_a_deep_copy_has_arrays_of_its_own(result):
    other = copy.deepcopy(result)
    assert_same(other, result)
    assert other.origin.model is result.origin.model  # nothing is compiled again
    other.history["ess"][:] = -1
    other.saved_evidence.groups[:] = 7.0
    other.saved_uncertainty.covariance[:] = 0.0
    assert (result.history["ess"] > 0).all()
    assert not (result.saved_evidence.groups == 7.0).any()
    assert (np.diagonal(result.saved_uncertainty.covariance) > 0).all()


def test_deep_copies_of_one_result_are_one(result):
    first, second = copy.deepcopy([result, result])
    assert first is second


def test_what_was_computed_since_comes_along(grouped):
    other = copy.copy(grouped)
    evidence = other.evidence
    assert copy.copy(other).evidence is evidence
    assert copy.deepcopy(other).evidence.value == evidence.value


# ---------------------------------------------------------------- pickles


def test_a_pickle_has_the_numbers_and_the_model(result):
    other = pickle.loads(pickle.dumps(result))
    assert_same(other, result)
    assert type(other.origin.model) is type(result.origin.model)
    assert other.origin.model.exact_log_evidence(2.0) == result.origin.model.exact_log_evidence(2.0)
    assert other.evidence.value == result.evidence.value
    np.testing.assert_array_equal(other.vcov(), result.vcov())
    assert other.origin.algorithm == result.origin.algorithm  # the default: a fit can be repeated
    key = jax.random.key_data(other.origin.fit_key)
    np.testing.assert_array_equal(key, jax.random.key_data(KEY))


def test_a_pickle_keeps_labels_and_constraints(grouped):
    other = pickle.loads(pickle.dumps(grouped))
    assert_same(other, grouped)
    assert other.origin.model.log_joint == Static(scale_joint)
    assert other.origin.model.constrain == Static(positive)
    assert other.origin.model.num_groups == 3
    # The same key and model give the same fresh evidence.
    assert other.log_evidence == grouped.log_evidence
    ends = [one.confidence_intervals()["scale"] for one in (other, grouped)]
    np.testing.assert_array_equal(*ends)


def test_what_needs_the_fit_itself_says_so(grouped):
    other = pickle.loads(pickle.dumps(grouped))
    with pytest.raises(ValueError, match="replay needs the fit itself"):
        other.replay(KEY)
    with pytest.raises(ValueError, match="evidence_check needs the fit itself"):
        other.evidence_check(KEY)
    with pytest.raises(ValueError, match=r"options of its algorithm, JALAEM\(step_size=0.05.*pass"):
        jalax.fit(other.origin.model, key=KEY, algorithm=other.origin.algorithm)
    again = pickle.loads(pickle.dumps(other))  # and once more
    assert_same(again, grouped)
    assert repr(again.origin.algorithm) == repr(other.origin.algorithm)


def test_a_report_of_a_pickled_fit_names_start_and_algorithm(grouped, tmp_path):
    pickle.loads(pickle.dumps(grouped)).report(tmp_path / "fit.html")
    page = (tmp_path / "fit.html").read_text()
    assert "Given" in page
    assert "JALAEM(step_size=0.05" in page
    assert "FormerStart" not in page


class Mean(NamedTuple):
    mean: jax.Array


def test_containers_of_the_users_own_are_kept(result):
    theta = Mean(jnp.ones(2))
    one = dataclasses.replace(result, theta=theta, saved_uncertainty=None, origin=None)
    other = pickle.loads(pickle.dumps(one))
    assert isinstance(other.theta, Mean)
    np.testing.assert_array_equal(other.theta.mean, theta.mean)


def test_a_loaded_result_can_be_pickled(result, tmp_path):
    result.save(tmp_path / "fit.npz")
    loaded = jalax.load(tmp_path / "fit.npz")
    assert loaded.origin is None
    other = pickle.loads(pickle.dumps(loaded))
    assert other.origin is None
    assert_same(other, result)


@pytest.mark.parametrize(
    "function",
    [
        lambda theta, x, data: pair(theta, x, data),
        functools.partial(lambda shift, theta, x, data: pair(theta, x, data) + shift, 1.0),
    ],
    ids=["lambda", "partial"],
)
def test_a_function_that_nobody_else_finds_is_refused(result, function):
    model = jalax.GroupedModel(function, jnp.zeros(2), jnp.ones((4, 2)))
    one = dataclasses.replace(result, origin=dataclasses.replace(result.origin, model=model))
    with pytest.raises(TypeError, match=r"lambda> cannot be pickled: .*top level.*result\.save"):
        pickle.dumps(one)
    assert copy.deepcopy(one).origin.model is model  # a copy stays in this process


def test_a_partial_of_a_function_with_a_name_is_fine():
    one = Static(functools.partial(pair, 1.0))
    assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(Static(jnp.sum))) == Static(jnp.sum)


def test_a_broken_pickle_is_a_file_error(result):
    unpickled, (kind, content, like, model) = result.__reduce__()
    with pytest.raises(FileError, match="a pickled result is truncated"):
        unpickled(kind, content[: len(content) // 2], like, model)


CHILD = """
import json, pickle, sys
import numpy as np
with open(sys.argv[1], "rb") as file:
    result = pickle.load(file)
print(json.dumps({
    "theta": float(result.theta),
    "log_evidence": result.log_evidence,
    "exact": float(result.origin.model.exact_log_evidence(result.theta)),
    "means": result.latents().mean.tolist(),
    "summary": str(result.summary()),
}))
"""


def test_a_pickle_is_read_by_another_process(result, tmp_path):
    (tmp_path / "fit.pickle").write_bytes(pickle.dumps(result))
    command = [sys.executable, "-c", CHILD, str(tmp_path / "fit.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["theta"] == float(result.theta)
    assert found["log_evidence"] == result.log_evidence
    assert found["exact"] == pytest.approx(float(result.log_evidence), abs=0.1)
    assert found["means"] == result.latents().mean.tolist()
    assert found["summary"] == result.summary()
