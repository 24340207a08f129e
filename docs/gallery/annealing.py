# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Annealing: a normalising constant on its own
#
# The Langevin moves and their weights without any parameter to fit: particles are carried from a
# Gaussian to a density with four modes, and the integral of that density comes out.
#
# `jalax.fit` moves particles along the densities $p_{\theta_k}(x, y)$ that an optimiser passes
# through. `jalax.transport` does the same along any path of densities that you write down. The
# classic use is annealing. The density of interest, unnormalised, is
#
# $$
# \gamma(x) = \sum_{j=1}^4 a_j \exp\Big(-\frac{|x - m_j|^2}{2 s_j^2}\Big), \qquad
# x \in \mathbb{R}^2,
# \qquad Z = \int \gamma(x)\,dx = \sum_j 2 \pi a_j s_j^2 ,
# $$
#
# four hills of different height and width. The path leads to it from a wide Gaussian $q$:
#
# $$
# \log \gamma_t(x) = (1 - t) \log q(x) + t \log \gamma(x), \qquad t = 0, \dots, 1 .
# $$

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import jalax

heights = jnp.array([1.0, 0.5, 2.0, 1.0])
centres = jnp.array([[-3.0, -1.0], [0.0, 3.0], [2.5, -2.0], [3.5, 2.0]])
widths = jnp.array([0.6, 1.0, 0.4, 0.8])


def log_gamma(x):
    distance = jnp.sum((x - centres) ** 2, axis=1)
    return logsumexp(jnp.log(heights) - distance / (2 * widths**2))


def log_q(x):
    return norm.logpdf(x, 0.0, 4.0).sum()


def log_density(t, x):
    return (1 - t) * log_q(x) + t * log_gamma(x)


# %% [markdown]
# ## The path
#
# Particles start as draws from $q$, whose integral is one, so that the log-evidence along the
# path is $\log Z_t$ itself. There are 400 densities, with more of them near $t = 0$ where the
# density changes fastest, and one Langevin step from each to the next.

# %%
schedule = jnp.linspace(0.0, 1.0, 400) ** 2
start = 4.0 * jax.random.normal(jax.random.key(0), (4000, 2))


def anneal(key, step_size, **options):
    return jalax.transport(log_density, schedule, start, key=key, step_size=step_size, **options)


path = anneal(jax.random.key(1), 0.05)
exact = jnp.log(jnp.sum(2 * jnp.pi * heights * widths**2))
print(f"log Z: estimate {path.log_evidence[-1]:.3f}, exact {exact:.3f}")
print(f"effective sample size at the end {path.ess[-1]:.0f} of 4000,")
print(f"resampled {int(path.resampled.sum())} times on the way")

# %% [markdown]
# In two dimensions every $Z_t$ is a sum over a fine grid, so that the whole curve can be
# compared, not only its end.

# %%
axis = np.linspace(-18, 18, 601)
grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
on_grid = np.asarray(jax.vmap(log_gamma)(grid)), np.asarray(jax.vmap(log_q)(grid))


def log_z(t):
    values = (1 - t) * on_grid[1] + t * on_grid[0]
    return np.log(np.sum(np.exp(values - values.max()))) + values.max() + 2 * np.log(0.06)


fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
drawn = jax.random.choice(jax.random.key(2), path.particles, (600,), p=path.weights)
shown = np.linspace(-6, 6, 100)
heat = jax.vmap(jax.vmap(lambda a, b: log_gamma(jnp.array([a, b])), (0, None)), (None, 0))
left.contour(shown, shown, np.exp(heat(shown, shown)), levels=6, cmap="Greys")
left.plot(*start[:300].T, ".", color="tab:orange", markersize=2, label="start")
left.plot(*drawn.T, ".", markersize=3, label="end, drawn by weight")
left.set(xlim=(-6, 6), ylim=(-6, 6), title="particles and density")
left.legend(loc="upper left", fontsize=8)
some = np.arange(0, 400, 15)
right.plot(schedule, path.log_evidence, linewidth=3, alpha=0.5, label="transport")
right.plot(schedule[some], [log_z(t) for t in schedule[some]], "k.", label="sum over a grid")
right.set(xlabel="t", ylabel="log Z", title="the integral along the path")
right.legend()
plt.show()

# %% [markdown]
# ## Any step size
#
# A Langevin step with a finite step size does not keep its density, and particles that have
# moved 400 times from one density to the next lag behind. The weights correct for both, exactly
# in expectation (Proposition 1, [The mathematics](../mathematics.md)): a poor step size makes
# them uneven, not wrong. The same cloud without its weights is wrong. Compare the share of the
# particles on the hill at $(2.5, -2)$, the narrowest of the four.


# %%
def on_third_hill(x):
    return jnp.argmin(jnp.sum((x - centres) ** 2, axis=1) / widths**2) == 2


share = np.asarray(jax.vmap(on_third_hill)(grid))
density = np.exp(on_grid[0])
true_share = density[share].sum() / density.sum()
print("step size   log Z             ESS    share on the hill: weighted  unweighted   exact")
for step_size in (0.002, 0.01, 0.05, 0.15):
    one = anneal(jax.random.key(3), step_size, resample_below=0.0)
    there = jax.vmap(on_third_hill)(one.particles)
    weighted, plain = jnp.sum(one.weights * there), there.mean()
    print(
        f"{step_size:9}   {one.log_evidence[-1]:.3f} ({exact:.3f})  {one.ess[-1]:6.0f}"
        f"    {weighted:24.3f} {plain:11.3f} {true_share:7.3f}"
    )

# %% [markdown]
# Nothing was resampled in this table, so that the unweighted column is what Langevin steps do by
# themselves.
#
# ## How sure?
#
# Run it again with other keys, or ask one run: with multinomial resampling the genealogy of the
# particles gives a standard error.

# %%
single = anneal(jax.random.key(4), 0.05, resample=jalax.resampling.multinomial)
print(f"one run: {single.log_evidence[-1]:.3f} ± {single.log_evidence_error():.3f}")


def replicate(key):
    key_start, key_path = jax.random.split(key)
    fresh = 4.0 * jax.random.normal(key_start, (1000, 2))
    options = {"key": key_path, "step_size": 0.05}
    return jalax.transport(log_density, schedule, fresh, **options).log_evidence[-1]


log_zs = np.array([replicate(key) for key in jax.random.split(jax.random.key(5), 40)])
print(f"40 runs of 1,000 particles: standard deviation of log Z {log_zs.std():.3f}")

# %% [markdown]
# ## Check
#
# It is $\hat Z$ that is unbiased, not its logarithm, so the 40 estimates are averaged as ratios
# to the exact $Z$. The exact value is the closed form at the top, and the grid agrees with it.

# %%
assert abs(log_z(1.0) - exact) < 1e-3
ratio = np.exp(log_zs - float(exact))
error = ratio.std(ddof=1) / np.sqrt(len(ratio))
print(f"mean of Z estimate / Z: {ratio.mean():.4f} ± {error:.4f}")
assert abs(ratio.mean() - 1) < 4 * error
assert abs(single.log_evidence[-1] - exact) < 4 * single.log_evidence_error()
curve = np.array([log_z(t) for t in schedule[some]])
worst = np.abs(np.asarray(path.log_evidence)[some] - curve).max()
print(f"largest difference along the path: {worst:.3f}")
assert worst < 4 * single.log_evidence_error()
