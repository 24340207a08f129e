"""A start at which float32 overflows, and 64 bits do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax

constraints = pytest.importorskip("numpyro.distributions").constraints

QUIET = jalax.callbacks.Callback()
AGE = np.linspace(20.0, 80.0, 24).reshape(8, 3)
EFFECT = np.array([[-1.0, 0.5, 1.0, -0.5, -1.0, 1.0, 0.5, -0.5]]).T
COUNT = np.random.default_rng(0).poisson(np.exp(0.5 + 0.01 * AGE + EFFECT))


def log_joint(theta, x, data):
    eta = theta["constant"] + theta["slope"] * data["age"] + theta["sd"] * x
    prior = jax.scipy.stats.norm.logpdf(x)
    return prior + jnp.sum(data["count"] * eta - jnp.exp(eta))


def fit(slope):
    data = {"age": jnp.asarray(AGE), "count": jnp.asarray(COUNT, float)}
    start = {"constant": 0.0, "slope": slope, "sd": 0.5}
    model = jalax.GroupedModel(log_joint, 0.0, data, theta=start)
    model = jalax.Constrained(model, theta={"sd": constraints.positive})
    return jalax.fit(model, key=jax.random.key(0), progress=QUIET)


def test_it_climbs_in_64_bits():
    usual = fit(0.0)
    with pytest.warns(UserWarning, match="log_joint overflows in float32 at theta_0"):
        far = fit(1.3)
    assert far.status == usual.status == "converged"
    assert far.theta["slope"].dtype == jnp.float32
    for name, error in usual.standard_errors().items():
        assert abs(float(far.theta[name] - usual.theta[name])) < 0.01 * error
    assert far.log_evidence == pytest.approx(usual.log_evidence, abs=0.01)


def test_what_overflows_in_64_bits_too_is_refused():
    with pytest.raises(ValueError, match=r"log_joint\(theta_0, latent\) is -inf in group"):
        fit(20.0)
