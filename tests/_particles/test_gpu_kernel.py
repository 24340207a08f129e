"""The kernel of the move on a GPU. Here Pallas interprets it; benchmarks/gpu.py runs it there."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax._model.types import Cloud
from jalax._particles import gpu_kernel, langevin

H = jnp.float32(0.3)


def leaves(groups: int = 1, num: int = 3) -> dict:
    """X, its gradient, a diagonal and a shift, of two blocks a particle."""
    keys = jax.random.split(jax.random.key(1), 4)
    shape = (2, gpu_kernel.BLOCK)
    return {
        "x": jax.random.normal(keys[0], (groups, num, *shape)),
        "grad_x": jax.random.normal(keys[1], (groups, num, *shape)),
        "scale": jnp.exp(jax.random.normal(keys[2], (groups, 1, *shape))),
        "shift": jax.random.normal(keys[3], (groups, 1, *shape)),
    }


def expected(key, x, grad_x, scale, shift, kernel=langevin.UNADJUSTED):
    """By `move` and `work`, which the tests of the algorithm hold to the paper."""
    metric = None if scale is None else langevin.Diagonal((scale,))
    shift = None if shift is None else (shift,)
    moved = langevin.move(key, (x,), (grad_x,), H, metric, shift, kernel)
    (terms,) = langevin.work((grad_x,), moved.path, H, metric)
    return moved.particles[0], moved.path[0], jnp.sum(terms, axis=(2, 3))


def interpreted(key, x, grad_x, scale=None, shift=None, kernel=langevin.UNADJUSTED):
    first = jax.random.split(key, 1)[0]  # the key of the first leaf
    leaf = gpu_kernel.before(first, x, grad_x, H, scale, shift, kernel)
    return gpu_kernel.in_one_kernel(leaf, interpret=True)


@pytest.fixture
def on_every_device(monkeypatch):
    """As if there were a GPU, on which even a few particles were worth it."""
    monkeypatch.setattr(gpu_kernel, "is_at_hand", lambda: True)
    monkeypatch.setattr(gpu_kernel, "LEAST", 1)


@pytest.mark.parametrize(
    "names", [(), ("scale",), ("shift",), ("scale", "shift")], ids=lambda names: "+".join(names)
)
def test_the_kernel_moves_as_xla_does(names):
    given, key = leaves(groups=3), jax.random.key(3)
    extra = {name: given[name] if name in names else None for name in ("scale", "shift")}
    new, path, terms = interpreted(key, given["x"], given["grad_x"], **extra)
    assert terms.shape == (3, 3, 2)
    found = new, path, jnp.sum(terms, axis=-1)
    for a, b in zip(found, expected(key, given["x"], given["grad_x"], **extra), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_the_kernel_has_the_noise_it_is_given():
    given, key, exact = leaves(groups=3), jax.random.key(3), jalax.GaussianExact()
    new, path, terms = interpreted(key, **given, kernel=exact)
    found = new, path, jnp.sum(terms, axis=-1)
    for a, b in zip(found, expected(key, **given, kernel=exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    zero = jnp.zeros((2, 3, 2, gpu_kernel.BLOCK))
    noise = interpreted(key, zero, zero, kernel=exact).path
    np.testing.assert_allclose(np.std(noise), np.sqrt(H * (2 - H)), rtol=0.05)


def test_particles_and_blocks_have_noise_of_their_own():
    zero = jnp.zeros((2, 3, 2, gpu_kernel.BLOCK))
    noise = interpreted(jax.random.key(3), zero, zero).path.reshape((12, -1))
    for a, b in itertools.combinations(noise, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.2
    np.testing.assert_allclose(np.std(noise), np.sqrt(2 * H), rtol=0.05)


def test_many_fits_at_once():
    given, keys = leaves(), jax.random.split(jax.random.key(4), 3)
    xs = jnp.stack([given["x"] + i for i in range(3)])

    def one(key, x):
        return interpreted(key, x, given["grad_x"])

    for a, b in zip(jax.vmap(one)(keys, xs), zip(*map(one, keys, xs), strict=True), strict=True):
        np.testing.assert_allclose(a, jnp.stack(b), rtol=1e-6)


def test_a_program_for_a_cpu_does_without(on_every_device):
    given, key = leaves(), jax.random.key(3)
    assert gpu_kernel.fits(key, given["x"])
    trees = [(given[name],) for name in ("x", "grad_x")]
    moved, forwards = jax.jit(lambda: gpu_kernel.move_and_work(key, *trees, H))()
    assert forwards[0].shape == (1, 3, 2)
    found = moved.particles[0], moved.path[0], jnp.sum(forwards[0], axis=-1)
    wanted = expected(key, given["x"], given["grad_x"], None, None)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def log_joint(theta, x, data):
    del data
    return -0.5 * jnp.sum((x["many"] - theta) ** 2) - 0.5 * jnp.sum(x["few"] ** 2)


@pytest.mark.slow_cases("noise0-identity", "noise1-identity", "noise1-diagonal")
@pytest.mark.parametrize("diagonal", [False, True], ids=["identity", "diagonal"])
@pytest.mark.parametrize("noise", [jalax.Unadjusted(), jalax.GaussianExact()])
def test_a_step_weighs_the_same_with_the_kernel(monkeypatch, diagonal, noise):
    """One leaf by the kernel, interpreted, the other by XLA; log-weights and all."""
    latent = {"few": jnp.zeros(3), "many": jnp.zeros(gpu_kernel.BLOCK)}
    model = jalax.Model(log_joint, latent=latent, theta=jnp.zeros(()))
    metric = jax.tree.map(lambda leaf: 0.5 + jnp.arange(leaf.size) / leaf.size, latent)
    algorithm = jalax.JALAEM(
        step_size=1e-3,
        optimizer=jalax.Optax(optax.adam, learning_rate=0.05),
        preconditioner=metric if diagonal else None,
        shift=jalax.options.Shift(0.5) if diagonal else None,
        kernel=noise,
    )
    particles = jax.tree.map(lambda leaf: jnp.ones((1, 4, leaf.size)), latent)

    def two_steps():
        state = algorithm.init(
            jax.random.key(0), model, model.theta, Cloud(particles, jnp.zeros((1, 4)), None)
        )
        for k in range(2):
            state, info = algorithm.step(jax.random.key(k), model, state)
        return state.particles, state.log_weights, info.log_evidence

    plain = jax.jit(lambda: two_steps())()
    calls = []

    def kernel(leaf):
        calls.append(leaf.x.shape)
        return gpu_kernel.in_one_kernel(leaf, interpret=True)

    monkeypatch.setattr(gpu_kernel, "is_at_hand", lambda: True)
    monkeypatch.setattr(gpu_kernel, "LEAST", 1)
    monkeypatch.setattr(gpu_kernel, "one_by_one", kernel)
    found = jax.jit(lambda: two_steps())()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    assert set(calls) == {(1, 4, gpu_kernel.BLOCK)}


@pytest.mark.parametrize(
    "leaf",
    [
        jax.ShapeDtypeStruct((1, 3, 1000), np.float32),
        jax.ShapeDtypeStruct((1, 3, 1024), np.float64),
        jax.ShapeDtypeStruct((1, 2**22, 1024), np.float32),
    ],
    ids=["size", "precision", "count"],
)
def test_what_the_kernel_leaves_to_xla(on_every_device, leaf):
    assert not gpu_kernel.fits(jax.random.key(0), leaf)


def test_what_is_small_or_drawn_otherwise_is_left_to_xla(monkeypatch):
    monkeypatch.setattr(gpu_kernel, "is_at_hand", lambda: True)
    small = jax.ShapeDtypeStruct((1, 3, 1024), np.float32)
    large = jax.ShapeDtypeStruct((1, gpu_kernel.LEAST // 1024, 1024), np.float32)
    key = jax.random.key(0)
    assert gpu_kernel.fits(key, large)
    assert not gpu_kernel.fits(key, small)
    assert not gpu_kernel.fits(jax.random.key(0, impl="rbg"), large)


def test_there_is_no_gpu_here():
    if jax.default_backend() != "gpu":
        assert not gpu_kernel.is_at_hand()
