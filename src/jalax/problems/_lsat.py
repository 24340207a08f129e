"""The law school admission test: five items, 1,000 persons."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.model import GroupedModel, Model
from jalax.models._item_response import item_response

from . import _data
from ._densities import bernoulli, standard_normal
from ._problem import Problem, Published, floats, reference


def _rasch(theta: dict[str, Array], z: Float[Array, ""], data: Any) -> Array:
    logits = theta["intercept"] + jnp.exp(theta["log_slope"]) * z
    return jnp.sum(bernoulli(data["y"], logits)) + standard_normal(z)


def lsat(model: str = "2pl") -> Problem:
    r"""Five items of the law school admission test, 1,000 persons,
    $\mathrm{logit}\, p_j = d_j + a_j z$.

    Args:
        model: "2pl", theta {"intercept": (5,), "slope": (5,)}, or "rasch" with one slope for all
            items, theta {"intercept": (5,), "log_slope"}.
    """
    if model not in ("2pl", "rasch"):
        raise ValueError(f"model must be '2pl' or 'rasch', got {model!r}.")
    table = _data.table("LSAT.csv.gz")
    answers = np.column_stack(list(table.values())).astype(float)
    two = item_response(answers)
    built: Model = two
    published = Published(-2466.653, "Gauss-Hermite, 21 points", "tests of the R package mirt")
    title = "Law school admission test: two-parameter logistic"
    if model == "rasch":
        theta = floats({"intercept": two.theta["intercept"], "log_slope": 0.0})
        data = {"y": jnp.asarray(answers, dtype=float)}
        built = GroupedModel(_rasch, jnp.zeros(()), data, theta=theta)
        published = Published(
            -2466.938, "Gauss-Hermite, 21 points", "Rizopoulos (2006), J. Stat. Software 17(5)"
        )
        title = "Law school admission test: Rasch model"
    return Problem(
        name=f"lsat_{model}",
        title=title,
        model=built,
        theta=built.theta,
        reference=reference(f"lsat_{model}"),
        published=(published,),
        structure="1,000 groups of 1 latent",
        data="Bock and Lieberman (1970), LSAT in the R package ltm (GPL-2 or later)",
    )
