"""Item response: the two-parameter logistic model of a test."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import GroupedModel
from jalax.families._softplus import softplus

from . import _checks
from ._gaussian import isotropic_log_density

Theta = dict[str, Array]


def _log_joint(theta: Theta, x: Float[Array, ""], data: dict[str, Array]) -> Float[Array, ""]:
    logits = theta["slope"] * x + theta["intercept"]
    # log p(y) = log sigma(logit) for 1, log sigma(-logit) for 0: one softplus an answer.
    answers = -softplus(jnp.where(data["y"], -logits, logits))
    return jnp.sum(jnp.where(data["mask"], answers, 0.0)) + isotropic_log_density(
        x, jnp.zeros((), x.dtype)
    )


def item_response(y: ArrayLike) -> GroupedModel:
    r"""The two-parameter logistic model (2PL), $\theta = (a, c)$, one group a person:

    $$x_i \sim \mathcal{N}(0, 1), \qquad
      \mathrm{logit}\, P(y_{ij} = 1 \mid x_i) = a_j x_i + c_j.$$

    The usual difficulty of item j is $-c_j / a_j$.

    Args:
        y: (persons, items), 1 for a right and 0 for a wrong answer, NaN for none. A person
            without any answer is refused.

    Returns:
        A grouped model whose theta is {"slope": (items,), "intercept": (items,)}, starting from
        slopes of 1, and whose latent is the ability of one person.

    >>> from jalax import models
    >>> model = models.item_response([[1, 0, 1], [1, float("nan"), 0]])
    >>> model.num_groups, model.theta["slope"].tolist()
    (2, [1.0, 1.0, 1.0])
    """
    try:
        answers = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"y must hold answers, 1, 0 or NaN for none, got {error}.") from None
    given = ~np.isnan(answers)
    right = _checks.real_array(
        "y",
        np.where(given, answers, 0.0),
        ndim=2,
        hint="Pass one row a person, one column an item.",
    )
    wrong = (right != 0) & (right != 1)
    if wrong.any():
        raise ValueError(
            f"y must hold answers, 1 (right), 0 (wrong) or NaN (none), found {right[wrong][0]:g}."
        )
    for axis, who in ((1, "person"), (0, "item")):
        empty = ~given.any(axis=axis)
        if empty.any():
            raise ValueError(
                f"{who} {np.argmax(empty)} has no answer at all ({empty.sum()} such): leave it out."
            )
    # Half an answer of each kind keeps the start finite for an item that all got right.
    share = (right.sum(axis=0) + 0.5) / (given.sum(axis=0) + 1.0)
    theta = {"slope": np.ones(right.shape[1]), "intercept": np.log(share / (1 - share))}
    data = {"y": jnp.asarray(right > 0), "mask": jnp.asarray(given)}
    return GroupedModel(_log_joint, latent=jnp.zeros(()), data=data, theta=_checks.to_jax(theta))
