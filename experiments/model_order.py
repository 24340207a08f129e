"""Model order selection in polynomial regression (paper 5.3 and its appendix).

A polynomial of order 2 to 8 is observed with noise; orders 1 to 10 are fitted, and the one with
the highest evidence is chosen. The paper does this with JALA-EM after 200 short steps of Adam
from the truth plus one. It is run here as it stands and in two other ways (WAYS), each beside its
own limit: the same rule with exact evidences.

A candidate of order p has the first p + 1 of eleven weights, so that one compiled program serves
all. With X = U S V' the latents are v = V'w: the likelihood depends on the data through S, U'y and
the rest of y, at a cost that does not grow with the number of rows. The prior of the weights, the
Langevin move with P = I and the evidence are the same in every rotation of w: this changes no
algorithm, and its numbers are those of the polynomial's own weights.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from reporting import BETTER, NOT_REPRODUCED, REPRODUCED, Report, figure, in_parallel

import jalax

TITLE = "Model order selection"
TRUE_ORDERS, CANDIDATES, NUM_ROWS = tuple(range(2, 9)), tuple(range(1, 11)), (100, 250, 500)
SIZE = max(CANDIDATES) + 1
NUM_PARTICLES, NUM_STEPS, RATE = 50, 200, 0.005  # the paper's
CONVERGED_PARTICLES, CONVERGED_STEPS, NUM_FRESH = 50, 50, 500
PRIOR_SD = 2.0  # log alpha ~ N(0, 2^2): declared, for the way with theta integrated out
READINGS = {"sd": 7.5, "variance": float(np.sqrt(7.5))}  # the noise's standard deviation
LOG_2PI = float(np.log(2 * np.pi))

# The paper's table: true order -> MAE of JALA-EM and of OLS with BIC, for 100, 250, 500 rows.
PAPER = {
    2: ((0.67, 0.45, 0.35), (0.64, 0.46, 0.35)),
    3: ((0.73, 0.41, 0.25), (0.90, 0.42, 0.34)),
    4: ((0.73, 0.49, 0.30), (0.80, 0.60, 0.30)),
    5: ((0.51, 0.40, 0.27), (0.64, 0.42, 0.35)),
    6: ((0.35, 0.31, 0.18), (0.49, 0.32, 0.23)),
    7: ((0.23, 0.15, 0.09), (0.44, 0.28, 0.15)),
    8: ((0.28, 0.19, 0.13), (0.37, 0.30, 0.20)),
}
BIC, PLAIN, PRECONDITIONED = "OLS + BIC", "paper, h = 1e-6", "paper, preconditioned"
PLUG_IN, CORRECTED = "converged, plug-in", "converged, theta integrated out"
WAYS = (PLAIN, PRECONDITIONED, PLUG_IN, CORRECTED)


# --- the model ---------------------------------------------------------------------------------


def log_joint(theta, v, data):
    """log p(y, v): theta = (log sigma^2, log alpha); weights beyond the order are N(0, 1).

    With data["prior"] one, the prior of theta is a factor of every Z; with zero there is none.
    """
    log_variance, log_precision = theta
    used = data["used"]
    squares = jnp.sum((data["along"] - data["singular"] * v) ** 2) + data["rest"]
    log_likelihood = data["num_rows"] * (LOG_2PI + log_variance) + squares * jnp.exp(-log_variance)
    precisions = jnp.where(used > 0, jnp.exp(log_precision), 1.0)
    log_weights = jnp.sum(LOG_2PI - used * log_precision + precisions * v**2)
    return -0.5 * (log_likelihood + log_weights) + data["prior"] * log_prior(theta)


def log_prior(theta):
    """Of theta, declared: log alpha ~ N(0, 2^2); flat in log sigma^2, the same for every order."""
    return -0.5 * (theta[1] / PRIOR_SD) ** 2 - 0.5 * LOG_2PI - jnp.log(PRIOR_SD)


def exact_log_evidence(theta, data):
    """log N(y; 0, sigma^2 I + X X' / alpha): along the left singular vectors of X, and across.

    Neither factorised nor inverted here: theta moves the eigenvalues alone.
    """
    log_variance, log_precision = theta
    variances = jnp.exp(log_variance) + data["singular"] ** 2 * jnp.exp(-log_precision)
    along = jnp.sum(jnp.log(variances) + data["along"] ** 2 / variances)
    across = (data["num_rows"] - SIZE) * log_variance + data["rest"] * jnp.exp(-log_variance)
    return -0.5 * (data["num_rows"] * LOG_2PI + along + across)


def exact_posterior(theta, data):
    """Mean and variances of v, which are independent."""
    log_variance, log_precision = theta
    prior = jnp.where(data["used"] > 0, jnp.exp(log_precision), 1.0)
    variances = 1 / (data["singular"] ** 2 * jnp.exp(-log_variance) + prior)
    return variances * data["singular"] * data["along"] * jnp.exp(-log_variance), variances


def data_sets(rng, num_trials: int, order: int, num_rows: int, noise: float) -> dict[str, Any]:
    """Trials x candidates along one leading axis, candidates fastest."""
    leaves: dict[str, list] = {"R": [], "z": [], "rest": []}
    for _ in range(num_trials):
        features = np.vander(rng.uniform(-2.5, 2.5, num_rows), SIZE, increasing=True)
        w = rng.normal(size=order + 1)
        y = features[:, : order + 1] @ w + noise * rng.normal(size=num_rows)
        Q, R = np.linalg.qr(features)
        z = Q.T @ y
        for name, value in (("R", R), ("z", z), ("rest", np.sum((y - Q @ z) ** 2))):
            leaves[name].append(value)
    data = {
        name: np.repeat(np.stack(values), len(CANDIDATES), 0) for name, values in leaves.items()
    }
    used = np.arange(SIZE) <= np.array(CANDIDATES)[:, None]
    data["used"] = np.tile(used.astype(float), (num_trials, 1))
    data["num_rows"] = np.full(len(data["z"]), float(num_rows))
    data["prior"] = np.zeros(len(data["z"]))
    # Singular values fall: those of the p + 1 columns in use come first, then zeros.
    left, singular, _ = np.linalg.svd(data.pop("R") * data["used"][:, None])
    data["singular"] = singular * data["used"]
    data["along"] = np.einsum("fij,fi->fj", left, data["z"])
    return jax.tree.map(jnp.asarray, data)


# --- the ways ----------------------------------------------------------------------------------


def bic(data) -> np.ndarray:
    """Minus half the BIC of ordinary least squares, p + 2 parameters, for every candidate."""
    z, used, n = (np.asarray(data[name]) for name in ("z", "used", "num_rows"))
    squares = np.asarray(data["rest"]) + np.sum((1 - used) * z**2, axis=1)
    log_likelihood = -0.5 * n * (LOG_2PI + np.log(squares / n) + 1)
    return log_likelihood - 0.5 * (used.sum(axis=1) + 1) * np.log(n)


def start_at(key, theta_0, data, num_particles: int) -> tuple[jalax.Given, jax.Array]:
    """Draws of the exact posterior at theta_0 with the exact evidence; and its variances."""
    mean, variances = jax.vmap(partial(exact_posterior, theta_0))(data)
    noise = jax.random.normal(key, (len(mean), num_particles, SIZE))
    particles = mean[:, None] + jnp.sqrt(variances)[:, None] * noise
    return jalax.Given(particles, log_evidence=evidences(theta_0, data)), variances


evidences = jax.jit(jax.vmap(exact_log_evidence, (None, 0)))


def fit(key, theta_0, data, algorithm, axes, start, num_steps: int, num_particles: int):
    # Chunks of 50: one that a candidate breaks is run again, and need not be the whole fit.
    return jalax.fit_many(
        jalax.Model(log_joint, jnp.zeros(SIZE), data),
        theta_0,
        key=key,
        algorithm=algorithm,
        axes={"data": 0, **axes},
        start=start,
        num_particles=num_particles,
        num_steps=num_steps,
        chunk_size=50,
        progress=jalax.callbacks.Callback(),
    )


def as_in_the_paper(key, theta_0, data, preconditioned: bool) -> np.ndarray:
    """200 steps of Adam, 50 particles, never resampled: the evidence along the path."""
    key_start, key_run = jax.random.split(key)
    start, variances = start_at(key_start, theta_0, data, NUM_PARTICLES)
    # The paper's own moves have the identity for P; passed as a diagonal, both share a program.
    algorithm = jalax.JALAEM(
        step_size=0.05 if preconditioned else 1e-6,
        preconditioner=variances if preconditioned else jnp.ones_like(variances),
        optimizer=jalax.Optax(optax.adam, learning_rate=RATE),
        resample_below=0.0,
    )
    axes = {"start": 0, "preconditioner": 0}
    fits = fit(key_run, theta_0, data, algorithm, axes, start, NUM_STEPS, NUM_PARTICLES)
    # What Algorithm 1 reports: jalax itself withholds it where the weights collapsed.
    return np.array([one.history["log_evidence"][-1] for one in fits])


def converged(key, theta_0, data, corrected: bool) -> np.ndarray:
    """To the maximum by observed-information steps, and the evidence there from fresh draws."""
    key_start, key_run, key_fresh = jax.random.split(key, 3)
    data = {**data, "prior": jnp.full_like(data["prior"], float(corrected))}
    start, _ = start_at(key_start, theta_0, data, CONVERGED_PARTICLES)
    algorithm = jalax.JALAEM(
        step_size=0.5,
        preconditioner=jalax.options.InverseHessian(),
        optimizer=jalax.options.ObservedInformation(),
        shift=jalax.options.Shift(),
        # Where alpha is best infinite, theta has far to go; only the fresh evidence there counts.
        limiter=jalax.options.Limiter(cess=0.7),
    )
    fits = fit(
        key_run,
        theta_0,
        data,
        algorithm,
        {"start": 0},
        start,
        CONVERGED_STEPS,
        CONVERGED_PARTICLES,
    )
    theta = jnp.stack([f.theta_average(0.3) for f in fits])
    value, log_det = fresh(jax.random.split(key_fresh, len(theta)), theta, data)
    return np.asarray(value + (LOG_2PI - 0.5 * log_det) if corrected else value)


@jax.jit
@jax.vmap
def fresh(key, theta, data):
    """The evidence from draws of a Student-t on the mode, and log det of Louis' information."""
    model = jalax.Model(log_joint, jnp.zeros(SIZE), data)
    cloud = jalax.Laplace()(key, model, theta, NUM_FRESH)
    mean = jax.nn.softmax(cloud.log_weights[0]) @ cloud.particles[0]
    return cloud.log_evidence[0], log_det_2(information(theta, mean, data))


def information(theta, mean, data):
    """Louis' information about theta, to second order in v around its mean (as jalax.compare).

    Exact here, where log p is quadratic in v; 500 draws alone would leave an error of the size of
    what is known about alpha.
    """

    def slope(t, v):
        return jax.grad(log_joint)(t, v, data)

    # Independent given theta. (A batched inverse beside the batched eigendecomposition of Laplace
    # waits for ever in XLA's pool of two threads.)
    C = jnp.diag(-1 / jnp.diagonal(jax.hessian(log_joint, 1)(theta, mean, data)))
    J = jax.jacfwd(slope, 1)(theta, mean)
    K = jax.jacfwd(jax.jacfwd(slope, 1), 1)(theta, mean)
    bends = jnp.einsum(
        "cdij,ij->cd", jax.jacfwd(jax.jacfwd(jax.jacfwd(slope), 1), 1)(theta, mean), C
    )
    complete = -jax.jacfwd(slope)(theta, mean) - bends / 2
    return complete - J @ C @ J.T - jnp.einsum("aij,jk,bkl,li->ab", K, C, K, C) / 2


def log_det_2(matrix):
    return jnp.log(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] ** 2)


# --- the same rules with exact evidences -------------------------------------------------------


@jax.jit
@partial(jax.vmap, in_axes=(None, 0))
def exact_after_adam(theta_0, data):
    """The limit of the paper's way: Adam with exact gradients, then the exact evidence."""
    optimizer = optax.adam(RATE)

    def step(carry, _):
        theta, state = carry
        gradient = -jax.grad(exact_log_evidence)(theta, data)
        updates, state = optimizer.update(gradient, state, theta)
        return (theta + updates, state), None

    (theta, _), _ = lax.scan(step, (theta_0, optimizer.init(theta_0)), None, NUM_STEPS)
    return exact_log_evidence(theta, data)


def maximise(function, theta_0, data):
    """The better of two maxima: from theta_0, and from where all of y is noise."""
    variance = (jnp.sum(data["along"] ** 2) + data["rest"]) / data["num_rows"]
    starts = jnp.stack([theta_0, jnp.stack([jnp.log(variance), theta_0[1]])])
    found = jax.vmap(partial(_ascend, function))(starts)
    return found[jnp.argmax(jax.vmap(function)(found))]


def _ascend(function, theta):
    """Newton's method in two dimensions, steps shortened until they ascend."""

    def step(theta, _):
        gradient, H = jax.grad(function)(theta), jax.hessian(function)(theta)
        # Both eigenvalues of a 2 x 2 matrix in closed form; their size says how far to go.
        middle, gap = (H[0, 0] + H[1, 1]) / 2, jnp.hypot((H[0, 0] - H[1, 1]) / 2, H[0, 1])
        angle = jnp.arctan2(2 * H[0, 1], H[0, 0] - H[1, 1]) / 2
        along = jnp.array([jnp.cos(angle), jnp.sin(angle)])
        across = jnp.array([-along[1], along[0]])
        bounded = along * (along @ gradient) / jnp.maximum(jnp.abs(middle + gap), 1e-3)
        bounded += across * (across @ gradient) / jnp.maximum(jnp.abs(middle - gap), 1e-3)
        bounded = bounded * jnp.minimum(1.0, 2.0 / jnp.linalg.norm(bounded))
        trials = theta + 0.5 ** jnp.arange(12)[:, None] * bounded
        found = jax.vmap(function)(trials)
        best = jnp.argmax(jnp.where(jnp.isnan(found), -jnp.inf, found))
        return jnp.where(found[best] > function(theta), trials[best], theta), None

    return lax.scan(step, theta, None, 60)[0]


@jax.jit
@partial(jax.vmap, in_axes=(None, 0))
def exact_plug_in(theta_0, data):
    """The maximised evidence (ML-II)."""
    value = partial(exact_log_evidence, data=data)
    return value(maximise(value, theta_0, data))


@jax.jit
@partial(jax.vmap, in_axes=(None, 0))
def exact_corrected(theta_0, data):
    """Laplace's method in theta around the penalised maximum (FACTS 10)."""

    def value(theta):
        return exact_log_evidence(theta, data) + log_prior(theta)

    theta = maximise(value, theta_0, data)
    return value(theta) + LOG_2PI - 0.5 * log_det_2(jax.hessian(value)(theta))


LIMITS = {
    PLAIN: exact_after_adam,
    PRECONDITIONED: exact_after_adam,
    PLUG_IN: exact_plug_in,
    CORRECTED: exact_corrected,
}


# --- the experiment ----------------------------------------------------------------------------


def errors_of(values: np.ndarray, order: int) -> tuple[np.ndarray, int]:
    """|chosen order - true order| of every trial, and how many candidates were lost to NaN."""
    values = np.asarray(values).reshape(-1, len(CANDIDATES))
    lost = int(np.isnan(values).sum())
    chosen = np.argmax(np.where(np.isnan(values), -np.inf, values), axis=1)
    return np.abs(np.array(CANDIDATES)[chosen] - order), lost


class Cell(NamedTuple):
    """One true order and number of rows."""

    reading: str
    num_rows: int
    order: int
    num_trials: int
    seed: int


def errors_in(cell: Cell) -> dict[str, Any]:
    """The errors of all rules on the same trials."""
    noise, where = READINGS[cell.reading], (list(READINGS).index(cell.reading), *cell[1:3])
    rng = np.random.default_rng([cell.seed, *where])
    with jax.enable_x64(True):
        data = data_sets(rng, cell.num_trials, cell.order, cell.num_rows, noise)
        theta_0 = jnp.array([2 * np.log(noise) + 1, 1.0])  # the truth plus one (FACTS 6)
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 4)
        found = {
            PLAIN: as_in_the_paper(keys[0], theta_0, data, False),
            PRECONDITIONED: as_in_the_paper(keys[1], theta_0, data, True),
            PLUG_IN: converged(keys[2], theta_0, data, False),
            CORRECTED: converged(keys[3], theta_0, data, True),
        }
        exact = {way: np.asarray(LIMITS[way](theta_0, data)) for way in WAYS}
    result: dict[str, Any] = {"errors": {BIC: errors_of(bic(data), cell.order)[0]}, "lost": {}}
    for way, values in found.items():
        result["errors"][way], result["lost"][way] = errors_of(values, cell.order)
        result["errors"][f"{way}: exact"] = errors_of(exact[way], cell.order)[0]
        result.setdefault("apart", {})[way] = values - exact[way]
    return result


def run(report: Report, *, quick: bool, seed: int, trials: int | None = None) -> None:
    orders, rows = ((3, 7), (100,)) if quick else (TRUE_ORDERS, NUM_ROWS)
    num_trials = trials or (10 if quick else 100)
    # A fifth for the text's variance: enough to tell the readings apart, in the time there is.
    of_reading = {"sd": num_trials, "variance": max(num_trials // 5, min(num_trials, 10))}
    cells = [Cell(*at, of_reading[at[0]], seed) for at in itertools.product(READINGS, rows, orders)]
    results: dict[str, dict] = {reading: {} for reading in READINGS}
    for cell, result in zip(cells, in_parallel(errors_in, cells, one=quick), strict=True):
        report.say(f"noise {cell.reading} 7.5, {cell.num_rows} rows, true order {cell.order}")
        results[cell.reading][cell.order, cell.num_rows] = result
    for reading in READINGS:
        summarise(report, reading, results[reading], of_reading[reading])
    judge_reading(report, results)


def judge_reading(report: Report, results: dict[str, dict]) -> None:
    """Which noise did the paper have? OLS + BIC has nothing to tune: its column tells."""
    shown, near = [], {}
    for reading, cells in results.items():
        paper = np.mean([PAPER[o][1][NUM_ROWS.index(n)] for o, n in cells])
        errors = [c["errors"][BIC] for c in cells.values()]
        mean = np.mean([e.mean() for e in errors])
        variances = [e.var(ddof=1) / len(e) for e in errors]
        # The paper's own column has the error of 100 trials, as ours of num_trials.
        own = np.sqrt(np.sum(variances)) / len(errors)
        both = np.hypot(own, own * np.sqrt(len(errors[0]) / 100))
        near[reading] = abs(mean - paper) <= 3 * both
        shown.append(f"{reading} 7.5: {mean:.3f} +- {own:.3f}")
    report.claim(
        "the noise has variance 7.5, as the text says (mean MAE of OLS + BIC)",
        f"{paper:.3f}",
        "; ".join(shown),
        REPRODUCED if near["variance"] and not near["sd"] else NOT_REPRODUCED,
    )


def summarise(report: Report, reading: str, cells: dict, num_trials: int) -> None:
    methods = [BIC, *WAYS, *(f"{way}: exact" for way in (PRECONDITIONED, PLUG_IN, CORRECTED))]
    mae = {m: {at: c["errors"][m].mean() for at, c in cells.items()} for m in methods}
    table = [
        [
            order,
            num_rows,
            *(PAPER[order][i][NUM_ROWS.index(num_rows)] for i in (0, 1)),
            *(float(mae[m][order, num_rows]) for m in methods),
        ]
        for order, num_rows in cells
    ]
    head = ["true order", "rows", "paper: JALA-EM", "paper: BIC", *methods]
    caption = f"Mean absolute error of the order, noise with {reading} 7.5, {num_trials} trials"
    report.table(f"mae-{reading}", caption, head, table)
    report.table(f"summary-{reading}", f"All cells, {reading} 7.5", *overall(cells))
    draw(report, reading, cells, mae)
    if reading == "sd":
        judge(report, cells)
    lost = {way: sum(c["lost"][way] for c in cells.values()) for way in WAYS}
    total = len(cells) * num_trials * len(CANDIDATES)
    report.note(
        f"Candidates lost to NaN, noise {reading} 7.5, of {total}: "
        + ", ".join(f"{way} {count}" for way, count in lost.items())
        + "."
    )


def ratio(cells: dict, way: str) -> tuple[float, float]:
    """Mean MAE over the cells relative to BIC's on the same trials, and its standard error."""
    ours = [c["errors"][way] for c in cells.values()]
    base = [c["errors"][BIC] for c in cells.values()]
    top, bottom = np.mean([e.mean() for e in ours]), np.mean([e.mean() for e in base])
    r = top / bottom
    # The delta method, on differences of the same trials.
    spread = [np.var(a - r * b, ddof=1) / len(a) for a, b in zip(ours, base, strict=True)]
    return float(r), float(np.sqrt(np.sum(spread)) / len(cells) / bottom)


def against_exact(cells: dict, way: str) -> tuple[float, float]:
    """Paired difference in absolute error to the exact version of the rule, and its error."""
    apart = [c["errors"][way] - c["errors"][f"{way}: exact"] for c in cells.values()]
    mean = np.mean([a.mean() for a in apart])
    error = np.sqrt(np.sum([a.var(ddof=1) / len(a) for a in apart])) / len(cells)
    return float(mean), float(error)


def overall(cells: dict) -> tuple[list[str], list[list[Any]]]:
    head = ["way", "MAE / BIC's", "s.e.", "exact: MAE / BIC's", "difference in MAE to exact"]
    head += ["s.e.", "median |log Z - exact|", "95 %"]
    rows = []
    for way in WAYS:
        apart = np.abs(np.concatenate([c["apart"][way] for c in cells.values()]))
        apart = apart[np.isfinite(apart)]
        rows.append(
            [
                way,
                *ratio(cells, way),
                ratio(cells, f"{way}: exact")[0],
                *against_exact(cells, way),
                float(np.median(apart)),
                float(np.quantile(apart, 0.95)),
            ]
        )
    return head, rows


def judge(report: Report, cells: dict) -> None:
    paper = np.mean([PAPER[o][0][NUM_ROWS.index(n)] for o, n in cells])
    paper /= np.mean([PAPER[o][1][NUM_ROWS.index(n)] for o, n in cells])
    for way in WAYS:
        r, error = ratio(cells, way)
        better = r <= paper + 3 * error
        report.claim(
            f"JALA-EM chooses the order better than OLS + BIC ({way})",
            f"MAE ratio {paper:.2f}",
            f"{r:.2f} +- {error:.2f}",
            (BETTER if r < paper - 3 * error else REPRODUCED)
            if better and r + 2 * error < 1
            else NOT_REPRODUCED,
        )
    for way in WAYS:
        difference, error = against_exact(cells, way)
        report.claim(
            f"the estimated evidence chooses as the exact one does ({way})",
            "not shown",
            f"MAE differs by {difference:+.3f} +- {error:.3f}",
            BETTER if abs(difference) <= 3.5 * error else NOT_REPRODUCED,
        )


def draw(report: Report, reading: str, cells: dict, mae: dict) -> None:
    rows = sorted({num_rows for _, num_rows in cells})
    fig, axes = figure(len(rows), squeeze=False, sharey=True)
    for axis, num_rows in zip(axes[0], rows, strict=True):
        orders = sorted(order for order, n in cells if n == num_rows)
        column = NUM_ROWS.index(num_rows)
        axis.plot(orders, [PAPER[o][0][column] for o in orders], "k:", label="paper: JALA-EM")
        axis.plot(orders, [PAPER[o][1][column] for o in orders], "k--", label="paper: BIC")
        for method in (BIC, PRECONDITIONED, PLUG_IN, CORRECTED):
            axis.plot(orders, [mae[method][o, num_rows] for o in orders], "o-", label=method, ms=4)
        axis.set(xlabel="true order", title=f"{num_rows} rows")
    axes[0, 0].set_ylabel("mean absolute error of the order")
    axes[0, -1].legend(frameon=False, fontsize=7)
    report.figure(f"mae-{reading}", f"Error of the chosen order, noise {reading} 7.5", fig)
