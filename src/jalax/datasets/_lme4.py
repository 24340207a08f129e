"""Two example data sets of linear mixed models in lme4."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ._read import Frame, columns


@dataclasses.dataclass(frozen=True, eq=False)
class Sleepstudy(Frame):
    """Reaction times of 18 subjects on ten days of sleep deprivation, 180 observations.

    Attributes:
        reaction: the average reaction time in milliseconds.
        days: days of sleep deprivation, 0 to 9.
        subject: the subject's number.
    """

    factors = ("subject",)

    reaction: Float[np.ndarray, " n"]
    days: Float[np.ndarray, " n"]
    subject: Int[np.ndarray, " n"]

    @property
    def covariates(self) -> Float[np.ndarray, "n 2"]:
        """An intercept and the days."""
        return np.column_stack([np.ones(self.days.size), self.days])


def sleepstudy() -> Sleepstudy:
    """The `sleepstudy` data of lme4 (Belenky et al. 2003).

    >>> from jalax import datasets
    >>> data = datasets.sleepstudy()
    >>> data.reaction.size, np.unique(data.subject).size
    (180, 18)
    """
    table = columns("sleepstudy.csv")
    return Sleepstudy(
        reaction=np.array(table["Reaction"], float),
        days=np.array(table["Days"], float),
        subject=np.array(table["Subject"], np.int64),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Dyestuff(Frame):
    """The yield of dyestuff from six batches of an intermediate product, 30 observations.

    Attributes:
        yield_: grams of standard colour.
        batch: the batch, A to F.
    """

    yield_: Float[np.ndarray, " n"]
    batch: np.ndarray

    @property
    def covariates(self) -> Float[np.ndarray, "n 1"]:
        """An intercept."""
        return np.ones((self.yield_.size, 1))


def dyestuff() -> Dyestuff:
    """The `Dyestuff` data of lme4 (Davies and Goldsmith 1972).

    >>> from jalax import datasets
    >>> float(datasets.dyestuff().yield_.mean())
    1527.5
    """
    table = columns("dyestuff.csv")
    return Dyestuff(np.array(table["Yield"], float), np.array(table["Batch"]))
