"""Germination of seeds on 21 plates: binomial counts with a random intercept a plate."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax
from jalax.models._families import Binomial

from . import _data
from ._densities import random_intercept
from ._problem import Formula, Problem, floats, reference


def _table() -> dict[str, np.ndarray]:
    table = _data.table("seeds.csv.gz")
    return {**table, "plate": np.arange(1, table["n"].size + 1)}


def _frame() -> Any:
    import pandas

    return pandas.DataFrame(_table()).astype({"plate": str})


def seeds() -> Problem:
    """Germination of seeds on 21 plates, `n` of `N` binomial with the logit
    a0 + a1 x1 + a2 x2 + a12 x1 x2 + s u; theta is {"beta": (4,), "log_sd"}.
    """
    table = _table()
    x1, x2 = table["x1"].astype(float), table["x2"].astype(float)
    rows = Binomial(table["N"].astype(float)).rows(table["n"].astype(float))
    features = np.column_stack([np.ones_like(x1), x1, x2, x1 * x2])
    columns = {"X": features, "y": rows["y"], "size": rows["size"]}
    columns["constant"] = rows["log_constant"]
    groups = group_by(columns, table["plate"])
    theta = floats({"beta": np.zeros(4), "log_sd": 0.0})
    call = "cbind(n, N - n) ~ x1 * x2 + (1 | plate), transform(data, plate = factor(seq_along(n)))"
    return Problem(
        name="seeds",
        title="Germination of seeds: binomial counts with a random intercept a plate",
        model=GroupedModel(random_intercept, jnp.zeros(()), to_jax(groups.data), theta=theta),
        theta=theta,
        reference=reference("seeds"),
        published=(),
        structure="21 groups of 1 latent",
        data="Crowder (1978), as in the examples of BUGS; published data",
        formula=Formula("p(n, N) ~ x1 * x2 + (1|plate)", "binomial", _frame),
        peers={
            "lme4": f"glmer({call}, binomial)",
            "lme4, nAGQ = 25": f"glmer({call}, binomial, nAGQ = 25)",
            "glmmTMB": f"glmmTMB({call}, binomial)",
        },
    )
