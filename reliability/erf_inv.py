"""Where the coefficients of `jalax._runtime.normals.erf_inv` come from, and how far off it is.

With w = -log(1 - u^2), erf^-1(u) / u is a smooth function of w that grows like sqrt(w). A quotient
of two polynomials of degree 12 meets it at 25 points, those of Chebyshev in w / (w + 14), in 70
digits; 14 because the largest error between the points is then least. Needs mpmath (`pip install
mpmath`), which jalax does not. Prints the coefficients, whether they are those of the library, and
the error of its erf^-1 in float64 beside that of XLA's.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import mpmath as mp
import numpy as np
from jax import lax

from jalax._runtime import normals

DEGREE, SCALE, LARGEST = 12, 14, 37  # 1 - u^2 is at least 2^-52: w is below 36.1


def ratio(w: mp.mpf) -> mp.mpf:
    """erf^-1(u) / u."""
    if w == 0:
        return mp.sqrt(mp.pi) / 2
    rest = mp.exp(-w)  # 1 - u^2
    u = mp.sqrt(1 - rest)
    if w < 2:
        return mp.erfinv(u) / u
    tail = mp.log(rest / (1 + u))  # log(1 - u)
    return mp.findroot(lambda x: mp.log(mp.erfc(x)) - tail, mp.sqrt(w - 1)) / u


def fit() -> tuple[list[mp.mpf], list[mp.mpf]]:
    """P and Q with P(w) = ratio(w) Q(w) at 25 points, and Q(0) = 1."""
    points = 2 * DEGREE + 1
    top = mp.mpf(LARGEST) / (LARGEST + SCALE)
    system, right = mp.matrix(points, points), mp.matrix(points, 1)
    for i in range(points):
        s = top * (1 - mp.cos(mp.pi * (2 * i + 1) / (2 * points))) / 2
        w = SCALE * s / (1 - s)
        right[i] = ratio(w)
        for j in range(DEGREE + 1):
            system[i, j] = w**j
        for j in range(1, DEGREE + 1):
            system[i, DEGREE + j] = -ratio(w) * w**j
    found = list(mp.lu_solve(system, right))
    return found[: DEGREE + 1], [mp.mpf(1), *found[DEGREE + 1 :]]


def error(erf_inv: Callable) -> float:
    """The largest relative error, at points up to the last that float64 has."""
    w = LARGEST * np.linspace(0, 1, 500)[1:-8] ** 2
    u = np.sqrt(-np.expm1(-w))
    u = np.unique(np.append(u[u < 1], [1e-300, 1e-8, np.nextafter(1.0, 0.0)]))
    found = np.asarray(jax.jit(erf_inv)(u))

    def exact(u: float) -> mp.mpf:
        return mp.mpf(u) * ratio(-mp.log((1 - mp.mpf(u)) * (1 + mp.mpf(u))))

    return max(
        abs(float(mp.mpf(float(x)) / exact(float(v)) - 1)) for x, v in zip(found, u, strict=True)
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    mp.mp.dps = 70
    for name, found, ours in zip("PQ", fit(), (normals.P, normals.Q), strict=True):
        print(name, *map(float, found), sep="\n  ")
        print("  as in the library:", [float(c) for c in found] == list(ours))
    print(f"largest relative error: {error(normals.erf_inv):.1e}, XLA's {error(lax.erf_inv):.1e}")
