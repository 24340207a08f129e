# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Student-t or Gaussian errors?
#
# Two regressions that differ in their errors alone, compared by a Bayes factor with an error bar;
# and what happens when the simpler one is true.
#
# A linear regression has latent weights $w$ and one of two kinds of errors:
#
# $$w \sim \mathcal{N}(0, \alpha^{-1} I), \qquad
#   y_i \mid w \sim \mathcal{N}(x_i^\top w, \sigma^2) \quad\text{or}\quad
#   y_i \mid w \sim \text{Student-t}_\nu(x_i^\top w, \sigma^2).$$
#
# The parameters are $\theta = (\log \sigma^2, \log \alpha)$ and, for the second, $\log \nu$, the
# degrees of freedom: few mean heavy tails, many mean Gaussian errors. The evidence of the first
# has a closed form, that of the second has none. This is the second experiment of the
# [paper](../paper.md), with an intercept and a slope only, so that there is something to look at.
# The errors are made with $\nu = 3$ and $\sigma = 1$.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize, special, stats

import jalax

n = 400
rng = np.random.default_rng(0)
X = np.column_stack([np.ones(n), rng.uniform(-2.0, 2.0, n)])
y = X @ [1.0, 2.0] + rng.standard_t(3, n)

# %% [markdown]
# ## Two fits
#
# The models are in `jalax.models`. Their $\theta$ is an array, so the rows of the tables are
# `theta[0]` ($\log \sigma^2$), `theta[1]` ($\log \alpha$) and `theta[2]` ($\log \nu$).
#
# For large $\nu$ the Student-t is a Gaussian. To have two models that differ, the paper keeps
# $\nu$ between 0.2 and 5: `jalax.models.student_t_box` puts $\theta$ back into that box after
# every step. Apart from it, nothing is chosen.

# %%
in_the_box = jalax.JALAEM(project=jalax.models.student_t_box)
gaussian = jalax.fit(jalax.models.gaussian_regression(X, y), key=jax.random.key(0))
student = jalax.fit(
    jalax.models.student_t_regression(X, y), key=jax.random.key(1), algorithm=in_the_box
)
student

# %% [markdown]
# The estimate of $\log \nu$ lies inside the box, and its interval holds the truth,
# $\log 3 = 1.10$. (Of two weights little can be learnt about the precision $\alpha$ of their
# prior: its standard error is large.)
#
# ## The Bayes factor

# %%
comparison = jalax.compare({"Gaussian": gaussian, "Student-t": student})
comparison

# %%
factor, error = comparison.log_bayes_factor("Student-t", "Gaussian")
print(f"log Bayes factor of Student-t over Gaussian: {factor:.3f} +- {error:.3f}")

# %% [markdown]
# The error is that of simulation: how another key would change the number. It is what makes a
# Bayes factor of Monte Carlo origin usable.
#
# There are no probabilities in the table, since the Student-t has one parameter more, and a
# maximised evidence favours it for that alone. By how much? Under a prior on $\log \nu$ the
# parameter is charged by Laplace's rule with about
# $\log(\text{prior density at } \hat\nu \times \sqrt{2\pi} \times \text{standard error})$. With
# $\log \nu \sim \mathcal{N}(\log 10, 1)$:

# %%
log_nu, log_nu_error = float(student.theta[2]), float(student.standard_errors()[2])
charge = stats.norm.logpdf(log_nu, np.log(10.0), 1.0) + np.log(np.sqrt(2 * np.pi) * log_nu_error)
print(f"nu = {np.exp(log_nu):.1f}, charge for it {charge:.1f}")
print(f"log Bayes factor less the charge: {factor + charge:.1f}")

# %% [markdown]
# The heavy tails win with or without it. `jalax.compare(..., theta_log_prior=...)` does this for
# all of $\theta$ at once, and then gives probabilities: [The order of a
# polynomial](polynomial_order.py) is about that.
#
# Below, left: the residuals from the posterior mean, and the two fitted densities, on a log scale.
# The Gaussian has to be wide to reach the outliers, and misses both the middle and the tails.
# Right: what that costs. The posterior of the slope is narrower with Student-t errors, because
# outliers count less.


# %%
def slope_of(fit):
    mean = float(fit.expectation(lambda w: w[1]))
    return mean, float(fit.expectation(lambda w: (w[1] - mean) ** 2)) ** 0.5


fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.5), layout="constrained")
residual = y - X @ np.asarray(student.expectation(lambda w: w))
left.hist(residual, bins=np.arange(-9, 9.5, 0.5), density=True, color="0.85", label="residuals")
e = np.linspace(-9.0, 9.0, 400)
scale = np.exp(float(gaussian.theta[0]) / 2)
left.plot(e, stats.norm.pdf(e, scale=scale), "--", color="tab:orange", label="Gaussian")
scale = np.exp(float(student.theta[0]) / 2)
left.plot(e, stats.t.pdf(e, np.exp(log_nu), scale=scale), color="tab:blue", label="Student-t")
left.set(xlabel="residual", ylabel="density", yscale="log", ylim=(5e-4, 1.0))
left.legend(frameon=False, fontsize="small")
for fit, style, name, colour in (
    (gaussian, "--", "Gaussian", "tab:orange"),
    (student, "-", "Student-t", "tab:blue"),
):
    density = stats.gaussian_kde(
        np.asarray(fit.particles)[:, 1], weights=np.asarray(fit.weights), bw_method=0.35
    )
    grid = np.linspace(1.7, 2.3, 200)
    right.plot(grid, density(grid), style, color=colour, label=name)
    print(f"{name:9s}: slope {slope_of(fit)[0]:.3f}, posterior sd {slope_of(fit)[1]:.3f}")
right.axvline(2.0, color="black", lw=0.8, ls=":", label="truth")
right.set(xlabel="slope", ylabel="posterior density", ylim=(0, None))
right.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## And if the errors are Gaussian?
#
# The same two fits, with data whose errors are Gaussian. Nothing compiles again.

# %%
other = X @ [1.0, 2.0] + np.random.default_rng(1).normal(size=n)
gaussian_2 = jalax.fit(jalax.models.gaussian_regression(X, other), key=jax.random.key(2))
student_2 = jalax.fit(
    jalax.models.student_t_regression(X, other), key=jax.random.key(3), algorithm=in_the_box
)
print(student_2.summary())
reverse = jalax.compare({"Gaussian": gaussian_2, "Student-t": student_2})
factor_2, error_2 = reverse.log_bayes_factor("Student-t", "Gaussian")
print(f"log Bayes factor of Student-t over Gaussian: {factor_2:.3f} +- {error_2:.3f}")

# %% [markdown]
# The likelihood would like a larger $\nu$, and the fit ends at the edge of the box. The status is
# "boundary", `theta[2]` is named, and it has no standard error. The Bayes factor is negative: the
# Gaussian is preferred.
#
# Without the box the Student-t contains the Gaussian, as the limit $\nu \to \infty$. Its maximised
# evidence can then not fall below the Gaussian's, and with Gaussian errors $\log \nu$ may run
# away. A plug-in evidence never speaks *for* the simpler of two nested models. Either the larger
# one is kept from becoming the smaller, as here, or $\theta$ needs a prior. How often each model
# is chosen over many data sets is in [experiments](../../experiments/README.md), "Error model
# selection".
#
# ## Check
#
# With two weights the integral over $w$ can be done on a grid, for both models: a sum over equally
# spaced points converges very fast for a smooth density that has died off at the ends. SciPy
# maximises it over $\theta$.

# %%
POINTS = 25  # along each axis


def log_marginal(theta, y):
    log_variance, log_precision = theta[:2]
    sigma = np.exp(log_variance / 2)
    centre, *_ = np.linalg.lstsq(X, y, rcond=None)
    half = 8 * np.std(y - X @ centre) / np.sqrt(np.sum(X**2, axis=0))  # eight standard errors
    axes = [np.linspace(c - h, c + h, POINTS) for c, h in zip(centre, half, strict=True)]
    w = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    scaled = (y - w @ X.T) / sigma
    if len(theta) == 3:
        nu = np.exp(theta[2])
        constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - np.log(nu * np.pi) / 2
        log_density = constant - (nu + 1) / 2 * np.log1p(scaled**2 / nu)
    else:
        log_density = -(np.log(2 * np.pi) + scaled**2) / 2
    total = (log_density - np.log(sigma)).sum(axis=1)
    total += stats.norm.logpdf(w, scale=np.exp(-log_precision / 2)).sum(axis=1)
    return special.logsumexp(total) + np.log(np.prod(2 * half / (POINTS - 1)))


def exact_gaussian(theta, y):
    cov = np.exp(theta[0]) * np.eye(n) + X @ X.T * np.exp(-theta[1])
    return stats.multivariate_normal(cov=cov).logpdf(y)


at = np.asarray(gaussian.theta, float)
print(f"Gaussian: grid {log_marginal(at, y):.6f}, closed form {exact_gaussian(at, y):.6f}")
assert abs(log_marginal(at, y) - exact_gaussian(at, y)) < 1e-6

reference = {}
bounds = [(None, None), (None, None), (np.log(0.2), np.log(5.0))]
for name, fit, response in (
    ("Gaussian", gaussian, y),
    ("Student-t", student, y),
    ("Gaussian, 2nd data", gaussian_2, other),
    ("Student-t, 2nd data", student_2, other),
):
    theta, simulation = np.asarray(fit.theta, float), np.asarray(fit.simulation_errors())
    best = optimize.minimize(
        lambda t, response=response: -log_marginal(t, response),
        theta - 0.1,
        method="L-BFGS-B",
        bounds=bounds[: len(theta)],
        options={"ftol": 1e-12, "gtol": 1e-6},
    ).x
    reference[name] = log_marginal(theta, response)
    print(f"{name}\n  theta     jalax {np.round(theta, 4)}  SciPy {np.round(best, 4)}")
    print(
        f"  evidence  jalax {fit.log_evidence:.4f} +- {fit.log_evidence_error:.4f}  "
        f"grid {reference[name]:.4f}"
    )
    at_the_edge = np.isnan(simulation)
    assert fit.status == ("boundary" if at_the_edge.any() else "converged")
    assert np.all(np.abs(theta - best) < np.where(at_the_edge, 1e-6, 4 * simulation))
    assert abs(fit.log_evidence - reference[name]) < 4 * fit.log_evidence_error + 1e-3

assert student_2.status == "boundary"
exact = reference["Student-t"] - reference["Gaussian"]
exact_2 = reference["Student-t, 2nd data"] - reference["Gaussian, 2nd data"]
print(f"log Bayes factor jalax {factor:.4f} +- {error:.4f}, grid {exact:.4f}")
print(f"      2nd data   jalax {factor_2:.4f} +- {error_2:.4f}, grid {exact_2:.4f}")
assert abs(factor - exact) < 4 * error + 1e-3 and abs(factor_2 - exact_2) < 4 * error_2 + 1e-3
