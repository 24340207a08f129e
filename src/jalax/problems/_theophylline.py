"""Theophylline: a compartment model of twelve subjects."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import normal, standard_normal
from ._problem import Problem, Published, floats, reference


def _absorbed(ka: Array, k: Array, t: Array) -> Array:
    """(e^(-k t) - e^(-ka t)) / (ka - k), which is symmetric and has a limit at ka = k."""
    # Not by minimum and abs: at ka = k their slopes do not belong to the same side.
    slow = jnp.where(ka < k, ka, k)
    gap = jnp.where(ka < k, k - ka, ka - k)
    x = gap * t
    small = x < 1e-6
    safe = jnp.where(small, 1.0, x)
    share = jnp.where(small, 1.0 - 0.5 * x, -jnp.expm1(-safe) / safe)
    return jnp.exp(-slow * t) * t * share


def _log_joint(theta: dict[str, Array], u: Float[Array, "3"], data: Any) -> Array:
    effect = jnp.exp(theta["log_omega"]) * u
    ka = jnp.exp(theta["log_ka"] + effect[0])
    volume = jnp.exp(theta["log_V"] + effect[1])
    log_clearance = theta["log_CL"] + theta["beta_weight"] * data["weight"] + effect[2]
    k = jnp.exp(log_clearance) / volume
    mean = data["dose"] * ka / volume * _absorbed(ka, k, data["time"])
    rows = normal(data["y"], mean, theta["log_a"])
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + standard_normal(u)


def theophylline() -> Problem:
    r"""Concentrations of theophylline in twelve subjects after one dose D, one compartment:
    $y = \frac{D k_a}{V (k_a - k)} (e^{-k t} - e^{-k_a t}) + a e$ with k = CL/V and log-normal
    ka, V and CL, the last with a coefficient of the weight; theta is {"log_ka", "log_V", "log_CL",
    "beta_weight", "log_a", "log_omega": (3,)}, the latents are standardised effects on the
    logarithms of ka, V and CL. There are other maxima, where ka and k change places.
    """
    table = {n: c.astype(float) for n, c in _data.table("theophylline.csv.gz").items()}
    columns = {"y": table["Concentration"], "time": table["Time"]}
    columns |= {"dose": table["Dose"], "weight": table["Weight"]}
    groups = group_by(columns, table["Id"])
    # The start of saemix's user guide: ka 1, V 20, CL 0.5, and ones for the deviations.
    start = {"log_ka": 0.0, "log_V": np.log(20), "log_CL": np.log(0.5), "beta_weight": 0.0}
    theta = floats({**start, "log_a": 0.0, "log_omega": np.zeros(3)})
    return Problem(
        name="theophylline",
        title="Theophylline: one compartment with log-normal coefficients of each subject",
        model=GroupedModel(_log_joint, jnp.zeros(3), to_jax(groups.data), theta=theta),
        theta=theta,
        reference=reference("theophylline"),
        published=(
            Published(-172.4448, "importance sampling (saemix)", "user guide of saemix 3, p. 64"),
        ),
        structure="12 groups of 3 latents",
        data="Boeckmann, Sheiner and Beal (1994), theo in the R package saemix (GPL-2 or later)",
    )
