# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Item response: how hard is a question?
#
# The two-parameter logistic model of a test: difficulties and discriminations of its items with
# standard errors, checked against marginal maximum likelihood by quadrature.
#
# In a test every person answers every item, right or wrong. Persons differ in an ability $x_i$ that
# nobody sees, items in how hard they are and in how well they tell the able from the less able:
#
# $$
# x_i \sim N(0, 1), \qquad
# \mathrm{logit}\, P(y_{ij} = 1 \mid x_i) = a_j x_i + c_j = a_j (x_i - b_j).
# $$
#
# The slope $a_j$ is the *discrimination* of item $j$, and $b_j = -c_j / a_j$ its *difficulty*, the
# ability at which half of the answers are right. The parameters are those of the items,
# $\theta = (a, c)$. Abilities are integrated out, because estimating one for each person
# together with the items would leave a bias that does not go away with more persons.
#
# The data are simulated, 400 persons and 10 items, so that the truth is known.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import jalax

num_persons, num_items = 400, 10
rng = np.random.default_rng(1)
true_slope = np.exp(0.35 * rng.normal(size=num_items))
true_difficulty = np.linspace(-1.8, 1.8, num_items)
ability = rng.normal(size=num_persons)
chance = 1 / (1 + np.exp(-true_slope * (ability[:, None] - true_difficulty)))
y = (rng.random(chance.shape) < chance).astype(float)

model = jalax.models.item_response(y)
result = jalax.fit(model, key=jax.random.key(0))
result

# %% [markdown]
# Every person is a group: an ability with its own 256 points and their weights, which do the work
# of the nodes in the quadrature below. An answer that was not given would be a NaN in `y`, and is
# left out of the likelihood.
#
# Difficulties follow from the parameters, and their standard errors by the delta method from the
# covariance of the estimate.

# %%
from jax.flatten_util import ravel_pytree

flat, unravel = ravel_pytree(result.theta)


def discrimination_and_difficulty(numbers):
    theta = unravel(numbers)
    return jax.numpy.stack([theta["slope"], -theta["intercept"] / theta["slope"]])


estimate = np.asarray(discrimination_and_difficulty(flat), float)
jacobian = np.asarray(jax.jacobian(discrimination_and_difficulty)(flat), float)
variance = np.einsum("kjp,pq,kjq->kj", jacobian, result.uncertainty.covariance, jacobian)
error = np.sqrt(variance)
truth = np.stack([true_slope, true_difficulty])

print("item  discrimination   s.e.  truth    difficulty   s.e.  truth")
for j in range(num_items):
    (a, b), (da, db), (ta, tb) = estimate[:, j], error[:, j], truth[:, j]
    print(f"{j:4d}  {a:14.2f}  {da:5.2f}  {ta:5.2f}  {b:12.2f}  {db:5.2f}  {tb:5.2f}")
inside = int(np.sum(np.abs(estimate - truth) < 1.96 * error))
print(f"95 % intervals that contain the truth: {inside} of {truth.size}")

# %%
fig, axes = plt.subplots(1, 3, figsize=(8.5, 3.2), layout="constrained")
x = np.linspace(-4, 4, 200)
for j, style in zip((0, 3, 6, 9), ("-", "--", "-.", ":"), strict=True):
    a, b = estimate[:, j]
    axes[0].plot(x, 1 / (1 + np.exp(-a * (x - b))), style, label=f"item {j}")
axes[0].set(xlabel="ability", ylabel="chance of a right answer")
axes[0].legend(fontsize=8)
for ax, row, name in zip(axes[1:], (0, 1), ("discrimination", "difficulty"), strict=True):
    ends = [truth[row].min(), truth[row].max()]
    ax.plot(ends, ends, "k:", lw=1)
    ax.errorbar(truth[row], estimate[row], yerr=1.96 * error[row], fmt="o", ms=4, capsize=2)
    ax.set(xlabel=f"{name}, truth", ylabel=f"{name}, estimate")

# %% [markdown]
# Left: characteristic curves of four items, steep where an item discriminates. Middle and right:
# estimates with 95 % intervals against the truth. The difficulty of an item with a flat curve is
# known least (item 3 here), since a small change of its slope moves the point of one half far.
#
# ## Check
#
# The same likelihood without Monte Carlo: the integral over a single ability by Gauss-Hermite
# quadrature with 61 points, maximised by SciPy's BFGS from the gradient (the classical *marginal
# maximum likelihood* of Bock and Lieberman).

# %%
from scipy.optimize import minimize

nodes, weights = np.polynomial.hermite_e.hermegauss(61)
log_weights = np.log(weights / weights.sum())


def minus_log_likelihood(numbers):
    """And its gradient, in the order intercepts, slopes."""
    c, a = numbers.reshape(2, num_items)
    logit = np.outer(nodes, a) + c
    each = y @ logit.T - np.logaddexp(0, logit).sum(axis=1) + log_weights
    log_z = np.logaddexp.reduce(each, axis=1)
    posterior = np.exp(each - log_z[:, None])
    right = posterior.T @ y  # expected right answers at each node
    missed = right - posterior.sum(axis=0)[:, None] / (1 + np.exp(-logit))
    return -log_z.sum(), -np.concatenate([missed.sum(axis=0), nodes @ missed])


start = np.concatenate([np.zeros(num_items), np.ones(num_items)])
best = minimize(minus_log_likelihood, start, jac=True, method="BFGS", options={"gtol": 1e-4})
assert best.success

found = np.asarray(flat, float)  # the intercepts, then the slopes: names in alphabetical order
simulation = np.asarray(ravel_pytree(result.simulation_errors())[0], float)
off = np.abs(found - best.x)
print(f"largest difference of a parameter from quadrature: {off.max():.4f}")
print(f"in simulation errors: {np.max(off / simulation):.2f}")
assert np.all(off < 4 * simulation)

at_estimate = -minus_log_likelihood(found)[0]
print(f"log-likelihood at the estimate: quadrature {at_estimate:.3f}, ", end="")
print(f"jalax {result.log_evidence:.3f} +- {result.log_evidence_error:.3f}")
assert abs(result.log_evidence - at_estimate) < 4 * result.log_evidence_error
