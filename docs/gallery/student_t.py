# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Student-t against Gaussian errors: a Bayes factor
#
# Are the errors of a regression heavy-tailed? Two models are fitted and compared by their
# evidence, on data with heavy tails and on data without.
#
# Two models of the same responses, with coefficients $w$ integrated out (section 5.2 of the
# paper):
#
# $$
# w \sim N(0, \alpha^{-1} I), \qquad
# M_G:\; y_i \sim N(x_i^\top w, \sigma^2), \qquad
# M_T:\; y_i \sim \text{Student-t}_\nu(x_i^\top w, \sigma^2).
# $$
#
# $\theta$ is $(\log \sigma^2, \log \alpha)$ in $M_G$ and has $\log \nu$ besides in $M_T$. With
# $\nu \to \infty$ the second model becomes the first.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.stats import norm

import jalax

rng = np.random.default_rng(1)
X = rng.normal(size=(200, 8))
signal = X @ rng.normal(size=8)
heavy = signal + rng.standard_t(3, size=200)
light = signal + rng.normal(size=200)


def fit_both(y):
    gaussian = jalax.models.gaussian_regression(X, y)
    student = jalax.models.student_t_regression(X, y)
    return {
        "Gaussian": jalax.fit(gaussian, key=jax.random.key(0)),
        "Student-t": jalax.fit(student, key=jax.random.key(1)),
    }


fits = fit_both(heavy)
fits["Student-t"]

# %% [markdown]
# `theta[2]` is $\log \nu$. The data were drawn with three degrees of freedom.

# %%
low, high = np.exp(fits["Student-t"].confidence_intervals()[2])
print(f"nu: {np.exp(fits['Student-t'].theta[2]):.1f}, 95% interval {low:.1f} to {high:.1f}")

# %% [markdown]
# ## Plug-in evidence, and why it is not enough
#
# Each fit ends with $\log p_{\hat\theta}(y)$, an integral over $w$ at the best $\theta$ of the
# model.

# %%
jalax.compare(fits)

# %% [markdown]
# The difference is a log likelihood ratio with $w$ integrated out. It cannot be negative: $M_T$
# contains $M_G$ and chose one parameter more. So it gives no probabilities. Declare a prior for
# $\theta$, and `jalax.compare` integrates $\theta$ out too, by Laplace's method around the
# maximum. The prior is a density on the scale of the optimiser, here normal for all the
# logarithms.


# %%
def theta_log_prior(theta):
    mean, sd = jnp.array([0.0, 0.0, 1.5]), jnp.array([2.0, 2.0, 1.0])
    return norm.logpdf(theta, mean[: theta.size], sd[: theta.size]).sum()


comparison = jalax.compare(fits, theta_log_prior=theta_log_prior)
comparison

# %%
log_factor, error = comparison.log_bayes_factor("Student-t", "Gaussian")
print(f"log Bayes factor of Student-t over Gaussian: {log_factor:.2f} ± {error:.2f}")

# %% [markdown]
# The error bar is that of the simulation. It does not include Laplace's approximation over the
# two or three dimensions of $\theta$, which the check below looks at, and of course not the
# choice of the prior.
#
# ## The same on Gaussian errors
#
# The data have the same shape, so nothing is compiled again.

# %%
light_fits = fit_both(light)
light_comparison = jalax.compare(light_fits, theta_log_prior=theta_log_prior)
light_comparison

# %% [markdown]
# Now the plug-in evidences are nearly the same, $\nu$ is large with an interval that says
# nothing, and the full evidence is on the side of the simpler model, though not by much: a
# Student-t with many degrees of freedom describes Gaussian errors as well, and the prior allows
# it.

# %%
fig, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, y, pair, title in zip(
    axes, (heavy, light), (fits, light_fits), ("t(3) errors", "Gaussian errors"), strict=True
):
    residuals = y - X @ np.asarray(pair["Gaussian"].expectation(lambda w: w))
    ax.hist(residuals, bins=40, density=True, color="lightgrey", label="residuals")
    at = np.linspace(residuals.min(), residuals.max(), 300)
    scale = np.exp(0.5 * float(pair["Gaussian"].theta[0]))
    ax.plot(at, norm.pdf(at, 0.0, scale), "--", color="black", label="Gaussian")
    log_variance, _, log_nu = np.asarray(pair["Student-t"].theta)
    density = jax.scipy.stats.t.pdf(at, np.exp(log_nu), 0.0, np.exp(0.5 * log_variance))
    ax.plot(at, density, label="Student-t")
    ax.set(title=title, xlabel="residual", yscale="log", ylim=(1e-3, 1))
axes[0].legend(fontsize=8)
# %% [markdown]
# The vertical axis is logarithmic: tails are what the models differ in.
#
# ## Check
#
# $M_G$ has a closed form, $y \sim N(0, \sigma^2 I + \alpha^{-1} X X^\top)$. For $M_T$ the
# integral over the eight coefficients is computed in NumPy and SciPy: the mode by quasi-Newton,
# and importance sampling from a Student-t around it.

# %%
from scipy.optimize import minimize
from scipy.stats import multivariate_t
from scipy.stats import norm as scipy_norm
from scipy.stats import t as scipy_t

eigenvalues, axes_of_X = np.linalg.eigh(X @ X.T)


def gaussian_evidence(theta, y):  # in the axes of X X' the covariance is diagonal
    variances = np.exp(theta[0]) + np.exp(-theta[1]) * np.maximum(eigenvalues, 0.0)
    return scipy_norm.logpdf(axes_of_X.T @ y, 0.0, np.sqrt(variances)).sum()


def student_evidence(theta, y, draws=20_000):
    scale, spread, nu = np.exp(0.5 * theta[0]), np.exp(-0.5 * theta[1]), np.exp(theta[2])

    def log_joint(w):
        likelihood = scipy_t.logpdf(y[:, None], nu, X @ w.T, scale).sum(axis=0)
        return likelihood + scipy_norm.logpdf(w, 0.0, spread).sum(axis=1)

    found = minimize(lambda w: -log_joint(w[None])[0], np.zeros(8))
    proposal = multivariate_t(found.x, 1.2 * found.hess_inv, df=10, seed=0)
    w = proposal.rvs(draws)
    log_weights = log_joint(w) - proposal.logpdf(w)
    weights = np.exp(log_weights - log_weights.max())
    error = weights.std() / weights.mean() / np.sqrt(draws)
    return np.log(weights.mean()) + log_weights.max(), error


for title, y, pair in (("t(3) errors", heavy, fits), ("Gaussian errors", light, light_fits)):
    for name, result in pair.items():
        theta = np.asarray(result.theta, float)
        exact = (gaussian_evidence(theta, y), 0.0)
        if name == "Student-t":
            exact = student_evidence(theta, y)
        found = f"{result.log_evidence:.3f} ± {result.log_evidence_error:.3f}"
        print(f"{title:16} {name:10} jalax {found}, independent {exact[0]:.3f} ± {exact[1]:.3f}")
        assert abs(result.log_evidence - exact[0]) < 4 * np.hypot(
            result.log_evidence_error, exact[1]
        )

# %% [markdown]
# And Laplace's method over $\theta$, for $M_G$ against a sum over a grid of its closed form:

# %%
grid = np.stack(np.meshgrid(np.linspace(0.1, 1.1, 41), np.linspace(-3, 3, 61)), -1).reshape(-1, 2)
values = np.array([gaussian_evidence(theta, heavy) for theta in grid])
values += np.asarray(jax.vmap(theta_log_prior)(jnp.asarray(grid)))
total = np.log(np.sum(np.exp(values - values.max()))) + values.max() + np.log(0.025 * 0.1)
(row,) = (row for row in comparison.rows if row.name == "Gaussian")
print(f"full log-evidence of the Gaussian model: Laplace {row.log_evidence:.3f}, grid {total:.3f}")
assert abs(row.log_evidence - total) < 0.1  # an approximation: a tenth in a log Bayes factor
