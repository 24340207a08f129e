"""Other ways to the same answers, timed side by side on the Wisconsin model.

1. What a step costs when Algorithm 1 of the paper is taken literally: a Python loop around a
   compiled step, which visits log p and its gradients at (theta_k, X_k) and again at
   (theta_{k+1}, X_{k+1}), averages an (N, dim theta) array of theta-gradients, resamples when ESS
   falls below N / 2, and appends to lists on the host; and PGD written in the same way. Against
   jalax's JALA-EM and PGD, as `jalax.fit` runs their steps. In rounds; float32.
2. Time until theta is, and stays, within 0.05 standard errors of the maximiser, and of where the
   method itself ends; each is run once before, to compile. The automatic `jalax.fit` stops by
   itself: its steps are those of its history, its time is that of the whole fit, with standard
   errors and evidence. The others have to be told when to stop: they run for a fixed number of
   steps, time is that share of the run after which theta stays near, and their end is the mean of
   the last tenth. A variational fit maximises a bound, Laplace's leaves the determinant's slope
   out: their theta ends elsewhere ("bias"). A dash: no run gets there.
3. The evidence: from evidence.json, which `python benchmarks/evidence.py` makes (it needs PyMC and
   dynesty).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

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

# Randomised quasi-Monte-Carlo with 2.1e6 draws, as in tests/_algorithms/test_automatic.py.
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


class Path(NamedTuple):
    history: np.ndarray  # theta after every step
    end: float  # where it ends
    whole: bool = False  # theta is known when the run is over, and not before


def path(history: np.ndarray) -> Path:
    """Of a method that does not stop by itself: it ends at the mean of its last tenth."""
    return Path(history, float(np.mean(history[-len(history) // 10 :])))


def automatic(model: Any) -> Callable[[int], Path]:
    def run(seed):
        result = jalax.fit(model, key=jax.random.key(seed), progress=jalax.callbacks.Callback())
        return Path(result.history["theta"], float(result.theta), whole=True)

    return run


# The step size, number and start (all at zero) of PGD's authors for this model; five times their
# 400 steps.
PGD_STEP, PGD_PARTICLES, PGD_STEPS = 0.01, 100, 1000 if quick() else 2000


def at_zero(model: Any) -> jax.Array:
    return jnp.zeros((PGD_PARTICLES, *model.latent.shape))


def our_pgd(model: Any) -> Callable[[int], Path]:
    def run(seed):
        result = jalax.fit(
            model,
            key=jax.random.key(seed),
            algorithm=jalax.PGD(step_size=PGD_STEP),
            start=jalax.Given(at_zero(model)),
            num_steps=PGD_STEPS,
            progress=jalax.callbacks.Callback(),
        )
        return path(result.history["theta"])

    return run


def their_pgd(model: Any) -> Callable[[int], Path]:
    run = loop_pgd(model, at_zero(model), PGD_STEPS, PGD_STEP)
    return lambda seed: path(run(seed))


def numpyro_model(X, y):
    theta = numpyro.param("theta", 0.0)
    d = X.shape[1]
    w = numpyro.sample("w", dist.Normal(theta, np.sqrt(5.0)).expand([d]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


SVI_STEPS = 2000 if quick() else 10_000


def variational(guide: Callable) -> Callable[[Any], Callable[[int], Path]]:
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

        return lambda seed: path(np.asarray(loop(svi.init(jax.random.key(seed), X, y))))

    return make


METHODS = {
    "jalax.fit, automatic": automatic,
    "jalax PGD": our_pgd,
    "PGD in a Python loop": their_pgd,
    "NumPyro SVI, AutoMultivariateNormal": variational(autoguide.AutoMultivariateNormal),
    "NumPyro SVI, AutoLaplaceApproximation": variational(autoguide.AutoLaplaceApproximation),
}


def settled(history: np.ndarray, goal: float) -> int | None:
    """The number of steps after which theta stays near `goal`; None: it does not."""
    outside = np.flatnonzero(np.abs(history - goal) > WITHIN * STANDARD_ERROR)
    after = 0 if outside.size == 0 else int(outside[-1]) + 1
    return None if after == len(history) else after + 1


def to_an_error() -> list[Row]:
    model, rows = wisconsin(), []
    for name, make in METHODS.items():
        run = make(model)
        began = time.perf_counter()
        run(0)
        first = time.perf_counter() - began
        runs = []
        for seed in range(1, 1 + SEEDS):
            began = time.perf_counter()
            found = run(seed)
            runs.append((time.perf_counter() - began, found))
        rows.append({"method": name, "first run s": first} | summary(runs))
        print(rows[-1], flush=True)
    return rows


def summary(runs: list[tuple[float, Path]]) -> Row:
    ends = np.array([found.end for _, found in runs])
    row: Row = {}
    for label, goals in (("the maximiser", np.full(len(runs), MAXIMISER)), ("its own end", ends)):
        steps, spent = [], []
        for (seconds_, found), goal in zip(runs, goals, strict=True):
            after = settled(found.history, goal)
            if after is not None:
                steps.append(after)
                spent.append(seconds_ * (1 if found.whole else after / len(found.history)))
        row[f"steps to {label}"] = float(np.median(steps)) if steps else None
        row[f"s to {label}"] = float(np.median(spent)) if spent else None
    row["theta in the end"] = f"{ends.mean():.4f}"
    row["bias, standard errors"] = (ends.mean() - MAXIMISER) / STANDARD_ERROR
    row["scatter, standard errors"] = ends.std(ddof=1) / STANDARD_ERROR
    return row


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
