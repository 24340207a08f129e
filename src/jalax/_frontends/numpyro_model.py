"""Models written in NumPyro: `numpyro.param` is theta, unobserved `numpyro.sample` is x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jalax._frontends.constrained import require_numpyro, to_free, to_user
from jalax._frontends.numpyro_arguments import is_array, split
from jalax._model.model import Model, Outside
from jalax._particles.trees import Tree
from jalax._runtime.function_keys import wrapped


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
    from jalax._frontends import numpyro_groups, numpyro_simulate, numpyro_sites

    static, data = split(fn, args, {} if kwargs is None else kwargs)
    sites = numpyro_sites.find(fn, static, data)
    observed = _observed(sites.trace, data)
    model: Model
    if groups is not None:
        model, latent, derived, parts = numpyro_groups.grouped(fn, static, data, sites, groups)
        simulate = wrapped(numpyro_simulate.simulate_group, *parts, observed)
    else:
        simulate = wrapped(numpyro_simulate.simulate, fn, static, observed)
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
        observed=tuple(observed),
        simulate=simulate if observed else None,
    )
    return model


def _observed(trace: dict[str, dict], data: dict[str, Any]) -> dict[str, str]:
    """The arguments that are, as they stand, the value of an observed site, and that site."""
    found: dict[str, str] = {}
    for name, leaf in data.items():
        for site, seen in trace.items():
            if not is_array(leaf) or seen["type"] != "sample" or not seen["is_observed"]:
                continue
            if np.array_equal(leaf, np.asarray(seen["value"])):
                found.setdefault(name, site)
    return found


def _shapes(theta: Tree) -> Any:
    """The names of a dict of parameters with the shapes below them, as a key."""
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
