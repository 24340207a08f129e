"""Proposition 1: along a path fixed in advance, E[e^A] = Z_k / Z_0 and weighted means are exact.

Every check is a t-statistic over independent replicates: of mean(Z_r) against the exact Z_k/Z_0,
and of the ratio sum_r Z_r f_r / sum_r Z_r against the exact mean of f (a single run's
self-normalised mean would be biased). |t| < 4 has a false-alarm rate of 6e-5 each. The same
test must fail when a fault is put into the engine; the sd of log Z is held below 0.5, so that it
has the power to see one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from fixed_path import THETA_PATH, Y, assert_exact, follow_path, t_statistics
from jalax._algorithms import jala_em
from jalax._model.checks import prepare_model
from jalax._model.types import Cloud
from jalax._particles import langevin, resampling, trees, weight_math
from jalax._runtime.options import canonical
from shared_models import pair_normalised

pytestmark = pytest.mark.usefixtures("x64")
REPLICATES = 2500


@pytest.fixture
def planting(monkeypatch):
    """A fault is put in by patching: nothing compiled before or after may be shared."""
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()


# --- transport: a Gaussian that moves and narrows -------------------------------------------


class MovingGaussian:
    """N(m_k, s_k^2 C) in d dimensions, unnormalised."""

    def __init__(self, d, steps, shift, narrow, step_size, num_particles):
        self.d, self.h, self.n = d, step_size, num_particles
        self.path = {
            "m": np.linspace(0.0, shift, steps + 1),
            "s": np.linspace(1.0, narrow, steps + 1),
        }
        # Of many numbers the run takes longer than the compilation, at level 0 five times as long.
        self.compiled = {"xla_backend_optimization_level": 2} if d > 1 else None
        self.scales = np.linspace(1.0, 1.5, d)  # C = diag(scales^2): a preconditioner has work

    def log_density(self, t, x):
        return -0.5 * jnp.sum(((x - t["m"]) / (t["s"] * self.scales)) ** 2)

    def replicate(self, key, options):
        key_start, key = jax.random.split(key)
        x = jax.random.normal(key_start, (self.n, self.d)) * self.scales
        out = jalax.transport(self.log_density, self.path, x, key=key, step_size=self.h, **options)
        centred = out.particles[:, 0] - self.path["m"][-1]
        f = {"x": out.particles[:, 0], "(x - m)^2": centred**2}
        means = {name: jnp.sum(out.weights * value) for name, value in f.items()}
        return out.log_evidence[-1], means, out.resampled.any()

    def run(self, **options):
        keys = jax.random.split(jax.random.key(11), REPLICATES)
        every = jax.vmap(lambda key: self.replicate(key, options))
        log_z, means, resampled = jax.jit(every, compiler_options=self.compiled)(keys)
        m, s = float(self.path["m"][-1]), float(self.path["s"][-1])
        exact = {"x": m, "(x - m)^2": s**2}  # scales[0] = 1
        statistics = t_statistics(log_z - self.d * np.log(s), means, exact)
        return statistics, float(np.mean(resampled))


LOW = MovingGaussian(1, steps=10, shift=1.0, narrow=0.7, step_size=0.4, num_particles=20)
HIGH = MovingGaussian(20, steps=8, shift=0.25, narrow=0.92, step_size=0.1, num_particles=100)


@pytest.mark.slow_cases("d=20-0.0-False")
@pytest.mark.parametrize(
    ("below", "preconditioned"),
    [
        (0.0, False),
        (0.95, True),
        pytest.param(0.0, True, marks=pytest.mark.slow),
        pytest.param(0.95, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("gaussian", [LOW, HIGH], ids=["d=1", "d=20"])
def test_moving_gaussian(gaussian, below, preconditioned):
    options = {"resample_below": below}
    if preconditioned:
        options["preconditioner"] = gaussian.scales**2
    statistics, resampled = gaussian.run(**options)
    assert (resampled > 0.5) == (below > 0)
    assert_exact(statistics)


@pytest.mark.slow
def test_dense_preconditioner_and_multinomial_resampling():
    matrix = np.diag(HIGH.scales**2) + 0.05
    statistics, resampled = HIGH.run(
        preconditioner=matrix, resample_below=0.95, resample=jalax.resampling.multinomial
    )
    assert resampled > 0.5
    assert_exact(statistics)


@pytest.mark.parametrize(
    "resample",
    [
        jalax.resampling.stratified,
        pytest.param(jalax.resampling.residual, marks=pytest.mark.slow),
    ],
)
def test_other_resampling_schemes(resample):
    statistics, _ = LOW.run(resample_below=0.95, resample=resample)
    assert_exact(statistics)


# --- JALA-EM on a fixed theta-path, grouped --------------------------------------------------


def run_grouped(below=0.95, num_particles=30, shift=0.0):
    model = jalax.GroupedModel(pair_normalised, jnp.zeros(()), jnp.asarray(Y))
    algorithm = canonical(
        jalax.JALAEM(
            step_size=0.25,
            optimizer=follow_path(),
            resample_below=below,
            shift=jalax.options.Shift(shift),
        )
    )
    log_z0 = -0.25 * (Y - THETA_PATH[0]) ** 2 - 0.5 * jnp.log(4 * jnp.pi)

    def replicate(key):
        key_start, key = jax.random.split(key)
        xi = jax.random.normal(key_start, (3, num_particles))
        x = (Y[:, None] + THETA_PATH[0]) / 2 + jnp.sqrt(0.5) * xi
        state = algorithm.init(
            key, model, jnp.asarray(THETA_PATH[0]), Cloud(x, jnp.zeros_like(x), log_z0)
        )
        keys = jax.random.split(key, len(THETA_PATH) - 1)
        state, info = jax.lax.scan(lambda s, k: algorithm.step(k, model, s), state, keys)
        w = weight_math.normalise(state.log_weights)
        group = state.log_evidence_base + weight_math.log_mean_exp(state.log_weights)
        means = {
            "x": jnp.sum(w[0] * state.particles[0]),
            "(x - m)^2": jnp.sum(w[0] * (state.particles[0] - (Y[0] + THETA_PATH[-1]) / 2) ** 2),
        }
        return info.log_evidence[-1], group, means

    keys = jax.random.split(jax.random.key(5), REPLICATES)
    total, group, means = jax.jit(jax.vmap(replicate))(keys)
    end = THETA_PATH[-1]
    exact = np.asarray(-0.25 * (Y - end) ** 2 - 0.5 * jnp.log(4 * jnp.pi))
    moments = {"x": float((Y[0] + end) / 2), "(x - m)^2": 0.5}
    statistics = t_statistics(total - exact.sum(), {}, {})
    first_group = t_statistics(np.asarray(group)[:, 0] - exact[0], means, moments)
    return statistics | {f"group 0: {name}": t for name, t in first_group.items() if name != "sd"}


@pytest.mark.parametrize("below", [0.0, 0.95])
def test_grouped_model_on_a_fixed_path(below):
    assert_exact(run_grouped(below))


def test_particles_that_move_along_with_theta():
    """Of a Gaussian the shift depends on theta alone, so that it is fixed in advance, too."""
    assert_exact(run_grouped(shift=1.0))


# --- counts: dense P, a shift and theta moving, with both kernels ------------------------------

COUNTS = np.array([3.0, 0.0])
METRIC = np.array([[0.45, 0.15], [0.15, 0.4]])  # roughly the covariance of the posterior
FIRST = 1.4 * np.linalg.cholesky(METRIC)  # of the Gaussian that the particles start from


def counts_log_joint(theta, x, y):
    """Two counts, and rates that pull at each other."""
    prior = -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * (x[0] - x[1]) ** 2
    return prior + jnp.sum(y * x - jnp.exp(x))


def counts_by_quadrature(theta):
    """log Z, and the mean of x_0, on a grid that holds all of the mass."""
    axis = jnp.linspace(-9.0, 6.0, 601)
    grid = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape((-1, 2))
    log_p = jax.vmap(lambda x: counts_log_joint(theta, x, COUNTS))(grid)
    cell = 2 * jnp.log(axis[1] - axis[0])
    return jax.nn.logsumexp(log_p) + cell, jnp.sum(jax.nn.softmax(log_p) * grid[:, 0])


def run_counts(kernel, step_size=0.4, num_particles=50):
    """theta, h, P and c of every step are fixed in advance, as in a replay."""
    model = prepare_model(jalax.Model(counts_log_joint, jnp.zeros(2), jnp.asarray(COUNTS)))
    algorithm = canonical(
        jalax.JALAEM(
            step_size=step_size, optimizer=follow_path(), preconditioner=METRIC, kernel=kernel
        )
    )
    metric = langevin.as_preconditioner(model.latent, 1, jnp.asarray(METRIC))
    h, root = jnp.asarray(step_size), jnp.asarray(FIRST)

    def replicate(key):
        key_start, key = jax.random.split(key)
        xi = jax.random.normal(key_start, (1, num_particles, 2))
        x = xi @ root.T
        log_q = jnp.sum(jax.scipy.stats.norm.logpdf(xi), axis=-1) - jnp.linalg.slogdet(root)[1]
        log_p = jax.vmap(lambda x: counts_log_joint(THETA_PATH[0], x, COUNTS))(x[0])[None]
        log_w = log_p - log_q
        cloud = Cloud(x, log_w, weight_math.log_mean_exp(log_w))
        state = algorithm.init(key, model, jnp.asarray(THETA_PATH[0]), cloud)

        def step(state, inputs):
            key, theta, change = inputs
            shift = change * jnp.sum(jnp.asarray(METRIC), axis=1)  # of the mode, roughly
            plan = jala_em.Change(theta, state.memory.optimizer, None, h, metric, shift)
            return algorithm.advance(key, model, state, plan)

        path = jnp.asarray(THETA_PATH)
        keys = jax.random.split(key, len(path) - 1)
        state, info = jax.lax.scan(step, state, (keys, path[1:], jnp.diff(path)))
        w = weight_math.normalise(state.log_weights)
        return info.log_evidence[-1], {"x": jnp.sum(w[0] * state.particles[0, :, 0])}

    keys = jax.random.split(jax.random.key(8), REPLICATES)
    log_z, means = jax.jit(jax.vmap(replicate))(keys)
    exact, mean = counts_by_quadrature(THETA_PATH[-1])
    return t_statistics(log_z - exact, means, {"x": float(mean)})


@pytest.mark.parametrize("kernel", [jalax.Unadjusted(), jalax.GaussianExact()])
def test_both_kernels_with_a_dense_preconditioner_and_a_shift(kernel):
    assert_exact(run_counts(kernel))


@pytest.mark.slow
def test_moving_gaussian_with_the_exact_kernel():
    options = {"preconditioner": HIGH.scales**2, "resample_below": 0.95}
    statistics, _ = HIGH.run(**options, kernel=jalax.GaussianExact())
    assert_exact(statistics)


# --- the same tests see every fault -----------------------------------------------------------


def no_work(patch):
    """The weights of importance sampling: the moves do not count."""
    patch.setattr(langevin, "work", lambda grad_x, path, *rest: 0 * trees.dot(grad_x, path))


def open_segment_dropped(patch):
    patch.setattr(weight_math, "log_evidence", lambda base, log_weights: jnp.sum(base))


def caches_not_gathered(patch):
    real = trees.gather

    def gather(tree, index):  # `cached` is the one tuple among what is gathered
        return tree if isinstance(tree, tuple) else real(tree, index)

    patch.setattr(resampling.trees, "gather", gather)


def theta_k_for_theta_k_plus_1(patch):
    """alpha_{k+1} taken at theta_k; the caches for the next move are right, as before."""
    real_evaluate, real_step = jala_em.evaluate, jalax.JALAEM.step

    def step(self, key, model, state):
        def at_old_theta(model, theta, particles):
            wrong = real_evaluate(model, state.theta, particles)
            return wrong._replace(pull=real_evaluate(model, theta, particles).pull)

        patch.setattr(jala_em, "evaluate", at_old_theta)
        new, info = real_step(self, key, model, state)
        right = real_evaluate(model, new.theta, new.particles)
        point = new.memory.point._replace(log_joint=right.log_joint, grad_x=right.grad_x)
        return new._replace(memory=new.memory._replace(point=point)), info

    patch.setattr(jalax.JALAEM, "step", step)


def work_divided_by_2(patch):
    """As for noise of variance 2h, which is not the noise of this kernel."""
    patch.setattr(langevin.GaussianExact, "work_divisor", lambda self, h: 2)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [no_work, work_divided_by_2])
def test_counts_test_sees(fault, planting):
    fault(planting)
    statistics = run_counts(jalax.GaussianExact())
    with pytest.raises(AssertionError):
        assert_exact(statistics)


@pytest.mark.slow_cases("caches_not_gathered", "no_work", "open_segment_dropped")
@pytest.mark.parametrize(
    "fault", [no_work, open_segment_dropped, caches_not_gathered, theta_k_for_theta_k_plus_1]
)
def test_grouped_test_sees(fault, planting):
    fault(planting)
    statistics = run_grouped()
    with pytest.raises(AssertionError):
        assert_exact(statistics)


@pytest.mark.slow_cases("caches_not_gathered", "open_segment_dropped")
@pytest.mark.parametrize("fault", [no_work, open_segment_dropped, caches_not_gathered])
def test_moving_gaussian_test_sees(fault, planting):
    fault(planting)
    statistics, _ = LOW.run(resample_below=0.95)
    with pytest.raises(AssertionError):
        assert_exact(statistics)
