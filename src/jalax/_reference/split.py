"""Which latents of a large pattern become the dense border, and the order of all the others.

With the border last, the Hessian is H = [[R, F], [F', S]]: R has a small bandwidth, F and S are
held as dense. All is done on the host, once for a pattern.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jalax._model.structure import Pattern

MOST_BORDER = 2000  # latents; a dense factor of more is slow
MOST_BLOCK = 1000  # rows: a wider band is no better than a dense matrix
MOST_NUMBERS = 200_000_000  # that the blocks and the border hold
LEAST_BLOCK = 32  # rows: smaller ones take longer to call than to work on
STEP = 100_000  # what a step of a scan costs beside its work, in multiplications
TERM = 1  # what an entry of H costs in a product with it, at least: sizes decide, not the data
NARROW = LEAST_BLOCK  # a bandwidth that nothing is gained from making smaller
FEW = 1000  # latents: all borders are tried
MUCH = 2.0  # times cheaper


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
    """The cheapest of several; `pieces` are the sizes of the leaves of the latent.

    Borders that follow from these sizes come first, and others have to be much better: other data
    of the same sizes should find the same border, or programs are compiled again.
    """
    H = pattern.matrix()
    without = _ordered(H, np.zeros(pattern.size, bool))
    if without.block == 1 or (without.block <= NARROW and pattern.size > FEW):
        return without
    first = [_ordered(H, border) for border in _by_sizes(pattern, pieces or (pattern.size,))]
    others = [without, *(_ordered(H, border) for border in _by_entries(H))]
    best = min((*first, *others), key=_preference)
    if first and not min(first, key=_preference).too_large:
        sure = min(first, key=_preference)
        best = best if best.cost < sure.cost / MUCH else sure
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
    from scipy import sparse
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
    # In the border those that meet most come first: the others' columns then need not hold them.
    last = np.flatnonzero(border)
    last = last[np.argsort(-np.diff(H.indptr)[last], kind="stable")]
    # A row needs as many products with H as it has entries that are read there.
    most = _longest_row(R) + max(
        _longest_row(H[inside][:, last]), _longest_row(sparse.tril(H[last][:, last]).tocsr())
    )
    return Split(inside[order], last, block, TERM * H.nnz * rounded(most))


def rounded(number: int) -> int:
    """Up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: other data of the same sizes need other colours."""
    power = 1
    while 2 * power < number:
        power *= 2
    return next(k for k in (power, 3 * power // 2, 2 * power) if k >= number)


def _longest_row(matrix: Any) -> int:
    return int(np.diff(matrix.indptr).max(initial=0))


def _bandwidth(R: Any, order: np.ndarray) -> int:
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    entries = R.tocoo()
    return int(np.abs(place[entries.row] - place[entries.col]).max(initial=0))


def _by_sizes(pattern: Pattern, pieces: Sequence[int]) -> Iterator[np.ndarray]:
    """Borders to try, as masks: all, and all but one piece or the levels of one factor."""
    size = pattern.size
    if size <= MOST_BORDER:
        yield np.ones(size, bool)
    spans = {*_spans(pieces), *_spans(_runs(pattern, pieces))}
    for first, last in sorted(spans, key=lambda span: (span[0] - span[1], span))[:6]:
        if 0 < size - (last - first) <= MOST_BORDER:
            border = np.ones(size, bool)
            border[first:last] = False
            yield border


def _by_entries(H: Any) -> Iterator[np.ndarray]:
    """Those that meet most others, and all but some of which no two meet."""
    degree = np.diff(H.indptr)
    by_degree = np.argsort(-degree, kind="stable")
    for number in _numbers_of_hubs(degree[by_degree]):
        border = np.zeros(degree.size, bool)
        border[by_degree[:number]] = True
        yield border
    border = ~_independent(H, by_degree[::-1])
    if border.sum() <= MOST_BORDER:
        yield border


def _spans(sizes: Iterable[int]) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *sizes]).tolist()
    return list(itertools.pairwise(ends))


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
