"""The references of the problem book: complete, and their schemes against brute force."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student

FOLDER = Path(__file__).parents[2] / "benchmarks" / "references"
sys.path.insert(0, str(FOLDER))

import electricity  # noqa: E402
import guimmun  # noqa: E402
import pound_dollar  # noqa: E402
from _annealed import annealed, logistic  # noqa: E402
from _crossed import crossed, log_joint_and_score, outer_slope_and_bend, simulated  # noqa: E402
from _crossed_fit import Sizes, evidence, fit, look  # noqa: E402
from _importance import Centres, Shape, draws  # noqa: E402
from _pool import log_density, pool, quantiles, sobol  # noqa: E402
from _quadrature import trapezoid  # noqa: E402

NAMES = (
    "electricity", "guimmun", "verbagg", "salamander", "crossed_120", "crossed_1000", "pound_dollar"
)  # fmt: skip
# What the book asks of log p and, in standard errors, of theta.
WANTED = {
    "electricity": (0.03, 0.005), "guimmun": (1e-6, 1e-4), "verbagg": (0.003, 0.01),
    "salamander": (0.003, 0.01), "crossed_120": (0.003, 0.01), "crossed_1000": (0.02, 0.01),
    "pound_dollar": (1e-6, 1e-4),
}  # fmt: skip


def entries():
    return json.loads((FOLDER / "references.json").read_text(encoding="utf-8"))


def leaves(tree):
    return np.concatenate([np.atleast_1d(tree[key]) for key in sorted(tree)])


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_complete(name):
    entry = entries()[name]
    assert set(entry["theta"]) == set(entry["standard_errors"])
    theta, errors = leaves(entry["theta"]), leaves(entry["standard_errors"])
    assert theta.shape == errors.shape
    assert np.isfinite(theta).all()
    assert (errors > 0).all()
    assert entry["error"] <= WANTED[name][0]
    assert entry["theta_error"] <= WANTED[name][1]
    assert entry["method"]
    assert entry["seconds"] > 0


@pytest.mark.parametrize(
    "name", ["electricity", "verbagg", "salamander", "crossed_120", "crossed_1000"]
)
def test_routes_agree(name):
    entry = entries()[name]
    # Routes at another theta are recorded for comparison with other programs only.
    routes = {key: route for key, route in entry["routes"].items() if ", at the " not in key}
    assert len(routes) >= 2
    for route in routes.values():
        apart = abs(route["log_evidence"] - entry["log_evidence"])
        assert apart < 4.5 * np.hypot(route["error"], entry["error"])


def test_crossed_1000_at_the_generating_theta():
    """A program of its own, annealed legs in JAX, found -7553.16 +- .02 there."""
    route = entries()["crossed_1000"]["routes"]["the first, at the generating theta"]
    assert abs(route["log_evidence"] + 7553.16) < 4.5 * np.hypot(route["error"], 0.02)


# ---------------------------------------------------------------- a tiny crossed example

INNER = np.array([0, 0, 0, 1, 1, 1, 0, 1, 0, 1])
OUTER = np.array([0, 0, 1, 0, 1, 1, 1, 0, 1, 1])
Y = np.array([1.0, 1, 0, 1, 0, 0, 1, 0, 0, 1])
ROWS = np.linspace(-1, 1, Y.size)[:, None]
Z, W = np.array([[0.5], [-1.0]]), np.array([[1.0], [2.0]])
THETA = np.array([0.4, -0.3, 0.2, 0.3, -0.2])


def brute_force(theta, inner=INNER, outer=OUTER, y=Y):
    """log p by the product of four trapezoidal rules over all four effects at once."""
    x = np.linspace(-1, 1, y.size) * theta[0]
    nodes, log_weights = trapezoid(0.5, 7.0)
    a = theta[1] * Z + np.exp(theta[3]) * nodes
    c = theta[2] * W + np.exp(theta[4]) * nodes
    total = log_weights[:, None, None, None] + log_weights[:, None, None] + log_weights[:, None]
    total = total + log_weights
    for i, j, value, fixed in zip(inner, outer, y, x, strict=True):
        first = a[i].reshape((-1, 1, 1, 1) if i == 0 else (-1, 1, 1))
        second = c[j].reshape((-1, 1) if j == 0 else (-1,))
        eta = fixed + first + second
        total = total + value * eta - np.logaddexp(0, eta)
    return logsumexp(total)


@pytest.fixture(scope="module")
def exact():
    return brute_force(THETA)


@pytest.fixture(scope="module")
def exact_score():
    step = 1e-4
    return np.array(
        [
            (brute_force(THETA + step * unit) - brute_force(THETA - step * unit)) / (2 * step)
            for unit in np.eye(5)
        ]
    )


@pytest.mark.parametrize("freedom", [None, 5.0])
def test_nested_scheme_is_the_tensor_quadrature(exact, freedom):
    problem = crossed(INNER, OUTER, Y, x=ROWS, z=Z, w=W)
    found = evidence([problem], THETA, Sizes(5, 10, 8, 25, freedom), jobs=1)
    assert found["error"] < 1e-3
    assert abs(found["log_evidence"] - exact) < 5.5 * found["error"]


def test_inner_integrals_and_score_are_those_of_the_tensor_quadrature(exact, exact_score):
    """Both outer effects by the same rule as the brute force: no sampling."""
    problem = crossed(INNER, OUTER, Y, x=ROWS, z=Z, w=W)
    nodes, log_weights = trapezoid(0.5, 7.0)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij")).reshape(2, -1)
    prior = (log_weights[:, None] + log_weights).ravel()
    c = THETA[2] * W + np.exp(THETA[4]) * grid
    logs, scores = log_joint_and_score(problem, THETA, c, 41)
    logs = logs + prior - norm.logpdf(c, THETA[2] * W, np.exp(THETA[4])).sum(0)
    assert logsumexp(logs) == pytest.approx(exact, abs=1e-7)
    assert scores @ np.exp(logs - logsumexp(logs)) == pytest.approx(exact_score, abs=1e-6)


def test_observed_information_is_the_second_derivative():
    problem, step = crossed(INNER, OUTER, Y, x=ROWS, z=Z, w=W), 0.02
    found = look([problem], THETA, Sizes(9, 12, 4, 25, 5.0), seed=1, jobs=1)
    for number, unit in enumerate(np.eye(5)):
        around = [brute_force(THETA + k * step * unit) for k in (-1, 0, 1)]
        bend = -(around[0] - 2 * around[1] + around[2]) / step**2
        assert found.matrix[number, number] == pytest.approx(bend, abs=0.02)


def test_curvature_of_the_outer_effects_is_the_second_derivative():
    problem, c, step = crossed(INNER, OUTER, Y, x=ROWS, z=Z, w=W), np.array([0.3, -0.5]), 1e-4
    slope, bend = outer_slope_and_bend(problem, THETA, c, 41)
    moved = np.stack([c + step * unit for unit in (*np.eye(2), *-np.eye(2))], 1)
    logs = log_joint_and_score(problem, THETA, moved, 41)[0]
    assert slope == pytest.approx((logs[:2] - logs[2:]) / (2 * step), abs=1e-6)
    slopes = [outer_slope_and_bend(problem, THETA, column, 41)[0] for column in moved.T]
    differences = (np.array(slopes[2:]) - np.array(slopes[:2])) / (2 * step)
    assert bend == pytest.approx(differences, abs=1e-5)


def test_annealing_is_the_tensor_quadrature(exact):
    offset = THETA[0] * ROWS[:, 0] + THETA[1] * Z[INNER, 0] + THETA[2] * W[OUTER, 0]
    effects = [(INNER, 2, np.exp(THETA[3])), (OUTER, 2, np.exp(THETA[4]))]
    found = annealed(logistic(Y, offset, effects), legs=24, temperatures=8, jobs=1)
    assert found["error"] < 0.02
    assert abs(found["log_evidence"] - exact) < 5 * found["error"]


def test_maximum_does_not_depend_on_which_factor_is_sampled():
    """The two routes to the maximum of a small simulated problem."""
    ia, ib, y = simulated(12, 10, 300)
    sizes, start = Sizes(6, 8, 6, 13), np.array([0.0, 0.0, -0.4])
    one, _ = fit([crossed(ia, ib, y, z=np.ones((12, 1)))], start, sizes, jobs=1)
    two, _ = fit([crossed(ib, ia, y, w=np.ones((12, 1)))], start[[0, 2, 1]], sizes, jobs=1)
    apart = np.abs(one.theta - two.theta[[0, 2, 1]]) / one.standard_errors
    assert apart.max() < 0.1
    assert one.standard_errors == pytest.approx(two.standard_errors[[0, 2, 1]], rel=0.05)
    assert abs(one.log_evidence - two.log_evidence) < 6 * np.hypot(one.error, two.error)


# ---------------------------------------------------------------- importance sampling


@pytest.mark.parametrize("shape", [Shape(4.0), Shape(5.0), Shape(None, 1.3)])
def test_importance_scheme_is_a_normal_integral(shape):
    """y ~ N(b, I/4), b ~ N(mu, diag(sd^2)): p, score, and information have a closed form."""
    rng, theta = np.random.default_rng(2), electricity.START
    mu, sd = theta[:6], np.exp(theta[6:])
    y = mu + rng.normal(size=(4, 6)) * np.sqrt(sd**2 + 0.25)
    variance = 1 / (sd**-2.0 + 4)
    modes = variance * (mu / sd**2 + 4 * y)
    centres = Centres(modes, np.broadcast_to(np.diag(np.sqrt(variance)), (4, 6, 6)))
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        values, densities = draws(centres, sobol(6, 12, rng), rng, shape)
        logs = norm.logpdf(y[:, None], values, 0.5).sum(2) - densities
        groups = [electricity.posterior(*group, theta) for group in zip(values, logs, strict=True)]
        found.append([np.array(part) for part in zip(*groups, strict=True)])
    log_p, scores, matrices = (np.array(part) for part in zip(*found, strict=True))
    pooled = pool(log_p, scores)
    total = sd**2 + 0.25
    exact = norm.logpdf(y, mu, np.sqrt(total)).sum()
    assert pooled.error < 0.02
    assert abs(pooled.log_p - exact) < 6 * pooled.error
    away = (y - mu) ** 2 / total
    score = np.concatenate([((y - mu) / total).sum(0), ((away - 1) * sd**2 / total).sum(0)])
    assert pooled.score * np.tile(sd, 2) == pytest.approx(score * np.tile(sd, 2), abs=0.05)
    share = sd**2 / total
    bend = (2 * share * (1 - share) * (1 - away) + 2 * share**2 * away).sum(0)
    matrix = matrices.mean(0).sum(0)
    assert np.diag(matrix)[:6] * total == pytest.approx(np.full(6, 4.0), abs=0.1)
    assert np.diag(matrix)[6:] == pytest.approx(bend, abs=0.2)


def test_roots_that_are_not_diagonal_carry_their_determinant():
    rng = np.random.default_rng(0)
    root = np.triu(rng.normal(size=(6, 6))) + 2 * np.eye(6)
    centres = Centres(np.zeros((1, 6)), root[None])
    values, densities = draws(centres, sobol(6, 5, rng), rng, Shape(None))
    exact = multivariate_normal(np.zeros(6), root @ root.T).logpdf(values[0])
    assert densities[0] == pytest.approx(exact, abs=1e-8)


def test_student_quantiles_in_closed_form():
    points = np.array([1e-9, 1e-3, 0.2, 0.49, 0.7, 0.999])
    exact = student.ppf(points, 4)
    assert quantiles(points, 4) == pytest.approx(exact, rel=1e-6)
    assert log_density(exact, 4) == pytest.approx(student.logpdf(exact, 4).sum())


def test_choice_likelihood_is_the_softmax():
    rng = np.random.default_rng(1)
    offers, b = rng.normal(size=(12, 4, 6)), rng.normal(size=6)
    chosen = rng.integers(0, 4, 12)
    utility = offers @ b
    exact = (utility[np.arange(12), chosen] - logsumexp(utility, axis=1)).sum()
    others = np.array([np.delete(o, k, axis=0) - o[k] for o, k in zip(offers, chosen, strict=True)])
    assert electricity.log_likelihood(others, b[None])[0] == pytest.approx(exact)


# ---------------------------------------------------------------- the two by quadrature alone


def test_filter_is_the_integral_over_all_states():
    theta, y = np.array([0.9, -0.5, -0.3]), np.array([0.7, -1.1, 0.2])
    found = pound_dollar.log_likelihood(theta, y, np.linspace(-6, 6, 161))
    grid = np.linspace(-6, 6, 121)
    phi, sigma = np.tanh(0.9), np.exp(-0.5)
    x = np.meshgrid(grid, grid, grid, indexing="ij", sparse=True)
    total = norm.logpdf(x[0], 0, sigma / np.sqrt(1 - phi**2))
    total = total + norm.logpdf(x[1], phi * x[0], sigma) + norm.logpdf(x[2], phi * x[1], sigma)
    for value, state in zip(y, x, strict=True):
        total = total + norm.logpdf(value, 0, np.exp((-0.3 + state) / 2))
    exact = logsumexp(total) + 3 * np.log(grid[1] - grid[0])
    assert found.real == pytest.approx(exact, abs=1e-8)


def test_nested_quadrature_is_the_product_rule():
    """Two communities, three mothers; and its score is the derivative."""
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(7), rng.normal(size=7)])
    y = np.array([1.0, 0, 1, 1, 0, 0, 1])
    mother = np.array([0, 0, 1, 1, 1, 2, 2])
    starts, community = np.array([0, 2, 5]), np.array([0, 0, 1])
    data = guimmun.Data(design, y, mother, starts, community, np.array([0, 2]))
    theta = np.array([0.3, -0.5, 0.6, 0.1])
    value, score = guimmun.value_and_score(theta, data, 0.25)
    nodes, log_weights = trapezoid(0.3, 8.0)

    def mothers(child, shared):
        eta = (design @ theta[:2])[child] + np.exp(0.1) * shared[:, None] + np.exp(0.6) * nodes
        return np.log(expit((2 * y[child] - 1) * eta))

    second = sum(mothers(child, nodes) for child in (2, 3, 4))
    third = mothers(5, nodes) + mothers(6, nodes)
    # All three effects of the first community at once, then both of the second.
    cube = (mothers(0, nodes) + mothers(1, nodes) + log_weights)[:, :, None] + (
        second + log_weights
    )[:, None, :]
    exact = logsumexp(cube + log_weights[:, None, None])
    exact += logsumexp(third + log_weights + log_weights[:, None])
    assert value == pytest.approx(exact, abs=1e-9)
    assert guimmun.adaptive(theta, data, 40, 60) == pytest.approx(exact, abs=1e-6)
    step = 1e-5
    slopes = [
        guimmun.value_and_score(theta + step * unit, data, 0.25)[0]
        - guimmun.value_and_score(theta - step * unit, data, 0.25)[0]
        for unit in np.eye(4)
    ]
    assert score == pytest.approx(np.array(slopes) / (2 * step), abs=1e-6)
