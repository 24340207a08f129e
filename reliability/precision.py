"""float32 against float64: the same path of JALA-EM, with the same noise and the same ancestors.

    python reliability/precision.py            # writes precision.md and precision.json

The float64 run draws its noise and ancestors and keeps them. The float32 run gets the noise cast
down and the ancestors replayed, so that all that differs is rounding. A log-weight is a sum of
differences of log p, which grows with the data: rows with a larger |log p| add a constant to
log p (its rounding is then what a sum of many terms has at least), or repeat the data.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import jax
import jax.numpy as jnp
import numpy as np
from _common import machine, write

import jalax
from jalax._model import checks
from jalax._model.types import Cloud
from jalax._particles import resampling, trees, weight_math
from jalax._runtime.options import canonical

STEPS = 1000
ALLOWED = 0.02  # of log Z, by the issue that asked for this


def wisconsin():
    data = jalax.datasets.wisconsin()
    return jalax.models.logistic_regression(data.features, data.labels), 0.0, 0.01


def cbpp():
    data = jalax.datasets.cbpp()
    model = jalax.models.random_intercept(
        data.incidence, data.covariates, data.herd, family=jalax.models.Binomial(data.size)
    )
    return model, {"beta": np.array([-1.0, -1.0, -1.0, -1.0]), "log_sd": -0.5}, 0.05


def lifted(model: Any, height: float) -> Any:
    """The same model with a constant in log p."""
    inner = model.log_joint

    def log_joint(theta, x, data):
        value = inner(theta, x, data[0])
        return value + data[1].astype(value.dtype)

    return jalax.Model(log_joint, model.latent, (model.data, np.float64(height)))


def repeated(times: int):
    """Wisconsin `times` over: |log p| grows, and with it the sum that float32 has to take."""
    data = jalax.datasets.wisconsin()
    features = np.tile(np.asarray(data.features), (times, 1))
    labels = np.tile(np.asarray(data.labels), times)
    return jalax.models.logistic_regression(features, labels), 0.0, 0.01 / times


_normalised = jax.jit(weight_math.normalise)


class Recorded:
    """Noise, ancestors, and which groups resample at each step: made once, in float64."""

    def __init__(self, seed: int, shapes: Any):
        self.random = np.random.default_rng(seed)
        self.shapes = shapes
        self.noise: list[Any] = []
        self.ancestors: list[np.ndarray] = []
        self.low: list[np.ndarray] = []

    def draw(self) -> Any:
        self.noise.append(jax.tree.map(lambda s: self.random.normal(size=s.shape), self.shapes))
        return self.noise[-1]

    def decide(self, log_weights: jax.Array, below: float) -> tuple[np.ndarray, np.ndarray]:
        """Systematic resampling of the groups whose ESS is low."""
        weights = np.asarray(_normalised(log_weights))
        groups, num = weights.shape
        low = 1 / np.sum(weights**2, axis=1) < below * num
        points = (np.arange(num) + self.random.uniform(size=(groups, 1))) / num
        found = [np.searchsorted(np.cumsum(w), p) for w, p in zip(weights, points, strict=True)]
        self.low.append(low)
        self.ancestors.append(np.minimum(found, num - 1))
        return self.low[-1], self.ancestors[-1]


def run(
    model: Any, theta: Any, step_size: float, path: Recorded, particles: Any, dtype, num_steps: int
) -> np.ndarray:
    """log Z of the path after every step; in float64 the path is drawn on the way."""
    model = checks.prepare_model(model)
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), theta)
    algorithm: Any = canonical(jalax.JALAEM(step_size=step_size)).filled(theta)
    particles = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), particles)
    groups, num = jax.tree.leaves(particles)[0].shape[:2]
    cloud = Cloud(particles, jnp.zeros((groups, num), dtype), None)
    state = jax.jit(algorithm.init)(jax.random.key(0), model, theta, cloud)

    # Its runs take longer than its compilation, whatever the flags of this process are.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 2})
    def step(state, noise, ancestors, low):
        # Any ESS is below 2 N, and none below 0: the groups to resample are told.
        told = dataclasses.replace(algorithm, resample_below=jnp.where(low, 2.0, 0.0))
        with (
            mock.patch.object(trees, "normal_like", return_value=noise),
            mock.patch.object(resampling, "ancestors_of_groups", return_value=ancestors),
        ):
            return told.step(jax.random.key(0), model, state)

    values = []
    recorded = len(path.noise) > 0
    nobody = np.zeros(groups, bool), np.zeros((groups, num), int)
    for k in range(num_steps):
        noise = path.noise[k] if recorded else path.draw()
        noise = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), noise)
        if recorded:
            low, ancestors = path.low[k], path.ancestors[k]
        else:
            low, ancestors = path.decide(step(state, noise, *nobody[::-1])[0].log_weights, 0.5)
        state, info = step(state, noise, ancestors, low)
        values.append(float(info.log_evidence))
    return np.array(values)


def compare(
    name: str, make: Any, num_particles: int, height: float = 0.0, num_steps: int = STEPS
) -> dict[str, Any]:
    """Both runs from the same particles: draws around the mode at theta_0."""
    with jax.enable_x64(True):
        model, theta, step_size = make()
        if height:
            model = lifted(model, height)
        draw = jax.jit(jalax.Laplace(), static_argnums=3)
        start = draw(
            jax.random.key(1),
            checks.prepare_model(model),
            jax.tree.map(jnp.asarray, theta),
            num_particles,
        )
        particles = jax.tree.map(np.asarray, start.particles)
        path = Recorded(7, particles)
        double = run(model, theta, step_size, path, particles, jnp.float64, num_steps)
        size = float(jnp.max(jnp.abs(jax.jit(_log_joint)(model, theta, start.particles))))
    with jax.enable_x64(False):
        model, theta, step_size = make()
        if height:
            model = lifted(model, height)
        single = run(model, theta, step_size, path, particles, jnp.float32, num_steps)
    row = {
        "model": name,
        "size of log p": f"{size:.3g}",
        "N": num_particles,
        "resamplings": int(np.sum(path.low)),
        "log Z/Z0, float64": f"{double[-1]:.4f}",
        "float32 less float64": float(f"{single[-1] - double[-1]:.2g}"),
        "largest on the way": float(f"{np.max(np.abs(single - double)):.2g}"),
    }
    print(row, flush=True)
    return row


def _log_joint(model, theta, particles):
    from jalax._model import evaluation

    return evaluation.log_joint(checks.prepare_model(model), theta, particles)


def main() -> None:
    rows = [
        compare("Wisconsin", wisconsin, 100),
        compare("cbpp, grouped", cbpp, 100),
        *(compare(f"Wisconsin + {h:.0e}", wisconsin, 100, h) for h in (1e3, 1e4, 1e5, 1e6)),
        *(compare(f"Wisconsin x {t}", lambda t=t: repeated(t), 20) for t in (10, 100)),
    ]
    write("precision", [rows], Path(__file__).parent, machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
