"""Random effects whose covariance is singular at the maximum: no variance, or a correlation of one.

The oracle is the closed form of a Gaussian model, maximised over a root of Sigma, in which such a
maximum is nothing special. Half of data like these have one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jalax
from jalax._frontends.mixed_parts import parts_of
from jalax._frontends.mixed_posterior import Weighted, posterior
from jalax.models._mixed import build
from jalax.models._new_rows import same_rows

QUIET = jalax.callbacks.Callback()
GROUPS, ROWS = 12, 6
GROUP, X = np.repeat(np.arange(GROUPS), ROWS), np.tile(np.arange(ROWS), GROUPS)
FORMULA = "y ~ x + (x|g)"


def responses(seed):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(GROUPS, 2)) * [3.0, 0.4]
    return 10 + 2 * X + b[GROUP, 0] + b[GROUP, 1] * X + 2 * rng.normal(size=X.size)


def frame(seed):
    return {"y": responses(seed), "x": X.astype(float), "g": GROUP.astype(str)}


def at_its_maximum(y):
    """log p, the standard deviations and the correlation, by float64 and no particles."""
    design = np.column_stack([np.ones(ROWS), np.arange(ROWS)])
    rows = y.reshape(GROUPS, ROWS)

    def covariance(t):
        root = np.array([[t[0], 0.0], [t[1], t[2]]])
        return design @ root @ root.T @ design.T + np.exp(2 * t[3]) * np.eye(ROWS), root @ root.T

    def negative(t):
        V, _ = covariance(t)
        inverse, (_, log_det) = np.linalg.inv(V), np.linalg.slogdet(V)
        beta = np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ rows.mean(0))
        left = rows - design @ beta
        square = np.einsum("gi,ij,gj->", left, inverse, left)
        return 0.5 * (square + GROUPS * (log_det + ROWS * np.log(2 * np.pi)))

    starts = [(3, c, d, 0.7) for c in (-0.5, 0.0, 0.5) for d in (0.05, 0.5)]
    ends = [optimize.minimize(negative, s, method="BFGS", options={"gtol": 1e-7}) for s in starts]
    best = min(ends, key=lambda end: end.fun)
    sigma = covariance(best.x)[1]
    sd = np.sqrt(np.diagonal(sigma))
    return -best.fun, sd, sigma[0, 1] / max(sd[0] * sd[1], 1e-12)


def is_singular(sd, cor):
    return sd.min() < 1e-3 or abs(cor) > 1 - 1e-5


SINGULAR = next(s for s in range(20) if is_singular(*at_its_maximum(responses(s))[1:]))


@pytest.fixture(scope="module")
def singular():
    key = jax.random.key(SINGULAR)
    return jalax.mixed(FORMULA, frame(SINGULAR), key=key, progress=QUIET)


def test_a_singular_fit_is_where_the_closed_form_has_its_maximum(singular):
    log_p, sd, _ = at_its_maximum(responses(SINGULAR))
    assert singular.status == "boundary"
    assert singular.origin.model.is_white
    assert "standard normal latents" in singular.choice
    assert singular.log_evidence == pytest.approx(log_p, abs=2e-3)
    np.testing.assert_allclose(singular.theta["sd"]["g"], sd, rtol=0.02)


def test_its_particles_are_random_effects(singular):
    """Those of the closed form, which knows nothing of white latents."""
    exact, weighted = posterior(singular, singular.mixed), Weighted(singular, singular.mixed)
    known, found = exact.levels(), weighted.levels()
    np.testing.assert_allclose(found.mean, known.mean, atol=0.02)
    np.testing.assert_allclose(found.sd, known.sd, rtol=0.05, atol=1e-3)


def test_how_its_random_effects_move_with_theta(singular):
    """The correlation is at its edge, where the closed form has no difference on both sides."""
    rows = same_rows(singular.mixed.design)[1]
    (parts,) = parts_of(singular.mixed, rows)
    exact, weighted = posterior(singular, singular.mixed), Weighted(singular, singular.mixed)
    inside = [0, 1, 3, 4, 5]  # beta, both standard deviations, sigma
    known, found = (each.slopes(parts)[:, inside] for each in (exact, weighted))
    scale = np.abs(known).max(axis=0)
    np.testing.assert_allclose(found / scale, known / scale, atol=0.02)


def test_a_file_has_it_white(singular, tmp_path):
    singular.save(tmp_path / "fit.jalax")
    loaded = jalax.load(tmp_path / "fit.jalax")
    assert loaded.origin.model.is_white
    one, other = (Weighted(fit, fit.mixed).levels().mean for fit in (singular, loaded))
    np.testing.assert_allclose(one, other, atol=0.01)


@pytest.mark.parametrize("white", [False, True])
def test_both_kinds_of_latents_are_the_same_model(white, x64):
    """E over x of the density of y, by Gauss and Hermite, is that of the closed form."""
    model, _ = build(FORMULA, frame(0), "gaussian")
    model = model.whitened() if white else model
    theta = {
        "beta": jnp.array([9.0, 2.5]),
        "sd": {"g": jnp.array([2.0, 0.7])},
        "cor": {"g": jnp.array([-0.6])},
        "sigma": jnp.asarray(1.8),
    }
    data = jax.tree.map(lambda leaf: leaf[0], model.data)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    root = np.linalg.cholesky([[4.0, -0.84], [-0.84, 0.49]])
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    log_w = np.log(np.outer(weights, weights).ravel()) + 0.5 * (z**2).sum(axis=1)
    x = z if white else z @ root.T
    log_w = log_w + (0 if white else np.log(np.linalg.det(root)))
    values = jax.vmap(lambda one: model.log_joint(theta, {"g": one[None]}, data))(jnp.asarray(x))
    found = jax.scipy.special.logsumexp(values + log_w)
    design = np.column_stack([np.ones(ROWS), np.arange(ROWS)])
    V = design @ root @ root.T @ design.T + 1.8**2 * np.eye(ROWS)
    left = responses(0)[:ROWS] - design @ [9.0, 2.5]
    exact = -0.5 * (left @ np.linalg.solve(V, left) + np.linalg.slogdet(2 * np.pi * V)[1])
    assert float(found) == pytest.approx(exact, abs=1e-6)


def many(num):
    """So many data sets by fit_many, and by the oracle."""
    model, _ = build(FORMULA, frame(0), "gaussian")
    y = np.stack([responses(s) for s in range(num)]).reshape(num, GROUPS, ROWS)
    axes = jax.tree.map(lambda _: None, model.data) | {"y": 0}
    new = model.replace(data=model.data | {"y": jnp.asarray(y, float)})
    how = {"axes": {"data": axes}, "num_particles": 256, "progress": QUIET}
    fits = jalax.fit_many(new, key=jax.random.key(0), **how)
    return list(fits), [at_its_maximum(responses(s)) for s in range(num)]


@pytest.mark.slow
def test_sixty_data_sets_have_the_right_maximum_and_the_right_word():
    fits, exact = many(60)
    log_p = np.array([known[0] for known in exact])
    found = np.array([fit.log_evidence for fit in fits])
    np.testing.assert_allclose(found, log_p, atol=0.01)
    singular = np.array([is_singular(*known[1:]) for known in exact])
    assert 15 < singular.sum() < 45
    boundary = np.array([str(fit.status) == "boundary" for fit in fits])
    # Where the likelihood is flat up to the edge, to less than the error of log p, either word is.
    assert np.sum(boundary != singular) <= 3
    assert {str(fit.status) for fit in fits} <= {"boundary", "converged"}
