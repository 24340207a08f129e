"""The sites of a NumPyro model, and its log-density; imported only where NumPyro is there."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import constrain_fn, potential_energy

from jalax._frontends.constrained import Bijection
from jalax._frontends.numpyro_arguments import call_arguments
from jalax._particles.trees import Tree

# The example latent, unconstrained, is drawn within this: zero may be a saddle.
RADIUS = 0.1


class Sites(NamedTuple):
    """What one run of the model shows."""

    trace: dict[str, dict]
    theta: dict[str, Any]  # start values, on the user's scale
    bijections: dict[str, Bijection | None]
    latent: dict[str, jax.Array]  # unconstrained
    deterministic: tuple[str, ...]


def log_joint(fn: Callable, static: dict, theta: Tree, x: Tree, data: Tree) -> jax.Array:
    """log p_theta(x, y) with the Jacobian of x, which is unconstrained; theta is the user's."""
    args, kwargs = call_arguments(fn, static, data)
    return -potential_energy(substitute(fn, data=theta), args, kwargs, x)


def latents(fn: Callable, static: dict, theta: Tree, x: Tree, data: Tree) -> dict[str, Any]:
    """The latent sites on their own scale."""
    args, kwargs = call_arguments(fn, static, data)
    return constrain_fn(substitute(fn, data=theta), args, kwargs, x)


def derived(fn: Callable, static: dict, theta: Tree, x: Tree, data: Tree) -> dict[str, Any]:
    """The deterministic sites."""
    args, kwargs = call_arguments(fn, static, data)
    model = substitute(fn, data=theta)
    every = constrain_fn(model, args, kwargs, x, return_deterministic=True)
    return {name: value for name, value in every.items() if name not in x}


def find(fn: Callable, static: dict, data: dict) -> Sites:
    """The sites by one run of the model, with the errors that are known from it."""
    args, kwargs = call_arguments(fn, static, data)
    ready = _Checked(substitute(seed(fn, 0), substitute_fn=init_to_uniform(radius=RADIUS)))
    try:
        sites = trace(ready).get_trace(*args, **kwargs)
    except Exception as error:
        if not _is_ours(error):
            error.add_note("raised inside the NumPyro model, for the args and kwargs given")
        raise
    params = {name: site for name, site in sites.items() if site["type"] == "param"}
    hidden = {name: site for name, site in sites.items() if is_latent(site)}
    if not hidden:
        raise ValueError(
            "this model has no unobserved numpyro.sample site: there is nothing to integrate out, "
            "and its likelihood can be maximised directly (numpyro.infer.SVI with an empty guide)."
        )
    if not any(site["type"] == "sample" and site["is_observed"] for site in sites.values()):
        raise ValueError(
            f"this model has no observed site, only the latent {sorted(hidden)}: pass the data, "
            "which its numpyro.sample takes as obs=, in args= or kwargs=."
        )
    latent = {
        name: biject_to(site["fn"].support).inv(site["value"]) for name, site in hidden.items()
    }
    theta = {name: _start(name, site) for name, site in params.items()}
    found = Sites(
        trace=sites,
        theta=theta,
        bijections={name: _bijection(name, site) for name, site in params.items()},
        latent=latent,
        deterministic=tuple(n for n, site in sites.items() if site["type"] == "deterministic"),
    )
    try:
        jax.eval_shape(functools.partial(log_joint, fn, static), theta, latent, data)
    except jax.errors.ConcretizationTypeError as error:
        error.add_note(
            "jalax traces the arrays among the arguments of a NumPyro model: pass what the model "
            "needs as a number (a count, the size of a plate) as a Python number, and do not let "
            "shapes depend on the values of arrays."
        )
        raise
    return found


def _is_ours(error: BaseException) -> bool:
    """It was raised here, and says what to do."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").startswith("jalax.")


def is_latent(site: dict) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


class _Checked(substitute):
    """The model itself; what jalax does not take is refused before it is sampled."""

    def __init__(self, fn: Callable):
        super().__init__(fn, data={})

    def process_message(self, msg: dict) -> None:
        name = msg.get("name")
        if msg["type"] == "plate" and msg["args"][1] not in (None, msg["args"][0]):
            raise ValueError(
                f"plate {name!r} has subsample_size={msg['args'][1]}: from_numpyro takes all of "
                "the data. Leave it out; jalax.JALAEM(minibatch=...) subsamples groups."
            )
        if msg["type"] == "mutable":
            raise ValueError(
                f"site {name!r} is numpyro.mutable, a state that changes as the model runs: a "
                "log-density has none. Write it as numpyro.param or as an argument."
            )
        if is_latent(msg):
            _check_latent(str(name), msg)

    def postprocess_message(self, msg: dict) -> None:
        if msg["type"] == "param" and msg["value"] is not None:
            bijection = _bijection(msg["name"], msg)
            if bijection is not None:
                where = f"the start value of numpyro.param({msg['name']!r})"
                bijection.inverse(msg["value"], where)


def _check_latent(name: str, msg: dict) -> None:
    if msg["fn"].support.is_discrete:
        kind = msg["fn"]
        while hasattr(kind, "base_dist"):  # what a plate or a mask has put around it
            kind = kind.base_dist
        raise ValueError(
            f"site {name!r} is latent and discrete ({type(kind).__name__}): jalax moves x along "
            "gradients, and does not enumerate. Sum it out, for example a component label "
            "with dist.MixtureSameFamily, or condition on it with obs=."
        )


def _start(name: str, site: dict) -> Any:
    """The start value of a parameter, in floats."""
    if site["value"] is None:
        raise ValueError(
            f"numpyro.param({name!r}) has no start value: pass one, numpyro.param({name!r}, 0.0)."
        )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, float)), site["value"])


def _bijection(name: str, site: dict) -> Bijection | None:
    """None where the parameter is real."""
    constraint = site["kwargs"].get("constraint", constraints.real)
    base = getattr(constraint, "base_constraint", constraint)
    if base is constraints.real:
        return None
    return Bijection.of(constraint, f"numpyro.param({name!r})")
