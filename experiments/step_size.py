"""PGD's error in theta grows with its step size; JALA-EM's does not.

Gaussian regression with few rows, where the bias of unadjusted Langevin in the posterior
variance of the weights carries over to the variance parameters. Both algorithms start at the
exact answer (ML-II by L-BFGS-B on the closed form) and are averaged over the tail of the run.

    python experiments/step_size.py docs/images/step_size.png
"""

from __future__ import annotations

import sys

import jax
import numpy as np
import optax
from scipy.optimize import minimize

import jalax

NUM_PARTICLES, NUM_STEPS = 300, 1500


def regression_data(seed: int, num_rows: int, num_columns: int = 8):
    """The paper's regression: w ~ N(0, I), X ~ N(0, I), noise of variance one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_columns))
    w = rng.normal(size=num_columns)
    return X, X @ w + rng.normal(size=num_rows)


def ml_ii(model) -> np.ndarray:
    """The exact maximiser of the marginal likelihood."""
    value = jax.jit(jax.value_and_grad(lambda t: -model.exact_log_evidence(t)))
    found = minimize(lambda t: [np.asarray(v) for v in value(t)], np.zeros(2), jac=True, tol=1e-12)
    return found.x


def exact_posterior_start(model) -> jalax.FromSampler:
    """Draws of the exact posterior, whose importance weights are all equal to Z_0."""

    def sample(key, theta, data):
        return model.replace(data=data).exact_posterior(theta).sample(key, 1)[0]

    def log_density(theta, x, data):
        return model.replace(data=data).exact_posterior(theta).log_density(x)

    return jalax.FromSampler(sample, log_density)


def errors(fractions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step sizes, and the largest error in theta of PGD and of JALA-EM at each.

    `fractions` are of 1 / (largest curvature of U in x); Langevin is stable below 2.
    """
    X, y = regression_data(3, 30)
    model = jalax.models.gaussian_regression(X, y)
    exact = ml_ii(model)
    curvature = np.linalg.eigvalsh(X.T @ X).max() * np.exp(-exact[0]) + np.exp(exact[1])
    sizes = np.array(fractions) / curvature
    common = {
        "key": jax.random.key(4),
        "axes": {"step_size": 0},
        "start": exact_posterior_start(model),
        "num_particles": NUM_PARTICLES,
        "num_steps": NUM_STEPS,
    }
    pgd = jalax.PGD(step_size=sizes)
    jala = jalax.JALAEM(step_size=sizes, optimizer=optax.sgd(0.02))

    def error(algorithm):
        fits = jalax.fit_many(model, exact, algorithm=algorithm, **common)
        return np.array([np.abs(fit.theta_average(last=0.8) - exact).max() for fit in fits])

    return sizes, error(pgd), error(jala)


def main(path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with jax.enable_x64(True):
        sizes, pgd, jala = errors((0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0))
    print("step size  PGD      JALA-EM")
    for row in zip(sizes, pgd, jala, strict=True):
        print("{:9.5f}  {:.5f}  {:.5f}".format(*row))
    figure, axis = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
    axis.loglog(sizes, pgd, "o-", label="PGD")
    axis.loglog(sizes, jala, "s-", label="JALA-EM")
    axis.set(xlabel="step size", ylabel=r"error in $\theta$ (largest)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "step_size.png")
