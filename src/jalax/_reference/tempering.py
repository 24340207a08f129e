r"""From a normalised reference q to the posterior along $\pi_\beta \propto q^{1-\beta} p^\beta$.

A pilot cloud chooses the temperatures (by conditional ESS) and the step sizes (by acceptance);
they are frozen in a `Plan` and used again with fresh keys, because an estimate tuned on the
cloud it weighs is biased. Two kinds of moves, both Langevin with the reference's covariance:

- MALA: weights $(\beta' - \beta)(\log p - \log q)$, then Metropolis-adjusted moves at $\beta'$.
  The log acceptance ratio is the Jarzynski increment at a constant density.
- JALA: moves without it, whose weights are the Jarzynski increments from $\beta$ to $\beta'$.

Either with the noise of `jalax.Unadjusted` or of `jalax.GaussianExact`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jalax._model import evaluation
from jalax._model.model import Model
from jalax._particles import langevin, trees, weight_math
from jalax._particles.pareto import pareto_k
from jalax._particles.resampling import Weighted, resample_low, systematic
from jalax._particles.trees import Tree
from jalax._reference.references import Prepared
from jalax._runtime import arguments
from jalax._runtime.nodes import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MALA:
    """Metropolis-adjusted Langevin moves, `num_moves` of them at each temperature.

    `kernel` proposes: `jalax.Unadjusted()` or `jalax.GaussianExact()`.
    """

    num_moves: int = dataclasses.field(default=4, metadata={"static": True})
    target: float = dataclasses.field(default=0.65, metadata={"static": True})
    kernel: Any = dataclasses.field(default_factory=langevin.Unadjusted)
    adjusted = True


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class JALA:
    """Langevin moves, one from each temperature to the next, corrected by weights.

    `kernel` is `jalax.Unadjusted()` or `jalax.GaussianExact()`: where the posterior is nearly a
    bell with the reference's covariance, the second one's longer moves do less work.
    """

    target: float = dataclasses.field(default=0.9, metadata={"static": True})
    kernel: Any = dataclasses.field(default_factory=langevin.Unadjusted)
    num_moves = 1
    adjusted = False


def check_moves(name: str, moves: Any) -> None:
    if not isinstance(moves, (MALA, JALA)):
        raise TypeError(
            f"{name} must be jalax.references.MALA() or jalax.references.JALA(), got {moves!r}."
        )
    kind = type(moves).__name__
    arguments.check_count(f"{kind}.num_moves", moves.num_moves)
    arguments.check_fraction(f"{kind}.target", moves.target)
    langevin.check_kernel(f"{kind}.kernel", moves.kernel)


MOST_WEIGHTS = 2_000_000  # for a k-hat: they have to be sorted


class Plan(NamedTuple):
    """What a pilot has chosen: beta_0 = 0 < ... < beta_M = 1, and a step size for each move."""

    beta: Float[Array, " M"]  # padded with ones
    step_size: Float[Array, "M G"]
    num: Int[Array, ""]  # temperatures in use, beta_0 included
    reached: Bool[Array, ""]  # beta = 1 was reached within the limit
    acceptance: Float[Array, ""]  # lowest over temperatures and groups
    particles: Tree  # the pilot's own cloud at the end; for `refit`, not for estimates
    log_weights: Float[Array, "G N"]


class Place(NamedTuple):
    """log p and log q at the particles, and their x-gradients."""

    log_p: Float[Array, "G N"]
    log_q: Float[Array, "G N"]
    grad_p: Tree
    grad_q: Tree


class Mixed(NamedTuple):
    """(1 - beta) log q + beta log p, in the form `langevin` takes."""

    log_joint: Float[Array, "G N"]
    grad_x: Tree


class Leg(NamedTuple):
    """A cloud at beta = 1."""

    particles: Tree
    log_weights: Float[Array, "G N"]
    log_evidence: Float[Array, " G"]
    log_descent: Float[Array, "G N"]  # of the weight that each first draw's descendants carry


def place(model: Model, theta: Tree, reference: Prepared, particles: Tree) -> Place:
    visit = evaluation.evaluate(model, theta, particles)
    log_q, pull = jax.vjp(lambda x: reference.log_density(model, theta, x), particles)
    (grad_q,) = pull(jnp.ones_like(log_q))
    dead = jnp.where(visit.alive, visit.log_joint, -jnp.inf)
    return Place(dead, log_q, visit.grad_x, grad_q)


def mix(beta, here: Place) -> Mixed:
    value = (1 - beta) * here.log_q + beta * here.log_p
    grad = jax.tree.map(lambda q, p: (1 - beta) * q + beta * p, here.grad_q, here.grad_p)
    return Mixed(value, grad)


def metric_of(reference: Prepared, model: Model) -> langevin.Preconditioner:
    """The reference's covariance as preconditioner; None where it has no say."""
    found = reference.metric()
    if found is None:
        return None
    root = found[0]
    if root.ndim == 2:
        latent = jax.tree.map(
            lambda x: jnp.zeros((root.shape[0], 1, *jnp.shape(x)), jnp.result_type(x)),
            model.latent,
        )
        return langevin.Diagonal(trees.unravel_particles(root[:, None] ** 2, latent))
    return langevin.Dense(jnp.einsum("gij,gkj->gik", root, root), root)


def mala(key, model, theta, reference, beta, step_size, particles, here: Place, metric, kernel):
    """One Metropolis-adjusted move of every particle at beta, step size (G,) by group."""
    key_move, key_accept = jax.random.split(key)
    old = mix(beta, here)
    proposal, path = langevin.move(
        key_move, particles, old.grad_x, step_size, metric, kernel=kernel
    )
    there = place(model, theta, reference, proposal)
    log_ratio = langevin.jarzynski_increment(
        old, mix(beta, there), path, step_size, metric, kernel=kernel
    )
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    uniform = jax.random.uniform(key_accept, log_ratio.shape, log_ratio.dtype)
    accept = jnp.log(uniform) < log_ratio
    particles, here = trees.select(accept, (proposal, there), (particles, here))
    return particles, here, jnp.mean(jnp.exp(jnp.minimum(log_ratio, 0.0)), axis=1)


def log_ratio(here: Place) -> Float[Array, "G N"]:
    """log p - log q, -inf where dead."""
    return jnp.where(jnp.isfinite(here.log_p), here.log_p - here.log_q, -jnp.inf)


def next_beta(beta, log_weights, ratio: Float[Array, "G N"], cess: float):
    """The largest beta' at which the conditional ESS of every group is at least `cess` N."""
    weights = weight_math.normalise(log_weights)

    def enough(new):
        return jnp.min(weight_math.conditional_ess(weights, (new - beta) * ratio)) >= cess

    def bisect(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        good = enough(middle)
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    one = jnp.ones_like(beta)
    low, _ = lax.fori_loop(0, 30, bisect, (beta, one))
    # A step too small to see would never end: take at least a thousandth of the way.
    return jnp.where(enough(one), one, jnp.minimum(jnp.maximum(low, beta + 1e-3), one))


def next_step_size(moves: Any, step: Float[Array, " G"], accepted: Float[Array, " G"]):
    """Longer if more was accepted than the target, but not beyond what the kernel allows."""
    return moves.kernel.tuned(step * jnp.exp(2.0 * (accepted - moves.target)))


class Pilot(NamedTuple):
    m: Int[Array, ""]
    beta: Float[Array, ""]
    step: Float[Array, " G"]
    particles: Tree
    here: Place
    log_weights: Float[Array, "G N"]
    betas: Float[Array, " M"]
    steps: Float[Array, "M G"]
    acceptance: Float[Array, ""]


def pilot(
    key,
    model: Model,
    theta: Tree,
    reference: Prepared,
    *,
    num_particles: int,
    moves: Any,
    cess: float,
    max_temperatures: int,
) -> Plan:
    """Choose temperatures and step sizes on a cloud of its own."""
    key_draw, key_run = jax.random.split(key)
    particles = reference.sample(key_draw, model, theta, num_particles)
    here = place(model, theta, reference, particles)
    dtype, groups = here.log_p.dtype, here.log_p.shape[0]
    metric = metric_of(reference, model)
    dimension = trees.ravel_particles(particles).shape[-1]
    # The usual scaling d^(-1/3), of h in units of the covariance.
    first = jnp.full((groups,), 0.5 * dimension ** (-1 / 3), dtype)

    def body(s: Pilot) -> Pilot:
        key_resample, key_moves = jax.random.split(jax.random.fold_in(key_run, s.m))
        beta = next_beta(s.beta, s.log_weights, log_ratio(s.here), cess)
        log_weights = s.log_weights + (beta - s.beta) * log_ratio(s.here)
        cloud = Weighted(s.particles, s.here, log_weights, jnp.zeros((groups,), dtype))
        cloud, _ = resample_low(key_resample, systematic, 0.5, cloud)

        def tune(carry, key):
            particles, here, step = carry
            particles, here, accepted = mala(
                key, model, theta, reference, beta, step, particles, here, metric, moves.kernel
            )
            return (particles, here, next_step_size(moves, step, accepted)), accepted

        # Three times the moves of the leg, because the pilot also tunes.
        keys = jax.random.split(key_moves, 3 * moves.num_moves)
        begin = cloud.particles, cloud.cached, s.step
        (particles, here, step), accepted = lax.scan(tune, begin, keys)
        return Pilot(
            s.m + 1,
            beta,
            step,
            particles,
            here,
            cloud.log_weights,
            s.betas.at[s.m].set(beta),
            s.steps.at[s.m].set(step),
            jnp.minimum(s.acceptance, jnp.min(accepted[-1])),
        )

    start = Pilot(
        jnp.ones((), jnp.int32),
        jnp.zeros((), dtype),
        first,
        particles,
        here,
        jnp.zeros_like(here.log_p),
        jnp.ones((max_temperatures,), dtype).at[0].set(0.0),
        jnp.broadcast_to(first, (max_temperatures, groups)),
        jnp.ones((), dtype),
    )
    end = lax.while_loop(lambda s: (s.m < max_temperatures) & (s.beta < 1), body, start)
    return Plan(
        end.betas,
        end.steps,
        end.m,
        end.beta >= 1,
        end.acceptance,
        end.particles,
        end.log_weights,
    )


def run_leg(
    key,
    model: Model,
    theta: Tree,
    reference: Prepared,
    plan: Plan,
    *,
    num_particles: int,
    moves: Any,
) -> Leg:
    """A fresh cloud through the temperatures of a plan; unbiased for Z."""
    key_draw, key_run = jax.random.split(key)
    particles = reference.sample(key_draw, model, theta, num_particles)
    here = place(model, theta, reference, particles)
    metric = metric_of(reference, model)
    zeros = jnp.zeros_like(here.log_p)
    # The first draw that each particle descends from goes where the particle goes.
    ancestor = jnp.broadcast_to(jnp.arange(num_particles), zeros.shape)
    start = jnp.ones((), jnp.int32), Weighted(particles, (here, ancestor), zeros, zeros[:, 0])

    def body(carry):
        m, cloud = carry
        here, ancestor = cloud.cached
        key_resample, key_moves = jax.random.split(jax.random.fold_in(key_run, m))
        old, new, step = plan.beta[m - 1], plan.beta[m], plan.step_size[m]
        if moves.adjusted:
            increment = (new - old) * log_ratio(here)
            weighted = cloud._replace(log_weights=cloud.log_weights + increment)
            cloud, _ = resample_low(key_resample, systematic, 0.5, weighted)
            here, ancestor = cloud.cached

            def adjusted(carry, key):
                particles, here = carry
                particles, here, _ = mala(
                    key, model, theta, reference, new, step, particles, here, metric, moves.kernel
                )
                return (particles, here), None

            keys = jax.random.split(key_moves, moves.num_moves)
            (particles, here), _ = lax.scan(adjusted, (cloud.particles, here), keys)
            return m + 1, cloud._replace(particles=particles, cached=(here, ancestor))
        before = mix(old, here)
        proposal, path = langevin.move(
            key_moves, cloud.particles, before.grad_x, step, metric, kernel=moves.kernel
        )
        there = place(model, theta, reference, proposal)
        increment = langevin.jarzynski_increment(
            before, mix(new, there), path, step, metric, kernel=moves.kernel
        )
        increment = jnp.where(jnp.isnan(increment), -jnp.inf, increment)
        log_weights = cloud.log_weights + increment
        weighted = Weighted(proposal, (there, ancestor), log_weights, cloud.log_evidence_base)
        cloud, _ = resample_low(key_resample, systematic, 0.5, weighted)
        return m + 1, cloud

    _, cloud = lax.while_loop(lambda c: c[0] < plan.num, body, start)
    evidence = cloud.log_evidence_base + weight_math.log_mean_exp(cloud.log_weights)
    weights = weight_math.normalise(cloud.log_weights)
    carried = jax.vmap(lambda sums, first, w: sums.at[first].add(w))(
        zeros, cloud.cached[1], weights
    )
    return Leg(cloud.particles, cloud.log_weights, evidence, jnp.log(carried))


def pooled_k(log_weights: Float[Array, "G N"]) -> Float[Array, ""]:
    """One k-hat for all groups together, each with weights of mean one.

    The largest of many groups' own k-hats would be noise; the pooled tail still shows a single
    group whose weights are too heavy. Those of a tempered leg are its `log_descent`:
    without moves these are the importance weights of the first draws; with moves that explore,
    the family sizes of a branching process, whose tail is light. Where the descendants of a few
    draws carry everything, those found a place that the moves cannot reach. If there are many
    groups, the first of their weights will do.
    """
    relative = log_weights - weight_math.log_mean_exp(log_weights)[:, None]
    relative = relative[:, : max(10, MOST_WEIGHTS // relative.shape[0])]
    return pareto_k(relative.reshape(1, -1))[0]
