"""Hand-written groups with units of their own latents, integrated one unit at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import jalax
from jalax._model import evaluation

SIZES = (19, 1, 3, 2, 1, 4, 1, 9, 2, 5, 3)  # units of the groups
LABELS = "abcdefghijk"


def normal(x, mean, sd):
    return -0.5 * jnp.sum(((x - mean) / sd) ** 2 + jnp.log(2 * jnp.pi * sd**2))


def log_group(theta, u, data):
    return normal(u, theta["mean"], 0.8)


def log_unit(known, v, data):
    theta, u = known
    return log_unit_of({"mean": u, "sd": theta["sd"]}, v, data)


def log_unit_of(known, v, data):
    rows = -0.5 * ((data["y"] - v) ** 2 / 0.25 + jnp.log(2 * jnp.pi * 0.25))
    return normal(v, known["mean"], known["sd"]) + jnp.sum(jnp.where(data["mask"], rows, 0.0))


def reads(theta, u, data):
    return {"mean": u, "sd": theta["sd"]}


def table():
    rng = np.random.default_rng(4)
    unit = np.repeat(np.arange(sum(SIZES)), rng.integers(1, 4, sum(SIZES)))
    group = np.repeat(np.array(list(LABELS)), SIZES)[unit]
    rows = {"unit": unit, "group": group, "y": rng.normal(size=unit.size)}
    order = rng.permutation(unit.size)
    return {name: values[order] for name, values in rows.items()}


def nested(**options):
    units = jalax.group_by(table(), "unit", within="group")
    log_joint = log_unit if "reads" not in options else log_unit_of
    inner = jalax.Inner(log_joint, jnp.zeros(()), units.data, units.within, **options)
    return jalax.NestedModel(log_group, jnp.zeros(()), None, inner=inner)


THETA = {"mean": 0.3, "sd": 1.4}


def exact(group, u=None):
    """log p(y) of a group, or log p(y, u)."""
    rows = table()
    here = rows["group"] == group
    y, unit = rows["y"][here], rows["unit"][here]
    covariance = 1.4**2 * (unit[:, None] == unit) + 0.25 * np.eye(y.size)
    if u is None:
        return multivariate_normal(np.full(y.size, 0.3), covariance + 0.64).logpdf(y)
    given = multivariate_normal(np.full(y.size, u), covariance).logpdf(y)
    return given + multivariate_normal(0.3, 0.64).logpdf(u)


@pytest.mark.parametrize("options", [{}, {"reads": reads}])
def test_a_gaussian_unit_has_its_closed_form(options, precision):
    model = nested(**options)
    theta = jax.tree.map(jnp.asarray, THETA)
    log_joint = jax.jit(jax.vmap(model.log_joint.function, in_axes=(None, None, 0)))
    for u in (-0.5, 1.0):
        expected = [exact(group, u) for group in LABELS]
        found = log_joint(theta, jnp.asarray(u), model.data)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_groups_keep_their_order_and_their_gradients(x64):
    """Those with about as many units are visited together, and of each only the units it has."""
    model, theta = nested(reads=reads), jax.tree.map(jnp.asarray, THETA)
    u = np.linspace(-1.0, 1.0, len(SIZES))
    visit = evaluation.evaluate(model, theta, jnp.asarray(u)[:, None])
    expected = [exact(group, at) for group, at in zip(LABELS, u, strict=True)]
    np.testing.assert_allclose(visit.log_joint[:, 0], expected, atol=1e-6)
    step = 1e-4
    ahead, behind = (
        [exact(group, at + by) for group, at in zip(LABELS, u, strict=True)] for by in (step, -step)
    )
    slopes = (np.array(ahead) - np.array(behind)) / (2 * step)
    np.testing.assert_allclose(visit.grad_x[:, 0], slopes, atol=1e-5)
    mean = evaluation.pull(visit, jnp.ones((len(SIZES), 1))).grad_theta["mean"]
    np.testing.assert_allclose(mean, np.sum((u - 0.3) / 0.64), atol=1e-9)


@pytest.mark.slow
def test_the_evidence_is_the_closed_form():
    evidence = jalax.log_evidence(nested(reads=reads), THETA, key=jax.random.key(0))
    expected = sum(exact(group) for group in LABELS)
    assert abs(evidence.value - expected) < 4.5 * max(evidence.error, 1e-4)


def test_second_derivatives_do_not_depend_on_what_units_read(x64):
    theta = jax.tree.map(jnp.asarray, THETA)

    def hessian(model):
        def total(theta, u):
            values = jax.vmap(model.log_joint.function, in_axes=(None, None, 0))
            return jnp.sum(values(theta, u, model.data))

        return jax.jit(jax.hessian(total, argnums=(0, 1)))(theta, jnp.asarray(0.4))

    every, some = hessian(nested()), hessian(nested(reads=reads))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), every, some)


@pytest.mark.slow
def test_a_fit_has_the_latents_of_groups_and_units():
    """The mean by generalised least squares, and the posterior of a Gaussian."""
    result = jalax.fit(nested(reads=reads), THETA, fixed={"sd": 1.4}, key=jax.random.key(0))
    rows, above, below = table(), 0.0, 0.0
    laws = {}
    for group in LABELS:
        here = rows["group"] == group
        unit = rows["unit"][here]
        covariance = 1.4**2 * (unit[:, None] == unit) + 0.25 * np.eye(unit.size) + 0.64
        weights = np.linalg.solve(covariance, np.ones(unit.size))
        above, below = above + weights @ rows["y"][here], below + weights.sum()
        laws[group] = here, covariance
    assert float(result.theta["mean"]) == pytest.approx(above / below, abs=0.02 / np.sqrt(below))
    here, covariance = laws["a"]
    away = np.linalg.solve(covariance, rows["y"][here] - above / below)
    weights, particles = np.asarray(result.weights)[0], result.particles
    assert particles["inner"].shape == (len(SIZES), weights.size, max(SIZES))
    u = above / below + 0.64 * away.sum()
    assert weights @ np.asarray(particles["outer"])[0] == pytest.approx(u, abs=0.03)
    for k, unit in enumerate(np.unique(rows["unit"][here])):
        v = above / below + (1.96 * (rows["unit"][here] == unit) + 0.64) @ away
        assert weights @ np.asarray(particles["inner"])[0, :, k] == pytest.approx(v, abs=0.03)


def test_a_unit_lies_within_one_group():
    rows = table()
    rows["group"][0] = "z"
    rows["unit"][0] = rows["unit"][1]
    with pytest.raises(ValueError, match=r"has rows in two groups of .* labels of their own"):
        jalax.group_by(rows, "unit", within="group")


def test_units_and_groups_must_fit():
    units = jalax.group_by(table(), "unit", within="group")
    good = {"log_joint": log_unit, "latent": jnp.zeros(())}
    good |= {"data": units.data, "within": units.within}

    def model(data=None, **changes):
        return jalax.NestedModel(
            log_group, jnp.zeros(()), data, inner=jalax.Inner(**(good | changes))
        )

    with pytest.raises(ValueError, match=r"the latent of a unit has 3 numbers.*GroupedModel"):
        model(latent=jnp.zeros(3))
    with pytest.raises(ValueError, match=r"4 groups and Inner.within names 11: every group needs"):
        model(data={"size": jnp.zeros(4)})
    with pytest.raises(ValueError, match=r"lead with the units, of which Inner.within names 10"):
        model(within=units.within[:10])
    with pytest.raises(TypeError, match=r"inner must be a jalax.Inner\(log_joint"):
        jalax.NestedModel(log_group, jnp.zeros(()), None, inner=log_unit)
    with pytest.raises(TypeError, match=r"Inner.reads must be a function"):
        model(reads=3)
    with pytest.raises(ValueError, match=r"there is no column 'village'; the data have"):
        jalax.group_by(table(), "unit", within="village")
