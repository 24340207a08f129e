"""The table of random effects: posterior means, or modes as lme4 has them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._fit.result import FitResult
from jalax._frontends.mixed_parts import Levels, homes, size_of
from jalax._frontends.mixed_posterior import effects_of, posterior, whole_model_of
from jalax._model.evaluation import log_joint_of_vectors, over_groups, ravel_latent
from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax._reference.mode_search import DENSE_UP_TO, find_mode
from jalax._runtime.compilation import LEVEL_1, jit
from jalax._runtime.layouts import use_mesh
from jalax.models._mixed import MixedDesign

POLISH = 3  # Newton's steps after a search that ends where log p has no more digits


class Centre:
    """What a random effect is reported by."""

    def levels(self, result: FitResult, mixed: MixedDesign) -> Levels:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Mean(Centre):
    """The posterior mean and standard deviation, at the theta of the fit."""

    def levels(self, result: FitResult, mixed: MixedDesign) -> Levels:
        return posterior(result, mixed).levels()


@dataclasses.dataclass(frozen=True)
class Mode(Centre):
    """The mode of the posterior, and the standard deviation of the normal distribution there.

    lme4's `ranef` and `condVar`, also where they are no mean: of binary data both are nearer to
    zero. For up to 2,000 random effects that depend on each other.
    """

    def levels(self, result: FitResult, mixed: MixedDesign) -> Levels:
        if not all(law.is_normal for _, law in mixed.laws):  # its latents are bent, and their mode
            raise ValueError(
                "modes are those of normal random effects, and here are Student's: use "
                "jalax.predictions.Mean()."
            )
        if (size := size_of(mixed)) > DENSE_UP_TO:
            raise ValueError(
                f"modes are for up to {DENSE_UP_TO} random effects that depend on each other, and "
                f"here are {size}: use jalax.predictions.Mean()."
            )
        model = whole_model_of(result, mixed)
        with use_mesh(model.layout):
            mode, variance = _modes(model, model.unconstrained(result.theta))
        sd = np.sqrt(np.asarray(variance, float))
        return Levels(np.asarray(mode, float), sd, np.zeros_like(sd))


@jit(LEVEL_1)
def _modes(model: Model, theta: Tree) -> tuple[jax.Array, jax.Array]:
    """(G, D) each: b at the mode of the latents, and its variances by the curvature there."""
    found, log_p = find_mode(model, theta), log_joint_of_vectors(model, theta)
    user, (_, unravel) = model.constrained(theta), ravel_latent(model)

    def of_group(x, root, data):
        for _ in range(POLISH):
            inside = jnp.matmul(root.T, jax.grad(log_p)(x, data), precision="highest")
            x = x + jnp.matmul(root, inside, precision="highest")

        def effects(v):
            return ravel_pytree(effects_of(model, user, unravel(v), data))[0]

        spread = jnp.matmul(jax.jacfwd(effects)(x), root, precision="highest")
        return effects(x), jnp.sum(spread**2, axis=1)

    return over_groups(model, of_group, found.x, found.root)


def table(result: FitResult, mixed: MixedDesign, centre: Centre) -> dict[str, Any]:
    """`MixedResult.random_effects`."""
    import pandas

    if not isinstance(centre, Centre):
        raise TypeError(
            f"at must be jalax.predictions.Mean() or jalax.predictions.Mode(), got {centre!r}."
        )
    known = centre.levels(result, mixed)
    frames = {}
    for block in mixed.design.blocks:
        group, position = homes(mixed, block)
        there = np.flatnonzero(group >= 0)
        columns = {}
        for j, effect in enumerate(block.effects):
            at = group[there], position[there] + j
            for suffix, values in zip(("", " sd", " mc error"), known, strict=True):
                columns[f"{effect}{suffix}"] = values[at]
        index = pandas.Index([block.labels[i] for i in there], name=block.factor)
        frames[block.name] = pandas.DataFrame(columns, index=index)
    return frames
