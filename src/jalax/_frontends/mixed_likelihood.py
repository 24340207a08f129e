"""What a result of `jalax.mixed` does otherwise than others because of its rows, or of REML."""

from __future__ import annotations

import dataclasses
from typing import Any

from jalax._fit.profile import Profile, ProfileLikelihood
from jalax._fit.result import FitResult
from jalax._fit.simulation import Bootstrap
from jalax._frontends import mixed_restricted
from jalax.models._mixed import MixedDesign, can_simulate


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MixedLikelihood(FitResult):
    """A `FitResult` of a mixed model, below `MixedResult`."""

    mixed: MixedDesign | None = None

    @property
    def num_observations(self) -> int | None:
        """How many rows the table of the data has."""
        return super().num_observations if self.mixed is None else self.mixed.num_rows

    @property
    def likelihood_mark(self) -> str:
        return "" if self.mixed is None else mixed_restricted.likelihood_mark(self.mixed)

    def bootstrap(self, key, num: int = 200) -> Bootstrap:
        """As of any result, by the same likelihood as the fit."""
        self._check_simulate()
        return super().bootstrap(key, num)

    def profile(self, name: str, level: float = 0.95) -> ProfileLikelihood:
        """As of any result; of REML only numbers that it does not integrate out."""
        mixed_restricted.check_profile(self.mixed, name)
        return super().profile(name, level)

    def confidence_intervals(self, level: float = 0.95, method: Profile | None = None) -> Any:
        """As of any result; of REML there are no profiles of all numbers."""
        if method is not None:
            mixed_restricted.check_profile(self.mixed, None)
        return super().confidence_intervals(level, method)

    def _check_simulate(self) -> None:
        if self.mixed is not None and not can_simulate(self.mixed.design):
            raise ValueError(
                "this model cannot simulate: a row that counts otherwise than once stands for "
                "several responses, and of a censored time it is not known when the others would "
                "have been. Of weights, repeat the rows instead."
            )
