"""Heart disease: the evidence of a Bayesian logistic regression."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._model.model import Model
from jalax.models._checks import to_jax

from . import _data
from ._densities import bernoulli, standard_normal
from ._problem import Problem, Published, reference


def _log_joint(theta: Any, b: Float[Array, "14"], data: Any) -> Array:
    white = jnp.matmul(data["whitening"], b, precision="highest")
    logits = jnp.matmul(b, data["X"].T, precision="highest")
    return standard_normal(white) + data["log_det"] + jnp.sum(bernoulli(data["y"], logits))


def heart() -> Problem:
    r"""Heart disease of 270 patients: the evidence of a logistic regression with the prior
    $b \sim N(0, (\frac{3 d}{\pi^2} X^\top X / n)^{-1})$, d = 14. theta is empty.
    """
    table = _data.table("logit_Heart.csv.gz")
    y = table.pop("y").astype(float)
    X = np.column_stack(list(table.values())).astype(float)
    precision = 3 * X.shape[1] / np.pi**2 * X.T @ X / y.size
    root = np.linalg.cholesky(precision).T  # precision = root' root
    log_det = np.float64(np.log(np.diag(root)).sum())
    data = to_jax({"y": y, "X": X, "whitening": root, "log_det": log_det})
    return Problem(
        name="heart",
        title="Heart disease: Bayesian logistic regression",
        model=Model(_log_joint, jnp.zeros(X.shape[1]), data, theta={}),
        theta={},
        reference=reference("heart"),
        published=(
            Published(
                -117.96325806,
                "sequential Monte Carlo",
                "Heng's controlledSMC, Logistic/TrueLogNormConst.mat",
            ),
        ),
        structure="14 latents",
        data="Statlog (Heart), UCI Machine Learning Repository (CC BY 4.0), standardised",
        fixed=True,
    )
