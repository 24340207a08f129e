"""InstEval: the exact Gaussian maximum likelihood, and Laplace's of the binary one. Not by jalax.

    python benchmarks/references/insteval.py

All random effects but the students' make a dense matrix of 1,142 rows; the students, of whom none
shares a row with another, are eliminated from it. Prints the two entries of
src/jalax/problems/data/references.json (a few minutes).
"""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.special

FILE = Path(__file__).parents[1] / "data" / "InstEval.csv.gz"
FACTORS = ("s", "d", "dept")
LOG_2PI = np.log(2 * np.pi)


def read() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """X, y and the level of each row in each factor."""
    with gzip.open(FILE, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    service = np.array([float(row["service"]) for row in rows])
    X = np.column_stack([np.ones_like(service), service])
    levels = [np.unique([r[name] for r in rows], return_inverse=True)[1] for name in FACTORS]
    return X, np.array([float(row["y"]) for row in rows]), levels


class Effects:
    """Z' W Z + I of standardised effects, with the first factor eliminated."""

    def __init__(self, levels: list[np.ndarray]):
        rows = np.arange(levels[0].size)
        matrices = [
            scipy.sparse.csr_matrix((np.ones(rows.size), (rows, level))) for level in levels
        ]
        self.first, self.others = matrices[0], scipy.sparse.hstack(matrices[1:], format="csr")
        self.sizes = [matrix.shape[1] for matrix in matrices]

    def scaled(self, sd: np.ndarray) -> tuple:
        others = np.repeat(sd[1:], self.sizes[1:])
        return self.first * sd[0], self.others @ scipy.sparse.diags(others)

    def factor(self, sd: np.ndarray, weights: np.ndarray) -> tuple:
        """What `solve` needs, and log |Z' W Z + I|."""
        a, b = self.scaled(sd)
        diagonal = 1 + np.asarray(a.multiply(a).T @ weights)
        cross = (a.T @ scipy.sparse.diags(weights) @ b).tocsr()
        inner = (b.T @ scipy.sparse.diags(weights) @ b).toarray() + np.eye(b.shape[1])
        inner -= (cross.T @ scipy.sparse.diags(1 / diagonal) @ cross).toarray()
        root = scipy.linalg.cholesky(inner, lower=True)
        log_det = np.log(diagonal).sum() + 2 * np.log(np.diag(root)).sum()
        return (a, b, diagonal, cross, root), log_det

    @staticmethod
    def solve(factors: tuple, g: np.ndarray) -> np.ndarray:
        _, _, diagonal, cross, root = factors
        first, rest = g[: diagonal.size], g[diagonal.size :]
        rest = scipy.linalg.cho_solve((root, True), rest - cross.T @ (first / diagonal))
        return np.concatenate([(first - cross @ rest) / diagonal, rest])


def gaussian(theta: np.ndarray, X: np.ndarray, y: np.ndarray, effects: Effects) -> float:
    """log p(y) at theta = beta, log sds, log sigma."""
    p = X.shape[1]
    sigma = np.exp(theta[-1])
    factors, log_det = effects.factor(np.exp(theta[p:-1]) / sigma, np.ones(y.size))
    residual = (y - X @ theta[:p]) / sigma
    g = np.concatenate([factors[0].T @ residual, factors[1].T @ residual])
    square = residual @ residual - g @ effects.solve(factors, g)
    return -0.5 * (y.size * (LOG_2PI + 2 * theta[-1]) + log_det + square)


class Laplace:
    """Laplace's approximation of answers 0 and 1; each call starts from the last mode."""

    def __init__(self, X: np.ndarray, y: np.ndarray, effects: Effects):
        self.X, self.y, self.effects = X, y, effects
        self.u = np.zeros(sum(effects.sizes))

    def __call__(self, theta: np.ndarray) -> float:
        p = self.X.shape[1]
        fixed, sd, n = self.X @ theta[:p], np.exp(theta[p:]), self.effects.sizes[0]
        a, b = self.effects.scaled(sd)

        def look(u: np.ndarray) -> tuple[np.ndarray, float]:
            eta = fixed + a @ u[:n] + b @ u[n:]
            return eta, self.y @ eta - np.logaddexp(0, eta).sum() - 0.5 * u @ u

        eta, value = look(self.u)
        for _ in range(50):
            share = scipy.special.expit(eta)
            residual = self.y - share
            g = np.concatenate([a.T @ residual, b.T @ residual]) - self.u
            factors, log_det = self.effects.factor(sd, share * (1 - share))
            step = self.effects.solve(factors, g)
            if np.abs(step).max() < 1e-7:
                break
            while look(self.u + step)[1] < value - 1e-8:  # log-concave: a short step climbs
                step = step / 2
            self.u = self.u + step
            eta, value = look(self.u)
        return float(value - 0.5 * log_det)


def maximise(function, start: np.ndarray, steps: np.ndarray, rows: int) -> tuple:
    """BFGS, then Newton steps on central differences; estimate, standard errors, value."""
    # Of the mean over rows: its first step has the length of the gradient.
    found = scipy.optimize.minimize(
        lambda theta: -function(theta) / rows,
        start,
        method="BFGS",
        options={"gtol": 2e-5, "eps": 1e-4},
    )
    theta = found.x
    print(f"BFGS: {found.message} {theta}, {-found.fun * rows:.4f}", flush=True)
    for _ in range(6):
        gradient, hessian = differences(function, theta, steps)
        step = -np.linalg.solve(hessian, gradient)
        theta = theta + step
        if np.sqrt(gradient @ step) < 1e-5:  # in standard errors
            break
    return theta, np.sqrt(np.diag(np.linalg.inv(-hessian))), function(theta)


def differences(function, theta: np.ndarray, steps: np.ndarray) -> tuple:
    """Gradient and Hessian; the former by shorter steps, which the third derivative spoils less."""
    short = np.diag(steps / 20)
    gradient = np.array([function(theta + row) - function(theta - row) for row in short])
    gradient = gradient / (steps / 10)
    move = np.diag(steps)
    here = function(theta)
    ahead = np.array([function(theta + row) for row in move])
    behind = np.array([function(theta - row) for row in move])
    hessian = np.diag((ahead - 2 * here + behind) / steps**2)
    for i in range(theta.size):
        for j in range(i):
            both = function(theta + move[i] + move[j]) - ahead[i] - ahead[j] + here
            back = function(theta - move[i] - move[j]) - behind[i] - behind[j] + here
            hessian[i, j] = hessian[j, i] = (both + back) / (2 * steps[i] * steps[j])
    return gradient, hessian


def entry(theta: np.ndarray, errors: np.ndarray, value: float, names: list[str], p: int) -> dict:
    def named(values):
        rest = dict(zip(names, values[p:].tolist(), strict=True))
        return {"beta": values[:p].tolist()} | rest

    return {
        "theta": named(theta),
        "standard_errors": named(errors),
        "log_evidence": float(value),
        "error": 0.0,
    }


def main() -> None:
    X, y, levels = read()
    effects = Effects(levels)
    names = [f"log_sd_{name}" for name in FACTORS]
    start = np.array([y.mean(), 0.0, -1.0, -1.0, -2.0, 0.0])
    steps = np.array([0.01, 0.01, 0.02, 0.02, 0.1, 0.005])
    found = maximise(lambda theta: gaussian(theta, X, y, effects), start, steps, y.size)
    report = {"insteval": entry(*found, [*names, "log_sigma"], 2)}
    print(json.dumps(report, indent=1), flush=True)
    laplace = Laplace(X, (y > 3).astype(float), effects)
    start = np.array([0.0, 0.0, -0.5, 0.0, -1.5])
    found = maximise(laplace, start, steps[:5] * 2, y.size)
    print(json.dumps({"insteval_binary": entry(*found, names, 2)}, indent=1))


if __name__ == "__main__":
    main()
