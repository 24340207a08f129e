"""`make calibrate`: its exact answers against SciPy and quadrature, and whether it sees a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats
from scipy.optimize import minimize

FOLDER = Path(__file__).parents[2] / "reliability"
sys.path.insert(0, str(FOLDER))

import _models  # noqa: E402
import calibrate  # noqa: E402
from _joint_models import JOINT_CASES  # noqa: E402
from _models import CASES, GROUPS, case_of, make_model, maximise, slopes  # noqa: E402


def small(name):
    """A few groups, at a theta that is not the truth."""
    case = CASES[name]
    return case, case.data(3, 4).astype(float), {k: v + 0.2 for k, v in case.truth.items()}


# --- closed forms, each by another road: SciPy's distributions, or its adaptive quadrature --------


def poisson_gamma(theta, y):
    shape, mean, count = np.exp(theta["log_shape"]), np.exp(theta["log_mean"]), len(y)
    total = stats.nbinom.logpmf(y.sum(), shape, shape / (shape + mean * count))
    return total + stats.multinomial.logpmf(y, y.sum(), np.full(count, 1 / count))


def beta_binomial(theta, y):
    size, mean, trials = np.exp(theta["log_size"]), special.expit(theta["logit_mean"]), 8
    count = trials * len(y)
    total = stats.betabinom.logpmf(y.sum(), count, size * mean, size * (1 - mean))
    # Given the total, every way to place it is as likely as another.
    return total + np.log(special.comb(trials, y)).sum() - np.log(special.comb(count, y.sum()))


def exponential_gamma(theta, y):
    """One observation after the other, each Lomax given those before."""
    shape = np.exp(theta["log_shape"])
    scale, total = shape / np.exp(theta["log_mean"]), 0.0
    for value in y:
        total += stats.lomax.logpdf(value, shape, scale=scale)
        shape, scale = shape + 1, scale + value
    return total


def normal_inverse_gamma(theta, y):
    shape = np.exp(2 * theta["log_scale"]) * np.eye(len(y))
    return stats.multivariate_t.logpdf(y, np.full(len(y), theta["mean"]), shape, df=5)


def intercept(log_density):
    def log_marginal(theta, y):
        mean, sd = theta["mean"], np.exp(theta["log_sd"])

        def density(x):
            return np.exp(stats.norm.logpdf(x, mean, sd) + log_density(y, x).sum())

        points = {"points": np.linspace(mean - 8 * sd, mean + 8 * sd, 40), "limit": 400}
        ends = mean - 9 * sd, mean + 9 * sd
        return np.log(integrate.quad(density, *ends, epsabs=0, epsrel=1e-11, **points)[0])

    return log_marginal


ORACLES = {
    "poisson-gamma": poisson_gamma,
    "beta-binomial": beta_binomial,
    "exponential-gamma": exponential_gamma,
    "normal-inverse-gamma": normal_inverse_gamma,
    "logistic-normal": intercept(lambda y, x: stats.bernoulli.logpmf(y, special.expit(x))),
    "poisson-normal": intercept(lambda y, x: stats.poisson.logpmf(y, np.exp(x))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_exact_evidence(name):
    case, y, theta = small(name)
    answer = sum(ORACLES[name](theta, group) for group in y)
    assert case.log_marginal(theta, y) == pytest.approx(answer, abs=1e-8)
    plain = case.plain()
    free = {key: theta[key] for key in plain.names}
    known = theta | {case.spread: case.truth[case.spread]}
    assert plain.log_marginal(free, y) == case.log_marginal(known, y)


@pytest.mark.parametrize("name", CASES)
def test_what_jalax_sees_integrates_to_it(name, x64):
    """One group by the trapezium rule over a wide range; then all groups, plain and grouped."""
    case, y, theta = small(name)
    grid = jnp.linspace(-40.0, 40.0, 8001)
    values = jax.vmap(case.log_joint, in_axes=(None, 0, None))(theta, grid, y[0])
    found = jax.scipy.special.logsumexp(values) + jnp.log(grid[1] - grid[0])
    assert float(found) == pytest.approx(case.log_marginal(theta, y[:1]), abs=1e-8)

    x = jnp.linspace(-1.0, 1.0, len(y))
    plain, grouped = make_model(case, "plain", y), make_model(case, "grouped", y)
    together = plain.log_joint(theta, x, plain.data)
    apart = [grouped.log_joint(theta, x[i], grouped.data[i]) for i in range(len(y))]
    assert float(together) == pytest.approx(float(sum(apart)), abs=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_data_are_drawn_from_the_model(name):
    """The score at the truth has mean zero: within 4.5 of its standard errors."""
    case, truth = CASES[name], np.array(list(CASES[name].truth.values()))
    y = case.data(0, 4000)
    scores = [
        slopes(lambda t, part=part: case.exact(t, part), truth)[0]
        for part in y.reshape(200, 20, -1)
    ]
    mean, error = np.mean(scores, axis=0), np.std(scores, axis=0) / np.sqrt(200)
    assert (np.abs(mean) < 4.5 * error).all()


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("name", ["normal-inverse-gamma", "poisson-normal"])
def test_the_exact_maximum(name, kind):
    """No neighbour is higher, and the height falls by a half at one conditional error."""
    case = case_of(name, kind)
    y = case.data(1, GROUPS[kind])
    best = maximise(case, y)
    top = case.exact(best.theta, y)
    for i, error in enumerate(best.errors):
        step = np.eye(len(best.theta))[i] * error * 1e-2
        sides = [case.exact(best.theta + side * step, y) for side in (-1, 1)]
        assert max(sides) < top
        gradient = (sides[1] - sides[0]) / (2e-2 * error)
        assert abs(gradient) * error < 1e-3
    truth = np.array(list(case.truth.values()))
    assert (np.abs(best.theta - truth) < 4.5 * best.errors).all()


# --- does the command see a fault? ----------------------------------------------------------------


def perfect_records(name, kind, seeds):
    """What a jalax without any simulation error in theta would report."""
    case, rng, records = case_of(name, kind), np.random.default_rng(0), []
    for seed in range(seeds):
        best = maximise(case, case.data(seed, GROUPS[kind]))
        noise = 0.02 * rng.normal()
        records.append(
            {
                "truth": list(case.truth.values()),
                "maximum": best.theta.tolist(),
                "exact_errors": best.errors.tolist(),
                "intervals": best.interval.tolist(),
                "exact_evidence": -100.0,
                "evidence_interval": [-100 + noise - 0.0392, -100 + noise + 0.0392],
                "evidence_far": [-100 + noise - 0.09, -100 + noise + 0.09],
            }
        )
    return records


def shrunk(record, factor):
    def around_the_middle(interval):
        ends = np.array(interval)
        middle = ends.mean(axis=-1, keepdims=True)
        return (middle + (ends - middle) / factor).tolist()

    names = "intervals", "evidence_interval", "evidence_far"
    return record | {name: around_the_middle(record[name]) for name in names}


def test_intervals_shrunk_by_two_are_out_of_the_band():
    name = "normal-inverse-gamma"
    records = perfect_records(name, "grouped", 200)
    rows = calibrate.judged(calibrate.coverage_rows(name, "grouped", records))
    assert [row["interval"] for row in rows] == ["evidence", "log_scale", "mean"]
    assert all(row["in joint band"] for row in rows)
    assert all(row.get("differ", 0) == 0 for row in rows)
    assert rows[0]["far"] == 0
    tenth = [shrunk(record, 10) for record in records]
    assert calibrate.coverage_rows(name, "grouped", tenth)[0]["far"] > 0  # 0.45 errors away
    half = [shrunk(record, 2) for record in records]
    for row in calibrate.judged(calibrate.coverage_rows(name, "grouped", half)):
        assert not row["in band"]
        assert not row["in joint band"]


def test_too_wide_intervals_are_out_of_the_band():
    name = "normal-inverse-gamma"
    records = [shrunk(record, 1 / 3) for record in perfect_records(name, "grouped", 200)]
    for row in calibrate.judged(calibrate.coverage_rows(name, "grouped", records)):
        assert not row["in band"]


def test_an_interval_of_nan_is_a_miss():
    intervals = np.array([[np.nan, np.nan], [-1.0, 1.0]])
    assert calibrate.inside(intervals, np.zeros(2)).tolist() == [False, True]
    assert calibrate.width(intervals) == 2.0


def test_bands():
    """Of at least the probability they claim, and no wider than needed."""
    for alpha in (0.05, 0.05 / 30):
        low, high = calibrate.band(200, alpha)
        hits = stats.binom(200, 0.95)
        assert hits.cdf(high) - hits.cdf(low - 1) >= 1 - alpha
        assert hits.cdf(low - 1) <= alpha / 2 < hits.cdf(low)
    assert calibrate.band(200) == (184, 196)


# --- latents in one block -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT_CASES)
def test_the_exact_evidence_of_a_joint_latent(name):
    """Against importance sampling from a Student-t on the mode of what jalax sees."""
    with jax.enable_x64(True):
        case = JOINT_CASES[name]
        y, theta = case.data(3).astype(float), {k: v + 0.1 for k, v in case.truth.items()}

        def log_p(x):
            return case.log_joint(theta, x, jnp.asarray(y))

        start = np.zeros(case.latents)
        found = minimize(lambda x: -log_p(x), start, jac=jax.jit(jax.grad(lambda x: -log_p(x))))
        root = np.linalg.cholesky(np.linalg.inv(-jax.hessian(log_p)(found.x)))
        reference = stats.multivariate_t(np.zeros(case.latents), df=100)
        z = reference.rvs(40_000, random_state=0)
        log_q = reference.logpdf(z) - np.log(np.diag(root)).sum()
        terms = np.asarray(jax.lax.map(log_p, found.x + z @ root.T, batch_size=1000)) - log_q
    weights = np.exp(terms - terms.max())
    error = weights.std() / weights.mean() / np.sqrt(weights.size)
    assert error < 0.05
    exact = case.exact(np.array(list(theta.values())), y)
    assert abs(np.log(weights.mean()) + terms.max() - exact) < 4.5 * error


@pytest.mark.slow
def test_the_command(tmp_path):
    """Two seeds of one model, then again: what is done is not done again."""
    script, env = str(FOLDER / "calibrate.py"), dict(os.environ, JAX_PLATFORMS="cpu")
    words = ["--seeds", "2", "--models", "poisson-normal", "--jobs", "1"]
    command = [sys.executable, script, *words, "--out", str(tmp_path)]
    first, again = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert "2 to do" in first.stdout
    assert "0 to do" in again.stdout
    found = json.loads((tmp_path / "calibration.json").read_text())
    assert len(found["coverage"]) == 5
    assert {"machine", "jax", "commit", "bits", "seeds"} <= set(found["machine"])
    page = (tmp_path / "calibration.md").read_text()
    assert "joint band" in page
    assert "converged" in page


def test_data_depend_on_the_seed_only():
    for name in CASES:
        case = CASES[name]
        assert (case.data(5, 3) == case.data(5, 3)).all()
        assert (case.data(5, 3) != case.data(6, 3)).any()
    assert _models.CASES["poisson-gamma"].data(0, 2).dtype == np.float32
