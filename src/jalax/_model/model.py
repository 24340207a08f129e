"""What the user writes down: a log-joint density, with its latents, data and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jalax._model.groups import Groups, check_frequencies
from jalax._model.hold import Hold
from jalax._model.structure import Pattern, as_pattern
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.compilation import Workload
from jalax._runtime.function_keys import Static, traced_once
from jalax._runtime.layouts import Layout

SMALL = 300_000  # numbers of the data times latents of a group, which a Hessian costs


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
        hold: the form of theta, where some of its numbers are held, those of the model's `held`.
        log_prior: of theta on the user's scale, part of log_joint already.
        simulate: `(key, theta, x, data)`, theta on the user's scale: data like the model's, new
            where it was observed; x None: with new latents, too.
        switch: an entry of the data. Where there is one, x is standard normal a priori, and theta
            is in the likelihood only. See `Model.whitened`.
        white: as `latent`, of a model with that entry.
        within: `(theta, particles, data)` of one group, both on the user's scale: the particles
            with the latents that log_joint integrates out, each several times if need be.
        finer: `(theta, x, data)`, theta on the user's scale: log_joint where the error of such
            integrals is far smaller.
        units: `(data)` of one group: how many units it has whose latents log_joint integrates
            out. It takes as long as the most of the groups that are visited together.
        frequencies: an entry of the data, how often each group occurs.
    """

    FUNCTIONS: ClassVar = (
        *("unconstrain", "latent", "derived", "log_prior", "simulate", "white"),
        *("within", "finer", "units"),
    )

    unconstrain: Callable | None = None
    latent: Callable | None = None
    derived: Callable | None = None
    labels: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    observed: tuple[str, ...] | None = None
    hold: Hold | None = None
    log_prior: Callable | None = None
    simulate: Callable | None = None
    switch: str | None = None
    white: Callable | None = None
    within: Callable | None = None
    finer: Callable | None = None
    units: Callable | None = None
    frequencies: str | None = None

    def __post_init__(self):
        for name in self.FUNCTIONS:
            function = getattr(self, name)
            if function is not None:
                object.__setattr__(self, name, Static.of(function))

    def refreshed(self) -> Outside:
        """A copy whose functions are keyed by what they read now."""

        known = {name: getattr(self, name) for name in self.FUNCTIONS}
        fresh = {name: function.fresh() for name, function in known.items() if function is not None}
        return dataclasses.replace(self, **fresh)


class Model(Workload):
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
        structure: which pairs of latents meet in a term of `log_joint`, where the latent is large
            and most pairs do not: the entries of the Hessian of log p in x that may differ from
            zero, as a pair (rows, cols) of integer arrays, a scipy.sparse matrix or a boolean
            matrix. Positions are those of `jax.flatten_util.ravel_pytree(latent)`; one of the two
            triangles is enough, and the diagonal may be left out. Other entries of the same sizes
            do not recompile.
        simulate: an optional `simulate(key, theta, x, data)` that draws new observations given x,
            and returns data like `data` with these in it; where x is None, it draws a new x
            first. `FitResult.simulate` and `bootstrap` need it.

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
    layout: Layout | None = None  # of its data and particles on the devices of a mesh
    outside: Outside = Outside()
    # On the host only, and no part of the pytree: inside of a program it is None. What programs
    # need of it is the plan, whose indices are traced: others do not recompile.
    structure: Pattern | None = None
    plan: Any = None
    held: Any = None  # a Held: the numbers of theta that are held
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
        structure: Any = None,
        simulate: Callable[[Any, Any, Any, Any], Any] | None = None,
    ):
        if not callable(log_joint):
            raise TypeError(
                f"log_joint must be a function log_joint(theta, x, data), got {type(log_joint)}."
            )
        if constrain is not None and not callable(constrain):
            raise TypeError(
                f"constrain must be a function of theta or None, got {type(constrain)}."
            )
        if simulate is not None:
            if not callable(simulate):
                raise TypeError(
                    "simulate must be a function simulate(key, theta, x, data), got "
                    f"{type(simulate)}."
                )
            self.outside = Outside(simulate=simulate)
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
        self._set_structure(structure)

    def __init_subclass__(cls):
        jax.tree_util.register_pytree_with_keys_class(cls)

    @property
    def num_groups(self) -> int:
        """How many groups there are; 1 of a plain model."""
        return 1

    def is_short(self) -> bool:
        """Small enough for its programs to take longer to compile than to run."""
        latents = trees.size(self.latent)
        return max(trees.size(self.data), latents) * latents <= SMALL

    def replace(self, **changes) -> Model:
        """A copy with another `latent`, `data`, `theta`, `layout`, `structure` or batch."""
        batches = ("group_batch", "particle_batch")
        names = ("latent", "data", "theta", *batches, "layout", "plan", "held")
        unknown = set(changes) - {*names, "structure"}
        if unknown:
            takes = ", ".join((*names, "structure"))
            raise TypeError(f"replace takes {takes}, not {sorted(unknown)}.")
        aux = self.log_joint, self.constrain, None, None, None, self.outside
        copy = self.tree_unflatten(aux, (None,) * 5)
        for name in names:
            setattr(copy, name, changes.get(name, getattr(self, name)))
        copy._check_batches()
        copy._set_structure(changes.get("structure", self.structure))
        return copy

    def _set_structure(self, given: Any) -> None:
        if given is not None and self.grouped:
            raise ValueError(
                "structure= is for a jalax.Model, whose latent is one large one; the latents of "
                "different groups of a jalax.GroupedModel never meet, and those of one group are "
                "taken as dense."
            )
        self.structure = None if given is None else as_pattern(given, trees.size(self.latent))

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
        where = self.group_batch, self.particle_batch, self.layout
        aux = self.log_joint.fresh(), constrain, *where, self.outside.refreshed()
        children = self.latent, self.data, self.theta, self.plan, self.held
        copy = self.tree_unflatten(aux, children)
        copy.structure = self.structure
        return copy

    @property
    def maps_theta(self) -> bool:
        """Whether theta looks otherwise to the user than to the fit."""
        return self.constrain is not None or self.outside.hold is not None

    def filled(self, theta: Tree) -> Tree:
        """theta on the optimiser's scale, with the numbers that are held."""
        return theta if self.outside.hold is None else self.outside.hold.fill(theta, self.held)

    def constrained(self, theta: Tree) -> Tree:
        """theta on the user's scale."""
        theta = self.filled(theta)
        return theta if self.constrain is None else self.constrain(theta)

    def unconstrained(self, theta: Tree) -> Tree:
        """A start value on the fit's scale."""
        known = self.outside
        theta = theta if known.unconstrain is None else known.unconstrain(theta)
        return theta if known.hold is None else known.hold.pick(theta, self.held)

    def whitened(self) -> Model | None:
        """The same model with standard normal latents; None where it has no such form, or has it.

        A variance of zero is no singularity then, so that a climb can arrive there. Far from it,
        where the data say much about each latent, they would hide what is known about theta.
        """
        switch = self.outside.switch
        if switch is None or self.is_white:
            return None
        return self.replace(data=self.data | {switch: jnp.ones(self.num_groups)})

    @property
    def is_white(self) -> bool:
        """Whether its latents are those of `whitened`."""
        return self.outside.switch is not None and self.outside.switch in self.data

    @property
    def frequencies(self) -> Any:
        """(G,): how often each group occurs; None: once."""
        name = self.outside.frequencies
        return None if name is None else self.data[name]

    @property
    def latent_outside(self) -> Callable | None:
        """`(theta, x, data)`: x as the user knows it; None: as it is."""
        return self.outside.white if self.is_white else self.outside.latent

    def density(self) -> Callable[[Tree, Tree, Tree], Any]:
        """log_joint as a function of the fit's theta, of x and of the data (of one group)."""
        one = traced_once(self.log_joint, self.constrain)
        if self.outside.hold is None:
            return one
        return lambda theta, x, data: one(self.filled(theta), x, data)

    def tree_flatten_with_keys(self):
        names = ("latent", "data", "theta", "plan", "held")
        children = ((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names)
        where = self.group_batch, self.particle_batch, self.layout
        return tuple(children), (self.log_joint, self.constrain, *where, self.outside)

    @classmethod
    def tree_unflatten(cls, aux, children):
        model = object.__new__(cls)  # children may be tracers or placeholders: no checks here
        model.log_joint, model.constrain, model.group_batch, model.particle_batch = aux[:4]
        model.layout, model.outside = aux[4:]
        model.latent, model.data, model.theta, model.plan, model.held = children
        return model

    def __repr__(self) -> str:
        parts = f"{self.log_joint!r}, latent={trees.describe(self.latent)}"
        if self.data is not None:
            parts += f", data={trees.describe(self.data)}"
        return f"{type(self).__name__}({parts})"


class GroupedModel(Model):
    r"""A model whose latents fall into independent groups, $\prod_i p_\theta(x_i, y_i)$.

    Each group gets its own particles, weights and resampling, so that weights degenerate
    with the size of one group and not with the number of groups.

    Args:
        log_joint: `log_joint(theta, x_i, data_i)` of ONE group.
        latent: an example of one group's latent.
        data: a pytree of arrays, every leaf leading with the group axis. An array that all groups
            read can be in the closure of log_joint, `functools.partial(log_joint, table)`, where it
            is there once; other values of it compile again.
        theta: as in `Model`.
        constrain: as in `Model`.
        group_batch: how many groups to work on at a time, to save memory; by default as many as
            half a gigabyte allows. The answer does not depend on it.
        structure: for a `Model` only.
        simulate: as in `Model`, of ONE group.
        frequencies: the entry of `data`, a dict then, that says how often each group occurs, if
            some do several times: answers of 1,000 persons with 30 patterns are 30 groups.
    """

    grouped = True

    def __init__(
        self,
        log_joint,
        latent,
        data,
        *,
        theta=None,
        constrain=None,
        group_batch: int | None = None,
        structure: None = None,
        simulate: Callable[[Any, Any, Any, Any], Any] | None = None,
        frequencies: str | None = None,
    ):
        if isinstance(data, Groups):
            raise TypeError(
                "data is all that jalax.group_by returned: pass its arrays, data=groups.data."
            )
        same: dict[str, Any] = {"theta": theta, "constrain": constrain, "structure": structure}
        super().__init__(log_joint, latent, data, simulate=simulate, **same)
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
            found = [f"{name}: {n or 'a scalar'}" for name, n in lengths.items()]
            shown = ", ".join(found[:6]) + (f" and {len(found) - 6} more" * (len(found) > 6))
            raise ValueError(
                "every data leaf of a GroupedModel must lead with the group axis, all of the same "
                f"length; found {shown}. Groups of different length are padded by jalax.group_by; "
                "repeat shared values along a leading axis, for example with jnp.broadcast_to."
            )
        if frequencies is not None:
            if simulate is not None:
                raise ValueError(
                    "with frequencies= a group stands for several, which would be simulated as "
                    "one: leave simulate= out, or repeat the groups."
                )
            check_frequencies(frequencies, data)
            self.outside = Outside(frequencies=frequencies)

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
