"""Immunisation in Guatemala: children of mothers in communities."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import padded_logistic_effects
from ._problem import Formula, Problem, Published, floats, reference

# Fixed effects: a column and the levels that have an indicator; the first level has none.
FACTORS = (
    ("kid2p", ("Y",)),
    ("mom25p", ("Y",)),
    ("ord", ("23", "46", "7p")),
    ("ethn", ("N", "S")),
    ("momEd", ("P", "S")),
    ("husEd", ("P", "S", "U")),
    ("momWork", ("Y",)),
    ("rural", ("Y",)),
)


def _features(table: _data.Table) -> np.ndarray:
    factors = [_data.indicators(table[name], levels) for name, levels in FACTORS]
    return np.column_stack([np.ones(table["kid"].size), *factors, table["pcInd81"]])


def _frame() -> Any:
    import pandas

    table = _data.table("guImmun.csv.gz")
    table["immun"] = (table["immun"] == "Y").astype(float)
    return pandas.DataFrame(table).astype({"mom": str, "comm": str})


def guimmun() -> Problem:
    """Immunisation of 2,159 children of 1,595 mothers in 161 communities of Guatemala: the logit
    with 16 fixed effects and intercepts of the mother and of the community; theta is
    {"beta": (16,), "log_sd_mom", "log_sd_comm"}.
    """
    table = _data.table("guImmun.csv.gz")
    rows = {"X": _features(table), "y": (table["immun"] == "Y").astype(float)}
    rows["mom"] = _data.counted_within(table["mom"], table["comm"])
    data = group_by(rows, table["comm"]).data
    mother = data.pop("mom")
    levels = {"comm": np.zeros_like(mother), "mom": mother}
    latent = {"comm": jnp.zeros(1), "mom": jnp.zeros(int(mother.max()) + 1)}
    theta = floats({"beta": np.zeros(16), "log_sd_mom": 0.0, "log_sd_comm": 0.0})
    fixed = " + ".join([name for name, _ in FACTORS] + ["pcInd81"])
    call = f"(immun == 'Y') ~ {fixed} + (1 | mom) + (1 | comm), data, binomial"
    arrays = to_jax({**data, "level": levels})
    return Problem(
        name="guimmun",
        title="Immunisation in Guatemala: children of mothers in communities",
        model=GroupedModel(padded_logistic_effects, latent, arrays, theta=theta),
        theta=theta,
        reference=reference("guimmun"),
        published=(
            Published(
                -1323.9618222914, "Gauss-Hermite, 12 points", "Rodriguez, Princeton's pop510 course"
            ),
        ),
        structure="161 groups of 1 + up to 37 latents",
        data="Rodriguez and Goldman (2001), guImmun in the R package mlmRev (GPL-2 or later)",
        formula=Formula(f"immun ~ {fixed} + (1|mom) + (1|comm)", "binomial", _frame),
        peers={"lme4": f"glmer({call})", "glmmTMB": f"glmmTMB({call})"},
    )
