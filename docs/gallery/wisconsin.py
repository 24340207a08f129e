# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Logistic regression: theta, its error, and the evidence
#
# Bayesian logistic regression on breast cancer data, fitted with nothing to tune; then JALA-EM and
# PGD side by side, of which only one carries the evidence along.
#
# The data are 683 cytological samples, each with nine features on a common scale and a label,
# benign or malignant (Wolberg and Mangasarian 1990). The weights $w \in \mathbb{R}^9$ of the
# regression are latent, with a normal prior around a common mean:
#
# $$w \sim \mathcal{N}(\theta 1, 5 I), \qquad p(y_i = 1 \mid w) = \frac{1}{1 + e^{-x_i^\top w}}.$$
#
# All nine features were graded so that large values look malignant. A prior mean of zero would not
# use that. Instead of guessing $\theta$, empirical Bayes estimates it: the value that maximises
# $p_\theta(y) = \int p(y \mid w)\, p_\theta(w)\, dw$. This is the first experiment of the
# [paper](../paper.md).

# %%
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from scipy import optimize, special, stats

import jalax

data = jalax.datasets.wisconsin()
print(f"{len(data.labels)} rows, {int(data.labels.sum())} malignant; features:")
print(", ".join(data.feature_names))

# %% [markdown]
# ## A fit with nothing to tune
#
# `jalax.models.logistic_regression` is this model. The only choices are where $\theta$ starts and
# the random key.

# %%
model = jalax.models.logistic_regression(data.features, data.labels)
result = jalax.fit(model, 0.0, key=jax.random.key(0))
result

# %% [markdown]
# - **estimate** is the maximiser of $p_\theta(y)$.
# - **std. error** is what another data set of this size would change: the inverse root of the
#   observed information. There are only nine weights to learn a prior mean from, so it is large.
# - **simulation** is what another key would change. It is far smaller, so more particles or steps
#   would not help.
# - **log evidence** is $\log p_\theta(y)$ at the estimate, from fresh points, with its error.
#
# Nine latents are few, so `fit` chose Scoring, as the second line says: 1024 quasi-random points
# at the mode of the posterior give $p_\theta(y)$, and Newton's method climbs it. The same in
# pictures: $\theta$ and the evidence step by step, how evenly the weights of the points are spread
# (ESS/N), and the posterior of the nine weights.

# %%
axes = result.plot()
plt.show()

# %% [markdown]
# The weighted points stand for the posterior of $w$. Any posterior mean is one call away.

# %%
mean = result.expectation(lambda w: w)
positive = result.expectation(lambda w: w > 0)
for name, m, p in zip(data.feature_names, mean, positive, strict=True):
    print(f"{name:28s} weight {m:5.2f}   P(weight > 0 | y) = {p:.2f}")

# %% [markdown]
# ## JALA-EM and PGD, by hand
#
# JALA-EM is what `fit` takes where there are many latents: its particles move by Langevin steps
# while $\theta$ is optimised, and carry weights. `jalax.JALAEM()` makes every choice for you. Here
# the choices are ours: the step size $h$, a preconditioner, the optimiser of $\theta$, the number
# of steps. PGD (particle gradient descent) moves its particles by the same kind of step, but they
# carry no weights. Its step size is close to the largest that is stable, $2 / L$, with $L$ a bound
# on the Hessian of the log-density.

# %%
X = data.features
bound = X.T @ X / 4 + np.eye(9) / 5.0
L = np.linalg.eigvalsh(bound)[-1]
common = {"key": jax.random.key(1), "start": jalax.Laplace(), "num_particles": 200}

jala = jalax.fit(
    model,
    0.0,
    algorithm=jalax.JALAEM(
        step_size=1.0,
        preconditioner=np.linalg.inv(bound),
        optimizer=jalax.Optax(optax.adam, learning_rate=0.05),
    ),
    num_steps=200,
    **common,
)
pgd = jalax.fit(
    model,
    0.0,
    algorithm=jalax.PGD(step_size=1.98 / L),
    num_steps=1500,
    **common,
)
print(f"JALA-EM  theta {jala.theta_average(0.3):.3f}   log evidence {jala.path_log_evidence:.2f}")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(f"PGD      theta {pgd.theta_average(0.3):.3f}   log evidence {pgd.log_evidence}")
print(f"         because {caught[0].message}")

# %% [markdown]
# Both arrive at the same $\theta$. The figure is not a race: only JALA-EM has a preconditioner and
# Adam here, and speed is measured in [benchmarks](../benchmarks.md). It shows what the weights are
# for. On the right every step of JALA-EM is a point, $\log Z_k$ against $\theta_k$: the run draws
# the marginal likelihood while it climbs it. The line joins values of `jalax.log_evidence` at
# fixed $\theta$, a fresh estimate at each (bars: two errors). The path begins with an estimate at
# $\theta_0$, and carries its error along: with another key all points move up or down together.

# %%
grid = np.linspace(-0.3, 2.2, 15)
fresh = [jalax.log_evidence(model, theta, key=jax.random.key(2)) for theta in grid]

fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.5), layout="constrained")
left.plot(pgd.history["theta"], "--", color="tab:orange", label="PGD")
left.plot(jala.history["theta"], color="tab:blue", label="JALA-EM")
left.axhline(float(result.theta), color="black", lw=0.8, ls=":", label="automatic fit")
left.set(xlabel="step k", ylabel=r"$\theta_k$")
left.legend(frameon=False)
right.errorbar(
    grid,
    [e.value for e in fresh],
    [2 * e.error for e in fresh],
    color="black",
    lw=1,
    capsize=2,
    label="jalax.log_evidence",
)
right.plot(
    jala.history["theta"],
    jala.history["log_evidence"],
    "o",
    ms=3,
    alpha=0.4,
    color="tab:blue",
    label=r"JALA-EM: $(\theta_k, \log Z_k)$",
)
right.set(xlabel=r"$\theta$", ylabel=r"$\log p_\theta(y)$")
right.legend(frameon=False, loc="lower center")
plt.show()

# %% [markdown]
# ## Check
#
# The oracle is importance sampling in NumPy: draws of a Student-t around the posterior mode, made
# from scrambled Sobol points, which are spread more evenly than random ones. $\theta$ enters only
# the prior of $w$, so one set of draws gives $\log p_\theta(y)$ for every $\theta$, and SciPy can
# maximise it. Sixteen scrambles give the oracle an error of its own.


# %%
def log_likelihood(w):
    logits = w @ X.T
    return (data.labels * logits - np.logaddexp(0.0, logits)).sum(axis=-1)


def log_prior(theta, w):
    return stats.norm.logpdf(w, theta, np.sqrt(5.0)).sum(axis=-1)


def slope(w):
    return X.T @ (data.labels - special.expit(X @ w)) - (w - 1.0) / 5.0


def hessian(w):
    p = special.expit(X @ w)
    return (X.T * (p * (1 - p))) @ X + np.eye(9) / 5.0


mode = optimize.root(lambda w: -slope(w), np.zeros(9), jac=hessian, tol=1e-10).x
scale = np.linalg.cholesky(np.linalg.inv(hessian(mode)))
proposal = stats.multivariate_t(mode, scale @ scale.T, df=5)

clouds = []
for scramble in range(16):
    u = stats.qmc.Sobol(10, rng=scramble).random(2**9)
    z = special.ndtri(u[:, :9]) / np.sqrt(stats.chi2.ppf(u[:, 9:], 5) / 5)
    w = mode + z @ scale.T
    clouds.append((w, log_likelihood(w) - proposal.logpdf(w)))


def oracle(theta):  # log p_theta(y), a value from each scramble
    return np.array(
        [special.logsumexp(a + log_prior(theta, w)) - np.log(len(a)) for w, a in clouds]
    )


def maximiser(cloud):
    w, a = cloud
    loss = optimize.minimize_scalar(
        lambda theta: -special.logsumexp(a + log_prior(theta, w)), (0.0, 1.0), tol=1e-10
    )
    return loss.x


def mean_and_error(values):
    return np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))


best, best_error = mean_and_error([maximiser(cloud) for cloud in clouds])
h = 0.1
curvature = (oracle(best + h) - 2 * oracle(best) + oracle(best - h)).mean() / h**2
exact_error = (-curvature) ** -0.5
here = float(result.theta)
value, value_error = mean_and_error(oracle(here))

simulation = float(result.simulation_errors())
standard_error = float(result.standard_errors())
print("                     jalax                 oracle")
print(f"theta           {here:9.4f} +- {simulation:.4f}   {best:9.4f} +- {best_error:.4f}")
print(f"standard error  {standard_error:9.4f}             {exact_error:9.4f}")
print(
    f"log evidence    {result.log_evidence:9.4f} +- {result.log_evidence_error:.4f}   "
    f"{value:9.4f} +- {value_error:.4f}"
)

assert result.status == "converged"
assert abs(here - best) < 4 * np.hypot(simulation, best_error)
assert abs(standard_error / exact_error - 1) < 0.02
assert abs(result.log_evidence - value) < 4 * np.hypot(result.log_evidence_error, value_error)
for theta, estimate in zip(grid, fresh, strict=True):
    value, value_error = mean_and_error(oracle(theta))
    assert abs(estimate.value - value) < 4 * np.hypot(estimate.error, value_error)
off = jala.path_log_evidence - oracle(float(jala.theta)).mean()
print(f"path evidence of JALA-EM by hand: off by {off:+.3f}, its rough error {jala.path_error:.3f}")
assert abs(off) < 4 * jala.path_error
