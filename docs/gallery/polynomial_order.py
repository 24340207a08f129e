# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # The order of a polynomial, by evidence
#
# Eight polynomials compete for one data set. What the evidence at the fitted parameters can
# decide, where it misleads, and what a declared prior on the parameters changes.
#
# A polynomial of order $p$ is observed with noise. Its $p + 1$ coefficients are latent, the size
# of the noise and the precision of the coefficients are parameters,
# $\theta = (\log \sigma^2, \log \alpha)$:
#
# $$w \sim \mathcal{N}(0, \alpha^{-1} I), \qquad
#   y_i \mid w \sim \mathcal{N}\Big(\sum_{j=0}^{p} w_j x_i^j,\ \sigma^2\Big).$$
#
# Least squares always prefers the largest $p$. The evidence
# $p_\theta(y) = \int p_\theta(y \mid w)\, p_\theta(w)\, dw$ does not: a larger polynomial spreads
# its prior over more curves, and gives each less. This is the set-up of the [paper](../paper.md)'s
# third experiment: $w_j \sim \mathcal{N}(0, 1)$, noise with standard deviation 7.5, 100 points.
# The truth has order 3. The seed was picked to show a disagreement; how often that happens is at
# the end.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize, special, stats

import jalax

rng = np.random.default_rng(5)
x = rng.uniform(-2.5, 2.5, 100)
truth = rng.normal(size=4)
y = np.vander(x, 4, increasing=True) @ truth + 7.5 * rng.normal(size=100)

# %% [markdown]
# ## Eight fits
#
# `jalax.models.polynomial_regression(x, y, order)` is this model. It has another number of latents
# for each order, and would compile a program for each. To compile once, all orders here get nine
# columns, $1, x, \ldots, x^8$, with zeros for those beyond $p$. A weight on a column of zeros does
# not touch the data: its prior integrates to one, and the evidence is that of the smaller model.

# %%
powers = np.vander(x, 9, increasing=True)
orders = np.arange(1, 9)
fits = {}
for p in orders:
    columns = np.where(np.arange(9) <= p, powers, 0.0)
    model = jalax.models.gaussian_regression(columns, y)
    fits[f"order {p}"] = jalax.fit(model, key=jax.random.key(int(p)))

for name, fit in fits.items():
    log_variance, log_precision = fit.theta
    error = float(fit.standard_errors()[1])
    print(
        f"{name}: {fit.status}, log sigma^2 {log_variance:.2f}, "
        f"log alpha {log_precision:5.2f} (standard error {error:.2f})"
    )

# %% [markdown]
# ## The plug-in evidence
#
# `jalax.compare` puts fits side by side, by the evidence at each one's own $\hat\theta$. This is a
# maximised number, a *plug-in* evidence. `difference` is the log Bayes factor against the best,
# with its simulation error. All eight models have two parameters, so `compare` also gives
# probabilities, for equal odds in advance.

# %%
plug_in = jalax.compare(fits)
plug_in

# %% [markdown]
# The order with the highest value is not the true one, and large orders do surprisingly well. The
# fits above tell why: $\log \alpha$ grows with the order. The order-8 polynomial may only be so
# large because its coefficients were told, after looking at the data, to be tiny. Nothing charges
# it for that choice.
#
# ## The full evidence
#
# What would charge for it is a prior on $\theta$, declared before looking. The full evidence
# integrates $\theta$ out under it. `jalax.compare` does this by Laplace's method, with the
# information about $\theta$ that the fit ended with. Here: $\log \alpha \sim \mathcal{N}(0, 2^2)$
# (coefficients with a standard deviation between 0.14 and 7.4, two standard deviations either
# way), and $\log \sigma^2 \sim \mathcal{N}(4, 2^2)$, which matters little, since all orders agree
# about the noise.

# %%
log_normal = jax.scipy.stats.norm.logpdf


def theta_log_prior(theta):
    log_variance, log_precision = theta
    return log_normal(log_variance, 4.0, 2.0) + log_normal(log_precision, 0.0, 2.0)


full = jalax.compare(fits, theta_log_prior=theta_log_prior)
full

# %% [markdown]
# Now the true order leads, and the large ones are out. One caution about this table: its errors
# are those of the plug-in evidence. The correction for $\theta$ has errors of its own, Laplace's
# approximation and the noise of the information it uses, which are not in them. The check below
# shows how large they are.
#
# On the left, the polynomial of order 3 (posterior mean, and the band between the 5 % and 95 %
# points of the posterior) and that of order 8. On the right, both evidences by order; the lines
# are exact. Where the prior pulls $\theta$ far away from its estimate, as for the large orders,
# Laplace's method is rough, and says less for them than there is.


# %%
def log_marginal(theta, p):  # closed form: y ~ N(0, sigma^2 I + X X' / alpha), X of p + 1 columns
    X = powers[:, : p + 1]
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    along = U.T @ y
    rest = y @ y - along @ along
    log_variance, log_precision = (np.asarray(t, float) for t in theta)
    variances = np.exp(log_variance)[..., None] + s**2 * np.exp(-log_precision)[..., None]
    total = (np.log(2 * np.pi * variances) + along**2 / variances).sum(axis=-1)
    total += (len(y) - len(s)) * (np.log(2 * np.pi) + log_variance)
    return -0.5 * (total + rest * np.exp(-log_variance))


def integrated(p):  # over theta, by a fine grid: no Laplace approximation
    t, step_t = np.linspace(3.0, 5.5, 101, retstep=True)
    a, step_a = np.linspace(-10.0, 16.0, 261, retstep=True)
    t, a = np.meshgrid(t, a)
    log_prior = stats.norm.logpdf(t, 4.0, 2.0) + stats.norm.logpdf(a, 0.0, 2.0)
    return special.logsumexp(log_marginal((t, a), p) + log_prior) + np.log(step_t * step_a)


def maximum(p):
    found = optimize.minimize(lambda t: -log_marginal(t, p), [4.0, 0.0], method="BFGS")
    return found.x, -found.fun


exact_plug_in = np.array([maximum(p)[1] for p in orders])
exact_full = np.array([integrated(p) for p in orders])

fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.6), layout="constrained")
at = np.linspace(-2.5, 2.5, 100)
left.plot(x, y, ".", color="0.6", ms=4)
left.plot(at, np.vander(at, 4, increasing=True) @ truth, "k:", label="truth")
for p, style in ((3, "-"), (8, "--")):
    draws = np.asarray(fits[f"order {p}"].resample(jax.random.key(0), 400))[:, : p + 1]
    curves = draws @ np.vander(at, p + 1, increasing=True).T
    line = left.plot(at, curves.mean(axis=0), style, label=f"order {p}")[0]
    if p == 3:
        low, high = np.quantile(curves, [0.05, 0.95], axis=0)
        left.fill_between(at, low, high, color=line.get_color(), alpha=0.2, lw=0)
left.set(xlabel="x", ylabel="y")
left.legend(frameon=False, fontsize="small")
for table, exact, marker, label in (
    (plug_in, exact_plug_in, "o", "plug-in"),
    (full, exact_full, "s", "full"),
):
    value = {row.name: row.difference for row in table.rows}
    line = right.plot(orders, exact - exact.max(), lw=0.9)[0]
    right.plot(
        orders,
        [value[f"order {p}"] for p in orders],
        marker,
        mfc="white",
        color=line.get_color(),
        label=label,
    )
right.set(xlabel="order of the polynomial", ylabel="log evidence, less the best")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Different numbers of parameters
#
# With equal numbers of $\theta$ the plug-in evidence at least treats the models alike. With
# unequal ones it does not: a parameter more can only raise a maximum. Take the polynomial of order
# 3 with $\alpha = 1$ known (as it was when the data were made) against the same with $\alpha$
# fitted. The first is a special case of the second, so its plug-in evidence cannot be higher,
# whatever the data.


# %%
def log_joint_known(log_variance, w, data):  # alpha = 1
    residual = data["y"] - data["X"] @ w
    sigma = jnp.exp(log_variance / 2)
    return log_normal(residual, 0.0, sigma).sum() + log_normal(w).sum()


data = {"X": jnp.asarray(powers[:, :4]), "y": jnp.asarray(y)}
known = jalax.fit(jalax.Model(log_joint_known, jnp.zeros(4), data), 1.0, key=jax.random.key(20))
both = {"alpha = 1": known, "alpha fitted": fits["order 3"]}
print(jalax.compare(both))

# %% [markdown]
# The table has no probabilities, and the note below it says why. Declare a prior for each,
# `theta_log_prior={"alpha = 1": ..., "alpha fitted": ...}`, and they come back.
#
# ## How often does it matter?
#
# One data set proves nothing. The reproduction of the paper's experiment
# ([experiments](../../experiments/README.md), "Model order selection") has 100 data sets for each
# of seven true orders and three sample sizes. There the converged plug-in evidence chooses no
# better than least squares with BIC (ratio of the mean absolute errors of the order 1.01), and the
# one with $\theta$ integrated out clearly better (0.63).
#
# ## Check
#
# For Gaussian errors everything is known in closed form (`log_marginal` above, in NumPy). SciPy
# gives the maximiser.

# %%
print("order   log alpha: jalax   SciPy    plug-in evidence: jalax       exact")
for p, fit in zip(orders, fits.values(), strict=True):
    best, _ = maximum(p)
    theta, simulation = np.asarray(fit.theta, float), np.asarray(fit.simulation_errors())
    exact = log_marginal(theta, p)
    print(
        f"{p:5d} {theta[1]:11.3f} +- {simulation[1]:.3f} {best[1]:7.3f}"
        f"{fit.log_evidence:18.4f} +- {fit.log_evidence_error:.4f} {exact:10.4f}"
    )
    assert fit.status == "converged"
    assert np.all(np.abs(theta - best) < 4 * simulation)
    low, high = fit.evidence.interval(0.9999)  # an error from eight shifts: Student's t
    assert low < exact < high

exact = stats.multivariate_normal(cov=np.eye(100) * 50.0 + powers[:, :4] @ powers[:, :4].T / 2.0)
assert np.isclose(exact.logpdf(y), log_marginal((np.log(50.0), np.log(2.0)), 3))  # the oracle

# %% [markdown]
# The full evidence has two further errors. "Laplace" is the same formula with exact derivatives:
# the distance to `compare` is the noise of the information, which a fit knows to two per cent or
# better at its end. "Integrated" has no Laplace approximation.


# %%
def laplace(p):  # and how much an information about log alpha that is off by one part moves it
    best, value = maximum(p)
    h = np.eye(2) * 0.01
    likelihood = np.array(
        [
            [
                -(
                    log_marginal(best + a + b, p)
                    - log_marginal(best + a - b, p)
                    - log_marginal(best - a + b, p)
                    + log_marginal(best - a - b, p)
                )
                / 4e-4
                for b in h
            ]
            for a in h
        ]
    )
    information = likelihood + np.eye(2) / 4.0
    gradient = -(best - [4.0, 0.0]) / 4.0
    value += stats.norm.logpdf(best, [4.0, 0.0], 2.0).sum() + np.log(2 * np.pi)
    value += gradient @ np.linalg.solve(information, gradient) / 2
    value -= np.linalg.slogdet(information)[1] / 2
    part = likelihood[1, 1] / information[1, 1]
    return value, part * (1 + gradient[1] ** 2 / information[1, 1]) / 2


print("order   compare    Laplace   integrated")
for p in orders:
    value = next(row.log_evidence for row in full.rows if row.name == f"order {p}")
    exact, sensitivity = laplace(p)
    print(f"{p:5d} {value:9.2f} {exact:10.2f} {exact_full[p - 1]:12.2f}")
    assert abs(value - exact) < 4 * (0.02 * sensitivity + 0.002)

best = full.rows[0].name
assert best == "order 3" and exact_full.argmax() == 2  # the same choice
assert all(row.probability is None for row in jalax.compare(both).rows)
