"""Pound against dollar: stochastic volatility."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.model import Model
from jalax.families._softplus import softplus
from jalax.models._checks import to_jax

from . import _data
from ._densities import normal
from ._problem import Problem, Published, floats, reference

LOG_2 = 0.6931471805599453


def _log_joint(theta: dict[str, Array], x: Float[Array, " t"], data: Any) -> Array:
    a, log_sigma = jnp.abs(theta["atanh_phi"]), theta["log_sigma"]
    # log sqrt(1 - phi^2) = -log cosh(atanh phi): 1 - phi^2 itself has few digits near phi = 1.
    log_first_sd = log_sigma + a + softplus(-2 * a) - LOG_2
    first = normal(x[0], jnp.zeros((), x.dtype), log_first_sd)
    steps = normal(x[1:], jnp.tanh(theta["atanh_phi"]) * x[:-1], log_sigma)
    returns = normal(data["y"], jnp.zeros((), x.dtype), 0.5 * (theta["mu"] + x))
    return first + jnp.sum(steps) + jnp.sum(returns)


def pound_dollar() -> Problem:
    r"""Daily returns of the pound against the dollar, 1981 to 1985:
    $x_1 \sim N(0, \sigma^2 / (1 - \phi^2))$, $x_t \sim N(\phi x_{t-1}, \sigma^2)$,
    $y_t \sim N(0, e^{\mu + x_t})$; theta is {"atanh_phi", "log_sigma", "mu"}.
    """
    data = to_jax({"y": _data.table("pound_dollar.csv.gz")["y"]})
    days = data["y"].size
    neighbours = np.arange(1, days), np.arange(days - 1)
    theta = floats({"atanh_phi": 1.0, "log_sigma": -1.0, "mu": 0.0})
    return Problem(
        name="pound_dollar",
        title="Pound against dollar: stochastic volatility",
        model=Model(_log_joint, jnp.zeros(days), data, theta=theta, structure=neighbours),
        theta=theta,
        reference=reference("pound_dollar"),
        published=(
            Published(
                -918.791,
                "Laplace (ADMB-RE), its objective with 945 log 2 pi added",
                "ADMB's example sdv, expected results",
            ),
        ),
        structure="one series of 945 latents",
        data="Harvey, Ruiz and Shephard (1994), as in ADMB's example sdv (BSD); published data",
    )
