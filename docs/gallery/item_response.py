# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # Item response: how hard is a question, and how well does it separate?
#
# The two-parameter logistic model of a test: 400 persons answer 12 questions. Discriminations and
# difficulties with standard errors, and the ability of each person.
#
# Person $i$ has an ability $x_i$ that nobody sees. Question $j$ is answered rightly with
# probability
#
# $$
# P(y_{ij} = 1 \mid x_i) = \frac{1}{1 + e^{-(a_j x_i + c_j)}}, \qquad x_i \sim N(0, 1) .
# $$
#
# The slope $a_j$ says how well the question tells able from less able persons (its
# *discrimination*), and $b_j = -c_j / a_j$ at which ability half of the answers are right (its
# *difficulty*). The persons are independent given the questions, so each is a group with one
# latent number, and its own particles and weights. All 24 parameters are fitted at once, by
# *marginal* maximum likelihood: the abilities are integrated out, which is what makes the
# estimates consistent as persons are added.
#
# The answers are simulated, so that the truth is known. Difficulties run from easy to hard,
# discriminations vary between questions.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

import jalax

rng = np.random.default_rng(0)
num_persons, num_items = 400, 12
slope = np.exp(rng.normal(0.2, 0.4, num_items))
difficulty = np.linspace(-1.5, 1.5, num_items)
ability = rng.normal(size=num_persons)
chance = expit(slope * (ability[:, None] - difficulty))
answers = (rng.random((num_persons, num_items)) < chance).astype(float)
print("share of right answers:", answers.mean(axis=0).round(2))

# %%
model = jalax.models.item_response(answers)
result = jalax.fit(model, key=jax.random.key(0))
print(result.status, "-", result.message)
print(f"log-likelihood {result.log_evidence:.2f} ± {result.log_evidence_error:.2f}")

# %% [markdown]
# ## The questions
#
# Each question as a curve: the probability of a right answer against ability. Steep ones
# separate, and those far to the right are hard. The standard error of a difficulty, a ratio of
# two parameters, comes from the covariance of the estimates by the delta method.

# %%
a, c = (np.asarray(result.theta[name], float) for name in ("slope", "intercept"))
errors = {name: np.asarray(value) for name, value in result.standard_errors().items()}

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
at = np.linspace(-3, 3, 200)
for j in range(num_items):
    left.plot(at, expit(a[j] * at + c[j]), color=plt.cm.viridis(j / num_items))
left.set(xlabel="ability", ylabel="probability of a right answer", title="12 questions")
right.errorbar(slope, a, 2 * errors["slope"], fmt="o", label="slope")
truth = -slope * difficulty
right.errorbar(truth, c, 2 * errors["intercept"], fmt="s", markersize=4, label="intercept")
ends = np.array([truth.min(), slope.max()])
right.plot(ends, ends, "--", color="grey")
right.set(xlabel="truth", ylabel="estimate, two standard errors")
right.legend()

# %%
covariance = np.asarray(result.uncertainty.covariance)
names = list(result.uncertainty.names)
print("question   difficulty        true   discrimination   true")
for j in (0, 3, 6, 9, 11):
    rows = [names.index(f"slope[{j}]"), names.index(f"intercept[{j}]")]
    gradient = np.array([c[j] / a[j] ** 2, -1 / a[j]])  # of -c / a
    spread = np.sqrt(gradient @ covariance[np.ix_(rows, rows)] @ gradient)
    hard = f"{-c[j] / a[j]:6.2f} ± {spread:.2f}"
    steep = f"{a[j]:6.2f} ± {errors['slope'][j]:.2f}"
    print(f"{j + 1:8}   {hard:15} {difficulty[j]:6.2f}   {steep:14} {slope[j]:6.2f}")

# %% [markdown]
# ## The persons
#
# The posterior of an ability is wide: twelve answers do not say much about one person.

# %%
mean = np.asarray(result.expectation(lambda x: x))
spread = np.sqrt(np.asarray(result.expectation(lambda x: x**2)) - mean**2)
print(f"posterior sd of an ability: {spread.min():.2f} to {spread.max():.2f} (prior 1)")
print(f"correlation with the true abilities: {np.corrcoef(mean, ability)[0, 1]:.2f}")

# %% [markdown]
# ## Check
#
# One latent a person is one integral a person, and quadrature does it: Gauss-Hermite with 61
# points, in NumPy, and SciPy's quasi-Newton to maximise. This is what programs for item response
# do; with three or more latent dimensions it is out of reach, and jalax would go on as here.

# %%
points, masses = np.polynomial.hermite_e.hermegauss(61)
log_masses = np.log(masses / masses.sum())


def log_likelihood(slope, intercept):
    eta = points[:, None] * slope + intercept  # (points, items)
    each = answers @ log_expit(eta).T + (1 - answers) @ log_expit(-eta).T
    return logsumexp(each + log_masses, axis=1).sum()


value = log_likelihood(a, c)
print(f"log-likelihood at the estimate: jalax {result.log_evidence:.3f}", end=" ")
print(f"± {result.log_evidence_error:.3f}, quadrature {value:.3f}")
assert abs(result.log_evidence - value) < 4 * result.log_evidence_error

best = minimize(lambda t: -log_likelihood(t[:num_items], t[num_items:]), np.r_[a, c])
simulation = {name: np.asarray(v) for name, v in result.simulation_errors().items()}
off = np.r_[(a - best.x[:num_items]), (c - best.x[num_items:])]
off = off / np.r_[simulation["slope"], simulation["intercept"]]
print(f"estimates from the maximum: {np.abs(off).max():.1f} simulation errors at most,", end=" ")
print(f"log-likelihood lower by {-best.fun - value:.4f}")
assert np.abs(off).max() < 4.5  # of 24 numbers; one in 6,000 keys would be further off
