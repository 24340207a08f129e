"""Toenail infection: logistic regression with a random intercept a patient."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import random_intercept
from ._problem import Formula, Problem, Published, floats, reference


def _columns() -> dict[str, np.ndarray]:
    table = _data.table("toenail.csv.gz")
    treated = (table["treatment"] == "terbinafine").astype(float)
    outcome = (table["outcome"] == "moderate or severe").astype(float)
    return {**table, "treated": treated, "outcome": outcome}


def _frame() -> Any:
    import pandas

    return pandas.DataFrame(_columns()).astype({"patientID": str})


def toenail(time: str = "time") -> Problem:
    """Toenail infection of 294 patients, at up to seven visits: the logit of "moderate or severe"
    with the treatment, the time, their product and an intercept a patient, whose standard
    deviation is near 4; theta is {"beta": (4,), "log_sd"}, in the order 1, treatment, time,
    treatment x time.

    Args:
        time: "time" in months, or "visit", the number of the visit.
    """
    if time not in ("time", "visit"):
        raise ValueError(f"time must be 'time' or 'visit', got {time!r}.")
    table = _columns()
    treated, when = table["treated"], table[time].astype(float)
    one = np.ones_like(treated)
    columns = {"X": np.column_stack([one, treated, when, treated * when]), "y": table["outcome"]}
    columns |= {"size": one, "constant": np.zeros_like(one)}
    data = to_jax(group_by(columns, table["patientID"]).data)
    theta = floats({"beta": np.zeros(4), "log_sd": 0.0})
    name = "toenail" if time == "time" else "toenail_visit"
    visit = Published(
        None, "adaptive Gauss-Hermite, 20 points (lme4)", "issue 7 of GLMMadaptive's repository"
    )
    call = f"(outcome == 'moderate or severe') ~ treatment * {time} + (1 | patientID), data"
    return Problem(
        name=name,
        title="Toenail infection: logistic regression with a random intercept",
        model=GroupedModel(random_intercept, jnp.zeros(()), data, theta=theta),
        theta=theta,
        reference=reference(name),
        published=(visit,) if time == "visit" else (),
        structure="294 groups of 1 latent",
        data="De Backer et al. (1998), toenail data as in the R package GLMMadaptive (GPL-3)",
        formula=Formula(f"outcome ~ treated * {time} + (1|patientID)", "binomial", _frame),
        peers={
            "lme4": f"glmer({call}, binomial)",
            "lme4, nAGQ = 25": f"glmer({call}, binomial, nAGQ = 25)",
            "glmmTMB": f"glmmTMB({call}, binomial)",
        },
    )
