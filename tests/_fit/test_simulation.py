"""Data simulated from a fit, and fits to them, against moments and estimates in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jalax
from jalax._fit import simulation

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()
Y = np.array([-31.0, -19.0, -12.0, -4.0, 3.0, 14.0, 21.0, 36.0])
S = np.array([9.0, 10.0, 8.0, 11.0, 9.0, 11.0, 10.0, 8.0])
TAU = 20.0


def log_joint(mu, x, data):
    """y_j ~ N(mu + tau x_j, s_j), x_j a standard normal."""
    mean = mu + TAU * x
    return jax.scipy.stats.norm.logpdf(x) + jax.scipy.stats.norm.logpdf(data["y"], mean, data["s"])


def draw(key, mu, x, data):
    key_x, key_y = jax.random.split(key)
    x = jax.random.normal(key_x) if x is None else x
    return data | {"y": mu + TAU * x + data["s"] * jax.random.normal(key_y)}


def model(simulate=draw):
    data = {"y": jnp.asarray(Y), "s": jnp.asarray(S)}
    return jalax.GroupedModel(log_joint, jnp.zeros(()), data, simulate=simulate)


@pytest.fixture(scope="module")
def fitted():
    return jalax.fit(model(), 0.0, key=KEY, progress=QUIET)


def test_simulated_data_have_the_moments_of_the_model(fitted):
    """4.5 standard errors, of 8 means, 8 variances and 28 covariances: one false alarm in 3,000."""
    num = 4000
    data = fitted.simulate(jax.random.key(1), num)
    assert data["y"].shape == data["s"].shape == (num, 8)
    np.testing.assert_array_equal(data["s"][7], S)
    variance = S**2 + TAU**2
    z = (np.asarray(data["y"]) - float(fitted.theta)) / np.sqrt(variance)
    products = z.T @ z / num - np.eye(8)
    errors = np.sqrt((1 + np.eye(8)) / num)
    assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(num)
    assert (np.abs(products) / errors).max() < 4.5


def test_each_fit_of_the_bootstrap_is_that_of_its_data(fitted):
    """The maximum is the weighted mean of the simulated y."""
    key = jax.random.key(3)
    found = fitted.bootstrap(key, 60)
    key_data, _ = jax.random.split(key)
    y = simulation.new_leaves(key_data, fitted.origin.model, fitted.theta, 60)
    (y,) = (leaf for leaf in y if leaf is not None)
    weight = 1 / (S**2 + TAU**2)
    error = weight.sum() ** -0.5
    np.testing.assert_allclose(found.theta[:, 0], y @ weight / weight.sum(), atol=0.01 * error)
    assert found.usable.all()
    # sd of an estimated sd: 1 / sqrt(2 x 59), and 4.5 of them
    assert found.standard_errors()[0] == pytest.approx(error, rel=4.5 / np.sqrt(118))
    low, high = found.confidence_intervals(0.9)[0]
    inside = (found.theta[:, 0] > low) & (found.theta[:, 0] < high)
    assert inside.mean() == pytest.approx(0.9, abs=0.05)
    assert found.log_evidence[0] == pytest.approx(
        stats.norm.logpdf(y[0], found.theta[0, 0], np.hypot(S, TAU)).sum(), abs=2e-3
    )


def test_a_model_without_simulate(fitted):
    plain = jalax.fit(model(None), 0.0, key=KEY, progress=QUIET)
    for ask in (lambda: plain.simulate(KEY, 3), lambda: plain.bootstrap(KEY, 3)):
        with pytest.raises(ValueError, match=r"cannot simulate: give it a function"):
            ask()


def test_a_result_from_a_file(fitted, tmp_path):
    fitted.save(tmp_path / "fit.npz")
    loaded = jalax.load(tmp_path / "fit.npz")
    for ask in (lambda: loaded.simulate(KEY, 3), lambda: loaded.profile("theta")):
        with pytest.raises(ValueError, match="needs the model, and this result was read from"):
            ask()


@pytest.mark.parametrize(
    ("simulate", "sentence"),
    [
        (lambda key, mu, x, data: data["y"], "simulate must return data like the model's"),
        (lambda key, mu, x, data: data | {"y": jnp.zeros(2)}, "got float.* for"),
        (lambda key, mu, x, data: data, "nothing is new in them"),
    ],
)
def test_what_simulate_must_return(simulate, sentence):
    found = jalax.fit(model(simulate), 0.0, key=KEY, progress=QUIET)
    with pytest.raises(ValueError, match=sentence):
        found.simulate(KEY, 2)


# ----------------------------------------------------------------------- models that have one
@pytest.mark.slow
def test_rows_of_a_mixed_model_keep_their_order():
    """Seven trials in one row, a hundred in the next: no count is above its own."""
    rng = np.random.default_rng(0)
    data = {
        "g": np.array(list("bacab" * 8)),
        "n": np.where(np.arange(40) % 2, 100, 7),
        "x": rng.normal(size=40),
    }
    data["y"] = rng.binomial(data["n"], 0.5)
    options = {"family": "binomial", "key": KEY, "progress": QUIET}
    found = jalax.mixed("p(y, n) ~ x + (1|g)", data, **options)
    y = found.simulate(jax.random.key(2), 200)
    assert y.shape == (200, 40)
    assert (y <= data["n"]).all()
    assert y[:, data["n"] == 100].min(axis=0).max() > 7
    from jalax._frontends.mixed_rows import to_layout, to_rows

    np.testing.assert_array_equal(to_rows(found.mixed, to_layout(found.mixed, y)), y)


def test_a_mixed_model_has_the_moments_of_its_theta():
    """Balanced, Gaussian: variances and covariances within and between groups."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(10), 3)
    data = {"g": group, "y": 5 + 2 * rng.normal(size=10)[group] + rng.normal(size=30)}
    found = jalax.mixed("y ~ 1 + (1|g)", data, key=KEY, progress=QUIET)
    num = 4000
    y = found.simulate(jax.random.key(4), num) - float(found.theta["beta"][0])
    between, within = (float(found.theta["sd"]["g"][0]) ** 2, float(found.theta["sigma"]) ** 2)
    exact = between * (group[:, None] == group) + within * np.eye(30)
    seen = y.T @ y / num
    errors = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / num)
    assert (np.abs(seen - exact) / errors).max() < 5.0  # of 465: one false alarm in 4,000


@pytest.mark.slow
def test_a_numpyro_model_simulates_by_itself():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def batches(y):
        mean = numpyro.param("mean", 10.0)
        with numpyro.plate("batch", len(y)):
            level = numpyro.sample("level", dist.Normal(mean, 3.0))
            numpyro.sample("obs", dist.Normal(level, 4.0), obs=y)

    y = np.linspace(0.0, 20.0, 6)
    for groups in (None, "batch"):
        made = jalax.from_numpyro(batches, (jnp.asarray(y),), groups=groups)
        found = jalax.fit(made, key=KEY, progress=QUIET)
        num = 4000
        drawn = np.asarray(found.simulate(jax.random.key(5), num)["y"])
        z = (drawn - float(found.theta["mean"])) / 5.0
        assert z.shape == (num, 6)
        assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(num)
        assert np.abs(z.T @ z / num - np.eye(6)).max() < 4.5 * np.sqrt(2 / num)
