"""compare: the right order and honest probabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats
from step_size import regression_data

import jalax
from jalax import models

pytestmark = pytest.mark.usefixtures("x64")


def fit(model, theta, algorithm=None, seed=0, **options):
    algorithm = algorithm or jalax.JALAEM(step_size=1e-4, optimizer=optax.adam(0.02))
    settings = {"start": jalax.Laplace(), "num_particles": 200, "num_steps": 150} | options
    return jalax.fit(model, theta, key=jax.random.key(seed), algorithm=algorithm, **settings)


@pytest.fixture(scope="module")
def gaussian_and_student():
    with jax.enable_x64(True):
        X, y = regression_data(0, 200)
        box = jalax.JALAEM(step_size=1e-4, optimizer=optax.adam(0.02), project=models.student_t_box)
        start = jnp.array([0.5, 0.5, np.log(4.0)])
        return {
            "Gaussian": fit(models.gaussian_regression(X, y), jnp.array([0.5, 0.5])),
            "Student-t": fit(models.student_t_regression(X, y), start, box),
        }


@pytest.mark.slow
def test_error_models(gaussian_and_student):
    """Gaussian data: M_G wins; two and three theta, so no probabilities without a prior."""
    result = jalax.compare(gaussian_and_student)
    assert [row.name for row in result.rows] == ["Gaussian", "Student-t"]
    assert all(row.probability is None for row in result.rows)
    assert "no probabilities" in result.note
    factor, error = result.log_bayes_factor("Gaussian", "Student-t")
    assert factor > 4 * error > 0
    fitted = gaussian_and_student["Gaussian"]
    exact = models.gaussian_regression(*regression_data(0, 200)).exact_log_evidence(fitted.theta)
    assert abs(result.rows[0].log_evidence - float(exact)) < 4.5 * result.rows[0].error
    text = str(result)
    assert "Gaussian" in text
    assert "log evidence (plug-in)" in text
    assert "<table>" in result._repr_html_()


@pytest.mark.slow
def test_a_declared_prior_gives_probabilities(gaussian_and_student):
    """The full evidence of M_G against numerical integration over theta."""

    def log_prior(theta):
        return jnp.sum(jax.scipy.stats.norm.logpdf(theta, 0.0, 2.0))

    result = jalax.compare(gaussian_and_student, theta_log_prior=log_prior)
    assert result.kind == "full"
    assert abs(sum(row.probability for row in result.rows) - 1) < 1e-9
    model = models.gaussian_regression(*regression_data(0, 200))
    a, b = np.linspace(-0.8, 0.8, 201), np.linspace(-4.0, 4.0, 201)  # log sigma^2, log alpha
    grid = jnp.stack(jnp.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2)
    log_value = jax.vmap(lambda t: model.exact_log_evidence(t) + log_prior(t))(grid)
    total = float(jax.nn.logsumexp(log_value)) + np.log((a[1] - a[0]) * (b[1] - b[0]))
    row = next(row for row in result.rows if row.name == "Gaussian")
    # Laplace's method is not exact in log alpha, which 8 weights inform: 0.05 is its own error.
    assert abs(row.log_evidence - total) < 0.05 + 4.5 * row.error


@pytest.mark.slow
def test_polynomial_orders():
    """Cubic data: order 3 beats 1 and 2; order and probabilities are those of the closed form."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.5, 2.5, 150)
    y = 0.5 - x + 0.8 * x**3 + 3.0 * rng.normal(size=150)
    candidates = {p: models.polynomial_regression(x, y, p) for p in (1, 2, 3, 5)}
    theta = jnp.array([2.0, 0.5])
    algorithm = jalax.JALAEM(step_size=1e-6, optimizer=optax.adam(0.02))
    fits = {f"order {p}": fit(m, theta, algorithm) for p, m in candidates.items()}
    result = jalax.compare(fits)
    names = [row.name for row in result.rows]
    assert names.index("order 3") < min(names.index("order 1"), names.index("order 2"))
    exact = {
        f"order {p}": float(m.exact_log_evidence(fits[f"order {p}"].theta))
        for p, m in candidates.items()
    }
    assert names[0] == max(exact, key=exact.__getitem__)
    total = sum(np.exp(v - exact["order 3"]) for v in exact.values())
    for row in result.rows:
        assert abs(row.log_evidence - exact[row.name]) < 4.5 * row.error + 1e-6
        truth = np.exp(exact[row.name] - exact["order 3"]) / total
        assert abs(row.probability - truth) < 0.05


@pytest.mark.slow
def test_observed_says_what_must_agree(gaussian_and_student):
    """Same y, other covariates: allowed by default."""
    X, y = regression_data(0, 200)
    short = fit(models.gaussian_regression(X[:, :4], y), jnp.array([0.5, 0.5]), num_steps=5)
    both = {"a": gaussian_and_student["Gaussian"], "b": short}
    assert len(jalax.compare(both).rows) == 2


@pytest.mark.slow
def test_plot(gaussian_and_student):
    import matplotlib

    matplotlib.use("Agg")
    axis = jalax.compare(gaussian_and_student).plot()
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["Gaussian", "Student-t"]


@pytest.mark.slow
def test_to_frame(gaussian_and_student):
    comparison = jalax.compare(gaussian_and_student)
    frame = comparison.to_frame()
    assert list(frame.index) == ["Gaussian", "Student-t"]
    best = gaussian_and_student["Gaussian"]
    assert frame.loc["Gaussian", "log_evidence"] == best.log_evidence
    assert frame.loc["Gaussian", "difference"] == 0
    assert frame.loc["Student-t", "num_theta"] == 3


def test_the_full_evidence_of_a_gaussian_model_is_exact():
    """y ~ N(theta, 2) and theta ~ N(0, 9): together normal, so that Laplace's method is exact."""
    y = np.array([0.5, 1.5, 4.0])
    model = models.hierarchical_normal(y)
    fits = {name: jalax.fit(model, 0.0, key=jax.random.key(i)) for i, name in enumerate("ab")}
    prior = lambda theta: jax.scipy.stats.norm.logpdf(theta, 0.0, 3.0)  # noqa: E731
    found = jalax.compare(fits, theta_log_prior=prior)
    exact = stats.multivariate_normal.logpdf(y, np.zeros(3), 2 * np.eye(3) + 9 * np.ones((3, 3)))
    for row in found.rows:  # 2,000 draws tell the information to 5 %, half of that in its log
        assert abs(row.log_evidence - exact) < 4.5 * row.error + 0.1
