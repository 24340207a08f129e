"""Three models whose latents hang together: crossed effects, a series and a field.

As in _models.py each is written twice: `log_joint` for jalax, and log p_theta(y) in NumPy and
64 bits, which shares no code with it. The spread of one factor, the correlation of the series and
the range of the field are known, so that no maximum lies at a bound.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from _models import Case
from jax.scipy.special import gammaln
from scipy import linalg, special

import jalax

LOG_2PI = np.log(2 * np.pi)


@dataclasses.dataclass(frozen=True)
class JointCase(Case):
    """A model of one latent vector, whose sizes are those of this file.

    Attributes:
        latents: how many.
        structure: pairs of latents that meet, as `jalax.Model` takes them; None: all.
    """

    latents: int = 0
    structure: Any = None

    def data(self, seed: int, groups: int = 0) -> np.ndarray:
        rng = np.random.default_rng([2025, zlib.crc32(self.name.encode()), seed])
        return self.draw(rng, self.truth).astype(np.float32)

    def model(self, y: np.ndarray) -> jalax.Model:
        x = jnp.zeros(self.latents)
        return jalax.Model(self.log_joint, x, jnp.asarray(y, float), structure=self.structure)


def normal(x, log_sd):
    """log N(x; 0, sd^2), summed."""
    return -0.5 * jnp.sum((x * jnp.exp(-log_sd)) ** 2) - x.size * (log_sd + LOG_2PI / 2)


# --- 60 + 3 crossed effects ---------------------------------------------------------------------

ROWS, COLUMNS, TRIALS, SD_COLUMN = 60, 3, 4, 0.7


def draw_crossed(rng, theta):
    a = np.exp(theta["log_sd"]) * rng.standard_normal((ROWS, 1))
    b = SD_COLUMN * rng.standard_normal(COLUMNS)
    return rng.binomial(TRIALS, special.expit(theta["mean"] + a + b))


def crossed(theta, x, y):
    """y_ij ~ Binomial(4, logit = mean + a_i + b_j), a_i ~ N(0, sd^2), b_j ~ N(0, 0.7^2)."""
    a, b = x[:ROWS], x[ROWS:]
    eta = theta["mean"] + a[:, None] + b
    prior = normal(a, theta["log_sd"]) + normal(b, jnp.log(SD_COLUMN))
    choices = gammaln(TRIALS + 1.0) - gammaln(y + 1.0) - gammaln(TRIALS - y + 1.0)
    return prior + jnp.sum(choices + y * eta - TRIALS * jnp.logaddexp(0.0, eta))


def crossed_marginal(theta, y):
    """A tensor rule over the three columns, a rule over each row given them."""
    middle, scale = _middle_of_columns(theta, y)
    z, w = np.polynomial.hermite_e.hermegauss(8)
    points = np.array(list(itertools.product(z, repeat=COLUMNS)))
    log_w = np.array(list(itertools.product(np.log(w), repeat=COLUMNS))).sum(axis=1)
    terms = _log_joint_of_columns(theta, y, middle + points @ scale.T)
    return (
        special.logsumexp(terms + log_w + 0.5 * np.sum(points**2, axis=1))
        + np.log(np.diag(scale)).sum()
    )


def _log_joint_of_columns(theta, y, b):
    """log p(b, y) for each b of (B, 3)."""
    level = COLUMNS * (np.log(SD_COLUMN) + LOG_2PI / 2)
    return _rows_given_columns(theta, y, b) - 0.5 * np.sum((b / SD_COLUMN) ** 2, axis=1) - level


def _rows_given_columns(theta, y, b):
    """sum_i log of the integral over a_i, for each b of (B, 3)."""
    t = np.linspace(-8, 8, 81)  # of a_i / sd: the trapezium rule, spectral for such integrands
    log_prior = -0.5 * t**2 - LOG_2PI / 2 + np.log(t[1] - t[0])
    eta = theta["mean"] + np.exp(theta["log_sd"]) * t[:, None] + b[:, None, :]  # (B, t, 3)
    log_no = -TRIALS * np.logaddexp(0.0, eta).sum(axis=-1)
    choices = np.log(special.binom(TRIALS, y)).sum()
    # Rows with the same counts have the same integral.
    kinds, number = np.unique(y, axis=0, return_counts=True)
    terms = np.einsum("btj,kj->kbt", eta, kinds) + log_no + log_prior
    return number @ special.logsumexp(terms, axis=-1) + choices


def _middle_of_columns(theta, y):
    """Where the columns' posterior is, and how wide: only where the rule has its points."""
    value = functools.partial(_log_joint_of_columns, theta, y)
    b, step, eye = np.zeros(COLUMNS), 1e-3, np.eye(COLUMNS)
    for _ in range(12):
        up, down, here = value(b + step * eye), value(b - step * eye), value(b[None])
        both = value((b + step * (eye[:, None] + eye)).reshape(-1, COLUMNS))
        hessian = (both.reshape(COLUMNS, COLUMNS) - up[:, None] - up + here) / step**2
        move = np.linalg.solve(hessian, (up - down) / (2 * step))
        b = b - move
        if np.abs(move).max() < 1e-4:
            break
    return b, np.linalg.cholesky(np.linalg.inv(-hessian))


# --- an AR(1) series of counts --------------------------------------------------------------------

LENGTH, PHI = 150, 0.9


def draw_series(rng, theta):
    noise = np.exp(theta["log_sd"]) * rng.standard_normal(LENGTH)
    x = np.empty(LENGTH)
    x[0] = noise[0] / np.sqrt(1 - PHI**2)
    for t in range(1, LENGTH):
        x[t] = PHI * x[t - 1] + noise[t]
    return rng.poisson(np.exp(theta["mean"] + x))


def series(theta, x, y):
    """y_t ~ Poisson(e^(mean + x_t)), x_t = 0.9 x_{t-1} + sd e_t, stationary."""
    first = normal(x[:1], theta["log_sd"] - 0.5 * jnp.log(1 - PHI**2))
    prior = first + normal(x[1:] - PHI * x[:-1], theta["log_sd"])
    eta = theta["mean"] + x
    return prior + jnp.sum(y * eta - jnp.exp(eta) - gammaln(y + 1.0))


def series_marginal(theta, y):
    """The forward recursion on 500 points."""
    sd = np.exp(theta["log_sd"])
    stationary = sd / np.sqrt(1 - PHI**2)
    grid = np.linspace(-7, 7, 500) * stationary
    width = grid[1] - grid[0]
    move = np.exp(-0.5 * ((grid[:, None] - PHI * grid) / sd) ** 2) * width / sd / np.sqrt(2 * np.pi)
    now = np.exp(-0.5 * (grid / stationary) ** 2) * width / stationary / np.sqrt(2 * np.pi)
    eta = theta["mean"] + grid
    log_like = y[:, None] * eta - np.exp(eta) - special.gammaln(y[:, None] + 1)
    total = 0.0
    for t, row in enumerate(log_like):
        now = (move @ now if t else now) * np.exp(row - row.max())
        level = now.sum()
        total += np.log(level) + row.max()
        now = now / level
    return total


# --- a field of counts ----------------------------------------------------------------------------

SIDE, RANGE = 7, 2.0
CELLS = SIDE * SIDE
_PLACE = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1).reshape(-1, 2)
_ROOT = np.linalg.cholesky(np.exp(-np.linalg.norm(_PLACE[:, None] - _PLACE, axis=-1) / RANGE))
_INVERSE = np.linalg.inv(_ROOT)
DRAWS, FREEDOM = 50_000, 200.0


def draw_field(rng, theta):
    x = np.exp(theta["log_sd"]) * _ROOT @ rng.standard_normal(CELLS)
    return rng.poisson(np.exp(theta["mean"] + x))


def field(theta, x, y):
    """y_i ~ Poisson(e^(mean + x_i)), x ~ N(0, sd^2 e^(-distance / 2)) over 7 x 7 cells."""
    white = jnp.matmul(jnp.asarray(_INVERSE, x.dtype), x, precision="highest")
    prior = normal(white, theta["log_sd"]) - np.log(np.diag(_ROOT)).sum()
    eta = theta["mean"] + x
    return prior + jnp.sum(y * eta - jnp.exp(eta) - gammaln(y + 1.0))


@functools.lru_cache(maxsize=1)
def _draws():
    """Student's t of 49 numbers in pairs, the same for every theta; and log of its density."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((DRAWS // 2, CELLS))
    half *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (DRAWS // 2, 1)))
    z = np.concatenate([half, -half])
    log_q = special.gammaln((FREEDOM + CELLS) / 2) - special.gammaln(FREEDOM / 2)
    log_q -= CELLS / 2 * np.log(FREEDOM * np.pi)
    return z, log_q - (FREEDOM + CELLS) / 2 * np.log1p(np.sum(z**2, axis=1) / FREEDOM)


def field_log_weights(theta, y):
    """Importance sampling from a Student-t, in the prior's white noise u.

    Not on the mode, but on the Gaussian nearest to the posterior, whose average gradient is zero
    (the mean of e^eta is known): this has two and a half times the effective draws.
    """
    root = np.exp(theta["log_sd"]) * _ROOT
    u, variance = np.zeros(CELLS), np.zeros(CELLS)
    for _ in range(200):
        rate = np.exp(theta["mean"] + root @ u + variance / 2)
        hessian = np.eye(CELLS) + root.T @ (rate[:, None] * root)
        move = np.linalg.solve(hessian, root.T @ (y - rate) - u)
        u = u + move / max(1.0, np.abs(move).max())
        factor = np.linalg.cholesky(hessian)
        variance = np.sum(linalg.solve_triangular(factor, root.T, lower=True) ** 2, axis=0)
        if np.abs(move).max() < 1e-10:
            break
    z, log_q = _draws()
    draws = u + linalg.solve_triangular(factor.T, z.T).T
    eta = theta["mean"] + draws @ root.T
    like = np.sum(y * eta - np.exp(eta), axis=1) - special.gammaln(y + 1).sum()
    prior = -0.5 * np.sum(draws**2, axis=1) - CELLS / 2 * LOG_2PI
    return prior + like - log_q - np.log(np.diag(factor)).sum()


def field_marginal(theta, y):
    return special.logsumexp(field_log_weights(theta, y)) - np.log(DRAWS)


def _meeting_of_crossed():
    pairs = [(i, ROWS + j) for i in range(ROWS) for j in range(COLUMNS)]
    pairs += [(ROWS + i, ROWS + j) for i in range(COLUMNS) for j in range(i)]
    rows, cols = np.array(pairs + [(i, i) for i in range(ROWS + COLUMNS)]).T
    return np.r_[rows, cols], np.r_[cols, rows]


def _band():
    t = np.arange(LENGTH)
    return np.r_[t, t[1:], t[:-1]], np.r_[t, t[:-1], t[1:]]


def _case(name, log_sd, mean, functions, latents, structure=None) -> JointCase:
    draw, log_joint, marginal = functions
    return JointCase(
        name,
        truth={"log_sd": log_sd, "mean": mean},
        start={"log_sd": 0.0, "mean": 0.0},
        spread="log_sd",
        observations=1,
        draw=draw,
        log_joint=log_joint,
        log_marginal=marginal,
        latents=latents,
        structure=structure,
    )


_CROSSED = (draw_crossed, crossed, crossed_marginal)
_SERIES = (draw_series, series, series_marginal)
_FIELD = (draw_field, field, field_marginal)
JOINT_CASES = {
    case.name: case
    for case in (
        _case("crossed", np.log(1.2), 0.5, _CROSSED, ROWS + COLUMNS, _meeting_of_crossed()),
        _case("series", np.log(0.35), 0.7, _SERIES, LENGTH, _band()),
        _case("field", np.log(0.8), 1.0, _FIELD, CELLS),
    )
}
