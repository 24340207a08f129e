"""from_numpyro: log-densities, change of variables, groups, and four fits."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import initialize_model
from scipy import optimize, special, stats

import jalax
import numpyro_models as examples
from jalax._model import checks, evaluation
from jalax._model.evaluation import derived_at
from numpyro_models import COUNTS, SCHOOLS, SIGMA, positive

RNG = np.random.default_rng(5)
ROWS = {
    "y": RNG.normal(size=(5, 7)),
    "x": RNG.normal(size=(5, 7)),
    "mask": RNG.random((5, 7)) > 0.3,
}
PARTS = RNG.multinomial(12, [0.2, 0.3, 0.5], size=6)
RETURNS = RNG.normal(size=6)
MODELS = {
    "schools": (examples.eight_schools, (8, SIGMA), {"y": SCHOOLS}, "J"),
    "noncentered": (examples.eight_schools_noncentered, (8, SIGMA), {"y": SCHOOLS}, "J"),
    "counts": (examples.gamma_poisson, (COUNTS,), {}, "units"),
    "parts": (examples.dirichlet_multinomial, (PARTS, PARTS.sum(1)), {}, "units"),
    "padded": (examples.padded_rows, (), ROWS, "g"),
    "rows first": (examples.rows_first, (RNG.normal(size=(4, 3)),), {}, "g"),
    "volatility": (examples.stochastic_volatility, (RETURNS,), {}, None),
}


def build(name, groups=None):
    fn, args, kwargs, _ = MODELS[name]
    return jalax.from_numpyro(fn, args, kwargs, groups=groups)


def far(tree, key=0):
    """Values away from the example."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    return treedef.unflatten(
        [x + jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    )


def check_potential(name, rtol):
    """Against NumPyro's potential at its own start values of the parameters."""
    model, (fn, args, kwargs, _) = build(name), MODELS[name]
    info = initialize_model(jax.random.key(0), fn, model_args=args, model_kwargs=kwargs)
    x = far(model.latent)
    expected = -jax.jit(info.potential_fn)(x)
    value = jax.jit(model.log_joint.function)(model.theta, x, model.data)
    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value, expected, rtol=rtol)


def test_log_joint_is_numpyros_potential():
    check_potential("noncentered", 1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_log_joint_is_numpyros_potential_in_a_scan():
    check_potential("volatility", 1e-12)


@pytest.mark.usefixtures("x64")
def test_log_joint_by_hand():
    """A positive latent: densities from scipy, plus the Jacobian of exp."""
    model = build("counts")
    theta = {"a": 1.3, "b": 0.4}
    z = np.linspace(-1, 2, 6)
    expected = stats.gamma.logpdf(np.exp(z), 1.3, scale=1 / 0.4) + z
    expected += stats.poisson.logpmf(COUNTS, np.exp(z))
    x = {"rate": jnp.asarray(z)}
    value = jax.jit(model.log_joint.function)(theta, x, model.data)
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-10)
    outside = model.outside.latent(theta, x, model.data)
    np.testing.assert_allclose(outside["rate"], np.exp(z), rtol=1e-12)


def schools_exact(mu, tau, y=SCHOOLS):
    return stats.norm.logpdf(y, mu, np.hypot(tau, SIGMA)).sum()


@pytest.mark.slow
def test_the_evidence_of_eight_schools():
    evidence = jalax.log_evidence(build("noncentered", "J"), key=jax.random.key(3))
    # 4.5 errors here and below: false alarms once in 150,000 seeds.
    assert abs(evidence.value - schools_exact(0.0, 5.0)) < 4.5 * evidence.error


def test_a_positive_latent_has_the_evidence_of_the_negative_binomial():
    theta = {"a": 1.5, "b": 0.5}
    evidence = jalax.log_evidence(build("counts", "units"), theta, key=jax.random.key(1))
    exact = stats.nbinom.logpmf(COUNTS, 1.5, 0.5 / 1.5).sum()
    assert evidence.trusted
    assert abs(evidence.value - exact) < 4.5 * evidence.error


@pytest.mark.slow
def test_a_simplex_latent_has_the_evidence_of_the_dirichlet_multinomial():
    model = build("parts", "units")
    assert model.latent["p"].shape == (1, 2)
    evidence = jalax.log_evidence(model, key=jax.random.key(1))
    a = np.asarray(model.theta["a"], float)
    exact = stats.dirichlet_multinomial.logpmf(PARTS, a, PARTS.sum(1)).sum()
    assert abs(evidence.value - exact) < 4.5 * evidence.error


@pytest.mark.parametrize("name", ["schools", "noncentered", "counts", "padded", "rows first"])
def test_groups_add_up_to_the_model(name):
    """In single precision and at another point than the check inside from_numpyro."""
    whole, model = build(name), build(name, MODELS[name][3])
    assert isinstance(model, jalax.GroupedModel)
    particles = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(4), (model.num_groups, 3, *x.shape)),
        model.latent,
    )
    theta = model.unconstrained(model.theta)
    values = jax.jit(evaluation.log_joint)(model, theta, particles)
    axis = 1 if name == "rows first" else 0  # where the plate is in a latent of the whole model
    together = jax.tree.map(
        lambda x: jnp.moveaxis(jnp.squeeze(x, 2 + axis), 0, 1 + axis)[None], particles
    )
    expected = jax.jit(evaluation.log_joint)(whole, theta, together)
    np.testing.assert_allclose(values.sum(0), expected[0], rtol=2e-5)


def test_a_model_made_again_is_the_same_to_the_compiler():
    def made(y, size=8):
        model = jalax.from_numpyro(
            examples.eight_schools, (size, SIGMA), {"y": y}, groups="J" if size == 8 else None
        )
        return jax.tree.structure(model)

    assert made(SCHOOLS) == made(SCHOOLS + 1.0)
    one = jalax.from_numpyro(examples.long_rows, (ROWS["y"][0], np.zeros(7, int), 1))
    two = jalax.from_numpyro(examples.long_rows, (ROWS["y"][0], np.zeros(7, int), 2))
    again = jalax.from_numpyro(examples.long_rows, (ROWS["y"][0], np.zeros(7, int), np.int64(2)))
    assert one.log_joint != two.log_joint  # another setting
    assert two.log_joint == again.log_joint
    assert two.outside == again.outside


def test_new_data_does_not_run_the_function_again():
    runs = itertools.count()

    def model(y):
        next(runs)
        mean = numpyro.param("mean", 0.0)
        x = numpyro.sample("x", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    values = []
    for shift in (0.0, 1.0):
        made = jalax.from_numpyro(model, (np.arange(3.0) + shift,))
        before = next(runs)
        value, _ = checks.look(made, made.theta, {"x": jnp.zeros((1, 2))})
        values.append((float(value[0, 0]), next(runs) - before - 1))
    (first, run_first), (second, run_second) = values
    assert (run_first, run_second) == (1, 0)
    assert first != second


def test_parameters_start_where_numpyro_starts_them():
    def model(y):
        numpyro.param("drawn", lambda key: jax.random.uniform(key, (2,)))
        whole = numpyro.param("whole", 3)
        weights = numpyro.param(
            "weights", np.array([0.2, 0.3, 0.5]), constraint=dist.constraints.simplex
        )
        mean = numpyro.param("mean", y.mean())  # of the data
        x = numpyro.sample("x", dist.Normal(whole + mean, 1.0))
        numpyro.sample("y", dist.Normal(x, weights[0]), obs=y)

    made = jalax.from_numpyro(model, (SCHOOLS,))
    theta = made.theta
    assert theta["drawn"].shape == (2,)
    assert jnp.issubdtype(theta["whole"].dtype, jnp.floating)
    np.testing.assert_allclose(theta["mean"], SCHOOLS.mean())
    free = checks.prepare_theta(None, made)
    assert free["weights"].shape == (2,)
    for name, value in made.constrained(free).items():
        np.testing.assert_allclose(value, theta[name], rtol=1e-5)


@pytest.mark.parametrize("groups", [None, "J"])
def test_deterministic_sites(groups):
    model = build("noncentered", groups)
    theta = {"mu": jnp.array(2.0), "tau": jnp.array(3.0)}
    shape, users = ((8, 5, 1), (8, 5)) if groups else ((1, 5, 8), (5, 8))
    z = jax.random.normal(jax.random.key(0), shape)
    found = derived_at(model, theta, {"z": z})
    np.testing.assert_allclose(found["theta"], 2.0 + 3.0 * z.reshape(users), rtol=1e-6)
    np.testing.assert_allclose(found["variance"], 9.0, rtol=1e-6)
    # A sum over all schools is not known to one of them.
    assert ("total" in found) == (groups is None)
    latent = evaluation.at_particles(model.outside.latent, model, theta, {"z": z})["z"]
    np.testing.assert_allclose(latent, z if groups is None else z[..., 0])


def test_the_observed_argument_is_known():
    assert build("noncentered").outside.observed == ("y",)


@pytest.mark.slow
def test_a_result_has_the_sites_of_its_particles():
    """Deterministic sites, constrained latents, and what was observed, as ArviZ sees it."""
    pytest.importorskip("arviz")
    result = jalax.fit(
        build("noncentered", "J"),
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(step_size=0.1),
        num_particles=20,
        num_steps=3,
    )
    theta = result.state.theta  # unconstrained: tau in logs
    expected = theta["mu"] + jnp.exp(theta["tau"]) * result.particles["z"]
    np.testing.assert_allclose(result.deterministic()["theta"], expected, rtol=1e-5)
    data = result.to_arviz()
    np.testing.assert_array_equal(data.observed_data["y"], SCHOOLS)
    assert "sigma" in data.constant_data
    assert data.posterior["z"].dims == ("chain", "draw", "group")


def test_a_model_without_parameters_has_an_evidence():
    model = jalax.from_numpyro(examples.no_param, (SCHOOLS / 10,))
    evidence = jalax.log_evidence(model, key=jax.random.key(0))
    exact = stats.multivariate_normal(np.zeros(8), np.eye(8) + 4.0).logpdf(SCHOOLS / 10)
    assert abs(evidence.value - exact) < 4.5 * evidence.error


def test_neural_modules_are_parameters():
    stax = pytest.importorskip("jax.example_libraries.stax")
    inputs = RNG.normal(size=(8, 2))

    def model(x, y):
        net = numpyro.module("net", stax.serial(stax.Dense(1)), input_shape=(2,))
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(net(x)[:, 0] + a, 10.0), obs=y)

    made = jalax.from_numpyro(model, (inputs, SCHOOLS))
    ((weight, bias),) = made.theta["net$params"]
    mean = inputs @ np.asarray(weight)[:, 0] + np.asarray(bias) + 0.3
    expected = stats.norm.logpdf(SCHOOLS, mean, 10.0).sum() + stats.norm.logpdf(0.3)
    value = jax.jit(made.log_joint.function)(made.theta, {"a": jnp.array(0.3)}, made.data)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_improper_sites_and_factors():
    def model(y):
        m = numpyro.param("m", 0.5)
        a = numpyro.sample("a", dist.ImproperUniform(positive, (), ()))
        numpyro.factor("prior", -a * m)
        numpyro.sample("y", dist.Normal(a, 10.0), obs=y)

    made = jalax.from_numpyro(model, (SCHOOLS,))
    value = jax.jit(made.log_joint.function)({"m": 0.5}, {"a": jnp.array(1.2)}, made.data)
    a = np.exp(1.2)
    expected = -a * 0.5 + 1.2 + stats.norm.logpdf(SCHOOLS, a, 10.0).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-5)


# Four models of NumPyro's documentation, fitted with the defaults.


def close(result, exact):
    """The evidence of a fit within 4.5 errors of an exact value at the fitted theta."""
    assert result.evidence.trusted
    return abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, "J"])
def test_eight_schools(groups):
    # Effects three times as large: the spread between schools is then far from zero.
    y = 3 * SCHOOLS
    model = jalax.from_numpyro(examples.eight_schools, (8, SIGMA), {"y": y}, groups=groups)
    result = jalax.fit(model, key=jax.random.key(0))
    assert result.status == "converged"
    mu, tau = float(result.theta["mu"]), float(result.theta["tau"])
    assert close(result, schools_exact(mu, tau, y))

    def loss(t):
        return -schools_exact(t[0], np.exp(t[1]), y)

    best = optimize.minimize(loss, np.array([20.0, 3.0]), method="Nelder-Mead", tol=1e-10).x
    errors, simulation = result.standard_errors(), result.simulation_errors()
    assert abs(mu - best[0]) < 4.5 * float(simulation["mu"])
    assert abs(tau - np.exp(best[1])) < 4.5 * float(simulation["tau"])
    # The delta method: tau times the error of log tau, from the exact likelihood.
    step = np.diag([0.1, 0.01])
    hessian = [
        [
            (loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b))
            / (4 * a.sum() * b.sum())
            for b in step
        ]
        for a in step
    ]
    exact = np.sqrt(np.diag(np.linalg.inv(hessian))) * np.array([1.0, np.exp(best[1])])
    np.testing.assert_allclose([float(errors["mu"]), float(errors["tau"])], exact, rtol=0.05)
    shape = result.log_weights.shape
    assert result.particles["theta"].shape == (shape if groups else (*shape, 8))
    mean = result.expectation(lambda x: x["theta"])
    weight = tau**2 / (tau**2 + SIGMA**2)
    spread = np.sqrt(weight) * SIGMA
    # Particles of ess over 200: 5 errors.
    assert np.all(np.abs(mean - (weight * y + (1 - weight) * mu)) < 5 * spread / np.sqrt(200))


@pytest.mark.slow
def test_eight_schools_as_published_are_at_the_boundary():
    result = jalax.fit(build("schools", "J"), key=jax.random.key(0))
    assert result.status == "boundary"
    pooled = np.average(SCHOOLS, weights=SIGMA**-2)  # the estimate at tau = 0
    assert float(result.theta["tau"]) < 1.0
    assert abs(float(result.theta["mu"]) - pooled) < 0.1
    assert close(result, schools_exact(float(result.theta["mu"]), float(result.theta["tau"])))


@pytest.mark.slow
def test_logistic_regression():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    labels = rng.random(80) < 1 / (1 + np.exp(-x @ np.array([1.5, -1.0, 0.3])))
    model = jalax.from_numpyro(examples.logistic_regression, (x, labels.astype(int)))
    result = jalax.fit(model, key=jax.random.key(0))
    assert result.status == "converged"

    def log_p(coefs, scale):  # coefs (..., 3)
        logits = coefs @ x.T
        likelihood = np.sum(labels * logits - np.logaddexp(0, logits), axis=-1)
        return likelihood + stats.norm.logpdf(coefs, 0, scale).sum(-1)

    def evidence(scale):
        """Gauss-Hermite quadrature about the mode, 20 nodes in each direction."""
        mode = optimize.minimize(lambda b: -log_p(b, scale), np.zeros(3)).x
        p = special.expit(x @ mode)
        root = np.linalg.cholesky(np.linalg.inv((x.T * p * (1 - p)) @ x + np.eye(3) / scale**2))
        nodes, weights = np.polynomial.hermite_e.hermegauss(20)
        grid = np.stack(np.meshgrid(nodes, nodes, nodes), -1).reshape(-1, 3)
        logs = np.log(weights)
        log_weights = np.add.outer(np.add.outer(logs, logs), logs).ravel()
        values = log_p(mode + grid @ root.T, scale) + 0.5 * (grid**2).sum(-1) + log_weights
        return special.logsumexp(values) + np.linalg.slogdet(root)[1]

    scale = float(result.theta["scale"])
    assert close(result, evidence(scale))
    best = optimize.minimize_scalar(
        lambda s: -evidence(np.exp(s)), bounds=(-2, 2), method="bounded", options={"xatol": 1e-6}
    )
    assert abs(scale - np.exp(best.x)) < 4.5 * float(result.simulation_errors()["scale"])


@pytest.mark.slow
def test_sleepstudy():
    data = jalax.datasets.sleepstudy()
    rows = {"days": data.days, "reaction": data.reaction}
    arranged = jalax.group_by(rows, data.subject).data
    assert arranged.pop("mask").all()
    model = jalax.from_numpyro(examples.sleepstudy, (), arranged, groups="subject")
    result = jalax.fit(model, key=jax.random.key(0))
    assert result.status == "converged"

    def exact(t):  # beta, log sd, log sigma
        sd, sigma = np.exp(t[2:4]), np.exp(t[4])
        design = np.stack([np.ones(10), np.arange(10.0)], axis=1)
        covariance = (design * sd**2) @ design.T + sigma**2 * np.eye(10)
        marginal = stats.multivariate_normal(design @ t[:2], covariance)
        return marginal.logpdf(arranged["reaction"]).sum()

    theta = result.theta
    fitted = np.concatenate(
        [theta["beta"], np.log(theta["sd"]), np.log(theta["sigma"])[None]], dtype=float
    )
    assert close(result, exact(fitted))
    best = optimize.minimize(lambda t: -exact(t), fitted, method="BFGS", options={"gtol": 1e-4}).x
    simulation = result.simulation_errors()
    for name, found in {"beta": best[:2], "sd": np.exp(best[2:4])}.items():
        assert np.all(np.abs(theta[name] - found) < 4.5 * np.asarray(simulation[name]))
    assert result.particles["slope"].shape[:2] == result.log_weights.shape


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_gaussian_process():
    rng = np.random.default_rng(2)
    x = np.linspace(0, 6, 25)
    y = rng.poisson(np.exp(1.0 + np.sin(x)))
    model = jalax.from_numpyro(examples.gaussian_process, (x, y))
    result = jalax.fit(model, key=jax.random.key(0))
    assert result.status in ("converged", "max_steps")
    mean, variance, length = (float(result.theta[n]) for n in ("mean", "variance", "length"))
    kernel = variance * np.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-3 * np.eye(25)
    prior = stats.multivariate_normal(np.full(25, mean), kernel)

    def log_p(f):
        return stats.poisson.logpmf(y, np.exp(f)).sum(-1) + prior.logpdf(f)

    # Importance sampling from a Student-t at the mode, found by Newton's method.
    f, precision = np.full(25, mean), np.linalg.inv(kernel)
    for _ in range(50):
        hessian = precision + np.diag(np.exp(f))
        f = f + np.linalg.solve(hessian, y - np.exp(f) - precision @ (f - mean))
    proposal = stats.multivariate_t(f, np.linalg.inv(hessian), df=30, seed=3)
    draws = proposal.rvs(100_000)
    log_weights = log_p(draws) - proposal.logpdf(draws)
    exact = special.logsumexp(log_weights) - np.log(len(draws))
    weights = np.exp(log_weights - exact)
    error = np.hypot(weights.std() / np.sqrt(len(draws)), result.log_evidence_error)
    assert abs(result.log_evidence - exact) < 4.5 * error
    assert result.particles["f"].shape == (*result.log_weights.shape, 25)


# Arguments.


def test_a_series_is_an_array():
    pandas = pytest.importorskip("pandas")
    arguments = 8, pandas.Series(SIGMA)
    model = jalax.from_numpyro(examples.eight_schools, arguments, {"y": SCHOOLS})
    assert model.data["sigma"].shape == (8,)


def with_spread(y, spread):
    m = numpyro.param("m", 0.0)
    with numpyro.plate("g", len(y)):
        x = numpyro.sample("x", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(x, jnp.sum(spread)), obs=y)


def test_a_shared_array_is_given_to_each_group():
    model = jalax.from_numpyro(with_spread, (SCHOOLS, np.ones(3)), groups="g")
    assert model.data["spread"].shape == (8, 3)
