r"""Nested factors: the levels of the inner ones are integrated out one at a time.

Given the effects $u$ of a group (a community), the effects $v_j$ of the levels within it (its
mothers) are independent of each other:

$$p(y \mid u) = \prod_{i} \int \mathcal{N}(v_j; 0, 1) \prod_{i \in j} p(y_i \mid \eta_i + z_i'
  \Lambda v_j)\, dv_j,$$

and so on inwards. The latents of such a model are those of the outer factor. `drawn` gives the
others to its particles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jalax._model import inner
from jalax._model.groups import Slots

from ._formula import Block

Theta = dict[str, Any]

MANY = 32  # latents a group: so many are integrated together, by points
OUTER_UP_TO = 6  # effects of the outer factor
POINTS_UP_TO = 256  # of all inner factors together
MORE_ROWS = 8  # times those of the largest group, with all levels as large as the largest
NOT_OF_ROWS = ("X", "Z", "level", "parent", "white", "frequency")  # entries of the data


class Link(NamedTuple):
    """A factor of the chain from the outer one inwards."""

    blocks: tuple[tuple[str, int], ...]  # names, and the effects of each
    levels: int  # of the largest group

    @property
    def size(self) -> int:
        return sum(effects for _, effects in self.blocks)


class Pieces(NamedTuple):
    """The density of a mixed model in parts; theta is on the user's scale."""

    whole: Callable  # (theta, x, data): with all random effects in x
    prior: Callable  # (theta, x, data): the log-density of those that are in x
    predictor: Callable  # (theta, x, data): eta with these
    rows: Callable  # (theta, eta, data): the log-density of each row, 0 of padding
    effects: Callable  # (theta, name, white): b from standard normal numbers
    chain: tuple[Link, ...]
    num_points: int = inner.NUM_POINTS


def log_joint(pieces: Pieces, theta: Theta, x: dict, data: dict) -> Array:
    """log p(y, u), or of all random effects where x has them all."""
    if pieces.chain[0].blocks[0][0] in x:
        return pieces.whole(theta, x, data)
    eta = pieces.predictor(theta, x, data)
    return pieces.prior(theta, x, data) + jnp.sum(_within(pieces, 0, theta, eta, data))


def _within(pieces: Pieces, depth: int, theta: Theta, eta: Array, data: dict) -> Array:
    """The log-density given eta of each level of a factor."""
    num = pieces.num_points
    if depth < len(pieces.chain) - 1:
        log_density, known, start = _outward(pieces, depth, theta, eta, data)
        found = inner.log_integrals(log_density, known, start, num)
    else:
        log_density, (local, units), start = _last(pieces, theta, eta, data)
        count = num_levels(pieces, data)
        found = inner.log_integrals_of(log_density, local, units, start, num, count)
    return jnp.where(_is_there(pieces, depth, data), found, 0.0)


def _unit(pieces: Pieces, depth: int, theta: Theta, eta: Array, data: dict) -> tuple:
    """What `inner` integrates: the log-density of each level, what it reads, and a first v."""
    if depth == len(pieces.chain) - 1:
        return _last(pieces, theta, eta, data)
    return _outward(pieces, depth, theta, eta, data)


def _last(pieces: Pieces, theta: Theta, eta: Array, data: dict) -> tuple:
    """Of the last factor: what a level reads are eta of its rows and some numbers of theta."""
    link = pieces.chain[-1]
    names = [name for name, _ in link.blocks]
    numbers, unravel = ravel_pytree(_read_by_rows(theta, names))
    each = eta.size // link.levels
    own = jnp.broadcast_to(numbers, (link.levels, numbers.size))
    local = jnp.concatenate([eta.reshape(link.levels, each), own], axis=1)
    rows = {name: data[name] for name in data if name not in NOT_OF_ROWS}
    rows["Z"] = {name: data["Z"][name] for name in names}
    units = jax.tree.map(lambda leaf: leaf.reshape(link.levels, each, *leaf.shape[1:]), rows)

    def of_level(local: Array, v: Array, unit: dict) -> Array:
        theta, eta = unravel(local[each:]), local[:each] + 0
        for b, (name, _) in zip(_effects(pieces, link, theta, v[None]), link.blocks, strict=True):
            eta = eta + jnp.where(unit["mask"], jnp.sum(unit["Z"][name] * b, axis=-1), 0.0)
        return jnp.sum(pieces.rows(theta, eta, unit))

    def log_density(known: Any, at: inner.At) -> Float[Array, " L"]:
        local, units = known
        return inner.standard_normal(at()) + jax.vmap(of_level)(local, at(), units)

    return log_density, (local, units), jnp.zeros((link.levels, link.size), eta.dtype)


def _read_by_rows(theta: Theta, names: list[str]) -> Theta:
    """The numbers of theta that rows depend on besides eta: those of these blocks, and the own."""
    left = {name: part for name, part in theta.items() if name != "beta"}
    return left | {part: {name: theta[part][name] for name in names} for part in ("sd", "cor")}


def _effects(pieces: Pieces, link: Link, theta: Theta, v: Float[Array, "L d"]) -> list[Array]:
    """b of each block of a factor."""
    found, begin = [], 0
    for name, effects in link.blocks:
        found.append(pieces.effects(theta, name, v[:, begin : begin + effects]))
        begin += effects
    return found


def _outward(pieces: Pieces, depth: int, theta: Theta, eta: Array, data: dict) -> tuple:
    """Of a factor that has others within."""
    link = pieces.chain[depth]
    level = data["level"][link.blocks[0][0]]

    def log_density(known: Any, at: inner.At) -> Float[Array, " L"]:
        theta, eta, data = known
        eta = _with_effects(pieces, link, theta, eta, data, at(lambda of_levels: of_levels[level]))
        given = _within(pieces, depth + 1, theta, eta, data)
        parent = data["parent"][str(depth + 1)]
        return inner.standard_normal(at()) + inner.sums(given, parent, link.levels)

    return log_density, (theta, eta, data), jnp.zeros((link.levels, link.size), eta.dtype)


def _with_effects(
    pieces: Pieces, link: Link, theta: Theta, eta: Array, data: dict, v: Float[Array, "R d"]
) -> Array:
    """eta of the rows with the effects of a factor; v is that of each row's level."""
    for b, (name, _) in zip(_effects(pieces, link, theta, v), link.blocks, strict=True):
        added = jnp.sum(data["Z"][name] * b, axis=-1)
        eta = eta + jnp.where(data["mask"], added, 0.0)
    return eta


def _is_there(pieces: Pieces, depth: int, data: dict) -> Array:
    """Which levels the group has: those with rows."""
    level, levels = data["level"][pieces.chain[depth].blocks[0][0]], pieces.chain[depth].levels
    return inner.sums(data["mask"].astype(data["X"].dtype), level, levels) > 0


def num_levels(pieces: Pieces, data: dict) -> Array:
    """Of the last factor in a group; the padding comes after them."""
    return jnp.sum(_is_there(pieces, -1, data), dtype=jnp.int32)


def drawn(pieces: Pieces, theta: Theta, particles: dict, data: dict) -> dict:
    """The particles of a group with the effects of all factors, each several times."""
    data = {name: part for name, part in data.items() if name != "white"}  # the particles are b
    first = particles[min(particles)]
    first = first.reshape(first.shape[0], -1)[:, 0]
    uniforms = [
        inner.spread_uniforms(first, link.levels, link.size, depth)
        for depth, link in enumerate(pieces.chain)
    ]

    def of_particle(x, uniforms):
        x, eta = dict(x), pieces.predictor(theta, x, data)
        for depth, link in enumerate(pieces.chain):
            log_density, known, start = _unit(pieces, depth, theta, eta, data)
            count = num_levels(pieces, data) if depth == len(pieces.chain) - 1 else None
            how = pieces.num_points, count
            v = inner.draws(log_density, known, start, uniforms[depth], *how)
            v = jnp.where(_is_there(pieces, depth, data)[:, None], v, 0.0)
            names = (name for name, _ in link.blocks)
            x |= dict(zip(names, _effects(pieces, link, theta, v), strict=True))
            level = data["level"][link.blocks[0][0]]
            eta = _with_effects(pieces, link, theta, eta, data, v[level])
        return x

    several = jax.vmap(jax.vmap(of_particle, in_axes=(None, 0)))(particles, uniforms)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), several)


def finer(pieces: Pieces, theta: Theta, x: dict, data: dict) -> Array:
    """`log_joint` with twice the points, whose error is far smaller."""
    return log_joint(pieces._replace(num_points=2 * pieces.num_points), theta, x, data)


# --- where it applies -----------------------------------------------------------------------------


def chain_of(blocks: tuple[Block, ...], levels: dict[str, int]) -> tuple[Link, ...]:
    """The inner factors from the outside inwards; none: they are not a chain, or it is too much.

    `levels` has those of the largest group; of the outer factor that is one.
    """
    outer = [block for block in blocks if levels[block.name] == 1]
    within: dict[str, list[Block]] = {}
    for block in blocks:
        if levels[block.name] > 1:
            within.setdefault(block.factor, []).append(block)
    total = sum(levels[block.name] * len(block.effects) for block in blocks)
    if total <= MANY or sum(len(block.effects) for block in outer) > OUTER_UP_TO:
        return ()
    ordered = sorted(within.values(), key=lambda of_factor: len(of_factor[0].labels))
    for coarse, fine in itertools.pairwise(ordered):
        if not is_nested(fine[0].index, coarse[0].index):
            return ()
    links = tuple(
        Link(tuple((b.name, len(b.effects)) for b in of_factor), levels[of_factor[0].name])
        for of_factor in ordered
    )
    sizes = [link.size for link in links]
    last = ordered[-1][0].index
    rows = links[-1].levels * np.bincount(last).max()
    if rows > MORE_ROWS * np.bincount(outer[0].index).max():
        return ()
    if max(sizes) > inner.UP_TO or inner.NUM_POINTS ** sum(sizes) > POINTS_UP_TO:
        return ()
    return links


def is_nested(fine: np.ndarray, coarse: np.ndarray) -> bool:
    """Every level of `fine` lies within one level of `coarse`."""
    pairs = np.unique(np.stack([fine, coarse]), axis=1)
    return bool(pairs.shape[1] == np.unique(fine).size)


def slots(chain: tuple[Link, ...], local: dict[str, np.ndarray], group: np.ndarray) -> Slots:
    """Where each row stands in its group: the rows of an innermost level together."""
    level = local[chain[-1].blocks[0][0]]
    unit = group * chain[-1].levels + level
    sizes = np.bincount(unit)
    order = np.argsort(unit, kind="stable")
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    within = np.empty(unit.size, int)
    within[order] = np.arange(unit.size) - first
    return Slots(level * sizes.max() + within, int(chain[-1].levels * sizes.max()))


def parents(chain: tuple[Link, ...], local: dict[str, np.ndarray], group: np.ndarray) -> dict:
    """For each factor after the first: (G, L), the level of the factor before that each lies in.

    `local` has the level of each row within its group.
    """
    found = {}
    for depth in range(1, len(chain)):
        before, here = (chain[k].blocks[0][0] for k in (depth - 1, depth))
        within = np.zeros((group.max() + 1, chain[depth].levels), np.int32)
        within[group, local[here]] = local[before]
        found[str(depth)] = within
    return found
