"""Marginal means of a factor and their differences, as R's emmeans has them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jalax._frontends.mixed_predict import (
    SCALES,
    Estimates,
    Fit,
    Link,
    Scale,
    check_choice,
    check_has_order,
)
from jalax._runtime import arguments
from jalax.families import CLogLog, Identity, Log, Logit
from jalax.models import _new_rows

MOST_CELLS = 1_000_000
RATIOS = Log | Logit | CLogLog  # differences there are ratios, of odds or of hazards, outside


def marginal_means(fit: Fit, factor: str, scale: Scale, level: float) -> Any:
    """`MixedResult.marginal_means`."""
    import pandas

    check_choice("scale", scale, Scale, SCALES)
    check_has_order(fit.mixed.family)
    level = arguments.check_fraction("level", level)
    labels, L, offset = _weights(fit, factor)
    beta, covariance = _fixed(fit)
    link = L @ beta + offset
    variance = np.einsum("np,pq,nq->n", L, covariance, L)
    inverse = fit.mixed.family.link
    found = Estimates(link, variance, inverse.mean(link))
    index = pandas.Index(labels, name=factor)
    columns = scale.columns(inverse.mean, inverse.slope, found, level)
    return pandas.DataFrame(columns, index=index)


def contrasts(fit: Fit, factor: str, scale: Scale, level: float) -> Any:
    """`MixedResult.contrasts`."""
    import pandas
    from scipy.special import ndtr

    check_choice("scale", scale, Scale, SCALES)
    check_has_order(fit.mixed.family)
    level = arguments.check_fraction("level", level)
    labels, L, offset = _weights(fit, factor)
    beta, covariance = _fixed(fit)
    pairs = list(itertools.combinations(range(len(labels)), 2))
    first, second = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    D = L[first] - L[second]
    difference = D @ beta + offset[first] - offset[second]
    variance = np.einsum("np,pq,nq->n", D, covariance, D)
    link = fit.mixed.family.link
    if not isinstance(scale, Link) and not isinstance(link, RATIOS | Identity):
        raise ValueError(
            f"differences on the {link.name} scale are no ratios: ask for them with "
            "scale=jalax.predictions.Link()."
        )
    ratio = not isinstance(scale, Link) and isinstance(link, RATIOS)
    inverse = Log() if ratio else Identity()
    found = Estimates(difference, variance, inverse.mean(difference))
    columns = scale.columns(inverse.mean, inverse.slope, found, level)
    error = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["z value"] = difference / error
    columns["Pr(>|z|)"] = 2 * ndtr(-np.abs(columns["z value"]))
    sign = "/" if ratio else "-"
    names = [f"{labels[i]} {sign} {labels[j]}" for i, j in pairs]
    return pandas.DataFrame(columns, index=pandas.Index(names, name=factor))


def _fixed(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    size = len(fit.mixed.design.fixed)
    return fit.theta["beta"], fit.covariance[:size, :size]


def _weights(fit: Fit, factor: str) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """The levels of a factor, and the row of X and the offset that belong to the mean of each.

    Rows of all combinations of the factors' levels, covariates at their means, averaged.
    """
    import pandas

    design = fit.mixed.design
    known = _new_rows.factors(design)
    if factor not in known:
        raise ValueError(
            f"{factor!r} is no factor of the fixed effects; these are: "
            f"{', '.join(known) or 'none'}. A column of numbers is one as C(column)."
        )
    names = [factor, *(name for name in known if name != factor)]
    cells = int(np.prod([len(known[name].levels) for name in names]))
    if cells > MOST_CELLS:
        raise ValueError(
            f"the factors {', '.join(names)} have {cells} combinations of levels, too many for "
            "their mean: combine levels, or leave a factor out."
        )
    rows = list(itertools.product(*(known[name].levels for name in names)))
    grid = pandas.DataFrame(rows, columns=names)
    for name in _new_rows.covariates(design):
        grid[name] = float(design.frame[name].mean())
    X, offset = _new_rows.fixed_rows(design, grid)
    count = len(known[factor].levels)
    mean_of = X.reshape(count, -1, X.shape[1]).mean(axis=1)
    return known[factor].levels, mean_of, offset.reshape(count, -1).mean(axis=1)
