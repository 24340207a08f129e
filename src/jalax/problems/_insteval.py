"""Evaluations of lectures: students, lecturers and departments, crossed."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import positions
from jalax._model.model import Model
from jalax._model.structure import meeting
from jalax.models._checks import to_jax

from . import _data
from ._densities import gaussian_effects, logistic_effects
from ._problem import Formula, Problem, Published, floats, reference

FACTORS = ("s", "d", "dept")


def _table(response: str, folder: str | os.PathLike | None) -> _data.Table:
    table = _data.table_of_the_repository("InstEval.csv.gz", folder)
    if response == "binary":
        table["y"] = table["y"] > 3
    return {**table, "y": table["y"].astype(float)}


def _frame(response: str, folder: str | os.PathLike | None) -> Any:
    import pandas

    factors = dict.fromkeys((*FACTORS, "service"), str)
    return pandas.DataFrame(_table(response, folder)).astype(factors)


def insteval(response: str = "gaussian", folder: str | os.PathLike | None = None) -> Problem:
    """73,421 evaluations of lectures at ETH Zurich, from 1 to 5, with effects of 2,972 students,
    1,128 lecturers and 14 departments; theta is {"beta": (2,), "log_sd_s", "log_sd_d",
    "log_sd_dept"}, the coefficients being 1 and service, and of the Gaussian model "log_sigma".

    The file is in the repository and not in the installed package.

    Args:
        response: "gaussian", or "binary" for the logit of a mark above 3.
        folder: where InstEval.csv.gz is; None: benchmarks/data of the repository.
    """
    if response not in ("gaussian", "binary"):
        raise ValueError(f"response must be 'gaussian' or 'binary', got {response!r}.")
    table = _table(response, folder)
    service = table["service"].astype(float)
    levels = {factor: positions(table[factor])[1] for factor in FACTORS}
    latent = {factor: jnp.zeros(int(level.max()) + 1) for factor, level in levels.items()}
    first = np.cumsum([0] + [latent[factor].size for factor in sorted(FACTORS)])
    positions_of_rows = np.column_stack(
        [begin + levels[factor] for begin, factor in zip(first, sorted(FACTORS), strict=False)]
    )
    features = np.column_stack([np.ones_like(service), service])
    data = to_jax({"X": features, "y": table["y"], "level": levels})
    start = {"beta": np.zeros(2)} | {f"log_sd_{factor}": np.zeros(()) for factor in FACTORS}
    right = "~ service + (1 | s) + (1 | d) + (1 | dept), data"
    if response == "gaussian":
        name, log_joint, family = "insteval", gaussian_effects, "gaussian"
        start |= {"beta": np.array([table["y"].mean(), 0.0]), "log_sigma": np.zeros(())}
        published = Published(-118860.884, "exact, maximum likelihood (lmer)", "lme4, InstEval")
        peers = {"lme4": f"lmer(y {right}, REML = FALSE)", "glmmTMB": f"glmmTMB(y {right})"}
    else:
        name, log_joint, family = "insteval_binary", logistic_effects, "binomial"
        published = Published(-46410.885, "Laplace (glmmTMB)", "lme4, InstEval")
        peers = {"glmmTMB": f"glmmTMB((y > 3) {right}, binomial)"}
    theta = floats(start)
    frame = functools.partial(_frame, response, folder)
    return Problem(
        name=name,
        title=f"Evaluations of lectures: three crossed factors, {response}",
        model=Model(log_joint, latent, data, theta=theta, structure=meeting(positions_of_rows)),
        theta=theta,
        reference=reference(name),
        published=(published,),
        structure="2,972 + 1,128 + 14 latents, crossed",
        data="Gilbert and Maechler, InstEval in the R package lme4 (GPL-2 or later)",
        formula=Formula("y ~ service + (1|s) + (1|d) + (1|dept)", family, frame),
        peers=peers,
    )
