"""transport: JALA itself (paper, section 2), along any path of densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jalax._model import checks
from jalax._model.evaluation import Point, evaluate, weigh
from jalax._model.model import Model
from jalax._particles import langevin, trees, weight_math
from jalax._particles.resampling import (
    Weighted,
    check_scheme,
    multinomial,
    resample_low,
    systematic,
)
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import jit
from jalax._runtime.function_keys import Static, traced_once, wrapped
from jalax._runtime.options import Schedule, as_schedule, require_positive, strong_float, value_at
from jalax._starts.given import Given


class Transport(NamedTuple):
    """Particles at the end of the path, and one row for each of its densities."""

    particles: Tree  #: (N, ...)
    log_weights: Float[Array, " N"]
    log_evidence: Float[Array, " K1"]  #: log Z_k / Z_0, the first row being 0
    ess: Float[Array, " K1"]  #: before resampling
    resampled: Bool[Array, " K1"]
    dead: Int[Array, " K1"]  #: particles that became non-finite on the way to this density
    first_ancestor: Int[Array, " N"]  #: the start particle that each one descends from
    multinomial: Bool[Array, ""]  #: the resampling was multinomial

    @property
    def weights(self) -> Float[Array, " N"]:
        """Normalised weights of the particles."""
        return weight_math.normalise(self.log_weights)

    def log_evidence_error(self) -> float:
        """The standard error of the last log_evidence from this one run (Lee and Whiteley, 2018).

        The genealogy tells how many independent lines are left. Valid with multinomial
        resampling only: other schemes have less variance than it sees.
        """
        if not bool(self.multinomial):
            raise ValueError(
                "the genealogy gives an error for multinomial resampling only: pass "
                "resample=jalax.resampling.multinomial, or run replicates with several keys."
            )
        weights, num = self.weights, self.weights.shape[0]
        descent = jnp.zeros_like(weights).at[self.first_ancestor].add(weights)
        apart = 1 - jnp.sum(descent**2)  # weight of pairs that share no ancestor
        generations = jnp.sum(self.resampled) + 1
        variance = 1 - (num / (num - 1.0)) ** generations * apart
        return float(jnp.sqrt(jnp.maximum(variance, 0.0)))


def transport(
    log_density: Callable[[Any, Any], Any],
    schedule: Tree,
    particles: Tree,
    *,
    key: jax.Array | None = None,
    step_size: float | Schedule | Callable,
    preconditioner: Tree = None,
    kernel: langevin.Kernel = langevin.UNADJUSTED,
    resample_below: float = 0.5,
    resample: Callable = systematic,
    log_weights: Tree = None,
) -> Transport:
    r"""Move particles along densities $e^{-U_k(x)} = $ `exp(log_density(t_k, x))` by JALA.

    $$X_{k+1} = X_k - h P \nabla U_k(X_k) + \sqrt{2h} P^{1/2} \xi_{k+1}, \qquad
      A_{k+1} = A_k - \alpha_{k+1}(X_{k+1}, X_k) + \alpha_k(X_k, X_{k+1}).$$

    Along a path fixed in advance the weighted particles are exact for every step size:
    $E[e^{A_k}] = Z_k / Z_0$ (Proposition 1), resampling included.

    Args:
        log_density: `log_density(t, x)`, a scalar, unnormalised.
        schedule: t_0, ..., t_K along the leading axis; any pytree.
        particles: draws from the density at t_0, (N, ...), any pytree.
        key: `jax.random.key(seed)`.
        step_size: h, a number or a schedule in k.
        preconditioner: P, as in `jalax.JALAEM`.
        kernel: `jalax.Unadjusted()`, as above, or `jalax.GaussianExact()`, for P near the
            covariance of the densities.
        resample_below: resample when the ESS is below this fraction of N; 0: never.
        resample: the resampling scheme.
        log_weights: of the start particles, if they are weighted.

    >>> import jax, jax.numpy as jnp, jalax
    >>> def tempered(t, x):  # from N(0, 1) to exp(-x^4)
    ...     return -(1 - t) * x**2 / 2 - t * x**4
    >>> start = jax.random.normal(jax.random.key(0), (4000,))
    >>> path = jalax.transport(tempered, jnp.linspace(0, 1, 20), start,
    ...                        key=jax.random.key(1), step_size=0.05)
    >>> exact = jnp.log(2 * 0.9064) - 0.5 * jnp.log(2 * jnp.pi)  # Z = 2 Gamma(5/4)
    >>> bool(abs(path.log_evidence[-1] - exact) < 0.05)
    True
    """
    arguments.check_key(key)
    arguments.check_callable("log_density", log_density, "(t, x) -> scalar")
    arguments.check_fraction(
        "resample_below", resample_below, "a fraction of the particles,", ends=True
    )
    check_scheme("resample", resample)
    schedule = _numbers("schedule", schedule, jnp.asarray)
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(schedule)}
    if len(lengths) != 1 or lengths == {()} or lengths.pop()[0] < 2:
        raise ValueError(
            "schedule must hold t_0, ..., t_K along one leading axis, two or more of them; got "
            f"{trees.describe(schedule)}."
        )
    particles = _numbers("particles", particles, strong_float)
    leaves = jax.tree.leaves(particles)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError(
            f"particles must lead with the particle axis (N, ...), got {trees.describe(particles)}."
        )
    arguments.check_count("the number of particles", leaves[0].shape[0], 2)
    # x is the latent, t is the data, and there is no theta.
    model = Model(
        wrapped(_at, log_density),
        latent=jax.tree.map(lambda leaf: leaf[0], particles),
        data=jax.tree.map(lambda leaf: leaf[0], schedule),
    )
    one = traced_once(model.log_joint, None)
    given_to = {"t": model.data, "x": model.latent}
    checks.check_scalar("log_density", lambda t, x: one((), x, t), given_to)
    size: Any = _numbers("step_size", step_size, as_schedule)
    require_positive("step_size", size)
    langevin.check_kernel("kernel", kernel)
    kernel.check_step_size("step_size", size)
    if isinstance(preconditioner, langevin.InverseHessian):
        raise TypeError(
            "the preconditioner of transport is fixed in advance: pass a diagonal or a matrix, got "
            f"{preconditioner!r}."
        )
    preconditioner = _numbers("preconditioner", preconditioner, strong_float)
    langevin.check_preconditioner(model.latent, 1, preconditioner)
    given = Given(particles, log_weights)
    cloud = given(key, model, (), given.count(model))
    checks.check_start(model, (), cloud)
    return _transport(
        key,
        model,
        schedule,
        cloud.particles,
        cloud.log_weights,
        size,
        preconditioner,
        kernel,
        strong_float(resample_below),
        scheme=Static.of(resample),
    )


def _at(log_density: Callable, _, x: Tree, t: Tree) -> Any:
    return log_density(t, x)


def _numbers(name: str, tree: Tree, convert: Callable) -> Any:
    try:
        return convert(tree) if callable(tree) else jax.tree.map(convert, tree)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold numbers, got {tree!r}.") from error


@jit(static_argnames="scheme")
def _transport(
    key,
    model: Model,
    schedule: Tree,
    particles: Tree,
    log_weights: Float[Array, "1 N"],
    step_size,
    preconditioner: Tree,
    kernel: langevin.Kernel,
    resample_below,
    *,
    scheme: Static,
) -> Transport:
    preconditioner = langevin.as_preconditioner(model.latent, 1, preconditioner)

    def step(cloud: Weighted, inputs):
        log_joint, grad_x, ancestor = cloud.cached
        old = Point(log_joint, grad_x, ())
        k, t_next = inputs
        key_move, key_resample = jax.random.split(jax.random.fold_in(key, k))
        h = value_at(step_size, k)
        there = model.replace(data=t_next)

        # Move on U_k; weigh with alpha_{k+1} on U_{k+1}.
        moved = langevin.move(
            key_move, cloud.particles, old.grad_x, h, preconditioner, kernel=kernel
        )
        visit = evaluate(there, (), moved.particles)
        increment = langevin.jarzynski_increment(
            old, visit, moved.path, h, preconditioner, kernel=kernel
        )
        visit = visit._replace(alive=visit.alive & jnp.isfinite(increment))
        log_weights = jnp.where(visit.alive, cloud.log_weights + increment, -jnp.inf)
        particles, point = weigh(there, (), visit, log_weights)

        cached = point.log_joint, point.grad_x, ancestor
        weighted = Weighted(particles, cached, log_weights, cloud.log_evidence_base)
        record = _record(weighted, visit.alive)
        cloud, resampled = resample_low(key_resample, scheme, resample_below, weighted)
        return cloud, (*record, resampled)

    first = evaluate(model, (), particles)
    log_weights = log_weights.astype(first.log_joint.dtype)
    ancestor = jnp.arange(log_weights.shape[1])[None]
    cached = first.log_joint, first.grad_x, ancestor
    start = Weighted(particles, cached, log_weights, -weight_math.log_mean_exp(log_weights))
    rest = jax.tree.map(lambda leaf: leaf[1:], schedule)
    steps = jnp.arange(jax.tree.leaves(rest)[0].shape[0])
    cloud, rows = lax.scan(step, start, (steps, rest))

    row_0 = (*_record(start, first.alive), jnp.zeros((), bool))
    log_evidence, ess, dead, resampled = jax.tree.map(
        lambda first_row, others: jnp.concatenate([first_row[None], others]), row_0, rows
    )
    return Transport(
        particles=jax.tree.map(lambda leaf: leaf[0], cloud.particles),
        log_weights=cloud.log_weights[0],
        log_evidence=log_evidence,
        ess=ess,
        resampled=resampled,
        dead=dead,
        first_ancestor=cloud.cached[2][0],
        multinomial=jnp.asarray(scheme == Static.of(multinomial)),
    )


def _record(cloud: Weighted, alive: Bool[Array, "1 N"]):
    """log Z_k / Z_0, ESS, and the number of deaths."""
    ess = weight_math.effective_sample_size(weight_math.normalise(cloud.log_weights))
    evidence = weight_math.log_evidence(cloud.log_evidence_base, cloud.log_weights)
    return evidence, ess[0], jnp.sum(~alive, dtype=jnp.int32)
