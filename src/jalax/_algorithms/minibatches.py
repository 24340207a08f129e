"""Some groups of a grouped model taken out of the state of a fit, and put back.

A step of JALA-EM (`minibatch=`) visits B of G groups. The others keep their particles, and
log-weights that belong to the theta of their own last visit; the cached log p of that visit says
what to add when theta has moved on, without having kept the theta itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jalax._model.evaluation import Point, evaluate, weigh
from jalax._model.model import GroupedModel, Model
from jalax._model.types import State
from jalax._particles import trees


def check(size: Any, model: Model) -> None:
    if not isinstance(model, GroupedModel):
        raise ValueError(
            "JALAEM.minibatch is a number of groups: it needs a jalax.GroupedModel, and this model "
            "has one joint latent."
        )
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= model.num_groups:
        raise ValueError(
            f"JALAEM.minibatch must be a number of groups, 1 to {model.num_groups}, got {size!r}."
        )


def visits(key, state: State, size: int) -> tuple[Int[Array, " G"], Int[Array, " B"]]:
    """The order of visits, shuffled anew when it is used up, and the groups of this step.

    Groups that are held out come last, where the turn never gets to.
    """
    order, held_out = state.memory.order, state.memory.held_out
    turns = jnp.maximum(jnp.sum(~held_out) // size, 1)
    turn = state.step % turns

    def shuffled(order):
        order = jax.random.permutation(key, order)
        return order[jnp.argsort(held_out[order], stable=True)]

    order = trees.run_if(turn == 0, shuffled, order)
    return order, lax.dynamic_slice_in_dim(order, turn * size, size)


def take_out(model: Model, state: State, index: Int[Array, " B"]) -> tuple[Model, State]:
    """The model and the state of some groups."""
    groups = model.num_groups

    def take(leaf):  # a preconditioner may be one for all groups
        return leaf[index] if leaf.shape[:1] == (groups,) else leaf

    memory, point = state.memory, state.memory.point
    some = memory._replace(
        point=Point(point.log_joint[index], jax.tree.map(take, point.grad_x), point.grad_theta),
        preconditioner=jax.tree.map(take, memory.preconditioner),
        variance=memory.variance[index],
    )
    state = state._replace(
        particles=jax.tree.map(take, state.particles),
        log_weights=state.log_weights[index],
        log_evidence_base=state.log_evidence_base[index],
        memory=some,
    )
    part = model.replace(data=jax.tree.map(lambda leaf: leaf[index], model.data))
    return part, state


def weighed_to_theta(model: Model, state: State) -> State:
    """Weighed to theta_k: a group may have been left where theta was some steps ago."""
    visit = evaluate(model, state.theta, state.particles)
    gain = visit.log_joint - state.memory.point.log_joint
    alive = visit.alive & jnp.isfinite(gain)
    log_weights = jnp.where(alive, state.log_weights + gain, -jnp.inf)
    particles, point = weigh(model, state.theta, visit._replace(alive=alive), log_weights)
    memory = state.memory._replace(point=point)
    return state._replace(particles=particles, log_weights=log_weights, memory=memory)


def put_back(state: State, index: Int[Array, " B"], order: Int[Array, " G"], some: State) -> State:
    """The visited groups among the others; theta and what belongs to it are those of `some`."""
    groups = state.log_weights.shape[0]

    def put(old, new):
        return old.at[index].set(new) if old.shape[:1] == (groups,) else new

    old, new = state.memory, some.memory
    memory = new._replace(
        point=Point(
            put(old.point.log_joint, new.point.log_joint),
            jax.tree.map(put, old.point.grad_x, new.point.grad_x),
            new.point.grad_theta,
        ),
        preconditioner=jax.tree.map(put, old.preconditioner, new.preconditioner),
        variance=put(old.variance, new.variance),
        order=order,
    )
    return State(
        some.step,
        some.theta,
        jax.tree.map(put, state.particles, some.particles),
        put(state.log_weights, some.log_weights),
        put(state.log_evidence_base, some.log_evidence_base),
        memory,
    )
