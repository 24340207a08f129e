"""Failures of ten pumps: Poisson counts with Gamma rates."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._problem import Problem, Published, floats, reference


def _log_joint(theta: dict[str, Array], log_rate: Float[Array, ""], data: Any) -> Array:
    shape, rate = jnp.exp(theta["log_alpha"]), jnp.exp(theta["log_beta"])
    # The Gamma density of the rate, times the rate: the latent is its logarithm.
    prior = shape * theta["log_beta"] - gammaln(shape) + shape * log_rate - rate * jnp.exp(log_rate)
    mean = data["log_time"] + log_rate
    return prior + data["failures"] * mean - jnp.exp(mean) - gammaln(data["failures"] + 1.0)


def pumps() -> Problem:
    r"""Failures of ten pumps, $y_i \sim \text{Poisson}(t_i r_i)$ with
    $r_i \sim \text{Gamma}(\alpha, \text{rate } \beta)$; theta is {"log_alpha", "log_beta"}, the
    latent log r_i. The evidence has a closed form.
    """
    table = _data.table("pumps.csv.gz")
    data = to_jax({"failures": table["x"].astype(float), "log_time": np.log(table["t"])})
    theta = floats({"log_alpha": 0.0, "log_beta": 0.0})
    return Problem(
        name="pumps",
        title="Failures of pumps: Poisson counts with Gamma rates",
        model=GroupedModel(_log_joint, jnp.zeros(()), data, theta=theta),
        theta=theta,
        reference=reference("pumps"),
        published=(Published(None, "MCEM, alpha 0.822 and beta 1.259", "user manual of nimble"),),
        structure="10 groups of 1 latent",
        data="Gaver and O'Muircheartaigh (1987), examples of BUGS and nimble; published data",
    )
