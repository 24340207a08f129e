"""Generalised linear mixed models with one random intercept a group."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jalax._model import GroupedModel

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
    labels, index = check_groups(groups)
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


def check_groups(groups: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The sorted labels, and the position of each observation's label among them."""
    given = np.asarray(groups)
    if given.ndim != 1 or given.dtype.kind == "c":
        raise ValueError(f"groups must be one label for each observation, got shape {given.shape}.")
    if given.dtype.kind == "f" and (given != np.floor(given)).any():  # NaN fails this too
        raise ValueError(
            "groups must be integers or strings, found fractions or NaN. Drop observations "
            "without a group, and check that groups is not a covariate."
        )
    if given.dtype.kind == "O":  # what pandas stores strings as: None or NaN mean missing
        if any(label is None or label != label for label in given):
            raise ValueError("groups has missing labels. Drop those observations first.")
        given = given.astype(str)  # so that mixed labels can be sorted
    labels, index = np.unique(given, return_inverse=True)
    return labels, index


def by_group(values: np.ndarray, index: np.ndarray, num_groups: int) -> np.ndarray:
    """(n, ...) as (groups, rows of the largest group, ...), padded with zeros."""
    sizes = np.bincount(index, minlength=num_groups)
    order = np.argsort(index, kind="stable")
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    padded = np.zeros((num_groups, sizes.max(), *values.shape[1:]), values.dtype)
    padded[index[order], np.arange(index.size) - first] = values[order]
    return padded
