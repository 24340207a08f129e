"""Several starts: which maxima they find, against the likelihood on a grid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jalax
from jalax._evidence.record import Maxima
from jalax._fit import saving
from jalax._fit.restarts import dispersed
from jalax._runtime.files import FileError

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()
# Two clusters, and noise with so heavy tails that the likelihood has a maximum in each.
Y = np.concatenate([np.linspace(-5.5, -4.5, 6), np.linspace(4.5, 5.5, 10)])


def log_joint(theta, x, y):
    """y = theta + x + noise of Cauchy, x a standard normal."""
    return jax.scipy.stats.norm.logpdf(x) + jax.scipy.stats.cauchy.logpdf(y, theta + x)


def model(**options):
    return jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.asarray(Y), **options)


def exact(theta: float) -> float:
    """log p by the trapezoidal rule, which is spectral for it."""
    x = np.linspace(-9, 9, 4001)
    normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    density = normal / (np.pi * (1 + (Y[:, None] - theta - x) ** 2))
    return float(np.log(density.sum(axis=1) * (x[1] - x[0])).sum())


def maximum_near(theta: float) -> tuple[float, float]:
    found = optimize.minimize_scalar(
        lambda t: -exact(t), bounds=(theta - 2, theta + 2), options={"xatol": 1e-9}
    )
    return found.x, -found.fun


HIGH, LOW = maximum_near(5.0), maximum_near(-5.0)


def fit(theta=-6.0, **options):
    return jalax.fit(model(), theta, key=KEY, **{"progress": QUIET} | options)


def assert_at(result, place):
    assert result.status == "converged"
    assert abs(float(result.theta) - place[0]) < 5e-3 * float(result.standard_errors())
    assert abs(result.log_evidence - place[1]) < 4.5 * result.log_evidence_error + 1e-4


def test_there_are_two_maxima():
    assert HIGH[1] > LOW[1] + 5
    slopes = np.diff([exact(t) for t in np.linspace(-8, 8, 200)])
    assert np.sum((slopes[:-1] > 0) & (slopes[1:] < 0)) == 2


def test_one_start_finds_the_nearer_and_several_the_higher():
    assert_at(fit(), LOW)
    result = fit(restarts=11)
    assert_at(result, HIGH)
    found = result.maxima
    assert len(found.log_evidence) == 2
    np.testing.assert_allclose(found.theta[:, 0], [HIGH[0], LOW[0]], atol=1e-2)
    np.testing.assert_allclose(found.log_evidence, [HIGH[1], LOW[1]], atol=1e-2)
    assert found.num_starts.sum() + found.num_lost == 12
    assert found.num_starts.min() >= 1
    assert "maxima from 12 starts" in result.summary()


def test_the_result_is_that_of_a_fit_from_there():
    """Not of an explorer, which is one of many fits and has no key of the user's."""
    result = fit(restarts=11)
    assert result.origin.fit_key is KEY
    assert float(result.origin.theta_0) > 4


@pytest.mark.slow
def test_where_the_first_is_the_highest_it_is_the_fit_without_restarts():
    one, several = fit(6.0), fit(6.0, restarts=3)
    assert float(one.theta) == float(several.theta)
    assert one.log_evidence == several.log_evidence
    assert one.maxima is None
    assert several.maxima.log_evidence[0] == several.log_evidence


def test_a_fit_that_was_asked_to_stop_is_handed_back():
    result = fit(restarts=3, callbacks=[jalax.stop_when(lambda run: True)], chunk_size=1)
    assert result.status == "stopped"
    assert result.maxima is None


def test_starts_without_a_density_are_drawn_again():
    """log_joint is NaN above 0.5: half of the draws around 0."""

    def bounded(theta, x, y):
        return jnp.where(theta > 0.5, jnp.nan, log_joint(theta, x, y))

    half = jalax.GroupedModel(bounded, jnp.zeros(()), jnp.asarray(Y))
    starts = dispersed(KEY, half, 0.0, 40)
    assert len(starts) == 40
    assert max(float(start) for start in starts) <= 0.5
    assert len({float(start) for start in starts}) == 40
    assert min(float(start) for start in starts) < -1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"algorithm": jalax.JALAEM()}, {}], ids=["JALAEM", "legs"])
def test_other_ways_to_fit(options):
    """By JALA-EM, and of one block with too many latents for points, one fit after the other."""
    times = 1 if options else 3

    def joint(theta, x, y):
        return jnp.sum(jax.vmap(log_joint, in_axes=(None, 0, 0))(theta, x, y))

    block = jalax.Model(joint, jnp.zeros(times * Y.size), jnp.asarray(np.tile(Y, times)))
    chosen = model() if options else block
    result = jalax.fit(chosen, -6.0, key=KEY, restarts=7, progress=QUIET, **options)
    assert result.status == "converged"
    assert abs(float(result.theta) - HIGH[0]) < 0.1 * float(result.standard_errors())
    assert result.maxima.log_evidence[0] == result.log_evidence
    assert abs(result.log_evidence - times * HIGH[1]) < 6 * result.log_evidence_error + 0.02


def test_a_file_keeps_them(tmp_path):
    result = fit(6.0, restarts=2)
    result.save(tmp_path / "fit.npz")
    loaded = jalax.load(tmp_path / "fit.npz")
    assert isinstance(loaded.maxima, Maxima)
    np.testing.assert_array_equal(loaded.maxima.theta, result.maxima.theta)
    assert loaded.summary() == result.summary()


@pytest.mark.parametrize("name", ["theta", "error", "num_starts"])
def test_a_file_whose_maxima_do_not_fit_together(name):
    plain = {"theta": [[1.0], [2.0]], "log_evidence": [0.0, -1.0], "error": [0.1, 0.1]}
    plain |= {"num_starts": [1.0, 1.0], "num_lost": 0}
    assert len(saving._maxima_of(plain, 0.0).theta) == 2
    with pytest.raises(FileError, match="its maxima are arrays of shapes"):
        saving._maxima_of(plain | {name: [0.0]}, 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restarts": 0}, "restarts must be a whole number of at least 1, got 0"),
        ({"restarts": 2, "state": "x"}, "restarts= has several starts, and state= is for one"),
        (
            {"restarts": 2, "algorithm": jalax.PGD(step_size=0.1), "num_steps": 10},
            "restarts= compares log p where fits have stopped by themselves, which PGD does not",
        ),
        (
            {"restarts": 2, "callbacks": [jalax.checkpoint("fit.npz")]},
            "restarts= has several starts, and jalax.checkpoint is for one",
        ),
    ],
)
def test_what_has_one_start_or_no_end_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        fit(**options)
