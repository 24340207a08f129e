"""Bayesian logistic regression with a common prior mean (paper 5.1)."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import Model
from jalax.families._softplus import softplus

from . import _checks
from ._gaussian import isotropic_log_density
from ._rows import sum_over_rows


def _log_likelihood(
    w: Float[Array, " d"], X: Float[Array, "n d"], y: Float[Array, " n"]
) -> Float[Array, " n"]:
    # Full precision and w first: see _regression._residual. Term by term y z - log(1 + e^z),
    # since two separate sums would cancel.
    logits = jnp.matmul(w, X.T, precision="highest")
    return y * logits - softplus(logits)


def _log_joint(
    theta: Float[Array, ""],
    w: Float[Array, " d"],
    data: dict[str, Array],
    data_batch: int | None = None,
) -> Float[Array, ""]:
    log_prior = isotropic_log_density(w - theta, jnp.log(data["prior_variance"]))
    rows = data["X"], data["y"]
    return sum_over_rows(lambda part: _log_likelihood(w, *part), rows, data_batch) + log_prior


class LogisticRegression(Model):
    """A `Model` with predictive probabilities; see `logistic_regression`."""

    @staticmethod
    def log_predictive(
        theta: Float[Array, ""], w: Float[Array, " d"], data: dict[str, Array]
    ) -> Float[Array, " n"]:
        """log p(y_i | x_i, w) of each observation; see `jalax.lppd`."""
        del theta
        return _log_likelihood(w, data["X"], data["y"])

    @staticmethod
    def predictive_probability(
        w: Float[Array, " d"], X: ArrayLike, y: ArrayLike
    ) -> Float[Array, " n"]:
        """p(y_i | x_i, w) of each observation under one particle w; vmap it over particles."""
        return jnp.exp(_log_likelihood(w, jnp.asarray(X, w.dtype), jnp.asarray(y, w.dtype)))


def logistic_regression(
    X: ArrayLike, y: ArrayLike, prior_variance: float = 5.0, *, data_batch: int | None = None
) -> LogisticRegression:
    r"""Logistic regression whose weights share a prior mean, $\theta \in \mathbb{R}$:

    $$w \sim \mathcal{N}(\theta 1, s^2 I), \qquad
      p(y_i = 1 \mid w) = \frac{1}{1 + e^{-x_i^\top w}}.$$

    Args:
        X: the features, (n, d). No intercept is added.
        y: the n labels, 0 or 1.
        prior_variance: $s^2$.
        data_batch: how many rows to work on at a time; see `sum_over_rows`.

    Returns:
        A model whose theta is a scalar (start value 0, the paper's) and whose latent is w in
        R^d, with `predictive_probability(w, X, y)`, the likelihood of each observation.

    >>> import jax.numpy as jnp
    >>> from jalax import models
    >>> X, y = [[1.0], [-2.0]], [1, 0]
    >>> model = models.logistic_regression(X, y)
    >>> print(f"{model.log_joint(0.0, jnp.zeros(1), model.data):.4f}")
    -3.1100
    >>> [f"{p:.4f}" for p in model.predictive_probability(jnp.ones(1), X, y)]
    ['0.7311', '0.8808']
    """
    features, labels = _checks.design(X, y)
    if not _checks.is_traced(labels) and not np.isin(labels, (0.0, 1.0)).all():
        found = labels[~np.isin(labels, (0.0, 1.0))][0]
        raise ValueError(
            f"y must hold the labels 0 and 1, found {found:g}. Encode the classes first, for "
            "example with (y == positive_class)."
        )
    variance = _checks.positive("prior_variance", prior_variance)
    if data_batch is not None:
        data_batch = _checks.whole_number("data_batch", data_batch, at_least=1)
    data = _checks.to_jax({"X": features, "y": labels, "prior_variance": variance})
    latent = jnp.zeros(data["X"].shape[1])
    log_joint = _log_joint if data_batch is None else partial(_log_joint, data_batch=data_batch)
    return LogisticRegression(log_joint, latent=latent, data=data, theta=jnp.zeros(()))
