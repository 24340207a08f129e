"""The density of a mixed model, and draws of its responses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jalax.families._family import JAX, Family
from jalax.families._zeros import LOG_ODDS

from . import _effects
from ._effects import WHITE, Laws

Theta = dict[str, Any]
Blocks = tuple[tuple[str, int], ...]  # the names of blocks, and the levels of each in a group


def linear_predictor(blocks: Blocks, theta: Theta, x: dict, data: dict) -> Array:
    eta = jnp.matmul(data["X"], theta["beta"], precision="highest") + data["offset"]
    for name, levels in blocks:
        b, z = x[name], data["Z"][name]
        if levels == 1:
            effect = jnp.matmul(z, b[0], precision="highest")
        else:
            effect = jnp.sum(z * b[data["level"][name]], axis=-1)
        eta = eta + effect
    mask = jnp.reshape(data["mask"], data["mask"].shape + (1,) * (eta.ndim - data["mask"].ndim))
    return jnp.where(mask, eta, 0.0)  # nothing can overflow in the padding


def own_parameters(family: Family, theta: Theta, data: dict) -> dict[str, Any]:
    """The family's own parameters: numbers of theta, or one for each row by a formula."""
    own = {name: theta[name] for name in family.own if name in theta}
    if "dispersion" in theta:
        own[str(family.dispersion)] = jnp.exp(_of_side("dispersion", theta, data))
    if "precision" in data:
        own["sigma"] = own["sigma"] / jnp.sqrt(jnp.where(data["mask"], data["precision"], 1.0))
    if "zero" in theta:
        own[LOG_ODDS] = _of_side("zero", theta, data)
    return own


def _of_side(what: str, theta: Theta, data: dict) -> Array:
    return jnp.matmul(data[f"X of {what}"], theta[what], precision="highest")


def log_joint(
    family: Family, blocks: Blocks, laws: Laws, theta: Theta, x: dict, data: dict
) -> Array:
    eta = linear_predictor(blocks, theta, _effects.random_effects(laws, theta, x, data), data)
    rows = row_densities(family, theta, eta, data)
    return log_prior(laws, theta, x, data) + jnp.sum(rows)


def log_prior(laws: Laws, theta: Theta, x: dict, data: dict) -> Array:
    return _effects.log_prior(laws, theta, x, data, jnp.zeros((), theta["beta"].dtype))


def row_densities(family: Family, theta: Theta, eta: Array, data: dict) -> Array:
    rows = family.log_density(own_parameters(family, theta, data), eta, data)
    if "weight" in data:
        rows = data["weight"] * rows
    return jnp.where(data["mask"], rows, 0.0)


def from_white(laws: Laws, theta: Theta, white: dict) -> dict:
    """The random effects of white latents."""
    return _effects.random_effects(laws, theta, white, {WHITE: 1})


def simulate(
    family: Family, blocks: Blocks, laws: Laws, key: Any, theta: Theta, x: dict | None, data: dict
) -> dict:
    """New responses; x None: with new random effects, too."""
    key_x, key_y = jax.random.split(key)
    if x is None:
        x = _effects.draw_effects(laws, key_x, theta, dict(blocks), data)
    eta = linear_predictor(blocks, theta, x, data)
    drawn = family.draw(key_y, own_parameters(family, theta, data), eta, data)
    y = jnp.where(data["mask"], drawn, data["y"])
    return data | responses(family, y, data)


def responses(family: Family, y: Array, data: dict) -> dict[str, Array]:
    """The parts of the data that are other with other responses."""
    safe = jnp.where(data["mask"], y, 0.0 if family.has_zero else 1.0)
    return {"y": y} | family.constants(safe, data.get("size"), JAX)


def constrain(family: Family, laws: Laws, theta: Theta) -> Theta:
    """What the optimiser sees as the user does: standard deviations, correlations and so on."""
    own = {n: kind.constrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return _effects.constrain(laws, theta) | own


def unconstrain(family: Family, laws: Laws, theta: Theta) -> Theta:
    own = {n: kind.unconstrain(theta[n]) for n, kind in family.own.items() if n in theta}
    return _effects.unconstrain(laws, theta) | own


def outer_predictor(blocks: Blocks, laws: Laws, theta: Theta, x: dict, data: dict) -> Array:
    return linear_predictor(blocks, theta, _effects.random_effects(laws, theta, x, data), data)
