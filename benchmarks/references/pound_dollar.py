"""Stochastic volatility of the pound against the dollar: the exact filter on a grid.

x_1 ~ N(0, s^2 / (1 - phi^2)), x_t ~ N(phi x_(t-1), s^2), y_t ~ N(0, exp(mu + x_t)); theta is
atanh phi, log s, mu. The forward recursion is summed over an even grid of x: the integrands are
smooth and die away at both ends, so the trapezoidal rule converges faster than any power. The
gradient is by complex steps (exact to rounding), the Hessian by central differences of it.

    python benchmarks/references/pound_dollar.py
"""

from __future__ import annotations

import time

import numpy as np
from _files import arguments, read, record
from _newton import maximise, standard_errors
from _quadrature import LOG_2PI

START = np.array([2.1685792657849143, -1.7649475329797448, -0.9191260972585691])


def log_likelihood(theta: np.ndarray, y: np.ndarray, grid: np.ndarray) -> complex:
    """The log-likelihood by forward recursion; analytic in theta, so complex theta is allowed."""
    phi, sigma, mu = np.tanh(theta[0]), np.exp(theta[1]), theta[2]
    step = grid[1] - grid[0]
    forward = np.exp(-0.5 * ((grid[:, None] - phi * grid[None, :]) / sigma) ** 2)
    forward = forward * (step / (sigma * np.sqrt(2 * np.pi)))
    spread = sigma / np.sqrt(1 - phi**2)
    mass = step * np.exp(-0.5 * (grid / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
    precision, total = np.exp(-mu - grid), 0.0
    for t, value in enumerate(y):
        mass = forward @ mass if t else mass
        mass = mass * np.exp(-0.5 * (LOG_2PI + mu + grid + value**2 * precision))
        scale = mass.sum()
        total, mass = total + np.log(scale), mass / scale
    return total


def gradient(theta: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """By complex steps, which lose no digits."""
    steps = 1e-30j * np.eye(theta.size)
    return np.array([log_likelihood(theta + s, y, grid).imag / 1e-30 for s in steps])


def main() -> None:
    options, began = arguments(__doc__ or ""), time.time()
    y = read("pound_dollar", options.data)["y"].astype(float)
    grid = np.linspace(-6.0, 6.0, 161)
    theta, matrix = maximise(lambda t: gradient(t, y, grid), START, tolerance=1e-8)
    routes = {
        f"grid of {n} on +-{reach:g}": {
            "log_evidence": float(log_likelihood(theta, y, np.linspace(-reach, reach, n)).real)
        }
        for n, reach in ((81, 6.0), (121, 6.0), (161, 6.0), (321, 6.0), (481, 9.0))
    }
    routes["at the estimate the book gives"] = {
        "log_evidence": float(log_likelihood(START, y, grid).real)
    }
    values = [route["log_evidence"] for route in list(routes.values())[2:5]]
    names = ("atanh_phi", "log_sigma", "mu")
    finest = np.linspace(-6.0, 6.0, 321)
    off = gradient(theta, y, finest)
    entry = {
        "theta": dict(zip(names, theta, strict=True)),
        "standard_errors": dict(zip(names, standard_errors(matrix), strict=True)),
        "log_evidence": values[-1],
        "error": max(abs(np.ptp(values)), 1e-9),
        "theta_error": float(np.sqrt(off @ np.linalg.solve(matrix, off))),
        "method": "forward recursion on a grid, Newton's method on complex-step gradients",
        "routes": routes,
    }
    record("pound_dollar", entry, options, began)


if __name__ == "__main__":
    main()
