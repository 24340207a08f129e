# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Gaussian process for counts
#
# A century of coal-mining disasters: a rate that changes smoothly, with the length-scale and the
# amplitude of the change found by maximum marginal likelihood.
#
# The counts are Poisson, and the log of their rate is a Gaussian process in time:
#
# $$y_i \mid f \sim \mathrm{Poisson}(3\, e^{f(t_i)}), \qquad
#   f(t) \sim \mathcal{GP}\big(m,\ a^2 k(|t - t'| / \ell)\big), \qquad k(d) = e^{-d^2/2}.$$
#
# The hyper-parameters $\theta = (m, a, \ell)$ are the level of the log-rate, the amplitude of its
# changes, and how many years one takes. With Gaussian noise $p_\theta(y)$ would have a closed form. With
# counts it has none, and the usual substitutes (Laplace's method, variational bounds,
# expectation propagation) maximise an approximation to it. jalax maximises $p_\theta(y)$ itself, and
# says what it is.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize
import scipy.stats
from scipy.special import gammaln

import jalax

# %% [markdown]
# ## Data
#
# Disasters in British coal mines with ten or more dead, for each year from 1851 to 1961 (Jarrett,
# *Biometrika* 66, 1979), here summed over three years.

# %%
years = (
    "454014340633402633545314415534252234213221111300101100310"
    "322011101010002100011023311211112420014000100000100101"
)
counts = np.array([int(c) for c in years]).reshape(37, 3).sum(axis=1)
times = 1851 + 3 * np.arange(37) + 1.5
print(f"{counts.sum()} disasters in {counts.size} periods of three years")

# %% [markdown]
# ## Model
#
# The latent is *whitened*: $f = m + a L v$ with $v \sim \mathcal N(0, I)$ and $L L^\top$ the matrix of
# $k$. The prior of $v$ does not depend on $\theta$, and its coordinates have one scale. A latent
# $f$ would have a covariance that is nearly singular (neighbouring rates are nearly equal) and changes
# with $\ell$. The number $10^{-4}$ on the diagonal keeps the Cholesky factor stable in float32, and is
# part of the model: a little independent noise on $f$.

# %%
log_normal = jax.scipy.stats.norm.logpdf
log_poisson = jax.scipy.stats.poisson.logpmf


def log_rate(theta, v, times):
    distance = (times[:, None] - times) / theta["lengthscale"]
    kernel = jnp.exp(-(distance**2) / 2) + 1e-4 * jnp.eye(times.size)
    return theta["level"] + theta["amplitude"] * (jnp.linalg.cholesky(kernel) @ v)


def log_joint(theta, v, data):
    f = log_rate(theta, v, data["times"])
    return log_normal(v).sum() + log_poisson(data["counts"], 3 * jnp.exp(f)).sum()


def constrain(free):
    return {
        "level": free["level"],
        "amplitude": jnp.exp(free["amplitude"]),
        "lengthscale": jnp.exp(free["lengthscale"]),
    }


data = {"times": jnp.asarray(times), "counts": jnp.asarray(counts)}
model = jalax.Model(log_joint, latent=jnp.zeros(37), data=data, constrain=constrain)
start = {"level": 0.0, "amplitude": 0.0, "lengthscale": 3.0}  # a = 1, and 20 years
result = jalax.fit(model, start, key=jax.random.key(0))
result

# %% [markdown]
# Is there anything to explain? A constant rate is the limit $a = 0$. Its likelihood is a product of
# Poisson probabilities with one rate, the mean count, and needs no integral.

# %%
constant = scipy.stats.poisson.logpmf(counts, counts.mean()).sum()
print(f"log evidence, Gaussian process: {result.log_evidence:9.3f}")
print(f"log-likelihood, constant rate:  {constant:9.3f}")

# %% [markdown]
# Two more parameters for so large a difference leave no doubt. Differences of a few units between models with
# different numbers of $\theta$ need a prior on $\theta$: see
# [Evidence you can trust](../evidence.md).
#
# ## The rate, and the evidence surface
#
# On the right is $\log p_\theta(y)$ around its maximum, computed with NumPy only: for each
# $\theta$ the mode of $v$ by Newton's method, then importance sampling with a Student-t there. The
# surface is drawn at the fitted level. It falls off slowly towards long length-scales with large
# amplitudes (a slow, strong change) and fast towards a small amplitude (no change).

# %%


student = scipy.stats.multivariate_t(loc=np.zeros(37), shape=np.eye(37), df=30)


def estimate(free, z):
    """log p_theta(y) from draws of a Student-t, put on the mode; free: level, log a, log l."""
    level, amplitude, lengthscale = free[0], np.exp(free[1]), np.exp(free[2])
    kernel = np.exp(-(((times[:, None] - times) / lengthscale) ** 2) / 2)
    factor = amplitude * np.linalg.cholesky(kernel + 1e-4 * np.eye(37))

    def log_p(v):
        f = np.log(3) + level + v @ factor.T
        return (counts * f - np.exp(f) - gammaln(counts + 1)).sum(-1) - (v**2).sum(-1) / 2

    v = np.zeros(37)
    for _ in range(50):  # the posterior is log-concave: Newton, halved while it overshoots
        rate = 3 * np.exp(level + factor @ v)
        precision = np.eye(37) + (factor.T * rate) @ factor
        step = np.linalg.solve(precision, factor.T @ (counts - rate) - v)
        while log_p(v + step) < log_p(v) - 1e-9:
            step = step / 2
        v = v + step
        if np.abs(step).max() < 1e-8:
            break
    root = np.linalg.cholesky(precision)
    log_q = student.logpdf(z) + np.log(np.diagonal(root)).sum()
    log_w = log_p(v + z @ np.linalg.inv(root)) - 37 / 2 * np.log(2 * np.pi) - log_q
    return np.logaddexp.reduce(log_w) - np.log(log_w.size)


blocks = [student.rvs(1000, random_state=seed) for seed in range(4)]

fitted = [float(result.theta["level"])]
fitted += [float(np.log(result.theta[name])) for name in ("amplitude", "lengthscale")]
amplitudes, lengthscales = np.geomspace(0.3, 2.0, 16), np.geomspace(4, 40, 16)
surface = [
    [estimate((fitted[0], np.log(a), np.log(s)), blocks[0]) for s in lengthscales]
    for a in amplitudes
]

# %%
rate = result.expectation(lambda v: jnp.exp(log_rate(result.theta, v, data["times"])))
draws = result.resample(jax.random.key(1), 2000)
rates = np.exp(jax.vmap(lambda v: log_rate(result.theta, v, data["times"]))(draws))
low, high = np.quantile(rates, [0.05, 0.95], axis=0)

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
left.bar(times, counts / 3, width=2.6, color="0.8", label="observed")
left.fill_between(times, low, high, alpha=0.3, label="90 % band")
left.plot(times, rate, label="posterior mean")
left.set(xlabel="year", ylabel="disasters a year")
left.legend()
levels = result.log_evidence - np.array([16, 8, 4, 2, 1, 0.25])
lines = right.contour(lengthscales, amplitudes, surface, levels=levels, colors="0.5", linestyles="-")
right.clabel(lines, fmt=lambda v: f"{v - result.log_evidence:g}", fontsize=8, colors="0.3")
intervals = result.confidence_intervals()
x, y = result.theta["lengthscale"], result.theta["amplitude"]
right.plot(intervals["lengthscale"], [y, y], "k-", lw=1)
right.plot([x, x], intervals["amplitude"], "k-", lw=1)
right.plot(x, y, "ko", label="fit, 95 %")
right.set(xscale="log", yscale="log", xlabel="length-scale, years", ylabel="amplitude")
right.set_xticks([5, 10, 20, 40], ["5", "10", "20", "40"])
right.set_yticks([0.3, 0.5, 1, 2], ["0.3", "0.5", "1", "2"])
right.minorticks_off()
right.set_title("log evidence, less that of the fit", fontsize=10)
right.legend(loc="lower right");

# %% [markdown]
# ## Check
#
# SciPy maximises the NumPy estimate over all three parameters, once for each of four independent blocks of
# draws. Within a block the draws are the same for every $\theta$, so that its estimate is smooth. The
# spread over the blocks is the check's own Monte-Carlo error. (The method is a cousin of the one by which
# jalax computes the last digits of the evidence, in other code, other precision and other draws.
# What both could miss, a second mode, a log-concave posterior does not have.)

# %%
found, values = [], []
for block in blocks:
    best = scipy.optimize.minimize(
        lambda free, block=block: -estimate(free, block),
        [0.0, 0.0, 3.0],
        options={"gtol": 1e-4},
    )
    found.append([best.x[0], np.exp(best.x[1]), np.exp(best.x[2])])
    values.append(-best.fun)
names = ("level", "amplitude", "lengthscale")
check, check_error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(4)
theta = np.array([result.theta[name] for name in names])
simulation = np.array([result.simulation_errors()[name] for name in names])
value, value_error = np.mean(values), np.std(values, ddof=1) / np.sqrt(4)
evidence, evidence_error = result.log_evidence, result.log_evidence_error

print("                  jalax              NumPy")
for i, name in enumerate(names):
    ours = f"{theta[i]:9.4f} +- {simulation[i]:.4f}"
    print(f"{name:12s} {ours}  {check[i]:9.4f} +- {check_error[i]:.4f}")
print(f"log evidence {evidence:9.4f} +- {evidence_error:.4f}  {value:9.4f} +- {value_error:.4f}")

assert np.all(np.abs(theta - check) < 4 * np.hypot(simulation, check_error))
assert abs(evidence - value) < 4 * np.hypot(evidence_error, value_error)
