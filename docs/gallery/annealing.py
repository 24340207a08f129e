# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Annealing: a normalising constant
#
# No model and no parameters: particles follow a path of densities, and their weights give the
# normalising constant all along it, exactly on average, whatever the step size.
#
# Take densities $e^{-U_k(x)}$, $k = 0, \dots, K$, known up to their constants
# $Z_k = \int e^{-U_k(x)}\,dx$, and draws of the first. `jalax.transport` takes one unadjusted Langevin step
# with each density and gives every particle a log-weight $A_k$:
#
# $$X_{k+1} = X_k - h \nabla U_k(X_k) + \sqrt{2h}\,\xi_{k+1}, \qquad
#   E\big[e^{A_k}\big] = \frac{Z_k}{Z_0}, \qquad
#   E\big[e^{A_k} f(X_k)\big] = \frac{Z_k}{Z_0}\, E_k[f].$$
#
# Langevin particles alone are wrong twice. They lag behind the moving density, and each step has an
# error of its own. The weights correct both (Proposition 1 of the paper, Jarzynski's equality in
# discrete time). A fit by `jalax.JALAEM` does the same, with the path of $\theta$ in the place of
# a schedule.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.integrate

import jalax

# %% [markdown]
# ## A path
#
# From a Gaussian with standard deviation 2 to a tilted double well, by a schedule $t$ from 0 to 1:
#
# $$U_t(x) = -(1 - t) \log \mathcal N(x; 0, 2^2) + t\,\Big(\frac{(x^2 - 4)^2}{2} - \frac x4\Big).$$
#
# The Gaussian is normalised, $Z_0 = 1$, so that $\log Z_t / Z_0$ is $\log Z_t$. Of the two wells
# of the last density the right one holds more. Half of the particles start on the left, and once the
# barrier has grown they stay there: only the weights can tell what the wells are worth.


# %%
def log_density(t, x):
    gaussian = -(x**2) / 8 - 0.5 * jnp.log(8 * jnp.pi)
    return (1 - t) * gaussian - t * ((x**2 - 4) ** 2 / 2 - x / 4)


schedule = jnp.linspace(0, 1, 101)
start = 2 * jax.random.normal(jax.random.key(0), (40_000,))
path = jalax.transport(
    log_density,
    schedule,
    start[:4000],
    key=jax.random.key(1),
    step_size=0.01,
    resample=jalax.multinomial,
)
error = path.log_evidence_error()
print(f"log Z = {path.log_evidence[-1]:.4f} +- {error:.4f}")
print(f"effective sample size {path.ess[-1]:.0f} of 4000 at the end")

# %% [markdown]
# `Transport.log_evidence` has one number for each density of the path. Its error at the end is
# read off the genealogy of this one run, that is, how many of the first particles have
# descendants (Lee and Whiteley, 2018). That needs multinomial resampling. The default,
# `jalax.systematic`, is less noisy; its error is found by running several keys.
#
# In one dimension quadrature gives every $Z_t$. On the right are the weighted particles at the end.

# %%


def integral(f, t):
    """The integral of f(x) exp(-U_t(x)) by quadrature, in NumPy's double precision."""

    def value(x):
        gaussian = -(x**2) / 8 - 0.5 * np.log(8 * np.pi)
        return f(x) * np.exp((1 - t) * gaussian - t * ((x**2 - 4) ** 2 / 2 - x / 4))

    return scipy.integrate.quad(value, -15, 15, points=[-2, 0, 2], limit=200)[0]


def one(x):
    return 1.0


grid = np.linspace(0, 1, 21)
exact = np.log([integral(one, t) for t in grid])

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
left.plot(schedule, path.log_evidence, label="transport, one run")
left.plot(grid, exact, "kx", label="quadrature")
left.set(xlabel="t", ylabel="log $Z_t$")
left.legend()
x = np.linspace(-4, 4, 400)
density = np.exp(log_density(1.0, x)) / integral(one, 1.0)
bins = np.linspace(-4, 4, 65)
right.hist(path.particles, bins, density=True, weights=path.weights, color="0.75", label="weighted")
right.plot(x, density, "k-", lw=1, label="density at $t = 1$")
right.set(xlabel="x")
right.legend(loc="upper left");

# %% [markdown]
# ## Any step size
#
# Now without resampling: the particles are then plain Langevin particles, and the weights are all
# that is added. For each step size the table has the estimate of $Z_1$ over its exact value, and two means
# under the last density with and without the weights: the share of the right well, and the energy
# $(x^2 - 4)^2/2$ above the wells.

# %%
z = integral(one, 1.0)
functions = {
    "right well": lambda x: 1.0 * (x > 0),
    "energy": lambda x: (x**2 - 4) ** 2 / 2,
}
truth = {name: integral(f, 1.0) / z for name, f in functions.items()}

rows = []
for h in (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06):
    run = jalax.transport(
        log_density, schedule, start, key=jax.random.key(2), step_size=h, resample_below=0.0
    )
    x, w, ess = np.asarray(run.particles), np.asarray(run.weights), float(run.ess[-1])
    ratio = float(np.exp(run.log_evidence[-1])) / z
    row = {"h": h, "ess": ess, "Z": (ratio, ratio * np.sqrt(1 / ess - 1 / x.size))}
    for name, f in functions.items():
        mean = w @ f(x)
        row[name] = mean, np.sqrt(np.sum((w * (f(x) - mean)) ** 2))
        row[name + ", no weights"] = f(x).mean(), f(x).std() / np.sqrt(x.size)
    rows.append(row)

print("                                    right well                energy")
print("h         ESS    Z / exact       weights          none    weights        none")
for row in rows:
    line = f"{row['h']:.3f}  {row['ess']:6.0f}  {row['Z'][0]:.3f} +- {row['Z'][1]:.3f}"
    line += f"  {row['right well'][0]:.4f} +- {row['right well'][1]:.4f}"
    line += f"  {row['right well, no weights'][0]:.3f}"
    line += f"  {row['energy'][0]:.3f} +- {row['energy'][1]:.3f}"
    print(line + f"  {row['energy, no weights'][0]:.3f}")
print(f"exact          1                {truth['right well']:.4f}{truth['energy']:24.3f}")

# %% [markdown]
# With the weights every row is right within its error. Without them none is, and there is no good
# step size to find: short steps lag behind, long ones are too crude.
#
# *Exact on average* is not *precise*. At the longest step the effective sample size falls to a small
# part of 40,000. The mean of $e^{A}$ is then carried by particles too rare to be drawn, and the error
# in the table, an estimate itself, is not to be believed. The effective sample size says so. A middling
# step is best, and resampling helps on longer paths.

# %%
steps = [row["h"] for row in rows[:-1]]
fig, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, name in zip(axes, functions, strict=True):
    mean, width = np.transpose([row[name] for row in rows[:-1]])
    ax.errorbar(steps, mean, 2 * width, fmt="o", capsize=3, label="weighted, ± 2 errors")
    plain = [row[name + ", no weights"][0] for row in rows[:-1]]
    ax.plot(steps, plain, "s--", color="C1", mfc="none", label="without weights")
    ax.axhline(truth[name], color="k", lw=1, label="exact")
    ax.set(xscale="log", xlabel="step size h", title=name)
    ax.set_xticks([0.002, 0.005, 0.01, 0.02, 0.04], ["0.002", "0.005", "0.01", "0.02", "0.04"])
    ax.minorticks_off()
axes[1].legend();

# %% [markdown]
# ## Check
#
# Against quadrature: the whole path of the first run, then every row of the table whose effective
# sample size is above 1000. The last assertion makes sure that the weights were needed.

# %%
gap = np.interp(grid, schedule, path.log_evidence) - exact
print(f"largest difference along the path {np.abs(gap).max():.4f}, error at its end {error:.4f}")
assert np.abs(gap).max() < 4 * error

for row in (row for row in rows if row["ess"] > 1000):
    assert abs(row["Z"][0] - 1) < 4 * row["Z"][1]
    for name in functions:
        mean, width = row[name]
        plain, plain_width = row[name + ", no weights"]
        assert abs(mean - truth[name]) < 4 * width
        assert abs(plain - truth[name]) > 10 * plain_width
print(f"{sum(row['ess'] > 1000 for row in rows)} step sizes agree with quadrature")
