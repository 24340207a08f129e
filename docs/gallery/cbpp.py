# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Disease in cattle herds: a binomial mixed model
#
# The logistic mixed model of lme4's `cbpp` data, fitted by formula. The estimates, the
# log-likelihood and the herd effects are checked against lme4 and against quadrature.
#
# Contagious bovine pleuropneumonia is a lung disease of cattle. Fifteen herds in Ethiopia were
# followed over four periods, and the new cases among the animals at risk were counted (Lesnoff
# et al. 2004). Herds differ for reasons that were not recorded. So herd $i$ has an effect of its
# own, $b_i$, drawn from a normal distribution, and in period $t$
#
# $$
# b_i \sim N(0, s^2), \qquad
# y_{it} \mid b_i \sim \mathrm{Binomial}(n_{it}, \pi_{it}), \qquad
# \log \frac{\pi_{it}}{1 - \pi_{it}} = \beta_0 + \beta_t + b_i .
# $$
#
# The parameters $\theta = (\beta, s)$ maximise the likelihood with the herd effects integrated out,
#
# $$
# p_\theta(y) = \prod_i \int N(b; 0, s^2) \prod_t p_\theta(y_{it} \mid b)\, db .
# $$
#
# These integrals have no closed form. `jalax.mixed` takes the formula in the syntax of lme4
# (`p(cases, trials)` stands for R's `cbind(cases, trials - cases)`). It needs
# `pip install 'jalax[mixed]'`.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import jalax

data = jalax.datasets.cbpp().to_frame()
result = jalax.mixed(
    "p(incidence, size) ~ period + (1|herd)", data, family="binomial", key=jax.random.key(0)
)
result

# %% [markdown]
# The tables are those of lme4's `summary`, with two more columns. `log-lik.` is
# $\log p_{\hat\theta}(y)$, estimated by quasi-random points, and `MC error` its standard error.
# `simulation` says how much an estimate would change under another key. It is a small
# fraction of the standard error, which is what the size of the data set leaves open. The
# coefficients are log-odds against the first period.
#
# A herd's posterior given the data is a cloud of weighted points. `random_effects` takes its
# means and standard deviations. The intervals below are the mean plus and minus 1.645 standard
# deviations, about 90 % of the posterior, with $\theta$ held at its estimate.

# %%
herds = result.random_effects()["herd"].sort_values("Intercept")
beta = np.asarray(result.theta["beta"], float)
typical = 1 / (1 + np.exp(-(beta[0] + np.append(0.0, beta[1:]))))

fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.8), layout="constrained")
for _, rows in data.groupby("herd"):
    left.plot(rows.period, rows.incidence / rows["size"], ".-", color="0.75", lw=0.8, ms=5)
left.plot(["1", "2", "3", "4"], typical, "ks-", lw=2, label="fit, a herd with $b_i = 0$")
left.plot([], [], ".-", color="0.75", label="the 15 herds")
left.set(xlabel="period", ylabel="share of animals that fall ill")
left.legend()
right.errorbar(
    herds["Intercept"], herds.index, xerr=1.645 * herds["Intercept sd"], fmt="o", ms=4, capsize=2
)
right.axvline(0.0, color="k", lw=0.8)
_ = right.set(xlabel="herd effect on the log-odds, 90 % interval", ylabel="herd")
# %% [markdown]
# Left: what was observed, and the fit for a herd with $b_i = 0$. Right: the herd effects. They are
# shrunk towards zero, the more so the fewer animals a herd has. A few herds are clearly above or
# below the others. For most the interval includes zero.
#
# ## Does the period matter?
#
# The same model without the period has three parameters less.

# %%
without = jalax.mixed(
    "p(incidence, size) ~ 1 + (1|herd)", data, family="binomial", key=jax.random.key(1)
)
both = {"period": result, "no period": without}
jalax.compare(both)

# %% [markdown]
# `jalax.compare` gives no probabilities here. The number shown is the evidence at each model's own
# maximum, the *plug-in* evidence, and it can only grow with the number of parameters. The
# evidence at the maximum is the maximised log-likelihood, so the likelihood-ratio test is at hand:

# %%
from scipy.stats import chi2

ratio = 2 * (result.log_evidence - without.log_evidence)
ratio_error = 2 * np.hypot(result.log_evidence_error, without.log_evidence_error)
print(f"likelihood ratio {ratio:.2f} +- {ratio_error:.0e} on 3 degrees of freedom")
print(f"p-value {chi2.sf(ratio, 3):.1e}; AIC {result.aic:.1f} against {without.aic:.1f}")

# %% [markdown]
# The risk fell after the first period. The other way is to declare a prior on $\theta$:
# `jalax.compare(both, theta_log_prior=...)` then integrates $\theta$ out by Laplace's method, and
# gives probabilities. [Factor analysis](factor_analysis.py) does it for the number of factors.
#
# ## Check
#
# lme4 1.1 in R fits the same model with 25 points of adaptive Gauss-Hermite quadrature,
#
# ```r
# glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, nAGQ = 25)
# ```
#
# Its numbers are below. One remark on the log-likelihood: with `nAGQ` above 1 lme4 1.1 leaves out a
# constant, the log-likelihood of the saturated model, and prints -50.0
# ([lme4 issue 161](https://github.com/lme4/lme4/issues/161)). The reference below has it in.

# %%
from jax.flatten_util import ravel_pytree
from scipy.stats import binom

lme4 = np.array([-1.39923045, -0.9914036392, -1.127819439, -1.57947074, 0.6475184834])
lme4_error = ["0.2335", "0.3068", "0.3268", "0.4276", "-"]  # lme4 gives none for s
lme4_log_likelihood = -91.983369

found, errors, simulation = (
    np.asarray(ravel_pytree(tree)[0], float)
    for tree in (result.theta, result.standard_errors(), result.simulation_errors())
)
print("                        jalax  simulation      lme4    s.e.  s.e. lme4")
for row in zip(result.names, found, simulation, lme4, errors, lme4_error, strict=True):
    print("{:20s} {:8.4f}  {:10.4f}  {:8.4f}  {:6.4f}  {:>9s}".format(*row))

y, n = data["incidence"].to_numpy(), data["size"].to_numpy()
saturated = binom.logpmf(y, n, y / n).sum()
print(f"log-likelihood: jalax {result.log_evidence:.4f} +- {result.log_evidence_error:.0e}", end="")
print(f", lme4 {lme4_log_likelihood:.4f} (as printed {lme4_log_likelihood - saturated:.1f})")

assert np.all(np.abs(found - lme4) < 4 * simulation)
assert abs(result.log_evidence - lme4_log_likelihood) < 4 * result.log_evidence_error

# %% [markdown]
# And without any mixed-model software: the integral over $b_i$ by Gauss-Hermite quadrature with 100
# points, in NumPy.

# %%
nodes, weights = np.polynomial.hermite_e.hermegauss(100)
herd, period = data["herd"].astype(int).to_numpy(), data["period"].astype(int).to_numpy()


def quadrature(theta):
    """log p_theta(y), and the posterior mean and standard deviation of every herd's effect."""
    beta, sd = np.asarray(theta["beta"], float), float(theta["sd"]["herd"][0])
    by_period = beta[0] + (np.append(0.0, beta[1:]) if beta.size > 1 else np.zeros(4))
    logit = by_period[period - 1][:, None] + sd * nodes
    each = np.tile(np.log(weights / weights.sum()), (15, 1))
    np.add.at(each, herd - 1, binom.logpmf(y[:, None], n[:, None], 1 / (1 + np.exp(-logit))))
    log_z = np.logaddexp.reduce(each, axis=1)
    posterior = np.exp(each - log_z[:, None])
    mean = posterior @ (sd * nodes)
    return log_z.sum(), mean, np.sqrt(posterior @ (sd * nodes) ** 2 - mean**2)


for name, fit in both.items():
    exact = quadrature(fit.theta)[0]
    print(f"{name:10s} quadrature {exact:9.4f}", end="   ")
    print(f"jalax {fit.log_evidence:9.4f} +- {fit.log_evidence_error:.0e}")
    assert abs(fit.log_evidence - exact) < 4 * fit.log_evidence_error

# %% [markdown]
# The herd effects, against quadrature at the last $\theta$ of the history. The error of a mean over
# random draws would be the posterior standard deviation divided by the root of the effective sample
# size; the points lie more evenly, and their means are nearer.

# %%
last = jax.tree.map(lambda rows: rows[-1], result.history["theta"])
_, mean, sd = quadrature(last)
ess = float(result.ess.min())
off = (herds["Intercept"].loc[[str(i) for i in range(1, 16)]] - mean) / (sd / np.sqrt(ess))
print(f"effective sample size of each herd: at least {ess:.0f}")
print(f"largest difference of the 15 means from quadrature: {np.abs(off).max():.1f} errors")
assert np.all(np.abs(off) < 4)
