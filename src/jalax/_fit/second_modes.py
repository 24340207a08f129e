"""Do the latents have a mode that the points of Scoring did not see?

Its points lie around one mode of each group, the one nearest to where the search began. Here the
search begins elsewhere: as far away as the posterior is wide many times over, and where a mirror
puts the mode. The program of the climb does this, too: nothing is compiled. Where a mode is found
that outweighs the first, the fit climbs once more from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._algorithms.scoring_state import LOOKING
from jalax._model.evaluation import ravel_latent
from jalax._model.frequencies import on_the_host
from jalax._model.model import Model
from jalax._model.types import State
from jalax._runtime.processes import to_host

AWAY = 10.0  # standard deviations of the posterior, where a search begins
APART = 4.0  # standard deviations between two modes
ERRORS = 2.0  # of log p, by which it may miss the weight of a second mode without a word
HEAVIER = 2.0  # times the weight of the first: not the same mode by another name


class Found(NamedTuple):
    words: str
    modes: np.ndarray  # (G, D): the heaviest mode of each group
    outweigh: bool  # not all of them are those that the fit had


def second_modes(
    model: Model, state: State, error: float, advance: Callable[[State], State]
) -> Found | None:
    """What was found; None if nothing was that matters beside the error of log p.

    `advance` takes one step.
    """
    here = to_host(state.memory.here)
    sd, share = _spread(state), np.zeros(len(here.modes))
    modes, most = np.array(here.modes), here.log_p + np.log(HEAVIER)
    for first in _starts(model, here.modes, sd):
        other = to_host(advance(_looking_from(state, first)).memory.here)
        apart = np.any(np.abs(other.modes - here.modes) > APART * sd, axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            weight = np.exp(np.minimum(other.log_p - here.log_p, 5.0))
        share = np.maximum(share, np.where(apart & np.isfinite(weight), weight, 0.0))
        # By log p: the weights end at e^5, and would not tell the heaviest of several.
        heavier = apart & (other.log_p > most)
        modes[heavier], most[heavier] = other.modes[heavier], other.log_p[heavier]
    missed = float(on_the_host(model) @ np.log1p(share))
    if missed <= ERRORS * error:
        return None
    where = f"in {int((share > 0).sum())} of {len(share)} groups " if model.grouped else ""
    words = (
        f"{where}the latents have a second mode, with up to {share.max():.2g} times the weight of "
        f"the first, so that log p misses {missed:.2g}, and theta may be off. Order latents that "
        "can be exchanged; for log p at one theta give jalax.log_evidence a "
        "reference=jalax.references.Modes(...)"
    )
    return Found(words, modes, not np.array_equal(modes, here.modes))


def _spread(state: State) -> np.ndarray:
    """(G, D): the posterior standard deviation of each latent, by the points."""
    particles, log_weights = to_host((state.particles, state.log_weights))
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))[:, :, None]
    leaves = [leaf.reshape(*log_weights.shape, -1) for leaf in jax.tree.leaves(particles)]
    x = np.where(weights > 0, np.concatenate(leaves, axis=2), 0.0)
    total = weights.sum(axis=1, keepdims=True)
    away = x - np.sum(weights * x, axis=1, keepdims=True) / total
    return np.sqrt(np.sum(weights * away**2, axis=1) / total[:, 0]) + 1e-30


def _starts(model: Model, modes: np.ndarray, sd: np.ndarray) -> Iterator[np.ndarray]:
    """Mirrored at the example latent, and at the mean of each array, which exchanges two labels."""
    sizes = [leaf.size for leaf in jax.tree.leaves(model.latent)]
    arrays = np.split(modes, np.cumsum(sizes)[:-1], axis=1)
    means = [np.broadcast_to(a.mean(axis=1, keepdims=True), a.shape) for a in arrays]
    yield 2 * np.asarray(ravel_latent(model)[0]) - modes
    yield 2 * np.concatenate(means, axis=1) - modes
    yield modes + AWAY * sd
    yield modes - AWAY * sd


def _looking_from(state: State, modes: np.ndarray) -> State:
    """The state of a climb about to look at theta, with its searches beginning there."""
    theta, _ = ravel_pytree(state.theta)
    known = {"phase": LOOKING, "rejected": -1}  # there is nothing to compare it with
    numbers = {name: np.asarray(x, np.int32) for name, x in known.items()}
    state = searching_from(state, modes)
    return state._replace(memory=state.memory._replace(trial=theta, **numbers))


def searching_from(state: State, modes: np.ndarray) -> State:
    """With other places where the next search for the modes begins."""
    here = state.memory.here
    here = here._replace(modes=np.asarray(modes, here.modes.dtype))
    return state._replace(memory=state.memory._replace(here=here))
