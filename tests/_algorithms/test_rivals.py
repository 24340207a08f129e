"""The rivals: three steps of each against NumPy transcriptions of the papers, and their maxima."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from golden import STEPS, N, Potential, assert_same, fitted, noise_of, run_keys, theta_noise
from jalax import rivals
from shared_models import wisconsin

both = pytest.mark.parametrize("grouped", [False, True])
THETA_0 = np.array([0.5, 0.1])


def coins():
    """z_0, the sums of c and |c|, the largest |c| and R, of one number."""
    return {"begin": None, "total": 0.0, "size": 0.0, "largest": 0.0, "won": 0.0}


def bet(coin, z, c):
    if coin["begin"] is None:
        coin["begin"] = z
    coin["largest"] = max(coin["largest"], abs(c))
    coin["size"] += abs(c)
    coin["won"] = max(coin["won"] + c * (z - coin["begin"]), 0.0)
    coin["total"] += c
    share = coin["total"] / (coin["size"] + coin["largest"])
    return coin["begin"] + share * (1 + coin["won"] / coin["largest"])


def stein(x, slopes):
    """phi at each of the particles of a group, pair by pair."""
    squares = np.array([[np.sum((a - b) ** 2) for b in x] for a in x])
    width = np.median(squares) / np.log(len(x) + 1)
    phi = np.zeros_like(x)
    for i, here in enumerate(x):
        for there, slope in zip(x, slopes, strict=True):
            kernel = np.exp(-np.sum((here - there) ** 2) / width)
            phi[i] += (kernel * slope + kernel * 2 / width * (here - there)) / len(x)
    return phi


@pytest.mark.slow_cases("False")
@both
def test_coin_em(grouped, x64):
    u = Potential(grouped)
    _, theta, z, x = fitted(rivals.CoinEM(), grouped)
    t, of_theta = THETA_0.copy(), [coins(), coins()]
    of_x = [[[coins() for _ in range(3)] for _ in range(N)] for _ in x]
    for _ in range(STEPS):
        up = -u.grad_theta(t, x).mean(1).sum(0)
        phi = [stein(group, -slopes) for group, slopes in zip(x, u.grad_x(t, x), strict=True)]
        t = np.array([bet(coin, *pair) for coin, *pair in zip(of_theta, t, up, strict=True)])
        x = np.array(
            [
                [[bet(of_x[g][n][d], x[g, n, d], phi[g][n, d]) for d in range(3)] for n in range(N)]
                for g in range(len(x))
            ]
        )
    assert_same(theta, t)
    assert_same(z, x)


@pytest.mark.slow_cases("False")
@both
def test_kiplmc(grouped, x64):
    """The noise by quadrature of its Ito integrals."""
    u, h, friction = Potential(grouped), 0.05, 1.5
    _, theta, z, x = fitted(rivals.KIPLMC(step_size=h, friction=friction), grouped)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    time, weights = h / 2 * (nodes + 1), h / 2 * weights
    rows = np.stack([np.exp(-friction * time), -np.expm1(-friction * time) / friction])
    root = np.sqrt(2 * friction) * np.linalg.cholesky(rows * weights @ rows.T)
    decay, first = np.exp(-friction * h), -np.expm1(-friction * h) / friction
    second = (h - first) / friction

    def moved(place, speed, slope, xi, other, size):
        scatter = size * (root[1, 0] * xi + root[1, 1] * other)
        new = place + first * speed - second * slope + scatter
        return new, decay * speed - first * slope + size * root[0, 0] * xi

    t, w, v = THETA_0, np.zeros(2), np.zeros_like(x)
    for key in run_keys(jax.random.key(7)):
        of_theta, of_x = (jax.random.split(k) for k in jax.random.split(key))
        g, slope = u.grad_theta(t, x).mean(1).sum(0), u.grad_x(t, x)
        t, w = moved(t, w, g, *map(theta_noise, of_theta), N**-0.5)
        x, v = moved(x, v, slope, *(noise_of(k, len(x), N) for k in of_x), 1.0)
    assert_same(theta, t)
    assert_same(z, x)


def chained(u, t, x, log_h, key, number, step):
    """Metropolis-adjusted Langevin moves, the ratio from the densities of the proposals."""

    def log_q(new, old, h):
        away = new - old + h[:, None, None] * u.grad_x(t, old)
        return -np.sum(away**2, axis=-1) / (4 * h[:, None])

    for inner in jax.random.split(key, number):
        key_move, key_accept = jax.random.split(inner)
        h = np.exp(log_h)
        xi, uniform = noise_of(key_move, len(x), N), jax.random.uniform(key_accept, x.shape[:2])
        new = x - h[:, None, None] * u.grad_x(t, x) + np.sqrt(2 * h)[:, None, None] * xi
        ratio = u.value(t, x) - u.value(t, new) + log_q(x, new, h) - log_q(new, x, h)
        x = np.where((np.log(uniform) < ratio)[..., None], new, x)
        share = np.minimum(1.0, np.exp(ratio)).mean(axis=1)
        log_h = log_h + (step + 1) ** -0.6 / number * (share - 0.574)
    return x, log_h


def second_derivatives(t, x):
    """Of U with respect to theta, the mean over the particles, of all groups."""
    away, scale = x - t[0], np.exp(-t[1])
    cross, square = away.sum(-1) * scale, 0.5 * (away**2).sum(-1) * scale
    each = np.array([[np.full_like(cross, 3 * scale), cross], [cross, square]])
    return each.mean(axis=3).sum(axis=2)


def newton(score, information):
    values, axes = np.linalg.eigh(information)
    along = axes.T @ score
    length = np.sqrt(np.sum(along**2 / np.abs(values)))
    return axes @ (along / np.abs(values)) * min(1.0, 3.0 / length)


@pytest.mark.slow_cases("False")
@both
def test_saem(grouped, x64):
    u, h, number = Potential(grouped), 0.1, 2
    algorithm = rivals.SAEM(step_size=h, num_inner=number, burn_in=1, exponent=0.8)
    _, theta, z, x = fitted(algorithm, grouped)
    t, log_h, C = THETA_0, np.full(len(x), np.log(h)), 0.0
    for k, key in enumerate(run_keys(jax.random.key(7))):
        x, log_h = chained(u, t, x, log_h, key, number, k)
        gamma = (1.0, 1.0, 2**-0.8)[k]
        C = (1 - gamma) * C + gamma * second_derivatives(t, x)
        t = t + gamma * newton(-u.grad_theta(t, x).mean(1).sum(0), C)
    assert_same(theta, t)
    assert_same(z, x)


@pytest.mark.slow_cases("False")
@both
def test_monte_carlo_em(grouped, x64):
    u, h, number = Potential(grouped), 0.1, 2
    algorithm = rivals.MonteCarloEM(step_size=h, num_inner=number, num_newton=2)
    _, theta, z, x = fitted(algorithm, grouped)
    t, log_h = THETA_0, np.full(len(x), np.log(h))
    for k, key in enumerate(run_keys(jax.random.key(7))):
        x, log_h = chained(u, t, x, log_h, key, number, k)
        for _ in range(2):
            score = -u.grad_theta(t, x).mean(1).sum(0)
            t = t + newton(score, second_derivatives(t, x))
    assert_same(theta, t)
    assert_same(z, x)


SETTINGS = {
    "CoinEM": (rivals.CoinEM(), 3000),
    "KIPLMC": (rivals.KIPLMC(step_size=0.02), 6000),
    "SAEM": (rivals.SAEM(), 1000),
    "MonteCarloEM": (rivals.MonteCarloEM(), 300),
}


def posed(name):
    """Model, a first theta, the maximum and its standard errors."""
    if name == "wisconsin":  # by randomised quasi-Monte-Carlo with 2.1e6 draws
        return wisconsin(), {"mean": 0.0}, {"mean": 0.98665}, {"mean": 0.7524}
    problem = jalax.problems.get(name)
    known = problem.reference
    return problem.model, problem.theta, known.theta, known.standard_errors


# On toenail CoinEM and KIPLMC are not there after four minutes with these settings.
ARRIVE = [(name, problem) for problem in ("pumps", "wisconsin") for name in SETTINGS]
ARRIVE += [(name, "toenail") for name in ("SAEM", "MonteCarloEM")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "problem"), ARRIVE)
def test_each_reaches_the_maximum(name, problem):
    """Within a tenth of a standard error, by the mean of the last half of the steps."""
    model, theta_0, exact, errors = posed(problem)
    algorithm, num_steps = SETTINGS[name]
    result = jalax.fit(
        model,
        theta_0["mean"] if problem == "wisconsin" else theta_0,
        key=jax.random.key(0),
        algorithm=algorithm,
        start=jalax.Laplace(),
        num_particles=50,
        num_steps=num_steps,
    )
    found = result.theta_average(last=0.5)
    found = {"mean": found} if problem == "wisconsin" else found
    for part, error in errors.items():
        away = np.abs(np.asarray(found[part]) - np.asarray(exact[part])) / np.asarray(error)
        assert np.max(away) < 0.1, (part, away)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (rivals.KIPLMC(), r"KIPLMC.step_size"),
        (rivals.KIPLMC(step_size=0.1, friction=-1.0), r"KIPLMC.friction"),
        (rivals.SAEM(exponent=0.5), r"SAEM.exponent must be above 0.5 and at most 1, got 0.5"),
        (rivals.SAEM(burn_in=-1), r"SAEM.burn_in must be 0 steps or more, got -1"),
        (rivals.SAEM(num_inner=0), r"SAEM.num_inner"),
        (rivals.MonteCarloEM(num_newton=0), r"MonteCarloEM.num_newton"),
        (rivals.MonteCarloEM(), r"theta has 301 numbers, and MonteCarloEM holds .* up to 300"),
        (rivals.SAEM(), r"theta has 301 numbers, and SAEM holds the information"),
    ],
)
def test_bad_options_get_a_sentence(algorithm, sentence):
    model = jalax.GroupedModel(lambda t, x, y: jnp.sum(t) * x + y, jnp.zeros(()), jnp.zeros(3))
    with pytest.raises((ValueError, TypeError), match=sentence):
        jalax.fit(model, jnp.zeros(301), key=jax.random.key(0), algorithm=algorithm, num_steps=1)
