"""Models written in NumPyro: `numpyro.param` is theta, unobserved `numpyro.sample` is x."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._frontends.constrained import require_numpyro, to_free, to_user, wrapped
from jalax._model.checks import data_leaf
from jalax._model.evaluation import at_particles
from jalax._model.model import GroupedModel, Model, Outside
from jalax._particles.trees import Tree


def from_numpyro(
    fn: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    groups: str | None = None,
) -> Model:
    r"""A model written in NumPyro, for maximum marginal likelihood.

    `numpyro.param` sites are theta, a dict by name on the scale of their constraints, which
    start where NumPyro starts them. Unobserved `numpyro.sample` sites are x, integrated out;
    observed ones are y. A prior is written as a `sample` site, an unknown constant to be
    estimated as a `param` site. `result.particles` is a dict of the latent sites.

    Args:
        fn: a function with NumPyro statements.
        args: its positional arguments. Arrays, also inside dicts and lists, are data, which may
            change without recompilation; whole numbers, floats, strings and None are settings.
        kwargs: its keyword arguments.
        groups: the name of a plate whose members are independent given theta: the result is then
            a `jalax.GroupedModel`, with particles and weights for each of them. Every sample
            site must be inside this plate. The first axis of an array that is as long as
            the plate is taken for the groups; an array without one is shared. That the groups
            add up to the whole model is checked here, at a random point.

    Returns:
        A `jalax.Model` or `jalax.GroupedModel` with `theta`, its start value.

    >>> import jax, jalax, numpy as np, numpyro, numpyro.distributions as dist
    >>> def batches(y):
    ...     mean = numpyro.param("mean", 1500.0)
    ...     sd = numpyro.param("sd", 50.0, constraint=dist.constraints.positive)
    ...     with numpyro.plate("batch", len(y)):
    ...         level = numpyro.sample("level", dist.Normal(mean, sd))
    ...         numpyro.sample("obs", dist.Normal(level, 20.0), obs=y)
    >>> y = np.array([1505.0, 1528.0, 1564.0, 1498.0, 1600.0, 1470.0])
    >>> model = jalax.from_numpyro(batches, (y,), groups="batch")
    >>> model.num_groups, sorted(model.theta)  # result = jalax.fit(model, key=jax.random.key(0))
    (6, ['mean', 'sd'])
    >>> evidence = jalax.log_evidence(model, {"mean": 1528.0, "sd": 39.0}, key=jax.random.key(1))
    >>> exact = jax.scipy.stats.norm.logpdf(y, 1528, np.hypot(39, 20)).sum()
    >>> bool(abs(evidence.value - exact) < 4 * evidence.error)
    True
    """
    require_numpyro()
    # These import NumPyro, which may not be there.
    from jalax._frontends import numpyro_groups, numpyro_sites

    static, data = split(fn, args, {} if kwargs is None else kwargs)
    sites = numpyro_sites.find(fn, static, data)
    model: Model
    if groups is not None:
        model, latent, derived = numpyro_groups.grouped(fn, static, data, sites, groups)
    else:
        density = wrapped(numpyro_sites.log_joint, fn, static)
        model = Model(density, sites.latent, data)
        latent = wrapped(numpyro_sites.latents, fn, static)
        derived = wrapped(numpyro_sites.derived, fn, static) if sites.deterministic else None
    model.theta = sites.theta
    bijections = sites.bijections
    if any(bijection is not None for bijection in bijections.values()):
        model.constrain = wrapped(to_user, bijections, "theta")
    model.outside = Outside(
        unconstrain=wrapped(_unconstrain, bijections, _shapes(sites.theta)),
        latent=latent,
        derived=derived,
        observed=_observed(sites.trace, data),
    )
    return model


def _observed(trace: dict[str, dict], data: dict[str, Any]) -> tuple[str, ...]:
    """The arguments that are, as they stand, the value of an observed site."""
    values = [
        np.asarray(site["value"])
        for site in trace.values()
        if site["type"] == "sample" and site["is_observed"]
    ]
    return tuple(
        name
        for name, leaf in data.items()
        if _is_array(leaf) and any(np.array_equal(leaf, value) for value in values)
    )


def deterministic_of(model: Model, theta: Tree, particles: Tree) -> dict[str, jax.Array]:
    """The `numpyro.deterministic` sites of every particle, like `FitResult.particles`.

    Args:
        model: made by `from_numpyro`.
        theta: on the user's scale.
        particles: of the state, (G, N, ...) on the unconstrained scale.
    """
    if model.outside.derived is None:
        raise ValueError(
            "this model has no numpyro.deterministic site; they come with jalax.from_numpyro."
        )
    values = at_particles(model.outside.derived, model, theta, particles)
    if isinstance(model, GroupedModel):
        return values
    return jax.tree.map(lambda leaf: leaf[0], values)


def _shapes(theta: Tree) -> Any:
    """Of a dict of parameters, as a key: its names with the shapes below them."""
    return tuple((name, tuple(map(np.shape, jax.tree.leaves(theta[name])))) for name in theta)


def _unconstrain(bijections: dict, shapes: tuple, theta: Tree) -> Tree:
    names = [name for name, _ in shapes]
    if not isinstance(theta, Mapping) or set(theta) != set(names):
        found = sorted(theta) if isinstance(theta, Mapping) else type(theta).__name__
        raise ValueError(
            f"theta must be a dict with an entry for each numpyro.param, {sorted(names)}; got "
            f"{found}."
        )
    for name, expected in shapes:
        given = tuple(map(np.shape, jax.tree.leaves(theta[name])))
        if given != expected:
            wanted, found = (", ".join(map(str, shapes)) for shapes in (expected, given))
            raise ValueError(f"theta[{name!r}] must have shape {wanted}, got {found}.")
    return to_free(bijections, "theta", dict(theta))


class _Traced:
    """Stands where an array was taken out of the arguments."""

    def __repr__(self) -> str:
        return "an array"


TRACED = _Traced()


def split(fn: Callable, args: Sequence, kwargs: Mapping[str, Any]) -> tuple[dict, dict]:
    """The arguments by name as settings, with TRACED for arrays, and as data, None elsewhere."""
    if not callable(fn):
        raise TypeError(f"fn must be a function with NumPyro statements, got {type(fn).__name__}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args must be a tuple of arguments, got {type(args).__name__}; for one argument "
            "write args=(y,)."
        )
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of arguments, got {type(kwargs).__name__}.")
    try:
        arguments = dict(inspect.signature(fn).bind(*args, **kwargs).arguments)
    except TypeError as error:
        error.add_note("raised for the args and kwargs given to jalax.from_numpyro")
        raise
    arguments = jax.tree_util.tree_map_with_path(_plain, arguments)
    static = jax.tree.map(lambda leaf: TRACED if _is_array(leaf) else leaf, arguments)
    data = jax.tree.map(lambda leaf: leaf if _is_array(leaf) else None, arguments)
    return static, jax.tree_util.tree_map_with_path(data_leaf, data)


def _plain(path: tuple, leaf: Any) -> Any:
    """Arrays as they are, NumPy's whole numbers (a count, a plate's size) as settings."""
    name = jax.tree_util.keystr(path)
    if hasattr(leaf, "columns"):
        raise TypeError(
            f"argument {name} is a {type(leaf).__name__}: pass the columns the model uses as "
            "arrays, for example frame['y'].to_numpy()."
        )
    if isinstance(leaf, (np.integer, np.bool_)):
        return leaf.item()
    if hasattr(leaf, "dtype") and not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        leaf = np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufc":
        raise TypeError(
            f"argument {name} is an array of {leaf.dtype}, not of numbers: encode labels as "
            "whole numbers first, for example by np.unique(labels, return_inverse=True)."
        )
    return leaf


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def call_arguments(fn: Callable, static: dict, data: dict) -> tuple[tuple, dict]:
    """The args and kwargs of `fn`, put together again."""
    whole = jax.tree.map(
        lambda setting, array: jnp.asarray(array) if setting is TRACED else setting,
        static,
        data,
        is_leaf=lambda leaf: leaf is None,
    )
    bound = inspect.BoundArguments(inspect.signature(fn), whole)
    return bound.args, bound.kwargs
