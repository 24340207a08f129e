"""What the user writes down (a log-joint density), and the one place that calls it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jalax import _batches, _tree, _weights
from jalax._static import Static, traced_once
from jalax._tree import Tree


@dataclasses.dataclass(frozen=True)
class Outside:
    """How a model's numbers look to the user, where that is not how the fit sees them.

    Attributes:
        unconstrain: the user's theta to the fit's, the inverse of `Model.constrain`. With it,
            start values are on the user's scale.
        latent: `(theta, x, data)`, theta on the user's scale: x as the user knows it.
        derived: `(theta, x, data)`: what else the model computes from them.
        labels: a name for each number of the user's theta.
        groups: a name for each group.
        observed: the entries of the data that were observed; the others are constants.
    """

    unconstrain: Callable | None = None
    latent: Callable | None = None
    derived: Callable | None = None
    labels: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    observed: tuple[str, ...] | None = None

    def __post_init__(self):
        for name in ("unconstrain", "latent", "derived"):
            function = getattr(self, name)
            if function is not None:
                object.__setattr__(self, name, Static.of(function))

    def refreshed(self) -> Outside:
        """A copy whose functions are keyed by what they read now."""

        def fresh(function: Any) -> Static | None:
            return None if function is None else function.fresh()

        return dataclasses.replace(
            self,
            unconstrain=fresh(self.unconstrain),
            latent=fresh(self.latent),
            derived=fresh(self.derived),
        )


class Model:
    r"""A latent variable model $p_\theta(x, y)$, given by the log of its joint density.

    Args:
        log_joint: `log_joint(theta, x, data)` returns the scalar $\log p_\theta(x, y)$, with
            every constant that depends on theta (and, for an absolute evidence, every other
            constant) included.
        latent: an example of ONE latent configuration x, any pytree of float arrays.
        data: any pytree of arrays. It is traced: new data of the same shapes does not recompile.
        theta: an optional default start value of the parameters.
        constrain: an optional map from unconstrained theta to the one that `log_joint` and the
            results use. Start values are on the unconstrained scale.
        particle_batch: how many particles to visit at a time, to save memory; by default all of
            them, as long as that is little. The answer does not depend on it.

    >>> import jax.numpy as jnp, jalax
    >>> def log_joint(theta, x, data):
    ...     return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data - x) ** 2)
    >>> jalax.Model(log_joint, latent=jnp.zeros(3), data=jnp.array([1.0, 2.0, 3.0]))
    Model(log_joint, latent=float32[3], data=float32[3])
    """

    log_joint: Static
    constrain: Static | None
    latent: Tree
    data: Tree
    theta: Tree
    group_batch: int | None = None
    particle_batch: int | None = None
    outside: Outside = Outside()
    grouped = False

    def __init__(
        self,
        log_joint: Callable[[Any, Any, Any], Any],
        latent: Tree,
        data: Tree = None,
        *,
        theta: Tree = None,
        constrain: Callable[[Any], Any] | None = None,
        particle_batch: int | None = None,
    ):
        if not callable(log_joint):
            raise TypeError(
                f"log_joint must be a function log_joint(theta, x, data), got {type(log_joint)}."
            )
        if constrain is not None and not callable(constrain):
            raise TypeError(
                f"constrain must be a function of theta or None, got {type(constrain)}."
            )
        self.log_joint = Static.of(log_joint)
        self.constrain = None if constrain is None else Static.of(constrain)
        self.latent, self.data, self.theta = latent, data, theta
        self.particle_batch = particle_batch
        self._check_batches()
        if not jax.tree.leaves(latent):
            raise ValueError(
                "latent is empty: pass an example of one latent configuration x, "
                "such as jnp.zeros(9)."
            )

    def __init_subclass__(cls):
        jax.tree_util.register_pytree_with_keys_class(cls)

    @property
    def num_groups(self) -> int:
        return 1

    def replace(self, **changes) -> Model:
        """A copy with other `latent`, `data`, `theta`, `group_batch` or `particle_batch`."""
        names = ("latent", "data", "theta", "group_batch", "particle_batch")
        unknown = set(changes) - set(names)
        if unknown:
            raise TypeError(f"replace takes {', '.join(names)}, not {sorted(unknown)}.")
        aux = self.log_joint, self.constrain, None, None, self.outside
        copy = self.tree_unflatten(aux, (None, None, None))
        for name in names:
            setattr(copy, name, changes.get(name, getattr(self, name)))
        copy._check_batches()
        return copy

    def _check_batches(self) -> None:
        if self.group_batch is not None:
            raise ValueError(
                "group_batch= is for models whose latents fall into groups, a "
                f"jalax.GroupedModel; this is a {type(self).__name__}. Use particle_batch= here."
            )
        _check_batch("particle_batch", "particles", self.particle_batch)

    def refreshed(self) -> Model:
        """A copy whose functions are keyed by what they read now, not when it was built."""
        constrain = None if self.constrain is None else self.constrain.fresh()
        outside = self.outside.refreshed()
        aux = self.log_joint.fresh(), constrain, self.group_batch, self.particle_batch, outside
        return self.tree_unflatten(aux, (self.latent, self.data, self.theta))

    def constrained(self, theta: Tree) -> Tree:
        """theta on the user's scale."""
        return theta if self.constrain is None else self.constrain(theta)

    def unconstrained(self, theta: Tree) -> Tree:
        """A start value on the fit's scale."""
        return theta if self.outside.unconstrain is None else self.outside.unconstrain(theta)

    def tree_flatten_with_keys(self):
        keys = [jax.tree_util.GetAttrKey(name) for name in ("latent", "data", "theta")]
        children = zip(keys, (self.latent, self.data, self.theta), strict=True)
        batches = self.group_batch, self.particle_batch
        return tuple(children), (self.log_joint, self.constrain, *batches, self.outside)

    @classmethod
    def tree_unflatten(cls, aux, children):
        model = object.__new__(cls)  # children may be tracers or placeholders: no checks here
        model.log_joint, model.constrain, model.group_batch, model.particle_batch = aux[:4]
        model.outside = aux[4]
        model.latent, model.data, model.theta = children
        return model

    def __repr__(self) -> str:
        parts = f"{self.log_joint!r}, latent={_tree.describe(self.latent)}"
        if self.data is not None:
            parts += f", data={_tree.describe(self.data)}"
        return f"{type(self).__name__}({parts})"


class GroupedModel(Model):
    r"""A model whose latents fall into independent groups, $\prod_i p_\theta(x_i, y_i)$.

    Each group gets its own particles, weights and resampling, so that weights degenerate
    with the size of one group and not with the number of groups.

    Args:
        log_joint: `log_joint(theta, x_i, data_i)` of ONE group.
        latent: an example of one group's latent.
        data: a pytree of arrays, every leaf leading with the group axis.
        theta: as in `Model`.
        constrain: as in `Model`.
        group_batch: how many groups to work on at a time, to save memory; by default as many as
            half a gigabyte allows. The answer does not depend on it.
    """

    grouped = True

    def __init__(
        self, log_joint, latent, data, *, theta=None, constrain=None, group_batch: int | None = None
    ):
        super().__init__(log_joint, latent, data, theta=theta, constrain=constrain)
        self.group_batch = group_batch
        self._check_batches()
        lengths = {
            jax.tree_util.keystr(path) or "data": (jnp.shape(leaf)[0] if jnp.ndim(leaf) else None)
            for path, leaf in jax.tree_util.tree_leaves_with_path(data)
        }
        if not lengths:
            raise ValueError(
                "a GroupedModel needs data with at least one array, whose first axis counts the "
                "groups; without data use jalax.Model."
            )
        if 0 in lengths.values():
            raise ValueError("a GroupedModel needs at least one group; its data has none.")
        if len(set(lengths.values())) > 1 or None in lengths.values():
            found = ", ".join(f"{name}: {n or 'a scalar'}" for name, n in lengths.items())
            raise ValueError(
                "every data leaf of a GroupedModel must lead with the group axis, all of the same "
                f"length; found {found}. Repeat shared values along a leading axis, for example "
                "with jnp.broadcast_to; groups of different length are padded by jalax.group_by."
            )

    @property
    def num_groups(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def _check_batches(self) -> None:
        if self.particle_batch is not None:
            raise ValueError(
                "particle_batch= is for models without groups; a jalax.GroupedModel saves memory "
                "with group_batch=, the number of groups to work on at a time."
            )
        _check_batch("group_batch", "groups", self.group_batch)


def _check_batch(name: str, things: str, size: Any) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ValueError(f"{name} must be a positive number of {things}, or None, got {size!r}.")


jax.tree_util.register_pytree_with_keys_class(Model)


def log_joint(model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
    """log p_theta(x, y) of every particle of every group."""
    one = traced_once(model.log_joint, model.constrain)
    size = _batches.particles_at_once(model, theta, _num_particles(particles))

    def of_group(x, data):
        if size is None:
            return jax.vmap(lambda x: one(theta, x, data))(x)
        return lax.map(lambda x: one(theta, x, data), x, batch_size=size)

    each = _num_particles(particles) * _batches.numbers_per_particle(model, theta)
    return over_groups(model, of_group, particles, each=each)


def _num_particles(particles: Tree) -> int:
    return jax.tree.leaves(particles)[0].shape[1]


class Evaluation(NamedTuple):
    """One visit of a point (theta, particles); `pull` is the pull-back of log p there."""

    particles: Tree
    log_joint: Float[Array, "G N"]
    grad_x: Tree
    alive: Bool[Array, "G N"]
    pull: Callable[[Array], tuple[Tree, Tree]]


class Point(NamedTuple):
    """What a step keeps of its last visit, so that the next step starts without a new one."""

    log_joint: Float[Array, "G N"]
    grad_x: Tree
    grad_theta: Tree


def evaluate(model: Model, theta: Tree, particles: Tree) -> Evaluation:
    """log p and its x-gradient at every particle: one forward and one backward pass."""
    num = _num_particles(particles)
    each = num * _batches.numbers_per_particle(model, theta)  # what the pull-backs need
    if _batches.groups_at_once(model, each) is not None:
        value, grad_x, pull = _evaluate_in_batches(model, theta, particles, each)
    elif (size := _batches.particles_at_once(model, theta, num)) is not None:
        value, grad_x, pull = _evaluate_in_blocks(model, theta, particles, size)
    else:
        value, pull = jax.vjp(lambda t, x: log_joint(model, t, x), theta, particles)
        _, grad_x = pull(jnp.ones_like(value))
    alive = jnp.isfinite(value) & _tree.all_finite(grad_x)
    return Evaluation(particles, value, grad_x, alive, pull)


def _evaluate_in_batches(model: Model, theta: Tree, particles: Tree, each: int) -> tuple:
    """The pull-back passes forward again: what it needs is not kept for all groups."""
    one = traced_once(model.log_joint, model.constrain)
    slope = jax.vmap(jax.value_and_grad(one, argnums=1), in_axes=(None, 0, None))
    value, grad_x = over_groups(model, lambda x, data: slope(theta, x, data), particles, each=each)

    def weighted(part, particles, weights):
        return jax.grad(lambda t: jnp.sum(weights * log_joint(part, t, particles)))(theta)

    def pull(weights):
        return sum_over_groups(model, weighted, particles, weights, each=each), None

    return value, grad_x, pull


def _evaluate_in_blocks(model: Model, theta: Tree, particles: Tree, size: int) -> tuple:
    """The same over blocks of the particles of a model without groups."""
    one = traced_once(model.log_joint, model.constrain)
    slope = jax.value_and_grad(one, argnums=1)
    x = jax.tree.map(lambda leaf: leaf[0], particles)
    found = lax.map(lambda x: slope(theta, x, model.data), x, batch_size=size)
    value, grad_x = jax.tree.map(lambda leaf: leaf[None], found)

    def weighted(block):
        x, weights = block
        block_model = model.replace(particle_batch=weights.shape[0])
        values = partial(log_joint, block_model, particles=jax.tree.map(lambda a: a[None], x))
        return jax.grad(lambda t: jnp.sum(weights * values(t)[0]))(theta)

    def pull(weights):
        return _tree.sum_over_batches(weighted, (x, weights[0]), size), None

    return value, grad_x, pull


def weigh(
    model: Model, theta: Tree, visit: Evaluation, log_weights: Float[Array, "G N"]
) -> tuple[Tree, Point]:
    """The weighted theta-gradient by a second pull-back, and the particles that carry on.

    A dead particle has weight -inf, but zero times a NaN derivative would still poison the
    sum over particles: it is moved onto the heaviest particle of its group (where its zero
    weight keeps it out of every average), and the point is visited again.
    """
    weights = _weights.normalise(log_weights)

    def revisit(first):
        # The particles as the loop carries them: another mention would make XLA copy them.
        particles, _ = first
        heaviest = jnp.broadcast_to(
            jnp.argmax(log_weights, axis=-1, keepdims=True), log_weights.shape
        )
        moved = _tree.select(visit.alive, particles, _tree.gather(particles, heaviest))
        again = evaluate(model, theta, moved)
        grad_theta, _ = again.pull(weights)
        return moved, Point(again.log_joint, again.grad_x, grad_theta)

    grad_theta, _ = visit.pull(weights)
    first = visit.particles, Point(visit.log_joint, visit.grad_x, grad_theta)
    return _tree.run_if(~jnp.all(visit.alive), revisit, first)


@partial(jax.jit, static_argnums=0)
def at_particles(function: Static, model: Model, theta: Tree, particles: Tree) -> Tree:
    """`function(theta, x, data)` of one group at every particle of every group."""
    per_particle = jax.vmap(function, in_axes=(None, 0, None))
    return over_groups(model, lambda x, data: per_particle(theta, x, data), particles)


def ravel_latent(model: Model) -> tuple[Array, Callable[[Array], Tree]]:
    """The example latent as one vector, and the way back for one vector."""
    return ravel_pytree(model.latent)


def log_joint_of_vectors(
    model: Model, theta: Tree
) -> Callable[[Float[Array, " D"], Tree], Float[Array, ""]]:
    """log p_theta(x, y) as a function of one ravelled latent and one group's data."""
    _, unravel = ravel_latent(model)
    density = traced_once(model.log_joint, model.constrain)
    return lambda vector, data: density(theta, unravel(vector), data)


def over_groups(model: Model, function: Callable, *args: Any, each: int | None = None) -> Any:
    """`function(*args_of_group, data_of_group)` for every group, stacked on a leading axis.

    `each` is about how many numbers it holds for a group; by default what a search for the mode
    holds.
    """
    if not isinstance(model, GroupedModel):
        squeezed = jax.tree.map(lambda leaf: leaf[0], args)
        return jax.tree.map(lambda leaf: leaf[None], function(*squeezed, model.data))
    size = _batches.groups_at_once(model, 100 * _batches.data_size(model) if each is None else each)
    if size is None:
        return jax.vmap(function)(*args, model.data)
    return lax.map(lambda group: function(*group), (*args, model.data), batch_size=size)


def sum_over_groups(model: Model, function: Callable, *args: Any, each: int) -> Any:
    """`function(model, *args)`, a sum over groups, added up batch by batch.

    The leaves of `args` lead with the group axis; `each` is as in `over_groups`.
    """
    size = _batches.groups_at_once(model, each)
    if size is None:
        return function(model, *args)

    def part(group: tuple[Tree, tuple]) -> Any:
        data, args = group
        return function(model.replace(data=data, group_batch=size), *args)

    return _tree.sum_over_batches(part, (model.data, args), size)
