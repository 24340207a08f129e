"""Conway and Maxwell's law and Tweedie's, far from where the other tests are, and their slopes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from jalax import families
from jalax.families._family import HOST, JAX
from jalax.families._peaks import distance, remainder


def conway(mean, scale, y):
    """log p by adding up all probabilities, for a location that has the mean; its slope in eta."""
    k = np.arange(int(mean + 60 * np.sqrt(mean * scale + mean) + 120 * scale + 100))
    log_factorial = scipy.special.gammaln(k + 1)

    def log_p(location):
        terms = (k * location - log_factorial) / scale
        return terms - scipy.special.logsumexp(terms)

    low = (np.log(mean) - np.log1p(mean)) * max(scale, 1) - 1
    location = scipy.optimize.brentq(
        lambda z: np.sum(k * np.exp(log_p(z))) / mean - 1, low, np.log(mean + 2), xtol=1e-14
    )
    known = log_p(location)
    variance = np.sum((k - mean) ** 2 * np.exp(known))
    return np.stack([known[np.asarray(y, int)], np.abs(y - mean) * mean / variance])


def tweedie(mean, power, scale, y):
    """log p by adding up the law of each number of amounts."""
    rate, shape = mean ** (2 - power) / (scale * (2 - power)), (2 - power) / (power - 1)
    unit = scale * (power - 1) * mean ** (power - 1)
    most = max(rate, y ** (2 - power) / (scale * (2 - power)))
    j = np.arange(1, int(most + 40 * np.sqrt(most) + 400))
    log_p = scipy.stats.poisson.logpmf(j, rate)
    return scipy.special.logsumexp(log_p + scipy.stats.gamma.logpdf(y, j * shape, scale=unit))


def rows_of(family, own, eta, y, dtype):
    data = {"y": y} | family.constants(y, None, HOST)
    data, own = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (data, own))
    found = jax.jit(family.log_density)(own, jnp.asarray(eta, dtype), data)
    return np.asarray(found, float)


CONWAY = [
    *((mean, 0.02, 2) for mean in (0.01, 0.3, 2.0, 2.5, 40.0, 3000.0)),
    *((mean, 0.3, 3) for mean in (0.01, 1.0, 17.0, 400.0)),
    *((mean, 1.0, 3) for mean in (0.3, 5.0, 3000.0)),
    *((mean, 4.0, 3) for mean in (0.05, 3.0, 25.0, 90.0, 3000.0)),
    *((mean, 12.0, 3) for mean in (0.05, 2.0, 20.0, 150.0, 3000.0)),
]


def test_counts_that_vary_little_or_much_with_means_up_to_thousands():
    mean, scale, _ = (np.array(column) for column in zip(*CONWAY, strict=True))
    spread = np.sqrt(mean * scale + 0.05)
    y = np.stack([np.maximum(np.round(mean + side * spread), 0) for side in (-2, 0, 1, 3)])
    eta, scales = np.broadcast_to(np.log(mean), y.shape), np.broadcast_to(scale, y.shape)
    laws = [conway(m, s, column) for m, s, column in zip(mean, scale, y.T, strict=True)]
    exact, slope = np.stack(laws, axis=-1)
    seen = exact > -30
    family = families.ConwayMaxwellPoisson()
    with jax.enable_x64(True):
        found = rows_of(family, {"scale": scales}, eta, y, jnp.float64)
    np.testing.assert_allclose(found[seen], exact[seen], rtol=0, atol=3e-8)
    # That sum itself has terms of this size, which cancel.
    rounding = 1e-14 * (1 + slope + mean * np.abs(np.log(mean)) / scale)
    assert np.all((np.abs(found - exact) < 1e-11 + rounding)[seen & (scales < 4)])
    # In float32 eta itself is known to 6e-8 times its size.
    known = 2e-5 + 1e-6 * (1 + np.abs(eta)) * slope
    found = rows_of(family, {"scale": scales}, eta, y, jnp.float32)
    assert np.all(np.abs(found - exact)[seen] < known[seen])


@pytest.mark.slow
def test_the_curves_of_one_scale_are_the_sums_of_each_row():
    """One number for the scale takes the curves, one for each row the sums; beyond them, too."""
    mean = np.array([1e-7, 0.01, 0.3, 0.97, 1.0, 2.03, 17.0, 400.0, 20_000.0, 30_000.0])
    y = np.stack([np.floor(mean), np.round(mean + 2 * np.sqrt(mean))])
    eta, family = np.log(mean), families.ConwayMaxwellPoisson()
    for scale in (0.15, 1.0, 6.0):
        rows = {"scale": np.full(mean.shape, scale)}
        with jax.enable_x64(True):
            exact = rows_of(family, rows, eta, y, jnp.float64)
            found = rows_of(family, {"scale": scale}, eta, y, jnp.float64)
            np.testing.assert_allclose(found, exact, rtol=0, atol=3e-8)
        found = rows_of(family, {"scale": scale}, eta, y, jnp.float32)
        known = 1e-4 + 1e-6 * (1 + np.abs(eta)) * np.abs(y - mean) / scale
        assert np.all(np.abs(found - exact) < known)


TWEEDIE = [
    *(
        (mean, power, scale)
        for mean in (0.1, 3.0)
        for power in (1.05, 1.4, 1.9)
        for scale in (0.3,)
    ),
    *((mean, power, 4.0) for mean in (0.1, 30.0) for power in (1.1, 1.5, 1.95)),
    *((mean, 1.5, 0.002) for mean in (1.0, 50.0)),
    (2000.0, 1.2, 0.5),
    (5.0, 1.02, 0.02),
]


def test_amounts_of_few_and_of_many_parts():
    mean, power, scale = (np.array(column) for column in zip(*TWEEDIE, strict=True))
    spread = np.sqrt(scale * mean**power)
    y = np.stack([np.maximum(mean + side * spread, 0.2 * mean) for side in (-1.5, 0.2, 2.0)])
    law = [
        [tweedie(m, p, s, one) for one in column]
        for m, p, s, column in zip(mean, power, scale, y.T, strict=True)
    ]
    exact, own = np.array(law).T, {"power": power, "scale": scale}
    family = families.Tweedie()
    with jax.enable_x64(True):
        found = rows_of(family, own, np.log(mean), y, jnp.float64)
    np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-11)
    found = rows_of(family, own, np.log(mean), y, jnp.float32)
    # The relative error of y in float32 moves the deviance by its slope, that of p the shape.
    slope = np.abs(y - mean) * y / (scale * mean**power)
    known = 2e-5 + 1e-6 * (slope + 1 / scale / (2 - power) + 2 / (power - 1))
    assert np.all(np.abs(found - exact) < known)


def test_a_sum_of_very_many_amounts_is_nearly_normal():
    """Saddlepoint: p(y) at the mean is near 1 / sqrt(2 pi phi y^p), the better the smaller phi."""
    own, y = {"power": 1.3, "scale": 1e-6}, np.array([0.5, 7.0])
    with jax.enable_x64(True):
        found = rows_of(families.Tweedie(), own, np.log(y), y, jnp.float64)
    np.testing.assert_allclose(found, -0.5 * np.log(2 * np.pi * 1e-6 * y**1.3), atol=1e-5)


SLOPES = {
    "conwaymaxwellpoisson": (families.ConwayMaxwellPoisson(), 0.7),
    "tweedie": (families.Tweedie(), [0.4, 0.8, 1.0, 3.0, 7.0]),
}


@pytest.mark.parametrize(
    "name", [pytest.param("conwaymaxwellpoisson", marks=pytest.mark.slow), "tweedie"]
)
def test_slopes_and_curvatures_are_those_of_differences(name):
    """In eta and the own parameters, row by row, in float64."""
    family, scale = SLOPES[name]
    own = {"scale": np.array(scale)}
    if name == "tweedie":
        own["power"] = np.array([1.2, 1.5, 1.7, 1.05, 1.9])
    eta, y = np.array([-0.7, 0.4, 1.5, 2.6, 4.0]), np.array([0.0, 1.0, 3.0, 30.0, 45.0])
    data = {"y": y} | family.constants(y, None, HOST)
    with jax.enable_x64(True):
        here = jax.tree.map(jnp.asarray, {"eta": eta} | own)

        def total(at):
            rows = {name: value for name, value in at.items() if name != "eta"}
            return jnp.sum(family.log_density(rows, at["eta"], data))

        value, slopes = jax.jit(total), jax.jit(jax.grad(total))
        curved = jax.jit(lambda at, way: jax.jvp(jax.grad(total), (at,), (way,))[1])
        found = slopes(here)
        for name in here:
            ones = {other: jnp.zeros_like(here[other]) for other in here}
            ones[name] = jnp.ones_like(here[name])
            ends = [jax.tree.map(lambda a, w, s=s: a + s * w, here, ones) for s in (1e-5, -1e-5)]
            differences = (value(ends[0]) - value(ends[1])) / 2e-5
            np.testing.assert_allclose(jnp.sum(found[name]), differences, rtol=2e-6)
            second = curved(here, ones)
            first = [slopes(end) for end in ends]
            for other in here:
                moved = (first[0][other] - first[1][other]) / 2e-5
                np.testing.assert_allclose(second[other], moved, rtol=2e-5, atol=2e-5)


def test_the_parts_of_a_peak_keep_their_digits_in_float32():
    k = np.array([0.0, 1.0, 3.0, 900.0, 1000.0, 1003.0, 2000.0, 5e4])
    for m in (0.3, 1000.0, 4.9e4):
        m = float(np.exp(np.float32(np.log(m)).astype(float)))
        exact = scipy.special.xlogy(k, k / m) - k + m
        found = distance(jnp.asarray(k, jnp.float32), jnp.float32(np.log(m)))
        slope = np.abs(np.log(np.maximum(k, 1) / m))
        assert np.all(np.abs(found - exact) < 2e-6 * exact + 2e-7 * np.maximum(k, m) * slope + 1e-7)
    x = np.array([0.0, 0.01, 0.7, 3.0, 8.0, 8.1, 20.0, 1e5])
    exact = scipy.special.gammaln(x + 1) - scipy.special.xlogy(x, x) + x
    np.testing.assert_allclose(remainder(x, HOST), exact, rtol=1e-10, atol=1e-15)
    with jax.enable_x64(True):
        np.testing.assert_allclose(remainder(jnp.asarray(x), JAX), exact, rtol=1e-10, atol=1e-14)
    narrow = remainder(jnp.asarray(x, jnp.float32), JAX)
    np.testing.assert_allclose(narrow, exact, rtol=3e-6, atol=1e-6)


def test_no_deviance_where_the_mean_is_the_response():
    family, y = families.Tweedie(), np.array([0.5, 3.0, 0.0])
    own = {"power": 1.4, "scale": 2.0}
    assert np.all(np.abs(family.deviance(y[:2], y[:2], own, None)) < 1e-14)
    mean = np.array([1.0, 1.5, 2.0])
    with jax.enable_x64(True):
        fitted = rows_of(family, own, np.log(mean), y, jnp.float64)
        best = rows_of(family, own, np.log(np.where(y > 0, y, 1.0)), y, jnp.float64)
    best = np.where(y > 0, best, 0.0)
    np.testing.assert_allclose(family.deviance(y, mean, own, None), 2 * (best - fitted) * 2.0)


@pytest.mark.parametrize(
    ("y", "sentence"), [([-1.0, 2.0], "amounts from 0 upwards"), ([2.0, 2.0], "nothing varies")]
)
def test_what_tweedie_cannot_have(y, sentence):
    with pytest.raises(ValueError, match=sentence):
        families.Tweedie().check("y", np.array(y), None)
