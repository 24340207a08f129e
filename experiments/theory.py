"""What section 4 of the paper proves, measured: Proposition 2, Theorem 1, and the step size.

1. Proposition 2: the mean squared error of the weighted gradient falls like 1/N.
2. Theorem 1: V(theta_k) - V* for a model in which every constant of its bound is a number.
3. The step size: PGD's and IPLA's error in theta grows with it, JALA-EM's does not.
4. The feature table of appendix A.3, read off the algorithms where the code knows.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from reporting import NOT_REPRODUCED, REPRODUCED, Report, figure
from step_size import ml_ii, regression_data

import jalax

TITLE = "Theory: the gradient's error, Theorem 1's bound, and the step size"
# Every decision below allows for this many standard errors: a false alarm in about 370.
ERRORS = 3.0


class Size(NamedTuple):
    """How much is run."""

    counts: tuple[int, ...]  # N of parts 1 and 2
    batch: int  # particles of one transport, cut into clouds of N
    num_batches: int
    replicates: int  # of Theorem 1's fits
    num_steps: int
    fractions: tuple[float, ...]  # step sizes of part 3, of 1 / (largest curvature in x)
    sweep_counts: tuple[int, ...]
    sweep_replicates: int
    sweep_steps: int


FULL = Size(
    counts=(10, 30, 100, 300, 1000),
    batch=300_000,
    num_batches=4,
    replicates=400,
    num_steps=150,
    fractions=(0.1, 0.2, 0.4, 0.7, 1.0),
    sweep_counts=(30, 100, 300),
    sweep_replicates=12,
    sweep_steps=1500,
)
QUICK = Size(
    counts=(100, 300),
    batch=60_000,
    num_batches=1,
    replicates=60,
    num_steps=80,
    fractions=(0.1, 0.4, 1.0),
    sweep_counts=(100,),
    sweep_replicates=6,
    sweep_steps=600,
)


def run(report: Report, *, quick: bool, seed: int) -> None:
    size = QUICK if quick else FULL
    keys = jax.random.split(jax.random.key(seed), 3)
    with jax.enable_x64(True):
        drawing, axes = figure(2, 2)
        axes = axes.ravel()
        known = constants()
        gradient_error(report, axes[0], keys[0], size, known)
        theorem_1(report, axes[1:3], keys[1], size, known)
        step_size(report, axes[3], keys[2], size)
    report.figure("theory", "Proposition 2, Theorem 1, and the step size", drawing)
    features(report)


# Decisions


class Power(NamedTuple):
    """y ~ x^exponent."""

    exponent: float
    error: float

    @property
    def decides(self) -> bool:
        """It can tell -1 from -1/2 and -3/2."""
        return ERRORS * self.error <= 0.5

    def is_near(self, value: float) -> bool:
        return abs(self.exponent - value) <= ERRORS * self.error

    def __str__(self) -> str:
        return f"{self.exponent:.3f} ± {self.error:.3f}"


def power(x, y, relative_errors, *, extra=None) -> Power:
    """A straight line through the logarithms, weighted by the known errors of y.

    `extra`: a further column to allow for.
    """
    columns = [np.log(x), np.ones(len(x))] + ([] if extra is None else [extra])
    design = np.stack(columns, axis=1) / np.asarray(relative_errors)[:, None]
    coefficients = np.linalg.lstsq(design, np.log(y) / relative_errors, rcond=None)[0]
    return Power(coefficients[0], np.sqrt(np.linalg.inv(design.T @ design)[0, 0]))


def rate_in_particles(counts, values, errors, second_moment: float) -> Power:
    """The exponent of N. A ratio of two means has a next term in (C/N)^2: it is allowed for where
    the data can carry it, and clouds of fewer than 10 C particles, where yet further terms count,
    are left out."""
    counts, values, errors = (np.asarray(a, float) for a in (counts, values, errors))
    use = counts >= 10 * second_moment
    counts, values, relative = counts[use], values[use], (errors / values)[use]
    if len(counts) > 2:
        with_next_term = power(counts, values, relative, extra=1 / counts)
        if with_next_term.decides:
            return with_next_term
    return power(counts, values, relative)


def judge_rate(report: Report, what: str, rate: Power) -> None:
    """Is it 1/N? A rate too noisy to tell is shown, and makes no claim."""
    if rate.decides:
        report.claim(what, "exponent of N -1", str(rate), verdict(rate.is_near(-1.0)))
    else:
        report.note(f"{what}: exponent of N {rate}, too noisy to decide.")


def verdict(holds: bool) -> str:
    return REPRODUCED if holds else NOT_REPRODUCED


def mean_and_error(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the replicates, the first axis."""
    return samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


# The model of Theorem 1: in Gaussian models the sup-norm of grad_theta U is infinite


TRIALS, SUCCESSES = 4, (0, 2, 3, 4)
NODES = np.arange(-10, 10.01, 0.25)  # the trapezoidal rule converges exponentially here
INTERVAL = (-4.0, 4.0)  # of theta; the fits are checked to stay inside


def binomial_log_joint(theta, x, data):
    """x_i ~ N(0, 1), and y_i successes in 4 trials with log-odds theta + x_i."""
    return jnp.sum(_log_joint_of_one(theta, x, data))


def _log_joint_of_one(theta, x, successes):
    likelihood = successes * (theta + x) - TRIALS * jax.nn.softplus(theta + x)
    return likelihood - 0.5 * x**2 - 0.5 * jnp.log(2 * jnp.pi)


def binomial_model() -> jalax.Model:
    data = jnp.asarray(SUCCESSES, float)
    return jalax.Model(binomial_log_joint, latent=jnp.zeros(len(data)), data=data)


def potential(theta):
    """V(theta) = -log p_theta(y), a sum of one-dimensional integrals."""
    data = jnp.asarray(SUCCESSES, float)[:, None]
    values = _log_joint_of_one(theta, jnp.asarray(NODES), data)
    return -jnp.sum(jax.nn.logsumexp(values, axis=1) + np.log(NODES[1] - NODES[0]))


@partial(jax.jit, static_argnames="num")
def draw_posterior(key, theta, num: int):
    """Exact draws of x given y: the cumulative distribution on a fine grid, inverted."""
    grid = jnp.linspace(-9, 9, 3601)
    values = _log_joint_of_one(theta, grid, jnp.asarray(SUCCESSES, float)[:, None])
    density = jax.nn.softmax(values, axis=1)
    below = jnp.cumsum(density, axis=1) - density / 2
    uniform = jax.random.uniform(key, (num, len(SUCCESSES)))
    return jax.vmap(jnp.interp, in_axes=(1, 0, None), out_axes=1)(uniform, below, grid)


class Constants(NamedTuple):
    """L, mu, V* and the sup-norm of grad_theta U; delta_0 and C belong to a run."""

    L: float
    mu: float
    theta_star: float
    v_star: float
    sup: float

    def floor(self, num_particles: int, gamma: float, second_moment: float) -> float:
        """What is left of Theorem 1's bound for large k."""
        noise = 4 * second_moment * self.sup**2 / (self.mu * num_particles)
        return noise * (1 + 2 * self.L * gamma)


def constants() -> Constants:
    """On a grid. V'' falls off to both sides, so that L holds everywhere; the PL condition
    cannot (V is linear in the tails), and mu is that of the interval."""
    theta = np.linspace(*INTERVAL, 4001)
    value, slope, curvature = derivatives(theta)
    best = theta[np.argmin(value)]
    for _ in range(5):
        _, first, second = derivatives(best)
        best = best - first / second
    v_star, _, at_best = derivatives(best)
    away = np.abs(theta - best) > 1e-2  # nearer, the ratio is 0/0; its limit is V''
    ratio = slope[away] ** 2 / (2 * (value[away] - v_star))
    # grad_theta U = sum_i (4 sigma(theta + x_i) - y_i), between -sum y and sum (4 - y)
    successes = sum(SUCCESSES)
    sup = max(successes, TRIALS * len(SUCCESSES) - successes)
    numbers = curvature.max(), min(ratio.min(), at_best), best, v_star, sup
    return Constants(*map(float, numbers))


def derivatives(theta) -> list[np.ndarray]:
    """V, V' and V'' at every theta."""
    theta = np.asarray(theta)
    return [np.asarray(part).reshape(theta.shape) for part in _derivatives(theta.reshape(-1))]


@jax.jit
def _derivatives(theta):
    slope = jax.grad(potential)
    return [jax.vmap(f)(theta) for f in (potential, slope, jax.grad(slope))]


# 1. Proposition 2


class Path(NamedTuple):
    """A model, theta_0, ..., theta_k fixed in advance, exact draws at theta_0, the gradient."""

    name: str
    log_joint: object  # of (theta, x)
    thetas: jax.Array
    draw: object  # (key, theta_0, num) -> x
    gradient: jax.Array  # of V at theta_k
    step_size: float


def regression_path() -> Path:
    X, y = regression_data(5, 40, 3)
    model = jalax.models.gaussian_regression(X, y)
    thetas = jnp.linspace(jnp.array([0.5, 0.5]), jnp.array([0.0, 0.2]), 11)
    return Path(
        "Gaussian regression",
        lambda theta, x: model.log_joint(theta, x, model.data),
        thetas,
        lambda key, theta, num: model.exact_posterior(theta).sample(key, num),
        -jax.grad(model.exact_log_evidence)(thetas[-1]),
        0.01,
    )


def binomial_path() -> Path:
    model = binomial_model()
    thetas = jnp.linspace(-0.5, 0.3, 11)
    return Path(
        "binomial, bounded gradient",
        lambda theta, x: model.log_joint(theta, x, model.data),
        thetas,
        draw_posterior,
        jnp.asarray(derivatives(thetas[-1])[1]),
        0.1,
    )


def squared_errors(path: Path, key, size: Size) -> tuple[dict[int, np.ndarray], float]:
    """|grad V(theta_k) - g_k|^2 of many clouds of each N, and C_k.

    The path is fixed in advance and nothing is resampled, as Proposition 2 has it. The particles
    are then independent, and one long transport is cut into clouds of N.
    """
    score = jax.jit(jax.vmap(jax.grad(lambda t, x: -path.log_joint(t, x)), in_axes=(None, 0)))
    found: dict[int, list[np.ndarray]] = {num: [] for num in size.counts}
    moments = []
    for num in size.counts:
        for batch in range(size.num_batches):
            key_draw, key_move = jax.random.split(jax.random.fold_in(key, 1000 * num + batch))
            cloud = jalax.transport(
                path.log_joint,
                path.thetas,
                path.draw(key_draw, path.thetas[0], size.batch),
                key=key_move,
                step_size=path.step_size,
                resample_below=0.0,
            )
            scores = score(path.thetas[-1], cloud.particles)
            found[num].append(_cut(scores, cloud.log_weights, path.gradient, num))
            moments.append(size.batch / float(cloud.ess[-1]))  # E[e^2A] / E[e^A]^2
    return {n: np.concatenate(parts) for n, parts in found.items()}, float(np.mean(moments))


def _cut(scores, log_weights, gradient, num: int) -> np.ndarray:
    rows = len(log_weights) // num
    scores = scores[: rows * num].reshape(rows, num, -1)
    weights = jax.nn.softmax(log_weights[: rows * num].reshape(rows, num), axis=1)
    error = jnp.einsum("rn,rnp->rp", weights, scores) - gradient
    return np.asarray(jnp.sum(error**2, axis=1))


def gradient_error(report: Report, axis, key, size: Size, known: Constants) -> None:
    report.note(
        "**Proposition 2.** Weighted particles moved by `jalax.transport` along a theta-path fixed "
        "in advance (11 values, no resampling), against the exact gradient of V at its end. In the "
        "regression model the sup-norm in the bound is infinite; the rate holds all the same. "
        "The published proof bounds Var(W F) by |F|^2 Var(W), which is false for constant weights "
        "W; bounding both variances by second moments gives the same final bound."
    )
    counts, rows = np.array(size.counts), []
    for number, path in enumerate((regression_path(), binomial_path())):
        errors, moment = squared_errors(path, jax.random.fold_in(key, number), size)
        mse, error = np.array([mean_and_error(errors[num]) for num in size.counts]).T
        rate = rate_in_particles(counts, mse, error, moment)
        report.say(f"Proposition 2, {path.name}: rate {rate}, C_k = {moment:.2f}")
        what = f"Proposition 2: the gradient's squared error falls like 1/N ({path.name})"
        judge_rate(report, what, rate)
        axis.errorbar(counts, mse, ERRORS * error, fmt="so"[number], label=path.name)
        axis.plot(counts, mse[-1] * counts[-1] / counts, "k:", lw=0.8)
        clouds = [len(errors[num]) for num in size.counts]
        columns = zip(size.counts, clouds, mse.tolist(), error.tolist(), strict=True)
        rows += [[path.name, *row] for row in columns]
    # The last model's gradient is bounded.
    bound = 4 * moment * known.sup**2 / counts
    rows = [
        [*row, value] for row, value in zip(rows, ["-"] * len(counts) + bound.tolist(), strict=True)
    ]
    holds = bool(np.all(mse + ERRORS * error <= bound))
    report.claim(
        "Proposition 2: its bound, 4 C (sup-norm of grad U)^2 / N",
        "above the error",
        f"{np.min(bound / mse):.0f} times the error or more",
        verdict(holds),
    )
    axis.plot(counts, bound, "C1--", label="its bound")
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="squared error of the gradient")
    axis.set_title("Proposition 2 (dotted: 1/N)", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    head = ["model", "N", "clouds", "squared error", "its error", "bound"]
    report.table("gradient", "Squared error of the gradient, and Proposition 2's bound", head, rows)


# 2. Theorem 1


THETA_0, LANGEVIN_STEP = -0.7, 0.1
NUM_FOR_C = 20_000


def second_moment(key, gamma: float, num_steps: int) -> float:
    """C = sup_k E[e^(2 A_k)] / E[e^A_k]^2 along the path of exact gradient descent, which is
    JALA-EM's for N to infinity, from a large cloud."""
    path = [THETA_0]
    for _ in range(num_steps):
        path.append(path[-1] - gamma * float(derivatives(path[-1])[1]))
    key_draw, key_move = jax.random.split(key)
    model = binomial_model()
    cloud = jalax.transport(
        lambda theta, x: model.log_joint(theta, x, model.data),
        jnp.asarray(path),
        draw_posterior(key_draw, THETA_0, NUM_FOR_C),
        key=key_move,
        step_size=LANGEVIN_STEP,
        resample_below=0.0,
    )
    return NUM_FOR_C / float(jnp.min(cloud.ess))


def fits(
    key, num_particles: int, size: Size, gamma: float, below: float
) -> jalax.results.FitResults:
    """Algorithm 1 with SGD and exact draws at theta_0; resampling when ESS < `below` N."""
    key_draw, key_run = jax.random.split(key)
    # As many draws for every N: one compilation.
    draws = draw_posterior(key_draw, THETA_0, size.replicates * max(size.counts))
    draws = draws[: size.replicates * num_particles]
    sgd = jalax.Optax(optax.sgd, learning_rate=gamma)
    return jalax.fit_many(
        binomial_model(),
        THETA_0,
        key=key_run,
        axes={"start": 0},
        algorithm=jalax.JALAEM(step_size=LANGEVIN_STEP, optimizer=sgd, resample_below=below),
        start=jalax.Given(draws.reshape(size.replicates, num_particles, -1)),
        num_particles=num_particles,
        num_steps=size.num_steps,
    )


class Descent(NamedTuple):
    """What many fits with one N did."""

    mean: np.ndarray  # of V(theta_k) - V*, one a step from k = 0
    error: np.ndarray
    floor: tuple[float, float]  # its mean over the last quarter of the steps, with its error
    own: tuple[float, float]  # |g_k - grad V(theta_k)|^2 over the same steps, along its own path
    moment: float  # N / ESS over the same steps
    inside: bool  # theta stayed where mu holds


def descent(found: jalax.results.FitResults, gamma: float, known: Constants) -> Descent:
    after = np.stack([np.asarray(fit.history["theta"]) for fit in found])
    ess = np.stack([np.asarray(fit.history["ess"]) for fit in found])
    theta = np.concatenate([np.full((len(after), 1), THETA_0), after], axis=1)
    value, slope, _ = derivatives(theta)
    gap = value - known.v_star
    used = (theta[:, :-1] - theta[:, 1:]) / gamma  # SGD: theta_{k+1} = theta_k - gamma g_k
    tail = after.shape[1] * 3 // 4  # the exact descent is over long before
    return Descent(
        *mean_and_error(gap),
        mean_and_error(gap[:, tail:].mean(axis=1)),
        mean_and_error(((used - slope[:, :-1]) ** 2)[:, tail:].mean(axis=1)),
        float(np.mean(found[0].log_weights.shape[-1] / ess[:, tail:])),
        bool(INTERVAL[0] < theta.min() and theta.max() < INTERVAL[1]),
    )


def theorem_1(report: Report, axes, key, size: Size, known: Constants) -> None:
    gamma = min(1 / (4 * known.L), 2 / known.mu)
    key_c, *keys = jax.random.split(key, 3)
    moment = second_moment(key_c, gamma, size.num_steps)
    delta_0 = float(derivatives(THETA_0)[0]) - known.v_star
    report.note(
        "**Theorem 1.** y_i successes in 4 trials with log-odds theta + x_i, x_i ~ N(0, 1), "
        f"y = {SUCCESSES}: grad_theta U is bounded by {known.sup:.0f}, V is a sum of "
        f"one-dimensional integrals. On theta in {INTERVAL}: L = {known.L:.3f}, "
        f"mu = {known.mu:.3f} (Polyak-Lojasiewicz), theta* = {known.theta_star:.4f}, "
        f"delta_0 = {delta_0:.3f} from theta_0 = {THETA_0}; gamma = 1/(4L) = {gamma:.4f}, "
        f"h = {LANGEVIN_STEP}; C = {moment:.2f}, from {NUM_FOR_C} particles along the exact "
        f"descent. {size.replicates} fits for each N, without resampling, as the theorem has it, "
        "and with it. The theorem takes Proposition 2 for granted on the algorithm's own path, "
        "where theta depends on the particles: that error, and N/ESS there, are measured too."
    )
    runs: list[dict[int, Descent]] = [{}, {}]
    for num in size.counts:
        for found, key_fits, below in zip(runs, keys, (0.0, 0.5), strict=True):
            many = fits(jax.random.fold_in(key_fits, num), num, size, gamma, below)
            found[num] = descent(many, gamma, known)
        report.say(f"Theorem 1, N = {num}: floor {runs[0][num].floor[0]:.2e}")
    k = np.arange(size.num_steps + 1)
    levels = {num: known.floor(num, gamma, moment) for num in size.counts}
    bounds = {n: (1 - gamma * known.mu / 2) ** k * delta_0 + levels[n] for n in size.counts}
    _table_of_floors(report, runs, levels)
    _draw_descents(axes[0], runs, bounds)
    _draw_floors(axes[1], runs, levels)
    _judge_theorem_1(report, runs, bounds, levels, moment)


def _table_of_floors(report: Report, runs, levels) -> None:
    rows = []
    for found, name in zip(runs, ("none", "ESS < N/2"), strict=True):
        for num, one in found.items():
            bound = [levels[num], levels[num] / one.floor[0]] if name == "none" else ["-", "-"]
            rows.append([name, num, *map(float, one.floor), *bound, *map(float, one.own)])
            rows[-1].append(one.moment)
    head = ["resampling", "N", "floor", "its error", "bound", "bound / floor"]
    head += ["gradient's squared error", "its error", "N / ESS"]
    caption = "V(theta_k) - V* over the last quarter of the steps (floor), and Theorem 1's bound"
    report.table("theorem_1", caption, head, rows)


def _judge_theorem_1(report: Report, runs, bounds, levels, moment: float) -> None:
    plain, resampled = runs
    counts = list(plain)
    below = all(
        one.inside and np.all((one.mean + ERRORS * one.error <= bounds[num])[1:])
        for num, one in plain.items()
    )
    degenerate = ", ".join(f"{one.moment:.1f} (N = {num})" for num, one in plain.items())
    report.note(
        f"Late in the runs without resampling N/ESS is {degenerate}; along the exact descent it "
        f"is at most C = {moment:.1f}. Where it is larger, theta has followed the noise of its "
        "own particles, which Proposition 2 leaves out: the floor then rises with k."
    )
    loose = [levels[num] / one.floor[0] for num, one in plain.items()]
    report.claim(
        "Theorem 1: the mean of V(theta_k) - V* is below the bound at every k >= 1 and N",
        "below",
        ("below" if below else "above at some k")
        + f"; its floor is {min(loose):.0f} to {max(loose):.0f} times the measured one",
        verdict(below),
    )
    for what, values in (
        ("Theorem 1: the floor falls like 1/N", [one.floor for one in plain.values()]),
        ("Proposition 2 on the algorithm's own path", [one.own for one in plain.values()]),
        ("Theorem 1's floor, with resampling", [one.floor for one in resampled.values()]),
    ):
        judge_rate(report, what, rate_in_particles(counts, *np.array(values).T, moment))


def _draw_descents(axis, runs, bounds) -> None:
    for number, num in enumerate(list(bounds)[::2]):
        colour, one = f"C{number}", runs[0][num]
        k = np.arange(len(one.mean))
        low = np.maximum(one.mean - ERRORS * one.error, one.mean / 10)
        high = one.mean + ERRORS * one.error
        axis.fill_between(k, low, high, color=colour, alpha=0.25, lw=0)
        axis.plot(k, one.mean, colour, label=f"N = {num}")
        axis.plot(k, runs[1][num].mean, colour, ls=":")
        axis.plot(k, bounds[num], colour, ls="--", lw=1)
    axis.set(yscale="log", xlabel="k", ylabel=r"mean of $V(\theta_k) - V_*$")
    axis.set_title("Theorem 1 (dashed: bound, dotted: resampled)", fontsize=10)
    axis.set_ylim(top=30 * axis.get_ylim()[1])
    axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper right")


def _draw_floors(axis, runs, levels) -> None:
    counts = list(levels)

    def line(values, fmt, label):
        value, error = np.array(values).T
        axis.errorbar(counts, value, ERRORS * error, fmt=fmt, ms=4, label=label)

    line([one.floor for one in runs[0].values()], "C0o-", r"$V - V_*$, late k")
    line([one.floor for one in runs[1].values()], "C0o:", "the same, resampled")
    line([one.own for one in runs[0].values()], "C1s-", r"$|g_k - \nabla V|^2$, own path")
    axis.plot(counts, list(levels.values()), "C0--", label=r"bound of $V - V_*$")
    axis.set(xscale="log", yscale="log", xlabel="N")
    axis.set_title("Theorem 1: the floor", fontsize=10)
    axis.set_ylim(bottom=axis.get_ylim()[0] / 300)
    axis.legend(frameon=False, fontsize=8, loc="lower left")


# 3. The step size


FIXED_RATE = 0.02  # gamma of JALA-EM where it is apart from h
SAME, APART = "JALA-EM, gamma = h", f"JALA-EM, gamma = {FIXED_RATE}"


def theta_errors(model, exact, algorithm, axes, key, num: int, size: Size) -> np.ndarray:
    """theta averaged over the last half of every run, minus the exact one."""
    key_draw, key_run = jax.random.split(key)
    count = len(algorithm.step_size)
    draws = model.exact_posterior(exact).sample(key_draw, count * num)
    found = jalax.fit_many(
        model,
        exact,
        key=key_run,
        axes={"start": 0, "step_size": 0, **axes},
        algorithm=algorithm,
        start=jalax.Given(draws.reshape(count, num, -1)),
        num_particles=num,
        num_steps=size.sweep_steps,
    )
    return np.stack([fit.theta_average(last=0.5) for fit in found]) - exact


def sweep(model, exact, sizes, key, num: int, size: Size) -> dict[str, np.ndarray]:
    """The errors in theta of every algorithm, (replicates, step sizes, 2)."""
    many = np.tile(sizes, size.sweep_replicates)
    twice = np.tile(many, 2)
    rates = np.where(np.arange(len(twice)) < len(many), twice, FIXED_RATE)
    sgd = jalax.Optax(optax.sgd, learning_rate=rates)
    keys = jax.random.split(key, 3)
    weighted = jalax.JALAEM(step_size=twice, optimizer=sgd)
    pgd = theta_errors(model, exact, jalax.PGD(step_size=many), {}, keys[0], num, size)
    ipla = theta_errors(model, exact, jalax.IPLA(step_size=many), {}, keys[1], num, size)
    jala = theta_errors(model, exact, weighted, {"optimizer": 0}, keys[2], num, size)
    found = {"PGD": pgd, "IPLA": ipla, SAME: jala[: len(many)], APART: jala[len(many) :]}
    return {name: off.reshape(-1, len(sizes), 2) for name, off in found.items()}


def step_size(report: Report, axis, key, size: Size) -> None:
    X, y = regression_data(3, 30)  # the data of step_size.py
    model = jalax.models.gaussian_regression(X, y)
    exact = ml_ii(model)
    curvature = np.linalg.eigvalsh(X.T @ X).max() * np.exp(-exact[0]) + np.exp(exact[1])
    sizes = np.array(size.fractions) / curvature
    report.note(
        "**The step size.** Gaussian regression with 30 rows and 8 columns; every run starts at "
        "the exact maximum and from the exact posterior. PGD and IPLA have one step size for theta "
        "and x; JALA-EM is shown with gamma = h, which is PGD with weights and resampling, and "
        "with a gamma of its own. The error is the root mean square, over replicates, of the "
        "distance between the exact theta and its average over the last half of the run."
    )
    rows, rms = [], {}
    for num in size.sweep_counts:
        for name, off in sweep(
            model, exact, sizes, jax.random.fold_in(key, num), num, size
        ).items():
            square, error = mean_and_error(np.sum(off**2, axis=2))
            rms[name, num] = np.sqrt(square), error / (2 * square)
            bias = np.linalg.norm(off.mean(axis=0), axis=1)
            columns = zip(sizes, *rms[name, num], bias, strict=True)
            rows += [[name, num, *map(float, row)] for row in columns]
            report.say(f"{name}, N = {num}: " + " ".join(f"{e:.4f}" for e in rms[name, num][0]))
    for name in ("PGD", "IPLA", SAME, APART):
        value, relative = rms[name, size.sweep_counts[-1]]
        axis.errorbar(sizes, value, ERRORS * relative * value, fmt="o-", ms=4, label=name)
    axis.set(xscale="log", yscale="log", xlabel="step size", ylabel=r"error in $\theta$")
    axis.minorticks_off()
    axis.set_xticks(sizes, [f"{value:.2g}" for value in sizes])
    axis.set_title(f"The step size, N = {size.sweep_counts[-1]}", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    head = ["algorithm", "N", "step size", "error", "its relative error", "length of the mean"]
    report.table("step_size", "Error in theta against the step size", head, rows)
    _judge_step_sizes(report, sizes, size.sweep_counts, rms)


def _judge_step_sizes(report: Report, sizes, counts, rms) -> None:
    rows = []
    for name in ("PGD", "IPLA", SAME, APART):
        value, relative = rms[name, counts[-1]]
        # A common error: one estimated at each step size goes up and down with the mean.
        in_h = power(sizes, value, np.full(len(sizes), np.sqrt(np.mean(relative**2))))
        grows = in_h.exponent > ERRORS * in_h.error
        weighted = name in (SAME, APART)
        report.claim(
            f"{name}: the error in theta against the step size, N = {counts[-1]}",
            "no growth" if weighted else "grows (bound: exponent 1/2)",
            f"exponent {in_h}",
            verdict(not grows if weighted else grows),
        )
        rows.append([name, str(in_h), _judge_particles(report, name, counts, rms)])
    head = ["algorithm", "exponent of h", "exponent of N at the largest h"]
    report.table("growth", "How the error in theta grows with h and falls with N", head, rows)


def _judge_particles(report: Report, name: str, counts, rms) -> str:
    """At the largest step size: do more particles suffice (Theorem 2: error O(N^-1/2))?"""
    if len(counts) == 1:
        return "-"
    value, relative = np.array([[part[-1] for part in rms[name, num]] for num in counts]).T
    in_n = power(counts, value, relative)
    falls = in_n.exponent <= -0.5 + ERRORS * in_n.error
    if name in (SAME, APART):
        report.claim(
            f"{name}: more particles are enough, at the largest step size",
            "exponent of N -1/2 or below",
            f"exponent {in_n}",
            verdict(falls),
        )
    return str(in_n)


# 4. The feature table


ALGORITHMS = {
    "PGD": jalax.PGD,
    "IPLA": jalax.IPLA,
    "SOUL": jalax.SOUL,
    "SFLA": jalax.SFLA,
    "JALA-EM": jalax.JALAEM,
}
# Appendix A.3, in the order of ALGORITHMS. It has no column for IPLA: that is A.1's and A.2's text.
EVIDENCE = ("no", "no", "no", "no", "yes")
TWO_STEP_SIZES = ("no", "no", "yes", "yes", "yes")
# Facts about papers, which no code can tell.
FIXED_GAMMA = ("yes", "yes", "no", "yes", "yes")
ADAPTIVE = ("no", "no", "no", "no", "yes")


def two_step_sizes(algorithm) -> str:
    """Which option sets theta's step apart from that of x."""
    options = {field.name for field in dataclasses.fields(algorithm)}
    own = sorted(options & {"optimizer", "epsilon"})
    return f"yes, {own[0]}=" if own else "no"


def features(report: Report) -> None:
    evidence = ["yes" if a.gives_evidence else "no" for a in ALGORITHMS.values()]
    steps = [two_step_sizes(a) for a in ALGORITHMS.values()]
    rows = [
        ["marginal likelihood estimate", "code", *evidence],
        ["", "paper", *EVIDENCE],
        ["step sizes of theta and x differ", "code", *steps],
        ["", "paper", *TWO_STEP_SIZES],
        ["guarantees with a fixed gamma", "paper", *FIXED_GAMMA],
        ["theory for adaptive optimisers", "paper", *ADAPTIVE],
    ]
    head = ["feature", "from", *ALGORITHMS]
    report.table("features", "General comparison of the methods (appendix A.3)", head, rows)
    report.note(
        "PGD's `optimizer=` is what its authors use in their harder examples; by default PGD here "
        "has the one step size of its theory. The paper's table has no IPLA; its column is from "
        "the text of appendix A."
    )
    have = [step[:3].strip(" ,") for step in steps]
    missing = [n for n, h, p in zip(ALGORITHMS, have, TWO_STEP_SIZES, strict=True) if p > h]
    more = [n for n, h, p in zip(ALGORITHMS, have, TWO_STEP_SIZES, strict=True) if h > p]
    same = evidence == list(EVIDENCE) and not missing
    report.claim(
        "Appendix A.3: what the algorithms can do",
        "its table",
        "the same" + (f", and {', '.join(more)} takes an optimiser" if more else ""),
        verdict(same),
    )
