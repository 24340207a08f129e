r"""The Langevin move on an NVIDIA GPU: noise, move and work in one kernel.

XLA joins no sum to random numbers: it writes a term of the work for every latent of every particle,
and reads them all again. Here each block of a particle's latents adds up its own terms: a step of
JALA-EM for a network of 512 units takes 5 % less (`python benchmarks/gpu.py`). The noise is that
of `normals.normal`, up to rounding.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

from jalax._particles import langevin
from jalax._particles.langevin import UNADJUSTED, Dense, Diagonal, Kernel, Moved, Preconditioner
from jalax._particles.trees import Tree
from jalax._runtime import normals
from jalax._runtime.layouts import Layout

BLOCK = 1024  # latents that one program of the kernel has in hand
LEAST = 2**24  # numbers in all, below which there is nothing to gain

Leaf = Float[Array, "G N ..."]


class Before(NamedTuple):
    """What the move of one leaf starts from, in its precision."""

    words: UInt32[Array, "2"]  # of the key
    x: Leaf
    grad_x: Leaf
    h: Float[Array, ""]
    scale: Leaf | None  # the diagonal of P, (1 or G, 1, ...)
    shift: Leaf | None  # c, (G, 1, ...)
    kernel: Kernel  # how much noise


class After(NamedTuple):
    x: Leaf
    path: Leaf
    terms: Float[Array, "G N blocks"]  # of the forward work, one a block


def move_and_work(
    key: Key[Array, ""],
    particles: Tree,
    grad_x: Tree,
    step_size: Float[Array, ""],
    preconditioner: Preconditioner = None,
    shift: Tree = None,
    layout: Layout | None = None,
    kernel: Kernel = UNADJUSTED,
) -> tuple[Moved, Tree]:
    """`langevin.move`, and the `work` of it; for large leaves on one GPU, one kernel does both.

    The work then has fewer terms, which add up to the same. `layout` says how the particles lie
    on many devices, where XLA does without the kernel.
    """
    moved = langevin.move(key, particles, grad_x, step_size, preconditioner, shift, kernel)
    forwards = langevin.work(grad_x, moved.path, step_size, preconditioner)
    leaves, treedef = jax.tree.flatten(particles)
    if layout is not None or isinstance(preconditioner, Dense):
        return moved, forwards
    if not any(fits(key, leaf) for leaf in leaves):
        return moved, forwards
    nothing = treedef.unflatten([None] * len(leaves))
    scale = nothing if preconditioner is None else preconditioner.diagonal
    trees = grad_x, scale, nothing if shift is None else shift, *moved, forwards
    keys = jax.random.split(key, len(leaves))  # as `trees.normal_like` does
    found = [
        move(before(k, x, g, step_size, d, c, kernel)) if fits(k, x) else by_xla
        for k, x, g, d, c, *by_xla in zip(
            keys, leaves, *map(treedef.flatten_up_to, trees), strict=True
        )
    ]
    new, path, forwards = map(treedef.unflatten, zip(*found, strict=True))
    return Moved(new, path), forwards


def fits(key: Key[Array, ""], leaf: Leaf) -> bool:
    """Whether the kernel can move these particles, and gains by it."""
    whole = math.prod(leaf.shape[2:]) % BLOCK == 0 and leaf.size >= LEAST
    plain = leaf.dtype == np.float32 and normals.is_plain(key, leaf.shape, leaf.dtype)
    return whole and plain and is_at_hand()


@functools.cache
def is_at_hand() -> bool:
    """Whether there is a GPU for which this JAX compiles the kernel, to the numbers XLA finds."""
    if jax.default_backend() != "gpu":
        return False

    def both():
        x = jnp.ones((1, 2, BLOCK), jnp.float32)
        leaf = before(jax.random.key(0), x, x, 0.5)
        return in_one_kernel(leaf).x, one_by_one(leaf).x

    try:  # compiled ahead, because whoever asks may be under a trace
        found, expected = jax.jit(both).lower().compile()()
    except Exception:  # whatever it is: XLA's own kernels will do
        return False
    return np.allclose(found, expected, atol=1e-4)


def before(
    key, x: Leaf, grad_x: Leaf, step_size, scale=None, shift=None, kernel: Kernel = UNADJUSTED
) -> Before:
    """Step size, diagonal and shift come in whatever precision they are kept."""
    scale, shift = (None if a is None else a.astype(x.dtype) for a in (scale, shift))
    h = jnp.asarray(step_size, x.dtype)
    return Before(jax.random.key_data(key), x, grad_x, h, scale, shift, kernel)


def move(leaf: Before) -> After:
    """A program for a CPU has none of the kernel in it, though there be a GPU."""
    return lax.platform_dependent(leaf, cuda=in_one_kernel, default=one_by_one)


def one_by_one(leaf: Before) -> After:
    """What the kernel does, for a device without it."""
    key, x = jax.random.wrap_key_data(leaf.words, impl=normals.THREEFRY), leaf.x
    new, path, terms = _moved(normals.normal(key, x.shape, x.dtype), *leaf[1:])
    return After(new, path, jnp.sum(terms.reshape((*x.shape[:2], -1, BLOCK)), axis=-1))


def _moved(noise, x, grad_x, h, scale, shift, kernel: Kernel) -> tuple[Array, Array, Array]:
    """X', the path, and the terms of its work, of a leaf or of a block of one."""
    metric = None if scale is None else Diagonal(scale)
    new, path = langevin.moved_by(noise, x, grad_x, h, metric, shift, kernel)
    return new, path, langevin.work(grad_x, path, h, metric)


def in_one_kernel(leaf: Before, *, interpret: bool = False) -> After:
    """One program of the kernel for each block of latents of each particle."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    words, x, grad_x, h, scale, shift, kernel = leaf
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
        functools.partial(_block, kernel, scale is not None, shift is not None),
        grid=like_x.shape[:1],
        in_specs=[words_own, h_own, own, own, *[groups_own] * len(given)],
        out_specs=[own, own, pl.BlockSpec((1,), lambda i: (i,))],
        out_shape=[like_x, like_x, jax.ShapeDtypeStruct(like_x.shape[:1], x.dtype)],
        input_output_aliases={2: 0},  # X' in the place of X, which the loop would copy otherwise
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )(words, h.reshape(1), in_blocks(x), in_blocks(grad_x), *given)
    return After(new.reshape(x.shape), path.reshape(x.shape), terms.reshape((groups, num, blocks)))


def _block(kernel: Kernel, scaled: bool, shifted: bool, words, h, x, grad_x, *refs) -> None:
    """One block."""
    from jax.experimental import pallas as pl

    *given, new, path, term = refs
    scale = given.pop(0)[0, :] if scaled else None
    shift = given.pop(0)[0, :] if shifted else None
    first = pl.program_id(0).astype(jnp.uint32) * np.uint32(BLOCK)
    words_drawn = normals.threefry(words, first + lax.iota(np.uint32, BLOCK))
    noise = normals.from_words(*words_drawn, np.dtype(np.float32))
    there, away, terms = _moved(noise, x[0, :], grad_x[0, :], h[0], scale, shift, kernel)
    new[0, :] = there
    path[0, :] = away
    term[0] = jnp.sum(terms)
