"""What one does with a fit: errors and intervals, profiles, simulated data, the bootstrap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence import prior as priors
from jalax._evidence.record import FitRecord
from jalax._fit import profile as profiles
from jalax._fit import simulation
from jalax._fit.profile import Profile, ProfileLikelihood
from jalax._fit.sandwich import Sandwich
from jalax._fit.simulation import Bootstrap
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.processes import to_host

if TYPE_CHECKING:
    from jalax._export.posterior import Latents


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AfterFit(FitRecord):
    """The methods of a `FitResult` that ask more of the model at theta."""

    if TYPE_CHECKING:  # FitResult has them

        @property
        def uncertainty(self) -> Any: ...

        @property
        def log_evidence(self) -> float | None: ...

    @property
    def full_log_evidence(self) -> float:
        r"""The log-evidence with theta integrated out under the `log_prior` of the fit.

        By Laplace's method at the maximum a posteriori: $\log p + \log \pi + \frac p2 \log 2\pi
        + \frac12 \log\det V$, V the inverse curvature on the user's scale.
        """
        if self.origin is None or self.origin.model.outside.log_prior is None:
            raise ValueError(
                "theta is integrated out under a prior, and this fit has none: "
                "jalax.fit(..., log_prior=function)."
            )
        value = self.log_evidence
        if value is None:
            raise ValueError(f"this fit has no evidence: {self.evidence_reason}")
        at_theta = priors.at(self.origin.model, self.free)
        return priors.integrated(value, at_theta, self.uncertainty)

    def standard_errors(self, method: Sandwich | None = None) -> Tree:
        """A tree like theta; NaN at a boundary, where theta is not identified, or was held.

        By default from Louis' observed information at theta, by the delta method on the user's
        scale; with `method=jalax.Sandwich()` robust ones, from the spread of the groups' scores.
        """
        if method is not None and not isinstance(method, Sandwich):
            raise TypeError(f"method must be None or jalax.Sandwich(), got {method!r}.")
        known = self.uncertainty
        covariance = known.covariance if method is None else method.covariance(self)
        return self.like_theta(known.errors(covariance))

    def simulation_errors(self) -> Tree:
        """The Monte-Carlo error of theta, a tree like it: how another key would change it."""
        return self.like_theta(self.uncertainty.errors(self.uncertainty.simulation))

    def confidence_intervals(self, level: float = 0.95, method: Profile | None = None) -> Tree:
        """(low, high) for every number of theta, a tree like it with a last axis of two.

        By default Wald intervals on the optimiser's scale, mapped to the user's where each number
        is mapped by itself (a positive one stays positive), else on the user's scale. With
        `method=jalax.Profile()` by profile likelihood.
        """
        level = arguments.check_fraction("level", level)  # before anything is computed
        if method is None:
            return self.wald_intervals(self.uncertainty, level)
        if not isinstance(method, Profile):
            raise TypeError(f"method must be None or jalax.Profile(), got {method!r}.")
        low, high = map(self.like_theta, method.intervals(self, level).T)
        return jax.tree.map(lambda a, b: jnp.stack([a, b], axis=-1), low, high)

    def profile(self, name: str, level: float = 0.95) -> ProfileLikelihood:
        """The likelihood of one number of theta, with the others maximised for each value of it.

        A dozen fits in one program, twice as far out where that does not reach an interval of
        this level.

        Args:
            name: one of `names`, such as "beta[1]".
            level: the points reach beyond an interval of this level.

        Returns:
            A `jalax.results.ProfileLikelihood`: `interval(level)`, `plot()`, and its points.
        """
        return profiles.profile(self, name, level)

    def simulate(self, key, num: int = 1) -> Tree:
        """New data sets from the model at theta, with new latents: a tree like the model's data,
        every leaf leading with `num`."""
        return simulation.simulate(self, key, num)

    def bootstrap(self, key, num: int = 200) -> Bootstrap:
        """The parametric bootstrap: `num` data sets simulated at theta, each fitted again.

        All fits are one program (`jalax.fit_many`).
        """
        return simulation.bootstrap(self, key, num)

    def vcov(self) -> np.ndarray:
        """The covariance matrix of theta in the order of `names`, by the delta method.

        The roots of its diagonal are `standard_errors()`; NaN where these are.
        """
        return self.uncertainty.on_users_scale(self.uncertainty.covariance)

    def coef(self) -> dict[str, float]:
        """The estimates by name: of `jalax.mixed` the fixed effects, else every number of theta."""
        values = trees.numbers_of(self.theta)
        return dict(zip(self.names, values.tolist(), strict=True))

    @property
    def num_observations(self) -> int | None:
        """How many rows of data there are, where that is known; else None.

        Of `jalax.mixed` those of the table; of data with an entry "mask", as `jalax.group_by` makes
        it, those that it marks as real. Other data do not tell what one observation is.
        """
        data = None if self.origin is None else self.origin.model.data
        mask = data.get("mask") if isinstance(data, dict) else None
        return None if mask is None or mask.dtype != bool else int(np.sum(to_host(mask)))

    def latents(self, level: float = 0.95) -> Latents:
        """Posterior mean, standard deviation and interval of each latent number, by name.

        Prints as a table; `latents().to_frame()` is a pandas DataFrame. `jalax.results.Latents`
        says what its columns are, and what the Monte-Carlo error of the means stands for.
        """
        from jalax._export.posterior import latents_of

        return latents_of(self, arguments.check_fraction("level", level))
