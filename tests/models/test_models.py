"""Every model against an independent oracle: SciPy's densities, brute force, quadrature."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads
from scipy import integrate, stats
from scipy.special import expit, log_softmax

from jalax import datasets, models
from jalax._model.evaluation import log_joint as log_joint_of_particles
from jalax.families._softplus import softplus

RNG = np.random.default_rng


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """Runs the test in both precisions; the value is a relative tolerance."""
    double = request.param == "float64"
    with jax.enable_x64(True) if double else contextlib.nullcontext():
        yield 1e-10 if double else 3e-5


def evaluate(model, theta, x):
    return float(jax.jit(model.log_joint.function)(theta, x, model.data))


def normal(x, mean, sd):
    return stats.norm.logpdf(x, mean, sd).sum()


# ---------------------------------------------------------------- log-joints, against SciPy


def case_hierarchical(rng):
    y, x, theta = rng.normal(size=6), rng.normal(size=6), rng.normal()
    expected = normal(x, theta, 1) + normal(y, x, 1)
    return models.hierarchical_normal(y), theta, x, expected


def case_gaussian(rng):
    X, y, w = rng.normal(size=(30, 4)), rng.normal(size=30), rng.normal(size=4)
    theta = rng.normal(size=2)
    expected = normal(y, X @ w, np.exp(theta[0] / 2)) + normal(w, 0, np.exp(-theta[1] / 2))
    return models.gaussian_regression(X, y), theta, w, expected


def case_polynomial(rng):
    x, y, w = rng.uniform(-2, 2, 30), rng.normal(size=30), rng.normal(size=4)
    theta = rng.normal(size=2)
    mean = w[0] + w[1] * x + w[2] * x**2 + w[3] * x**3
    expected = normal(y, mean, np.exp(theta[0] / 2)) + normal(w, 0, np.exp(-theta[1] / 2))
    return models.polynomial_regression(x, y, order=3), theta, w, expected


def case_student_t(rng):
    X, y, w = rng.normal(size=(30, 4)), rng.normal(size=30), rng.normal(size=4)
    theta = rng.normal(size=3)
    errors = stats.t.logpdf(y, np.exp(theta[2]), loc=X @ w, scale=np.exp(theta[0] / 2)).sum()
    expected = errors + normal(w, 0, np.exp(-theta[1] / 2))
    return models.student_t_regression(X, y), theta, w, expected


def case_logistic(rng):
    X, y, w = rng.normal(size=(30, 4)), rng.integers(0, 2, 30), rng.normal(size=4)
    theta = rng.normal()
    expected = stats.bernoulli.logpmf(y, expit(X @ w)).sum() + normal(w, theta, np.sqrt(3.0))
    return models.logistic_regression(X, y, prior_variance=3.0), theta, w, expected


def case_network(rng):
    images, labels = rng.normal(size=(12, 3, 2)), np.arange(12) % 3
    x = {"w": rng.normal(size=(5, 6)), "v": rng.normal(size=(3, 5))}
    theta = {"alpha": rng.normal(), "beta": rng.normal()}
    logits = np.tanh(images.reshape(12, 6) @ x["w"].T) @ x["v"].T
    expected = log_softmax(logits, axis=1)[np.arange(12), labels].sum()
    expected += normal(x["w"], 0, np.exp(theta["alpha"])) + normal(x["v"], 0, np.exp(theta["beta"]))
    return models.neural_network(images, labels, num_hidden=5), theta, x, expected


CASES = [
    case_hierarchical,
    case_gaussian,
    case_polynomial,
    case_student_t,
    case_logistic,
    case_network,
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_log_joint_is_the_normalised_density(case, seed, precision):
    model, theta, x, expected = case(RNG(seed))
    theta, x = jax.tree.map(jnp.asarray, (theta, x))
    np.testing.assert_allclose(evaluate(model, theta, x), expected, rtol=precision)


@pytest.mark.parametrize("case", CASES)
def test_model_speaks_the_engines_language(case):
    """A pytree of arrays with a start value, whose shapes match theta and x."""
    model, theta, x, _ = case(RNG(0))
    assert jax.tree.map(jnp.shape, model.theta) == jax.tree.map(jnp.shape, theta)
    assert jax.tree.map(jnp.shape, model.latent) == jax.tree.map(jnp.shape, x)
    rebuilt = jax.tree.map(lambda leaf: leaf, model)
    assert type(rebuilt) is type(model)
    particles = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf])[None], model.latent)
    assert log_joint_of_particles(rebuilt, model.theta, particles).shape == (1, 2)


@pytest.mark.parametrize("case", CASES)
def test_arrays_follow_the_default_precision(case, precision):
    model, *_ = case(RNG(0))
    floats = [leaf for leaf in jax.tree.leaves(model) if leaf.dtype.kind == "f"]
    assert {leaf.dtype for leaf in floats} == {jnp.zeros(()).dtype}


@pytest.mark.parametrize("case", CASES)
def test_new_data_does_not_recompile(case):
    first, *_ = case(RNG(0))
    second, *_ = case(RNG(1))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    value = jax.jit(lambda model: model.log_joint(model.theta, model.latent, model.data))
    value(first), value(second)
    assert value._cache_size() == 1


@functools.cache
def slopes(case):
    """One program for all scales."""
    return jax.jit(jax.value_and_grad(case(RNG(0))[0].log_joint.function, (0, 1)))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_finite_far_away(case, scale):
    """In single precision, with latents up to 10^4 times a normal draw."""
    model, theta, x, _ = case(RNG(0))
    theta, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (theta, x))
    x = jax.tree.map(lambda leaf: scale * leaf, x)
    value, gradients = slopes(case)(theta, x, model.data)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("case", CASES)
def test_curvature_at_the_origin(case, x64):
    """The Hessian at x = 0, where a softplus written with max and abs would lose it."""
    model, theta, _, _ = case(RNG(0))
    theta = jax.tree.map(jnp.asarray, theta)
    flat, unravel = ravel_pytree(model.latent)
    density = jax.jit(lambda v: model.log_joint(theta, unravel(v), model.data))
    step = 1e-4
    gradient = jax.jit(jax.grad(density))
    direction = jnp.asarray(RNG(1).normal(size=flat.shape))
    numeric = (gradient(flat + step * direction) - gradient(flat - step * direction)) / (2 * step)
    exact = jax.jit(lambda v, along: jax.jvp(jax.grad(density), (v,), (along,))[1])(flat, direction)
    np.testing.assert_allclose(exact, numeric, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- exact answers


def regression_data(rng, num_rows, num_columns):
    return rng.normal(size=(num_rows, num_columns)), rng.normal(size=num_rows)


def dense_evidence(X, y, theta):
    covariance = np.exp(theta[0]) * np.eye(len(y)) + np.exp(-theta[1]) * X @ X.T
    return stats.multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)


@pytest.mark.parametrize("theta", [(0.0, 0.0), (1.0, 1.0), (-3.0, 2.0), (2.0, -4.0)])
@pytest.mark.parametrize("shape", [(40, 5), (4, 9), (6, 6), (1, 1)])
def test_gaussian_evidence_against_the_dense_covariance(shape, theta, precision):
    X, y = regression_data(RNG(0), *shape)
    model = models.gaussian_regression(X, y)
    value = jax.jit(lambda m, t: m.exact_log_evidence(t))(model, jnp.array(theta))
    np.testing.assert_allclose(value, dense_evidence(X, y, theta), rtol=precision, atol=1e-4)


@pytest.mark.parametrize("shape", [(40, 5), (4, 9)])
def test_gaussian_posterior_against_the_normal_equations(shape, precision):
    X, y = regression_data(RNG(0), *shape)
    theta = np.array([-0.5, 0.7])
    posterior = jax.jit(lambda m, t: m.exact_posterior(t))(
        models.gaussian_regression(X, y), jnp.asarray(theta)
    )
    covariance = np.linalg.inv(np.exp(theta[1]) * np.eye(shape[1]) + X.T @ X / np.exp(theta[0]))
    np.testing.assert_allclose(posterior.covariance, covariance, rtol=precision, atol=precision)
    mean = covariance @ X.T @ y / np.exp(theta[0])
    np.testing.assert_allclose(posterior.mean, mean, rtol=precision, atol=precision)


def exact_models():
    rng = RNG(3)
    yield models.hierarchical_normal(rng.normal(size=5)), jnp.asarray(0.3)
    yield models.gaussian_regression(*regression_data(rng, 12, 3)), jnp.array([0.2, -0.4])
    yield models.gaussian_regression(*regression_data(rng, 3, 5)), jnp.array([0.2, -0.4])
    yield models.polynomial_regression(*rng.normal(size=(2, 12)), order=2), jnp.array([0.1, 0.5])


def test_joint_is_evidence_times_posterior_everywhere(x64):
    """log p(x, y) - log p(x | y) = log p(y) at any x: one identity for all constants."""

    @jax.jit
    def both(model, theta):
        posterior = model.exact_posterior(theta)
        far = posterior.sample(jax.random.key(0), 3) + 1.0
        ratios = [model.log_joint(theta, x, model.data) - posterior.log_density(x) for x in far]
        return jnp.stack(ratios), model.exact_log_evidence(theta)

    for model, theta in exact_models():
        ratios, evidence = both(model, theta)
        np.testing.assert_allclose(ratios, jnp.full(3, evidence), rtol=1e-9)


@pytest.mark.parametrize(
    ("build", "theta"),
    [
        (lambda: models.hierarchical_normal([0.7]), 0.3),
        (lambda: models.gaussian_regression([[1.0], [2.0], [-1.0]], [1, 2, 0]), [0.3, -0.2]),
    ],
)
def test_evidence_against_quadrature_over_a_scalar_latent(build, theta, x64):
    model, theta = build(), jnp.asarray(theta)
    density = jax.jit(lambda x: jnp.exp(model.log_joint(theta, x[None], model.data)))
    integral, _ = integrate.quad(lambda x: float(density(x)), -30, 30, epsabs=1e-13, points=[0, 1])
    np.testing.assert_allclose(model.exact_log_evidence(theta), np.log(integral), rtol=1e-8)


@pytest.mark.slow
def test_exact_answers_transform(x64):
    """jit, vmap and grad in theta, the gradients against finite differences."""
    for model, theta in exact_models():
        path = jnp.stack([theta, theta + 0.1])
        values = jax.jit(jax.vmap(model.exact_log_evidence))(path)
        np.testing.assert_allclose(values[0], model.exact_log_evidence(theta), rtol=1e-12)
        assert jax.jit(jax.vmap(model.exact_posterior))(path).mean.shape == (2, *model.latent.shape)
        check_grads(jax.jit(model.exact_log_evidence), (theta,), order=2, rtol=1e-4)


def test_hierarchical_maximum_is_the_mean():
    y = RNG(0).normal(size=50)
    model = models.hierarchical_normal(y)
    gradient = jax.jit(jax.grad(model.exact_log_evidence))
    np.testing.assert_allclose(gradient(jnp.asarray(y.mean())), 0, atol=1e-4)
    assert gradient(jnp.asarray(y.mean() + 0.1)) < 0


def order_ten(num_rows=500):
    """The hardest candidate of the paper's order experiment."""
    rng = RNG(0)
    x = rng.uniform(-2.5, 2.5, num_rows)
    return x, x - 0.5 * x**2 + rng.normal(0, 7.5, num_rows)


@jax.jit
def evidence_and_posterior(model, theta):
    return model.exact_log_evidence(theta), model.exact_posterior(theta)


@pytest.mark.parametrize("theta", [(np.log(56.25) + 1, 1.0), (np.log(56.25), 0.0), (3.2, -0.5)])
def test_exact_answers_hold_in_single_precision(theta):
    """X'X has condition number 2e9 here, beyond the 1e7 that float32 resolves."""
    x, y = order_ten()
    X = np.vander(x, 11, increasing=True)
    model = models.polynomial_regression(x, y, order=10)
    assert model.data["X"].dtype == jnp.float32
    value, posterior = evidence_and_posterior(model, jnp.array(theta))
    np.testing.assert_allclose(value, dense_evidence(X, y, theta), rtol=2e-5)
    precision = np.exp(theta[1]) * np.eye(11) + X.T @ X / np.exp(theta[0])
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose(np.sqrt(np.diag(posterior.covariance)), sd, rtol=0.01)
    # (w - m)' precision (w - m) is chi-square with 11 degrees of freedom if the draws are right.
    # Its mean over 4000 draws has standard error sqrt(22 / 4000) = .074; 5 of them on each side
    # (false alarms: 6e-7) and the rounding of X itself.
    mean = np.linalg.solve(precision, X.T @ y / np.exp(theta[0]))
    draws = jax.jit(lambda law: law.sample(jax.random.key(1), 4000))(posterior)
    deviations = np.asarray(draws, np.float64) - mean
    mahalanobis = np.einsum("ni,ij,nj->n", deviations, precision, deviations)
    assert abs(mahalanobis.mean() - 11) < 5 * 0.074 + 0.3


def test_evidence_at_extreme_parameters():
    model = models.gaussian_regression(*regression_data(RNG(0), 20, 3))
    slopes = jax.jit(jax.value_and_grad(model.exact_log_evidence))
    for theta in [(-60.0, 0.0), (60.0, 0.0), (0.0, -60.0), (0.0, 60.0), (30.0, 30.0)]:
        value, gradient = slopes(jnp.array(theta))
        assert np.isfinite([value, *gradient]).all(), theta


def test_evidence_with_collinear_columns(x64):
    X, y = regression_data(RNG(0), 20, 3)
    X[:, 2] = X[:, 0]
    model, theta = models.gaussian_regression(X, y), jnp.array([0.1, 0.2])
    value, gradient = jax.jit(jax.value_and_grad(model.exact_log_evidence))(theta)
    np.testing.assert_allclose(value, dense_evidence(X, y, np.asarray(theta)), rtol=1e-10)
    assert np.isfinite(gradient).all()


def test_factories_inside_jit_and_vmap(x64):
    """Many data sets at once, as fit_many uses them."""
    X, y = RNG(0).normal(size=(4, 10, 3)), RNG(1).normal(size=(4, 10))
    theta = jnp.array([0.1, 0.2])
    values = jax.vmap(lambda X, y: models.gaussian_regression(X, y).exact_log_evidence(theta))(X, y)
    np.testing.assert_allclose(values[2], dense_evidence(X[2], y[2], np.asarray(theta)), rtol=1e-9)
    labels = (y > 0).astype(float)
    batch = jax.vmap(models.logistic_regression)(X, labels)
    assert batch.data["X"].shape == (4, 10, 3)
    assert batch.data["prior_variance"].shape == (4,)


# ---------------------------------------------------------------- Gaussian


def test_gaussian_density_and_samples(precision):
    rng = RNG(0)
    mean, root = rng.normal(size=4), rng.normal(size=(4, 4))
    covariance = root @ root.T + 0.1 * np.eye(4)
    gaussian = models.Gaussian(jnp.asarray(mean), jnp.asarray(covariance))
    x = rng.normal(size=4)
    expected = stats.multivariate_normal.logpdf(x, mean, covariance)
    np.testing.assert_allclose(gaussian.log_density(jnp.asarray(x)), expected, rtol=10 * precision)
    draws = np.asarray(gaussian.sample(jax.random.key(0), 20_000), np.float64)
    white = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    # Standard errors .007 (means) and .01 (variances): 5 of them, 14 numbers, false alarms 1e-5.
    np.testing.assert_allclose(white.mean(axis=1), 0, atol=0.036)
    np.testing.assert_allclose(np.cov(white), np.eye(4), atol=0.05)


# ---------------------------------------------------------------- Student-t


def test_student_t_box_clips_log_nu_only():
    box = jax.jit(models.student_t_box)
    np.testing.assert_allclose(box(jnp.array([9.0, -9.0, 3.0])), [9, -9, np.log(5)], rtol=1e-6)
    np.testing.assert_allclose(box(jnp.array([9.0, -9.0, -3.0])), [9, -9, np.log(0.2)], rtol=1e-6)
    np.testing.assert_allclose(box(jnp.array([9.0, -9.0, 0.3])), [9, -9, 0.3], rtol=1e-6)


def test_student_t_starts_inside_the_box():
    model = models.student_t_regression(*regression_data(RNG(0), 10, 2))
    np.testing.assert_array_equal(models.student_t_box(model.theta), model.theta)


@pytest.mark.parametrize("nu", [0.2, 1.0, 5.0, 15.9, 16.1, 1e3, 1e6])
def test_student_t_keeps_its_digits_for_every_nu(nu):
    """In single precision: the difference of two log-gammas is off by 31 here at nu = 10^6."""
    X, y = regression_data(RNG(0), 500, 3)
    w = np.array([0.1, -0.2, 0.3])
    model = models.student_t_regression(X, y)
    theta = jnp.array([0.2, 0.1, np.log(nu)])
    expected = stats.t.logpdf(y, nu, loc=X @ w, scale=np.exp(0.1)).sum()
    expected += normal(w, 0, np.exp(-0.05))
    np.testing.assert_allclose(evaluate(model, theta, jnp.asarray(w)), expected, rtol=2e-4)
    gradient = jax.grad(model.log_joint.function)(theta, jnp.asarray(w), model.data)
    assert np.isfinite(gradient).all()


# ---------------------------------------------------------------- predictions


def test_logistic_predictions(precision):
    rng = RNG(0)
    X, y, w = rng.normal(size=(20, 3)), rng.integers(0, 2, 20), rng.normal(size=3)
    model = models.logistic_regression(X, y)
    expected = np.where(y == 1, expit(X @ w), expit(-X @ w))
    found = jax.jit(model.predictive_probability)(jnp.asarray(w), X, y)
    np.testing.assert_allclose(found, expected, rtol=10 * precision)
    many = jax.jit(jax.vmap(model.predictive_probability, in_axes=(0, None, None)))
    cloud = many(jnp.ones((7, 3)), X, y)
    assert cloud.shape == (7, 20)


def test_network_predictions_are_probabilities(x64):
    images, labels = RNG(0).normal(size=(10, 4)), np.arange(10) % 3
    model = models.neural_network(images, labels, num_hidden=6)
    x = jax.tree.map(lambda leaf: jnp.asarray(RNG(1).normal(size=leaf.shape)), model.latent)
    predict = jax.jit(model.predictive_probability)
    each = [predict(x, images, np.full(10, c)) for c in range(3)]
    np.testing.assert_allclose(sum(each), 1, rtol=1e-12)
    chosen = predict(x, images, labels)
    log_prior = normal(x["w"], 0, 1) + normal(x["v"], 0, 1)
    total = evaluate(model, model.theta, x)
    np.testing.assert_allclose(jnp.log(chosen).sum() + log_prior, total, rtol=1e-12)


def test_wisconsin_evidence_by_the_laplace_approximation(x64):
    """At theta = .98665 the Laplace approximation is -73.4731 (independent reference)."""
    data = datasets.wisconsin()
    model = models.logistic_regression(data.features, data.labels)
    density = functools.partial(model.log_joint.function, jnp.asarray(0.9866498), data=model.data)
    w = jnp.zeros(9)
    newton = jax.jit(lambda w: w - jnp.linalg.solve(jax.hessian(density)(w), jax.grad(density)(w)))
    for _ in range(20):
        w = newton(w)

    @jax.jit
    def laplace(w):
        log_det = jnp.linalg.slogdet(-jax.hessian(density)(w))[1]
        return density(w) + 4.5 * np.log(2 * np.pi) - 0.5 * log_det

    np.testing.assert_allclose(laplace(w), -73.4731, atol=1e-4)


# ---------------------------------------------------------------- random intercepts


def test_cbpp_log_likelihood_is_lme4s(x64):
    """glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), nAGQ = 25): -91.983369."""
    data = datasets.cbpp()
    model = models.random_intercept(
        data.incidence, data.covariates, data.herd, family=models.Binomial(data.size)
    )
    theta = {
        "beta": jnp.array([-1.39923045, -0.9914036392, -1.127819439, -1.57947074]),
        "log_sd": jnp.log(0.6475184834),
    }
    grid = jnp.linspace(-8, 8, 4001)  # 12 prior standard deviations, spacing .004

    def total(theta):
        density = jax.vmap(
            jax.vmap(model.log_joint.function, in_axes=(None, 0, None)), in_axes=(None, None, 0)
        )(theta, grid, model.data)
        return jnp.sum(jax.nn.logsumexp(density, axis=1) + jnp.log(grid[1] - grid[0]))

    value, gradient = jax.jit(jax.value_and_grad(total))(theta)
    np.testing.assert_allclose(value, -91.983369, atol=2e-6)
    for leaf in jax.tree.leaves(gradient):  # lme4's answer is the maximum
        np.testing.assert_allclose(leaf, 0, atol=0.02)


def ragged(rng):
    groups = np.array(["b", "a", "c", "a", "a", "b", "c", "a"])
    return groups, np.column_stack([np.ones(8), rng.normal(size=8)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["binomial", "poisson", "poisson with exposure"])
def test_random_intercept_against_scipy(family, seed, precision):
    rng = RNG(seed)
    groups, covariates = ragged(rng)
    beta, log_sd = rng.normal(size=2), rng.normal()
    intercepts = dict(zip("abc", rng.normal(size=3), strict=True))
    eta = covariates @ beta + np.array([intercepts[group] for group in groups])
    if family == "binomial":
        size = rng.integers(1, 20, 8)
        y = rng.binomial(size, 0.4)
        each, family = stats.binom.logpmf(y, size, expit(eta)), models.Binomial(size)
    else:
        exposure = rng.uniform(0.5, 3, 8) if "exposure" in family else None
        y = rng.poisson(2.0, 8)
        rate = np.exp(eta) * (1.0 if exposure is None else exposure)
        each, family = stats.poisson.logpmf(y, rate), models.Poisson(exposure)
    model = models.random_intercept(y, covariates, groups, family=family)
    assert model.groups.tolist() == ["a", "b", "c"]
    theta = {"beta": jnp.asarray(beta), "log_sd": jnp.asarray(log_sd)}
    particles = jnp.array([[intercepts[group]] for group in model.groups])
    expected = [each[groups == g].sum() + normal(intercepts[g], 0, np.exp(log_sd)) for g in "abc"]
    found = log_joint_of_particles(model, theta, particles)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=10 * precision)


def test_padding_is_silent_where_a_rate_would_overflow():
    """Group b is one row padded to three, its intercept so large that e^b is infinite."""
    model = models.random_intercept(
        [1, 2, 1, 0], np.ones((4, 1)), ["a", "a", "a", "b"], family=models.Poisson(1e-38)
    )
    padded = jax.tree.map(lambda leaf: leaf[1], model.data)
    slopes = jax.jit(jax.value_and_grad(model.log_joint.function, (0, 1)))
    value, gradient = slopes(model.theta, jnp.asarray(95.0), padded)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_scalar_size_means_the_same_for_every_row():
    y, covariates, groups = [0, 1, 1], np.ones((3, 1)), [1, 1, 2]
    scalar = models.random_intercept(y, covariates, groups, family=models.Binomial(1))
    vector = models.random_intercept(y, covariates, groups, family=models.Binomial([1, 1, 1]))
    for a, b in zip(jax.tree.leaves(scalar), jax.tree.leaves(vector), strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_intercept_is_a_tree_and_keeps_labels_in_replace():
    model = models.random_intercept([1, 0, 2], np.ones((3, 1)), [5, 5, 3], family=models.Poisson())
    assert model.groups.tolist() == [3, 5]
    assert model.replace(theta=model.theta).groups.tolist() == [3, 5]
    assert model.replace(data=model.data).groups is None
    assert jax.tree.map(lambda leaf: leaf, model).num_groups == 2
    assert jax.tree.map(jnp.shape, model.theta) == {"beta": (1,), "log_sd": ()}


# ---------------------------------------------------------------- documentation


def test_every_public_name_has_an_example():
    """The examples themselves are run by pytest --doctest-modules."""
    public = {name: value for name, value in vars(models).items() if not name.startswith("_")}
    things = {name: value for name, value in public.items() if callable(value)}
    assert len(things) == 17
    assert [name for name, value in things.items() if ">>>" not in (value.__doc__ or "")] == []


@pytest.mark.parametrize("bits", [32, 64])
def test_softplus_keeps_its_digits(bits):
    """Against NumPy in long double, value and two derivatives; also where e^z or e^-z is tiny."""
    z = np.concatenate([np.linspace(-80, 80, 4001), [0.0, -1e-9, 1e-9]])
    e = np.exp(-np.abs(z.astype(np.longdouble)))
    s = np.where(z >= 0, 1 / (1 + e), e / (1 + e))
    right = [np.maximum(z, 0) + np.log1p(e), s, e / (1 + e) ** 2]
    with jax.enable_x64(bits == 64):
        function, kind = softplus, jnp.finfo(jnp.result_type(float))
        for want in right:
            found = jax.jit(jax.vmap(function))(jnp.asarray(z))
            error = np.abs(np.asarray(found, np.longdouble) - want)
            # z itself is rounded: e^z is off by |z| eps.
            bound = 4 * float(kind.eps) * (1 + np.abs(z)) * np.abs(want) + 10 * float(kind.tiny)
            assert np.all(error <= bound)
            function = jax.grad(function)
