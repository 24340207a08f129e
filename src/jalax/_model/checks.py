"""Input checks of `fit`: each says what was given, what was expected, and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model import batching, evaluation, information
from jalax._model.model import GroupedModel, Model
from jalax._model.types import Cloud
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime.arguments import level_of_user
from jalax._runtime.arrays import as_array
from jalax._runtime.compilation import LEVEL_0_OLD_EMITTERS, LEVEL_1, jit
from jalax._runtime.processes import to_host

NOT_FINITE = (
    "-inf means a hard constraint, which breaks the weights: map the latent to an unconstrained "
    "scale, for example by jalax.Constrained; NaN or +inf: check {} and the data for values "
    "outside the model's domain."
)

# Operations of JAX that every random number goes through.
RANDOM = ("random_bits", "threefry2x32", "rng_bit_generator", "random_gamma")


class NotFiniteError(ValueError):
    """log_joint, or its gradient, is not finite where a fit would begin."""


def prepare_model(model: Any) -> Model:
    """The model with arrays for data and floats for the example latent."""
    if not isinstance(model, Model):
        raise TypeError(
            f"model must be a jalax.Model or jalax.GroupedModel, got {type(model).__name__}."
        )
    latent = jax.tree_util.tree_map_with_path(_float_leaf("latent"), model.latent)
    data = jax.tree_util.tree_map_with_path(data_leaf, model.data)
    if isinstance(model, GroupedModel):
        check_mask(data)
    prepared: Any = model.refreshed().replace(latent=latent, data=data)
    labels = getattr(model, "groups", None)
    if labels is not None:  # these are the same data, and a result names its latents by them
        prepared.groups = labels
    return prepared


def check_mask(data: Tree) -> None:
    """Refuse a group whose rows are all masked: it has nothing to tell about theta."""
    mask = data.get("mask") if isinstance(data, dict) else None
    if mask is None or mask.ndim < 2 or not is_concrete(mask):
        return
    empty = ~np.any(np.asarray(mask), axis=tuple(range(1, mask.ndim)))
    if empty.any():
        raise ValueError(
            f"the mask of group {np.argmax(empty)} is all zero ({empty.sum()} such of "
            f"{empty.size} groups): a group without rows tells nothing. Leave it out; "
            "jalax.group_by makes none."
        )


def prepare_theta(theta: Tree, model: Model, least: int = 1) -> Tree:
    """The start value on the fit's scale; `least`: how many numbers there must be."""
    theta = model.theta if theta is None else theta
    if theta is None:
        call = "a start value, jalax.fit(model, theta_0, ...)"
        if least == 0:
            call = "that at which you want the evidence, jalax.log_evidence(model, theta, ...)"
        raise ValueError(f"theta is missing: pass {call}, or give the model one with theta=.")
    if len(jax.tree.leaves(theta)) < least:
        raise ValueError(
            "theta is empty: there is nothing to fit. In a NumPyro model turn a hyper-parameter "
            "into numpyro.param; for the evidence alone use jalax.log_evidence, to move particles "
            "jalax.transport."
        )
    theta = jax.tree_util.tree_map_with_path(_float_leaf("theta"), theta)
    for path, leaf in jax.tree_util.tree_leaves_with_path(theta):
        if not np.isfinite(np.asarray(leaf)).all():
            name = "theta" + jax.tree_util.keystr(path)
            raise ValueError(f"the start value {name} is not finite: {leaf}. Pass finite numbers.")
    free = model.unconstrained(theta)
    for path, leaf in jax.tree_util.tree_leaves_with_path(free):
        if not np.isfinite(np.asarray(leaf)).all():
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"the start value theta{name} is outside or at the edge of its constraint: {theta}."
            )
    return free


def _float_leaf(name: str):
    def convert(path, leaf):
        where = name + jax.tree_util.keystr(path)
        try:
            array = as_array(leaf)
        except TypeError as error:
            kind = f" of {leaf.dtype}" if hasattr(leaf, "dtype") else ""
            raise TypeError(
                f"{where} must be a float array, got {type(leaf).__name__}{kind}."
            ) from error
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{where} must be floating point to be differentiated, got {array.dtype.name}: "
                f"write 0.0 for 0, or use {where}.astype(float)."
            )
        return array.astype(array.dtype)  # no weak type

    return convert


def data_leaf(path, leaf):
    where = "data" + jax.tree_util.keystr(path)
    given = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
    if given.dtype == object or given.dtype.kind in "USMm":
        raise TypeError(
            f"{where} is not numeric ({type(leaf).__name__}, {given.dtype}): data is traced, so it "
            "must hold arrays; put settings into the log_joint function itself, and pad groups of "
            "different length with jalax.group_by."
        )
    array = as_array(given)
    narrowed = given.dtype.kind in "iu" and array.dtype != given.dtype
    if narrowed and given.size and np.any(np.asarray(array).astype(given.dtype) != given):
        raise ValueError(
            f"{where} has integers that do not fit into {array.dtype.name}; enable 64 bits with "
            "jax.config.update('jax_enable_x64', True) or pass floats."
        )
    return array.astype(array.dtype)


def check_log_joint(model: Model, theta: Tree, name: str = "log_joint") -> None:
    """log_joint takes (theta, x, data) and returns one float."""
    data = model.data
    if isinstance(model, GroupedModel):
        data = trees.shapes(data, 1)
    density, arguments = model.density(), {"theta": theta, "x": model.latent, "data": data}
    check_scalar(name, density, arguments)
    if not information.fits(theta) and has_operation(RANDOM, density, *arguments.values()):
        warnings.warn(
            f"{name} draws random numbers, such as those of dropout. They are the same at every "
            "visit, since no key is passed, and log p must be a function of theta, x and data "
            "alone: run the network without dropout (Equinox: inference=True, Flax: "
            "deterministic=True).",
            stacklevel=level_of_user(),
        )


def has_operation(names: tuple[str, ...], function: Callable, *arguments: Tree) -> bool:
    """Whether the function does one of these operations of JAX, anywhere inside."""
    return _has_operation(names, jax.make_jaxpr(function)(*arguments).jaxpr)


def _has_operation(names: tuple[str, ...], jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name in names:
            return True
        inner = [getattr(part, "jaxpr", part) for part in equation.params.values()]
        if any(_has_operation(names, part) for part in inner if hasattr(part, "eqns")):
            return True
    return False


def check_scalar(name: str, function: Callable, arguments: dict[str, Tree]) -> None:
    """The function returns one float for arguments like these."""
    out = traced(name, function, arguments)
    if getattr(out, "shape", None) != ():
        of = "one latent configuration x" if "x" in arguments else next(iter(arguments))
        like = trees.describe(arguments.get("x", next(iter(arguments.values()))))
        raise ValueError(
            f"{name} must return a scalar, got {trees.describe(out)} for {of}={like}: sum the "
            "terms, jnp.sum(...)."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"{name} must return a float, got {out.dtype.name}: "
            + ("take its real part." if out.dtype.kind == "c" else "multiply it by 1.0.")
        )


def traced(name: str, function: Callable, arguments: dict[str, Tree]) -> Any:
    """What the function returns, as shapes: found out by tracing, not running."""
    try:
        return jax.eval_shape(function, *arguments.values())
    except KeyError as error:
        keys = {k: list(v) for k, v in arguments.items() if isinstance(v, dict)}
        if not keys or not error.args or any(error.args[0] in known for known in keys.values()):
            raise
        known = ", ".join(f"{k} ({', '.join(map(repr, v))})" for k, v in keys.items())
        raise ValueError(
            f"{name} asks for {error.args[0]!r}, which is not among the keys of {known}."
        ) from error
    except Exception as error:
        error.add_note(raised_inside(name, arguments))
        if "dropout" in f"{error}".lower():
            error.add_note("log p must not be random: run the network without dropout")
        raise


def raised_inside(name: str, arguments: dict[str, Tree]) -> str:
    """A note for an error out of a function of the user's."""
    shown = ", ".join(f"{key}={trees.describe(value)}" for key, value in arguments.items())
    return f"raised inside {name}({', '.join(arguments)}) for {shown}"


def check_start(model: Model, theta: Tree, cloud: Cloud, weighted: bool = True) -> None:
    inputs = model, theta, cloud.particles
    value, alive = look(*inputs)
    if is_concrete((value, cloud.log_weights)):
        check_values(value, alive, cloud.log_weights, weighted)
        warn_of_scales(cloud.particles)
        _warn_of_walls(*inputs)
        known = cloud.log_evidence is None or np.isfinite(to_host(cloud.log_evidence)).all()
        if not known:
            raise ValueError(f"the start's log_evidence is not finite: {cloud.log_evidence}.")


def check_example(model: Model, theta: Tree, weighted: bool) -> None:
    """log_joint is finite at the example latent, in every group."""
    lead = model.num_groups, 1
    particles = jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf), (*lead, *np.shape(leaf))), model.latent
    )
    value, alive = to_host(_look_once(model, theta, particles))
    bad = ~np.isfinite(value[:, 0])
    if bad.any():
        group = int(np.argmax(bad))
        place = (
            f" in group {group} ({bad.sum()} such of {bad.size} groups)" if model.grouped else ""
        )
        advice = _not_finite(model) or NOT_FINITE.format("theta_0, latent")
        raise NotFiniteError(f"log_joint(theta_0, latent) is {value[group, 0]}{place}. {advice}")
    check_values(value, alive, np.zeros(lead), weighted)


def _not_finite(model: Model) -> str:
    """Where the data are not, as a sentence; "" if they are."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.data):
        bad = ~np.isfinite(to_host(leaf)) if jnp.issubdtype(leaf.dtype, jnp.floating) else []
        if np.any(bad):
            axes = ("group", "row") if model.grouped else ("row",)
            index = np.argwhere(bad)[0]
            place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=False))
            return (
                f"data{jax.tree_util.keystr(path)} is not finite either, first in {place} "
                f"({np.sum(bad)} of {np.size(bad)} numbers): leave such rows out, or mask them."
            )
    return ""


@jit(LEVEL_0_OLD_EMITTERS)
def look(model: Model, theta: Tree, particles: Tree):
    """log p of the start particles, and which of them have a finite gradient in x."""
    visit = evaluation.evaluate(model, theta, particles)
    return visit.log_joint, visit.alive


@jit(LEVEL_0_OLD_EMITTERS)
def _look_once(model: Model, theta: Tree, particles: Tree):
    """The same of one particle a group: the derivatives of theta are not even traced."""
    each = batching.numbers_per_particle(model, theta)
    value, grad_x = evaluation.slopes(model, theta, particles, each)
    return value, jnp.isfinite(value) & trees.all_finite(grad_x)


def warn_of_scales(particles: Tree) -> None:
    """Densities have the fourth power of a scale in their derivatives: float32 ends at 1e38."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(particles):
        if leaf.dtype != jnp.float32 or not leaf.size:
            continue
        spread = np.std(to_host(leaf).astype(float), axis=1)
        far = spread[(spread > 0) & ((spread < 1e-8) | (spread > 1e8))]
        if far.size:
            warnings.warn(
                f"the particles of latent{jax.tree_util.keystr(path)} spread by about "
                f"{far.flat[0]:.0e}: derivatives of a density on that scale leave the range of "
                "float32, and the fit may diverge or find no information. Give the data in other "
                "units, or use 64 bits, jax.config.update('jax_enable_x64', True).",
                stacklevel=level_of_user(),
            )
            return


def _warn_of_walls(model: Model, theta: Tree, particles: Tree) -> None:
    """log_joint is -inf a little way outside the particles: they will run into it.

    The start's own particles do not show it where they were resampled by weight.
    """
    wide = _twice_as_far(particles)
    value = to_host(look(model, theta, wide)[0])
    if not np.isneginf(value).any():
        return
    share = float(np.mean(np.isneginf(value) & ~to_host(_is_steep(model, theta, wide))))
    if share > 0:
        warnings.warn(
            f"log_joint is -inf at {share:.1%} of the points up to twice as far out as the start "
            "particles, a hard constraint: particles that run into it die, which biases the "
            "weights. Put the latent on an unconstrained scale, for example by jalax.Constrained.",
            stacklevel=level_of_user(),
        )


@jit(LEVEL_0_OLD_EMITTERS)
def _twice_as_far(particles: Tree) -> Tree:
    middle = jax.tree.map(lambda x: jnp.mean(x, axis=1, keepdims=True), particles)
    return jax.tree.map(lambda x, m: m + 2 * (x - m), particles, middle)


@jit(LEVEL_1)
def _is_steep(model: Model, theta: Tree, particles: Tree):
    """The gradient is infinite, as at an overflow of log p; not so behind a wall,
    jnp.where(x > 0, ..., -jnp.inf), where only log p is."""
    grad_x = evaluation.evaluate(model, theta, particles).grad_x
    steep = [jnp.isinf(g).any(axis=tuple(range(2, g.ndim))) for g in jax.tree.leaves(grad_x)]
    return jnp.any(jnp.stack(steep), axis=0)


def check_values(value: Any, alive: Any, log_weights: Any, weighted: bool) -> None:
    """Every start particle has a finite log p; float32 has the resolution for the weights."""
    value, alive, log_weights = to_host((value, alive, log_weights))
    bad = ~np.isfinite(value)
    if bad.any():
        group, particle = np.argwhere(bad)[0]
        place = f"group {group}, particle {particle}" if len(value) > 1 else f"particle {particle}"
        raise ValueError(
            f"log_joint is not finite at the start for {bad.sum()} of {bad.size} particles (first: "
            f"{place}, {value[group, particle]}). {NOT_FINITE.format('the start particles, theta')}"
        )
    if not alive.all():
        raise ValueError(
            f"the gradient of log_joint in x is not finite at the start for {(~alive).sum()} of "
            f"{alive.size} particles, though its value is: look for a square root or a norm at "
            "zero, or a jnp.where whose other branch is not finite."
        )
    usable = np.all(log_weights < np.inf, axis=-1) & np.any(log_weights > -np.inf, axis=-1)
    if not usable.all():
        where = f" in group {np.argmin(usable)}" if len(value) > 1 else ""
        raise ValueError(
            f"the start's log_weights have a NaN or +inf, or are all -inf{where}: check them, or "
            "leave them out."
        )
    if weighted and value.dtype == np.float32:
        # Over a path the differences of log p add up to that of its ends, each rounded once (see
        # langevin.jarzynski_increment); measured by reliability/precision.py.
        largest = np.median(np.abs(value), axis=1).max()  # one far out carries no weight
        noise = 2 * np.finfo(np.float32).eps * largest
        if noise > 0.1:
            warnings.warn(
                f"log_joint is about {largest:.0f} in size, which float32 resolves too coarsely: "
                f"rounding alone may move a log-weight by {noise:.1g}. For an evidence use 64 "
                "bits, jax.config.update('jax_enable_x64', True), or leave constants that do not "
                "depend on x out of log_joint and add them to the evidence.",
                stacklevel=level_of_user(),
            )


def is_concrete(tree: Tree) -> bool:
    """No tracer inside: the numbers can be looked at (the caller may itself be traced)."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def check_projection(project: Callable[[Tree], Tree], theta: Tree) -> None:
    """theta_0 lies inside the constraints: a first jump would be part of the path."""
    inside = project(theta)
    if jax.tree.structure(inside) != jax.tree.structure(theta):
        raise ValueError(
            f"project must return a tree like theta, {trees.describe(theta)}; it returned "
            f"{trees.describe(inside)}."
        )
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(theta), jax.tree.leaves(inside), strict=True
    ):
        if jnp.shape(a) != jnp.shape(b):
            name = "theta" + jax.tree_util.keystr(path)
            raise ValueError(
                f"project must return a tree like theta; {name} has shape {jnp.shape(a)}, and "
                f"project returned {jnp.shape(b)}."
            )
        if not bool(jnp.allclose(a, b)):
            name = "theta" + jax.tree_util.keystr(path)
            raise ValueError(
                f"the start value {name} = {a} lies outside the constraints; project moves it to "
                f"{b}. Start inside: pass project(theta_0)."
            )
