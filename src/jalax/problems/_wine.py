"""Bitterness of wine: ordered ratings with a random intercept a judge."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax
from jalax.models._softplus import softplus

from . import _data
from ._densities import standard_normal
from ._problem import Problem, Published, floats, reference


def _log_joint(theta: dict[str, Array], u: Float[Array, ""], data: Any) -> Array:
    gaps = jnp.exp(theta["log_gaps"])
    thresholds = theta["k1"] + jnp.concatenate([jnp.zeros(1, gaps.dtype), jnp.cumsum(gaps)])
    eta = jnp.matmul(data["X"], theta["beta"], precision="highest") + jnp.exp(theta["log_sd"]) * u
    top, rating = thresholds.size, data["rating"]  # from 0 to `top`
    # expit(b) - expit(a) = expit(b) expit(-a) (1 - e^(a - b)): no difference of nearly equal
    # numbers is left. The first and the last rating have one factor only.
    above = -softplus(eta - thresholds[jnp.minimum(rating, top - 1)])
    below = -softplus(thresholds[jnp.maximum(rating - 1, 0)] - eta)
    inner = jnp.log(-jnp.expm1(-gaps))[jnp.clip(rating - 1, 0, top - 2)]
    rows = jnp.where(rating < top, above, 0.0) + jnp.where(rating > 0, below, 0.0)
    rows = rows + jnp.where((rating > 0) & (rating < top), inner, 0.0)
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + standard_normal(u)


def wine() -> Problem:
    r"""Nine judges rate the bitterness of wine from 1 to 5,
    $P(\text{rating} \le j) = \text{expit}(k_j - x^\top \beta - s u)$ with x = (temp warm, contact
    yes); theta is {"k1", "log_gaps": (3,), "beta": (2,), "log_sd"}, the thresholds being k1 and
    steps of e^log_gaps.
    """
    table = _data.table("wine.csv.gz")
    features = np.column_stack([table["temp"] == "warm", table["contact"] == "yes"]).astype(float)
    groups = group_by({"X": features, "rating": table["rating"] - 1}, table["judge"])
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
