"""A decoder of 10,300 numbers: the default fit against ten runs tuned by hand.

    python benchmarks/decoder.py [--seeds 3] [--by-hand FILE] [--quick]    # decoder.md and .json

200 points in ten dimensions with two latents each, from a small random network with noise 0.3,
which the model knows; a decoder 2 -> 100 -> 90 -> 10. Judged by log p of 300 further points, by
quadrature. The default fit is `jalax.fit(model, theta_0, key=key)`, in a process of its own:
seconds with the import of JAX, to its result. By hand: Adam with five rates, each with all groups
and with minibatches of 64, for 2,000 steps with all 200 points. Each is stopped where the 300
points, by which it is judged, are best: no user could tune as well. `--by-hand FILE`: runs by hand
that FILE has are taken from there (they may come from another machine: only their log p counts).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from _common import Row, machine, quick, write
from digits import layers, network

NOISE, LATENTS, WIDTHS = 0.3, 2, (2, 100, 90, 10)
RATES = (3e-3, 1e-3, 5e-4, 3e-4, 1e-4)
STEPS, EVERY = (40, 20) if quick() else (2_000, 40)
GRID = np.linspace(-6, 6, 241)  # of each latent: twice as many change nothing


def points(seed: int, train: int = 200, test: int = 300):
    """From a network of one layer of eight."""
    rng = np.random.default_rng(seed)
    first, last = rng.normal(size=(2, 8)), rng.normal(size=(8, 10)) / np.sqrt(8)
    z = rng.normal(size=(700, 2))
    mean = 2 * np.tanh(z @ first + 0.5 * rng.normal(size=8)) @ last
    y = (mean + NOISE * rng.normal(size=mean.shape)).astype(np.float32)
    return y[:train], y[train : train + test]


def theta_0(seed: int):
    import jax

    return layers(jax.random.key(seed), WIDTHS)


def log_joint(theta, z, y):
    import jax

    prior = jax.scipy.stats.norm.logpdf(z).sum()
    return prior + jax.scipy.stats.norm.logpdf(y, network(theta, z), NOISE).sum()


def model_of(y):
    import jax.numpy as jnp

    import jalax

    return jalax.GroupedModel(log_joint, jnp.zeros(LATENTS), jnp.asarray(y))


def by_quadrature(theta, y):
    """log p of each point."""
    import jax
    import jax.numpy as jnp

    z = jnp.asarray(np.stack(np.meshgrid(GRID, GRID), -1).reshape(-1, LATENTS), jnp.float32)
    cell = LATENTS * np.log(GRID[1] - GRID[0])

    def of_row(row):
        return jax.scipy.special.logsumexp(jax.vmap(log_joint, (None, 0, None))(theta, z, row))

    with jax.default_matmul_precision("highest"):
        return jax.lax.map(of_row, y, batch_size=50) + cell


def default(seed: int, began: float) -> Row:
    """In a process of its own, which has not imported JAX yet when it `began`."""
    import jax

    import jalax

    train, test = points(seed)
    limit = {"num_steps": 200} if quick() else {}
    result = jalax.fit(model_of(train), theta_0(seed), key=jax.random.key(0), **limit)
    seconds = time.time() - began
    exact = np.asarray(jax.jit(by_quadrature)(result.theta, test), float)
    found = jalax.log_evidence(model_of(test), result.theta, key=jax.random.key(1), error=0.3)
    return {
        "seconds": seconds,
        "steps": int(result.num_steps),
        "log_p": exact.mean(),
        "error": exact.std() / np.sqrt(len(test)),
        "evidence_off": (float(found.value) - exact.sum()) / float(found.error),
    }


def by_hand(seed: int) -> list[Row]:
    """Ten runs, each stopped where the points that judge it are best."""
    import jax

    import jalax

    train, test = points(seed)
    model, first, judge = model_of(train), theta_0(seed), jax.jit(by_quadrature)
    found = []
    for minibatch in (None, 64):
        for rate in RATES:
            look, seen = watcher(lambda theta: float(np.mean(judge(theta, test))))
            method = jalax.JALAEM(
                step_size=0.3,
                preconditioner=jalax.options.InverseHessian(),
                optimizer=jalax.options.adam(rate),
                minibatch=minibatch,
            )
            start = jalax.starts.Laplace(num_draws=256)
            jalax.fit(
                model,
                first,
                key=jax.random.key(1),
                start=start,
                algorithm=method,
                num_steps=STEPS,
                num_particles=32,
                progress=jalax.callbacks.Callback(),
                callbacks=[look],
            )
            best = int(np.argmax(seen))
            row = {"rate": rate, "minibatch": minibatch, "log_p": seen[best]}
            found.append(row | {"steps": EVERY * (best + 1), "last": seen[-1]})
            print(found[-1], flush=True)
    return found


def watcher(function):
    """A callback, and the list of what the function of theta was, every so many steps."""
    import jalax

    seen = []

    class Look(jalax.callbacks.Callback):
        def steps_until_due(self, run):
            return EVERY - run.step % EVERY

        def after_chunk(self, run):
            if run.step % EVERY == 0:
                seen.append(function(run.state.theta))

    return Look(), seen


def in_a_process(seed: str) -> Row:
    words = [sys.executable, __file__, "--default", seed, *(["--quick"] if quick() else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def kept(file: Path | None) -> dict:
    return json.loads(file.read_text()) if file and file.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--default", type=int)
    parser.add_argument("--by-hand", type=Path)
    parser.add_argument("--only-by-hand", action="store_true")
    given = parser.parse_args()
    if given.default is not None:
        began = time.time()
        print(json.dumps(default(given.default, began)))
        return
    rows, runs = [], kept(given.by_hand)
    for seed in map(str, range(1 if quick() else given.seeds)):
        runs[seed] = runs[seed] if seed in runs else by_hand(int(seed))
        if given.by_hand:
            given.by_hand.write_text(json.dumps(runs))
        if given.only_by_hand:
            continue
        ours = in_a_process(seed)
        best = max(runs[seed], key=lambda row: row["log_p"])
        ends = max(runs[seed], key=lambda row: row["last"])
        rows.append(
            {
                "data": seed,
                "cold fit (s)": round(ours["seconds"], 1),
                "steps": ours["steps"],
                "log p a new point": f"{ours['log_p']:.3f} +/- {ours['error']:.3f}",
                "best of ten by hand": round(best["log_p"], 3),
                "with rate": best["rate"],
                "at step": best["steps"],
                "best of their ends": round(ends["last"], 3),
                "ours below the best": round(best["log_p"] - ours["log_p"], 3),
                "evidence off (errors)": round(ours["evidence_off"], 2),
            }
        )
        print(rows[-1], flush=True)
    if rows:
        write("decoder", ["float32, Adam.", rows], machine=machine(), rows=rows, by_hand=runs)


if __name__ == "__main__":
    main()
