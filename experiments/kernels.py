"""The two Langevin kernels beside each other: how far replicate legs scatter, at each step size.

Crossed effects of 60 and 60 levels on 2,400 binary answers, at the theta they were simulated with.
A leg takes 64 particles from the Gaussian at the posterior's mode to the posterior, through K
temperatures at equal distances, with one JALA move from each to the next and the Gaussian's
covariance as P. Both kernels have exact weights: what differs is how uneven these are.

    python experiments/kernels.py docs/images/kernels.png
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jalax
from jalax._model.checks import prepare_model
from jalax._reference import tempering

NUM_PARTICLES, NUM_LEGS = 64, 24
NUM_TEMPERATURES = (16, 64)
STEP_SIZES = (0.03, 0.06, 0.125, 0.25, 0.5, 1.0)
KERNELS = {"Unadjusted": jalax.Unadjusted(), "GaussianExact": jalax.GaussianExact()}


def plan_of(num_temperatures: int, step_size) -> tempering.Plan:
    """Temperatures and step sizes as given: there is no pilot."""
    beta = jnp.linspace(0.0, 1.0, num_temperatures + 1)
    h = jnp.broadcast_to(step_size, (num_temperatures + 1, 1))
    num = jnp.asarray(num_temperatures + 1)
    return tempering.Plan(beta, h, num, jnp.asarray(True), jnp.ones(()), None, jnp.zeros((1, 1)))


@partial(jax.jit, static_argnames="num_temperatures")
def log_evidence(keys, model, theta, prepared, step_size, kernel, num_temperatures: int):
    """Of each leg."""
    plan, moves = plan_of(num_temperatures, step_size), jalax.references.JALA(kernel=kernel)

    def leg(key):
        return tempering.run_leg(
            key, model, theta, prepared, plan, num_particles=NUM_PARTICLES, moves=moves
        ).log_evidence[0]

    return jax.lax.map(leg, keys)


def legs() -> dict[tuple[str, int], np.ndarray]:
    """log Z of every leg, (step sizes, legs), by kernel and number of temperatures."""
    model = prepare_model(jalax.problems.crossed_120().model)
    theta = {"intercept": 0.0, "log_sd_a": 0.0, "log_sd_b": float(np.log(0.7))}
    theta = jax.tree.map(jnp.asarray, theta)
    key_mode, key_legs = jax.random.split(jax.random.key(0))
    reference = jalax.references.AtMode(degrees_of_freedom=jnp.inf)
    prepared = jax.jit(reference.prepare)(key_mode, model, theta)
    keys = jax.random.split(key_legs, NUM_LEGS)
    return {
        (name, num): np.array(
            [
                log_evidence(keys, model, theta, prepared, jnp.asarray(h), kernel, num)
                for h in STEP_SIZES
            ]
        )
        for name, kernel in KERNELS.items()
        for num in NUM_TEMPERATURES
    }


def draw(path: str, found: dict[tuple[str, int], np.ndarray]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.4), layout="constrained", sharey=True)
    for axis, num in zip(axes, NUM_TEMPERATURES, strict=True):
        for name, marker in zip(KERNELS, "os", strict=True):
            sd = found[name, num].std(axis=1, ddof=1)
            error = sd / np.sqrt(2 * (NUM_LEGS - 1))
            axis.errorbar(STEP_SIZES, sd, error, fmt=f"{marker}-", label=name, capsize=2)
        axis.set(xscale="log", yscale="log", xlabel="step size h", title=f"{num} temperatures")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(r"sd of $\log \hat Z$ over legs")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(path: str) -> None:
    found = legs()
    print("temperatures     h   kernel         sd of log Z   log of the mean of Z")
    for (name, num), values in found.items():
        for h, row in zip(STEP_SIZES, values, strict=True):
            mean = np.log(np.mean(np.exp(row - row.max()))) + row.max()
            print(f"{num:12d} {h:5.3f}   {name:13s} {row.std(ddof=1):12.3f} {mean:22.3f}")
    draw(path, found)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "kernels.png")
