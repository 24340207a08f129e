# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Factor analysis: six school subjects
#
# A textbook example of latent factors: how many lie behind the marks in six subjects, what they
# are, and why they can be rotated. The likelihood is known in closed form.
#
# The marks of 220 boys in six subjects are correlated: who is good at algebra tends to be good at
# arithmetic, and a little better at Gaelic (Lawley and Maxwell 1971, *Factor Analysis as a
# Statistical Method*). Factor analysis explains the correlations by $k$ unobserved abilities, the
# factors $x_i$ of boy $i$:
#
# $$
# x_i \sim N(0, I_k), \qquad y_i \mid x_i \sim N\big(m + \Lambda x_i,\; \mathrm{diag}(\psi^2)\big).
# $$
#
# The loadings $\Lambda$ say how the subjects depend on the factors. $\psi_j^2$ is the variance that
# subject $j$ shares with no other. The rest of its variance, $\sum_l \Lambda_{jl}^2$, is its
# *communality*. The parameters $\theta = (m, \Lambda, \log\psi)$ maximise the likelihood with the
# factors integrated out.
#
# What was published is the correlation matrix. The likelihood depends on the data through their
# mean and covariance alone. So any 220 rows with this matrix give the same estimates, and we make
# such rows. (The factors of single boys are then not real ones, and are not looked at here.)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jalax

subjects = ["Gaelic", "English", "History", "Arithmetic", "Algebra", "Geometry"]
lower = [0.439, 0.410, 0.351, 0.288, 0.354, 0.164, 0.329, 0.320]
lower += [0.190, 0.595, 0.248, 0.329, 0.181, 0.470, 0.464]  # row by row
correlation = np.eye(6)
correlation[np.tril_indices(6, -1)] = lower
correlation = correlation + correlation.T - np.eye(6)

n = 220
white = np.random.default_rng(0).normal(size=(n, 6))
white -= white.mean(axis=0)
white = np.sqrt(n) * np.linalg.svd(white, full_matrices=False)[0]  # mean 0, covariance I
y = white @ np.linalg.cholesky(correlation).T
print(f"correlations reproduced within {np.abs(y.T @ y / n - correlation).max():.0e}")

# %% [markdown]
# Every boy is a group with his own points and weights, since boys are independent given $\theta$.
# `jalax.models.factor_analysis` is such a grouped model, with a start from principal components.

# %%
models = {k: jalax.models.factor_analysis(y, k) for k in (1, 2)}
results = {k: jalax.fit(model, key=jax.random.key(10 + k)) for k, model in models.items()}
results[2]

# %% [markdown]
# ## How many factors?
#
# The evidence of a fit is the log-likelihood at the estimate, and the larger model always has the
# larger one. `jalax.compare` says so, and gives no probabilities:

# %%
jalax.compare({f"{k} factors": result for k, result in results.items()})

# %% [markdown]
# Such a *plug-in* evidence needs a price for the parameters. A declared prior on $\theta$ is one
# way (`theta_log_prior=`, see [Evidence you can trust](../evidence.md)). BIC is another,
# $-2 \log p_{\hat\theta}(y) + p \log n$, made for this case: $n$ independent rows, each of which
# tells about all $p$ parameters. (Where a parameter is informed by a few groups only, $\log n$ is
# the wrong price for it.) Two ends are known in closed form. No factor at all means independent
# subjects. Three factors have as many free parameters as six subjects have correlations, so that
# their likelihood is at most that of the observed correlation matrix itself.

# %%
rows = [("0", -0.5 * n * 6 * (np.log(2 * np.pi) + 1), 12)]
for k, result in results.items():
    rows.append((f"{k}", result.log_evidence, sum(a.size for a in jax.tree.leaves(result.theta))))
log_det = np.linalg.slogdet(2 * np.pi * correlation)[1]
rows.append(("3 (at most)", -0.5 * n * (log_det + 6), 27))

print("factors          log-likelihood  parameters     BIC")
for name, value, size in rows:
    print(f"{name:16s} {value:14.2f}  {size:10d}  {-2 * value + size * np.log(n):6.1f}")

# %% [markdown]
# Two factors have the lowest BIC.
#
# ## Which factors? Rotation
#
# For any rotation $Q$, the loadings $\Lambda Q$ with the factors $Q^\top x$ give the same
# distribution of $y$: the data cannot tell them apart. A fit must choose one of them, or there
# would be a valley in place of a maximum, and no standard errors. So the model sets the loadings
# above the diagonal to zero: the first subject depends on the first factor only. To read a
# solution, one rotates it so that each subject loads mostly on one factor. The usual criterion is
# varimax, the variance of the squared loadings:


# %%
def varimax(loadings):
    """The rotation with the largest variance of squared loadings, tests scaled to length one."""
    unit = loadings / np.linalg.norm(loadings, axis=1, keepdims=True)
    angles = np.linspace(0, np.pi / 2, 100_001)
    turned = np.cos(angles)[:, None] * unit[:, 0] + np.sin(angles)[:, None] * unit[:, 1]
    other = np.cos(angles)[:, None] * unit[:, 1] - np.sin(angles)[:, None] * unit[:, 0]
    best = angles[np.argmax((turned**2).var(axis=1) + (other**2).var(axis=1))]
    return np.array([[np.cos(best), -np.sin(best)], [np.sin(best), np.cos(best)]])


result, model = results[2], models[2]
fitted = np.asarray(model.loadings(result.theta), float)
rotation = varimax(fitted)
order = np.argsort(-((fitted @ rotation)[3:] ** 2).sum(axis=0))  # mathematics first
rotation = rotation[:, order] * np.sign((fitted @ rotation[:, order]).sum(axis=0))
rotated = fitted @ rotation

print("              as fitted          rotated    communality")
for row in zip(subjects, *fitted.T, *rotated.T, (fitted**2).sum(axis=1), strict=True):
    print("{:10s}  {:6.2f}  {:6.2f}   {:6.2f}  {:6.2f}  {:11.2f}".format(*row))

# %%
fig, ax = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
ax.axhline(0, color="k", lw=0.8)
ax.axvline(0, color="k", lw=0.8)
names = ("mathematical", "verbal")
for axis, name, style in zip(rotation.T, names, ("--", ":"), strict=True):
    ax.plot([0, axis[0]], [0, axis[1]], "C1" + style, lw=2, label=f"rotated axis: {name}")
ax.plot(*fitted.T, "o", color="C0")
for name, point in zip(subjects, fitted, strict=True):
    ax.annotate(name, point, xytext=(7, -3), textcoords="offset points")
ax.set(xlabel="loading on the first factor, as fitted", ylabel="loading on the second")
ax.set_aspect("equal")
ax.margins(0.15)
_ = ax.legend(loc="best")

# %% [markdown]
# The six subjects by their loadings. Gaelic lies on the first axis, because the model says so. The
# rotated axes (dashed and dotted) pass near the subjects they explain: arithmetic, algebra and
# geometry on one side, the languages and history on the other. The signs of the factors are
# arbitrary.
#
# ## Check
#
# First, the log-likelihood at the estimates in closed form, by NumPy: the rows are Gaussian with
# covariance $\Lambda\Lambda^\top + \mathrm{diag}(\psi^2)$.

# %%
for k, fit in results.items():
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.theta)
    loadings = np.asarray(models[k].loadings(fit.theta), float)
    implied = loadings @ loadings.T + np.diag(np.exp(2 * theta["log_sd"]))
    residual = y - theta["mean"]
    square = np.sum(residual * np.linalg.solve(implied, residual.T).T)
    exact = -0.5 * (n * np.linalg.slogdet(2 * np.pi * implied)[1] + square)
    error = fit.log_evidence_error
    print(f"{k} factors: closed form {exact:.3f}, jalax {fit.log_evidence:.3f} +- {error:.3f}")
    assert abs(fit.log_evidence - exact) < 4 * error

# %% [markdown]
# Second, the maximum itself. SciPy's BFGS maximises the closed form, which needs the correlations
# only. What does not depend on the rotation are the communalities. Their simulation errors follow
# from those of $\theta$ by the delta method. The last column is what Lawley and Maxwell printed.

# %%
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

flat, unravel = ravel_pytree(result.theta)
free = np.tril_indices(6, 0, 2)


def minus_log_likelihood(numbers):
    loadings = np.zeros((6, 2))
    loadings[free] = numbers[:11]
    implied = loadings @ loadings.T + np.diag(np.exp(2 * numbers[11:]))
    log_det = np.linalg.slogdet(2 * np.pi * implied)[1]
    return 0.5 * n * (log_det + np.trace(np.linalg.solve(implied, correlation)))


start = np.concatenate([np.where(free[1] == 0, 0.6, np.where(free[0] < 3, 0.3, -0.3)), -np.ones(6)])
best = minimize(minus_log_likelihood, start, method="BFGS")
by_scipy = np.zeros((6, 2))
by_scipy[free] = best.x[:11]
by_scipy = (by_scipy**2).sum(axis=1)


def communalities(numbers):
    return jnp.sum(model.loadings(unravel(numbers)) ** 2, axis=1)


found = np.asarray(communalities(flat), float)
jacobian = np.asarray(jax.jacobian(communalities)(flat), float)
simulation = np.sqrt(np.diagonal(jacobian @ result.uncertainty.simulation @ jacobian.T))
printed = np.array([0.490, 0.406, 0.356, 0.623, 0.569, 0.372])
print("communality     jalax  simulation    SciPy  printed")
for row in zip(subjects, found, simulation, by_scipy, printed, strict=True):
    print("{:12s}  {:7.4f}  {:10.4f}  {:7.4f}  {:7.3f}".format(*row))
print(f"largest log-likelihood by SciPy {-best.fun:.3f}")
assert np.all(np.abs(found - by_scipy) < 4 * simulation + 1e-4)  # BFGS ends that near
assert np.all(np.abs(by_scipy - printed) < 6e-4)  # three digits
assert abs(result.log_evidence + best.fun) < 4 * result.log_evidence_error
