"""Pareto k-hat of weights, against blackjax and laws whose tail is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.diagnostics import psis_weights

from jalax._particles.pareto import NO_VARIANCE, USUAL_LIMIT, pareto_k


@pytest.mark.slow_cases("30", "200", "8000")
@pytest.mark.parametrize("num", [10, 30, 200, 8000])
def test_k_hat_is_blackjaxs(num):
    log_weights = jax.random.t(jax.random.key(num), 3.0, (3, num))
    expected = jax.vmap(lambda w: psis_weights(w)[1])(log_weights)
    np.testing.assert_allclose(pareto_k(log_weights), expected, rtol=1e-3)


def test_k_hat_of_equal_and_of_dead_weights():
    assert pareto_k(jnp.zeros((1, 100))) == 0.0
    half = jnp.where(jnp.arange(100) < 50, 0.0, -jnp.inf)
    assert np.isfinite(pareto_k(half[None])).all()


def test_k_hat_of_counts():
    """Ties at the threshold. Poisson counts have no heavy tail; of a Pareto law without a mean k is
    1, and one of 4,096 has an error of 0.1 and more."""
    rng = np.random.default_rng(0)
    light, heavy = rng.poisson(1.0, (20, 4096)), np.floor(rng.pareto(1.0, (20, 4096)))
    assert np.max(pareto_k(jnp.log(jnp.asarray(light, float)))) < NO_VARIANCE
    assert USUAL_LIMIT < np.mean(pareto_k(jnp.log(jnp.asarray(heavy, float)))) < 1.2
