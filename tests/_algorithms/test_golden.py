"""Three steps of each algorithm against a plain NumPy transcription of the paper's equations.

The transcription follows the text, not our code: U and its gradients by hand, Algorithm 1 line
by line with two alphas a step and nothing cached. Only the random numbers are shared.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms as table
import jalax
from golden import (
    Adam,
    N,
    Potential,
    assert_same,
    fitted,
    flat,
    noise_of,
    run_keys,
    theta_noise,
)

pytestmark = pytest.mark.usefixtures("x64")


def jala_em(u, z, update, h, below, p, keys):
    """Algorithm 1, with the evidence of appendix C.1 and a preconditioner."""
    groups, num = z.shape[:2]
    theta, a = np.array([0.5, 0.1]), np.zeros((groups, num))
    log_z = np.full(groups, -2.0 / groups)
    root = np.linalg.cholesky(p)
    g = None
    trace = []

    def alpha(theta, left, right):
        grad = u.grad_x(theta, left)
        quadratic = np.einsum("gni,ij,gnj->gn", grad, p, grad)
        return u.value(theta, left) + 0.5 * ((right - left) * grad).sum(-1) + h / 4 * quadratic

    for key in keys:
        key_move, key_resample = jax.random.split(key)
        if g is None:  # later gradients use the weights before resampling, see below
            w = np.exp(a) / np.exp(a).sum(1, keepdims=True)
            g = (w[..., None] * u.grad_theta(theta, z)).sum((0, 1))
        theta_next = update(theta, g)
        xi = noise_of(key_move, groups, num)
        z_next = z - h * u.grad_x(theta, z) @ p + np.sqrt(2 * h) * xi @ root.T
        a = a - alpha(theta_next, z_next, z) + alpha(theta, z, z_next)
        theta, z = theta_next, z_next
        trace.append((log_z + np.log(np.exp(a).mean(1))).sum())
        w = np.exp(a) / np.exp(a).sum(1, keepdims=True)
        g = (w[..., None] * u.grad_theta(theta, z)).sum((0, 1))
        for i, group_key in enumerate(jax.random.split(key_resample, groups)):
            if 1 / (w[i] ** 2).sum() < below * num:
                uniform = float(jax.random.uniform(group_key, ()))
                points = (np.arange(num) + uniform) / num
                ancestors = np.searchsorted(np.cumsum(w[i]), points)
                log_z[i] += np.log(np.exp(a[i]).mean())
                z[i], a[i] = z[i][ancestors], 0.0
    return theta, z, a, trace


P = np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]])
DIAGONAL = {"a": np.array([1.0, 2.0]), "b": np.array(0.5)}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("preconditioner", "matrix"),
    [(None, np.eye(3)), (P, P), (DIAGONAL, np.diag([1.0, 2.0, 0.5]))],
    ids=["identity", "dense", "diagonal"],
)
@pytest.mark.parametrize("below", [0.0, 0.952, 1.0])
def test_jala_em(grouped, preconditioner, matrix, below):
    algorithm = jalax.JALAEM(
        step_size=0.1,
        optimizer=optax.adam(0.1),
        preconditioner=preconditioner,
        resample_below=below,
    )
    result, theta, z, start = fitted(algorithm, grouped)
    keys = run_keys(jax.random.key(7))
    expected = jala_em(Potential(grouped), start, Adam(0.1), 0.1, below, matrix, keys)
    assert_same(theta, expected[0])
    assert_same(z, expected[1])
    assert_same(np.asarray(result.state.log_weights), expected[2])
    assert_same(result.history["log_evidence"], expected[3])
    assert_same(result.path_log_evidence, expected[3][-1])
    assert result.history["resampled"].any() == (below > 0)


def log_normal(x, mean, covariance):
    z = x - mean
    square = np.einsum("gni,ij,gnj->gn", z, np.linalg.inv(covariance), z)
    return -0.5 * square - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]


def jala_em_by_densities(u, z, update, h, p, keys):
    """Algorithm 1 without resampling, the moves and their weights from the kernels' densities."""
    theta, a = np.array([0.5, 0.1]), np.zeros(z.shape[:2])
    covariance = h * (2 - h) * p
    root, trace = np.linalg.cholesky(covariance), []
    for key in keys:
        w = np.exp(a) / np.exp(a).sum(1, keepdims=True)
        theta_next = update(theta, (w[..., None] * u.grad_theta(theta, z)).sum((0, 1)))
        xi = noise_of(jax.random.split(key)[0], *z.shape[:2])
        there = z - h * u.grad_x(theta, z) @ p
        z_next = there + xi @ root.T
        back = z_next - h * u.grad_x(theta_next, z_next) @ p
        a = a - u.value(theta_next, z_next) + u.value(theta, z)
        a = a + log_normal(z, back, covariance) - log_normal(z_next, there, covariance)
        theta, z = theta_next, z_next
        trace.append(-2.0 + np.log(np.exp(a).mean(1)).sum())
    return theta, z, a, trace


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("h", [0.1, 0.7])
@pytest.mark.parametrize(
    ("preconditioner", "matrix"),
    [(None, 0.3 * np.eye(3)), (0.3 * P, 0.3 * P)],
    ids=["diagonal", "dense"],
)
def test_jala_em_with_the_exact_kernel(grouped, preconditioner, matrix, h):
    if preconditioner is None:
        preconditioner = {"a": np.full(2, 0.3), "b": np.array(0.3)}
    algorithm = jalax.JALAEM(
        step_size=h,
        optimizer=optax.adam(0.1),
        preconditioner=preconditioner,
        resample_below=0.0,
        kernel=jalax.GaussianExact(),
    )
    result, theta, z, start = fitted(algorithm, grouped)
    keys = run_keys(jax.random.key(7))
    expected = jala_em_by_densities(Potential(grouped), start, Adam(0.1), h, matrix, keys)
    assert_same(theta, expected[0])
    assert_same(z, expected[1])
    assert_same(np.asarray(result.state.log_weights), expected[2])
    assert_same(result.history["log_evidence"], expected[3])


def test_per_group_preconditioner():
    """Two matrices on a leading axis: each group moves by its own, the other is untouched."""

    def first_move(preconditioner):
        algorithm = jalax.JALAEM(step_size=0.1, preconditioner=preconditioner)
        start = jalax.Given(table.particles(N, True))
        fit = jalax.fit(
            table.model(True), key=jax.random.key(7), algorithm=algorithm, start=start, num_steps=1
        )
        return flat(fit.state.particles)

    own = first_move(np.stack([P, 0.5 * P]))
    assert_same(own[0], first_move(P)[0])
    assert_same(own[1], first_move(0.5 * P)[1])
    assert np.abs(own[1] - first_move(P)[1]).max() > 0.1


@pytest.mark.parametrize("grouped", [False, True])
def test_pgd(grouped):
    gamma, u = 0.05, Potential(grouped)
    _, theta, z, x = fitted(jalax.PGD(step_size=gamma), grouped)
    t = np.array([0.5, 0.1])
    for key in run_keys(jax.random.key(7)):
        mean_gradient = u.grad_theta(t, x).mean(1).sum(0)
        xi = noise_of(key, len(x), N)
        t, x = t - gamma * mean_gradient, x - gamma * u.grad_x(t, x) + np.sqrt(2 * gamma) * xi
    assert_same(theta, t)
    assert_same(z, x)


def test_pgd_with_an_optimiser():
    gamma, u, adam = 0.05, Potential(False), Adam(0.1)
    _, theta, z, x = fitted(jalax.PGD(step_size=gamma, optimizer=optax.adam(0.1)), False)
    t = np.array([0.5, 0.1])
    for key in run_keys(jax.random.key(7)):
        mean_gradient = u.grad_theta(t, x).mean(1).sum(0)
        x_next = x - gamma * u.grad_x(t, x) + np.sqrt(2 * gamma) * noise_of(key, 1, N)
        t, x = adam(t, mean_gradient), x_next
    assert_same(theta, t)
    assert_same(z, x)


@pytest.mark.parametrize("grouped", [False, True])
def test_ipla(grouped):
    gamma, u = 0.05, Potential(grouped)
    _, theta, z, x = fitted(jalax.IPLA(step_size=gamma), grouped)
    t = np.array([0.5, 0.1])
    for key in run_keys(jax.random.key(7)):
        key_move, key_theta = jax.random.split(key)
        g = u.grad_theta(t, x).mean(1).sum(0)
        t_next = t - gamma * g + np.sqrt(2 * gamma / N) * theta_noise(key_theta)
        x = x - gamma * u.grad_x(t, x) + np.sqrt(2 * gamma) * noise_of(key_move, len(x), N)
        t = t_next
    assert_same(theta, t)
    assert_same(z, x)


@pytest.mark.parametrize("num", [1, N])
def test_sfla(num):
    gamma, epsilon, beta, u = 0.01, 0.2, 100.0, Potential(False)
    algorithm = jalax.SFLA(step_size=gamma, epsilon=epsilon, beta=beta)
    _, theta, z, x = fitted(algorithm, False, num)
    t = np.array([0.5, 0.1])
    for key in run_keys(jax.random.key(7)):
        key_move, key_theta = jax.random.split(key)
        g = u.grad_theta(t, x).mean(1).sum(0)
        t_next = t - gamma * g + np.sqrt(2 * gamma / beta) * theta_noise(key_theta)
        xi = noise_of(key_move, 1, num)
        x = x - gamma / epsilon * u.grad_x(t, x) + np.sqrt(2 * gamma / epsilon) * xi
        t = t_next
    assert_same(theta, t)
    assert_same(z, x)


@pytest.mark.parametrize("grouped", [False, True])
def test_soul(grouped):
    h, rate, u = 0.05, 0.1, Potential(grouped)
    _, theta, z, x = fitted(jalax.SOUL(step_size=h, optimizer=optax.sgd(rate)), grouped)
    t = np.array([0.5, 0.1])
    for key in run_keys(jax.random.key(7)):
        chain = x[:, -1:]
        states = []
        for inner_key in jax.random.split(key, N):
            xi = noise_of(inner_key, len(x), 1)
            chain = chain - h * u.grad_x(t, chain) + np.sqrt(2 * h) * xi
            states.append(chain)
        x = np.concatenate(states, axis=1)
        t = t - rate * u.grad_theta(t, x).mean(1).sum(0)
    assert_same(theta, t)
    assert_same(z, x)
