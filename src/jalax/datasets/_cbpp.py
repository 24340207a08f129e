"""Contagious bovine pleuropneumonia, the example of binomial mixed models in lme4."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ._read import Frame, columns


@dataclasses.dataclass(frozen=True, eq=False)
class Cbpp(Frame):
    """New cases of a lung disease in 15 herds of cattle over four periods, 56 observations.

    Attributes:
        herd: the herd, 1 to 15.
        incidence: the number of new cases.
        size: the number of animals at risk.
        period: the period, 1 to 4.
    """

    factors = ("herd", "period")

    herd: Int[np.ndarray, " n"]
    incidence: Int[np.ndarray, " n"]
    size: Int[np.ndarray, " n"]
    period: Int[np.ndarray, " n"]

    @property
    def covariates(self) -> Float[np.ndarray, "n 4"]:
        """An intercept and indicators of periods 2, 3 and 4: the coding of `~ period` in R."""
        indicators = self.period[:, None] == np.arange(2, 5)
        return np.column_stack([np.ones(self.period.size), indicators])


def cbpp() -> Cbpp:
    """The `cbpp` data of lme4 (Lesnoff et al. 2004).

    >>> from jalax import datasets
    >>> data = datasets.cbpp()
    >>> int(data.incidence.sum()), int(data.size.sum())
    (99, 842)
    >>> data.covariates.shape
    (56, 4)
    """
    table = columns("cbpp.csv")
    return Cbpp(**{name: np.array(values, dtype=np.int64) for name, values in table.items()})
