"""Groups that occur several times, with the same data: their log p counts so often.

The copies of a group have one estimate of log p in common, with the variance v. Its f-fold has the
variance f^2 v, and the log of a mean is low by half a variance, in each copy: f v / 2 in all.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jalax._model.algorithm import Measurement
from jalax._model.model import Model
from jalax._runtime.processes import to_host


def counted(model: Model, of_groups: Any) -> Any:
    """(G, ...): each group as often as it occurs."""
    if (times := model.frequencies) is None:
        return of_groups
    times = jnp.asarray(times, of_groups.dtype)
    return of_groups * times.reshape(-1, *[1] * (of_groups.ndim - 1))


def on_the_host(model: Model) -> np.ndarray:
    """(G,): how often each group occurs."""
    times = model.frequencies
    return np.ones(model.num_groups) if times is None else np.asarray(to_host(times), float)


def counted_measurement(model: Model, seen: Measurement) -> Measurement:
    """log p of each group and its variance, of all its copies together.

    Whoever adds half the variance to that, as to the log of a mean, comes to f (log p + v / 2).
    """
    if model.frequencies is None:
        return seen
    times = on_the_host(model)
    groups = times * seen.groups + (times - times**2) * seen.variance / 2
    return seen._replace(groups=groups, variance=times**2 * seen.variance)


def number_of_groups(model: Model) -> float:
    """With all copies."""
    return float(on_the_host(model).sum())


def check_route(model: Model, reason: str) -> None:
    """Points of Scoring alone know how to count a group several times."""
    if model.frequencies is not None:
        raise ValueError(
            f"{reason}, and frequencies= of groups are for points at each group's mode, of up to "
            "32 latents a group, by jalax.Scoring(): repeat the groups instead."
        )
