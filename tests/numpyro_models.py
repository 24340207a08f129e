"""Models as in NumPyro's documentation, with hyper-parameters as numpyro.param."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

positive = constraints.positive

# Rubin's eight schools; the spread between schools is not significant there.
SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
COUNTS = np.array([3, 0, 5, 2, 9, 1])


def eight_schools(J, sigma, y=None):
    mu = numpyro.param("mu", 0.0)
    tau = numpyro.param("tau", 5.0, constraint=positive)
    with numpyro.plate("J", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentered(J, sigma, y=None):
    mu = numpyro.param("mu", 0.0)
    tau = numpyro.param("tau", 5.0, constraint=positive)
    with numpyro.plate("J", J):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)
    numpyro.deterministic("total", jnp.sum(theta))
    numpyro.deterministic("variance", tau**2)


def logistic_regression(data, labels):
    scale = numpyro.param("scale", 1.0, constraint=positive)
    coefs = numpyro.sample("coefs", dist.Normal(0.0, scale).expand([data.shape[1]]).to_event(1))
    logits = jnp.dot(data, coefs)
    with numpyro.plate("N", len(labels)):
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=labels)


def sleepstudy(days, reaction):
    """A line for each subject, in (subject, day) arrays."""
    beta = numpyro.param("beta", jnp.array([250.0, 10.0]))
    sd = numpyro.param("sd", jnp.array([20.0, 5.0]), constraint=positive)
    sigma = numpyro.param("sigma", 25.0, constraint=positive)
    subjects, rows = reaction.shape
    with numpyro.plate("subject", subjects, dim=-2):
        level = numpyro.sample("level", dist.Normal(beta[0], sd[0]))
        slope = numpyro.sample("slope", dist.Normal(beta[1], sd[1]))
        with numpyro.plate("day", rows, dim=-1):
            numpyro.sample("obs", dist.Normal(level + slope * days, sigma), obs=reaction)


def gaussian_process(X, Y):
    """Counts with a log-intensity from a squared-exponential kernel."""
    mean = numpyro.param("mean", 0.5)
    variance = numpyro.param("variance", 1.0, constraint=positive)
    length = numpyro.param("length", 1.0, constraint=positive)
    distance = (X[:, None] - X[None]) / length
    kernel = variance * jnp.exp(-0.5 * distance**2) + 1e-3 * jnp.eye(X.shape[0])
    f = numpyro.sample("f", dist.MultivariateNormal(mean, covariance_matrix=kernel))
    numpyro.sample("Y", dist.Poisson(jnp.exp(f)), obs=Y)


def stochastic_volatility(returns):
    sigma = numpyro.param("sigma", 0.2, constraint=positive)
    phi = numpyro.param("phi", 0.9, constraint=constraints.interval(-1.0, 1.0))

    def step(h, r):
        h = numpyro.sample("h", dist.Normal(phi * h, sigma))
        numpyro.sample("r", dist.Normal(0.0, jnp.exp(h / 2)), obs=r)
        return h, None

    scan(step, 0.0, returns)


def gamma_poisson(y):
    a = numpyro.param("a", 2.0, constraint=positive)
    b = numpyro.param("b", 0.8, constraint=positive)
    with numpyro.plate("units", len(y)):
        rate = numpyro.sample("rate", dist.Gamma(a, b))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def dirichlet_multinomial(y, totals):
    a = numpyro.param("a", jnp.array([0.7, 1.5, 2.0]), constraint=positive)
    with numpyro.plate("units", len(y)):
        p = numpyro.sample("p", dist.Dirichlet(a))
        numpyro.sample("y", dist.Multinomial(totals, probs=p), obs=y)


def padded_rows(y, x, mask):
    """Rows of unequal number, as jalax.group_by arranges them."""
    b = numpyro.param("b", jnp.array([0.1, 0.2]))
    sd = numpyro.param("sd", 1.0, constraint=positive)
    with numpyro.plate("g", y.shape[0], dim=-2):
        u = numpyro.sample("u", dist.Normal(0.0, sd))
        with numpyro.plate("r", y.shape[1], dim=-1), numpyro.handlers.mask(mask=mask):
            numpyro.sample("obs", dist.Normal(b[0] + b[1] * x + u, 1.0), obs=y)


def rows_first(y):
    """The groups are the last axis of y."""
    m = numpyro.param("m", 0.3)
    with numpyro.plate("times", y.shape[0], dim=-2), numpyro.plate("g", y.shape[1], dim=-1):
        u = numpyro.sample("u", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(u, 0.5), obs=y)


def long_rows(y, index, size):
    sd = numpyro.param("sd", 1.0, constraint=positive)
    with numpyro.plate("g", size):
        u = numpyro.sample("u", dist.Normal(0.0, sd))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("obs", dist.Normal(u[index], 1.0), obs=y)


def no_param(y):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
