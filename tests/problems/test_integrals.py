"""log_joint of each problem, integrated by other means at the reference's theta."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jalax import problems
from problems.densities import immunisation, read
from problems.integrals import (
    LinearMixed,
    adaptive,
    communities,
    flat,
    importance,
    laplace,
    volatility,
)

pytestmark = pytest.mark.usefixtures("x64")

# Points of the rule in each dimension. The reference is the maximum of this very integral.
QUADRATURE = {
    "pumps": 60,
    "seeds": 40,
    "orange": 20,
    "wine": 40,
    "kidney": 40,
    "kidney_gamma": 80,
    "lsat_rasch": 40,
    "lsat_2pl": 40,
    "toenail": 80,
    "toenail_visit": 80,
    "theophylline": 20,
}


@pytest.mark.slow_cases(
    "orange", "kidney_gamma", "lsat_rasch", "lsat_2pl", "toenail", "toenail_visit", "theophylline"
)
@pytest.mark.parametrize("name", QUADRATURE)
def test_quadrature_gives_the_reference(name):
    """Its log p, its standard errors, and that it is the maximum."""
    problem = problems.get(name)
    answer = problem.reference
    theta, unflatten = ravel_pytree(jax.tree.map(jnp.asarray, answer.theta))
    rule = adaptive(flat(problem.model), answer.theta, QUADRATURE[name])

    def log_p(theta):
        return rule(unflatten(theta))

    both = jax.jit(lambda theta: (log_p(theta), jax.grad(log_p)(theta), jax.hessian(log_p)(theta)))
    value, score, hessian = (np.asarray(part) for part in both(theta))
    assert abs(value - answer.log_evidence) < 1e-5 + answer.error
    errors = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    step = -np.linalg.solve(hessian, score)
    assert np.abs(step / errors).max() < 0.01
    given = np.asarray(ravel_pytree(answer.standard_errors)[0])
    np.testing.assert_allclose(errors, given, rtol=0.01)


# Draws a group, and degrees of freedom of the proposal.
IMPORTANCE = {
    "salamander": (40_000, np.inf),
    "electricity": (8_000, 10.0),
    "spatial": (40_000, np.inf),
    "heart": (40_000, 20.0),
    "crossed_120": (20_000, np.inf),
}


@pytest.mark.slow_cases("salamander", "electricity", "spatial", "crossed_120")
@pytest.mark.parametrize("name", IMPORTANCE)
def test_importance_sampling_gives_the_reference(name):
    problem = problems.get(name)
    answer = problem.reference
    draws, dof = IMPORTANCE[name]
    value, error = importance(flat(problem.model), answer.theta, draws, dof)
    assert error < 0.2  # else it would agree with anything
    assert abs(value - answer.log_evidence) < 4.5 * np.hypot(error, answer.error)


def test_a_forward_recursion_gives_the_reference():
    problem = problems.pound_dollar()
    theta = problem.reference.theta
    y = np.asarray(problem.model.data["y"])
    parts = np.tanh(theta["atanh_phi"]), np.exp(theta["log_sigma"]), theta["mu"]
    assert abs(volatility(y, *parts) - problem.reference.log_evidence) < 1e-5
    assert abs(volatility(y, *parts, size=500) - volatility(y, *parts)) < 1e-8
    for name, error in problem.reference.standard_errors.items():

        def at(shift, name=name):
            moved = {**theta, name: theta[name] + shift}
            parts = np.tanh(moved["atanh_phi"]), np.exp(moved["log_sigma"]), moved["mu"]
            return volatility(y, *parts, size=150)

        slope = (at(1e-4) - at(-1e-4)) / 2e-4
        assert abs(slope * error) < 0.01, name  # in standard errors: slope error^2 / error


@pytest.mark.slow
def test_a_nested_rule_gives_the_reference():
    problem = problems.guimmun()
    table, X = immunisation()
    value = communities(table, problem.reference.theta, X)
    assert abs(value - communities(table, problem.reference.theta, X, points=80)) < 1e-4
    assert abs(value - problem.reference.log_evidence) < 1e-4 + problem.reference.error


@pytest.mark.slow
def test_laplace_is_as_far_off_as_published():
    """497.62 by 1,000 runs of sequential Monte Carlo; Laplace's approximation is 7.7 too high."""
    problem = problems.finpines()
    excess = laplace(flat(problem.model), {}) - problem.reference.log_evidence
    assert abs(excess - 7.7) < 0.05


H = 1e-3


@pytest.mark.slow
def test_hendersons_equations_give_what_lmer_prints():
    table = read("benchmarks/data/InstEval.csv.gz")
    X = np.column_stack([np.ones(len(table)), table["service"]])
    levels = [table[name].astype("category").cat.codes.to_numpy() for name in ("s", "d", "dept")]
    exact = LinearMixed(X, table["y"].to_numpy(float), levels)
    problem = problems.insteval()
    theta = problem.reference.theta
    sigma = np.exp(theta["log_sigma"])
    sds = [np.exp(theta[f"log_sd_{name}"]) for name in ("s", "d", "dept")]
    value, beta, scale = exact.profiled(sds, sigma)
    assert abs(value - problem.reference.log_evidence) < 1e-4
    np.testing.assert_allclose(beta, theta["beta"], atol=1e-5)
    np.testing.assert_allclose(scale, sigma, rtol=1e-6)
    for i, name in enumerate(("s", "d", "dept")):
        error = problem.reference.standard_errors[f"log_sd_{name}"]
        ahead, behind = ([sd * np.exp(h * (j == i)) for j, sd in enumerate(sds)] for h in (H, -H))
        slope = (exact.profiled(ahead, sigma)[0] - exact.profiled(behind, sigma)[0]) / (2 * H)
        assert abs(slope * error) < 0.01, name
    # lmer prints three digits of the deviations, and the log-likelihood of its own maximum.
    printed, _, _ = exact.profiled([0.326, 0.515, 0.079], sigma)
    assert abs(printed + 118860.884) < 0.01
