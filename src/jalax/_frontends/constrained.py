"""Latents and parameters with constraints: unconstrained in the fit, constrained for the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model.model import Model, Outside
from jalax._particles.trees import Tree, describe
from jalax._runtime.function_keys import wrapped


def require_numpyro() -> ModuleType:
    """numpyro, which is optional, or a sentence on how to get it."""
    try:
        import numpyro.distributions
    except ImportError as error:
        raise ImportError(
            "this needs NumPyro, which is not installed: pip install 'jalax[numpyro]'."
        ) from error
    return numpyro


@dataclasses.dataclass(frozen=True)
class Bijection:
    """A constraint with NumPyro's map onto it; equal to every other spelling of itself.

    NumPyro's constraints have no hash, and the key of a compiled program needs one.
    """

    constraint: Any = dataclasses.field(compare=False)
    key: tuple

    @classmethod
    def of(cls, constraint: Any, where: str) -> Bijection:
        require_numpyro()
        from numpyro.distributions import biject_to

        if constraint.is_discrete:
            raise ValueError(
                f"the constraint of {where} is discrete, {constraint}: jalax moves along gradients "
                "and takes continuous values only. Sum a discrete variable out."
            )
        try:
            biject_to(constraint)
        except NotImplementedError as error:
            raise ValueError(
                f"NumPyro has no map from the real numbers onto the constraint of {where}, "
                f"{constraint}: choose another parametrisation."
            ) from error
        leaves, treedef = jax.tree.flatten(constraint)
        numbers = tuple((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves)
        return cls(constraint, (type(constraint), str(treedef), numbers))

    @property
    def transform(self) -> Any:
        from numpyro.distributions import biject_to

        return biject_to(self.constraint)

    def __call__(self, free: Any) -> Any:
        return self.transform(free)

    def inverse(self, value: Any, where: str) -> Any:
        """On the unconstrained scale; a value that can be looked at is checked."""
        value = jnp.asarray(value)
        free = self.transform.inv(value)
        # There and back: it also finds a simplex that does not sum to one.
        concrete = not isinstance(free, jax.core.Tracer)
        if concrete and not np.allclose(self(free), value, rtol=1e-3, atol=1e-4):
            raise ValueError(f"{where} = {value} is outside its constraint, {self.constraint}.")
        return free

    def log_det(self, free: Any) -> Any:
        """log |dx / dz| of the map from free z to constrained x, all entries together."""
        return jnp.sum(self.transform.log_abs_det_jacobian(free, self(free)))


def Constrained(model: Model, *, theta: Any = None, latent: Any = None) -> Model:
    r"""A hand-written model whose latents or parameters live on a constrained scale.

    The fit moves $z = T^{-1}(x)$ on the whole real space, with the log-density
    $\log p_\theta(T(z), y) + \log |\det \partial T / \partial z|$. Start values, `result.theta`,
    `result.particles` and standard errors are on the constrained scale throughout. Without it
    a log_joint that is -inf outside the constraint would be a wall that particles run into.

    Args:
        model: a `jalax.Model` or `jalax.GroupedModel` whose log_joint, example `latent` and
            `theta` are written on the constrained scale.
        theta: NumPyro constraints (`numpyro.distributions.constraints`) in a tree like theta. One
            constraint stands for everything below it; what a dict leaves out is real.
        latent: the same for the latent.

    Returns:
        A model of the same kind.

    >>> import jax, jax.numpy as jnp, jalax
    >>> from numpyro.distributions import constraints
    >>> from scipy.stats import nbinom
    >>> def log_joint(theta, x, data):  # a rate x ~ Gamma(2, theta), counts y ~ Poisson(x)
    ...     prior = jax.scipy.stats.gamma.logpdf(x, 2.0, scale=1 / theta)
    ...     return prior + jax.scipy.stats.poisson.logpmf(data, x)
    >>> model = jalax.GroupedModel(log_joint, latent=1.0, data=jnp.array([3, 0, 5, 2]))
    >>> model = jalax.Constrained(model, theta=constraints.positive, latent=constraints.positive)
    >>> evidence = jalax.log_evidence(model, 0.8, key=jax.random.key(0))
    >>> exact = nbinom.logpmf([3, 0, 5, 2], 2, 0.8 / 1.8).sum()  # y is negative binomial
    >>> bool(abs(evidence.value - exact) < 4 * evidence.error)
    True
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"Constrained takes a jalax.Model or jalax.GroupedModel, got {type(model).__name__}."
        )
    if theta is None and latent is None:
        raise ValueError("Constrained was given no constraint: pass theta= or latent=, or both.")
    # simulate sees what the user sees
    kept = Outside(simulate=model.outside.simulate, frequencies=model.outside.frequencies)
    if model.outside != kept:
        raise ValueError(
            "this model has constraints already; give all of them to one jalax.Constrained."
        )
    if theta is not None and model.constrain is not None:
        raise ValueError(
            "this model maps theta already, by constrain=: leave that out, or leave theta= out."
        )
    theta, latent = frozen(theta, "theta"), frozen(latent, "latent")
    copy = model.replace(
        latent=to_free(latent, "latent", model.latent),
        theta=model.theta,
    )
    if model.theta is not None:
        to_free(theta, "theta", model.theta)  # for its checks
    if latent is not None:
        copy.log_joint = wrapped(_log_joint, model.log_joint.function, latent)
    if theta is not None:
        copy.constrain = wrapped(to_user, theta, "theta")
    copy.outside = dataclasses.replace(
        kept,
        unconstrain=None if theta is None else wrapped(to_free, theta, "theta"),
        latent=None if latent is None else wrapped(_latent, latent),
    )
    return copy


def _log_joint(log_joint: Callable, latent: Any, theta: Tree, x: Tree, data: Tree) -> Any:
    pairs = zip(spread(latent, x, "latent"), jax.tree.leaves(x), strict=True)
    log_dets = [bijection.log_det(leaf) for bijection, leaf in pairs if bijection is not None]
    return log_joint(theta, to_user(latent, "latent", x), data) + sum(log_dets)


def _latent(latent: Any, theta: Tree, x: Tree, data: Tree) -> Tree:
    return to_user(latent, "latent", x)


def frozen(constraints: Any, where: str) -> Any:
    """The user's tree of constraints, as bijections."""
    require_numpyro()
    from numpyro.distributions.constraints import Constraint

    if constraints is None:
        return None
    if isinstance(constraints, Constraint):
        return Bijection.of(constraints, where)
    if isinstance(constraints, dict):
        return {name: frozen(c, f"{where}[{name!r}]") for name, c in constraints.items()}
    if isinstance(constraints, (list, tuple)):
        return tuple(frozen(c, f"{where}[{i}]") for i, c in enumerate(constraints))
    raise TypeError(
        f"the constraint of {where} must come from numpyro.distributions.constraints, such as "
        f"constraints.positive; got {constraints!r}."
    )


def spread(constraints: Any, tree: Tree, where: str) -> list[Bijection | None]:
    """One bijection for each leaf of `tree`, in their order; None: real."""
    if constraints is None or isinstance(constraints, Bijection):
        return [constraints] * len(jax.tree.leaves(tree))
    if isinstance(constraints, dict) and isinstance(tree, dict):
        unknown = sorted(set(constraints) - set(tree))
        if unknown:
            raise ValueError(f"{where} has no entry {unknown[0]!r}; it has {sorted(tree)}.")
        parts = [(constraints.get(name), tree[name], name) for name in sorted(tree)]
    elif (
        isinstance(constraints, tuple)
        and isinstance(tree, (list, tuple))
        and len(constraints) == len(tree)
    ):
        parts = [(c, part, i) for i, (c, part) in enumerate(zip(constraints, tree, strict=True))]
    else:
        raise ValueError(
            f"the constraints of {where} are not a tree like it: {type(constraints).__name__} of "
            f"{len(constraints)} for {describe(tree)}."
        )
    return [b for c, part, name in parts for b in spread(c, part, f"{where}[{name!r}]")]


def to_user(constraints: Any, where: str, tree: Tree) -> Tree:
    """A tree on the unconstrained scale, mapped to the constrained one."""
    leaves, treedef = jax.tree.flatten(tree)
    pairs = zip(spread(constraints, tree, where), leaves, strict=True)
    return treedef.unflatten([leaf if b is None else b(leaf) for b, leaf in pairs])


def to_free(constraints: Any, where: str, tree: Tree) -> Tree:
    """The inverse of `to_user`."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    free = []
    for bijection, (path, leaf) in zip(spread(constraints, tree, where), paths, strict=True):
        name = where + jax.tree_util.keystr(path)
        free.append(leaf if bijection is None else bijection.inverse(leaf, name))
    return treedef.unflatten(free)
