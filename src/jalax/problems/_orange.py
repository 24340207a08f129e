"""Growth of orange trees: a logistic curve with a random asymptote."""

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
from ._densities import normal
from ._problem import Problem, Published, floats, reference


def _log_joint(theta: dict[str, Array], b: Float[Array, ""], data: Any) -> Array:
    asymptote, middle, scale = theta["phi"][0], theta["phi"][1], theta["phi"][2]
    curve = (asymptote + b) * jax.nn.sigmoid((data["age"] - middle) / scale)
    rows = normal(data["y"], curve, theta["log_sigma"])
    prior = normal(b, jnp.zeros((), b.dtype), theta["log_sd"])
    return jnp.sum(jnp.where(data["mask"], rows, 0.0)) + prior


def orange() -> Problem:
    r"""Circumference of five orange trees,
    $(\phi_1 + b_i) / (1 + e^{-(t - \phi_2) / \phi_3}) + e$ with $b_i \sim N(0, s^2)$; theta is
    {"phi": (3,), "log_sigma", "log_sd"}. It is linear in b, and the evidence has a closed form.
    """
    table = _data.table("orange.csv.gz")
    columns = {"y": table["circumference"].astype(float), "age": table["age"].astype(float)}
    groups = group_by(columns, table["tree"])
    # The start that the help pages of R's nlmer and nlme write down, by eye.
    start = {"phi": np.array([200.0, 725.0, 350.0]), "log_sigma": np.log(20), "log_sd": np.log(20)}
    theta = floats(start)
    return Problem(
        name="orange",
        title="Growth of orange trees: a logistic curve with a random asymptote",
        model=GroupedModel(_log_joint, jnp.zeros(()), to_jax(groups.data), theta=theta),
        theta=theta,
        reference=reference("orange"),
        published=(
            Published(-131.5719, "exact, linear in b (nlmer)", "lme4, tests/nlmer.Rout.save"),
        ),
        structure="5 groups of 1 latent",
        data="Draper and Smith (1998), Orange in R's datasets (GPL); published data",
        peers={
            "lme4": "nlmer(circumference ~ SSlogis(age, Asym, xmid, scal) ~ Asym | tree, data, "
            "start = c(Asym = 200, xmid = 725, scal = 350))",
        },
    )
