# ---
# jupytext:
#   text_representation:
#     format_name: percent
# kernelspec:
#   name: python3
#   display_name: Python 3
# ---
# %% [markdown]
# # A generator network
#
# A network learns to draw handwritten digits: one latent vector a picture, the network's weights
# are the parameters, and minibatches of pictures are visited with exact importance weights.
#
# Each picture $y_i$ has a few hidden numbers $x_i$, and a network $f$ makes the picture of them:
#
# $$
# x_i \sim N(0, I_k), \qquad y_i \mid x_i \sim N\big(f_{W,b}(x_i),\; \sigma^2 I\big),
# \qquad \theta = (W, b, \log\sigma).
# $$
#
# This is the decoder of a variational auto-encoder, without the encoder and without a variational
# family: $\theta$ maximises $\prod_i \int p_\theta(x_i, y_i)\,dx_i$, and the integrals are those
# of weighted particles. Kuntz, Lim and Johansen (2023) fitted such networks with PGD, which is
# `jalax.PGD` here. The pictures are independent given $\theta$, so each is a group with
# particles and weights of its own (`jalax.GroupedModel`), and a step may visit some of them
# only.
#
# The script is the same for a laptop and for a GPU. What you see below was made by `SMALL`, on a
# CPU; where JAX finds a GPU, `python docs/gallery/generator.py` takes `FULL`, all pictures that
# are installed with the package at their full size.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jalax

SMALL = {
    "train": 600,
    "held_out": 100,
    "shrink": 2,  # pixels averaged in each direction: 28 x 28 becomes 14 x 14
    "latents": 8,
    "hidden": (64,),
    "minibatch": 50,
    "step_size": 0.01,
    "learning_rate": 0.01,
    "steps": 1_000,
    "starts": 8,  # of the search for the posterior's mode of a held-out picture
}
FULL = {
    "train": 2_000,
    "held_out": 500,
    "shrink": 1,
    "latents": 16,
    "hidden": (256,),
    "minibatch": 200,
    "step_size": 0.001,
    "learning_rate": 0.005,
    "steps": 5_000,
    "starts": 16,
}
size = FULL if jax.default_backend() == "gpu" else SMALL
k, side = size["latents"], 28 // size["shrink"]

digits = jalax.datasets.mnist((2, 4, 7, 9), size["train"] + size["held_out"])
images = digits.images.reshape(-1, side, size["shrink"], side, size["shrink"]).mean(axis=(2, 4))
pictures = images.reshape(-1, side * side)
order = np.random.default_rng(0).permutation(len(pictures))
train, held_out = pictures[order[: size["train"]]], pictures[order[size["train"] :]]
label = np.array(digits.digits)[digits.labels[order]]  # the digits; the model never sees them
print(f"{len(train)} pictures of {side} x {side} pixels, and {len(held_out)} held out")

# %% [markdown]
# ## The fit
#
# `jalax.models.generator` writes the log-joint of one picture, and its `picture(theta, x)` draws.
# $\theta$ has thousands of numbers. That is too many for the automatic theta-step, which inverts
# an information matrix of up to 300 parameters, and there are no standard errors. So it is the
# paper's algorithm, with a number for the Langevin step and Adam for $\theta$:
#
# - `minibatch=50` visits 50 pictures a step. The others keep particles and log-weights; when a
#   picture is visited again, it is first weighed to the present $\theta$, exactly.
# - `step_size` must suit the narrowest posterior. Its precision is about
#   $1 + \lVert \partial f/\partial x_j \rVert^2 / \sigma^2$, and a Langevin step is stable below
#   two over that. $\sigma$ falls during the fit, so that in the end the step is too long for some
#   pictures: their weights correct for it, and leave few particles (printed below). With a
#   shorter step this fit would need several times as many.
# - The first weights make pictures with a standard deviation of about one, and pixels between 0
#   and 1 have one of 0.2: the last layer starts smaller.
# - `record` keeps every tenth step in the history, or it would hold $\theta$ a thousand times.


# %%
def prior(key, theta, data):
    return jax.random.normal(key, (k,))


def fit(hidden):
    model = jalax.models.generator(train, num_latents=k, hidden=hidden)
    *first, last = model.theta["weights"]
    theta = {**model.theta, "weights": [*first, 0.2 * last]}
    rate = optax.cosine_decay_schedule(size["learning_rate"], size["steps"])
    algorithm = jalax.JALAEM(
        step_size=size["step_size"], optimizer=optax.adam(rate), minibatch=size["minibatch"]
    )
    result = jalax.fit(
        model,
        theta,
        key=jax.random.key(0),
        algorithm=algorithm,
        start=jalax.FromSampler(prior),
        num_particles=10,
        num_steps=size["steps"],
        record=size["steps"] // 100,
    )
    return model, result


model, result = fit(size["hidden"])
sd = float(jnp.exp(result.theta["log_sd"]))
print(f"{sum(leaf.size for leaf in jax.tree.leaves(result.theta)):,} parameters, status:", end=" ")
print(f"{result.status}; sigma = {sd:.3f}")
lowest = result.history["ess"][-20:]  # of the pictures visited in a step, before resampling
print(f"effective sample size of 10 particles, worst picture of a step: {np.median(lowest):.1f}")

# %% [markdown]
# The status is `max_steps`: with an optimiser of one's own nothing says when to stop, and the
# curve has to. Left: the log-joint of a visited picture, averaged over its particles and over
# the minibatch, and $\sigma$. Right: the posterior means of the latents along their two
# principal directions, each picture drawn as the digit that it shows. The model did not know the
# digits.

# %%
latent = np.asarray(result.expectation(lambda x: x))  # (pictures, k): one posterior mean each
centred = latent - latent.mean(axis=0)
across = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
steps = result.history["step"]
left.plot(steps, result.history["mean_log_joint"] / size["minibatch"], color="C0")
left.set(xlabel="step", ylabel="log-joint of a picture")
other = left.twinx()
other.plot(steps, np.exp(result.history["theta"]["log_sd"]), "--", color="C1")
other.set_ylabel("$\\sigma$ (dashed)")
other.grid(False)
for i, digit in enumerate(digits.digits):
    shown = label[: len(train)] == digit
    right.scatter(*across[shown].T, marker=f"${digit}$", s=30, linewidths=0.3, color=f"C{i}")
right.set(xlabel="first direction", ylabel="second direction")
fig.tight_layout()
plt.show()

# %% [markdown]
# ## What it draws
#
# `result.expectation(f)` is the posterior mean of $f(x_i)$, picture by picture. From above:
# pictures of the training set; their reconstruction, the posterior mean of the network's
# picture; the reconstruction from as many principal components.


# %%
def draw(theta, x):
    return jax.vmap(model.picture, in_axes=(None, 0))(theta, x)


def mosaic(ax, rows, names):
    whole = np.vstack([np.hstack(np.reshape(row, (-1, side, side))) for row in rows])
    ax.imshow(np.clip(whole, 0, 1), cmap="gray_r", vmin=0, vmax=1)
    ax.set_yticks([side * (i + 0.5) for i in range(len(rows))], names)
    ax.set_xticks([])
    ax.grid(False)


mean = train.mean(axis=0)
components = np.linalg.svd(train - mean, full_matrices=False)[2][:k]


def principal(y):
    return mean + (y - mean) @ components.T @ components


rebuilt = np.asarray(result.expectation(lambda x: model.picture(result.theta, x)))
fig, ax = plt.subplots(figsize=(8, 2.6))
mosaic(ax, [train[:10], rebuilt[:10], principal(train[:10])], ["data", "network", "components"])
fig.tight_layout()
plt.show()

# %% [markdown]
# Pictures of latents drawn from the prior (two rows), and on the way from a 2 to a 7 and from a
# 4 to a 9: the line between the posterior means of two pictures, drawn at ten points. A plain
# average of two pictures would show both of them, faintly. Not every draw of the prior is a
# digit: nothing says that the latents of the training pictures fill the prior evenly.

# %%
random = draw(result.theta, jax.random.normal(jax.random.key(1), (20, k)))
first = {digit: np.flatnonzero(label[: len(train)] == digit)[0] for digit in digits.digits}
share = np.linspace(0, 1, 10)[:, None]
ways = [
    draw(result.theta, (1 - share) * latent[first[a]] + share * latent[first[b]])
    for a, b in ((2, 7), (4, 9))
]
fig, ax = plt.subplots(figsize=(8, 3.5))
mosaic(ax, [random[:10], random[10:], *ways], ["prior", "prior", "2 to 7", "4 to 9"])
fig.tight_layout()
plt.show()

# %% [markdown]
# The same figure by `FULL`, 205,841 parameters and 2,000 pictures, on an H200 (the whole script
# in 144 s; not made by this build):
#
# ![digits drawn by the larger network](../images/generator-gpu.png)
#
# ## Check
#
# ### Without a hidden layer the answer is known
#
# With `hidden=()` the model is probabilistic principal components. Its marginal likelihood is
# Gaussian, $y_i \sim N(b, W^\top W + \sigma^2 I)$, and Tipping and Bishop (1999) give its
# maximum: $b$ the mean, $\sigma^2$ the mean of the eigenvalues of the covariance beyond the
# first $k$, and $W$ from the first $k$ eigenvectors, up to a rotation. The same code fits it.
# Two things are compared: `jalax.log_evidence` at the fitted $\theta$ with the closed form
# *there*, and that with the maximum over all $\theta$.
#
# The first has to agree within 4 standard errors (and the rounding of float32 in $n d$ squares).
# The second is a matter of how long Adam runs, as nothing ends the fit at the maximum. A scale
# for it: with $P$ free parameters the maximum lies above the truth by $P/2$ on average (Wilks),
# so that a smaller gap is less than what another sample of pictures would change.

# %%
linear, fitted = fit(hidden=())
(weight,), (bias,) = (
    [np.asarray(a, float) for a in fitted.theta[part]] for part in ("weights", "biases")
)
noise = np.exp(2 * float(fitted.theta["log_sd"]))
pixels = side * side


def log_gaussian(y, mean, weight, noise):
    """log N(y; mean, weight' weight + noise I), by a k x k matrix instead of a d x d one."""
    inner = noise * np.eye(k) + weight @ weight.T
    residual = y - mean
    along = residual @ weight.T
    square = np.sum(residual**2, axis=1) - np.sum(along @ np.linalg.inv(inner) * along, axis=1)
    log_det = (pixels - k) * np.log(noise) + np.linalg.slogdet(inner)[1]
    return -0.5 * (square / noise + log_det + pixels * np.log(2 * np.pi))


here = log_gaussian(train, bias, weight, noise).sum()
values, vectors = np.linalg.eigh(np.cov(train.T, bias=True))
rest = values[:-k].mean()
best_weight = (vectors[:, -k:] * np.sqrt(values[-k:] - rest)).T
best = log_gaussian(train, mean, best_weight, rest).sum()

evidence = jalax.log_evidence(
    linear, fitted.theta, key=jax.random.key(2), num_particles=50, error=0.5
)
free = (k + 1) * pixels + 1 - k * (k - 1) // 2
print(f"log-evidence by jalax    {evidence.value:12.2f} +- {evidence.error:.2f}")
print(f"closed form at theta     {here:12.2f}")
print(f"closed-form maximum      {best:12.2f}  ({best - here:.0f} above; P/2 = {free / 2:.0f})")
print(f"sigma: fitted {np.sqrt(noise):.4f}, at the maximum {np.sqrt(rest):.4f}")
rounding = np.finfo(np.float32).eps * len(train) * pixels
assert abs(evidence.value - here) <= 4 * evidence.error + rounding
assert -rounding <= best - here <= free / 2

# %% [markdown]
# ### Held-out pictures
#
# For a picture that the network has not seen, $x$ is set to the mode of its posterior at the
# fitted $\theta$. The search is a Levenberg-Marquardt one, written out here. A posterior has
# several modes, so it starts from several points, and the highest mode counts. Principal
# components with the same $k$ are given their least-squares projection, which is the best they
# can do.

# %%
variance = jnp.exp(2 * result.theta["log_sd"])


def log_joint(y, x):  # without jalax's own
    residual = jnp.sum((y - model.picture(result.theta, x)) ** 2) / variance
    constants = pixels * jnp.log(2 * jnp.pi * variance) + k * jnp.log(2 * jnp.pi)
    return -0.5 * (residual + jnp.sum(x**2) + constants)


def slopes(x):
    return jax.jacfwd(lambda z: model.picture(result.theta, z))(x)


def climb(y, x):
    def step(carry, _):
        x, damping = carry
        J = slopes(x)
        gradient = J.T @ (y - model.picture(result.theta, x)) / variance - x
        precision = J.T @ J / variance + jnp.eye(k)
        new = x + jnp.linalg.solve(
            precision + damping * jnp.diag(jnp.diagonal(precision)), gradient
        )
        better = log_joint(y, new) > log_joint(y, x)
        return (jnp.where(better, new, x), jnp.where(better, damping / 3, damping * 4)), None

    (x, _), _ = jax.lax.scan(step, (x, jnp.asarray(1.0)), length=60)
    return x, log_joint(y, x)


starts = jnp.concatenate(
    [jnp.zeros((1, k)), jax.random.normal(jax.random.key(3), (size["starts"] - 1, k))]
)
unseen = jnp.asarray(held_out, jnp.float32)
modes, heights = jax.jit(jax.vmap(jax.vmap(climb, (None, 0)), (0, None)))(unseen, starts)
highest = jnp.argmax(heights, axis=1)
found = draw(result.theta, modes[jnp.arange(len(unseen)), highest])

network_error = np.mean((np.asarray(found) - held_out) ** 2, axis=1)
linear_error = np.mean((principal(held_out) - held_out) ** 2, axis=1)
difference = linear_error - network_error
standard_error = difference.std(ddof=1) / np.sqrt(len(difference))
print("mean squared error of a pixel    training   held out")
for name, seen, unseen_error in (
    ("network", rebuilt, network_error),
    (f"{k} principal components", principal(train), linear_error),
):
    print(f"{name:30} {np.mean((seen - train) ** 2):10.4f} {unseen_error.mean():10.4f}")
print(f"difference on held-out pictures  {difference.mean():.4f} +- {standard_error:.4f}")
elsewhere = float(jnp.mean(heights[:, 0] < heights.max(axis=1) - 1))
print(f"pictures whose mode from x = 0 is more than 1 below their highest: {elsewhere:.0%}")
assert difference.mean() > 4 * standard_error

fig, ax = plt.subplots(figsize=(8, 2.6))
mosaic(
    ax, [held_out[:10], found[:10], principal(held_out[:10])], ["held out", "network", "components"]
)
fig.tight_layout()
plt.show()

# %% [markdown]
# ## What is known of the evidence here
#
# - **Along the path: nothing.** The fit began with draws of the prior and took them for draws of
#   the posterior, and in a minibatch fit each picture is at the $\theta$ of its own last visit.
#   `FitResult.path_log_evidence` is `None`, and says so.
# - **At the fitted $\theta$ of the linear model:** as above, to a fraction of a nat in tens of
#   thousands.
# - **At the fitted $\theta$ of the network** `jalax.log_evidence` measures against one mode a
#   picture, the one it finds from $x = 0$. The last number printed says how often that is not the
#   highest one. An estimate from there is too low, and may not notice: a mode that no draw has
#   seen leaves no trace in the weights. `reference=jalax.references.Modes(starts)` puts a mixture
#   on several modes.
# - **It is a plug-in value.** With more parameters than pictures the evidence on the *training*
#   pictures rewards overfitting, and cannot be compared with that of the linear model.
