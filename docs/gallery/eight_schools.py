# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Eight schools: a maximum at the boundary
#
# The best-known hierarchical model has its likelihood maximum at a variance of zero. What a fit
# says about it, what it refuses to say, and what to do instead.
#
# In eight schools a coaching programme was tried, and for each the effect on the test score was
# estimated, with a standard error (Rubin 1981). The usual model lets the true effects $x_j$ differ
# from school to school:
#
# $$x_j \sim \mathcal{N}(\mu, \tau^2), \qquad y_j \mid x_j \sim \mathcal{N}(x_j, s_j^2), \qquad
#   j = 1, \ldots, 8.$$
#
# The estimates $y_j$ and their errors $s_j$ are given. The effects $x_j$ are latent. The
# parameters are the mean effect $\mu$ and the spread between schools $\tau$: maximum marginal
# likelihood integrates the $x_j$ out and maximises what is left over $\mu$ and $\log \tau$. The
# logarithm keeps $\tau$ positive, and has a price: $\tau = 0$ is now at minus infinity.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from scipy import optimize, stats

import jalax

y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
s = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

log_normal = jax.scipy.stats.norm.logpdf


def log_joint(theta, x, school):  # log p_theta(x_j, y_j) of one school
    log_prior = log_normal(x, theta["mu"], jnp.exp(theta["log_tau"]))
    return log_prior + log_normal(school["y"], x, school["s"])


model = jalax.GroupedModel(log_joint, latent=jnp.zeros(()), data={"y": y, "s": s})
result = jalax.fit(model, {"mu": 0.0, "log_tau": 1.0}, key=jax.random.key(0))
print(result.summary())

# %% [markdown]
# The status is "boundary". The message names the direction, `log_tau`, and the table has neither a
# standard error nor an interval for it. The mean effect has both: the data do tell about it. In
# code:

# %%
print(f"status: {result.status}")
print(f"direction without a maximum: {result.uncertainty.describe_flat()}")
for name, error in result.standard_errors().items():
    print(f"standard error of {name:8s} {error:.3f}")

# %% [markdown]
# ## The number that means nothing
#
# The estimate of `log_tau` is where the search gave up, because the likelihood had become flat.
# Another start gives up elsewhere, with the same evidence for all practical purposes. A method
# that reports only the last value, with a standard error from the curvature there, would report
# noise.

# %%
starts = [1.0, 2.0, 3.0]
fits = [jalax.fit(model, {"mu": 0.0, "log_tau": start}, key=jax.random.key(1)) for start in starts]
print("log_tau: start    end      tau      mu   log evidence        status")
for start, fit in zip(starts, fits, strict=True):
    end, mu = float(fit.theta["log_tau"]), float(fit.theta["mu"])
    evidence = f"{fit.log_evidence:.3f} +- {fit.log_evidence_error:.0e}"
    print(f"{start:14.0f} {end:6.2f} {np.exp(end):8.3f} {mu:7.2f}   {evidence}   {fit.status}")

# %% [markdown]
# ## Why: the data spread less than their errors
#
# With the effects integrated out, $y_j \sim \mathcal{N}(\mu, s_j^2 + \tau^2)$: everything has a
# closed form. If all schools had the same effect, the weighted sum of squares
# $Q = \sum_j (y_j - \hat\mu)^2 / s_j^2$ (Cochran's) would be 7 on average. Here it is less. The
# eight numbers lie closer together than their errors alone would have put them, and no positive
# $\tau$ explains that better than $\tau = 0$.


# %%
def exact(mu, tau, s):  # log p(y), the effects integrated out
    return stats.norm.logpdf(y, mu, np.hypot(s, tau)).sum()


def best_mu(tau, s):  # the maximiser over mu at a given tau: a mean weighted by precisions
    return np.average(y, weights=1 / (s**2 + tau**2))


def profile(tau, s):
    return exact(best_mu(tau, s), tau, s)


pooled = best_mu(0.0, s)
print(
    f"pooled mean {pooled:.2f}, Q = {np.sum((y - pooled) ** 2 / s**2):.2f} on 7 degrees of freedom"
)

# %% [markdown]
# ## The same estimates from larger samples
#
# Suppose the same eight estimates had come from nine times as many pupils, with standard errors a
# third as large. The spread between schools is now far above the errors, and the maximum lies
# inside. Nothing compiles again, since only the data changed.

# %%
larger = jalax.fit(
    jalax.GroupedModel(log_joint, latent=jnp.zeros(()), data={"y": y, "s": s / 3}),
    {"mu": 0.0, "log_tau": 1.0},
    key=jax.random.key(0),
)
larger

# %% [markdown]
# ## The curve instead of its top
#
# At a boundary there is no Wald interval, but there is a likelihood. Hold $\tau$ fixed, fit $\mu$
# alone, and read off the evidence: that is one point of the profile likelihood
# $\max_\mu \log p_{\mu, \tau}(y)$. Here $\tau$ is part of the data, so that one compiled program
# serves all its values.


# %%
def log_joint_at(mu, x, school):
    return log_normal(x, mu, school["tau"]) + log_normal(school["y"], x, school["s"])


grid = np.array([1.0, 4.0, 7.0, 10.0, 13.0])
held = []
for tau in grid:
    data = {"y": y, "s": s, "tau": np.full(8, tau)}
    fixed = jalax.GroupedModel(log_joint_at, latent=jnp.zeros(()), data=data)
    held.append(jalax.fit(fixed, 0.0, key=jax.random.key(2)))

values = np.array([fit.log_evidence for fit in held])
limit = np.interp(1.353, values[0] - values, grid)
print(f"one-sided 95 % limit: tau below {limit:.1f}")

# %% [markdown]
# The limit is where the profile has fallen by 1.353 from its value at $\tau = 1$, next to its top:
# half the 90 % point of $\chi^2_1$ (with eight schools a rough rule). So the data do not say that
# the schools are alike: they say that the spread is anything from none to about as large as the
# smaller ones of their errors.
#
# Below, the lines are the exact profiles. On the left are the fits at fixed $\tau$ and, as
# crosses, the three fits that looked for a maximum and found none. On the right, with the smaller
# errors, the fit sits on the top; the thick bar is the 95 % interval of
# `FitResult.confidence_intervals`, taken from $\log \tau$ to $\tau$.

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.5), layout="constrained")
for ax, errors, title in (
    (axes[0], s, "Rubin's data"),
    (axes[1], s / 3, "errors a third as large"),
):
    tau = np.linspace(0.0, 25.0, 200)
    ax.plot(tau, [profile(t, errors) for t in tau], color="black", lw=1.2, label="exact profile")
    ax.set_xlabel(r"spread between schools, $\tau$")
    ax.set_ylabel("log evidence")
    ax.set_title(title, fontsize="medium", loc="left")
bars = [2 * fit.log_evidence_error for fit in held]
axes[0].errorbar(grid, values, bars, fmt="o", mfc="white", label=r"fits at fixed $\tau$")
ends = [float(np.exp(fit.theta["log_tau"])) for fit in fits]
axes[0].plot(
    ends, [fit.log_evidence for fit in fits], "x", color="tab:red", ms=8, label="jalax.fit"
)
axes[0].axvline(limit, color="0.5", ls=":", label="95 % limit")
top = float(np.exp(larger.theta["log_tau"]))
axes[1].plot(top, larger.log_evidence, "x", color="tab:red", ms=8, label="jalax.fit")
low, high = np.exp(larger.confidence_intervals()["log_tau"])
axes[1].hlines(-40.5, low, high, color="tab:red", lw=4, label="95 % interval")
for ax in axes:
    ax.legend(frameon=False, fontsize="small", loc="center right" if ax is axes[1] else "best")
plt.show()

# %% [markdown]
# ## Shrinkage
#
# The particles of a fit are weighted draws of the effects given the data, at its $\theta$.
# `FitResult.expectation` averages over them, school by school. On the left, squares: with $\tau$
# next to zero all effects collapse to $\mu$, "complete pooling", with error bars that nobody
# believes. Triangles: the same at the largest $\tau$ below the limit. An analysis that plugs in
# the maximiser stands on the first without knowing of the second. On the right the maximum is
# inside, and the estimates are shrunk towards $\mu$, those with the largest errors most. Bars are
# one standard deviation.


# %%
def moments(fit):
    mean = np.asarray(fit.expectation(lambda x: x))
    return mean, np.sqrt(np.asarray(fit.expectation(lambda x: x**2)) - mean**2)


fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.5), sharey=True, layout="constrained")
school = np.arange(8)
wide = held[np.flatnonzero(grid < limit)[-1]]
for ax, errors, fit, title in (
    (axes[0], s, result, "Rubin's data"),
    (axes[1], s / 3, larger, "errors a third as large"),
):
    ax.errorbar(school - 0.2, y, errors, fmt="o", color="0.5", mfc="white", label="estimate")
    ax.errorbar(school, *moments(fit), fmt="s", color="tab:red", ms=4, label=r"at $\hat\theta$")
    ax.axhline(float(fit.theta["mu"]), color="black", lw=0.8, ls=":")
    ax.set_xticks(school, list("ABCDEFGH"))
    ax.set_xlabel(r"school (dotted: $\hat\mu$)")
    ax.set_title(title, fontsize="medium", loc="left")
axes[0].errorbar(school + 0.2, *moments(wide), fmt="^", ms=4, label=r"at a large $\tau$")
axes[0].set_ylabel("effect (points)")
axes[0].set_ylim(-22, 54)
axes[0].legend(frameon=False, fontsize="small", ncols=3, columnspacing=1.0, handletextpad=0.3)
plt.show()

# %% [markdown]
# The other way is to give $\tau$ a prior and make it one of the latents, which are averaged over.
# The schools then share a latent, and the model is a plain `jalax.Model`. The posterior of $\tau$
# is far from normal, so that such a fit takes many more steps than those above.
#
# ## Check
#
# Nothing below uses jalax: SciPy maximises the closed form, with $\tau \ge 0$ itself as the
# variable, so that the boundary can be reached.


# %%
def maximise(s):
    found = optimize.minimize(
        lambda t: -exact(t[0], t[1], s),
        [5.0, 5.0],
        bounds=[(None, None), (0.0, None)],
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-8},
    )
    return found.x, -found.fun


(mu_0, tau_0), top_0 = maximise(s)
(mu_3, tau_3), top_3 = maximise(s / 3)
print(f"SciPy, Rubin's data:      mu {mu_0:.3f}  tau {tau_0:.3f}  log evidence {top_0:.4f}")
print(f"SciPy, smaller errors:    mu {mu_3:.3f}  tau {tau_3:.3f}  log evidence {top_3:.4f}")

assert tau_0 == 0.0 and tau_3 > 1.0
assert {fit.status for fit in [result, *fits]} == {"boundary"} and larger.status == "converged"
assert all(np.isnan(fit.standard_errors()["log_tau"]) for fit in [result, *fits])
for fit in [result, *fits]:  # mu has a maximum: the best one at the tau where the fit ended
    tau = float(np.exp(fit.theta["log_tau"]))
    assert abs(float(fit.theta["mu"]) - best_mu(tau, s)) < 4 * float(fit.simulation_errors()["mu"])
    exact_error = np.sum(1 / (s**2 + tau**2)) ** -0.5
    assert abs(float(fit.standard_errors()["mu"]) / exact_error - 1) < 0.02

# Inside: theta within 4 simulation errors, standard errors from the exact curvature (with log tau).
step = np.diag([1e-2, 1e-3])
at = np.array([mu_3, np.log(tau_3)])


def loss(t):
    return -exact(t[0], np.exp(t[1]), s / 3)


hessian = [
    [
        (loss(at + a + b) - loss(at + a - b) - loss(at - a + b) + loss(at - a - b))
        / (4 * a.sum() * b.sum())
        for b in step
    ]
    for a in step
]
exact_errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
for name, exact_value, exact_error in zip(("mu", "log_tau"), at, exact_errors, strict=True):
    value, error = float(larger.theta[name]), float(larger.standard_errors()[name])
    simulation = float(larger.simulation_errors()[name])
    print(
        f"{name:8s} {value:.4f} +- {simulation:.4f} (exact {exact_value:.4f}), "
        f"standard error {error:.4f} (exact {exact_error:.4f})"
    )
    assert abs(value - exact_value) < 4 * simulation
    assert abs(error / exact_error - 1) < 0.02

# The evidence of every fit, against the closed form at its own theta. A thousandth is what the last
# scoring step may leave, since the likelihood is no exact parabola.
for fit in [result, *fits]:
    off = fit.log_evidence - exact(float(fit.theta["mu"]), float(np.exp(fit.theta["log_tau"])), s)
    assert abs(off) < 4 * fit.log_evidence_error + 1e-3
    print(f"log evidence, boundary: off by {off:+.4f} +- {fit.log_evidence_error:.0e}")
off = larger.log_evidence - exact(float(larger.theta["mu"]), top, s / 3)
assert abs(off) < 4 * larger.log_evidence_error + 1e-3
print(f"log evidence, inside:   off by {off:+.4f} +- {larger.log_evidence_error:.0e}")
for tau, fit in zip(grid, held, strict=True):
    assert abs(float(fit.theta) - best_mu(tau, s)) < 4 * float(fit.simulation_errors())
    assert abs(fit.log_evidence - profile(tau, s)) < 4 * fit.log_evidence_error + 1e-3

# The posterior of each effect, 5 errors of a weighted mean of at least 200 effective draws.
for fit, errors in ((result, s), (larger, s / 3)):
    tau = float(np.exp(fit.theta["log_tau"]))
    weight = tau**2 / (tau**2 + errors**2)
    mean = weight * y + (1 - weight) * float(fit.theta["mu"])
    assert fit.ess.min() > 200
    assert np.all(np.abs(moments(fit)[0] - mean) < 5 * np.sqrt(weight) * errors / np.sqrt(200))

exact_limit = optimize.brentq(lambda t: profile(1.0, s) - profile(t, s) - 1.353, 1.0, 25.0)
print(f"95 % limit of tau: {limit:.2f} (exact {exact_limit:.2f})")
assert abs(limit - exact_limit) < 0.1  # by lines between five points of a curve
