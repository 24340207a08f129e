r"""The Langevin move on an NVIDIA GPU: noise, move and work in one kernel.

XLA joins no sum to random numbers: it writes a term of the work for every latent of every particle,
and reads them all again. Here each block of a particle's latents adds up its own terms: a step of
JALA-EM for a network of 512 units takes 5 % less (`python benchmarks/gpu.py`). The noise is that
of `_noise.normal`, up to rounding.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

from jalax import _noise

BLOCK = 1024  # latents that one program of the kernel has in hand
LEAST = 2**24  # numbers in all, below which there is nothing to gain

Leaf = Float[Array, "G N ..."]


def fits(key: Key[Array, ""], leaf: Leaf) -> bool:
    """Whether the kernel can move these particles, and gains by it."""
    whole = math.prod(leaf.shape[2:]) % BLOCK == 0 and leaf.size >= LEAST
    plain = leaf.dtype == np.float32 and _noise.is_plain(key, leaf.shape, leaf.dtype)
    return whole and plain and is_at_hand()


@functools.cache
def is_at_hand() -> bool:
    """Whether there is a GPU for which this JAX compiles the kernel, to the numbers XLA finds."""
    if jax.default_backend() != "gpu":
        return False

    def both():
        key, x = jax.random.key(0), jnp.ones((1, 2, BLOCK), jnp.float32)
        new, _, _ = in_one_kernel(jax.random.key_data(key), x, x, jnp.float32(0.5))
        return new, 1.5 + _noise.normal(key, x.shape, x.dtype)

    try:  # compiled ahead, because whoever asks may be under a trace
        found, expected = jax.jit(both).lower().compile()()
    except Exception:  # whatever it is: XLA's own kernels will do
        return False
    return np.allclose(found, expected, atol=1e-4)


def move(
    key: Key[Array, ""],
    x: Leaf,
    grad_x: Leaf,
    step_size: Float[Array, ""],
    scale: Leaf | None = None,
    shift: Leaf | None = None,
) -> tuple[Leaf, Leaf, Float[Array, "G N blocks"]]:
    """X', X' - X - c, and the forward work of each block, of one leaf; see `_langevin.move`.

    `scale` is the diagonal of P and `shift` is c, (1 or G, 1, ...). A program for a CPU has none
    of the kernel in it, though there be a GPU.
    """
    words, h = jax.random.key_data(key), jnp.asarray(step_size, x.dtype)
    scale, shift = (None if a is None else a.astype(x.dtype) for a in (scale, shift))
    return lax.platform_dependent(
        words, x, grad_x, h, scale, shift, cuda=in_one_kernel, default=one_by_one
    )


def one_by_one(
    words: UInt32[Array, "2"],
    x: Leaf,
    grad_x: Leaf,
    h: Float[Array, ""],
    scale: Leaf | None = None,
    shift: Leaf | None = None,
) -> tuple[Leaf, Leaf, Float[Array, "G N blocks"]]:
    """What the kernel does, for a device without it."""
    key = jax.random.wrap_key_data(words, impl=_noise.THREEFRY)
    noise = _noise.normal(key, x.shape, x.dtype)
    new, path, terms = _formula(x, grad_x, h, noise, scale, shift)
    return new, path, jnp.sum(terms.reshape((*x.shape[:2], -1, BLOCK)), axis=-1)


def in_one_kernel(
    words: UInt32[Array, "2"],
    x: Leaf,
    grad_x: Leaf,
    h: Float[Array, ""],
    scale: Leaf | None = None,
    shift: Leaf | None = None,
    *,
    interpret: bool = False,
) -> tuple[Leaf, Leaf, Float[Array, "G N blocks"]]:
    """One program of the kernel for each block of latents of each particle."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    groups, num = x.shape[:2]
    blocks = math.prod(x.shape[2:]) // BLOCK  # of one particle

    def in_blocks(leaf: Leaf) -> Float[Array, "B 1024"]:
        return leaf.reshape((-1, BLOCK))

    def of_group(leaf: Leaf) -> Float[Array, "B 1024"]:
        return in_blocks(jnp.broadcast_to(leaf, (groups, 1, *x.shape[2:])))

    own = pl.BlockSpec((1, BLOCK), lambda i: (i, 0))
    groups_own = pl.BlockSpec((1, BLOCK), lambda i: (i // (num * blocks) * blocks + i % blocks, 0))
    words_own, h_own = (pl.BlockSpec((length,), lambda i: (0,)) for length in (2, 1))
    given = [of_group(leaf) for leaf in (scale, shift) if leaf is not None]
    like_x = jax.ShapeDtypeStruct((groups * num * blocks, BLOCK), x.dtype)
    new, path, terms = pl.pallas_call(
        functools.partial(_kernel, scale is not None, shift is not None),
        grid=like_x.shape[:1],
        in_specs=[words_own, h_own, own, own, *[groups_own] * len(given)],
        out_specs=[own, own, pl.BlockSpec((1,), lambda i: (i,))],
        out_shape=[like_x, like_x, jax.ShapeDtypeStruct(like_x.shape[:1], x.dtype)],
        input_output_aliases={2: 0},  # X' in the place of X, which the loop would copy otherwise
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )(words, h.reshape(1), in_blocks(x), in_blocks(grad_x), *given)
    return new.reshape(x.shape), path.reshape(x.shape), terms.reshape((groups, num, blocks))


def _kernel(scaled: bool, shifted: bool, words, h, x, grad_x, *refs) -> None:
    """One block."""
    from jax.experimental import pallas as pl

    *given, new, path, term = refs
    scale = given.pop(0)[0, :] if scaled else None
    shift = given.pop(0)[0, :] if shifted else None
    first = pl.program_id(0).astype(jnp.uint32) * np.uint32(BLOCK)
    words_drawn = _noise.threefry(words, first + lax.iota(np.uint32, BLOCK))
    noise = _noise.from_words(*words_drawn, np.dtype(np.float32))
    there, away, terms = _formula(x[0, :], grad_x[0, :], h[0], noise, scale, shift)
    new[0, :] = there
    path[0, :] = away
    term[0] = jnp.sum(terms)


def _formula(x, grad_x, h, noise, scale, shift) -> tuple[Array, Array, Array]:
    """`_langevin.move` and `_langevin.work`, for arrays."""
    drift = grad_x
    if scale is not None:
        drift, noise = scale * grad_x, jnp.sqrt(scale) * noise
    if shift is not None:
        x = x + shift
    new = x + h * drift + jnp.sqrt(2 * h) * noise
    return new, new - x, grad_x * ((new - x) - h / 2 * drift)
