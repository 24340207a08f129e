"""Crossed random effects: one joint latent of 120 numbers, against Monte-Carlo EM with NUTS."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jalax

LEVELS = 60


def crossed(num_rows=3000, seed=0):
    """Binary answers of 60 persons to 60 items, each with a random intercept of its own."""
    rng = np.random.default_rng(seed)
    person, item = rng.integers(0, LEVELS, num_rows), rng.integers(0, LEVELS, num_rows)
    a, c = rng.normal(size=LEVELS), 0.7 * rng.normal(size=LEVELS)
    slope = rng.normal(size=num_rows)
    logits = 0.5 - 0.8 * slope + a[person] + c[item]
    y = rng.random(num_rows) < 1 / (1 + np.exp(-logits))

    def log_joint(theta, x, data):
        eta = theta["beta"][0] + theta["beta"][1] * data["slope"]
        eta = eta + x["person"][data["person"]] + x["item"][data["item"]]
        answers = jnp.sum(data["y"] * eta - jax.nn.softplus(eta))
        log_sd = theta["log_sd"]
        square = jnp.stack([jnp.sum(x["person"] ** 2), jnp.sum(x["item"] ** 2)])
        prior = -0.5 * square * jnp.exp(-2 * log_sd) - LEVELS * log_sd
        return answers + jnp.sum(prior) - LEVELS * jnp.log(2 * jnp.pi)

    data = {"y": y * 1.0, "slope": slope, "person": person, "item": item}
    return jalax.Model(
        log_joint,
        latent={"person": jnp.zeros(LEVELS), "item": jnp.zeros(LEVELS)},
        data=jax.tree.map(jnp.asarray, data),
        theta={"beta": jnp.zeros(2), "log_sd": jnp.zeros(2)},
    )


def nuts_scores(key, model, theta, num_samples, num_chains=2):
    """Scores and second derivatives in theta at draws of the posterior, by blackjax's NUTS."""
    flat, unravel = ravel_pytree(theta)

    def log_density(x):
        return model.log_joint.function(theta, x, model.data)

    def by_theta(t, x):
        return model.log_joint.function(unravel(t), x, model.data)

    def chain(key):
        key_warm, key_run = jax.random.split(key)
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = warmup.run(key_warm, model.latent, num_steps=500)
        kernel = blackjax.nuts(log_density, **parameters)

        def step(state, key):
            state, _ = kernel.step(key, state)
            x = state.position
            return state, (jax.grad(by_theta)(flat, x), jax.hessian(by_theta)(flat, x))

        return jax.lax.scan(step, state, jax.random.split(key_run, num_samples))[1]

    return jax.jit(jax.vmap(chain))(jax.random.split(key, num_chains))


def monte_carlo_em(key, model, theta, rounds=8, num_samples=1500):
    """Newton's steps on the marginal likelihood (Fisher, Louis), then a long look at the end."""
    flat, unravel = ravel_pytree(theta)
    for k in range(rounds):
        last = k == rounds - 1
        count = 4 * num_samples if last else num_samples
        scores, hessians = nuts_scores(jax.random.fold_in(key, k), model, unravel(flat), count)
        s = np.asarray(scores).reshape(-1, flat.size)
        information = -np.asarray(hessians).reshape(-1, flat.size, flat.size).mean(0) - np.cov(s.T)
        flat = flat + np.linalg.solve(information, s.mean(axis=0))
    batches = np.asarray(scores).reshape(-1, 100, flat.size).mean(axis=1)  # of 100 draws each
    noise = np.cov(batches.T) / len(batches)
    inverse = np.linalg.inv(information)
    return np.asarray(flat), np.sqrt(np.diagonal(inverse @ noise @ inverse))


@pytest.mark.slow
def test_crossed_random_effects(x64):
    model = crossed()
    result = jalax.fit(model, key=jax.random.key(0))
    theta, error = monte_carlo_em(jax.random.key(1), model, result.theta)
    found = np.asarray(ravel_pytree(result.theta)[0])
    own = np.asarray(ravel_pytree(result.simulation_errors())[0])
    assert np.all(np.abs(found - theta) <= 4.5 * np.hypot(own, error)), (found, theta, own, error)
    assert result.status == jalax.Status.CONVERGED
    assert np.isfinite(result.log_evidence)
