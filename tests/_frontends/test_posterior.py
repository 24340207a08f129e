"""Random effects given the data: the closed form, and the weighted particles."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jalax._frontends import mixed_exact
from jalax._frontends.mixed_exact import Exact
from jalax._frontends.mixed_parts import parts_of
from jalax._frontends.mixed_posterior import Weighted
from jalax.models import _mixed, _new_rows

RNG = np.random.default_rng(0)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "x": RNG.normal(size=ROWS),
        "school": np.repeat([f"s{i}" for i in range(6)], 10),
        "room": [f"r{i}" for i in np.repeat(np.arange(12), 5)],
        "teacher": np.tile([f"t{i}" for i in range(5)], 12),
    }
)
GROUPS = {
    "a slope": "(x|school)",
    "nested": "(1|school) + (1|room)",
    "crossed": "(x|school) + (1|teacher)",
    "apart": "(x||school)",
}


def theta_of(design, beta=2):
    rng = np.random.default_rng(1)
    theta = {"beta": rng.normal(size=beta), "sd": {}, "cor": {}, "sigma": np.array(0.9)}
    for block in design.blocks:
        size = len(block.effects)
        theta["sd"][block.name] = rng.uniform(0.4, 1.5, size)
        theta["cor"][block.name] = np.full(size * (size - 1) // 2, 0.4)
    return theta


def effects(design, theta):
    """Z with a column for every level and effect, and the covariance of these."""
    Z, G = [], []
    for block in design.blocks:
        wide = np.zeros((ROWS, len(block.labels), len(block.effects)))
        wide[np.arange(ROWS), block.index] = block.matrix
        Z.append(wide.reshape(ROWS, -1))
        sd = theta["sd"][block.name]
        below = np.zeros((sd.size, sd.size))
        below[np.tril_indices(sd.size, -1)] = theta["cor"][block.name]
        sigma = np.outer(sd, sd) * (below + below.T + np.eye(sd.size))
        G.append(np.kron(np.eye(len(block.labels)), sigma))
    sizes = np.cumsum([0, *(len(part) for part in G)])
    G_all = np.zeros((sizes[-1], sizes[-1]))
    for first, last, part in zip(sizes[:-1], sizes[1:], G, strict=True):
        G_all[first:last, first:last] = part
    return np.concatenate(Z, axis=1), G_all


def by_rows(design, theta):
    """Mean and covariance of Z b given y, by conditioning the normal distribution of (Zb, y)."""
    Z, G = effects(design, theta)
    prior = Z @ G @ Z.T
    gain = prior @ np.linalg.inv(prior + float(theta["sigma"]) ** 2 * np.eye(ROWS))
    left = design.y - design.offset - design.X @ theta["beta"]
    return gain @ left, prior - gain @ prior


@pytest.mark.parametrize("name", GROUPS)
def test_the_closed_form_is_that_of_a_joint_normal_distribution(name):
    _, mixed = _mixed.build(f"y ~ x + {GROUPS[name]}", FRAME, "gaussian")
    design = mixed.design
    theta = theta_of(design)
    exact = Exact(SimpleNamespace(theta=theta), mixed)
    (parts,) = parts_of(mixed, _new_rows.same_rows(design)[1])
    mean, variance = exact.moments(parts)
    expected, covariance = by_rows(design, theta)
    np.testing.assert_allclose(mean, expected, atol=1e-10)
    np.testing.assert_allclose(variance, np.diagonal(covariance), atol=1e-10)
    np.testing.assert_allclose(exact.average(None, np.ones(ROWS), parts), 1 + expected, atol=1e-10)
    # theta one number at a time
    flat, unravel = mixed_exact.ravel_float64(theta)
    slopes = exact.slopes(parts)
    for i in range(flat.size):
        step = np.zeros(flat.size)
        step[i] = 1e-5
        ends = [by_rows(design, unravel(flat + side * step))[0] for side in (1, -1)]
        np.testing.assert_allclose(slopes[:, i], (ends[0] - ends[1]) / 2e-5, atol=1e-6)


def test_a_standard_deviation_of_zero_is_no_effect():
    _, mixed = _mixed.build("y ~ x + (x|school)", FRAME, "gaussian")
    theta = theta_of(mixed.design)
    theta["sd"]["school"] = np.array([0.7, 0.0])
    levels = Exact(SimpleNamespace(theta=theta), mixed).levels()
    assert np.all(levels.mean[:, 1] == 0)
    assert np.all(levels.sd[:, 1] == 0)
    _, alone = _mixed.build("y ~ x + (1|school)", FRAME, "gaussian")
    theta["sd"], theta["cor"] = {"school": np.array([0.7])}, {"school": np.zeros(0)}
    known = Exact(SimpleNamespace(theta=theta), alone).levels()
    np.testing.assert_allclose(levels.mean[:, 0], known.mean[:, 0], atol=1e-12)
    np.testing.assert_allclose(levels.sd[:, 0], known.sd[:, 0], atol=1e-12)


@pytest.mark.parametrize("name", ["a slope", "nested", "crossed"])
def test_weighted_particles_say_the_same(name, x64):
    """With 2 D particles at plus and minus sqrt(D) times the columns of a root of the covariance.

    Their sums are exact for polynomials of degree three, such as b times a score of this model.
    """
    model, mixed = _mixed.build(f"y ~ x + {GROUPS[name]}", FRAME, "gaussian")
    theta = theta_of(mixed.design)
    exact = Exact(SimpleNamespace(theta=theta), mixed)
    groups, size = exact.mean.shape
    roots = np.linalg.cholesky(exact.covariance + 1e-14 * np.eye(size))
    away = np.sqrt(size) * np.swapaxes(roots, 1, 2)
    flat = exact.mean[:, None] + np.concatenate([away, -away], axis=1)
    particles, begin = {}, 0
    for block in sorted(model.latent):
        levels, effects = model.latent[block].shape
        part = flat[:, :, begin : begin + levels * effects].reshape(groups, -1, levels, effects)
        particles[block] = jnp.asarray(part if mixed.outer is not None else part[0])
        begin += levels * effects
    weights = np.full((groups, 2 * size), 0.5 / size)
    result = SimpleNamespace(
        theta=jax.tree.map(jnp.asarray, theta),
        particles=particles,
        weights=jnp.asarray(weights if mixed.outer is not None else weights[0]),
        log_weights=jnp.zeros(weights.shape),
        origin=None,  # as from a file: the model is built again
        followed_a_path=True,
    )
    weighted = Weighted(result, mixed)
    levels, known = weighted.levels(), exact.levels()
    np.testing.assert_allclose(levels.mean, known.mean, atol=1e-9)
    np.testing.assert_allclose(levels.sd, known.sd, atol=1e-6)
    np.testing.assert_allclose(levels.error, known.sd / np.sqrt(2 * size), atol=1e-6)
    (parts,) = parts_of(mixed, _new_rows.same_rows(mixed.design)[1])
    for found, expected in zip(weighted.moments(parts), exact.moments(parts), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(weighted.slopes(parts), exact.slopes(parts), atol=1e-6)
    square = exact.moments(parts)[1] + (1 + exact.moments(parts)[0]) ** 2
    found = weighted.average(lambda x, _: np.square(x), np.ones(ROWS), parts)
    np.testing.assert_allclose(found, square, atol=1e-8)


def test_rows_that_join_groups():
    """A room of one school in another: the two are independent, and add up."""
    _, mixed = _mixed.build("y ~ x + (1|school) + (1|room)", FRAME, "gaussian")
    theta = theta_of(mixed.design)
    exact = Exact(SimpleNamespace(theta=theta), mixed)
    new = pd.DataFrame({"x": [0.0] * 3, "school": ["s0", "s5", "s0"], "room": ["r0", "r0", "new"]})
    parts = parts_of(mixed, _new_rows.random_rows(mixed.design, new))
    assert len(parts) == 2
    mean, variance = np.sum([exact.moments(part) for part in parts], axis=0)
    Z, G = effects(mixed.design, theta)
    prior = Z @ G @ Z.T + float(theta["sigma"]) ** 2 * np.eye(ROWS)
    left = mixed.design.y - mixed.design.X @ theta["beta"]
    school, room = (list(block.labels) for block in mixed.design.blocks)
    for i in range(3):
        z = np.zeros(len(G))
        z[school.index(new.school[i])] = 1
        if new.room[i] in room:
            z[len(school) + room.index(new.room[i])] = 1
        gain = z @ G @ Z.T @ np.linalg.inv(prior)
        np.testing.assert_allclose(mean[i], gain @ left, atol=1e-10)
        np.testing.assert_allclose(variance[i], z @ G @ z - gain @ Z @ G @ z, atol=1e-10)
