"""Counts on a 10 x 10 grid with a spatial Gaussian effect."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from jalax._model.model import Model
from jalax.models._checks import to_jax
from jalax.models._families import gammaln
from jalax.models._gaussian import LOG_2PI

from . import _data
from ._problem import Problem, Published, floats, reference


def _log_joint(theta: dict[str, Array], u: Float[Array, "100"], data: Any) -> Array:
    root = jnp.linalg.cholesky(jnp.exp(-jnp.exp(theta["log_a"]) * data["distance"]))
    white = solve_triangular(root, u, lower=True)
    prior = -0.5 * jnp.sum(white**2 + LOG_2PI) - jnp.sum(jnp.log(jnp.diag(root)))
    eta = jnp.matmul(data["X"], theta["b"], precision="highest") + jnp.exp(theta["log_sigma"]) * u
    return prior + jnp.sum(data["y"] * eta - jnp.exp(eta) - data["log_factorial"])


def spatial() -> Problem:
    r"""Counts at 10 x 10 places, $y \sim \text{Poisson}(e^{x^\top b + \sigma u})$ with
    $u \sim N(0, e^{-a \cdot \text{distance}})$; theta is {"b": (2,), "log_a", "log_sigma"}.
    """
    table = {n: c.astype(float) for n, c in _data.table("spatial_poisson.csv.gz").items()}
    place = np.column_stack([table["z1"], table["z2"]])
    log_factorial = gammaln(table["y"] + 1.0)
    data = to_jax(
        {
            "y": table["y"],
            "X": np.column_stack([table["x1"], table["x2"]]),
            "distance": np.linalg.norm(place[:, None] - place, axis=-1),
            "log_factorial": log_factorial,
        }
    )
    theta = floats({"b": np.zeros(2), "log_a": 0.0, "log_sigma": 0.0})
    return Problem(
        name="spatial",
        title="Counts on a grid: Poisson with a spatial Gaussian effect",
        model=Model(_log_joint, jnp.zeros(table["y"].size), data, theta=theta),
        theta=theta,
        reference=reference("spatial"),
        published=(
            Published(
                101.23687274 - float(log_factorial.sum()),
                "Laplace (TMB), with log y! added, which it leaves out",
                "TMB's example spatial, expected results",
            ),
        ),
        structure="100 latents, jointly Gaussian",
        data="example spatial of ADMB (BSD) and TMB (GPL-2), simulated there",
    )
