"""The experiments' own mathematics, and what `jalax reproduce` writes."""

from __future__ import annotations

import csv
import re

import jax
import jax.numpy as jnp
import logistic
import model_order
import numpy as np
import pytest
import reporting
from scipy.optimize import minimize
from typer.testing import CliRunner

from jalax import datasets, models
from jalax.cli import app


@pytest.fixture
def one(x64):
    """One data set with all candidates, and the same as models on all rows."""
    noise, order = 7.5, 4
    data = model_order.data_sets(np.random.default_rng(3), 1, order, 60, noise)
    rng = np.random.default_rng(3)
    x = rng.uniform(-2.5, 2.5, 60)
    w = rng.normal(size=order + 1)
    y = np.vander(x, order + 1, increasing=True) @ w + noise * rng.normal(size=60)
    return data, x, y


def candidate(data, p):
    return jax.tree.map(lambda leaf: leaf[p - 1], data)


@pytest.mark.slow_cases("1", "5")
@pytest.mark.parametrize("p", [1, 5, 10])
def test_padded_candidates_are_the_polynomial_models(one, p):
    data, x, y = one
    mine, model = candidate(data, p), models.polynomial_regression(x, y, p)
    theta = jnp.array([4.5, 0.3])
    assert model_order.exact_log_evidence(theta, mine) == pytest.approx(
        float(model.exact_log_evidence(theta)), abs=1e-6
    )
    # The latents are the weights rotated: same maximum, same curvatures, same posterior.
    mean, variances = model_order.exact_posterior(theta, mine)
    exact = model.exact_posterior(theta)
    unused = -0.5 * (model_order.SIZE - p - 1) * np.log(2 * np.pi)
    joint = model.log_joint(theta, exact.mean, model.data) + unused
    assert model_order.log_joint(theta, mean, mine) == pytest.approx(float(joint), rel=1e-9)
    hessian = -jax.hessian(model_order.log_joint, 1)(theta, mean, mine)
    np.testing.assert_allclose(hessian, np.diag(1 / variances), rtol=1e-9)
    curvatures = np.linalg.eigvalsh(np.linalg.inv(exact.covariance))
    np.testing.assert_allclose(np.sort(1 / variances[: p + 1]), curvatures, rtol=1e-4)
    assert jnp.sum(mean**2) == pytest.approx(float(jnp.sum(exact.mean**2)), rel=1e-4)


def test_bic_is_that_of_least_squares_on_all_rows(one):
    data, x, y = one
    for p, found in zip(model_order.CANDIDATES, model_order.bic(data), strict=True):
        features = np.vander(x, p + 1, increasing=True)
        squares = np.sum((y - features @ np.linalg.lstsq(features, y)[0]) ** 2)
        log_likelihood = -0.5 * len(y) * (np.log(2 * np.pi * squares / len(y)) + 1)
        bic = (p + 2) * np.log(len(y)) - 2 * log_likelihood
        assert -2 * found == pytest.approx(bic, rel=1e-6)


@pytest.mark.slow
def test_exact_limits_agree_with_scipy_and_with_quadrature(one):
    """The maximum against L-BFGS-B; theta integrated out against a fine grid."""
    data, _, _ = one
    mine, theta_0 = candidate(data, 4), jnp.array([np.log(56.25) + 1, 1.0])

    def value(theta):
        return float(model_order.exact_log_evidence(jnp.asarray(theta), mine))

    best = minimize(lambda t: -value(t), np.array([4.0, 0.5]), method="Nelder-Mead")
    plug_in = model_order.exact_plug_in(theta_0, data)[3]
    assert float(plug_in) == pytest.approx(-best.fun, abs=1e-5)

    s, a = np.meshgrid(np.linspace(2.5, 6.5, 241), np.linspace(-5, 5, 241), indexing="ij")
    grid = jnp.stack([s.ravel(), a.ravel()], axis=1)
    of_theta = jax.vmap(
        lambda t: model_order.exact_log_evidence(t, mine) + model_order.log_prior(t)
    )
    total = jax.nn.logsumexp(of_theta(grid)) + np.log((4 / 240) * (10 / 240))
    # Laplace's method in two dimensions with 60 rows: right to a few per cent.
    assert float(model_order.exact_corrected(theta_0, data)[3]) == pytest.approx(
        float(total), abs=0.1
    )


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 9])
def test_louis_information_is_the_curvature_of_the_evidence(one, p):
    """-d2 log p(y) / d theta2 at any theta, with the mean of the posterior."""
    mine, theta = candidate(one[0], p), jnp.array([4.1, 1.3])
    mean, _ = model_order.exact_posterior(theta, mine)
    np.testing.assert_allclose(
        model_order.information(theta, mean, mine),
        -jax.hessian(model_order.exact_log_evidence)(theta, mine),
        rtol=1e-6,
    )


def test_lost_candidates_are_counted_and_never_chosen():
    values = np.full((2, 10), -5.0)
    values[0, 2], values[1, 3], values[1, 9] = 1.0, 1.0, np.nan
    errors, lost = model_order.errors_of(values.ravel(), order=3)
    assert errors.tolist() == [0, 1]
    assert lost == 1


def test_the_reference_of_the_logistic_experiment_on_all_rows():
    """Against the independent answers: theta 0.98665, standard error 0.7524."""
    data = datasets.wisconsin()
    known = logistic.reference(data.features, data.labels)
    assert known.theta == pytest.approx(0.98665, abs=0.003)
    assert known.standard_error == pytest.approx(0.7524, abs=0.003)
    bound = data.features.T @ data.features / 4 + np.eye(9) / 5
    largest = np.linalg.eigvalsh(bound)[-1]
    assert logistic.euler_step(data.features) == pytest.approx(0.99 / largest, rel=1e-9)


def test_a_report_holds_its_tables_figures_and_verdicts(tmp_path):
    report = reporting.Report(tmp_path, "A title", "jalax reproduce nothing")
    report.table("numbers", "Two numbers", ["a", "b"], [[1, 0.123456789]])
    figure, _ = reporting.figure()
    report.figure("empty", "Nothing", figure)
    report.claim("it works", "yes", "yes", reporting.REPRODUCED)
    with pytest.raises(ValueError, match="one of three"):
        report.claim("it works", "yes", "yes", "surely")
    report.close()
    with (tmp_path / "numbers.csv").open() as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "0.123456789"]]
    text = (tmp_path / "report.md").read_text()
    for part in ("# A title", "| 1 | 0.1235 |", "![Nothing](empty.png)", "| reproduced |"):
        assert part in text
    assert (tmp_path / "empty.svg").exists()
    assert (tmp_path / "empty.png").exists()
    assert "](results/theory/empty.png)" in joined(tmp_path)


def joined(tmp_path) -> str:
    (tmp_path / "theory").mkdir()
    (tmp_path / "report.md").rename(tmp_path / "theory" / "report.md")
    return reporting.collect(tmp_path)


def test_the_written_results_are_those_committed():
    """experiments/README.md is what `python experiments/reporting.py` makes of the reports."""
    from pathlib import Path

    here = Path(reporting.__file__).parent
    assert (here / "README.md").read_text() == reporting.collect(here / "results")


@pytest.mark.slow
@pytest.mark.filterwarnings("default:the weights collapsed")  # as the paper's settings make them
@pytest.mark.parametrize("name", reporting.NAMES)
def test_every_experiment_has_a_quick_version(name, tmp_path):
    with jax.enable_x64(False):
        done = CliRunner().invoke(app, ["reproduce", name, "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / name / "report.md").read_text()
    verdicts = re.findall(r"\| (reproduced|not reproduced|better) \|$", text, re.MULTILINE)
    assert len(verdicts) >= 3
    assert "nan" not in text.split("**")[0]  # the claims, before the tables
    assert list((tmp_path / name).glob("*.svg"))
    assert list((tmp_path / name).glob("*.csv"))
