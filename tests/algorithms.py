"""THE table: every algorithm, with options that suit the small models of the tests."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

import jalax
from momentum_pgd import MomentumPGD

ALGORITHMS = {
    "JALAEM": jalax.JALAEM(step_size=0.05, optimizer=optax.adam(0.05), resample_below=0.9),
    "JALAEM-dense": jalax.JALAEM(
        step_size=0.05,
        optimizer=jalax.Optax(optax.sgd, learning_rate=0.01),
        preconditioner=np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]]),
        resample=jalax.resampling.multinomial,
    ),
    "JALAEM-exact": jalax.JALAEM(
        step_size=0.4,
        optimizer=optax.adam(0.05),
        preconditioner={"a": np.array([0.4, 0.4]), "b": np.array(0.4)},
        kernel=jalax.GaussianExact(),
    ),
    "JALAEM-automatic": jalax.JALAEM(
        averaging=jalax.options.Averaging(tolerance=0.0)
    ),  # never done
    "PGD": jalax.PGD(step_size=0.05),
    "PGD-adam": jalax.PGD(step_size=0.05, optimizer=optax.adam(0.05)),
    "IPLA": jalax.IPLA(step_size=0.05),
    "SOUL": jalax.SOUL(step_size=0.05, optimizer=optax.sgd(0.05)),
    "SFLA": jalax.SFLA(step_size=0.01, epsilon=0.2, beta=100.0),
    "Scoring": jalax.Scoring(),
    "CoinEM": jalax.rivals.CoinEM(),
    "KIPLMC": jalax.rivals.KIPLMC(step_size=0.05),
    "SAEM": jalax.rivals.SAEM(num_inner=2, burn_in=5),
    "MonteCarloEM": jalax.rivals.MonteCarloEM(num_inner=2, num_newton=2),
    "MomentumPGD": MomentumPGD(step_size=0.05),  # outside the package
}
RIVALS = ("CoinEM", "KIPLMC", "SAEM", "MonteCarloEM")
# After the start no random number is drawn: another key changes nothing.
DETERMINISTIC = ("CoinEM",)


def log_joint(theta, x, data):
    """Three latents in two leaves, a theta of two leaves; nothing about it is Gaussian."""
    z = jnp.concatenate([x["a"], x["b"][None]])
    prior = -0.5 * jnp.sum((z - theta["m"]) ** 2) * jnp.exp(-theta["s"]) - 1.5 * theta["s"]
    return prior - jnp.sum(jnp.cosh(z - data["y"]) * data["scale"])


def model(grouped: bool = False) -> jalax.Model:
    latent = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    data = {"y": jnp.array([0.3, -0.2, 1.0]), "scale": jnp.array(0.7)}
    if not grouped:
        return jalax.Model(log_joint, latent, data, theta=theta())
    data = {
        "y": jnp.array([[0.3, -0.2, 1.0], [1.0, 0.1, -1.0]]),
        "scale": jnp.array([0.7, 1.1]),
    }
    return jalax.GroupedModel(log_joint, latent, data, theta=theta())


def theta():
    return {"m": jnp.array(0.5), "s": jnp.array(0.1)}


def particles(num: int, grouped: bool = False, seed: int = 0):
    rng = np.random.default_rng(seed)
    lead = (2, num) if grouped else (num,)
    return {"a": jnp.array(rng.normal(size=(*lead, 2))), "b": jnp.array(rng.normal(size=lead))}
