"""What golden tests share: U and its gradients by hand, random numbers, three steps of a fit."""

from __future__ import annotations

import jax
import numpy as np

import algorithms as table
import jalax
from jalax._particles import trees

N, STEPS = 6, 3
SCALE = {False: np.array([0.7]), True: np.array([0.7, 1.1])}
Y = {False: np.array([[0.3, -0.2, 1.0]]), True: np.array([[0.3, -0.2, 1.0], [1.0, 0.1, -1.0]])}


class Potential:
    """U(theta, x) = -log p_theta(x, y) of tests/algorithms.py, with z (G, N, 3), theta = (m, s)."""

    def __init__(self, grouped):
        self.y, self.scale = Y[grouped][:, None, :], SCALE[grouped][:, None]

    def value(self, theta, z):
        m, s = theta
        quadratic = 0.5 * ((z - m) ** 2).sum(-1) * np.exp(-s) + 1.5 * s
        return quadratic + self.scale * np.cosh(z - self.y).sum(-1)

    def grad_x(self, theta, z):
        m, s = theta
        return (z - m) * np.exp(-s) + self.scale[..., None] * np.sinh(z - self.y)

    def grad_theta(self, theta, z):
        m, s = theta
        d_m = -(z - m).sum(-1) * np.exp(-s)
        d_s = -0.5 * ((z - m) ** 2).sum(-1) * np.exp(-s) + 1.5
        return np.stack([d_m, d_s], axis=-1)


class Adam:
    def __init__(self, rate):
        self.rate, self.m, self.v, self.t = rate, np.zeros(2), np.zeros(2), 0

    def __call__(self, theta, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        m_hat, v_hat = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return theta - self.rate * m_hat / (np.sqrt(v_hat) + 1e-8)


def flat(particles):
    """Particles (G, N) in a dict, as (G, N, 3) in the order of the latent."""
    return np.concatenate([particles["a"], particles["b"][..., None]], axis=-1)


normal_like = jax.jit(trees.normal_like)  # one program, where plain calls compile forty


def noise_of(key, num_groups, num):
    like = {"a": jax.numpy.zeros((num_groups, num, 2)), "b": jax.numpy.zeros((num_groups, num))}
    return flat(jax.tree.map(np.asarray, normal_like(key, like)))


def theta_noise(key):
    like = {"m": jax.numpy.zeros(()), "s": jax.numpy.zeros(())}
    xi = normal_like(key, like)
    return np.array([xi["m"], xi["s"]])


def run_keys(key):
    key_run = jax.random.split(key)[1]
    return [jax.random.fold_in(key_run, k) for k in range(STEPS)]


def fitted(algorithm, grouped, num=N):
    """theta, particles (G, N, 3), log-weights (G, N) after three steps of jalax."""
    start = table.particles(num, grouped)
    result = jalax.fit(
        table.model(grouped),
        key=jax.random.key(7),
        algorithm=algorithm,
        start=jalax.Given(start, log_evidence=-2.0),
        num_steps=STEPS,
    )
    state = result.state
    lead = start if grouped else jax.tree.map(lambda leaf: leaf[None], start)
    return result, np.array([state.theta["m"], state.theta["s"]]), flat(state.particles), flat(lead)


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-10)
