"""JALA-EM along a theta-path fixed in advance, and the t-statistics of Proposition 1."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

THETA_PATH = np.linspace(0.0, 1.0, 9)
Y = np.array([0.5, -1.0, 2.0])


def follow_path():
    """An "optimiser" that ignores the gradient and takes theta along THETA_PATH."""

    def update(gradient, k, theta):
        return jnp.asarray(THETA_PATH)[k + 1] - theta, k + 1

    return optax.GradientTransformation(lambda theta: jnp.zeros((), jnp.int32), update)


def t_statistics(log_ratio, means, exact):
    """|t| of the evidence and of each mean; `log_ratio` = log Z_r - exact, (R,)."""
    z = np.exp(np.asarray(log_ratio))
    errors = {"evidence": z - 1}
    errors |= {name: z * (np.asarray(f) - exact[name]) for name, f in means.items()}
    tiny = np.finfo(float).tiny  # a fault can leave no spread at all
    out = {name: abs(e.mean()) / (e.std() + tiny) * np.sqrt(len(z)) for name, e in errors.items()}
    return {"sd": float(np.std(log_ratio))} | {name: float(t) for name, t in out.items()}


def assert_exact(statistics):
    assert statistics.pop("sd") < 0.5, "too noisy to have power"
    for name, t in statistics.items():
        assert t < 4, (name, statistics)
