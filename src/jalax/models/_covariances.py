"""Covariances of random effects, as `jalax.mixed` is asked for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from . import _laws
from ._correlations import MATERN, Correlation, Decay, Equal, Field, Free, Given, Nil, Powers
from ._formula import Block
from ._laws import HeavyTailed, Joint, Law
from ._levels import Levels, Places, as_places, chained, distances, levels_of, located, steps

MOST_JOINT = 2000  # levels that all depend on each other: beyond, a dense factor is slow


class Placed(NamedTuple):
    """A covariance for a block: its law, and what the data have for it."""

    law: Law
    known: dict[str, Any] = {}  # noqa: RUF012, a tuple's defaults are not changed
    over: str = ""  # the factor whose levels the effects are


@dataclasses.dataclass(frozen=True, eq=False)
class Covariance:
    """How the random effects of a term of a formula vary together."""

    kind: ClassVar[str]  # its name in a formula and in files

    def is_joint(self, block: Block) -> bool:
        """Do the levels of the factor depend on each other?"""
        return False

    def placed(self, block: Block, labels: Sequence[str], frame: Any) -> Placed:
        """For a block whose latents are the levels `labels`."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Its numbers, for a file."""
        return {}

    def table(self) -> tuple[list[str], np.ndarray] | None:
        """Labels and what stands beside them, for a file."""
        return None

    @classmethod
    def of_file(cls, options: dict[str, Any], table: Any) -> Covariance:
        return cls(**options)


@dataclasses.dataclass(frozen=True, eq=False)
class Unstructured(Covariance):
    """Any standard deviations and any correlations, `us(x | g)`: where nothing else is asked for.

    >>> import jalax
    >>> jalax.covariances.Unstructured()
    Unstructured()
    """

    kind: ClassVar = "us"

    def placed(self, block, labels, frame):
        size = len(block.effects)
        return Placed(_laws.Unstructured(size, Free(size)))


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Covariance):
    """A standard deviation for each effect, and no correlations: `diag(x | g)`.

    >>> import jalax
    >>> jalax.covariances.Diagonal()
    Diagonal()
    """

    kind: ClassVar = "diag"

    def placed(self, block, labels, frame):
        return Placed(Law(len(block.effects), Nil()))


@dataclasses.dataclass(frozen=True, eq=False)
class CompoundSymmetry(Covariance):
    """A standard deviation for each effect, and one correlation of all pairs: `cs(0 + f | g)`.

    As glmmTMB's `cs`: the standard deviations may differ. The correlation of q effects is above
    -1 / (q - 1).

    >>> import jalax
    >>> jalax.covariances.CompoundSymmetry()
    CompoundSymmetry()
    """

    kind: ClassVar = "cs"

    def placed(self, block, labels, frame):
        if len(block.effects) < 2:
            raise ValueError(
                f"cs is about the correlation of several effects, and the term of {block.name!r} "
                f"has one, {block.effects[0]!r}: leave cs out, or write cs(0 + f | {block.factor}) "
                "with a factor f."
            )
        return Placed(Law(len(block.effects), Equal()))


@dataclasses.dataclass(frozen=True, eq=False)
class AR1(Covariance):
    r"""One standard deviation, and the correlation $\phi^k$ of levels that are k steps apart.

    `ar1(0 + C(week) | g)` is a series of weeks in each level of g, and the levels of g are
    independent, as in glmmTMB. `(1 | week)` with `covariances={"week": jalax.covariances.AR1()}`
    is one series. Levels that are numbers (or end in one, as "w10") are steps of the smallest gap
    between them, so that a week without rows counts; others need the order of an ordered
    Categorical.

    >>> import jalax
    >>> jalax.covariances.AR1()
    AR1()
    """

    kind: ClassVar = "ar1"

    def is_joint(self, block):
        return len(block.effects) == 1

    def placed(self, block, labels, frame):
        levels = levels_of(block, labels, self.kind)
        return _placed(levels, Powers(), chained(steps(levels, frame)))


@dataclasses.dataclass(frozen=True, eq=False)
class Exponential(Covariance):
    r"""One standard deviation, and the correlation $\exp(-d / r)$ at a distance d, with a range r.

    `exp(0 + C(day) | g)` is a process in each level of g. `(1 | site)` with
    `covariances={"site": jalax.covariances.Exponential(coordinates)}` is one field over all sites:
    its levels depend on each other. Along a line that costs no more than independent levels do;
    in the plane there may be 2,000.

    Args:
        coordinates: of the levels, by label: a dict or a DataFrame whose index has the labels, with
            any number of coordinates. By default the labels are the coordinates, such as "1.5" or
            "(2, 3)".

    >>> import jalax
    >>> jalax.covariances.Exponential({"a": (0.0, 1.0), "b": (2.0, 0.0)})
    Exponential(coordinates=<2 labels>)
    """

    kind: ClassVar = "exp"
    coordinates: Any = None

    def __post_init__(self):
        object.__setattr__(self, "coordinates", as_places(type(self).__name__, self.coordinates))

    def is_joint(self, block):
        return len(block.effects) == 1

    def placed(self, block, labels, frame):
        levels = levels_of(block, labels, self.kind)
        where = located(levels, self.coordinates)
        if where.shape[1] == 1:
            return _placed(levels, Decay(), chained(where[:, 0]))
        return _placed(levels, Field(), distances(levels, where, MOST_JOINT))

    def table(self):
        return None if self.coordinates is None else self.coordinates.table()

    @classmethod
    def of_file(cls, options, table):
        return cls(None if table is None else Places(*table), **options)


@dataclasses.dataclass(frozen=True, eq=False)
class Matern(Exponential):
    r"""One standard deviation, and Matern's correlation with a range r.

    $$\rho(d) = \frac{2^{1 - \nu}}{\Gamma(\nu)} (d / r)^\nu K_\nu(d / r),$$

    glmmTMB's `mat`, but the smoothness is given. At the diagonal 16 roundings are added (2e-6 in
    float32), since neighbours of a smooth field are nearly equal.

    Args:
        coordinates: as of `Exponential`.
        smoothness: $\nu$, 0.5 (which is `Exponential`), 1.5 or 2.5.

    >>> import jalax
    >>> jalax.covariances.Matern({"a": (0.0, 1.0), "b": (2.0, 0.0)}, smoothness=2.5)
    Matern(coordinates=<2 labels>, smoothness=2.5)
    """

    kind: ClassVar = "mat"
    smoothness: float = 1.5

    def __post_init__(self):
        super().__post_init__()
        if self.smoothness not in [twice / 2 for twice in MATERN]:
            raise ValueError(f"Matern(smoothness=...) is 0.5, 1.5 or 2.5, got {self.smoothness!r}.")

    def placed(self, block, labels, frame):
        levels = levels_of(block, labels, self.kind)
        where = located(levels, self.coordinates)
        field = Field(twice=round(2 * self.smoothness))
        return _placed(levels, field, distances(levels, where, MOST_JOINT))

    def options(self):
        return {"smoothness": self.smoothness}


def _placed(levels: Levels, correlation: Correlation, known: dict[str, np.ndarray]) -> Placed:
    if levels.is_joint:
        return Placed(Joint(1, correlation), known)
    constants = tuple((name, _as_tuple(value.tolist())) for name, value in known.items())
    law = Law(len(levels.labels), correlation, shared=True, constants=constants)
    return Placed(law, over=levels.over)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Known(Covariance):
    """The covariance of the levels is a multiple of a given matrix, such as a relationship matrix.

    The standard deviation is that of a level with a one on the diagonal. Where the inverse of the
    matrix has zeros, as that of a pedigree has, they are made use of. The term has one effect:
    `(1 | animal)`. Of several `(1 | animal) + (0 + x | animal)` has two, with a matrix each.

    Args:
        matrix: symmetric and positive definite; a DataFrame has its labels with it.
        labels: of its rows; those of levels without rows in the data are left out.

    >>> import jalax
    >>> jalax.covariances.Known([[1.0, 0.5], [0.5, 1.0]], labels=["mother", "child"])
    Known(<matrix of 2 labels>)
    """

    kind: ClassVar = "known"
    matrix: Any
    labels: Any = None

    def __post_init__(self):
        matrix, labels = self.matrix, self.labels
        if labels is None:
            if not hasattr(matrix, "index"):
                raise ValueError(
                    "Known(matrix, labels) needs the label of each row of the matrix: pass "
                    "labels=[...], or a DataFrame."
                )
            labels = list(matrix.index)
        matrix = np.array(matrix.toarray() if hasattr(matrix, "toarray") else matrix, float)
        labels = tuple(str(label) for label in labels)
        _check_matrix(matrix, labels)
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "labels", labels)

    def is_joint(self, block):
        return True

    def placed(self, block, labels, frame):
        if len(block.effects) > 1:
            raise ValueError(
                f"jalax.covariances.Known is for terms with one effect, and that of {block.name!r} "
                f"has {', '.join(block.effects)}: write (1 | {block.factor}) + (0 + "
                f"{block.effects[-1]} | {block.factor}), which are the blocks {block.factor!r} and "
                f"'{block.factor}.2', and a matrix for each."
            )
        position = {label: i for i, label in enumerate(self.labels)}
        missing = [label for label in labels if label not in position]
        if missing:
            raise ValueError(
                f"the matrix of {block.name!r} has no row for the level {missing[0]!r}; its labels "
                f"begin with {', '.join(map(repr, self.labels[:3]))}."
            )
        rows = [position[label] for label in labels]
        return Placed(Joint(1, Given()), _known(self.matrix[np.ix_(rows, rows)], block.name))

    def table(self):
        return list(self.labels), self.matrix

    @classmethod
    def of_file(cls, options, table):
        return cls(table[1], table[0])

    def __repr__(self):
        return f"Known(<matrix of {len(self.labels)} labels>)"


def _check_matrix(matrix: np.ndarray, labels: tuple[str, ...]) -> None:
    if matrix.shape != (len(labels),) * 2:
        raise ValueError(f"the matrix of Known has shape {matrix.shape}, for {len(labels)} labels.")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ValueError(f"Known has the label {twice!r} twice.")
    scale = np.abs(matrix).max(initial=0.0)
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, atol=1e-8 * scale):
        raise ValueError("the matrix of Known must be symmetric and finite.")


def _known(matrix: np.ndarray, name: str) -> dict[str, Any]:
    try:
        root = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError as error:
        least = np.linalg.eigvalsh(matrix)[0]
        raise ValueError(
            f"the matrix of {name!r} has the eigenvalue {least:.2g}: it must be positive definite "
            "(are two levels the same, or twins?)."
        ) from error
    inverse = np.linalg.inv(root)
    precision = inverse.T @ inverse
    size = np.sqrt(np.diagonal(precision))
    # What is zero in the inverse of a pedigree's matrix is a rounding here.
    precision[np.abs(precision) < 1e-9 * np.outer(size, size)] = 0.0
    log_root = np.log(np.diagonal(root)).sum()
    return {"precision": precision, "root": root, "log root": log_root}


@dataclasses.dataclass(frozen=True, eq=False)
class StudentT(Covariance):
    r"""Heavy tails: Student's distribution of the effects of a level, with any correlations.

    $b = \Lambda z / \sqrt{w}$ with normal z and one $w \sim \chi^2_{df} / df$ a level, so that a
    few levels may be far from the others. The summary has scales in place of standard deviations,
    which are $\sqrt{df / (df - 2)}$ times as large.

    Args:
        df: the degrees of freedom; None estimates them.

    >>> import jalax
    >>> jalax.covariances.StudentT(df=4.0)
    StudentT(df=4.0)
    """

    kind: ClassVar = "student"
    df: float | None = None

    def __post_init__(self):
        if self.df is not None and not self.df > 0:
            raise ValueError(f"StudentT(df=...) must be positive, got {self.df!r}.")

    def placed(self, block, labels, frame):
        size, df = len(block.effects), None if self.df is None else float(self.df)
        return Placed(HeavyTailed(size, Free(size), df=df))

    def options(self):
        return {"df": None if self.df is None else float(self.df)}


KINDS: dict[str, type[Covariance]] = {
    cls.kind: cls
    for cls in (
        *(Unstructured, Diagonal, CompoundSymmetry, AR1, Exponential),
        *(Matern, Known, StudentT),
    )
}


# --- in a file -----------------------------------------------------------------------------------


def written(covariance: Covariance) -> dict[str, Any]:
    """In plain numbers, texts and arrays."""
    known: dict[str, Any] = {"kind": covariance.kind, "options": covariance.options()}
    table = covariance.table()
    return known if table is None else known | {"labels": table[0], "values": table[1]}


def read(plain: Mapping[str, Any]) -> Covariance:
    """The inverse of `written`."""
    table = (plain["labels"], plain["values"]) if "labels" in plain else None
    return KINDS[plain["kind"]].of_file(plain["options"], table)
