"""Which latents of a large pattern become the dense border, and the order of all the others.

With the border last, the Hessian is H = [[R, F], [F', S]]: R has a small bandwidth, F and S are
held as dense. All is done on the host, once for a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jalax._model.structure import Pattern

MOST_BORDER = 2000  # latents; a dense factor of more is slow
MOST_BLOCK = 1000  # rows: a wider band is no better than a dense matrix
MOST_NUMBERS = 200_000_000  # that the blocks and the border hold
LEAST_BLOCK = 32  # rows: smaller ones take longer to call than to work on
STEP = 100_000  # what a step of a scan costs beside its work, in multiplications
TERM = 10  # what an entry of H costs in a product with it
NARROW = LEAST_BLOCK  # a bandwidth that nothing is gained from making smaller


class Split(NamedTuple):
    """The latents outside the border in their order, and those of the border."""

    rest: np.ndarray
    border: np.ndarray
    block: int  # rows of a block of R; 1: R is diagonal
    products: float  # multiplications for the entries of H, roughly

    @property
    def cost(self) -> float:
        """Multiplications of one factorisation, and of what it is made from, roughly."""
        n, m, b = float(self.rest.size), float(self.border.size), self.block
        dense = m**3 / 3 + m**2 * n + self.products
        return dense + (n + n * m if b == 1 else 5 * n * b**2 + 4 * n * m * b + n / b * STEP)

    @property
    def too_large(self) -> bool:
        return self.numbers > MOST_NUMBERS or self.block > MOST_BLOCK

    @property
    def numbers(self) -> int:
        n, m = self.rest.size, self.border.size
        return n * m + m**2 + (n if self.block == 1 else 6 * n * self.block)


def split(pattern: Pattern, pieces: Sequence[int] = ()) -> Split:
    """The cheapest of several; `pieces` are the sizes of the leaves of the latent."""
    H = pattern.matrix()
    best = _ordered(H, np.zeros(pattern.size, bool))
    if best.block == 1 or (best.block <= NARROW < pattern.size):
        return best
    for border in _borders(pattern, H, pieces or (pattern.size,)):
        if border.sum() <= MOST_BORDER:
            best = min(best, _ordered(H, border), key=_preference)
    if best.too_large:
        raise ValueError(_too_large(pattern))
    return best


def _preference(found: Split) -> tuple[bool, float]:
    return found.too_large, found.cost


def _too_large(pattern: Pattern) -> str:
    return (
        f"the Hessian of these {pattern.size:,} latents has {pattern.rows.size:,} entries on and "
        "below its diagonal, and no order of them leaves a narrow band beside a border of at most "
        f"{MOST_BORDER:,}: crossed factors may have more levels in one of them only. Merge rare "
        "levels, or fit fewer of them."
    )


def _ordered(H: Any, border: np.ndarray) -> Split:
    """The others in the order that makes their band narrow."""
    from scipy.sparse import csgraph

    inside = np.flatnonzero(~border)
    R = H[inside][:, inside].tocsr()
    order = np.arange(inside.size)
    width = _bandwidth(R, order)
    if width > 1:
        other = np.asarray(csgraph.reverse_cuthill_mckee(R, symmetric_mode=True), np.int64)
        narrower = _bandwidth(R, other)
        if narrower < width:
            order, width = other, narrower
    # In steps of eight rows: data of the same sizes seldom need another program.
    block = 1 if width == 0 else max(LEAST_BLOCK, -(-width // 8) * 8)
    last = np.flatnonzero(border)
    # A row needs as many products with H as it has entries: one each for what it meets.
    most = _longest_row(R) + _longest_row(H[:, last].tocsr())
    return Split(inside[order], last, block, TERM * H.nnz * most)


def _longest_row(matrix: Any) -> int:
    return int(np.diff(matrix.indptr).max(initial=0))


def _bandwidth(R: Any, order: np.ndarray) -> int:
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    entries = R.tocoo()
    return int(np.abs(place[entries.row] - place[entries.col]).max(initial=0))


def _borders(pattern: Pattern, H: Any, pieces: Sequence[int]) -> Iterator[np.ndarray]:
    """Borders to try, as masks: all but one piece, the latents that meet most others, all."""
    size = pattern.size
    if size <= MOST_BORDER:
        yield np.ones(size, bool)
    spans = {*_spans(pieces), *_spans(_runs(pattern, pieces))}
    for first, last in sorted(spans, key=lambda span: span[0] - span[1])[:6]:
        border = np.ones(size, bool)
        border[first:last] = False
        yield border
    degree = np.diff(H.indptr)
    by_degree = np.argsort(-degree, kind="stable")
    for number in _numbers_of_hubs(degree[by_degree]):
        border = np.zeros(size, bool)
        border[by_degree[:number]] = True
        yield border
    yield ~_independent(H, by_degree[::-1])


def _spans(sizes: Iterable[int]) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *sizes]).tolist()
    return list(zip(ends[:-1], ends[1:], strict=True))


def _runs(pattern: Pattern, pieces: Sequence[int]) -> list[int]:
    """Sizes of runs of neighbours in the latent of which no two meet: the levels of a factor."""
    nearest = np.full(pattern.size, -1)  # the last of the earlier ones that each meets
    off = pattern.rows != pattern.cols
    np.maximum.at(nearest, pattern.rows[off], pattern.cols[off])
    begins = {first for first, _ in _spans(pieces)}
    sizes: list[int] = []
    first = 0
    for i, met in enumerate(nearest.tolist()):
        if i > first and (met >= first or i in begins):
            sizes.append(i - first)
            first = i
    return [*sizes, pattern.size - first]


def _numbers_of_hubs(degree: np.ndarray) -> list[int]:
    """1, 2, 4, ... and where the degrees, falling, drop most."""
    most = min(MOST_BORDER, degree.size - 1)
    drops = degree[:most] / degree[1 : most + 1]
    steepest = np.argsort(-drops, kind="stable")[:4]
    jumps = [int(i) + 1 for i in steepest if drops[i] >= 1.5]
    return sorted({*jumps, *(2**k for k in range(11) if 2**k <= most)})


def _independent(H: Any, order: np.ndarray) -> np.ndarray:
    """A set of latents of which no two meet, chosen greedily in this order."""
    free, chosen = np.ones(H.shape[0], bool), np.zeros(H.shape[0], bool)
    for i in order.tolist():
        if free[i]:
            chosen[i] = True
            free[H.indices[H.indptr[i] : H.indptr[i + 1]]] = False
    return chosen
