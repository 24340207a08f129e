"""Normalised reference densities over the latent: what evidence is measured against.

A reference is an object with `prepare(key, model, theta)`, which returns a drawn-up version
with `sample(key, model, theta, num)` -> particles (G, N, ...) and
`log_density(model, theta, particles)` -> (G, N), a pytree that passes through jit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array, Bool, Float

from jalax._model import checks, evaluation
from jalax._model.evaluation import ravel_latent
from jalax._model.model import GroupedModel, Model
from jalax._particles import trees, weight_math
from jalax._particles.trees import Tree
from jalax._reference.mode_search import Mode, find_mode, symmetric
from jalax._runtime import arguments, normals
from jalax._runtime.function_keys import Static
from jalax._runtime.nodes import register_dataclass


@runtime_checkable
class Prepared(Protocol):
    def sample(self, key, model: Model, theta: Tree, num: int) -> Tree: ...

    def log_density(self, model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]: ...

    def metric(self) -> tuple[Float[Array, "G D *D"], Bool[Array, " G"]] | None:
        """A root of a covariance for Langevin moves, and whether it can be trusted."""


@runtime_checkable
class Reference(Protocol):
    def prepare(self, key, model: Model, theta: Tree) -> Prepared: ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AtMode:
    """A Student-t (or, with infinite degrees of freedom, a Gaussian) on the Laplace mode.

    A Gaussian has importance weights of infinite variance wherever the posterior's tail is
    wider than its own; a Student-t with few degrees of freedom seldom does.

    Args:
        degrees_of_freedom: by default the dimension of the latent, and at least 5: in high
            dimension the radius of a Student-t with few degrees varies too much.
    """

    degrees_of_freedom: float | None = dataclasses.field(default=None, metadata={"static": True})

    def check(self, model: Model, theta: Tree) -> None:
        check_freedom("AtMode", self.degrees_of_freedom)

    def prepare(self, key, model: Model, theta: Tree) -> PreparedAtMode:
        del key
        mode = find_mode(model, theta)
        return PreparedAtMode(mode, _freedom(self.degrees_of_freedom, mode))


def check_freedom(name: str, given: Any) -> None:
    """None, or above 0; infinity is a Gaussian."""
    if given is not None:
        arguments.check_positive(f"{name}.degrees_of_freedom", given)


def _freedom(given: float | None, mode: Mode) -> float:
    return max(5.0, float(mode.x.shape[1])) if given is None else float(given)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PreparedAtMode:
    mode: Mode
    dof: float = dataclasses.field(metadata={"static": True})

    def sample(self, key, model: Model, theta: Tree, num: int) -> Tree:
        del theta
        groups, size = self.mode.x.shape
        dtype = self.mode.x.dtype
        # t = z / sqrt(chi2_dof / dof), chi2_dof the sum of dof squares. All normals come from one
        # call: compiling the random numbers is what takes longest here.
        whole = self.dof.is_integer()
        squares = int(self.dof) if whole else 0
        z = normals.normal(key, (groups, num, size + squares), dtype)
        z, rest = z[..., :size], z[..., size:]
        if whole:
            z = z * jnp.sqrt(self.dof / jnp.sum(rest**2, axis=-1, keepdims=True))
        elif math.isfinite(self.dof):
            key_scale = jax.random.fold_in(key, 1)
            chi2 = 2 * jax.random.gamma(key_scale, self.dof / 2, (groups, num, 1), dtype)
            z = z * jnp.sqrt(self.dof / chi2)
        vectors = self.mode.x[:, None] + _apply(self.mode.root, z)
        return unravel(model, vectors)

    def log_density(self, model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
        del model, theta
        vectors = trees.ravel_particles(particles)
        z = _apply(self.mode.inverse, vectors - self.mode.x[:, None])
        square, size = jnp.sum(z**2, axis=-1), self.mode.x.shape[1]
        dof = self.dof
        if math.isinf(dof):
            value = -size / 2 * jnp.log(2 * jnp.pi) - square / 2
        else:
            value = (
                gammaln((dof + size) / 2)
                - gammaln(dof / 2)
                - size / 2 * jnp.log(dof * jnp.pi)
                - (dof + size) / 2 * jnp.log1p(square / dof)
            )
        return (value - self.mode.log_det_root[:, None]).astype(vectors.dtype)

    def metric(self):
        return self.mode.root, self.mode.positive & self.mode.converged


def _apply(matrix: Float[Array, "G D *D"], z: Float[Array, "G N D"]) -> Float[Array, "G N D"]:
    if matrix.ndim == 2:
        return matrix[:, None] * z
    return jnp.einsum("gij,gnj->gni", matrix, z)


def unravel(model: Model, vectors: Float[Array, "G N D"]) -> Tree:
    """(G, N, D) vectors as particles with the shapes and dtypes of the latent."""
    shape = vectors.shape[:2]
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*shape, *jnp.shape(x)), jnp.result_type(x)), model.latent
    )
    return trees.unravel_particles(vectors, like)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
    """A density of the user's, such as the prior: a sampler and its normalised log-density.

    Args:
        fn: `fn(key, theta, data) -> x` draws one latent configuration (of one group).
        log_density: `log_density(theta, x, data)`, normalised.
    """

    fn: Callable = dataclasses.field(metadata={"static": True})
    log_density_fn: Callable = dataclasses.field(metadata={"static": True})

    def check(self, model: Model, theta: Tree) -> None:
        check_density(self.log_density_fn, model, theta)

    def prepare(self, key, model: Model, theta: Tree) -> Proposal:
        del key, model, theta
        return Proposal(Static.of(self.fn), Static.of(self.log_density_fn))

    def sample(self, key, model: Model, theta: Tree, num: int) -> Tree:
        return draw(self.fn, key, model, theta, num)

    def log_density(self, model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
        return density(self.log_density_fn, model, theta, particles)

    def metric(self):
        return None


def draw(fn: Callable, key, model: Model, theta: Tree, num: int) -> Tree:
    """`num` draws of fn(key, theta, data) for every group."""
    given = model.constrained(theta)

    def one(key, data):
        try:
            return fn(key, given, data)
        except Exception as error:
            error.add_note(
                checks.raised_inside("the sampler", {"key": key, "theta": given, "data": data})
            )
            raise

    def group(key, data):
        return jax.vmap(lambda k: one(k, data))(jax.random.split(key, num))

    if isinstance(model, GroupedModel):
        particles = jax.vmap(group)(jax.random.split(key, model.num_groups), model.data)
    else:
        particles = jax.tree.map(lambda leaf: leaf[None], group(key, model.data))
    for leaf in jax.tree.leaves(particles):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"the sampler must return floats like {trees.describe(model.latent)}, got "
                f"{leaf.dtype.name}: use .astype(float)."
            )
    same = jax.tree.structure(particles) == jax.tree.structure(model.latent)
    if not same or any(
        leaf.shape[2:] != jnp.shape(latent)
        for leaf, latent in zip(
            jax.tree.leaves(particles), jax.tree.leaves(model.latent), strict=True
        )
    ):
        one = jax.tree.map(lambda leaf: leaf[0, 0], particles)
        raise ValueError(
            "the sampler must return one latent configuration, shaped like "
            f"{trees.describe(model.latent)}; got {trees.describe(one)}."
        )
    return particles


def density(fn: Callable, model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
    """fn(theta, x, data) at every particle of every group."""
    return evaluation.log_joint(_with_density(fn, model), theta, particles)


def check_density(fn: Callable, model: Model, theta: Tree) -> None:
    checks.check_log_joint(_with_density(fn, model), theta, "log_density")


def _with_density(fn: Callable, model: Model) -> Model:
    other = model.replace()
    other.log_joint = Static.of(fn)
    return other


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Modes:
    """An equal mixture of Student-t's on the modes found from several start points.

    Two modes far apart cannot be seen from one of them: their evidence is found only by a
    reference that covers both.

    Args:
        first: start points of the search, (M, ...) shaped like the latent with a leading axis;
            for a grouped model every group starts from the same points.
        degrees_of_freedom: as in `AtMode`.
    """

    first: Tree
    degrees_of_freedom: float | None = dataclasses.field(default=None, metadata={"static": True})

    def check(self, model: Model, theta: Tree) -> None:
        check_freedom("Modes", self.degrees_of_freedom)
        if not all(np.size(leaf) for leaf in jax.tree.leaves(self.first)):
            raise ValueError(self._not_like(model))

    def _not_like(self, model: Model) -> str:
        return (
            f"Modes.first must be shaped like {trees.describe(model.latent)} with a leading axis, "
            f"got {trees.describe(self.first)}."
        )

    def prepare(self, key, model: Model, theta: Tree) -> PreparedModes:
        del key
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], self.first)
        vectors = trees.ravel_particles(rows)[0]
        size = ravel_latent(model)[0].size
        if vectors.shape[1] != size:
            raise ValueError(self._not_like(model))
        modes = [
            find_mode(model, theta, jnp.broadcast_to(v, (model.num_groups, size))) for v in vectors
        ]
        dof = _freedom(self.degrees_of_freedom, modes[0])
        return PreparedModes([PreparedAtMode(mode, dof) for mode in modes])


class PreparedModes(NamedTuple):
    parts: list[PreparedAtMode]

    def sample(self, key, model: Model, theta: Tree, num: int) -> Tree:
        key_part, key_draw = jax.random.split(key)
        which = jax.random.randint(key_part, (model.num_groups, num), 0, len(self.parts))
        draws = [part.sample(key_draw, model, theta, num) for part in self.parts]
        out = draws[0]
        for i, other in enumerate(draws[1:], start=1):
            out = trees.select(which == i, other, out)
        return out

    def log_density(self, model: Model, theta: Tree, particles: Tree) -> Float[Array, "G N"]:
        each = [part.log_density(model, theta, particles) for part in self.parts]
        return logsumexp(jnp.stack(each), axis=0) - jnp.log(len(each))

    def metric(self):
        return self.parts[0].metric()


def fitted_to(before: Any, particles: Tree, log_weights: Float[Array, "G N"]) -> PreparedAtMode:
    """A Student-t with mean and covariance of a weighted cloud, a little wider.

    The covariance of many latents is more than so few particles can tell: it is then that of the
    reference before, if it is one at a mode.
    """
    weights = weight_math.normalise(log_weights)
    vectors = trees.ravel_particles(particles)
    vectors = jnp.where(weights[..., None] > 0, vectors, 0.0)
    mean = jnp.einsum("gn,gnd->gd", weights, vectors)
    if isinstance(before, PreparedAtMode) and 10 * mean.shape[1] > weights.shape[1]:
        return PreparedAtMode(before.mode._replace(x=mean), before.dof)
    centred = vectors - mean[:, None]
    covariance = jnp.einsum("gn,gni,gnj->gij", weights, centred, centred)
    eigenvalues, axes = jnp.linalg.eigh(1.2 * covariance)
    size = jnp.maximum(eigenvalues, 1e-6 * eigenvalues[:, -1:] + 1e-30)
    root = jax.vmap(symmetric)(axes, jnp.sqrt(size))
    inverse = jax.vmap(symmetric)(axes, 1 / jnp.sqrt(size))
    sound = jnp.ones(mean.shape[0], bool)
    log_det = 0.5 * jnp.sum(jnp.log(size), axis=1)
    mode = Mode(mean, jnp.zeros_like(log_det), root, inverse, log_det, sound, sound)
    # Wide tails: this is used where the first reference had too narrow ones.
    return PreparedAtMode(mode, float(max(1, mean.shape[1] // 5)))


def normalisation(key, prepared: Proposal, model: Model, theta: Tree):
    """E_q[g / q] = 1 for every normalised g: here a narrower Gaussian fitted to other draws."""
    key_fit, key_test = jax.random.split(key)
    fit = trees.ravel_particles(prepared.sample(key_fit, model, theta, 2000))[0]
    mean, scale = jnp.mean(fit, axis=0), 0.7 * jnp.std(fit, axis=0) + 1e-30
    test = prepared.sample(key_test, model, theta, 4000)
    log_q = prepared.log_density(model, theta, test)[0]
    vectors = trees.ravel_particles(test)[0]
    log_g = jnp.sum(jax.scipy.stats.norm.logpdf(vectors, mean, scale), axis=-1)
    ratio = jnp.exp(log_g - log_q)
    return jnp.mean(ratio), jnp.std(ratio) / jnp.sqrt(ratio.size)


def check_reference(value: Any, model: Model, theta: Tree) -> None:
    """Outside of jit, where there are numbers to look at."""
    reference = as_reference(value)
    if hasattr(reference, "check"):
        reference.check(model, theta)


def as_reference(value: Any) -> Any:
    """A reference, or a pair (sampler, log_density)."""
    if isinstance(value, tuple) and len(value) == 2 and all(callable(part) for part in value):
        return Proposal(Static.of(value[0]), Static.of(value[1]))
    if isinstance(value, type) or not hasattr(value, "prepare"):
        raise TypeError(
            "reference must be jalax.references.AtMode(), jalax.references.Modes(...), or a pair "
            f"(sampler, log_density) of functions, got {value!r}."
        )
    return value
