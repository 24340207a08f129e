"""What is made of measurements at the end of a climb."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._evidence.measured import finished
from jalax._model import checks
from jalax._model.algorithm import Measurement

GROUPS = 5


def log_joint(theta, x, y):
    normal = jax.scipy.stats.norm.logpdf
    return normal(x, theta["a"], 1.0) + normal(y, x + theta["b"], 1.0)


def test_log_p_rises_by_the_last_step_as_far_as_it_was_taken():
    """Along b, where a two-thousandth of the information is left, theta was not moved: it would
    have been worth 0.2."""
    model = checks.prepare_model(jalax.GroupedModel(log_joint, jnp.zeros(()), jnp.ones(GROUPS)))
    theta = checks.prepare_theta({"a": 0.0, "b": 0.0}, model)
    seen = Measurement(
        theta=np.zeros(2),
        modes=np.full((GROUPS, 1), 0.5),
        groups=np.full(GROUPS, -1.0),
        variance=np.full(GROUPS, 1e-12),
        num_measured=8,
        score=np.array([0.3, 30.0]),
        noise=1e-8 * np.eye(2),
        complete=np.diag([4.0, 4e6]),
        missing=np.diag([2.0, 4e6 * (1 - 5e-4)]),
        log_weights=np.zeros((GROUPS, 16)),
        pooled=np.zeros((8, 16 * GROUPS)),
        laplace=-5.0,
    )
    evidence = finished(model, theta, seen).evidence
    along_a = 0.3**2 / 2 / 2
    assert evidence.value == pytest.approx(-GROUPS + along_a, abs=1e-3)
