"""Hessians of one large joint latent: seconds for their entries, factor and solves, and the digits.

Series of T latents, two and three crossed factors, and a grid. Each row is in float32, which is
JAX's default; what it is off by is seen against SciPy in float64. `--quick` leaves out the largest.

    taskset -c 1 python benchmarks/structure.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import quick, seconds
from scipy import linalg, sparse

import jalax
from jalax._model.structure import Pattern
from jalax._reference.compressed import check_pattern, compressed_hessian
from jalax._reference.factor import factorise, log_det_in_double, log_det_of_model
from jalax._reference.pattern import pieces_of
from jalax._reference.plan import plan_of

PARTICLES = 64
PHI, SD = 0.97, 0.2


def series(theta, x, data):
    """A Gaussian series, whose Hessian is known, with counts."""
    steps = x[1:] - PHI * x[:-1]
    prior = -0.5 * (jnp.sum(steps**2) + (1 - PHI**2) * x[0] ** 2) / SD**2
    return prior + jnp.sum(data * (theta + x) - jnp.exp(theta + x))


def crossed(theta, x, data):
    eta = theta + sum(x[name][data["level"][name]] for name in x)
    prior = -0.5 * sum(jnp.sum(u**2) for u in x.values())
    return prior + jnp.sum(data["y"] * eta - jax.nn.softplus(eta))


def grid(theta, x, data):
    smooth = jnp.sum((x[1:] - x[:-1]) ** 2) + jnp.sum((x[:, 1:] - x[:, :-1]) ** 2)
    return -0.5 * (3 * smooth + 0.1 * jnp.sum(x**2)) + jnp.sum(data * x - jnp.exp(theta + x))


def series_case(T: int) -> tuple[jalax.Model, Any]:
    i = np.arange(T - 1)
    counts = np.random.default_rng(0).poisson(1.0, T).astype(np.float32)
    model = jalax.Model(series, jnp.zeros(T), jnp.asarray(counts), structure=(i + 1, i))

    def exact(x):
        main = np.full(T, (1 + PHI**2) / SD**2)
        main[0] = 1 / SD**2
        main[-1] = 1 / SD**2
        main += np.exp(x)
        return sparse.diags_array([np.full(T - 1, -PHI / SD**2), main], offsets=[-1, 0])

    return model, exact


def crossed_case(*sizes: int, rows: int) -> tuple[jalax.Model, Any]:
    rng = np.random.default_rng(0)
    level = {f"u{k}": rng.integers(0, size, rows) for k, size in enumerate(sizes)}
    first = dict(zip(level, np.cumsum([0, *sizes]), strict=False))
    places = [level[name] + first[name] for name in level]
    pairs = [(a, b) for k, a in enumerate(places) for b in places[:k]]
    structure = tuple(np.concatenate(side) for side in zip(*pairs, strict=True))
    data = {"y": rng.integers(0, 2, rows).astype(np.float32), "level": level}
    latent = {name: jnp.zeros(size) for name, size in zip(level, sizes, strict=True)}
    data = jax.tree.map(jnp.asarray, data)
    model = jalax.Model(crossed, latent, data, structure=structure)

    def exact(x):
        eta = sum(x[place] for place in places)
        weight = 1 / (1 + np.exp(-eta)) / (1 + np.exp(eta))
        ones = np.ones(rows)
        Z = sum(
            sparse.csr_array((ones, (np.arange(rows), p)), shape=(rows, x.size)) for p in places
        )
        return sparse.eye_array(x.size) + Z.T @ (weight[:, None] * Z)

    return model, exact


def grid_case(side: int) -> tuple[jalax.Model, Any]:
    k = np.arange(side**2).reshape(side, side)
    structure = np.r_[k[1:].ravel(), k[:, 1:].ravel()], np.r_[k[:-1].ravel(), k[:, :-1].ravel()]
    counts = np.random.default_rng(0).poisson(1.0, (side, side)).astype(np.float32)
    model = jalax.Model(grid, jnp.zeros((side, side)), jnp.asarray(counts), structure=structure)

    def exact(x):
        rows, cols = structure
        links = sparse.csr_array((-3 * np.ones(rows.size), (rows, cols)), shape=(x.size, x.size))
        links = links + links.T
        main = -links.sum(axis=1) + 0.1 + np.exp(x)
        return sparse.tril(links + sparse.diags_array(main))

    return model, exact


def log_det(H: Any) -> float:
    """In float64: by SciPy's band, or dense."""
    H = sparse.tril(H).tocoo()
    width = int((H.row - H.col).max())
    if width > 500:
        dense = H.toarray()
        return 2 * float(np.log(np.diagonal(np.linalg.cholesky(dense))).sum())  # lower is read
    band = np.zeros((width + 1, H.shape[0]))
    band[H.row - H.col, H.col] = H.data
    return 2 * float(np.log(linalg.cholesky_banded(band, lower=True)[0]).sum())


def twice(run: Callable[[], Any]) -> str:
    """Of the first call and of a later one."""
    first = seconds(run)
    return f"{first:.2f} / {min(seconds(run) for _ in range(3)):.3f}"


def row(name: str, model: jalax.Model, exact: Callable) -> None:
    pattern: Pattern = model.structure
    began = time.perf_counter()
    plan = plan_of(pattern, pieces_of(model))
    host = time.perf_counter() - began
    theta = jnp.zeros(())
    x = 0.3 * jax.random.normal(jax.random.key(0), (pattern.size,))
    v = jax.random.normal(jax.random.key(1), (PARTICLES, pattern.size))
    check = seconds(lambda: check_pattern(model, theta, pattern, plan))
    entries = twice(lambda: compressed_hessian(model, theta, x, plan))
    values = compressed_hessian(model, theta, x, plan)
    made = twice(lambda: factorise(plan, values))
    factor = factorise(plan, values)
    solved = twice(lambda: factor.solve(v))
    drawn = twice(lambda: factor.from_white(v))
    H = exact(np.asarray(x, float))
    full = sparse.tril(H) + sparse.tril(H, -1).T
    right = np.asarray((full @ np.asarray(v, float).T).T, np.float32)
    off = np.abs(np.asarray(factor.solve(jnp.asarray(right))) - np.asarray(v)).max()
    truth = log_det(H)
    began = time.perf_counter()
    of_model = log_det_of_model(model, theta, x, plan)
    double = time.perf_counter() - began
    print(
        f"{name}: n {plan.rest.size}, border {plan.border.size}, blocks of {plan.block}, "
        f"{plan.num_colours} colours\n"
        f"  plan {host:.2f} s, check {check:.2f} s; first / again: entries {entries} s, "
        f"factor {made} s, solve {solved} s, from_white {drawn} s\n"
        f"  float32: solve off by {off:.1e}; log det {truth:.3f}, off by "
        f"{float(factor.log_det) - truth:.1e}, summed in float64 "
        f"{log_det_in_double(factor) - truth:.1e}, all in float64 {of_model - truth:.1e} "
        f"({double:.1f} s the first time)",
        flush=True,
    )


def main() -> None:
    for T in (1_000, 10_000) if quick() else (1_000, 10_000, 100_000):
        row(f"series of {T:,}", *series_case(T))
    row("crossed 700 + 300", *crossed_case(700, 300, rows=12_000))
    row("grid 30 x 30" if quick() else "grid 100 x 100", *grid_case(30 if quick() else 100))
    if not quick():
        name = "crossed 2,972 + 1,128 + 14, 73,421 rows"
        row(name, *crossed_case(2972, 1128, 14, rows=73_421))


if __name__ == "__main__":
    main()
