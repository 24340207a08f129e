# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Sleep deprivation: random intercepts and slopes
#
# A linear mixed model with correlated intercepts and slopes on lme4's `sleepstudy` data, where the
# exact likelihood is known.
#
# Eighteen people were kept to three hours of sleep a night, and their reaction times were measured
# on ten days (Belenky et al. 2003). Most get slower, and some much more than others. So subject $i$
# has a line of its own, and the lines vary around a common one:
#
# $$
# y_{it} \mid b_i \sim N\big((\beta_0 + b_{i0}) + (\beta_1 + b_{i1})\, t,\; \sigma^2\big), \qquad
# b_i \sim N(0, \Sigma), \qquad
# \Sigma = \begin{pmatrix} s_0^2 & \rho s_0 s_1 \\ \rho s_0 s_1 & s_1^2 \end{pmatrix} .
# $$
#
# Here $y_{it}$ is the reaction time in milliseconds on day $t$. The parameters
# $\theta = (\beta, s, \rho, \sigma)$ maximise the likelihood with the lines $b_i$ integrated out.
# In this model the integral is a Gaussian one and could be done on paper. The fit does not use
# that, and so the page can say how exact it is. The formula is lme4's. It needs
# `pip install 'jalax[mixed]'`.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import jalax

data = jalax.datasets.sleepstudy().to_frame()
result = jalax.mixed("reaction ~ days + (days|subject)", data, key=jax.random.key(0))
result

# %% [markdown]
# A day without sleep costs about ten milliseconds, give or take the standard error of `days`. The
# standard deviation of the slopes is large beside that mean: for some subjects the slope is nearly
# zero, for others it is twice the mean. The correlation between intercept and slope is not
# distinguished from zero by 18 subjects. `simulation` is the Monte-Carlo error of each estimate, a
# small fraction of its standard error. `jalax.mixed` maximises the likelihood; lme4's default is
# `likelihood=jalax.REML()`.
#
# ## The eighteen lines

# %%
effects = result.random_effects()["subject"]
beta = np.asarray(result.theta["beta"], float)

fig, axes = plt.subplots(3, 6, figsize=(8, 4.6), sharex=True, sharey=True, layout="constrained")
days = np.array([0.0, 9.0])
for ax, (subject, rows) in zip(axes.flat, data.groupby("subject"), strict=True):
    own = effects.loc[subject]
    ax.plot(rows.days, rows.reaction, ".", color="0.35", ms=4)
    ax.plot(days, beta[0] + beta[1] * days, "k:", lw=1, label="mean line")
    line = (beta[0] + own["Intercept"]) + (beta[1] + own["days"]) * days
    ax.plot(days, line, color="C0", lw=2, label="own line")
    ax.set_title(subject, fontsize=9, pad=2)
axes[0, 0].set_xticks([0, 3, 6, 9])
fig.supxlabel("day")
fig.supylabel("reaction time (ms)")
_ = fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)

# %% [markdown]
# One panel a subject: the measurements, the posterior mean of the subject's own line (solid) and
# the common line (dotted). The own lines are shrunk from a subject's least squares towards the
# common line.
#
# ## Check
#
# lme4 1.1 in R, by maximum likelihood rather than its default REML,
#
# ```r
# lmer(Reaction ~ Days + (Days | Subject), sleepstudy, REML = FALSE)
# ```
#
# gives the numbers below. lme4 has standard errors for the fixed effects only.

# %%
from jax.flatten_util import ravel_pytree

lme4 = {
    "Intercept": 251.4051048,
    "days": 10.46728596,
    "cor Intercept, days | subject": 0.08132012392,
    "sd Intercept | subject": np.sqrt(565.51520392),
    "sd days | subject": np.sqrt(32.68219623),
    "sigma": np.sqrt(654.94104463),
}
lme4_log_likelihood = -875.9696722

found, errors, simulation = (
    np.asarray(ravel_pytree(tree)[0], float)
    for tree in (result.theta, result.standard_errors(), result.simulation_errors())
)
print("                                   jalax  simulation       lme4     s.e.")
for name, value, sim, error in zip(result.names, found, simulation, errors, strict=True):
    print(f"{name:30s} {value:9.4f}  {sim:10.4f}  {lme4[name]:9.4f}  {error:7.4f}")
    assert abs(value - lme4[name]) < 4 * sim
print(f"\nstandard errors of the fixed effects in lme4: {6.63227615:.4f}, {1.502236769:.4f}")
evidence, error = result.log_evidence, result.log_evidence_error
print(f"log-likelihood: jalax {evidence:.4f} +- {error:.0e}, lme4 {lme4_log_likelihood:.4f}")
assert abs(evidence - lme4_log_likelihood) < 4 * error

# %% [markdown]
# And without software for mixed models. With $b_i$ integrated out, the ten measurements of a
# subject are Gaussian with mean $X\beta$ and covariance $V = X \Sigma X^\top + \sigma^2 I$, where
# $X$ has a column of ones and the days. The mean of $b_i$ given the data is
# $\Sigma X^\top V^{-1} (y_i - X\beta)$. Both in NumPy:


# %%
def exact(theta):
    """log p_theta(y), and posterior means and standard deviations of the b_i."""
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, float), theta)
    (s0, s1), (rho,) = theta["sd"]["subject"], theta["cor"]["subject"]
    prior = np.array([[s0**2, rho * s0 * s1], [rho * s0 * s1, s1**2]])
    X = np.column_stack([np.ones(10), np.arange(10.0)])
    V = X @ prior @ X.T + theta["sigma"] ** 2 * np.eye(10)
    residual = data["reaction"].to_numpy().reshape(18, 10) - X @ theta["beta"]
    solved = np.linalg.solve(V, residual.T).T
    log_det = np.linalg.slogdet(2 * np.pi * V)[1]
    spread = prior - prior @ X.T @ np.linalg.solve(V, X @ prior)
    value = -0.5 * (18 * log_det + np.sum(residual * solved))
    return value, solved @ X @ prior, np.sqrt(np.diagonal(spread))


value, _, _ = exact(result.theta)
print(f"log-likelihood at the estimate: exact {value:.4f}, jalax {evidence:.4f} +- {error:.0e}")
assert abs(evidence - value) < 4 * error

last = jax.tree.map(lambda rows: rows[-1], result.history["theta"])  # that of the points, nearly
_, mean, sd = exact(last)
off = (effects[["Intercept", "days"]].to_numpy() - mean) / (sd / np.sqrt(result.ess.min()))
print(
    f"largest difference of the 36 means of b from the exact ones: {np.abs(off).max():.1f} errors"
)
assert np.all(np.abs(off) < 4)
