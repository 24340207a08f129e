"""Other ways to the same answers, timed side by side on the Wisconsin model.

1. What a step costs when Algorithm 1 of the paper is taken literally: a Python loop around a
   compiled step, which visits log p and its gradients at (theta_k, X_k) and again at
   (theta_{k+1}, X_{k+1}), averages an (N, dim theta) array of theta-gradients, resamples when ESS
   falls below N / 2, and appends to lists on the host; and PGD written in the same way. Against
   jalax's JALA-EM and PGD, as `jalax.fit` runs their steps. In rounds; float32.
2. Time until theta is, and stays, within 0.05 standard errors of the maximiser, and where it ends.
   jalax.fit automatic stops by itself: its time is that of the whole fit, with standard errors and
   evidence, of which theta is known at the end only. The others do not stop by themselves; they run
   for a fixed number of steps, and the history says when the error was last above 0.05. PGD's theta
   keeps jumping about: it counts its running average over the last half of the steps so far. A
   variational fit maximises a bound: its theta ends elsewhere. Each is run once to compile.
3. The evidence: from evidence.json, which `python benchmarks/evidence.py` makes (it needs PyMC and
   dynesty).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from _common import HERE, Row, in_rounds, machine, quick, ratio, seconds, write
from _steps import posterior_particles, steps_of
from blackjax.smc import resampling
from numpyro.infer import SVI, Trace_ELBO, autoguide

import jalax

# Randomised quasi-Monte-Carlo with 2.1e6 draws, as in tests/test_automatic.py.
MAXIMISER, STANDARD_ERROR = 0.98665, 0.7524
WITHIN = 0.05  # standard errors
ROUNDS = 3 if quick() else 9
SEEDS = 2 if quick() else 5
PARTICLES = (10, 100) if quick() else (10, 100, 1000)
STEPS = {10: 300, 100: 100, 1000: 20}
STEP, RATE = 1e-4, 1e-4


def wisconsin() -> Any:
    data = jalax.datasets.wisconsin()
    return jalax.models.logistic_regression(data.features, data.labels)


# --- the peers, in plain JAX -------------------------------------------------------------------


def literal_step(model: Any, optimizer: Any) -> Callable:
    """One step of Algorithm 1 as it is printed."""
    data = model.data
    potential = lambda theta, x: -model.log_joint(theta, x, data)  # noqa: E731
    values = jax.vmap(potential, in_axes=(None, 0))
    x_gradients = jax.vmap(jax.grad(potential, argnums=1), in_axes=(None, 0))
    theta_gradients = jax.vmap(jax.grad(potential, argnums=0), in_axes=(None, 0))

    def alpha(h, u, gradient, left, right):
        """Equation 3, with U and its gradient at `left`."""
        inner = jnp.sum((right - left) * gradient, axis=1)
        return u + inner / 2 + h / 4 * jnp.sum(gradient**2, axis=1)

    @jax.jit
    def step(key, h, theta, x, log_weights, log_evidence, state):
        key_move, key_resample = jax.random.split(key)
        n = x.shape[0]
        # Lines 4-6: the weighted theta-gradient, and theta_{k+1}.
        weights = jax.nn.softmax(log_weights)
        gradient = jnp.tensordot(weights, theta_gradients(theta, x), axes=1)
        updates, state = optimizer.update(gradient, state, theta)
        new_theta = optax.apply_updates(theta, updates)
        # Line 7: the particles and their weights.
        u, slope = values(theta, x), x_gradients(theta, x)
        new_x = x - h * slope + jnp.sqrt(2 * h) * jax.random.normal(key_move, x.shape, x.dtype)
        new_u, new_slope = values(new_theta, new_x), x_gradients(new_theta, new_x)
        log_weights = (
            log_weights - alpha(h, new_u, new_slope, new_x, x) + alpha(h, u, slope, x, new_x)
        )
        # Line 8: resampling.
        weights = jax.nn.softmax(log_weights)
        ess = 1 / jnp.sum(weights**2)

        def resample(x, log_weights, log_evidence):
            chosen = resampling.systematic(key_resample, weights, n)
            segment = jax.nn.logsumexp(log_weights) - jnp.log(n)
            return x[chosen], jnp.zeros_like(log_weights), log_evidence + segment

        keep = lambda *cloud: cloud  # noqa: E731
        new_x, log_weights, log_evidence = jax.lax.cond(
            ess < n / 2, resample, keep, new_x, log_weights, log_evidence
        )
        total = log_evidence + jax.nn.logsumexp(log_weights) - jnp.log(n)
        return new_theta, new_x, log_weights, log_evidence, state, ess, total

    return step


def literal_jala_em(model: Any, particles: Any, num_steps: int) -> Callable[[], Any]:
    optimizer = optax.adam(RATE)
    step = literal_step(model, optimizer)

    def run():
        key, theta, x = jax.random.key(0), model.theta, particles
        log_weights, log_evidence = jnp.zeros(len(x)), jnp.zeros(())
        state = optimizer.init(theta)
        history: dict[str, list] = {"theta": [], "ess": [], "log_evidence": []}
        for _ in range(num_steps):
            key, now = jax.random.split(key)
            theta, x, log_weights, log_evidence, state, ess, total = step(
                now, STEP, theta, x, log_weights, log_evidence, state
            )
            history["theta"].append(np.asarray(theta))
            history["ess"].append(float(ess))
            history["log_evidence"].append(float(total))
        return x

    return run


def loop_pgd(model: Any, particles: Any, num_steps: int, step_size: float) -> Callable[..., Any]:
    """PGD as a Python loop; `run` returns its theta-history."""
    data = model.data
    slopes = jax.vmap(jax.grad(model.log_joint, argnums=(0, 1)), in_axes=(None, 0, None))

    @jax.jit
    def step(key, h, theta, x):
        theta_gradients, x_gradients = slopes(theta, x, data)
        noise = jax.random.normal(key, x.shape, x.dtype)
        new_x = x + h * x_gradients + jnp.sqrt(2 * h) * noise
        return theta + h * jnp.mean(theta_gradients, axis=0), new_x

    def run(seed: int = 0):
        key, theta, x = jax.random.key(seed), model.theta, particles
        history = []
        for _ in range(num_steps):
            key, now = jax.random.split(key)
            theta, x = step(now, step_size, theta, x)
            history.append(np.asarray(theta))
        return np.array(history)

    return run


# --- 1. a step ---------------------------------------------------------------------------------


def steps() -> list[Row]:
    model, rows = wisconsin(), []
    everybody = posterior_particles(model, max(PARTICLES))
    for num_particles in PARTICLES:
        particles, count = everybody[:, :num_particles], STEPS[num_particles]
        plain = jalax.JALAEM(step_size=STEP, optimizer=optax.adam(RATE))
        runs = {
            "jalax JALA-EM": steps_of(model, plain, particles, count).run,
            "Algorithm 1, literally": literal_jala_em(model, particles[0], count),
            "jalax PGD": steps_of(model, jalax.PGD(step_size=STEP), particles, count).run,
            "PGD in a Python loop": loop_pgd(model, particles[0], count, STEP),
        }
        for run in runs.values():
            seconds(run)
        times = in_rounds(runs, ROUNDS)
        ours = {"Algorithm 1, literally": "jalax JALA-EM", "PGD in a Python loop": "jalax PGD"}
        for name in runs:
            row = {"N": num_particles, "method": name}
            row["µs a step"] = 1e6 * float(np.median(times[name])) / count
            row["x jalax"] = ratio(times[name], times[ours.get(name, name)])
            rows.append(row)
            print(row, flush=True)
    return rows


# --- 2. time to an error -----------------------------------------------------------------------


def automatic(model: Any) -> Callable[[int], tuple[np.ndarray, None]]:
    def run(seed):
        result = jalax.fit(model, key=jax.random.key(seed), progress=jalax.Callback())
        return np.array([float(result.theta)])

    return run


# PGD's step: one size for theta and x, 0.05 being its authors' and this model's limit near 0.06.
PGD_STEP, PGD_PARTICLES, PGD_STEPS = 0.02, 100, 500 if quick() else 4000


def prior_particles(model: Any, seed: int = 1) -> jax.Array:
    shape = (PGD_PARTICLES, *model.latent.shape)
    return jnp.sqrt(5.0) * jax.random.normal(jax.random.key(seed), shape)


def our_pgd(model: Any) -> Callable[[int], np.ndarray]:
    def run(seed):
        result = jalax.fit(
            model,
            key=jax.random.key(seed),
            algorithm=jalax.PGD(step_size=PGD_STEP),
            start=jalax.Given(prior_particles(model)),
            num_steps=PGD_STEPS,
            progress=jalax.Callback(),
        )
        return averaged(result.history["theta"])

    return run


def their_pgd(model: Any) -> Callable[[int], np.ndarray]:
    run = loop_pgd(model, prior_particles(model), PGD_STEPS, PGD_STEP)
    return lambda seed: averaged(run(seed))


def averaged(history: np.ndarray) -> np.ndarray:
    """Of the last half of the thetas so far."""
    total = np.concatenate([[0.0], np.cumsum(history, dtype=float)])
    last = np.arange(1, len(history) + 1)
    first = last // 2
    return (total[last] - total[first]) / (last - first)


def numpyro_model(X, y):
    theta = numpyro.param("theta", 0.0)
    d = X.shape[1]
    w = numpyro.sample("w", dist.Normal(theta, np.sqrt(5.0)).expand([d]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


SVI_STEPS = 2000 if quick() else 10_000


def variational(guide: Callable) -> Callable[[Any], Callable[[int], np.ndarray]]:
    """`SVI.update` in a compiled loop, which keeps theta; Adam with rate 0.01."""

    def make(model):
        X, y = model.data["X"], model.data["y"]
        svi = SVI(numpyro_model, guide(numpyro_model), numpyro.optim.Adam(0.01), Trace_ELBO())

        def step(state, _):
            state, _ = svi.update(state, X, y)
            return state, svi.get_params(state)["theta"]

        @jax.jit
        def loop(state):
            return jax.lax.scan(step, state, length=SVI_STEPS)[1]

        return lambda seed: np.asarray(loop(svi.init(jax.random.key(seed), X, y)))

    return make


METHODS = {
    "jalax.fit, automatic": (automatic, 1),
    "jalax PGD": (our_pgd, PGD_STEPS),
    "PGD in a Python loop": (their_pgd, PGD_STEPS),
    "NumPyro SVI, AutoMultivariateNormal": (
        variational(autoguide.AutoMultivariateNormal),
        SVI_STEPS,
    ),
    "NumPyro SVI, AutoLaplaceApproximation": (
        variational(autoguide.AutoLaplaceApproximation),
        SVI_STEPS,
    ),
}


def settled(history: np.ndarray, goal: float) -> float | None:
    """The share of the run after which theta stays within reach of `goal`; None: it does not."""
    outside = np.flatnonzero(np.abs(history - goal) > WITHIN * STANDARD_ERROR)
    after = 0 if outside.size == 0 else outside[-1] + 1
    if after == len(history):
        return None
    return (after + 1) / len(history)


def to_an_error() -> list[Row]:
    model, rows = wisconsin(), []
    for name, (make, _) in METHODS.items():
        run = make(model)
        began = time.perf_counter()
        run(0)
        first = time.perf_counter() - began
        spent, near, still, last = [], [], [], []
        for seed in range(1, 1 + SEEDS):
            began = time.perf_counter()
            history = run(seed)
            spent.append(time.perf_counter() - began)
            near.append(settled(history, MAXIMISER))
            last.append(float(np.mean(history[-max(1, len(history) // 10) :])))
            still.append(settled(history, last[-1]))
        rows.append(row_of(name, first, spent, near, still, last))
        print(rows[-1], flush=True)
    return rows


def row_of(name: str, first: float, spent: list, near: list, still: list, last: list) -> Row:
    there = [share * s for share, s in zip(near, spent, strict=True) if share is not None]
    own = [share * s for share, s in zip(still, spent, strict=True) if share is not None]
    return {
        "method": name,
        "first run s": first,
        "runs that get there": f"{len(there)} of {len(near)}",
        "s to the maximiser": float(np.median(there)) if there else None,
        "s to its own end": float(np.median(own)) if own else None,
        "theta in the end": float(np.mean(last)),
        "bias, standard errors": (float(np.mean(last)) - MAXIMISER) / STANDARD_ERROR,
        "scatter, standard errors": float(np.std(last, ddof=1)) / STANDARD_ERROR,
    }


# --- 3. the evidence ---------------------------------------------------------------------------


def evidence() -> list[Row]:
    rows = json.loads((HERE / "evidence.json").read_text())
    ours = rows[0]["seconds to 0.03"]
    return [
        {
            "method": row["method"],
            "seconds to 0.03": row["seconds to 0.03"],
            "x jalax": row["seconds to 0.03"] / ours,
        }
        for row in rows
    ]


def main() -> None:
    each, error, known = steps(), to_an_error(), evidence()
    parts = [__doc__.strip(), "Cost of a step:", each, "Time to an error of theta:", error]
    parts += ["Seconds to an error of 0.03 in log p(y), from [evidence.md](evidence.md):", known]
    where = machine("optax", "numpyro", "blackjax")
    write("peers", parts, machine=where, steps=each, theta=error, evidence=known)


if __name__ == "__main__":
    main()
