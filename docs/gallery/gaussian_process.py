# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Gaussian-process hyper-parameters: counts over time
#
# Coal-mining disasters in Britain, year by year: a Poisson rate whose logarithm is a Gaussian
# process. Its length scale and amplitude are found by maximum marginal likelihood.
#
# The counts are Jarrett's (*Biometrika* 66, 1979): explosions with ten or more deaths, 1851 to
# 1961. With a Gaussian likelihood the marginal likelihood of the hyper-parameters is a closed
# form. With counts it is an integral over the whole curve $f = (f_1, \dots, f_{111})$:
#
# $$
# f \sim N\big(m 1,\; a^2 K_\ell\big), \qquad y_i \mid f_i \sim \mathrm{Poisson}(e^{f_i}), \qquad
# p_\theta(y) = \int \prod_i \mathrm{Poisson}(y_i; e^{f_i})\; N(f;\, m 1, a^2 K_\ell)\, df ,
# $$
#
# with $\theta = (m, a, \ell)$ and the Matérn-3/2 kernel
# $K_\ell(t, t') = (1 + r) e^{-r}$, $r = \sqrt 3\, |t - t'| / \ell$. Most programs replace the
# integral by Laplace's or by a variational approximation, and maximise that. Here the integral
# itself is maximised.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.stats import norm, poisson

import jalax

# fmt: off
counts = np.array([
    4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5,
    2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1,
    0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 1, 4,
    0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])
# fmt: on
year = 1851.0 + np.arange(len(counts))


def root(lengthscale, time):
    """L with L L' = K; a ten-thousandth on the diagonal keeps the factorisation stable."""
    r = jnp.sqrt(3.0) * jnp.abs(time[:, None] - time) / lengthscale
    return jnp.linalg.cholesky((1 + r) * jnp.exp(-r) + 1e-4 * jnp.eye(len(time)))


def curve(theta, x, time):
    return theta["mean"] + theta["amplitude"] * root(theta["lengthscale"], time) @ x


def log_joint(theta, x, data):
    f = curve(theta, x, data["year"])
    return norm.logpdf(x).sum() + poisson.logpmf(data["counts"], jnp.exp(f)).sum()


# %% [markdown]
# The latent is not $f$ but $x$ with $f = m + a L x$ and $x \sim N(0, I)$. This *whitened* form
# is worth the habit: the prior of $x$ does not depend on $\theta$, all latents are on one scale,
# and a short length scale does not make the particles stiff. All 111 latents hang together, so
# it is a plain `jalax.Model`. Amplitude and length scale are positive: `constrain` maps their
# logarithms.

# %%
model = jalax.Model(
    log_joint,
    latent=jnp.zeros(len(counts)),
    data={"year": jnp.asarray(year), "counts": jnp.asarray(counts)},
    constrain=lambda free: {
        "mean": free["mean"],
        "amplitude": jnp.exp(free["log_amplitude"]),
        "lengthscale": jnp.exp(free["log_lengthscale"]),
    },
)
start = {"mean": 0.0, "log_amplitude": 0.0, "log_lengthscale": jnp.log(20.0)}
result = jalax.fit(model, start, key=jax.random.key(0))
result

# %% [markdown]
# The intervals of amplitude and length scale are wide, as they always are: one curve was
# observed, with few changes in it. They are computed for the logarithms and mapped, so that they
# stay positive.
#
# ## The rate
#
# A posterior draw of the latents is turned into a curve. The particles belong to the last
# $\theta$ of the path, which differs from the estimate by less than the simulation error.

# %%
draws = result.resample(jax.random.key(1), 400)
log_rate = jax.vmap(lambda x: curve(result.theta, x, year))(draws)
low, middle, high = jnp.exp(jnp.quantile(log_rate, jnp.array([0.05, 0.5, 0.95]), axis=0))

fig, ax = plt.subplots(figsize=(8, 3.5))
ax.bar(year, counts, color="lightgrey", width=1.0, label="disasters")
ax.fill_between(year, low, high, alpha=0.3, label="rate, 90%")
ax.plot(year, middle, label="rate, median")
ax.set(xlabel="year", ylabel="in one year")
ax.legend()
plt.show()
# %% [markdown]
# The rate falls around 1890, when safety rules and the miners' union came, and again in the last
# decades. The model was not told that there is a change point.
#
# ## Check
#
# The same integral in NumPy, in 64 bits, and without jalax: Newton's method finds the mode of
# $x$, and importance sampling around it gives $p_\theta(y)$. The proposal is Gaussian with the
# curvature at the mode; the posterior of log-concave counts has lighter tails, so its weights
# are bounded.

# %%
rng = np.random.default_rng(0)
noise = rng.normal(size=(5_000, len(counts)))
noise = np.concatenate([noise, -noise])
log_factorials = np.array([np.log(np.arange(1, n + 1)).sum() for n in counts]).sum()


def log_marginal(mean, log_amplitude, log_lengthscale):
    r = np.sqrt(3) * np.abs(year[:, None] - year) / np.exp(log_lengthscale)
    L = np.linalg.cholesky((1 + r) * np.exp(-r) + 1e-4 * np.eye(len(year)))
    L = np.exp(log_amplitude) * L
    x = np.zeros(len(year))
    for _ in range(50):
        rate = np.exp(mean + L @ x)
        precision = np.eye(len(x)) + L.T @ (rate[:, None] * L)
        step = np.linalg.solve(precision, L.T @ (counts - rate) - x)
        x = x + step / max(1.0, np.abs(step).max())
    C = np.linalg.cholesky(precision)
    around = x + np.linalg.solve(C.T, noise.T).T
    f = mean + around @ L.T
    log_p = f @ counts - np.exp(f).sum(1) - log_factorials - 0.5 * (around**2).sum(1)
    log_q = np.log(np.diag(C)).sum() - 0.5 * (noise**2).sum(1)
    log_w = log_p - log_q
    weights = np.exp(log_w - log_w.max())
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    return np.log(weights.mean()) + log_w.max(), error


theta = {name: float(number) for name, number in result.theta.items()}
at = np.array([theta["mean"], np.log(theta["amplitude"]), np.log(theta["lengthscale"])])
value, error = log_marginal(*at)
print(f"log p(y): jalax {result.log_evidence:.3f} ± {result.log_evidence_error:.3f},", end=" ")
print(f"NumPy {value:.3f} ± {error:.3f}")
assert abs(value - result.log_evidence) < 4 * np.hypot(error, result.log_evidence_error)

# %% [markdown]
# Is it the maximum? Half a standard error to either side, with the same noise: the slope, in
# units of one standard error, should be zero up to the simulation error, and the curve should
# bend down.

# %%
errors = result.standard_errors()
sizes = [float(errors[name]) for name in ("mean", "amplitude", "lengthscale")]
sizes = np.array(sizes) / [1.0, theta["amplitude"], theta["lengthscale"]]  # of the logarithms
for i, name in enumerate(("mean", "log amplitude", "log length scale")):
    step = np.zeros(3)
    step[i] = 0.5 * sizes[i]
    up, down = log_marginal(*(at + step))[0], log_marginal(*(at - step))[0]
    slope, bend = up - down, up + down - 2 * value  # g, and a quarter of the curvature
    print(f"{name:17} slope {slope:+.4f}, bend {bend:+.4f}")
    assert bend < 0
    assert abs(slope) < 0.15  # a fit promises theta within 0.05 standard errors; three times that
