"""Choice of an electricity supplier: a panel mixed logit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import standard_normal
from ._problem import Problem, Published, floats, reference

ATTRIBUTES = ("pf", "cl", "loc", "wk", "tod", "seas")
ALTERNATIVES = 4


def _log_joint(theta: dict[str, Array], u: Float[Array, "6"], data: Any) -> Array:
    coefficients = theta["mu"] + jnp.exp(theta["log_sd"]) * u
    # Utilities less that of the chosen supplier, which is 0. One matrix, with the alternatives
    # first: XLA is half as fast with a product of three axes, or a sum along the last, short one.
    offers = jnp.moveaxis(data["behind"], 1, 0).reshape(-1, len(ATTRIBUTES))
    behind = jnp.matmul(offers, coefficients, precision="highest")
    rows = -jax.nn.logsumexp(behind.reshape(ALTERNATIVES, -1), axis=0)
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + standard_normal(u)


def electricity() -> Problem:
    """4,308 choices of 361 customers among four suppliers of electricity: a logit in six
    attributes, whose coefficients are independent normal over customers; theta is
    {"mu": (6,), "log_sd": (6,)}, in the order pf, cl, loc, wk, tod, seas.
    """
    table = _data.table("electricity_long.csv.gz")
    order = np.lexsort((table["alt"], table["chid"]))
    offers = np.column_stack([table[name][order] for name in ATTRIBUTES]).astype(float)
    offers = offers.reshape(-1, ALTERNATIVES, len(ATTRIBUTES))
    chosen = table["choice"][order].reshape(-1, ALTERNATIVES).argmax(axis=1)
    behind = offers - offers[np.arange(chosen.size), chosen][:, None]
    customer = table["id"][order].reshape(-1, ALTERNATIVES)[:, 0]
    data = to_jax(group_by({"behind": behind}, customer).data)
    theta = floats({"mu": np.zeros(6), "log_sd": np.zeros(6)})
    return Problem(
        name="electricity",
        title="Choice of an electricity supplier: panel mixed logit",
        model=GroupedModel(_log_joint, jnp.zeros(6), data, theta=theta),
        theta=theta,
        reference=reference("electricity"),
        published=(
            Published(-3888.413414, "simulated, 600 Halton draws", "README of the package xlogit"),
        ),
        structure="361 groups of 6 latents",
        data="Huber and Train (2001), Electricity in the R package mlogit (GPL-2 or later)",
    )
