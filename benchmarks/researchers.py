"""The algorithms of the field on the problems of the book: who arrives, at what cost, how far off.

    python benchmarks/researchers.py [--problems pumps seeds] [--jobs 2]    # researchers.md, .json
    python benchmarks/researchers.py --jobs 16 --keep done.jsonl            # goes on after an end
    python benchmarks/researchers.py --draw                  # docs/images/researchers.svg, of .json

All of it is some hours of one core: with --keep FILE each row is kept there as soon as it is known,
and the next call makes only those that are missing. Table and page are written when none is.

Every method runs from the same start with every step size of one grid and three keys. A visit is
one evaluation of log p and its gradients at one particle, or of its second derivatives in theta.
theta is the mean over the last quarter of the steps so far, since no method with a constant step
size comes to rest. Reported are the visits until theta stays within 0.1 standard errors of the
exact maximum in at least two of three runs, for the step size that needs fewest, and how far theta
is off in the end. The figure has the latter for every step size. A new algorithm needs one line of
`methods`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from _common import Row, machine, quick, write

GRID = [float(f"{10 ** (k / 2):.3g}") for k in range(-10, 0)]  # 1e-5, 3.16e-5, ..., 0.316
KEYS, PARTICLES, NEAR = 3, 100, 0.1
STEPS = 50 if quick() else 2000
PROBLEMS = ["pumps", "seeds", "orange", "wine", "lsat_2pl", "kidney", "toenail", "salamander"]
PROBLEMS += ["theophylline", "spatial"]
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "researchers.svg"


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm for an array of step sizes, and the visits of a particle in a step.

    `axes` says which of its options lead with one number a step size; an algorithm that chooses
    its own step size has none. One that `ends` chooses its particles and number of steps, too.
    """

    build: Callable[[Any], Any]
    axes: tuple[str, ...] = ("step_size",)
    visits: int = 1
    ends: bool = False


def methods() -> dict[str, Method]:
    """One line a method."""
    import optax

    import jalax
    from jalax import rivals

    def soul(h):  # theta moves by the step size of the chain, as in PGD
        return jalax.SOUL(step_size=h, optimizer=jalax.Optax(optax.sgd, learning_rate=h))

    def paper(h):
        return jalax.JALAEM(step_size=h, optimizer=optax.adam(5e-3), resample_below=1 / 1.05)

    return {
        "PGD": Method(lambda h: jalax.PGD(step_size=h)),
        "IPLA": Method(lambda h: jalax.IPLA(step_size=h)),
        "SOUL": Method(soul, ("step_size", "optimizer"), visits=2),
        "SFLA": Method(lambda h: jalax.SFLA(step_size=h)),
        "KIPLMC": Method(lambda h: rivals.KIPLMC(step_size=h)),
        # 5 or 10 moves; a look before and one after them; 1 or 3 second derivatives
        "SAEM": Method(lambda h: rivals.SAEM(), axes=(), visits=5 + 2 + 1),
        "Monte-Carlo EM": Method(lambda h: rivals.MonteCarloEM(), axes=(), visits=10 + 2 + 3),
        "CoinEM": Method(lambda h: rivals.CoinEM(), axes=()),
        "JALA-EM (paper)": Method(paper),
        "JALA-EM": Method(lambda h: jalax.JALAEM(), axes=(), ends=True),
    }


def distances(result: Any, problem: Any) -> np.ndarray:
    """(steps, P): theta, averaged over the last quarter so far, less the reference, in its s.e."""
    import jax

    reference = problem.reference
    if "theta" not in result.history:  # it diverged at its first step
        return np.full((1, sum(np.size(leaf) for leaf in jax.tree.leaves(reference.theta))), np.nan)
    rows = [np.asarray(leaf, float) for leaf in jax.tree.leaves(result.history["theta"])]
    path = np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)
    center, scale = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (reference.theta, reference.standard_errors)
    )
    total = np.concatenate([np.zeros((1, path.shape[1])), np.cumsum(path, axis=0)])
    last = np.arange(1, len(path) + 1)
    first = 3 * last // 4
    return ((total[last] - total[first]) / (last - first)[:, None] - center) / scale


def arrival(off: np.ndarray) -> int | None:
    """The first step from which on theta stays near; None: never."""
    far = np.flatnonzero(~(np.abs(off).max(1) <= NEAR))
    if len(far) == 0:
        return 1
    return None if far[-1] == len(off) - 1 else int(far[-1]) + 2


def run(method: Method, problem: Any) -> tuple[int, list[list[np.ndarray]]]:
    """The number of particles, and the distances of every step size and key."""
    import jax
    import jax.numpy as jnp

    import jalax

    sizes = GRID if method.axes else [np.nan]
    every = jnp.repeat(jnp.asarray(sizes), KEYS)
    keys = jnp.tile(jax.random.split(jax.random.key(0), KEYS), len(sizes))
    options = {} if method.ends else {"num_particles": PARTICLES, "num_steps": STEPS}
    results = jalax.fit_many(
        problem.model,
        problem.theta,
        key=keys,
        num_fits=len(every),
        algorithm=method.build(every),
        axes=dict.fromkeys(method.axes, 0),
        **options,
    )
    found = [distances(result, problem) for result in results]
    particles = np.shape(results[0].log_weights)[-1]
    return particles, [found[k : k + KEYS] for k in range(0, len(found), KEYS)]


def summary(method: Method, particles: int, found: list[list[np.ndarray]]) -> Row:
    """The step size that needs fewest visits; where none arrives, the one that ends nearest."""
    best: tuple[tuple[float, float], Row] | None = None
    for size, runs in zip(GRID if method.axes else [None], found, strict=True):
        arrived = sorted(step for off in runs if (step := arrival(off)) is not None)
        median = arrived[1] if len(arrived) > 1 else np.inf  # of three
        ends = np.array([off[-1] for off in runs])
        middle = np.abs(ends.mean(0))
        worst = int(np.nanargmax(middle)) if np.isfinite(middle).any() else 0
        bias, spread = ends[:, worst].mean(), ends[:, worst].std(ddof=1) / np.sqrt(len(runs))
        row = {
            "best step size": "its own" if size is None else f"{size:g}",
            "visits": None if median == np.inf else int(median) * particles * method.visits,
            "arrived": f"{len(arrived)} of {len(runs)}",
            "off at the end (s.e.)": f"{bias:+.2f} ± {spread:.2f}",
        }
        rank = (median, float(np.nan_to_num(abs(bias), nan=np.inf)))
        if best is None or rank < best[0]:
            best = (rank, row)
    assert best is not None
    return best[1]


def worst_at_the_end(found: list[list[np.ndarray]]) -> list[float]:
    """How far off each step size ends: the median over the keys of the worst number of theta."""
    return [float(np.median([np.abs(off[-1]).max() for off in runs])) for runs in found]


def study(task: tuple[str, str]) -> Row:
    """One problem and one method on it."""
    import warnings

    from jalax import problems

    warnings.simplefilter("ignore")  # most step sizes of a grid are wrong, and said to be
    name, label = task
    method, began = methods()[label], time.perf_counter()
    particles, found = run(method, problems.get(name))
    row = {"problem": name, "method": label, **summary(method, particles, found)}
    row["seconds of all runs"] = round(time.perf_counter() - began)
    return row | {"off": worst_at_the_end(found)}


def study_all(tasks: list[tuple[str, str]], jobs: int, keep: Path | None) -> list[Row]:
    """The rows of all tasks in their order, those in `keep` as they are."""
    rows: dict[tuple[str, str], Row] = {}
    if keep is not None and keep.exists():
        kept = [json.loads(line) for line in keep.read_text().splitlines()]
        rows = {(row["problem"], row["method"]): row for row in kept}
    left = [task for task in reversed(tasks) if task not in rows]  # the last problems take longest
    with get_context("spawn").Pool(jobs, maxtasksperchild=4) as pool:
        for row in pool.imap_unordered(study, left):
            rows[row["problem"], row["method"]] = row
            print({key: value for key, value in row.items() if key != "off"}, flush=True)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [rows[task] for task in tasks]


def draw(rows: list[Row]) -> None:
    """Error against step size, one line a method, one panel a problem."""
    import matplotlib.pyplot as plt

    if any("off" not in row for row in rows):
        sys.exit("researchers.json has rows of an earlier run, without their errors: run it again")
    names = list(dict.fromkeys(row["problem"] for row in rows))
    shared: Row = {"sharex": True, "sharey": True, "layout": "constrained"}
    figure, panels = plt.subplots(2, -(-len(names) // 2), figsize=(14, 6), **shared)
    for name, panel in zip(names, panels.flat, strict=False):
        for row in (row for row in rows if row["problem"] == name):
            its_own = len(row["off"]) == 1
            sizes, errors = GRID, np.clip(np.nan_to_num(row["off"], nan=np.inf), 1e-3, 1e2)
            if its_own:
                sizes, errors = [GRID[0], GRID[-1]], np.repeat(errors, 2)
            style = "--" if its_own else "-"
            panel.loglog(sizes, errors, style, label=row["method"], linewidth=1.5)
        panel.axhline(NEAR, color="0.7", linewidth=0.8)
        panel.set_title(name)
    figure.supxlabel("step size (dashed: its own)")
    figure.supylabel("theta at the end, standard errors off (100: or worse)")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="rows that are done")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(Path(__file__).with_suffix(".json").read_text())["rows"])
        return
    tasks = [(name, label) for name in options.problems for label in methods()]
    rows = study_all(tasks, options.jobs, options.keep)
    text = (
        f"{PARTICLES} particles, {STEPS:,} steps, {KEYS} keys, step sizes {GRID[0]:g} to "
        f"{GRID[-1]:g} in half decades, float32. JALA-EM chooses its own step size, and as many "
        "steps as it needs; the scoring steps at its end are not counted. SAEM, Monte-Carlo EM and "
        "CoinEM have no step size to choose."
    )
    shown = [{key: value for key, value in row.items() if key != "off"} for row in rows]
    write("researchers", [text, shown], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
