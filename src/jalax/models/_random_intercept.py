"""Generalised linear mixed models with one random intercept a group."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jalax._model.groups import by_group, positions
from jalax._model.model import GroupedModel

from . import _checks
from ._families import Family


class RandomIntercept(GroupedModel):
    """A `GroupedModel` that remembers its labels; see `random_intercept`.

    Attributes:
        groups: the label of each group, sorted: particles, weights and data of group i belong
            to `groups[i]`. None on a model that went through a JAX transformation, which
            carries arrays only.
    """

    groups: np.ndarray | None = None

    def replace(self, **changes) -> RandomIntercept:
        """A copy with other `latent`, `data` or `theta`; other data leaves no labels."""
        copy = cast(RandomIntercept, super().replace(**changes))
        copy.groups = None if "data" in changes else self.groups
        return copy


def random_intercept(
    y: ArrayLike, covariates: ArrayLike, groups: ArrayLike, *, family: Family
) -> RandomIntercept:
    r"""A mixed model with one random intercept a group, $\theta = (\beta, \log \sigma)$:

    $$b_i \sim \mathcal{N}(0, \sigma^2), \qquad \eta_{ij} = x_{ij}^\top \beta + b_i, \qquad
      y_{ij} \mid b_i \sim \text{family}(\eta_{ij}).$$

    Binomial coefficients and factorials are included: the evidence is an absolute one.

    Args:
        y: n counts.
        covariates: the features x, (n, p). No intercept is added: include a column of ones.
        groups: n labels, integers or strings; groups may have different sizes.
        family: `jalax.models.Binomial(size)` or `jalax.models.Poisson(exposure)`.

    Returns:
        A grouped model whose theta is {"beta": (p,), "log_sd": scalar} (start value 0) and whose
        latent is the intercept of one group; `groups` holds the labels in the model's order.

    >>> import numpy as np
    >>> from jalax import datasets, models
    >>> cbpp = datasets.cbpp()
    >>> model = models.random_intercept(
    ...     cbpp.incidence, cbpp.covariates, cbpp.herd, family=models.Binomial(cbpp.size)
    ... )
    >>> model.num_groups
    15
    >>> model.groups[:3].tolist()
    [1, 2, 3]
    """
    response = _checks.real_array("y", y, ndim=1, hint="Pass one count for each observation.")
    features = check_covariates(covariates)
    labels, index = positions(groups)
    _checks.same_rows(y=response, covariates=features, groups=index)
    if isinstance(family, type) or not hasattr(family, "rows"):
        raise TypeError(
            f"family must be an object such as jalax.models.Binomial(size) or "
            f"jalax.models.Poisson(), got {family!r}."
        )
    rows = {**family.rows(response), "covariates": features}
    rows["mask"] = np.ones(response.shape, bool)
    data = {name: by_group(values, index, labels.size) for name, values in rows.items()}
    theta = {"beta": jnp.zeros(features.shape[1]), "log_sd": jnp.zeros(())}
    model = RandomIntercept(
        family.log_joint, latent=jnp.zeros(()), data=_checks.to_jax(data), theta=theta
    )
    model.groups = labels
    return model


def check_covariates(covariates: ArrayLike) -> np.ndarray:
    hint = "Pass one row for each observation; a lone intercept is np.ones((n, 1))."
    return _checks.real_array("covariates", covariates, ndim=2, hint=hint)
