# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Seizure counts: a Poisson mixed model
#
# Counts that vary more than a Poisson distribution allows: patients get effects of their own, and
# a second model shows what variation is left within them.
#
# In a trial of the drug progabide 59 people with epilepsy counted their seizures in four two-week
# periods (Thall and Vail 1990; the numbers are those of `epil` in the R package MASS). A count of
# the eight weeks before is known as well. The first 28 patients had a placebo, the other 31 the
# drug.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jalax

# Four counts and the baseline of each patient.
table = np.array(
    """
    5 3 3 3 11      3 5 3 3 11      2 4 0 5 6       4 4 1 4 8       7 18 9 21 66    5 2 8 7 27
    6 4 0 2 12      40 20 23 12 52  5 6 6 5 23      14 13 6 0 10    26 12 6 22 52   12 6 8 4 33
    4 4 6 2 18      7 9 12 14 42    16 24 10 9 87   11 0 0 5 50     0 0 3 3 18      37 29 28 29 111
    3 5 2 5 18      3 0 6 7 20      3 4 3 4 12      3 4 3 4 9       2 3 3 5 17      8 12 2 8 28
    18 24 76 25 55  2 1 2 1 9       3 1 4 2 10      13 15 13 12 47
    11 14 9 8 76    8 7 9 4 38      0 4 3 0 19      3 6 1 3 10      2 6 7 4 19      4 3 1 3 24
    22 17 19 16 31  5 4 7 4 14      2 4 0 4 11      3 7 7 7 67      4 18 2 5 41     2 1 1 0 7
    0 2 4 0 22      5 4 0 3 13      11 14 25 15 46  10 5 3 8 36     19 7 6 7 38     1 1 2 3 7
    6 10 8 8 36     2 1 0 0 11      102 65 72 63 151  4 3 2 4 22    8 6 5 7 41      1 3 1 5 32
    18 11 28 13 56  6 3 4 0 24      3 5 4 3 16      1 23 19 8 22    2 3 0 1 25      0 0 0 0 13
    1 4 3 2 12
    """.split(),
    dtype=int,
).reshape(59, 5)
patient = np.arange(59)
data = pd.DataFrame(
    {
        "y": table[:, :4].ravel(),
        "log_base": np.repeat(np.log(table[:, 4] / 4), 4),  # seizures in two weeks, before
        "drug": np.repeat((patient >= 28).astype(float), 4),
        "last": np.tile([0.0, 0.0, 0.0, 1.0], 59),  # the fourth period
        "patient": np.repeat(patient.astype(str), 4),
    }
)

# %% [markdown]
# ## Too much variation for a Poisson distribution
#
# A Poisson regression has $y \sim \mathrm{Poisson}(e^{x^\top\beta})$, with the variance equal to
# the mean. It has no latent variables, and a few lines of NumPy fit it by Newton's method. If it
# held, the dispersion, the mean of the squared Pearson residuals, would be near one.

# %%
y = data["y"].to_numpy(float)
X = np.column_stack([np.ones(y.size), data[["log_base", "drug", "last"]]])
glm = np.array([np.log(y.mean()), 0.0, 0.0, 0.0])
for _ in range(30):
    mean = np.exp(X @ glm)
    glm += np.linalg.solve(X.T @ (mean[:, None] * X), X.T @ (y - mean))
print("Poisson regression:", glm.round(3))
print(f"dispersion {np.sum((y - mean) ** 2 / mean) / (y.size - 4):.1f}, where 1 is expected")

# %% [markdown]
# It does not hold. Some patients simply have more seizures than others with the same
# baseline. Let patient $i$ have an effect of his or her own,
#
# $$
# b_i \sim N(0, s^2), \qquad
# y_{it} \mid b_i \sim \mathrm{Poisson}\big(e^{x_{it}^\top \beta + b_i}\big),
# $$
#
# and maximise the likelihood of $\theta = (\beta, s)$ with the $b_i$ integrated out. The formula
# is that of lme4's `glmer`. It needs `pip install 'jalax[mixed]'`.

# %%
formula = "y ~ log_base + drug + last + (1|patient)"
poisson = jalax.mixed(formula, data, family="poisson", key=jax.random.key(0))
poisson

# %% [markdown]
# The patients differ much: one standard deviation up multiplies the rate of seizures by more than
# one and a half. The column `simulation` is the Monte-Carlo error of an
# estimate, to be compared with its standard error. The drug seems to help, and the last period to
# be better than the others.
#
# ## Is that enough?
#
# Within a patient the model still has Poisson counts. A negative binomial count with mean $\mu$
# has the variance $\mu + \mu^2 / k$, with one more parameter, the `shape` $k$. For $k \to
# \infty$ it is Poisson again.

# %%
negative = jalax.mixed(formula, data, family="negativebinomial", key=jax.random.key(1))
negative

# %%
jalax.compare({"Poisson": poisson, "negative binomial": negative})

# %% [markdown]
# The evidence at the estimate is the maximised log-likelihood. Since the second model has one
# parameter more, `jalax.compare` gives no probabilities. A gain of this size is worth any price
# of one parameter. So the counts vary within patients, too, more than Poisson counts do. This
# has a consequence: the standard error of `last` grows, and there is no sign left that the last
# period was different. `(1|patient/period)`, with a column `period`, would be another model of
# it, with a normal effect for every single count.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
rng = np.random.default_rng(0)
beta = np.asarray(poisson.theta["beta"], float)
sd = float(poisson.theta["sd"]["patient"][0])
total, expected = table[:, :4].sum(axis=1), np.exp(X @ beta).reshape(59, 4).sum(axis=1)
grid = np.geomspace(expected.min(), expected.max(), 40)
alone = rng.poisson(grid, (4000, 40))
mixed = rng.poisson(grid * np.exp(sd * rng.normal(size=(4000, 40))))
left.fill_between(grid, *np.quantile(mixed, [0.025, 0.975], axis=0), color="0.85", label="mixed")
left.fill_between(grid, *np.quantile(alone, [0.025, 0.975], axis=0), color="0.6", label="Poisson")
left.plot(expected, np.maximum(total, 0.5), "k.", ms=5)  # one patient had none
left.set(xscale="log", yscale="log", ylim=(0.4, None), ylabel="seizures in eight weeks")
left.set_xlabel("expected for a patient with $b_i = 0$")
left.legend(title="95 % of patients", loc="lower right", fontsize=8)

own_mean, own_variance = table[:, :4].mean(axis=1), table[:, :4].var(axis=1, ddof=1)
mu = np.geomspace(0.6, 100, 50)
right.plot(mu, mu, "k--", label="Poisson: variance = mean")
right.plot(mu, mu + mu**2 / float(negative.theta["shape"]), "C1-", lw=2, label="negative binomial")
right.plot(own_mean, own_variance, "k.", ms=5)
right.set(xscale="log", yscale="log", ylabel="their variance")
right.set_xlabel("mean of a patient's four counts")
_ = right.legend(loc="upper left", fontsize=8)

# %% [markdown]
# Left, between patients: a point is a patient's total. The bands hold 95 % of patients if counts
# are Poisson around the expectation (dark), and under the mixed model (light). Right, within
# patients: mean and variance of the four counts, with what the two models say. The patient
# without any seizure is drawn at one half in the left panel, and is missing in the right one.
#
# ## Check
#
# The integral over a single $b_i$ is easy on a fine grid: the trapezoidal rule with 321 points
# from $-8s$ to $8s$. SciPy's BFGS maximises what comes out, from the Poisson regression.

# %%
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

z = np.linspace(-8, 8, 321)
log_weight = -(z**2) / 2 - np.log(np.sqrt(2 * np.pi)) + np.log(z[1] - z[0])


def log_likelihood(numbers):
    """Of (beta, log s) for Poisson counts, of (beta, log s, log k) for negative binomial ones."""
    eta = (X @ numbers[:4])[:, None] + np.exp(numbers[4]) * z
    if numbers.size == 5:
        each = y[:, None] * eta - np.exp(eta) - gammaln(y + 1)[:, None]
    else:
        k = np.exp(numbers[5])
        constant = gammaln(y + k) - gammaln(k) - gammaln(y + 1)
        each = constant[:, None] - k * np.log1p(np.exp(eta) / k) + y[:, None] * eta
        each -= y[:, None] * np.log(k + np.exp(eta))
    return logsumexp(each.reshape(59, 4, z.size).sum(axis=1) + log_weight, axis=1).sum()


for name, result in {"Poisson": poisson, "negative binomial": negative}.items():
    found, simulation = (
        np.asarray(ravel_pytree(tree)[0], float)
        for tree in (result.theta, result.simulation_errors())
    )
    start = np.concatenate([glm, np.zeros(found.size - 4)])
    best = minimize(lambda t: -log_likelihood(t), start, method="BFGS").x
    # The order of jalax is alphabetical: beta, sd, shape.
    best[4:] = np.exp(best[4:])
    print(f"{name}\n{'':24s}jalax  simulation  quadrature")
    for row in zip(result.names, found, simulation, best, strict=True):
        print("  {:22s}{:7.4f}  {:10.4f}  {:10.4f}".format(*row))
    assert np.all(np.abs(found - best) < 4 * simulation + 1e-4)  # BFGS ends that near
    exact = log_likelihood(np.append(found[:4], np.log(found[4:])))
    error = result.log_evidence_error
    print(f"  log-likelihood at the estimate: quadrature {exact:.3f}, ", end="")
    print(f"jalax {result.log_evidence:.3f} +- {error:.0e}")
    assert abs(result.log_evidence - exact) < 4 * error
