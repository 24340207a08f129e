"""log_joint at random latents against densities in NumPy, formulas, and both precisions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jalax import problems
from jalax.models._mixed import build
from jalax.problems import _data
from jalax.problems._theophylline import _absorbed
from problems import densities

SLOW = ("guimmun", "electricity", "verbagg", "insteval", "insteval_binary", "salamander")


def draw(problem, seed: int = 0):
    """Latents for all groups, near 0 or, of the pines, near their mean."""
    rng = np.random.default_rng(seed)
    groups = (problem.model.num_groups,) if problem.model.grouped else ()

    def one(leaf):
        return np.asarray(leaf, float) + 0.5 * rng.normal(size=(*groups, *np.shape(leaf)))

    return jax.tree.map(one, problem.model.latent)


def log_joint(model, theta, x) -> float:
    """Of all groups together, added up in float64."""
    theta, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=float), (theta, x))

    def density(theta, x, data):
        return model.log_joint(theta, x, data)

    if model.grouped:
        density = jax.vmap(density, in_axes=(None, 0, 0))
    values = jax.jit(density)(theta, x, model.data)
    return float(np.sum(np.asarray(values, np.float64)))


def other_theta(problem, seed: int = 1):
    """Away from the reference, where a parameter that is left out could not be seen."""
    rng = np.random.default_rng(seed)
    return {k: v + 0.1 * rng.normal(size=v.shape) for k, v in problem.reference.theta.items()}


WRITTEN = ["guimmun", "pound_dollar", "spatial", "finpines", "verbagg"]
WRITTEN += ["insteval", "insteval_binary"]


@pytest.mark.slow_cases("guimmun", "insteval", "insteval_binary")
@pytest.mark.parametrize("name", WRITTEN)
def test_log_joint_is_the_density_written_in_numpy(name, x64):
    problem = problems.get(name)
    theta, x = other_theta(problem), draw(problem)
    expected = getattr(densities, name)(theta, x)
    np.testing.assert_allclose(log_joint(problem.model, theta, x), expected, rtol=1e-11)


def test_the_slope_of_the_pines(x64):
    problem = problems.finpines()
    x = draw(problem)
    density = lambda x: problem.model.log_joint({}, x, problem.model.data)  # noqa: E731
    slope = jax.jit(jax.grad(density))(jnp.asarray(x))
    np.testing.assert_allclose(slope, densities.finpines_slope(x), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["crossed_120", "crossed_1000"])
def test_simulated_answers(name, x64):
    """The density, and the recipe: the seed's numbers, drawn here again."""
    problem = problems.get(name)
    a, b, rows = {"crossed_120": (60, 60, 2400), "crossed_1000": (700, 300, 12000)}[name]
    rng = np.random.default_rng(0)
    ia, ib = rng.integers(0, a, rows), rng.integers(0, b, rows)
    ea, eb = rng.normal(size=a), 0.7 * rng.normal(size=b)
    y = rng.random(rows) < 1 / (1 + np.exp(-(ea[ia] + eb[ib])))
    theta, u = other_theta(problem), draw(problem)
    eta = theta["intercept"] + np.exp(theta["log_sd_a"]) * u["a"][ia]
    eta = eta + np.exp(theta["log_sd_b"]) * u["b"][ib]
    expected = densities.bernoulli(y, eta) + densities.normals(u["a"], u["b"])
    np.testing.assert_allclose(log_joint(problem.model, theta, u), expected, rtol=1e-11)


@pytest.mark.slow_cases(*SLOW, "theophylline", "lsat_rasch", "lsat_2pl", "crossed_1000", "toenail")
@pytest.mark.parametrize("name", problems.all())
def test_single_precision_has_five_digits(name):
    with jax.enable_x64(True):
        problem = problems.get(name)
        x = draw(problem)
        exact = log_joint(problem.model, problem.reference.theta, x)
    with jax.enable_x64(False):
        problem = problems.get(name)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(problem.theta))
        assert abs(log_joint(problem.model, problem.reference.theta, x) - exact) < 1e-5 * abs(exact)
        assert np.isfinite(log_joint(problem.model, problem.theta, x))  # a fit can start there


@pytest.mark.parametrize("effect", [-60.0, 60.0])
def test_a_judge_far_out_has_a_finite_density_in_single_precision(effect):
    """Where differences of probabilities are 0 in any precision: against logarithms by hand."""
    problem = problems.wine()
    theta = {"k1": 0.0, "log_gaps": np.zeros(3), "beta": np.zeros(2), "log_sd": 0.0}
    ratings = _data.table("wine.csv.gz")["rating"] - 1
    # P(rating j) is e^(k_j - u) (1 - e^-1) for large u, and e^(u - k_(j-1)) (1 - e^-1) for small.
    if effect > 0:
        logs = np.array([0.0, 1.0, 2.0, 3.0, effect]) - effect
    else:
        logs = np.array([-effect, 0.0, -1.0, -2.0, -3.0]) + effect
    logs[1:4] += np.log(1 - np.exp(-1))
    expected = logs[ratings].sum() + 9 * densities.normals(np.array([effect]))
    np.testing.assert_allclose(
        log_joint(problem.model, theta, np.full(9, effect)), expected, rtol=1e-6
    )


def test_equal_rates_of_absorption_and_elimination(x64):
    """(e^(-k t) - e^(-ka t)) / (ka - k) and its slope, at ka = k, beside it, and far from it."""
    t = np.array([0.25, 5.0, 24.0])
    slope = jax.jit(jax.vmap(jax.grad(_absorbed), in_axes=(None, None, 0)))
    for ka, k in [(1.5, 0.08), (0.08, 1.5), (1.0, 1e4)]:
        direct = (np.exp(-k * t) - np.exp(-ka * t)) / (ka - k)
        np.testing.assert_allclose(_absorbed(ka, k, t), direct, rtol=1e-12)
        by_hand = (t * np.exp(-ka * t) - direct) / (ka - k)
        np.testing.assert_allclose(slope(ka, k, t), by_hand, rtol=1e-9)
    for gap in (0.0, 1e-9, -1e-9):
        np.testing.assert_allclose(_absorbed(0.5 + gap, 0.5, t), t * np.exp(-0.5 * t), rtol=1e-7)
        limit = -0.5 * t**2 * np.exp(-0.5 * t)
        np.testing.assert_allclose(slope(0.5 + gap, 0.5, t), limit, rtol=1e-6)


def arranged(name: str, folder) -> dict[str, np.ndarray]:
    """How a problem's latents are arranged: the labels of each factor in its order."""
    if name == "seeds":
        return {"plate": np.arange(1, 22)}
    if name.startswith("toenail"):
        table = densities.read(f"{densities.DATA}/toenail.csv.gz")
        return {"patientID": np.unique(table["patientID"])}
    if name == "guimmun":
        rows, _ = densities.immunisation()
        communities = np.unique(rows["comm"])
        mothers = np.full((communities.size, 37), -1)
        for g, community in enumerate(communities):
            own = np.unique(rows["mom"][rows["comm"] == community])
            mothers[g, : own.size] = own
        return {"comm": communities[:, None], "mom": mothers}
    insteval = name.startswith("insteval")
    path = folder / "InstEval.csv.gz" if insteval else f"{densities.DATA}/VerbAgg.csv.gz"
    factors = ("s", "d", "dept") if insteval else ("id", "item")
    table = densities.read(path)
    return {factor: np.unique(table[factor]) for factor in factors}


def built(name: str, folder):
    """The problem; of InstEval the first rows, since formulae's matrices are dense."""
    if not name.startswith("insteval"):
        return problems.get(name)
    table = densities.read("benchmarks/data/InstEval.csv.gz")
    table[:2000].to_csv(folder / "InstEval.csv.gz", index=False)
    return problems.insteval("binary" if "binary" in name else "gaussian", folder)


FORMULAS = ["seeds", "toenail", "toenail_visit", "verbagg", "guimmun"]
FORMULAS += ["insteval", "insteval_binary"]


@pytest.mark.slow_cases(*FORMULAS[1:])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_is_the_same_model(name, x64, tmp_path):
    """log p(y, b) of the formula's effects b = sd u, whatever the order of levels."""
    problem = built(name, tmp_path)
    labels = arranged(name, tmp_path)
    theta, x = other_theta(problem), draw(problem)
    u = x if isinstance(x, dict) else {next(iter(labels)): x}
    u = {factor: np.where(labels[factor] == -1, 0.0, u[factor]) for factor in labels}
    log_sd = {factor: theta.get(f"log_sd_{factor}", theta.get("log_sd")) for factor in labels}
    model, design = build(problem.formula.text, problem.formula.frame(), problem.formula.family)
    same = {"beta": theta["beta"], "cor": {factor: np.zeros(0) for factor in labels}}
    same["sd"] = {factor: np.exp(log_sd[factor])[None] for factor in labels}
    if "log_sigma" in theta:
        same["sigma"] = np.exp(theta["log_sigma"])
    b, jacobian = {}, 0.0
    for block in design.design.blocks:
        factor, level = block.factor, design.levels[block.name]
        known = dict(zip(labels[factor].ravel().astype(str), u[factor].ravel(), strict=True))
        names = np.array([*block.labels, "-1"])[level]  # -1: padding, no level
        effects = np.array([known.get(name, 0.0) for name in names.ravel()]).reshape(level.shape)
        b[block.name] = (np.exp(log_sd[factor]) * effects)[..., None]
        jacobian += level.size * log_sd[factor]
    if not isinstance(x, dict):
        u = next(iter(u.values()))
    expected = log_joint(problem.model, theta, u)
    np.testing.assert_allclose(log_joint(model, same, b) + jacobian, expected, rtol=1e-10)
    assert isinstance(problem.formula(), type(model))
