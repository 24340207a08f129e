"""The random effects of all blocks: what a mixed model asks of their laws together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ._covariances import Placed
from ._design import Design
from ._laws import PARTS, Law, own_of, with_own

Theta = dict[str, Any]
Laws = tuple[tuple[str, Law], ...]  # by the names of blocks

WHITE = "white"  # an entry of the data of a model whose latents are white, see Model.whitened
COVARIANCE = "covariance"  # an entry that has, by block, what its law knows besides theta


def placed_blocks(design: Design, labels: Mapping[str, Any]) -> dict[str, Placed]:
    """The law of each block; `labels` are those of the levels that it has latents of."""
    return {
        block.name: design.covariances[block.name].placed(block, labels[block.name], design.frame)
        for block in design.blocks
    }


def has_joint_levels(design: Design) -> bool:
    """Do the levels of any factor depend on each other?"""
    return any(design.covariances[block.name].is_joint(block) for block in design.blocks)


# --- compiled ------------------------------------------------------------------------------------


def log_prior(laws: Laws, theta: Theta, x: dict, data: dict, total: Array) -> Array:
    """The log-density of the latents of all blocks, added to `total`."""
    for name, law in laws:
        density = law.log_white if WHITE in data else law.log_prior
        total = total + density(own_of(theta, name), x[name], _known(data, name))
    return total


def random_effects(laws: Laws, theta: Theta, x: dict, data: dict) -> dict:
    """The random effects b: x itself or, where x is white, Lambda x.

    Of nested factors x has the outer ones alone.
    """
    if WHITE not in data:
        return x
    return {n: law.effects(own_of(theta, n), x[n], _known(data, n)) for n, law in laws if n in x}


def of_white(laws: Laws, theta: Theta, name: str, white: Array) -> Array:
    """The random effects of one block from white latents, where its law knows nothing else."""
    return dict(laws)[name].effects(own_of(theta, name), white, {})


def whiten(laws: Laws, theta: Theta, b: dict) -> dict:
    """x of a model whose latents are white, from the random effects."""
    return {name: law.whitened(own_of(theta, name), b[name], {}) for name, law in laws}


def draw_effects(laws: Laws, key: Any, theta: Theta, levels: Mapping[str, int], data: dict) -> dict:
    """New random effects, of so many levels."""
    keys = jax.random.split(key, len(laws))
    return {
        name: law.draw(k, own_of(theta, name), levels[name], _known(data, name))
        for k, (name, law) in zip(keys, laws, strict=True)
    }


def _known(data: dict, name: str) -> Any:
    return data.get(COVARIANCE, {}).get(name, {})


def constrain(laws: Laws, theta: Theta) -> Theta:
    """The numbers of all blocks from what the optimiser sees."""
    return with_own(theta, {name: law.constrain(own_of(theta, name)) for name, law in laws})


def unconstrain(laws: Laws, theta: Theta) -> Theta:
    return with_own(theta, {name: law.unconstrain(own_of(theta, name)) for name, law in laws})


# --- on the host ---------------------------------------------------------------------------------


def labels_of(design: Design, placed: Mapping[str, Placed]) -> dict[str, list[str]]:
    """A name for each number of the blocks, by the part of theta, in the order of theta."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    for block in sorted(design.blocks, key=lambda block: block.name):
        law, _, over = placed[block.name]
        for part, words in law.words(block.effects, over).items():
            found[part] += [f"{word} | {block.name}" for word in words]
    return found


def joint_pairs(latent: Mapping[str, Any], placed: Mapping[str, Placed]) -> list[tuple[Any, Any]]:
    """Which latents meet by the covariances of levels, as positions in the ravelled latent."""
    found, begin = [], 0
    for name in sorted(latent):
        law, known, _ = placed[name]
        if law.is_joint:
            rows, cols = law.correlation.pairs(known)
            found.append((begin + rows, begin + cols))
        begin += np.size(latent[name])
    return found


def known_arrays(placed: Mapping[str, Placed]) -> dict[str, dict[str, Any]]:
    """What goes into the data."""
    return {name: one.known for name, one in placed.items() if one.known}
