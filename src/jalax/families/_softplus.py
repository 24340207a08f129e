"""log(1 + e^z) and its derivative, the price of a logistic likelihood.

`jax.nn.softplus` calls log1p, which XLA does not vectorise on a CPU: with its gradient it takes 1.4
(float64) and 1.6 times (float32) as long as the series below (`python benchmarks/kernels.py`). Both
are accurate to the last digits, for large negative z too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def softplus(z: Float[Array, "*any"]) -> Float[Array, "*any"]:
    r"""$\log(1 + e^z) = \max(z, 0) + \log(1 + e^{-|z|})$, to relative accuracy.

    >>> print(f"{softplus(-20.0):.6g}")
    2.06115e-09
    """
    return jnp.maximum(z, 0) + _log1p(jnp.exp(-jnp.abs(z)))


def _log1p(e: Float[Array, "*any"]) -> Float[Array, "*any"]:
    r"""$\log(1 + e) = 2 \operatorname{artanh} t$ with $t = e / (2 + e)$, for e from 0 to 1.

    The series $2t (1 + t^2/3 + t^4/5 + \dots)$ with $t^2 \le 1/9$ has ended at rounding errors
    after 7 terms in float32, after 16 in float64.
    """
    t = e / (2 + e)
    square = t**2
    terms = 7 if jnp.finfo(e.dtype).bits <= 32 else 16
    total = jnp.full_like(t, 1 / (2 * terms - 1))
    for k in reversed(range(terms - 1)):
        total = total * square + 1 / (2 * k + 1)
    return 2 * t * total


@softplus.defjvp
def _(primals, tangents):
    return softplus(primals[0]), tangents[0] * _sigmoid(primals[0])


# With a rule of its own: the derivative of |z| at 0 would spoil the curvature there.
@jax.custom_jvp
def _sigmoid(z: Float[Array, "*any"]) -> Float[Array, "*any"]:
    e = jnp.exp(-jnp.abs(z))
    part = 1 / (1 + e)
    return jnp.where(z >= 0, part, e * part)


@_sigmoid.defjvp
def _(primals, tangents):
    s = _sigmoid(primals[0])
    return s, tangents[0] * s * _sigmoid(-primals[0])  # 1 - s would lose its digits
