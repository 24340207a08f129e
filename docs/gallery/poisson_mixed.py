# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Counts that vary too much: a Poisson mixed model
#
# Insects on 72 plots under six sprays. The counts vary more than a Poisson distribution allows; a
# random effect for each plot takes up the rest, and its size is fitted.
#
# The data are Beall's (*Biometrika* 32, 1942), in R as `InsectSprays`: twelve plots for each
# spray, and the number of insects found on each. A Poisson distribution has a variance equal to
# its mean. Here plots under the same spray differ by more than that, as plots do. With a random
# effect $b_i$ for plot $i$,
#
# $$
# b_i \sim N(0, s^2), \qquad
# y_i \mid b_i \sim \mathrm{Poisson}\big(e^{\beta_{\text{spray}(i)} + b_i}\big).
# $$

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import gammaln, logsumexp

import jalax

# fmt: off
sprays = {
    "A": [10, 7, 20, 14, 14, 12, 10, 23, 17, 20, 14, 13],
    "B": [11, 17, 21, 11, 16, 14, 17, 17, 19, 21, 7, 13],
    "C": [0, 1, 7, 2, 3, 1, 2, 1, 3, 0, 1, 4],
    "D": [3, 5, 12, 6, 4, 3, 5, 5, 5, 5, 2, 4],
    "E": [3, 5, 3, 5, 3, 6, 1, 1, 3, 2, 6, 4],
    "F": [11, 9, 15, 22, 15, 16, 13, 10, 26, 26, 24, 13],
}
# fmt: on
data = pd.DataFrame(
    [(spray, count) for spray, counts in sprays.items() for count in counts],
    columns=["spray", "count"],
)
data["plot"] = [f"plot {i}" for i in range(1, 73)]
data.groupby("spray")["count"].agg(["mean", "var"]).round(1).T

# %% [markdown]
# For a Poisson distribution the two rows would agree.
#
# ## The fit
#
# The formula is lme4's: `glmer(count ~ spray + (1 | plot), family = poisson)`.

# %%
formula = "count ~ spray + (1|plot)"
result = jalax.mixed(formula, data, family="poisson", key=jax.random.key(0))
result

# %% [markdown]
# Sprays B to F are compared with A, on the log scale: spray C leaves about a sixth of the
# insects. The standard deviation of the plots, on the same scale, is the number of interest
# here.
#
# ## Is there overdispersion at all?
#
# Without the random effect the likelihood is that of a Poisson regression, whose estimates are
# the log means. Twice the difference of the log-likelihoods is a likelihood-ratio statistic.
# Under $s = 0$, which is at the edge of the parameter space, its distribution is half a point
# mass at zero and half a $\chi^2_1$, so that the p-value is half the usual one.

# %%
from scipy.stats import chi2, poisson

counts = data["count"].to_numpy()
means = data.groupby("spray")["count"].transform("mean").to_numpy()
without = poisson.logpmf(counts, means).sum()
ratio = 2 * (result.log_evidence - without)
print(f"log-likelihood: Poisson {without:.2f}, with plots {result.log_evidence:.2f}", end=" ")
print(f"± {result.log_evidence_error:.2f}")
print(f"likelihood ratio {ratio:.1f}, p = {0.5 * chi2.sf(ratio, 1):.4f}")

# %% [markdown]
# ## What it changes
#
# The estimates of the sprays hardly move; their standard errors grow. A Poisson regression
# believes that every insect is independent of the others.

# %%
theta, errors = result.theta, result.standard_errors()
sd = float(theta["sd"]["plot"][0])
beta = np.asarray(theta["beta"], float)
log_means = np.log([np.mean(values) for values in sprays.values()])
naive = np.sqrt(1 / np.array([sum(values) for values in sprays.values()]))

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
place = np.arange(6)
for i, values in enumerate(sprays.values()):
    left.plot(np.full(12, i), values, "o", color="grey", alpha=0.5, markersize=4)
    level = np.exp(beta[0] + (beta[i] if i else 0.0))
    low, high = level * np.exp(-1.645 * sd), level * np.exp(1.645 * sd)
    left.plot([i - 0.3, i + 0.3], [level, level], color="black")
    left.fill_between([i - 0.3, i + 0.3], low, high, color="C0", alpha=0.25)
left.set(xticks=place, xticklabels=list(sprays), xlabel="spray", ylabel="insects")
left.set(title="90 % of the plots' means")
wide = np.asarray(errors["beta"], float)[1:]
narrow = np.sqrt(naive[0] ** 2 + naive[1:] ** 2)
right.errorbar(place[1:] - 0.1, beta[1:], 2 * wide, fmt="o", label="mixed model")
contrast = log_means[1:] - log_means[0]
right.errorbar(place[1:] + 0.1, contrast, 2 * narrow, fmt="s", markersize=4, label="Poisson")
right.set(xticks=place[1:], xticklabels=list(sprays)[1:], xlabel="spray", ylabel="log ratio to A")
right.legend()

# %% [markdown]
# ## Check
#
# One random effect a row: the likelihood is a product of 72 integrals over a line. A fine grid
# does each, in NumPy; then the same at estimates moved by half a standard error, to see that
# there the likelihood is lower.

# %%
points, masses = np.polynomial.hermite_e.hermegauss(101)
log_masses = np.log(masses / masses.sum())
spray = data["spray"].astype("category").cat.codes.to_numpy()


def log_likelihood(beta, sd):
    eta = (beta[0] + np.r_[0.0, beta[1:]][spray])[:, None] + sd * points
    each = counts[:, None] * eta - np.exp(eta) - gammaln(counts + 1)[:, None]
    return logsumexp(each + log_masses, axis=1).sum()


value = log_likelihood(beta, sd)
print(
    f"log-likelihood: jalax {result.log_evidence:.3f} ± {result.log_evidence_error:.3f}", end=", "
)
print(f"quadrature {value:.3f}")
assert abs(result.log_evidence - value) < 4 * result.log_evidence_error

sizes = np.r_[np.asarray(errors["beta"], float), float(errors["sd"]["plot"][0])]
for i, name in enumerate([*(f"beta[{j}]" for j in range(6)), "sd"]):
    step = np.zeros(7)
    step[i] = 0.5 * sizes[i]
    up, down = (log_likelihood(beta + s * step[:6], sd + s * step[6]) for s in (1, -1))
    print(f"{name:8} slope {up - down:+.3f}, half a standard error away {up - value:+.3f}")
    assert max(up, down) < value
    assert abs(up - down) < 0.15  # in standard errors; a fit promises 0.05
