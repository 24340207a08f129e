"""Infections of kidney patients: censored times with a frailty a patient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import standard_normal
from ._problem import Problem, Published, floats, reference


def _rows(data: Any, log_shape: Any, eta: Array) -> Array:
    """log of hazard r t^(r - 1) e^eta, where observed, less the cumulative hazard t^r e^eta."""
    cumulative = eta + jnp.exp(log_shape) * data["log_time"]
    event = log_shape + cumulative - data["log_time"]
    return jnp.sum(jnp.where(data["mask"], data["status"] * event - jnp.exp(cumulative), 0.0))


def _lognormal(theta: dict[str, Array], u: Float[Array, ""], data: Any) -> Array:
    eta = jnp.matmul(data["X"], theta["beta"], precision="highest") + jnp.exp(theta["log_sd"]) * u
    return _rows(data, theta["log_r"], eta) + standard_normal(u)


def _gamma(theta: dict[str, Array], log_frailty: Float[Array, ""], data: Any) -> Array:
    eta = theta["log_rate"] + jnp.matmul(data["X"], theta["beta"], precision="highest")
    shape = jnp.exp(-theta["log_variance"])  # a Gamma of mean 1
    prior = shape * (log_frailty - theta["log_variance"] - jnp.exp(log_frailty)) - gammaln(shape)
    return _rows(data, jnp.zeros(()), eta + log_frailty) + prior


def kidney(frailty: str = "lognormal") -> Problem:
    r"""Times to infection at the catheter of 38 patients, two each, right censored.

    Args:
        frailty: "lognormal", the Weibull hazard $r t^{r-1} e^{x^\top \beta + s u}$ with
            x = (1, age, disease GN, AN, PKD, sex) and theta {"beta": (6,), "log_r", "log_sd"};
            or "gamma", the constant hazard $\lambda w e^{x^\top \beta}$ with x = (sex, age), w of
            mean 1 and theta {"log_variance", "log_rate", "beta": (2,)}, whose evidence has a
            closed form. The latent is then log w.
    """
    if frailty not in ("lognormal", "gamma"):
        raise ValueError(f"frailty must be 'lognormal' or 'gamma', got {frailty!r}.")
    table = {name: column.astype(float) for name, column in _data.table("kidney.csv.gz").items()}
    disease = _data.indicators(table["disease"], (2.0, 3.0, 4.0))
    features = [np.ones_like(table["age"]), table["age"], disease, table["sex"]]
    # A constant hazard without covariates: infections by days under observation.
    log_rate = np.log(table["status"].sum() / table["time"].sum())
    log_joint: Callable
    published: tuple[Published, ...] = ()
    if frailty == "lognormal":
        log_joint, name = _lognormal, "kidney"
        start = {"beta": np.array([log_rate, 0, 0, 0, 0, 0]), "log_r": 0.0, "log_sd": 0.0}
        title = "Kidney infections: Weibull times with a log-normal frailty a patient"
        published = (Published(None, "Laplace (ADMB-RE)", "kidney.pdf of ADMB's examples"),)
    else:
        log_joint, name = _gamma, "kidney_gamma"
        features = [table["sex"], table["age"]]
        start = {"log_variance": 0.0, "log_rate": log_rate, "beta": np.zeros(2)}
        title = "Kidney infections: exponential times with a gamma frailty a patient"
    columns = {"X": np.column_stack(features), "status": table["status"]}
    columns["log_time"] = np.log(table["time"])
    data = to_jax(group_by(columns, table["id"]).data)
    theta = floats(start)
    return Problem(
        name=name,
        title=title,
        model=GroupedModel(log_joint, jnp.zeros(()), data, theta=theta),
        theta=theta,
        reference=reference(name),
        published=published,
        structure="38 groups of 1 latent",
        data="McGilchrist and Aisbett (1991), kidney in the R package survival (LGPL-2 or later)",
    )
