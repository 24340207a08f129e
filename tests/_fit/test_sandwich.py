"""Robust standard errors against the scores of an exact likelihood."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jalax

KEY = jax.random.key(0)
QUIET = jalax.callbacks.Callback()


def test_the_scores_of_an_exact_likelihood(x64):
    data = jalax.datasets.sleepstudy()
    frame = data.to_frame()
    X = np.column_stack([np.ones(len(frame)), frame["days"]])
    model = jalax.models.linear_mixed(frame["reaction"], X, frame["subject"])
    found = jalax.fit(model, model.theta, key=KEY, progress=QUIET)
    flat, unravel = ravel_pytree(found.theta)

    def of_group(theta, data):
        one = model.replace(data=jax.tree.map(lambda leaf: leaf[None], data))
        return one.exact_log_evidence(unravel(theta))

    scores = jax.jit(jax.vmap(jax.grad(of_group), in_axes=(None, 0)))(flat, model.data)
    information = -jax.jit(jax.hessian(lambda t: model.exact_log_evidence(unravel(t))))(flat)
    bread = jnp.linalg.inv(information)
    exact = jnp.sqrt(jnp.diagonal(bread @ scores.T @ scores @ bread))
    errors, _ = ravel_pytree(found.standard_errors(method=jalax.Sandwich()))
    np.testing.assert_allclose(errors, exact, rtol=2e-3)
    plain, _ = ravel_pytree(found.standard_errors())
    assert np.abs(plain / exact - 1).max() > 0.05  # they are other errors


def test_bad_input():
    model = jalax.Model(
        lambda t, x, d: -jnp.sum((x - t) ** 2 + (d - x) ** 2), jnp.zeros(2), jnp.ones(2)
    )
    found = jalax.fit(model, 0.0, key=KEY, progress=QUIET)
    with pytest.raises(ValueError, match="scores of independent groups"):
        found.standard_errors(method=jalax.Sandwich())
    with pytest.raises(TypeError, match=r"method must be None or jalax.Sandwich"):
        found.standard_errors(method="robust")
