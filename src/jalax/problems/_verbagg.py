"""Verbal aggression: persons and items, crossed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import positions
from jalax._model.model import Model
from jalax.models._checks import to_jax

from . import _data
from ._densities import logistic_effects
from ._problem import Formula, Problem, Published, floats, reference

FIXED = "Anger + Gender + btype + situ"


def _frame() -> Any:
    import pandas

    return pandas.DataFrame(_data.table("VerbAgg.csv.gz")).astype({"id": str})


def verbagg() -> Problem:
    """Verbal aggression: whether 316 persons would curse, scold or shout in 24 situations, with
    effects of persons and items; theta is {"beta": (6,), "log_sd_id", "log_sd_item"}, the
    coefficients being 1, Anger, GenderM, btypescold, btypeshout, situself.
    """
    table = _data.table("VerbAgg.csv.gz")
    features = np.column_stack(
        [
            np.ones(table["y"].size),
            table["Anger"],
            table["Gender"] == "M",
            _data.indicators(table["btype"], ("scold", "shout")),
            table["situ"] == "self",
        ]
    ).astype(float)
    levels = {factor: positions(table[factor])[1] for factor in ("id", "item")}
    latent = {factor: jnp.zeros(int(level.max()) + 1) for factor, level in levels.items()}
    theta = floats({"beta": np.zeros(6), "log_sd_id": 0.0, "log_sd_item": 0.0})
    data = to_jax({"X": features, "y": table["y"].astype(float), "level": levels})
    call = f"(r2 == 'Y') ~ {FIXED} + (1 | id) + (1 | item), data, binomial"
    return Problem(
        name="verbagg",
        title="Verbal aggression: logistic regression with crossed persons and items",
        model=Model(
            logistic_effects,
            latent,
            data,
            theta=theta,
            structure=(latent["id"].size + levels["item"], levels["id"]),
        ),
        theta=theta,
        reference=reference("verbagg"),
        published=(Published(-4075.7, "Laplace (glmer, glmmTMB)", "lme4, VerbAgg"),),
        structure="316 + 24 latents, crossed",
        data="Vansteelandt (2000), VerbAgg in the R package lme4 (GPL-2 or later)",
        formula=Formula(f"y ~ {FIXED} + (1|id) + (1|item)", "binomial", _frame),
        peers={"lme4": f"glmer({call})", "glmmTMB": f"glmmTMB({call})"},
    )
