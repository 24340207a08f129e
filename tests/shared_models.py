"""Models that several tests use, with answers from elsewhere: one place, and so one compilation.

Reference answers: lme4 (Gauss-Hermite quadrature for cbpp, closed forms for the linear ones).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.special import expit, logsumexp

import jalax
from jalax import datasets, models


def pair(theta, x, data):
    """x_i ~ N(theta, 1), y_i ~ N(x_i, 1), without constants: the maximum is the mean of y."""
    return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data - x) ** 2)


def pair_normalised(theta, x, y):
    """The same of one group, normalised: Z_i = N(y_i; theta, 2)."""
    return -0.5 * (x - theta) ** 2 - 0.5 * (y - x) ** 2 - jnp.log(2 * jnp.pi)


def wisconsin():
    data = datasets.wisconsin()
    return models.logistic_regression(data.features, data.labels)


def cbpp(joint=False):
    data = datasets.cbpp()
    model = models.random_intercept(
        data.incidence, data.covariates, data.herd, family=models.Binomial(data.size)
    )
    if not joint:
        return model
    one = model.log_joint.function

    def log_joint(theta, x, data):
        return jnp.sum(jax.vmap(one, in_axes=(None, 0, 0))(theta, x, data))

    return jalax.Model(log_joint, jnp.zeros(15), model.data, theta=model.theta)


def sleepstudy(slope=False):
    data = datasets.sleepstudy()
    random = data.covariates if slope else None
    return models.linear_mixed(data.reaction, data.covariates, data.subject, random)


def dyestuff():
    data = datasets.dyestuff()
    return models.linear_mixed(data.yield_, data.covariates, data.batch)


def linear_answer(model, beta, covariance, residual_variance, log_likelihood):
    """lme4's estimates as theta, with standard errors from the Hessian of the closed form."""
    root = np.linalg.cholesky(np.atleast_2d(covariance))
    theta = {
        "beta": beta,
        "below": root[np.tril_indices(len(root), -1)],
        "log_scale": np.log(np.diag(root)),
        "log_sd": np.log(residual_variance) / 2,
    }
    with jax.enable_x64(True):
        exact = model.replace(data=jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), model.data))
        theta = jax.tree.map(jnp.asarray, theta, is_leaf=lambda x: isinstance(x, list))
        numbers, unravel = ravel_pytree(theta)
        found = float(exact.exact_log_evidence(theta))
        hessian = jax.hessian(lambda t: -exact.exact_log_evidence(unravel(t)))(numbers)
        errors = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
    assert abs(found - log_likelihood) < 1e-2  # the data went through float32
    return np.asarray(numbers), errors, log_likelihood


CBPP = (
    np.array([-1.39923045, -0.9914036392, -1.127819439, -1.57947074, np.log(0.6475184834)]),
    np.array([0.2335115676, 0.3067679727, 0.3267683315, 0.4275944565, 0.27879]),
    -91.983369,
)
FIXED = [251.4051048, 10.46728596]
SLOPES = np.array([[565.51520392, 11.05543387], [11.05543387, 32.68219623]])
MIXED = {
    "cbpp": (cbpp, lambda model: CBPP),
    "cbpp joint": (lambda: cbpp(joint=True), lambda model: CBPP),
    "sleepstudy": (
        sleepstudy,
        lambda model: linear_answer(model, FIXED, 1296.870048, 954.527834, -897.0393215),
    ),
    "sleepstudy slope": (
        lambda: sleepstudy(slope=True),
        lambda model: linear_answer(model, FIXED, SLOPES, 654.94104463, -875.9696722),
    ),
    "dyestuff": (
        dyestuff,
        lambda model: linear_answer(model, [1527.5], 1388.333333, 2451.25, -163.6635299),
    ),
}


def eight_schools(standardised=False):
    y = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_joint(theta, x, data):
        normal = jax.scipy.stats.norm.logpdf
        tau = jnp.exp(theta["log_tau"])
        if standardised:
            return normal(x) + normal(data["y"], theta["mu"] + tau * x, data["sd"])
        return normal(x, theta["mu"], tau) + normal(data["y"], x, data["sd"])

    theta = {"mu": jnp.zeros(()), "log_tau": jnp.zeros(())}
    return jalax.GroupedModel(log_joint, jnp.zeros(()), {"y": y, "sd": sd}, theta=theta)


def answers(num_persons, num_items, seed=0):
    rng = np.random.default_rng(seed)
    slope, intercept = np.exp(0.3 * rng.normal(size=num_items)), rng.normal(size=num_items)
    x = rng.normal(size=num_persons)
    return (rng.random((num_persons, num_items)) < expit(np.outer(x, slope) + intercept)) * 1.0


def quadrature(theta, y, num_nodes=61):
    """log p_theta(y) of the 2PL, by Gauss-Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    slope, intercept = np.asarray(theta["slope"], float), np.asarray(theta["intercept"], float)
    logits = np.outer(nodes, slope) + intercept
    given = ~np.isnan(y)
    right = np.where(given, y, 0.0)
    log_likelihood = right @ logits.T - given @ np.logaddexp(0.0, logits).T
    return logsumexp(log_likelihood + np.log(weights / weights.sum()), axis=1).sum()
