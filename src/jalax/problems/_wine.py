"""Bitterness of wine: ordered ratings with a random intercept a judge."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.families._softplus import softplus
from jalax.models._checks import to_jax

from . import _data
from ._densities import standard_normal
from ._problem import Problem, Published, floats, reference


def _log_joint(theta: dict[str, Array], u: Float[Array, ""], data: Any) -> Array:
    gaps = jnp.exp(theta["log_gaps"])
    up_to = jnp.tri(gaps.size + 1, gaps.size, -1, gaps.dtype)
    thresholds = theta["k1"] + _product(up_to, gaps)
    eta = _product(data["X"], theta["beta"]) + jnp.exp(theta["log_sd"]) * u
    # expit(b) - expit(a) = expit(b) expit(-a) (1 - e^(a - b)): no difference of nearly equal
    # numbers is left. The first and the last rating have one factor only.
    above = softplus(eta - _product(data["above"], thresholds)) * jnp.sum(data["above"], axis=1)
    below = softplus(_product(data["below"], thresholds) - eta) * jnp.sum(data["below"], axis=1)
    inner = _product(data["inner"], jnp.log(-jnp.expm1(-gaps)))
    return jnp.sum(inner - above - below) + standard_normal(u)


def _product(matrix: Float[Array, "rows k"], vector: Float[Array, " k"]) -> Float[Array, " rows"]:
    return jnp.matmul(matrix, vector, precision="highest")


def _thresholds_of(rating: np.ndarray) -> dict[str, np.ndarray]:
    """Which threshold is above a rating from 0 to 4, which below, and which gap between them.

    Ones in rows of zeros: XLA has less to do with them than with indices.
    """
    number = np.arange(4)
    return {
        "above": (rating[:, None] == number).astype(float),
        "below": (rating[:, None] == number + 1).astype(float),
        "inner": (rating[:, None] == number[1:]).astype(float),
    }


def wine() -> Problem:
    r"""Nine judges rate the bitterness of wine from 1 to 5,
    $P(\text{rating} \le j) = \text{expit}(k_j - x^\top \beta - s u)$ with x = (temp warm, contact
    yes); theta is {"k1", "log_gaps": (3,), "beta": (2,), "log_sd"}, the thresholds being k1 and
    steps of e^log_gaps.
    """
    table = _data.table("wine.csv.gz")
    features = np.column_stack([table["temp"] == "warm", table["contact"] == "yes"]).astype(float)
    groups = group_by({"X": features, **_thresholds_of(table["rating"] - 1)}, table["judge"])
    theta = floats({"k1": -1.5, "log_gaps": np.zeros(3), "beta": np.zeros(2), "log_sd": 0.0})
    call = "factor(rating, ordered = TRUE) ~ temp + contact"
    return Problem(
        name="wine",
        title="Bitterness of wine: ordered ratings with a random intercept a judge",
        model=GroupedModel(_log_joint, jnp.zeros(()), to_jax(groups.data), theta=theta),
        theta=theta,
        reference=reference("wine"),
        published=(
            Published(
                -163.0649 / 2, "adaptive Gauss-Hermite, 10 points", "ordinal, clmm2_tutorial.pdf"
            ),
        ),
        structure="9 groups of 1 latent",
        data="Randall (1989), wine in the R package ordinal (GPL-2 or later)",
        peers={
            "ordinal": f"clmm({call} + (1 | judge), data)",
            "ordinal, nAGQ = 10": f"clmm({call} + (1 | judge), data, nAGQ = 10)",
        },
    )
