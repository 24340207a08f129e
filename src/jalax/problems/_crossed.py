"""Simulated answers with two crossed factors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jalax._model.model import Model
from jalax.models._checks import to_jax

from ._densities import logistic_effects
from ._problem import Problem, floats, reference


def simulate(a: int, b: int, rows: int) -> dict[str, np.ndarray]:
    """Answers 0 and 1 with effects of standard deviation 1 and 0.7; always the same ones."""
    generator = np.random.default_rng(0)
    level_a, level_b = generator.integers(0, a, rows), generator.integers(0, b, rows)
    effect_a, effect_b = generator.normal(size=a), 0.7 * generator.normal(size=b)
    share = 1 / (1 + np.exp(-(effect_a[level_a] + effect_b[level_b])))
    return {"y": (generator.random(rows) < share).astype(float), "a": level_a, "b": level_b}


def _crossed(a: int, b: int, rows: int) -> Problem:
    table = simulate(a, b, rows)
    levels = {factor: table[factor] for factor in ("a", "b")}
    data = to_jax({"X": np.ones((rows, 1)), "y": table["y"], "level": levels})
    theta = floats({"intercept": 0.0, "log_sd_a": 0.0, "log_sd_b": 0.0})
    name = f"crossed_{a + b}"
    return Problem(
        name=name,
        title=f"Simulated answers: two crossed factors of {a} and {b} levels",
        model=Model(
            _log_joint,
            {"a": jnp.zeros(a), "b": jnp.zeros(b)},
            data,
            theta=theta,
            structure=(a + table["b"], table["a"]),
        ),
        theta=theta,
        reference=reference(name),
        published=(),
        structure=f"{a} + {b} latents, crossed",
        data=f"simulated with NumPy's generator and seed 0, {rows:,} rows",
    )


def _log_joint(theta, u, data):
    return logistic_effects({**theta, "beta": theta["intercept"][None]}, u, data)


def crossed_120() -> Problem:
    """2,400 simulated answers 0 and 1 with crossed effects of 60 and 60 levels; theta is
    {"intercept", "log_sd_a", "log_sd_b"}, simulated at 0, log 1 and log 0.7.
    """
    return _crossed(60, 60, 2_400)


def crossed_1000() -> Problem:
    """12,000 simulated answers 0 and 1 with crossed effects of 700 and 300 levels; theta as in
    `crossed_120`.
    """
    return _crossed(700, 300, 12_000)
