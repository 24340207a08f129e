"""How a pattern is computed and factorised: made on the host, read by programs as an argument.

The Hessian comes from its products with a few vectors. Latents have the same colour where no row
of the Hessian that is read meets two of them, so that one product has an entry of one of them in
each of these rows. A row of the border meets very many, and is not read: what it shares with the
others, and with those after it in the border, stands in its own column too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Int

from jalax._model.structure import Pattern
from jalax._reference.split import Split, rounded, split
from jalax._runtime.nodes import register_dataclass

MOST_NEIGHBOURS = 20_000_000  # pairs of latents that a row meets; beyond, colours go by position


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """Only its sizes are static: n latents in K blocks of b rows, and m in the border.

    The last block is filled up. A diagonal (b = 1) has no masks of blocks.
    """

    rest: Int[Array, " n"]  # positions of the latents in their order
    border: Int[Array, " m"]
    place: Int[Array, " d"]  # where in (rest, border) each latent is
    colour: Int[Array, " d"]
    inside: Bool[Array, "K b b"]  # the entries of each block, on and below the diagonal
    below: Bool[Array, "K b b"]  # those of a block's rows and the columns of the block before
    beside: Bool[Array, "n m"]
    corner: Bool[Array, "m m"]  # on and below the diagonal
    block: int = dataclasses.field(metadata={"static": True})
    num_colours: int = dataclasses.field(metadata={"static": True})

    @property
    def size(self) -> int:
        return self.place.shape[0]

    @property
    def num_blocks(self) -> int:
        return -(-self.rest.shape[0] // self.block)


def plan_of(pattern: Pattern, pieces: Sequence[int] = (), least_colours: int = 1) -> Plan:
    """The plan of a pattern; `pieces` are the sizes of the leaves of the latent.

    `least_colours`: those of an earlier plan, whose programs then serve this one too if it needs
    fewer.
    """
    chosen = split(pattern, pieces)
    colour, num_colours = _colours(pattern, chosen)
    order = np.concatenate([chosen.rest, chosen.border])
    place = np.empty(pattern.size, np.int32)
    place[order] = np.arange(pattern.size)
    rest, border = (part.astype(np.int32) for part in (chosen.rest, chosen.border))
    indices = {"rest": rest, "border": border, "place": place, "colour": colour}
    arrays = jax.device_put({**indices, **_masks(pattern, chosen, place)})
    num_colours = max(num_colours, least_colours)
    return Plan(**arrays, block=chosen.block, num_colours=num_colours)


def _masks(pattern: Pattern, chosen: Split, place: np.ndarray) -> dict[str, np.ndarray]:
    n, m, b = chosen.rest.size, chosen.border.size, chosen.block
    ends = place[pattern.rows], place[pattern.cols]
    row, col = np.maximum(*ends), np.minimum(*ends)
    num_blocks = 0 if b == 1 else -(-n // b)
    inside, below = np.zeros((2, num_blocks, b, b), bool)
    beside, corner = np.zeros((n, m), bool), np.zeros((m, m), bool)
    beside[col[(row >= n) & (col < n)], row[(row >= n) & (col < n)] - n] = True
    corner[row[col >= n] - n, col[col >= n] - n] = True
    if b > 1:
        same, next_one = ((row < n) & (row // b - col // b == step) for step in (0, 1))
        inside[row[same] // b, row[same] % b, col[same] % b] = True
        below[row[next_one] // b, row[next_one] % b, col[next_one] % b] = True
    return {"inside": inside, "below": below, "beside": beside, "corner": corner}


def _colours(pattern: Pattern, chosen: Split) -> tuple[np.ndarray, int]:
    """A colour of every latent, and how many there are, in round numbers."""
    H = pattern.matrix()
    colour = np.empty(pattern.size, np.int32)
    R = H[chosen.rest][:, chosen.rest]
    colour[chosen.rest] = _colours_of_band(R, chosen.block)
    first = colour[chosen.rest].max(initial=-1) + 1
    colour[chosen.border] = first + _colours_of_border(H, chosen)
    return colour, rounded(int(colour.max()) + 1)


def _colours_of_band(R: Any, block: int) -> np.ndarray:
    size = R.shape[1]
    if block == 1:
        return np.zeros(size, np.int32)
    degree = np.diff(R.indptr).astype(float)
    if np.sum(degree**2) > MOST_NEIGHBOURS:  # wide and full rows: position is as good
        return np.arange(size, dtype=np.int32) % (2 * block + 1)
    return _greedy(R @ R)


def _colours_of_border(H: Any, chosen: Split) -> np.ndarray:
    """Of a column of the border the rows outside it are read, and those from its own place on."""
    from scipy import sparse

    rest, border = H[chosen.rest][:, chosen.border], H[chosen.border][:, chosen.border]
    return _greedy(rest.T @ rest + sparse.tril(border).T @ border)


def _greedy(meet: Any) -> np.ndarray:
    """Colours for the columns, in their order: the first that no column they meet has."""
    meet = (meet + meet.T).tocsr()
    size = meet.shape[0]
    ends, others = meet.indptr.tolist(), meet.indices.tolist()
    colour = [-1] * size
    for i in range(size):
        taken = {colour[j] for j in others[ends[i] : ends[i + 1]]}
        mine = 0
        while mine in taken:
            mine += 1
        colour[i] = mine
    return np.asarray(colour, np.int32)
