"""How the levels of a factor become columns: R's contrasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST_LEVELS = 95  # of polynomials, as in R: beyond, they are no longer orthogonal to many digits


class Refused(ValueError):
    """A sentence about a part of a formula that needs no other around it."""


@dataclasses.dataclass(frozen=True)
class Contrasts:
    """A coding of factors: beside an intercept a level less many columns than levels."""

    def matrix(self, levels: list[Any]) -> np.ndarray:
        """A row for each level."""
        raise NotImplementedError

    def labels(self, levels: list[Any]) -> list[str]:
        """Of the columns, as they stand in brackets: `arm[b]`."""
        return [str(j + 1) for j in range(len(levels) - 1)]

    # What formulae asks of a coding.

    def code_with_intercept(self, levels: list[Any]) -> Any:
        """Without an intercept each level has its own column, in R whatever the coding."""
        return _as_formulae(np.eye(len(levels)), [str(level) for level in levels])

    def code_without_intercept(self, levels: list[Any]) -> Any:
        return _as_formulae(self.matrix(levels), self.labels(levels))


def _as_formulae(matrix: np.ndarray, labels: list[str]) -> Any:
    from formulae.categorical import ContrastMatrix

    return ContrastMatrix(np.asarray(matrix, float), labels)


@dataclasses.dataclass(frozen=True)
class Treatment(Contrasts):
    """Differences from one level, R's `contr.treatment`: what factors have by themselves.

    Args:
        reference: that level; None: the first one.
    """

    reference: Any = None

    def _position(self, levels: list[Any]) -> int:
        if self.reference is None:
            return 0
        if self.reference not in levels:
            raise Refused(
                f"Treatment(reference={self.reference!r}): there is no such level; these are "
                f"{', '.join(repr(level) for level in levels)}."
            )
        return levels.index(self.reference)

    def matrix(self, levels: list[Any]) -> np.ndarray:
        return np.delete(np.eye(len(levels)), self._position(levels), axis=1)

    def labels(self, levels: list[Any]) -> list[str]:
        left = self._position(levels)
        return [str(level) for j, level in enumerate(levels) if j != left]


@dataclasses.dataclass(frozen=True)
class Sum(Contrasts):
    """Differences from the mean of all levels, R's `contr.sum`; that of the last one is not shown.

    >>> import jalax
    >>> jalax.contrasts.Sum().matrix(["a", "b", "c"]).tolist()
    [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
    """

    def matrix(self, levels: list[Any]) -> np.ndarray:
        count = len(levels) - 1
        return np.concatenate([np.eye(count), -np.ones((1, count))])

    def labels(self, levels: list[Any]) -> list[str]:
        return [str(level) for level in levels[:-1]]


@dataclasses.dataclass(frozen=True)
class Helmert(Contrasts):
    """Each level against the mean of those before it, R's `contr.helmert`.

    >>> import jalax
    >>> jalax.contrasts.Helmert().matrix(["a", "b", "c"]).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [0.0, 2.0]]
    """

    def matrix(self, levels: list[Any]) -> np.ndarray:
        rows, columns = np.indices((len(levels), len(levels) - 1))
        return np.where(rows <= columns, -1.0, np.where(rows == columns + 1, columns + 1.0, 0.0))


@dataclasses.dataclass(frozen=True)
class Poly(Contrasts):
    """Orthogonal polynomials of the levels' places, R's `contr.poly` of an ordered factor.

    The columns are `.L`, `.Q`, `.C`, `^4` and so on: linear, quadratic, cubic.
    """

    def matrix(self, levels: list[Any]) -> np.ndarray:
        count = len(levels)
        if count > MOST_LEVELS:
            raise Refused(
                f"Poly() takes at most {MOST_LEVELS} levels, got {count}: give their number as a "
                "column, and take poly(column, 3)."
            )
        places = np.linspace(-1.0, 1.0, count)
        # Legendre's polynomials span the same spaces as powers, and keep their digits.
        q, r = np.linalg.qr(np.polynomial.legendre.legvander(places, count - 1))
        return (q * np.sign(np.diag(r)))[:, 1:]

    def labels(self, levels: list[Any]) -> list[str]:
        first = [".L", ".Q", ".C"]
        return [*first, *(f"^{power}" for power in range(4, len(levels)))][: len(levels) - 1]


NO_CONTRASTS: dict[str, Contrasts] = {}
KINDS: dict[str, type[Contrasts]] = {
    kind.__name__: kind for kind in (Treatment, Sum, Helmert, Poly)
}


def check(contrasts: Any) -> dict[str, Contrasts]:
    """`contrasts=` of a model by formula; None: there are none."""
    example = "contrasts={'arm': jalax.contrasts.Helmert()}"
    if contrasts is None:
        return NO_CONTRASTS
    if not isinstance(contrasts, Mapping):
        raise TypeError(
            f"contrasts must name factors, as in {example}, got {type(contrasts).__name__}."
        )
    for name, coding in contrasts.items():
        if not isinstance(coding, tuple(KINDS.values())):
            raise TypeError(
                f"the contrasts of {name!r} must be an object of jalax.contrasts, as in {example}, "
                f"got {coding!r}."
            )
    return dict(contrasts)


# --- in a file -----------------------------------------------------------------------------------


def written(contrasts: Mapping[str, Contrasts]) -> dict[str, Any] | None:
    """In plain texts and numbers; None: there are none."""
    plain = {}
    for name, coding in contrasts.items():
        fields = dataclasses.asdict(coding).items()
        numbers = {key: x.item() if isinstance(x, np.generic) else x for key, x in fields}
        plain[name] = {"name": type(coding).__name__} | numbers
    return plain or None


def read(plain: Any) -> dict[str, Contrasts]:
    """The inverse of `written`."""
    found = {}
    for name, fields in (plain or {}).items():
        known = {field: value for field, value in fields.items() if field != "name"}
        found[name] = KINDS[fields["name"]](**known)
    return found
