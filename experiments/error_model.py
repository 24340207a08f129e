"""Which errors does a regression have, Gaussian or Student-t? (paper 5.2 and its appendix)

Every data set is fitted with both models, M_G and M_T, and the higher log-evidence wins. It is
done twice: with the paper's settings and start, and with jalax's automatic fit. What the fits say
about the evidence is compared with values that do not come from them: the closed form for M_G,
and quasi-Monte-Carlo importance sampling in NumPy for M_T.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import reporting
from scipy.optimize import minimize
from scipy.special import gammainccinv, gammaln, ndtri
from scipy.stats import binomtest, qmc

import jalax

TITLE = "Error model selection (paper 5.2)"

NUM_TRIALS = 100  # as in the paper
QUICK_TRIALS, QUICK_ROWS = 2, 200
NUM_ROWS = (500, 1500)  # d_y
# The paper's 100 repetitions have 500 rows. With 1500 an automatic fit of M_T takes seconds, and
# the first 20 data sets keep the whole run within a quarter of an hour.
AUTOMATIC_TRIALS = {500: NUM_TRIALS, 1500: 20}
NUM_COLUMNS = 8  # d_x
TRUE_NU = 4.0
GAUSSIAN, STUDENT = "M_G", "M_T"
PAPER, AUTOMATIC = "paper", "automatic"

# The paper's settings.
NUM_STEPS, NUM_PARTICLES = 250, 50
STEP_SIZE, LEARNING_RATE = 5e-5, 0.005
IMPORTANCE_DRAWS = 5000
LOG_NU_LOW, LOG_NU_HIGH = np.log(0.2), np.log(5.0)

# An automatic fit starts from thousands of draws, each with one residual a row: in batches, or
# they would fill the memory (three fits with 1500 rows: 2.8 GB).
BATCH = 5

# The reference for M_T.
POINTS, SCRAMBLES, PROPOSAL_FREEDOM = 2**11, 4, 5.0  # 2^13 points in all

ERRORS_ALLOWED = 4.5  # reported errors; chance exceeds them once in 150,000 normal draws
ACCURATE = 0.1
PATH_TOLERANCE = 1.0  # in log Z, over a path that climbs by tens to hundreds


class Scenario(NamedTuple):
    truth: str
    num_rows: int


class Fits(NamedTuple):
    """One model fitted to all data sets of a scenario in one way; arrays lead with the trial."""

    theta: np.ndarray
    log_evidence: np.ndarray
    error: np.ndarray  # reported; NaN where there is none
    ess: np.ndarray  # at the end, a fraction of the particles
    status: list[str]
    seconds: float  # a fit
    theta_path: np.ndarray | None = None  # (trial, step, parameter)
    evidence_path: np.ndarray | None = None
    reference: np.ndarray = np.array(np.nan)
    reference_error: np.ndarray = np.array(np.nan)
    reference_path: np.ndarray | None = None  # closed form along the path

    @property
    def off(self) -> np.ndarray:
        return np.abs(self.log_evidence - self.reference)


def run(report: reporting.Report, *, quick: bool, seed: int, trials: int | None = None) -> None:
    num_trials = trials or (QUICK_TRIALS if quick else NUM_TRIALS)
    scenarios = [
        Scenario(truth, rows)
        for rows in ((QUICK_ROWS,) if quick else NUM_ROWS)
        for truth in (GAUSSIAN, STUDENT)
    ]
    _notes(report, num_trials)
    # A short run is mostly compilation: one job serves all scenarios. The longest go first.
    parts = [scenarios] if quick else [[scenario] for scenario in reversed(scenarios)]
    jobs = [
        Job(model, way, part)
        for way in (AUTOMATIC, PAPER)
        for model in (STUDENT, GAUSSIAN)
        for part in parts
    ]
    fit_all = partial(fit_job, num_trials=num_trials, seed=seed)
    fits: dict[tuple, Fits] = {}
    for done in reporting.in_parallel(fit_all, jobs):
        for (scenario, way, model), one in done.items():
            fits[scenario, way, model] = one
            report.say(
                f"truth {scenario.truth}, {scenario.num_rows} rows, {way} {model}: "
                f"{one.seconds:.2f} s a fit, off by {np.median(one.off):.3f} (median)"
            )
    found = {
        scenario: {
            (way, model): fits[scenario, way, model]
            for way in (PAPER, AUTOMATIC)
            for model in (GAUSSIAN, STUDENT)
        }
        for scenario in scenarios
    }
    _tables(report, found)
    report.figure(
        "parameters",
        "Parameters with the paper's settings: median and 10-90 % band over the trials. Dashed: "
        "the truth.",
        _parameter_figure(found),
    )
    report.figure(
        "evidence",
        "Path evidence with the paper's settings: median and 10-90 % band over the trials. Left: "
        "M_G against its closed form at the same theta. Right: positive favours M_G; dashed is the "
        "median of the reference at the last theta.",
        _evidence_figure(found),
    )
    _claims(report, found)


# --- data and models ---------------------------------------------------------------------------


def simulate(scenario: Scenario, num_trials: int, seed: int) -> dict[str, np.ndarray]:
    """w ~ N(0, I), X ~ N(0, I), errors of scale one, all trials along the first axis."""
    rng = np.random.default_rng([seed, scenario.num_rows, scenario.truth == STUDENT])
    shape = (num_trials, scenario.num_rows)
    X = rng.normal(size=(*shape, NUM_COLUMNS))
    w = rng.normal(size=(num_trials, NUM_COLUMNS))
    noise = rng.normal(size=shape)
    if scenario.truth == STUDENT:
        noise = rng.standard_t(TRUE_NU, size=shape)
    return {"X": X, "y": np.einsum("tij,tj->ti", X, w) + noise}


def gaussian_model(data) -> jalax.Model:
    """M_G, with the data of all trials where they lead with the trial axis."""
    flat = jalax.models.gaussian_regression(np.zeros((1, NUM_COLUMNS)), np.zeros(1))
    return flat.replace(data=jax.tree.map(jnp.asarray, data))


def student_model(data) -> jalax.Model:
    flat = jalax.models.student_t_regression(np.zeros((1, NUM_COLUMNS)), np.zeros(1))
    return flat.replace(data=jax.tree.map(jnp.asarray, data))


# --- the paper's start -------------------------------------------------------------------------


def gaussian_start(key, theta, data) -> jalax.Given:
    """Draws of the exact posterior, and the exact log Z_0."""
    model = gaussian_model(data)
    particles = model.exact_posterior(theta).sample(key, NUM_PARTICLES)
    return jalax.Given(particles, log_evidence=model.exact_log_evidence(theta))


def student_start(key, theta, data) -> jalax.Given:
    """Ends of 200 steps of ULA from the prior, and log Z_0 by importance sampling."""
    key_chains, key_draws = jax.random.split(key)
    model = student_model(data)

    def prior(key, theta, data):
        return jnp.exp(-theta[1] / 2) * jax.random.normal(key, (NUM_COLUMNS,))

    chains = jalax.ULA(fn=prior, num_steps=200, step_size=1e-3)
    cloud = chains(key_chains, model, theta, NUM_PARTICLES)
    # The proposal is the posterior that Gaussian errors would give, at the same theta_0.
    proposal = gaussian_model(data).exact_posterior(theta[:2])
    draws = proposal.sample(key_draws, IMPORTANCE_DRAWS)
    log_joint = jax.vmap(lambda w: model.log_joint(theta, w, data))(draws)
    log_weights = log_joint - jax.vmap(proposal.log_density)(draws)
    log_evidence = jax.nn.logsumexp(log_weights) - np.log(IMPORTANCE_DRAWS)
    return jalax.Given(cloud.particles[0], log_evidence=log_evidence)


@partial(jax.jit, static_argnums=0)
def start_all(start, keys, theta, data) -> jalax.Given:
    """One after the other: the importance draws of all trials at once would fill the memory."""
    return jax.lax.map(lambda one: start(one[0], theta, one[1]), (keys, data))


# --- fits --------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One model, fitted in one way."""

    model: str
    way: str
    scenarios: list[Scenario]


def fit_job(job: Job, num_trials: int, seed: int) -> dict[tuple[Scenario, str, str], Fits]:
    model, way, scenarios = job
    number = 2 * (way == AUTOMATIC) + (model == STUDENT)
    found = {}
    with jax.enable_x64(True):
        for scenario in scenarios:
            last = AUTOMATIC_TRIALS.get(scenario.num_rows) if way == AUTOMATIC else num_trials
            data = simulate(scenario, num_trials, seed)
            some = {name: array[:last] for name, array in data.items()}
            first = jax.random.key(seed + 10_000 * scenario.num_rows + (scenario.truth == STUDENT))
            fits: Fits = WAYS[model, way](jax.random.fold_in(first, number), some)
            found[scenario, way, model] = REFERENCES[model](fits, some)
    return found


def paper_gaussian(key, data) -> Fits:
    return _paper(key, gaussian_model(data), np.ones(2), gaussian_start, None)


def paper_student(key, data) -> Fits:
    theta = np.array([1.0, 1.0, LOG_NU_HIGH])
    box = jalax.models.student_t_box
    return _paper(key, student_model(data), theta, student_start, box)


def _paper(key, model: jalax.Model, theta: np.ndarray, start: Any, project: Any) -> Fits:
    """All trials in one program: their data and their starts lead with the trial axis."""
    began = time.perf_counter()
    num_trials = len(model.data["y"])
    key_start, key_fit = jax.random.split(key)
    keys = jax.random.split(key_start, num_trials)
    starts = start_all(start, keys, theta, model.data)
    fits = jalax.fit_many(
        model,
        theta,
        key=key_fit,
        axes={"data": 0, "start": 0},
        algorithm=jalax.JALAEM(
            step_size=STEP_SIZE,
            optimizer=optax.adam(LEARNING_RATE, b1=0.9),
            resample_below=0.0,
            project=project,
        ),
        start=starts,
        num_steps=NUM_STEPS,
        progress=jalax.callbacks.Callback(),
    )
    evidence = _stack([fit.history["log_evidence"] for fit in fits])
    return Fits(
        theta=np.asarray(fits.theta),
        # What Algorithm 1 reports: jalax itself withholds it where the weights collapsed.
        log_evidence=evidence[:, -1],
        error=np.full(num_trials, np.nan),
        ess=np.array([float(fit.ess) / NUM_PARTICLES for fit in fits]),
        status=[str(status) for status in fits.status],
        seconds=(time.perf_counter() - began) / num_trials,
        theta_path=_stack([fit.history["theta"] for fit in fits]),
        evidence_path=evidence,
    )


def _stack(paths: list[np.ndarray]) -> np.ndarray:
    """(trial, step, ...); a path that broke off is filled up with NaN."""
    out = np.full((len(paths), NUM_STEPS, *paths[0].shape[1:]), np.nan)
    for row, path in zip(out, paths, strict=True):
        row[: len(path)] = path
    return out


def automatic(make_model, num_theta: int, project: Any, key, data) -> Fits:
    """Nothing tuned; the evidence is the fresh one at the end, with its error."""
    began = time.perf_counter()
    num_trials = len(data["y"])
    fits: list[jalax.FitResult] = []
    common: dict[str, Any] = {
        "algorithm": jalax.JALAEM(project=project),
        "progress": jalax.callbacks.Callback(),
    }
    for i in range(0, num_trials, BATCH):
        batch = {name: array[i : i + BATCH] for name, array in data.items()}
        keys = jax.random.split(jax.random.fold_in(key, i), BATCH)
        theta = np.ones(num_theta)
        if num_trials < BATCH:  # one by one is slower, and compiles in half the time
            for k in range(num_trials):
                one = make_model({name: array[k] for name, array in batch.items()})
                fits.append(jalax.fit(one, theta, key=keys[k], **common))
        else:
            model = make_model(batch)
            fits += jalax.fit_many(model, theta, key=keys[0], axes={"data": 0}, **common)
    return Fits(
        theta=np.array([fit.theta for fit in fits]),
        log_evidence=np.array([fit.log_evidence for fit in fits], float),
        error=np.array([fit.log_evidence_error for fit in fits], float),
        ess=np.array([float(fit.ess) / len(fit.log_weights) for fit in fits]),
        status=[str(fit.status) for fit in fits],
        seconds=(time.perf_counter() - began) / num_trials,
    )


# --- references --------------------------------------------------------------------------------


@jax.jit
def exact_along(theta, data):
    """log p_theta(y) of M_G in closed form, for theta (trial, step, 2)."""

    def one_trial(one):
        theta, data = one
        return jax.vmap(gaussian_model(data).exact_log_evidence)(theta)

    return jax.lax.map(one_trial, (theta, data))


def gaussian_reference(fits: Fits, data) -> Fits:
    value = exact_along(fits.theta[:, None], data)[:, 0]
    path = None
    if fits.theta_path is not None:
        path = np.asarray(exact_along(fits.theta_path, data))
    return fits._replace(
        reference=np.asarray(value),
        reference_error=np.zeros(len(value)),
        reference_path=path,
    )


def student_reference(fits: Fits, data) -> Fits:
    points = proposal_points()
    trials = zip(fits.theta, data["X"], data["y"], strict=True)
    value, error = np.transpose([student_log_evidence(*trial, points) for trial in trials])
    return fits._replace(reference=value, reference_error=error)


WAYS = {
    (GAUSSIAN, PAPER): paper_gaussian,
    (STUDENT, PAPER): paper_student,
    (GAUSSIAN, AUTOMATIC): partial(automatic, gaussian_model, 2, None),
    (STUDENT, AUTOMATIC): partial(automatic, student_model, 3, jalax.models.student_t_box),
}
REFERENCES = {GAUSSIAN: gaussian_reference, STUDENT: student_reference}


class Points(NamedTuple):
    """Standard Student-t points, (scramble, point, d), and their log-density."""

    z: np.ndarray
    log_density: np.ndarray


def proposal_points() -> Points:
    """Scrambled Sobol points turned into a standard Student-t: normals over a root of a chi2."""
    nu, d = PROPOSAL_FREEDOM, NUM_COLUMNS
    uniform = np.stack(
        [qmc.Sobol(d + 1, rng=np.random.default_rng(i)).random(POINTS) for i in range(SCRAMBLES)]
    )
    uniform = np.clip(uniform, 1e-15, 1 - 1e-15)
    chi2 = 2 * gammainccinv(nu / 2, uniform[..., d:])
    z = ndtri(uniform[..., :d]) * np.sqrt(nu / chi2)
    constant = gammaln((nu + d) / 2) - gammaln(nu / 2) - d / 2 * np.log(nu * np.pi)
    return Points(z, constant - (nu + d) / 2 * np.log1p((z**2).sum(-1) / nu))


def student_log_evidence(theta, X, y, points: Points) -> tuple[float, float]:
    """log p_theta(y) of M_T and its standard error over the scrambles; no code of jalax in it."""
    mode, precision = student_mode(theta, X, y)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    log_det = np.log(np.diagonal(root)).sum()
    values = []
    for z, log_q in zip(points.z, points.log_density, strict=True):
        w = mode + z @ root.T
        log_joint = np.concatenate(
            # In small pieces: they stay in the cache, and BLAS starts no threads for them.
            [student_log_joint(theta, part, X, y) for part in np.split(w, POINTS // 16)]
        )
        log_weights = log_joint - log_q + log_det
        top = log_weights.max()
        values.append(top + np.log(np.exp(log_weights - top).mean()))
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(SCRAMBLES))


def student_log_joint(theta, w, X, y) -> np.ndarray:
    """log p_theta(w, y) for every row of w."""
    log_variance, log_precision, log_nu = theta
    nu, n, d = np.exp(log_nu), len(y), w.shape[1]
    residual = y - w @ X.T
    tails = np.log(1 + residual**2 * np.exp(-log_variance - log_nu)).sum(-1)
    constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * (np.log(np.pi) + log_nu)
    log_likelihood = n * (constant - 0.5 * log_variance) - 0.5 * (nu + 1) * tails
    square = np.exp(log_precision) * (w**2).sum(-1)
    return log_likelihood + 0.5 * (d * (log_precision - np.log(2 * np.pi)) - square)


def student_mode(theta, X, y) -> tuple[np.ndarray, np.ndarray]:
    """The mode of w and the Hessian of -log p there."""
    log_variance, log_precision, log_nu = theta
    nu, alpha = np.exp(log_nu), np.exp(log_precision)
    scale = np.exp(log_variance + log_nu)

    def value(w):
        return -student_log_joint(theta, w[None], X, y)[0]

    def gradient(w):
        residual = y - X @ w
        return alpha * w - (nu + 1) * X.T @ (residual / (scale + residual**2))

    def hessian(w):
        square = (y - X @ w) ** 2
        curvature = (nu + 1) * (scale - square) / (scale + square) ** 2
        return alpha * np.eye(len(w)) + (X.T * curvature) @ X

    least_squares = np.linalg.lstsq(X, y, rcond=None)[0]
    found = minimize(value, least_squares, jac=gradient, hess=hessian, method="trust-exact")
    return found.x, hessian(found.x)


# --- what is reported --------------------------------------------------------------------------


def _notes(report: reporting.Report, num_trials: int) -> None:
    report.note(
        f"{num_trials} data sets for each truth and number of rows d_y; d_x = {NUM_COLUMNS}, "
        f"alpha = sigma = 1, nu = {TRUE_NU:g}. Double precision throughout."
    )
    report.note(
        f"'paper': K = {NUM_STEPS}, N = {NUM_PARTICLES}, h = {STEP_SIZE:g}, Adam with rate "
        f"{LEARNING_RATE:g}, no resampling, theta_0 = (1, 1[, log 5]). The paper starts log nu at "
        "log 4 + 1 when M_T is true, outside its own box; we start at the box's edge, where its "
        "first projection leads. M_G starts with exact posterior draws and the exact log Z_0, M_T "
        f"with 200 steps of ULA from the prior and log Z_0 by {IMPORTANCE_DRAWS} importance draws. "
        "Its evidence is that of the path, which is right only if the particles start in the "
        "posterior: those of ULA spread several times too widely, because its rule goes on "
        "growing the step size while the gradient is short."
    )
    report.note(
        "The paper adds an exponential prior on nu to what it maximises. It is a prior on theta "
        "and no part of log p_theta(y): here the marginal likelihood alone is maximised, within "
        "the paper's box for nu."
    )
    report.note(
        "'automatic': jalax.fit_many with nothing tuned, from (1, 1[, 1]), on at most "
        f"{AUTOMATIC_TRIALS[1500]} of the data sets with 1500 rows. Its evidence is a fresh "
        "estimate at the end, with a reported error. When M_G is true nu runs to the edge of its "
        "box, and the status is 'boundary'."
    )
    report.note(
        f"Reference: for M_G the closed form; for M_T importance sampling in NumPy with {POINTS} "
        f"scrambled Sobol points, {SCRAMBLES} times over, and a Student-t on the mode, both at "
        "the theta where the fit ended. Seconds are the wall clock of all fits over their number, "
        "compilation included."
    )


def _tables(report: reporting.Report, found: dict) -> None:
    report.table(
        "selection",
        "Selection by the higher log-evidence",
        ["truth", "d_y", "way", "correct", "trials", "rate", "95 % interval", "median log Z_G/Z_T"],
        [_selection_row(s, way, fits) for s, fits in found.items() for way in (PAPER, AUTOMATIC)],
    )
    report.table(
        "evidence",
        "The evidence against the reference at the same theta",
        [
            "truth",
            "d_y",
            "way",
            "model",
            "median off",
            "95th percentile",
            "median signed",
            "reported error",
            f"within {ERRORS_ALLOWED} errors",
            "reference error",
            "ESS / N",
            "seconds a fit",
            "status",
        ],
        [_evidence_row(s, *key, fits) for s, both in found.items() for key, fits in both.items()],
    )
    report.table(
        "theta",
        "theta at the end: median over the trials",
        ["truth", "d_y", "way", "model", "log sigma^2", "log alpha", "log nu"],
        [_theta_row(s, *key, fits) for s, both in found.items() for key, fits in both.items()],
    )


def correct(truth: str, way: str, fits: dict) -> np.ndarray:
    """For each trial: does the true model have the higher evidence? A NaN counts as no."""
    other = STUDENT if truth == GAUSSIAN else GAUSSIAN
    return fits[way, truth].log_evidence > fits[way, other].log_evidence


def _selection_row(scenario: Scenario, way: str, fits: dict) -> list:
    right = correct(scenario.truth, way, fits)
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(0.95, method="exact")
    ratio = fits[way, GAUSSIAN].log_evidence - fits[way, STUDENT].log_evidence
    return [
        scenario.truth,
        scenario.num_rows,
        way,
        int(right.sum()),
        len(right),
        float(right.mean()),
        f"{interval.low:.3f} to {interval.high:.3f}",
        float(np.median(ratio)),
    ]


def within(fits: Fits) -> np.ndarray:
    """|log Z - reference| within the errors allowed, the reference's own included."""
    return fits.off <= ERRORS_ALLOWED * np.hypot(fits.error, fits.reference_error)


def _evidence_row(scenario: Scenario, way: str, model: str, fits: Fits) -> list:
    reports = way == AUTOMATIC
    counts = {status: fits.status.count(status) for status in sorted(set(fits.status))}
    return [
        scenario.truth,
        scenario.num_rows,
        way,
        model,
        float(np.median(fits.off)),
        float(np.percentile(fits.off, 95)),
        float(np.median(fits.log_evidence - fits.reference)),
        float(np.median(fits.error)) if reports else "-",
        float(within(fits).mean()) if reports else "-",
        float(fits.reference_error.max()),
        float(np.median(fits.ess)),
        fits.seconds,
        ", ".join(f"{status} {count}" for status, count in counts.items()),
    ]


def _theta_row(scenario: Scenario, way: str, model: str, fits: Fits) -> list:
    middle = [float(value) for value in np.median(fits.theta, axis=0)]
    return [scenario.truth, scenario.num_rows, way, model, *middle, *["-"] * (3 - len(middle))]


COLOURS = {GAUSSIAN: "tab:blue", STUDENT: "tab:orange"}


def _band(axis, paths: np.ndarray, **line) -> None:
    low, middle, high = np.nanpercentile(paths, [10, 50, 90], axis=0)
    steps = np.arange(1, len(middle) + 1)
    axis.plot(steps, middle, **line)
    axis.fill_between(steps, low, high, color=line["color"], alpha=0.2, linewidth=0)


def _parameter_figure(found: dict):
    names = (r"$\log \sigma^2$", r"$\log \alpha$", r"$\log \nu$")
    figure, axes = reporting.figure(3, len(found), 3.4, 2.3, sharex=True, squeeze=False)
    for row, (scenario, fits) in zip(axes, found.items(), strict=True):
        truth = [0.0, 0.0, np.log(TRUE_NU) if scenario.truth == STUDENT else None]
        for i, axis in enumerate(row):
            for model in (GAUSSIAN, STUDENT) if i < 2 else (STUDENT,):
                path = fits[PAPER, model].theta_path[..., i]
                _band(axis, path, color=COLOURS[model], label=model)
            if truth[i] is not None:
                axis.axhline(truth[i], color="black", linestyle="--", linewidth=1)
            axis.set_ylabel(names[i])
        row[0].set_title(f"truth {scenario.truth}, {scenario.num_rows} rows", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    axes[0, 0].legend(frameon=False)
    return figure


def _evidence_figure(found: dict):
    figure, axes = reporting.figure(2, len(found), 4.4, 2.3, sharex=True, squeeze=False)
    for row, (scenario, fits) in zip(axes, found.items(), strict=True):
        gaussian, student = fits[PAPER, GAUSSIAN], fits[PAPER, STUDENT]
        _band(row[0], gaussian.evidence_path - gaussian.reference_path, color=COLOURS[GAUSSIAN])
        row[0].axhline(0.0, color="black", linestyle="--", linewidth=1)
        row[0].set_ylabel(r"$\log \hat Z_k - \log Z(\theta_k)$")
        row[0].set_title(f"truth {scenario.truth}, {scenario.num_rows} rows", fontsize=10)
        _band(row[1], gaussian.evidence_path - student.evidence_path, color="tab:green")
        middle = np.median(gaussian.reference - student.reference)
        row[1].axhline(middle, color="black", linestyle="--", linewidth=1)
        row[1].axhline(0.0, color="grey", linewidth=0.5)
        row[1].set_ylabel(r"$\log \hat Z_G - \log \hat Z_T$")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    return figure


def _claims(report: reporting.Report, found: dict) -> None:
    for truth, paper, least in ((GAUSSIAN, "100 %", 1.0), (STUDENT, "99 %", 0.98)):
        for way in (PAPER, AUTOMATIC):
            right = {s: correct(truth, way, f) for s, f in found.items() if s.truth == truth}
            ours = ", ".join(f"{r.sum()} of {len(r)} ({s.num_rows} rows)" for s, r in right.items())
            held = all(r.mean() >= least for r in right.values())
            report.claim(
                f"{way}: the true model is selected when it is {truth}",
                paper,
                ours,
                reporting.REPRODUCED if held else reporting.NOT_REPRODUCED,
            )
    _path_claim(report, found)
    _automatic_claim(report, found)
    _student_claim(report, found)


def _path_claim(report: reporting.Report, found: dict) -> None:
    """The paper's words are about data that M_G made."""
    true = {s: f[PAPER, GAUSSIAN] for s, f in found.items() if s.truth == GAUSSIAN}
    off = {s: float(np.median(fits.off)) for s, fits in true.items()}
    climbed = [np.median(np.ptp(fits.reference_path, axis=1)) for fits in true.values()]
    ours = ", ".join(f"{value:.2f} ({s.num_rows} rows)" for s, value in off.items())
    report.claim(
        "the path evidence of M_G is the closed form at theta_k",
        "they correspond exactly",
        f"median |difference| at the end {ours}, after a climb of {min(climbed):.0f} or more",
        reporting.REPRODUCED if max(off.values()) <= PATH_TOLERANCE else reporting.NOT_REPRODUCED,
    )


def _automatic_claim(report: reporting.Report, found: dict) -> None:
    fits = [f for both in found.values() for (way, _), f in both.items() if way == AUTOMATIC]
    inside = np.concatenate([within(f) for f in fits])
    off = np.concatenate([f.off for f in fits])
    held = inside.all() and np.median(off) <= ACCURATE
    report.claim(
        f"automatic evidence: every one within {ERRORS_ALLOWED} reported errors of the reference, "
        f"median off by at most {ACCURATE}",
        "no errors reported",
        f"{inside.sum()} of {inside.size} within, median {np.median(off):.4f}, largest "
        f"{off.max():.4f}",
        reporting.BETTER if held else reporting.NOT_REPRODUCED,
    )


def _student_claim(report: reporting.Report, found: dict) -> None:
    """The paper does not say; the numbers stand for themselves."""
    fits = [both[PAPER, STUDENT] for both in found.values()]
    off = np.concatenate([f.off for f in fits])
    ess = NUM_PARTICLES * np.concatenate([f.ess for f in fits])
    held = np.median(off) <= ACCURATE
    report.claim(
        f"the path evidence of M_T, from ULA particles, is log p_theta(y) to within {ACCURATE}",
        "approximately; no accuracy given",
        f"median |difference| {np.median(off):.2f}, 95th percentile {np.percentile(off, 95):.2f}; "
        f"median ESS {np.median(ess):.1f} of {NUM_PARTICLES}",
        reporting.REPRODUCED if held else reporting.NOT_REPRODUCED,
    )
