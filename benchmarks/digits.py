"""Digits by JALA-EM, a VAE and an IWAE: the same decoder, the same seconds, one judge.

    python benchmarks/digits.py [--seconds 40]    # digits.md, digits.json, docs/images/digits.png

The data are the 2,500 images of four digits that come with the package, black and white: 2,250 to
train on, and 250 to judge by. The decoder has 10 latents and two layers of 200; the encoders of VAE
and IWAE mirror it. Each method has the same seconds, compilation not counted. VAE and IWAE train on
2,000 images with Adam at one rate, 250 tell after how many steps to stop, and then they begin again
with all 2,250; JALA-EM is the default fit, which does likewise. All three are judged by
`jalax.log_evidence` of the decoder on the 250 images: log p an image, with its Monte-Carlo error,
and its standard error from image to image. "seconds": to the step where each would stop.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from _common import Row, machine, quick, write

LATENTS, WIDTH, PIXELS = 10, 200, 784
RATE = 1e-3
BATCH, EVERY = 128, 100  # images a step, steps between two looks at the validation set
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "digits.png"


def images() -> list:
    """Train, validation and test set, black and white."""
    import jax.numpy as jnp

    import jalax

    data = jalax.datasets.mnist()
    order = np.random.default_rng(0).permutation(len(data.features))
    pixels = (data.features[order] > 0.5).astype(np.float32)
    return [jnp.asarray(part) for part in np.split(pixels, [len(pixels) - 500, len(pixels) - 250])]


def layers(key, sizes):
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / np.sqrt(m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def network(theta, x):
    import jax.numpy as jnp

    for weight, bias in theta[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ theta[-1][0] + theta[-1][1]


def log_normal(x, mean=0.0, log_sd=0.0):
    import jax.numpy as jnp

    terms = -0.5 * ((x - mean) / jnp.exp(log_sd)) ** 2 - log_sd - 0.5 * np.log(2 * np.pi)
    return jnp.sum(terms, axis=-1)


def log_joint(theta, z, y):
    import jax
    import jax.numpy as jnp

    logits = network(theta, z)
    return log_normal(z) + jnp.sum(y * logits - jax.nn.softplus(logits), axis=-1)


def bound(theta, encoder, y, key, samples):
    """The importance-weighted bound on log p of each image; with one sample, the VAE's."""
    import jax
    import jax.numpy as jnp

    mean, log_sd = jnp.split(network(encoder, y), 2, axis=-1)
    noise = jax.random.normal(key, (samples, *mean.shape))
    z = mean + jnp.exp(log_sd) * noise
    log_w = log_joint(theta, z, y) - log_normal(z, mean, log_sd)
    return jax.scipy.special.logsumexp(log_w, axis=0) - np.log(samples)


def autoencoder(samples, seconds, train, valid):
    """The decoder with the best bound (of 50 samples) on the validation set."""
    import jax
    import jax.numpy as jnp
    import optax

    key = jax.random.key(1)
    theta = layers(key, [LATENTS, WIDTH, WIDTH, PIXELS])
    encoder = layers(jax.random.key(2), [PIXELS, WIDTH, WIDTH, 2 * LATENTS])
    adam = optax.adam(RATE)

    @jax.jit
    def steps(both, memory, key, images):
        def one(carry, key):
            both, memory = carry
            pick, noise = jax.random.split(key)
            y = images[jax.random.choice(pick, len(images), (BATCH,), replace=False)]
            slope = jax.grad(lambda both: -jnp.mean(bound(*both, y, noise, samples)))(both)
            change, memory = adam.update(slope, memory)
            return (optax.apply_updates(both, change), memory), None

        return jax.lax.scan(one, (both, memory), jax.random.split(key, EVERY))[0]

    @jax.jit
    def judge(both):
        return jnp.mean(bound(*both, valid, jax.random.key(3), 50))

    first = (theta, encoder), adam.init((theta, encoder))
    every = jnp.concatenate([train, valid])
    jax.block_until_ready([steps(*first, key, train), steps(*first, key, every), judge(first[0])])
    (both, memory), values, taken = first, [], 0.0
    began = time.perf_counter()
    while taken < seconds:
        both, memory = steps(both, memory, jax.random.fold_in(key, len(values)), train)
        values.append(float(judge(both)))
        taken = time.perf_counter() - began
    best, visits = int(np.argmax(values)) + 1, len(every) / len(train)
    both, memory = first
    for k in range(round(best * visits)):  # again with all images, each visited as often
        both, memory = steps(both, memory, jax.random.fold_in(key, k), every)
    return both[0], {"steps": EVERY * len(values), "seconds": taken * best / len(values)}


def by_jala_em(seconds, train, valid):
    """The default fit, which holds out groups of its own and then begins again with all."""
    import jax
    import jax.numpy as jnp

    import jalax

    model = jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), jnp.concatenate([train, valid]))
    theta_0 = layers(jax.random.key(1), [LATENTS, WIDTH, WIDTH, PIXELS])
    fit = partial(jalax.fit, model, theta_0, key=jax.random.key(0))
    with jax.default_matmul_precision("default"):  # TF32 on a GPU, as the other two have it
        fit(num_steps=20)  # compiles
        result = fit(callbacks=[jalax.time_limit(seconds)])
    print(result.message)
    return result.theta, {"steps": result.num_steps, "seconds": result.seconds}


def judged(theta, images) -> Any:
    """The evidence of the decoder, image by image."""
    import warnings

    import jax
    import jax.numpy as jnp

    import jalax

    model = jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), images, group_batch=25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = jalax.log_evidence(
            model, theta, key=jax.random.key(7), error=0.1 * len(images), max_particles=10_000
        )
    print(found)
    return found


METHODS = {
    "VAE": partial(autoencoder, 1),
    "IWAE (50)": partial(autoencoder, 50),
    "JALA-EM": by_jala_em,
}


def study(seconds: float) -> tuple[list[Row], dict]:
    train, valid, test = images()
    rows, decoders, groups = [], {}, {}
    count = len(test)
    for name, method in METHODS.items():
        theta, told = method(seconds, train, valid)
        found = judged(theta, test)
        decoders[name], groups[name] = theta, found.groups
        apart = groups[name] - groups["VAE"]
        rows.append(
            {
                "method": name,
                "held-out log p an image": f"{found.value / count:.2f}",
                "Monte-Carlo error": f"{found.error / count:.3f}",
                "from image to image": f"{np.std(found.groups, ddof=1) / np.sqrt(count):.2f}",
                "above the VAE": f"{apart.mean():+.2f} ± {apart.std() / np.sqrt(count):.2f}",
                "steps": told["steps"],
                "seconds": round(told["seconds"]),
            }
        )
        print(rows[-1], flush=True)
    return rows, decoders


def draw(decoders: dict) -> None:
    """Samples of each decoder, and what it makes of the latents of eight test images."""
    import jax
    import jax.numpy as jnp
    import matplotlib.pyplot as plt

    import jalax

    test = images()[2][:8]
    z = jax.random.normal(jax.random.key(5), (8, LATENTS))
    start = jalax.starts.Laplace(num_draws=512)
    rows = {"test images": test}
    for name, theta in decoders.items():
        model = jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), jnp.asarray(test))
        cloud = jax.jit(partial(start, num_particles=64))(jax.random.key(6), model, theta)
        rows[f"{name}, posterior mean"] = jax.nn.sigmoid(network(theta, cloud.particles)).mean(1)
    for name, theta in decoders.items():
        rows[f"{name}, samples"] = jax.nn.sigmoid(network(theta, z))
    figure, axes = plt.subplots(len(rows), 8, figsize=(8, len(rows)), layout="constrained")
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for ax, picture in zip(line, pictures, strict=True):
            ax.imshow(np.reshape(picture, (28, 28)), cmap="gray_r", vmin=0, vmax=1)
            ax.axis("off")
        line[0].set_title(name, loc="left", fontsize=8)
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3 if quick() else 40)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, decoders = study(options.seconds)
    if not quick():
        draw(decoders)
    text = f"{options.seconds:g} seconds for each method, VAE and IWAE by Adam with rate {RATE:g}."
    write("digits", [text, rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
