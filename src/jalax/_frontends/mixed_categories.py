"""`MixedResult.probabilities`: of categories, in an order or without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from jalax._frontends import mixed_posterior
from jalax._frontends.mixed_parts import Posterior, parts_of
from jalax._frontends.mixed_predict import Conditional, Effects, Fit, Population, check_choice
from jalax.families import Multinomial, Ordinal


def probabilities(fit: Fit, data: Any, effects: Effects) -> Any:
    """`MixedResult.probabilities`."""
    import pandas

    check_choice("effects", effects, (Conditional, Population), "Conditional() and Population()")
    family, design = fit.mixed.family, fit.mixed.design
    if not isinstance(family, (Ordinal, Multinomial)):
        raise ValueError(
            f"{family!r} has no categories: probabilities are of family='ordinal' and "
            "'multinomial'."
        )
    frame = fit.rows(data)
    posterior = None
    if not isinstance(effects, Population):
        posterior = mixed_posterior.posterior(fit.result, fit.mixed)
    of = _unordered if isinstance(family, Multinomial) else _ordered
    index = design.frame.index if frame is None else frame.index
    return pandas.DataFrame(
        of(fit, frame, posterior), index=index, columns=design.response.categories
    )


def _ordered(fit: Fit, frame: Any, posterior: Posterior | None) -> np.ndarray:
    family = fit.mixed.family
    assert isinstance(family, Ordinal)
    X, offset = fit.fixed(frame)
    eta, thresholds = X @ fit.theta["beta"] + offset, fit.theta["thresholds"]
    if posterior is None:
        return family.probabilities(eta, thresholds)
    parts = parts_of(fit.mixed, fit.random(frame))[0]
    below = [
        posterior.average(lambda at, _, k=k: family.link.mean(k - at), eta, parts)
        for k in thresholds
    ]
    ends = np.zeros(len(eta)), *below, np.ones(len(eta))
    return np.diff(np.stack(ends, axis=1), axis=1)


def _unordered(fit: Fit, frame: Any, posterior: Posterior | None) -> np.ndarray:
    family = fit.mixed.family
    assert isinstance(family, Multinomial)
    X, offset = fit.fixed(frame)
    eta = X @ fit.theta["beta"] + offset[:, None]
    if posterior is None:
        return family.probabilities(eta)
    assert isinstance(posterior, mixed_posterior.Weighted)
    random = fit.random(frame)
    parts = [
        parts_of(fit.mixed, random._replace(Z={name: z[:, k] for name, z in random.Z.items()}))[0]
        for k in range(eta.shape[1])
    ]
    return posterior.joint_average(family.probabilities, eta, parts)
