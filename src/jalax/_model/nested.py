"""Groups of a few latents, and many units within each group with latents of their own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax._model import inner as integrals
from jalax._model.groups import by_group, positions
from jalax._model.model import GroupedModel, Outside
from jalax._particles import trees
from jalax._particles.trees import Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Inner:
    r"""The units within the groups of a `jalax.NestedModel`.

    Args:
        log_joint: `log_joint(known, v_j, data_j)` of ONE unit: $\log p_\theta(v_j, y_j \mid u)$.
            `known` is `(theta, u)`, u the latent of the unit's group, or what `reads` returns.
        latent: an example of one unit's latent v, one or two numbers.
        data: a pytree of arrays, every leaf leading with the units.
        within: the group of each unit, one label a unit.
        reads: an optional `reads(theta, u, data_j)` that returns all that `log_joint` needs of
            theta and u, such as the linear predictors of the unit's rows. Where these are fewer
            numbers than theta has, the fit takes less time.
    """

    log_joint: Callable[[Any, Any, Any], Any]
    latent: Tree
    data: Tree
    within: Any
    reads: Callable[[Any, Any, Any], Any] | None = None

    def __post_init__(self):
        for name in ("log_joint", "reads"):
            function = getattr(self, name)
            if not callable(function) and (name == "log_joint" or function is not None):
                raise TypeError(f"Inner.{name} must be a function, got {type(function).__name__}.")
        size = trees.size(self.latent)
        if not 1 <= size <= integrals.UP_TO:
            raise ValueError(
                f"the latent of a unit has {size} numbers, and the integrals over it are for 1 to "
                f"{integrals.UP_TO}: use jalax.GroupedModel, with the latents of all units of a "
                "group in its latent."
            )


class NestedModel(GroupedModel):
    r"""Groups with a few latents $u_i$ each, and units within them that have latents of their own.

    Given its group a unit is independent of the others, so that its latents are integrated out by
    themselves:

    $$p_\theta(y) = \prod_i \int p_\theta(u_i, y_i) \prod_{j \in i}
      \left[ \int p_\theta(v_j, y_j \mid u_i)\, dv_j \right] du_i.$$

    A group may have one unit or hundreds. The fit sees the latents of the groups alone; in its
    result `particles` are {"outer": u, "inner": v}, v of all units of a group, in the order they
    were given; what is beyond a group's units is zero.

    Args:
        log_joint: `log_joint(theta, u_i, data_i)` of ONE group, without its units: $\log
            p_\theta(u_i)$ and what was observed of the group itself.
        latent: an example of one group's latent u.
        data: of the groups, in the order of their sorted labels; None: there are none.
        inner: a `jalax.Inner`, which has the units.
        theta: as in `jalax.Model`.
        constrain: as in `jalax.Model`.
        group_batch: as in `jalax.GroupedModel`.
        simulate: as in `jalax.Model`, of ONE group, with x = {"outer": u, "inner": v} and data =
            {"group": data_i, "units": their data, "real": which units there are, "start": v}.

    >>> import jax.numpy as jnp, jalax
    >>> def normal(x, mean, sd):
    ...     return -0.5 * jnp.sum(((x - mean) / sd) ** 2 + jnp.log(2 * jnp.pi * sd**2))
    >>> def log_school(theta, u, data):
    ...     return normal(u, theta, 1.0)
    >>> def log_class(known, v, data):
    ...     theta, u = known
    ...     return normal(v, u, 0.5) + normal(data["y"], v, 1.0)
    >>> classes = jalax.Inner(
    ...     log_class, jnp.zeros(()), {"y": jnp.arange(5.0)}, within=["a", "a", "b", "b", "b"]
    ... )
    >>> model = jalax.NestedModel(log_school, jnp.zeros(()), None, inner=classes)
    >>> model.num_groups, model.latent.shape
    (2, ())
    """

    def __init__(
        self,
        log_joint,
        latent,
        data=None,
        *,
        inner: Inner,
        theta=None,
        constrain=None,
        group_batch: int | None = None,
        simulate: Callable[[Any, Any, Any, Any], Any] | None = None,
    ):
        if not isinstance(inner, Inner):
            raise TypeError(
                f"inner must be a jalax.Inner(log_joint, latent, data, within), got {inner!r}."
            )
        if not callable(log_joint):
            raise TypeError(
                f"log_joint must be a function log_joint(theta, u, data), got {type(log_joint)}."
            )
        arrays = _laid_out(data, inner)
        functions = log_joint, inner.log_joint, inner.reads
        whole = functools.partial(_log_joint, functions, integrals.NUM_POINTS)
        options: dict[str, Any] = {"constrain": constrain, "group_batch": group_batch}
        super().__init__(whole, latent, arrays, theta=theta, simulate=simulate, **options)
        self.outside = Outside(
            simulate=simulate,
            within=functools.partial(_drawn, functions),
            finer=functools.partial(_log_joint, functions, 2 * integrals.NUM_POINTS),
            units=_num_units,
        )


def _log_joint(functions: tuple, num: int, theta: Tree, u: Tree, data: Tree) -> jax.Array:
    log_density, (local, units), start = _units(functions, theta, u, data)
    found = integrals.log_integrals_of(log_density, local, units, start, num, _num_units(data))
    return functions[0](theta, u, data["group"]) + jnp.sum(jnp.where(data["real"], found, 0.0))


def _num_units(data: Tree) -> jax.Array:
    """Of a group; the padding comes after them."""
    return jnp.sum(data["real"], dtype=jnp.int32)


def _units(functions: tuple, theta: Tree, u: Tree, data: Tree) -> tuple:
    """What `integrals` integrates: the log-density of each unit, what it reads, and a first v."""
    _, log_joint, reads = functions
    units, start = data["units"], jax.vmap(_as_vector)(data["start"])

    def read(unit):
        return (theta, u) if reads is None else reads(theta, u, unit)

    known = jax.vmap(read, axis_size=len(start))(units)
    local = jax.vmap(_as_vector)(known)
    _, as_known = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], known))
    as_latent = _latent_of(data)

    def of_unit(local, v, unit):
        return log_joint(as_known(local), as_latent(v), unit)

    def log_density(known: Any, at: integrals.At) -> jax.Array:
        local, units = known
        return jax.vmap(of_unit)(local, at(), units)

    return log_density, (local, units), start


def _as_vector(tree: Tree) -> jax.Array:
    return ravel_pytree(tree)[0]


def _latent_of(data: Tree) -> Callable[[jax.Array], Tree]:
    return ravel_pytree(jax.tree.map(lambda leaf: leaf[0], data["start"]))[1]


def _drawn(functions: tuple, theta: Tree, particles: Tree, data: Tree) -> Tree:
    """The particles of a group with the latents of its units, each several times."""
    first = jax.vmap(_as_vector)(particles)[:, 0]
    real, as_latent = data["real"], _latent_of(data)
    size = trees.size(jax.tree.map(lambda leaf: leaf[0], data["start"]))
    uniforms = integrals.spread_uniforms(first, len(real), size)

    def of_particle(u, uniforms):
        log_density, known, start = _units(functions, theta, u, data)
        count = _num_units(data)
        v = integrals.draws(log_density, known, start, uniforms, count=count)
        return {"outer": u, "inner": jax.vmap(as_latent)(jnp.where(real[:, None], v, 0.0))}

    several = jax.vmap(jax.vmap(of_particle, in_axes=(None, 0)))(particles, uniforms)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), several)


# --- the data -------------------------------------------------------------------------------------


def _laid_out(data: Tree, inner: Inner) -> dict[str, Any]:
    """All data by group; the padding of the units repeats a group's first one."""
    labels, index = positions(inner.within, "Inner.within")
    count = index.size
    for path, leaf in jax.tree_util.tree_leaves_with_path(inner.data):
        if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != count:
            name = jax.tree_util.keystr(path) or "data"
            raise ValueError(
                f"every leaf of Inner.data must lead with the units, of which Inner.within names "
                f"{count}; {name} has the shape {jnp.shape(leaf)}."
            )
    groups = {jnp.shape(leaf)[0] for leaf in jax.tree.leaves(data) if jnp.ndim(leaf)}
    if groups - {labels.size}:
        raise ValueError(
            f"the data have {max(groups - {labels.size})} groups and Inner.within names "
            f"{labels.size}: every group needs a unit, and the data of the groups are in the order "
            "of their sorted labels."
        )
    first = np.unique(index, return_index=True)[1]

    def padded(leaf):
        values = np.asarray(leaf)
        return jnp.asarray(
            np.where(
                _like(real, values), by_group(values, index, labels.size), values[first][:, None]
            )
        )

    real = by_group(np.ones(count, bool), index, labels.size)
    start = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (*real.shape, *jnp.shape(leaf))), inner.latent
    )
    units = jax.tree.map(padded, inner.data)
    group = {} if data is None else data
    return {"group": group, "units": units, "real": jnp.asarray(real), "start": start}


def _like(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    return mask.reshape(*mask.shape, *(1,) * (values.ndim - 1))
