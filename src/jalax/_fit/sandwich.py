r"""Standard errors that do not rely on the model: $I^{-1} \sum_i s_i s_i^\top I^{-1}$."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jalax._evidence.record import SavedState
from jalax._fit.simulation import model_of
from jalax._model.frequencies import on_the_host
from jalax._model.information import scores_by_group
from jalax._runtime.compilation import LEVEL_1, jit


@dataclasses.dataclass(frozen=True)
class Sandwich:
    """Robust standard errors: `standard_errors(method=jalax.Sandwich())`.

    The spread of the groups' scores takes the place of the information between its two inverses
    (Huber and White). They hold where the model is wrong about the distribution within a group, as
    long as groups are independent and many.
    """

    def covariance(self, result: Any) -> np.ndarray:
        """On the optimiser's scale, like `Uncertainty.covariance`."""
        model = model_of(result, "a sandwich")
        if not model.grouped or isinstance(result.state, SavedState):
            raise ValueError(
                "sandwich errors compare the scores of independent groups, and this is no fit of a "
                "jalax.GroupedModel in memory."
            )
        scores = np.asarray(_scores(model, result.free, result.state), float)
        bread = result.uncertainty.covariance
        return bread @ (on_the_host(model)[:, None] * scores).T @ scores @ bread


_scores = jit(LEVEL_1)(scores_by_group)
