"""log(1 + e^z) and its derivative, the price of a logistic likelihood.

Both come from one e^{-|z|}, one logarithm and one division, all of which XLA vectorises on a CPU.
`jax.nn.softplus` calls log1p, which it does not, and takes 1.5 to 2.5 times as long with its
gradient (`python benchmarks/kernels.py`); both are accurate to the last bits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def softplus(z: Float[Array, "*any"]) -> Float[Array, "*any"]:
    r"""$\log(1 + e^z) = \max(z, 0) + \log(1 + e^{-|z|})$, to relative accuracy.

    The logarithm is that of u = 1 + e rounded; (e - (u - 1)) / u is what the rounding lost.

    >>> print(f"{softplus(-20.0):.6g}")
    2.06115e-09
    """
    e = jnp.exp(-jnp.abs(z))
    u = 1 + e
    return jnp.maximum(z, 0) + (jnp.log(u) + (e - (u - 1)) * (1 / u))


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
