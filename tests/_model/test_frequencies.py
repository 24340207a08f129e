"""Groups that occur several times: the fit of distinct ones is that of all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._model.algorithm import Measurement
from jalax._model.frequencies import counted_measurement

KEY = jax.random.key(0)
THETA = {"easy": jnp.array([-1.0, 0.0, 1.2]), "log_sd": jnp.zeros(())}


def log_joint(theta, x, data):
    """A Rasch model of three items; the number of persons with a pattern is no part of it."""
    eta = theta["easy"] + jnp.exp(theta["log_sd"]) * x
    return jax.scipy.stats.norm.logpdf(x) + jnp.sum(data["y"] * eta - jnp.logaddexp(0.0, eta))


def answers(persons=400):
    rng = np.random.default_rng(0)
    eta = np.array([-1.0, 0.0, 1.2]) + 1.3 * rng.normal(size=(persons, 1))
    return (rng.random((persons, 3)) < 1 / (1 + np.exp(-eta))).astype(float)


def models():
    """Of all persons, and of the patterns that occur."""
    y = answers()
    patterns, times = np.unique(y, axis=0, return_counts=True)
    data = {"y": patterns, "n": times.astype(float)}
    assert 4 < len(patterns) <= 8
    return (
        jalax.GroupedModel(log_joint, jnp.zeros(()), {"y": y}),
        jalax.GroupedModel(log_joint, jnp.zeros(()), data, frequencies="n"),
    )


def exact(theta, model):
    """log p by the trapezoidal rule."""
    x = np.linspace(-9, 9, 2001)
    eta = np.asarray(theta["easy"], float) + np.exp(float(theta["log_sd"])) * x[:, None]
    y = np.asarray(model.data["y"], float)[:, None]
    rows = np.sum(y * eta - np.logaddexp(0, eta), axis=2) - x**2 / 2
    log_p = np.log(np.exp(rows).sum(axis=1) * (x[1] - x[0]) / np.sqrt(2 * np.pi))
    return float(log_p @ np.asarray(model.data.get("n", np.ones(len(y))), float))


def test_the_evidence_is_that_of_all_groups():
    every, distinct = models()
    assert exact(THETA, every) == pytest.approx(exact(THETA, distinct), abs=1e-9)
    found = jalax.log_evidence(distinct, THETA, key=KEY)
    assert found.route == "points"
    assert abs(found.value - exact(THETA, every)) < 4.5 * found.error + 1e-5


def test_copies_have_one_error_in_common(x64):
    """Var[f log p] = f^2 v, where f independent estimates had f v."""
    _, distinct = models()
    patterns = jalax.GroupedModel(log_joint, jnp.zeros(()), {"y": distinct.data["y"]})
    times = np.asarray(distinct.data["n"])
    zero = np.zeros(1)
    groups, variance = np.linspace(-3, -2, times.size), np.geomspace(1e-4, 1e-2, times.size)
    seen = Measurement(zero, zero, groups, variance, 8, *[zero] * 6, 0.0)
    assert counted_measurement(patterns, seen) is seen
    all_copies = counted_measurement(distinct, seen)
    np.testing.assert_allclose(all_copies.variance, times**2 * variance)
    # The log of a mean is low by half its variance, in every copy by the same.
    whole = np.sum(all_copies.groups + all_copies.variance / 2)
    assert whole == pytest.approx(float(times @ (groups + variance / 2)), rel=1e-12)


def test_a_fit_is_that_of_all_groups():
    every, distinct = models()
    first = jalax.fit(every, THETA, key=KEY, progress=jalax.callbacks.Callback())
    second = jalax.fit(distinct, THETA, key=KEY, progress=jalax.callbacks.Callback())
    assert first.status == second.status == "converged"
    errors = first.standard_errors()
    for name in THETA:
        apart = np.abs(np.asarray(first.theta[name] - second.theta[name]))
        assert (apart < 0.01 * np.asarray(errors[name])).all()
        np.testing.assert_allclose(second.standard_errors()[name], errors[name], rtol=5e-3)
    spread = np.hypot(first.log_evidence_error, second.log_evidence_error)
    assert abs(first.log_evidence - second.log_evidence) < 4.5 * spread + 1e-4
    robust = jalax.Sandwich()
    for name, error in first.standard_errors(method=robust).items():
        np.testing.assert_allclose(second.standard_errors(method=robust)[name], error, rtol=0.02)


def test_other_algorithms_know_no_frequencies():
    _, distinct = models()
    with pytest.raises(ValueError, match=r"PGD was asked for, and frequencies= .* repeat"):
        jalax.fit(distinct, THETA, key=KEY, algorithm=jalax.PGD(step_size=0.1), num_steps=9)
    bad = {"y": answers()[:2], "n": np.ones((2, 1))}
    with pytest.raises(ValueError, match=r"one positive number a group, got shape \(2, 1\)"):
        jalax.GroupedModel(log_joint, jnp.zeros(()), bad, frequencies="n")
    with pytest.raises(ValueError, match=r"got 'm', and data is \['n', 'y'\]"):
        jalax.GroupedModel(log_joint, jnp.zeros(()), distinct.data, frequencies="m")


def of_items():
    """A row an answer, and the number of persons with the pattern that it is part of."""
    pandas = pytest.importorskip("pandas")
    patterns, times = np.unique(answers(), axis=0, return_counts=True)
    frame = {"y": patterns.ravel(), "item": np.tile(["a", "b", "c"], len(patterns))}
    frame |= {"who": np.repeat(np.arange(len(patterns)), 3), "n": np.repeat(times, 3)}
    return pandas.DataFrame(frame)


def test_a_formula_has_them():
    fitted = jalax.mixed(
        "y ~ 0 + item + (1|who)", of_items(), family="binomial", frequencies="n", key=KEY
    )
    every, _ = models()
    log_sd = np.log(fitted.theta["sd"]["who"][0])
    theta = {"easy": fitted.theta["beta"], "log_sd": log_sd}
    assert abs(fitted.log_evidence - exact(theta, every)) < 4.5 * fitted.log_evidence_error + 1e-4
    assert fitted.num_observations == answers().size
    with pytest.raises(ValueError, match="repeat the rows"):
        fitted.simulate(KEY, 2)


@pytest.mark.parametrize(
    ("formula", "times", "message"),
    [
        ("y ~ item + (1|who) + (1|other)", "n", "no such groups, or likelihood="),
        ("y ~ item + (1|who)", "row", "rows of one group of 'who' have 3 and 1: of single rows"),
        ("y ~ item + (1|who)", "zero", "has a zero, a group that never occurs"),
    ],
)
def test_a_formula_says_what_they_are_not(formula, times, message):
    frame = of_items()
    frame = frame.assign(row=1 + np.arange(len(frame)) % 3, zero=0 * frame.n, other=frame.item)
    with pytest.raises(ValueError, match=message):
        jalax.models.mixed(formula, frame, family="binomial", frequencies=times)
