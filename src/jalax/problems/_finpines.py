"""Finnish pines: a log-Gaussian Cox process at a fixed theta."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.model import Model
from jalax.models._checks import to_jax

from . import _data
from ._densities import standard_normal
from ._problem import Problem, Published, reference

SIDE = 30
VARIANCE, RANGE, MEAN = 1.91, 33.0, np.log(126) - 0.955


def _log_joint(theta: Any, x: Float[Array, "900"], data: Any) -> Array:
    white = jnp.matmul(data["whitening"], x - data["mean"], precision="highest")
    prior = standard_normal(white) + data["log_det"]
    return prior + jnp.sum(data["y"] * x - jnp.exp(x) / x.size)


def finpines() -> Problem:
    r"""Pines in a Finnish forest, counted in 30 x 30 cells: the evidence of
    $x \sim N(\mu, 1.91\, e^{-33 d / 30})$, d in cells, $\mu = \log 126 - 0.955$, and the
    log-likelihood $\sum (y x - e^x / 900)$, without log y!. theta is empty.
    """
    table = _data.table("finpines_30x30.csv.gz")
    y = np.zeros((SIDE, SIDE))
    y[table["row"], table["col"]] = table["count"]
    place = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1)
    place = place.reshape(-1, 2)
    distance = np.linalg.norm(place[:, None] - place, axis=-1)
    root = np.linalg.cholesky(VARIANCE * np.exp(-RANGE / SIDE * distance))
    data = to_jax(
        {
            "y": y.ravel(),
            "whitening": np.linalg.inv(root),
            "log_det": np.float64(-np.log(np.diag(root)).sum()),
            "mean": np.float64(MEAN),
        }
    )
    latent = jnp.full(SIDE * SIDE, MEAN, dtype=float)
    return Problem(
        name="finpines",
        title="Finnish pines: log-Gaussian Cox process",
        model=Model(_log_joint, latent, data, theta={}),
        theta={},
        reference=reference("finpines"),
        published=(
            Published(
                497.6209654641296,
                "1,000 repetitions of sequential Monte Carlo",
                "Heng's controlledSMC, CoxProcess/TrueLogNormConst.mat",
            ),
        ),
        structure="900 latents, jointly Gaussian",
        data="Moller, Syversveen and Waagepetersen (1998), finpines; published data",
        fixed=True,
    )
