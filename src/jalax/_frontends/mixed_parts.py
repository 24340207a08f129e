"""The random effects of rows: where each is among the latents, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jalax._evidence.uncertainty import Uncertainty
from jalax.models import _new_rows
from jalax.models._formula import Block
from jalax.models._laws import own_of
from jalax.models._mixed import MixedDesign

Theta = dict[str, Any]


class Parts(NamedTuple):
    """Random effects in the linear predictor of rows: sum_k z[k] b[group, position[k]]."""

    group: np.ndarray  # (n,)
    position: np.ndarray  # (n, K), among the flat latents of the group
    z: np.ndarray  # (n, K)


class Levels(NamedTuple):
    """Of every random effect, (G, D)."""

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray  # of the mean, by Monte Carlo


class Posterior(Protocol):
    def levels(self) -> Levels: ...

    def moments(self, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the random part of each row."""

    def slopes(self, parts: Parts) -> np.ndarray:
        """(n, P): how these means move with theta, on the user's scale."""

    def average(self, of: Callable, base: np.ndarray, parts: Parts) -> np.ndarray:
        """The mean of `of(base + random part)`."""

    def draw(self, key: jax.Array) -> np.ndarray:
        """(G, D): one draw of all random effects."""


# --- where a random effect is --------------------------------------------------------------------


def first_positions(mixed: MixedDesign) -> dict[str, int]:
    """Of each block among the flat latents of a group, which are in the order of the names."""
    first, begin = {}, 0
    for block in sorted(mixed.design.blocks, key=lambda block: block.name):
        first[block.name] = begin
        begin += mixed.levels[block.name].shape[-1] * len(block.effects)
    return first


def size_of(mixed: MixedDesign) -> int:
    """Latents of a group."""
    blocks = mixed.design.blocks
    return sum(mixed.levels[block.name].shape[-1] * len(block.effects) for block in blocks)


def homes(mixed: MixedDesign, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """The group of each level, and its first position there; -1: a level without rows."""
    known = np.atleast_2d(mixed.levels[block.name])
    group = np.full(len(block.labels), -1)
    position = np.zeros(len(block.labels), int)
    g, place = np.nonzero(known >= 0)
    level = known[g, place]
    group[level] = g
    position[level] = first_positions(mixed)[block.name] + place * len(block.effects)
    return group, position


def parts_of(mixed: MixedDesign, random: _new_rows.Random) -> list[Parts]:
    """The known random effects of rows; the second of the list where a row meets two groups.

    New rows may join levels of nested factors that were apart in the data. Groups are
    independent, so what they add to a row is added up.
    """
    groups, positions, zs = [], [], []
    for block in mixed.design.blocks:
        group, position = homes(mixed, block)
        level, effects = random.level[block.name], len(block.effects)
        own = np.where(level >= 0, group[level], -1)
        groups.append(np.repeat(own[:, None], effects, axis=1))
        positions.append(position[level][:, None] + np.arange(effects))
        zs.append(random.Z[block.name])
    group, position, z = (np.concatenate(columns, axis=1) for columns in (groups, positions, zs))
    found: list[Parts] = []
    left = group >= 0
    while not found or left.any():
        first = np.argmax(left, axis=1)
        lead = np.where(left.any(axis=1), group[np.arange(len(group)), first], 0)
        here = left & (group == lead[:, None])
        found.append(Parts(lead, np.where(here, position, 0), np.where(here, z, 0.0)))
        left = left & ~here
    return found


# --- theta ---------------------------------------------------------------------------------------


def numbers(theta: Theta) -> Theta:
    """theta in NumPy and float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), theta)


def covariance_of(mixed: MixedDesign, theta: Theta, block: Block) -> np.ndarray:
    """Sigma of a block; where its levels depend on each other, of all levels."""
    law, known, _ = mixed.placed[block.name]
    return law.covariance(own_of(theta, block.name), known)


def check_new_levels(mixed: MixedDesign, random: _new_rows.Random) -> None:
    """Refuse new levels that depend on those of the data."""
    for name, law in mixed.laws:
        if law.is_joint and (random.level[name] < 0).any():
            raise ValueError(
                f"the levels of {name!r} depend on each other, and how a new one depends on them "
                "is not known here: use effects=jalax.predictions.Population()."
            )


def has_joint_levels(mixed: MixedDesign) -> bool:
    """Do the levels of any factor depend on each other?"""
    return any(law.is_joint for _, law in mixed.laws)


def theta_covariance(known: Uncertainty) -> np.ndarray:
    """(P, P) on the user's scale; numbers without a standard error are taken as known."""
    free = np.where(np.isfinite(known.covariance), known.covariance, 0.0)
    return known.jacobian @ free @ known.jacobian.T
