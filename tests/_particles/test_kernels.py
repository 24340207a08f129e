"""The two Langevin kernels: their moves and weights against Gaussian densities written out.

`GaussianExact` leaves a Gaussian with covariance P invariant. Then its moves do no work, which is
seen up to rounding, from the increment itself to the evidence of a whole fit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax import models
from jalax._particles import langevin, trees

KERNELS = {"unadjusted": jalax.Unadjusted(), "exact": jalax.GaussianExact()}
MEAN = np.array([0.3, -0.2, 1.0])
COVARIANCE = np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)


class Known(NamedTuple):
    """What `jarzynski_increment` asks of a point."""

    log_joint: jax.Array
    grad_x: jax.Array


def bent(x, theta):
    """log p and its gradient, in NumPy; no Gaussian, and no tails in which the moves overshoot."""
    z = x - theta
    root = np.sqrt(1 + z**2)
    return -(0.3 * z**2 + root).sum(-1), -0.6 * z - z / root


def gaussian(x, mean):
    """The same of N(mean, COVARIANCE), unnormalised, in JAX and in the precision of x."""
    z, precision = x - jnp.asarray(mean, x.dtype), jnp.asarray(PRECISION, x.dtype)
    grad = -jnp.einsum("gni,ij->gnj", z, precision)
    return Known(0.5 * jnp.sum(z * grad, axis=-1), grad)


def log_normal(x, mean, covariance):
    """Of N(mean, covariance), by hand."""
    z = x - mean
    square = np.einsum("...i,ij,...j->...", z, np.linalg.inv(covariance), z)
    return -0.5 * square - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]


def drawn(dtype, groups=2, num=50):
    x = np.random.default_rng(0).normal(size=(groups, num, 3)) * 1.5
    return jnp.asarray(x, dtype)


@pytest.mark.parametrize("shape", ["one", "of each group"])
@pytest.mark.parametrize("form", ["dense", "diagonal", "none"])
@pytest.mark.parametrize("name", KERNELS)
def test_move_and_increment_are_those_of_the_densities(name, form, shape, x64):
    """A += log p' - log p + log q(x | x') - log q(x' | x), with a shift and theta moving."""
    h = np.array([0.7, 0.7]) if shape == "one" else np.array([0.7, 1.3])
    p = {"dense": COVARIANCE, "diagonal": np.diag([0.5, 1.0, 2.0]), "none": np.eye(3)}[form]
    given = {"dense": p, "diagonal": np.diag(p), "none": None}[form]
    metric = langevin.as_preconditioner(
        jnp.zeros(3), 2, None if form == "none" else jnp.array(given)
    )
    c = np.array([0.2, -0.1, 0.4])
    x = np.asarray(drawn(float))
    log_p, grad = bent(x, 0.1)
    step_size = jnp.asarray(h[0] if shape == "one" else h)
    moved = langevin.move(
        jax.random.key(1), jnp.array(x), grad, step_size, metric, jnp.array(c), KERNELS[name]
    )
    new = np.asarray(moved.particles)
    log_p_new, grad_new = bent(new, 0.4)
    found = langevin.jarzynski_increment(
        Known(log_p, grad),
        Known(log_p_new, grad_new),
        moved.path,
        step_size,
        metric,
        kernel=KERNELS[name],
    )
    xi = np.asarray(trees.normal_like(jax.random.key(1), jnp.array(x)))
    for g in range(2):
        variance = {"unadjusted": 2 * h[g], "exact": h[g] * (2 - h[g])}[name]
        there = x[g] + c + h[g] * grad[g] @ p
        noise = xi[g] @ np.linalg.cholesky(variance * p).T
        np.testing.assert_allclose(new[g], there + noise, rtol=0, atol=1e-10)
        forwards = log_normal(new[g], there, variance * p)
        backwards = log_normal(x[g], new[g] - c + h[g] * grad_new[g] @ p, variance * p)
        wanted = log_p_new[g] - log_p[g] + backwards - forwards
        np.testing.assert_allclose(found[g], wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("h", [0.1, 0.5, 1.0, 1.9])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["one", "of each group"])
def test_the_noise_has_the_variance_it_says(h, shape, x64):
    """Without a drift: 200,000 numbers, whose variance is known to 0.3 % (one sd)."""
    zero = jnp.zeros((2, 100_000))
    step_size = jnp.full(shape, h)
    for kernel, variance in ((jalax.Unadjusted(), 2 * h), (jalax.GaussianExact(), h * (2 - h))):
        path = langevin.move(jax.random.key(2), zero, zero, step_size, kernel=kernel).path
        assert np.var(path) == pytest.approx(variance, rel=0.015)


def rounding(old: Known, new: Known, path, h, metric):
    """A bound: every number that is added up, times the roundings that it has gone through.

    A gradient is a product with a matrix, as is P times it: two sums of three, hence 8 d roundings
    with what comes after; the inverse is as good as the condition of the matrix.
    """
    terms = [langevin.work(p.grad_x, s * path, h, metric) for p, s in ((old, 1), (new, -1))]
    works = sum(jnp.sum(jnp.abs(term), axis=-1) for term in terms) / (2 - h)
    large = jnp.abs(old.log_joint) + jnp.abs(new.log_joint) + works
    return 8 * 3 * np.linalg.cond(COVARIANCE) * jnp.finfo(path.dtype).eps * large


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("h", [0.1, 0.5, 1.0, 1.9])
def test_a_gaussian_does_no_work(h, bits):
    """Not at a fixed theta, and if theta moves its mean by c only what log p itself changes by."""
    with jax.enable_x64(bits == 64):
        x = drawn(f"float{bits}")
        metric = langevin.as_preconditioner(jnp.zeros(3), 2, jnp.asarray(COVARIANCE, x.dtype))
        step_size, kernel = jnp.asarray(h, x.dtype), jalax.GaussianExact()
        for c in (None, np.array([0.5, -1.0, 0.2])):
            shift = None if c is None else jnp.asarray(c, x.dtype)
            old = gaussian(x, MEAN)
            moved = langevin.move(
                jax.random.key(3), x, old.grad_x, step_size, metric, shift, kernel
            )
            new = gaussian(moved.particles, MEAN if c is None else MEAN + c)
            found = langevin.jarzynski_increment(
                old, new, moved.path, step_size, metric, kernel=kernel
            )
            bound = rounding(old, new, moved.path, h, metric)
            assert float(jnp.max(bound)) < (0.1 if bits == 32 else 1e-9)
            assert (np.abs(found) < bound).all()
            # Of the other kernel it is far from nothing.
            moved = langevin.move(jax.random.key(3), x, old.grad_x, step_size, metric, shift)
            new = gaussian(moved.particles, MEAN if c is None else MEAN + c)
            other = langevin.jarzynski_increment(old, new, moved.path, step_size, metric)
            assert np.std(other) > h**2 / 10


# --- whole fits of a Gaussian posterior ----------------------------------------------------------


Y = np.array([0.5, 1.5, 4.0])


def hierarchical():
    """The model, and a start that is its exact posterior."""
    model = models.hierarchical_normal(jnp.asarray(Y))

    def sample(key, theta, data):
        return model.replace(data=data).exact_posterior(theta).sample(key, 1)[0]

    def log_density(theta, x, data):
        return model.replace(data=data).exact_posterior(theta).log_density(x)

    return model, jalax.FromSampler(sample, log_density)


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        return fit_of_a_gaussian()


def fit_of_a_gaussian():
    model, start = hierarchical()
    algorithm = jalax.JALAEM(
        step_size=0.9,
        optimizer=optax.sgd(0.2),
        preconditioner=jalax.options.InverseHessian(),
        shift=jalax.options.Shift(),
        kernel=jalax.GaussianExact(),
    )
    result = jalax.fit(
        model,
        0.0,
        key=jax.random.key(0),
        algorithm=algorithm,
        start=start,
        num_particles=40,
        num_steps=20,
        record=1,
    )
    return model, result


def test_the_weights_of_a_gaussian_stay_equal(fitted, x64):
    """theta moves and c follows: the path's evidence is the exact one at every theta."""
    model, result = fitted
    exact = jax.jit(jax.vmap(model.exact_log_evidence))(result.history["theta"])
    np.testing.assert_allclose(result.history["log_evidence"], exact, atol=1e-9)
    np.testing.assert_allclose(result.history["ess"], 40, rtol=1e-9)
    assert abs(result.history["theta"][-1] - Y.mean()) < 0.5  # and theta did move


def test_the_replay_has_the_kernel_of_the_fit(fitted, x64):
    model, result = fitted
    again = result.replay(jax.random.key(1), num_particles=20, num_replicates=3)
    exact = float(model.exact_log_evidence(result.history["theta"][-1]))
    assert again.value == pytest.approx(exact, abs=1e-9)
    assert again.error < 1e-9


# --- step sizes ----------------------------------------------------------------------------------


def step_size(**options):
    model, _ = hierarchical()
    return jalax.options.auto_step_size(model, 0.0, key=jax.random.key(0), **options)


def test_rules_know_the_kernel():
    """A Gaussian allows the longest step that is tried; the paper's bound would be beyond 2."""
    metric = jalax.options.InverseHessian()
    assert step_size(preconditioner=metric) < 0.5
    assert step_size(preconditioner=metric, kernel=jalax.GaussianExact()) == pytest.approx(1.0)
    rule = jalax.options.PowerIteration(fraction=8.0)  # the Hessian is twice the identity
    assert step_size(rule=rule) == pytest.approx(4.0, rel=1e-3)
    assert step_size(rule=rule, kernel=jalax.GaussianExact()) == 1.0


@pytest.mark.slow
def test_the_automatic_fit_takes_the_longest_step():
    model, start = hierarchical()
    result = jalax.fit(
        model,
        0.0,
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(kernel=jalax.GaussianExact()),
        start=start,
        num_particles=200,
        num_steps=60,
    )
    assert float(result.state.memory.step_size) == pytest.approx(1.0)
    assert float(result.theta) == pytest.approx(Y.mean(), abs=0.02)


def test_a_schedule_beyond_2_moves_as_the_other_kernel():
    """A schedule cannot be looked at in advance. Its weights are exact all the same, no NaN."""
    x = jax.random.normal(jax.random.key(0), (50, 2))

    def out(kernel):
        return jalax.transport(
            lambda t, x: -0.5 * jnp.sum((x / (1 + t)) ** 2),
            jnp.linspace(0.0, 1.0, 4),
            x,
            key=jax.random.key(1),
            step_size=jalax.Schedule(lambda step: 2.0 + 0.25 * step),
            kernel=kernel,
        )

    exact, plain = out(jalax.GaussianExact()), out(jalax.Unadjusted())
    assert np.isfinite(exact.log_evidence).all()
    np.testing.assert_array_equal(exact.particles, plain.particles)
    np.testing.assert_array_equal(exact.log_evidence, plain.log_evidence)


def test_a_sweep_is_checked_like_one_fit():
    model = models.hierarchical_normal(jnp.asarray(Y))
    algorithm = jalax.JALAEM(step_size=np.array([0.5, 2.0]), kernel=jalax.GaussianExact())
    with pytest.raises(ValueError, match=r"must be below 2 with kernel=jalax.GaussianExact\(\)"):
        jalax.fit_many(
            model,
            0.0,
            key=jax.random.key(0),
            algorithm=algorithm,
            axes={"step_size": 0},
            num_particles=10,
            num_steps=2,
        )


def test_kernels_are_static_options():
    assert jax.tree.leaves((jalax.Unadjusted(), jalax.GaussianExact())) == []
    assert jalax.GaussianExact() == jalax.GaussianExact() != jalax.Unadjusted()
    assert jalax.JALAEM().kernel == jalax.Unadjusted()
    assert jalax.references.JALA().kernel == jalax.references.MALA().kernel == jalax.Unadjusted()
