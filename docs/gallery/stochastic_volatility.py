# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Stochastic volatility
#
# Two years of daily returns whose volatility drifts from week to week: its level, persistence and
# roughness by maximum likelihood, the hidden path with a band, and the evidence.
#
# The log-variance $x_t$ of week $t$ is a stationary autoregression, and the five daily returns of
# a week share it:
#
# $$x_1 \sim \mathcal N\!\Big(\mu, \tfrac{\sigma^2}{1-\phi^2}\Big), \qquad
#   x_t \mid x_{t-1} \sim \mathcal N(\mu + \phi\,(x_{t-1} - \mu),\, \sigma^2), \qquad
#   y_{td} \mid x_t \sim \mathcal N(0, e^{x_t}), \quad d = 1, \dots, 5.$$
#
# The parameters are $\theta = (\mu, \phi, \sigma)$: the level, how slowly shocks die out, and how
# large they are. Their likelihood $p_\theta(y) = \int p_\theta(x, y)\,dx$ is an integral over the
# whole path, here of 104 dimensions, and has no closed form: the model is not linear and
# Gaussian, so the Kalman filter does not apply.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize

import jalax

# %% [markdown]
# ## Data
#
# The returns are simulated (a build of this page has no network), in per cent a day, so that the
# true path is known.

# %%
rng = np.random.default_rng(7)
weeks, days = 104, 5
true = {"mu": 0.0, "phi": 0.95, "sigma": 0.3}

path = np.empty(weeks)
path[0] = true["mu"] + true["sigma"] / np.sqrt(1 - true["phi"] ** 2) * rng.normal()
for t in range(1, weeks):
    path[t] = true["mu"] + true["phi"] * (path[t - 1] - true["mu"]) + true["sigma"] * rng.normal()
returns = np.exp(path / 2)[:, None] * rng.normal(size=(weeks, days))

# %% [markdown]
# ## Model
#
# `log_joint` is the three densities above, each with its constants, because the evidence is to be
# absolute. The fit moves unconstrained numbers; `constrain` maps them to the $\theta$ that
# `log_joint` sees and that the result reports, with $0 < \phi < 1$ and $\sigma > 0$. (The start
# value is on the unconstrained scale. `jalax.Constrained` does the same with NumPyro's
# constraints, start values included.)
#
# The latent is the path itself, the *centred* form. The other choice is to let the latent be a
# standardised path $z$ with $x = \mu + \sigma z$. Five returns a week say a good deal about
# $x_t$, so that the path hardly moves when $\theta$ does: that is when the centred form is the
# better one. With one return to each $x_t$ the path is mostly prior. Then $\sigma$ and a centred
# path hold each other in place, the fit crawls, and the standardised form is the one to take.

# %%
log_normal = jax.scipy.stats.norm.logpdf


def log_joint(theta, x, y):
    mu, phi, sigma = theta["mu"], theta["phi"], theta["sigma"]
    first = log_normal(x[0], mu, sigma / jnp.sqrt(1 - phi**2))
    steps = log_normal(x[1:], mu + phi * (x[:-1] - mu), sigma)
    observed = log_normal(y, 0.0, jnp.exp(x / 2)[:, None])
    return first + steps.sum() + observed.sum()


def constrain(free):
    return {
        "mu": free["mu"],
        "phi": jax.nn.sigmoid(free["phi"]),
        "sigma": jnp.exp(free["sigma"]),
    }


model = jalax.Model(
    log_joint, latent=jnp.zeros(weeks), data=jnp.asarray(returns), constrain=constrain
)
start = {"mu": 0.0, "phi": 1.5, "sigma": -1.0}  # phi = 0.82, sigma = 0.37
result = jalax.fit(model, start, key=jax.random.key(1))
result

# %% [markdown]
# "std. error" is the one of maximum likelihood: how far another two years of data would take the
# estimate. "simulation" is how far another key would. The intervals are symmetric on the
# unconstrained scale, so that the one of $\phi$ stays below 1. Two years say that volatility
# persists, and not much about how long.
#
# ## The path
#
# The particles are weighted draws of the whole path given the returns, at the fitted $\theta$. A
# function of the path, such as the volatility $e^{x_t/2}$, is averaged by
# `FitResult.expectation`, and its quantiles are those of resampled draws. The band does not
# contain the uncertainty of $\theta$.

# %%
volatility = result.expectation(lambda x: jnp.exp(x / 2))
draws = np.exp(result.resample(jax.random.key(2), 2000) / 2)
low, high = np.quantile(draws, [0.05, 0.95], axis=0)

week = np.arange(weeks)
day = np.arange(weeks * days) / days
fig, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, layout="constrained")
top.vlines(day, 0, returns.ravel(), lw=0.8, color="0.35")
top.set_ylabel("daily return, %")
bottom.fill_between(week, low, high, step="mid", alpha=0.3, label="90 % band")
bottom.step(week, volatility, where="mid", label="posterior mean")
bottom.plot(week, np.exp(path / 2), "k--", lw=1.2, label="truth")
bottom.set(xlabel="week", ylabel="volatility, % a day", xlim=(0, weeks))
bottom.legend(ncols=3)
plt.show()

# %% [markdown]
# ## Check
#
# Given $\theta$ the state is one number, so that the likelihood can be had by deterministic
# quadrature: put a grid on $x_t$, and carry the density of $x_t$ given $y_1, \dots, y_t$ from
# week to week. This is exact up to the grid, shares nothing with jalax, and works because the
# state has one dimension. SciPy maximises it.

# %%
squares = (returns**2).sum(axis=1)


def grid_filter(theta, size=400):
    """log p_theta(y), the grid, and the filtered and predicted densities on it."""
    mu, phi, sigma = theta
    sd = sigma / np.sqrt(1 - phi**2)
    x = np.linspace(mu - 7 * sd, mu + 7 * sd, size)
    dx = x[1] - x[0]
    move = np.exp(-0.5 * ((x[:, None] - mu - phi * (x - mu)) / sigma) ** 2)
    move *= dx / (sigma * np.sqrt(2 * np.pi))  # a column: where to, given where from
    density = np.exp(-0.5 * ((x - mu) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
    total, filtered = 0.0, []
    for s in squares:
        log_lik = -0.5 * (s * np.exp(-x) + days * (x + np.log(2 * np.pi)))
        joint = density * np.exp(log_lik - log_lik.max())
        mass = joint.sum() * dx
        total += np.log(mass) + log_lik.max()
        filtered.append(joint / mass)
        density = move @ filtered[-1]
    return total, x, filtered, move


def to_theta(free):
    return free[0], 1 / (1 + np.exp(-free[1])), np.exp(free[2])


def negative(free):
    return -grid_filter(to_theta(free))[0]


best = scipy.optimize.minimize(
    negative, [0.0, 1.5, -1.0], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-7}
)
exact = np.array(to_theta(best.x))
coarse = grid_filter(exact, size=200)[0]
print(f"grid: log-likelihood {-best.fun:.6f} (half the points: {coarse:.6f})")

# %% [markdown]
# The estimates must agree within the simulation error that jalax reports, and the two
# log-likelihoods within `FitResult.log_evidence_error`. The standard errors are compared with
# those from second differences of the grid's log-likelihood.

# %%
names = list(result.names)
estimate = np.array([result.theta[name] for name in names])
errors = np.array([result.standard_errors()[name] for name in names])
simulation = np.array([result.simulation_errors()[name] for name in names])

eye = 1e-2 * np.eye(3)
hessian = np.array(
    [
        [
            sum(a * b * negative(best.x + a * u + b * v) for a in (1, -1) for b in (1, -1)) / 4e-4
            for u in eye
        ]
        for v in eye
    ]
)
slope = np.array([1, exact[1] * (1 - exact[1]), exact[2]])  # of theta in the free numbers
exact_errors = slope * np.sqrt(np.diagonal(np.linalg.inv(hessian)))

print("          jalax    grid  simulation  std. error  of the grid")
for i, name in enumerate(names):
    print(
        f"{name:6s} {estimate[i]:8.4f}{exact[i]:8.4f}{simulation[i]:12.4f}"
        f"{errors[i]:12.4f}{exact_errors[i]:13.4f}"
    )
print(f"log evidence {result.log_evidence:.4f} +- {result.log_evidence_error:.4f}", end=", ")
print(f"grid {-best.fun:.4f}")

assert abs(-best.fun - coarse) < 1e-4  # the grid is fine enough
assert np.all(np.abs(estimate - exact) < 4 * simulation)
assert np.all(np.abs(errors / exact_errors - 1) < 0.02)
assert abs(result.log_evidence + best.fun) < 4 * result.log_evidence_error

# %% [markdown]
# The grid also gives the posterior of the path, by a backward pass. The particles' means differ
# from it by chance only: in posterior standard deviations, by about one over the root of the
# effective sample size.

# %%
_, x, filtered, move = grid_filter(exact)
backward, means, sds = np.ones_like(x), [], []
for t in reversed(range(weeks)):
    posterior = filtered[t] * backward
    posterior /= posterior.sum()
    means.append(posterior @ x)
    sds.append(np.sqrt(posterior @ x**2 - means[-1] ** 2))
    if t > 0:
        log_lik = -0.5 * (squares[t] * np.exp(-x) + days * x)
        backward = move.T @ (np.exp(log_lik - log_lik.max()) * backward)
        backward /= backward.max()
z = (np.asarray(result.expectation(lambda x: x)) - means[::-1]) / np.array(sds[::-1])
print(f"root mean square {np.sqrt((z**2).mean()):.3f}, largest {np.abs(z).max():.3f}")
print(f"one over the root of the effective sample size {result.ess**-0.5:.3f}")
assert np.abs(z).max() < 5 * result.ess**-0.5
