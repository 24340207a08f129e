"""Integrals over the latents of a problem: quadrature, importance sampling, recursions.

The modes come from derivatives of the model's own log_joint; the sums are NumPy's, and none of
jalax's estimators takes part.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jax.flatten_util import ravel_pytree
from scipy.special import gammaln, logsumexp

LOG_2PI = np.log(2 * np.pi)


class Flat(NamedTuple):
    """A model with flat latents; a joint one is a single group."""

    density: object  # (theta, x, data of one group)
    data: object  # leading with the groups
    start: np.ndarray  # (G, d)

    @property
    def dimension(self) -> int:
        return self.start.shape[1]


def flat(model) -> Flat:
    zero, unflatten = ravel_pytree(model.latent)
    data = model.data if model.grouped else jax.tree.map(lambda leaf: leaf[None], model.data)

    def density(theta, x, rows):
        return model.log_joint(theta, unflatten(x), rows)

    return Flat(density, data, np.tile(np.asarray(zero), (model.num_groups, 1)))


class Modes(NamedTuple):
    at: np.ndarray  # (G, d)
    root: np.ndarray  # (G, d, d): root root' is the inverse of the curvature
    value: np.ndarray  # (G,)

    @property
    def log_det(self) -> np.ndarray:
        return np.log(np.abs(np.linalg.det(self.root)))


def modes(model: Flat, theta) -> Modes:
    """Newton's method in every group; a step that does not climb is halved."""

    def look(x, rows):
        def density(x):
            return model.density(theta, x, rows)

        return density(x), jax.grad(density)(x), jax.hessian(density)(x)

    look = jax.jit(jax.vmap(look))
    x, scale = model.start, np.ones(len(model.start))
    value, slope, curvature = (np.asarray(part) for part in look(x, model.data))
    for _ in range(100):
        sizes, axes = np.linalg.eigh(-curvature)
        along = np.einsum("gij,gi->gj", axes, slope) / np.maximum(np.abs(sizes), 1e-6)
        step = np.einsum("gij,gj->gi", axes, along)
        if np.abs(step).max() < 1e-9:
            break
        new = tuple(np.asarray(p) for p in look(x + scale[:, None] * step, model.data))
        better = new[0] >= value - 1e-12 * np.abs(value)
        x = np.where(better[:, None], x + scale[:, None] * step, x)
        value = np.where(better, new[0], value)
        slope = np.where(better[:, None], new[1], slope)
        curvature = np.where(better[:, None, None], new[2], curvature)
        scale = np.where(better, np.minimum(1.0, 2 * scale), scale / 2)
    root = np.linalg.inv(np.swapaxes(np.linalg.cholesky(-curvature), 1, 2))
    return Modes(x, root, value)


def laplace(model: Flat, theta) -> float:
    found = modes(model, theta)
    return float(np.sum(found.value + found.log_det) + found.at.size * LOG_2PI / 2)


class Quadrature(NamedTuple):
    """log p at any theta near the one whose modes the points were laid out for."""

    model: Flat
    points: np.ndarray  # (G, K, d)
    log_weights: np.ndarray  # (G, K)

    def __call__(self, theta):
        """In JAX, for its derivatives in theta."""

        def group(points, log_weights, rows):
            values = jax.vmap(lambda x: self.model.density(theta, x, rows))(points)
            return jax.nn.logsumexp(values + log_weights)

        return jnp.sum(jax.vmap(group)(self.points, self.log_weights, self.model.data))


def adaptive(model: Flat, theta, points: int) -> Quadrature:
    """Products of Gauss-Hermite rules, centred and scaled at each group's mode."""
    t, w = np.polynomial.hermite.hermgauss(points)
    grids = np.meshgrid(*[t] * model.dimension, indexing="ij")
    nodes = np.stack([grid.ravel() for grid in grids], axis=-1)
    weights = np.meshgrid(*[np.log(w) + t**2] * model.dimension, indexing="ij")
    logs = sum(grid.ravel() for grid in weights) + model.dimension / 2 * np.log(2)
    found = modes(model, theta)
    x = found.at[:, None] + np.sqrt(2) * np.einsum("gij,kj->gki", found.root, nodes)
    return Quadrature(model, x, logs + found.log_det[:, None])


def importance(model: Flat, theta, draws: int, dof: float = np.inf, seed: int = 0):
    """log p and its error from a Gaussian, or a Student-t, at each group's mode."""
    rng, found, d = np.random.default_rng(seed), modes(model, theta), model.dimension
    z = rng.normal(size=(len(found.at), draws, d))
    if np.isfinite(dof):
        z = z / np.sqrt(rng.chisquare(dof, size=(*z.shape[:2], 1)) / dof)
    x = found.at[:, None] + np.einsum("gij,gkj->gki", found.root, z)

    def group(part):
        return jax.vmap(lambda one: model.density(theta, one, part[1]))(part[0])

    evaluate = jax.jit(lambda x, data: jax.lax.map(group, (x, data)))  # a group at a time: memory
    log_w = np.asarray(evaluate(x, model.data)) - _log_proposal(z, dof) + found.log_det[:, None]
    total = logsumexp(log_w, axis=1) - np.log(draws)
    relative = np.exp(log_w - total[:, None])
    variance = relative.var(axis=1, ddof=1) / draws
    # The logarithm of a mean is low by half of its variance.
    return float(np.sum(total + variance / 2)), float(np.sqrt(variance.sum()))


def _log_proposal(z: np.ndarray, dof: float) -> np.ndarray:
    d, square = z.shape[-1], (z**2).sum(axis=-1)
    if not np.isfinite(dof):
        return -0.5 * (square + d * LOG_2PI)
    constant = gammaln((dof + d) / 2) - gammaln(dof / 2) - d / 2 * np.log(dof * np.pi)
    return constant - (dof + d) / 2 * np.log1p(square / dof)


# --- problems whose structure has an integral of its own -----------------------------------------


def volatility(y: np.ndarray, phi: float, sigma: float, mu: float, size: int = 300) -> float:
    """log p(y) of the stochastic volatility model, by a forward recursion on a grid."""
    spread = sigma / np.sqrt(1 - phi**2)
    x = np.linspace(-8 * spread, 8 * spread, size)
    step = x[1] - x[0]

    def normal(value, mean, sd):
        return np.exp(-0.5 * ((value - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))

    transition = normal(x[:, None], phi * x[None, :], sigma) * step
    density, total = normal(x, 0.0, spread), 0.0
    for t, value in enumerate(y):
        density = transition @ density if t else density
        density = density * normal(value, 0.0, np.exp((mu + x) / 2))
        mass = density.sum() * step
        density, total = density / mass, total + np.log(mass)
    return float(total)


def communities(table: dict[str, np.ndarray], theta, X: np.ndarray, points: int = 60) -> float:
    """log p(y) of children of mothers in communities: a rule over mothers within one over them."""
    t, w = np.polynomial.hermite_e.hermegauss(points)
    log_w = np.log(w) - LOG_2PI / 2
    y, fixed = table["y"], X @ theta["beta"]
    total = 0.0
    sd_mom, sd_comm = np.exp(theta["log_sd_mom"]), np.exp(theta["log_sd_comm"])
    for community in np.unique(table["comm"]):
        given = np.zeros(points)  # of each value of the community's effect
        for mother in np.unique(table["mom"][table["comm"] == community]):
            rows = table["mom"] == mother
            eta = fixed[rows][:, None, None] + sd_comm * t[:, None] + sd_mom * t
            answers = y[rows][:, None, None] * eta - np.logaddexp(0, eta)
            given += logsumexp(answers.sum(axis=0) + log_w, axis=1)
        total += logsumexp(given + log_w)
    return float(total)


class LinearMixed:
    """Henderson's equations of a Gaussian model with crossed effects, in SciPy's sparse algebra."""

    def __init__(self, X: np.ndarray, y: np.ndarray, levels: list[np.ndarray]):
        rows, one = np.arange(y.size), np.ones(y.size)
        self.X, self.y = X, y
        self.Z = [scipy.sparse.csc_matrix((one, (rows, level))) for level in levels]

    def profiled(self, sds: list[float], sigma: float) -> tuple[float, np.ndarray, float]:
        """The log-likelihood, beta by generalised least squares, and the best sigma.

        The scale of all of them together is profiled out: what matters is sds / sigma.
        """
        z = [sd / sigma * matrix for sd, matrix in zip(sds, self.Z, strict=True)]
        Z = scipy.sparse.hstack(z, format="csc")
        factor = scipy.sparse.linalg.splu(
            (Z.T @ Z + scipy.sparse.identity(Z.shape[1])).tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        log_det = np.log(np.abs(factor.U.diagonal())).sum()

        def project(v):
            return v - Z @ factor.solve(Z.T @ v)

        VX = np.column_stack([project(column) for column in self.X.T])
        beta = np.linalg.solve(self.X.T @ VX, VX.T @ self.y)
        residual = self.y - self.X @ beta
        n = self.y.size
        variance = residual @ project(residual) / n
        value = -0.5 * (n * (LOG_2PI + np.log(variance) + 1) + log_det)
        return float(value), beta, float(np.sqrt(variance))
