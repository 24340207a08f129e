"""FitResult: what a fit hands back."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence import prior as priors
from jalax._evidence.log_evidence import Evidence, log_evidence_at
from jalax._evidence.record import SavedState
from jalax._evidence.replay import replay
from jalax._evidence.uncertainty import Uncertainty, uncertainty_at
from jalax._fit import saving
from jalax._fit.after_fit import AfterFit
from jalax._fit.pickling import Portable
from jalax._model import checks
from jalax._model.evaluation import derived_at
from jalax._model.types import Status
from jalax._particles import trees
from jalax._particles.resampling import draw_ancestors, systematic
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.layouts import use_mesh

if TYPE_CHECKING:
    from jalax._export.tables import Summary


MOST_PATH_ERROR = 3.0  # a factor of twenty in the evidence, and its bias is no smaller


@dataclasses.dataclass(frozen=True)
class EvidenceCheck:
    """Two estimates of one evidence: they should agree within errors."""

    fresh: Evidence
    replayed: Evidence

    @property
    def difference(self) -> float:
        """The replayed estimate less the fresh one."""
        return self.replayed.value - self.fresh.value

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        return float(np.hypot(self.fresh.error, self.replayed.error))

    @property
    def agrees(self) -> bool:
        """Within 4 errors; the replayed one has few degrees of freedom."""
        return bool(abs(self.difference) <= 4 * self.error)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FitResult(AfterFit, Portable):
    """The outcome of `jalax.fit`.

    Attributes:
        theta: the estimate, on the model's own scale: of Scoring the maximum that its measurements
            see, of an automatic JALA-EM averaged and improved by a scoring step with fresh
            particles, else the parameters after the last step.
        particles: weighted particles of the posterior of x, (N, ...); grouped (G, N, ...). Those
            of Scoring are quasi-random points.
        log_weights: their unnormalised log-weights, (N,); grouped (G, N).
        history: one row a step (or every so many, see `record` in `jalax.fit`): "step", "theta" (a
            tree like theta; "theta_norm" of one of more than 100,000 numbers), "ess" (lowest over
            groups, before resampling), "mean_log_joint", "grad_norm", "resampled", "dead" and, from
            JALA-EM, "log_evidence" (of the path; relative to theta_0 if the start had none), its
            rough "log_evidence_error" and "phase" (0 moving, 1 averaging, 2 done); from Scoring
            "log_evidence" (log p at that theta) and "phase" (0 climbing, 1 measuring, 2 done).
        status: how the fit ended, a `jalax.Status`.
        message: the same in a sentence.
        state: what `fit(..., state=...)` continues from.
        algorithm: its name.
        choice: why `fit` chose it, in words; "" where the user did.
        maxima: of a fit with `restarts=`, a `jalax.results.Maxima`: all that were found; else None.
        num_steps: how many steps it took.
        seconds: wall-clock time, compilation included.
    """

    @property
    def likelihood_mark(self) -> str:
        """A mark of what its likelihood does otherwise than to count each observation once.

        Of `jalax.mixed` the weights of rows, and what REML integrates out; else "". Likelihoods
        with other marks cannot be compared.
        """
        return ""

    @property
    def path_log_evidence(self) -> float | None:
        """log p_theta(y) at the last theta, carried along the path from the start.

        Of JALA-EM. Biased upwards by O(1/N) a step, because theta follows the particles it weighs.
        None, with a warning that says why, where there is none.
        """
        if self.path_value is None or self.relative:
            warnings.warn(self.evidence_reason, stacklevel=2)
            return None
        if self.path_error > MOST_PATH_ERROR:
            warnings.warn(
                "the path was so long that resampling alone gives its log-evidence an error of "
                f"{self.path_error:.1f}, and its bias upwards grows with every step: use "
                "log_evidence, a fresh estimate at theta, or replay.",
                stacklevel=2,
            )
        return self.path_value

    @cached_property
    def evidence(self) -> Evidence | None:
        """The evidence at theta from fresh particles (`jalax.log_evidence`).

        An automatic fit ends with it; else it is estimated when first asked for.
        """
        if self.saved_evidence is not None or self.origin is None or self.status == Status.DIVERGED:
            return self.saved_evidence
        if not self.origin.algorithm.gives_evidence:
            return None
        with use_mesh(self.origin.model.layout):
            key, model = jax.random.fold_in(self.origin.key, 1), self.origin.model
            return priors.taken_off(log_evidence_at(key, model, self.free), model, self.free)

    @property
    def log_evidence(self) -> float | None:
        """log p_theta(y) at theta, from fresh particles.

        None, with a warning that says why, from an algorithm without evidence.
        """
        if self.evidence is None:
            reason = self.evidence_reason
            if self.origin is None and self.path_value is not None:  # its reason is the path's
                reason = (
                    "the file this result was read from holds no evidence: ask for "
                    "result.log_evidence before saving."
                )
            warnings.warn(reason, stacklevel=2)
            return None
        return self.evidence.value

    @property
    def log_evidence_error(self) -> float | None:
        """The standard error of `log_evidence`."""
        return None if self.evidence is None else self.evidence.error

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Covariance and simulation error of theta (Louis' information)."""
        if self.saved_uncertainty is not None:
            return self.saved_uncertainty
        if self.origin is None:
            raise ValueError(
                "this result was read from a file, which holds no standard errors: ask for "
                "result.standard_errors() before saving."
            )
        if self.status == Status.DIVERGED:
            raise ValueError(
                "the fit diverged: there are no standard errors. result.message says what to try."
            )
        with use_mesh(self.origin.model.layout):
            key = jax.random.fold_in(self.origin.key, 2)
            return uncertainty_at(key, self.origin.model, self.free, 0.05)

    def evidence_check(self, key, *, num_replicates: int = 8) -> EvidenceCheck:
        """A fresh estimate at the path's last theta against the path replayed, of JALA-EM."""
        if isinstance(self.state, SavedState):
            raise ValueError("evidence_check needs the fit itself, not a result from a file.")
        arguments.check_key(key)
        key_fresh, key_replay = jax.random.split(key)
        fresh = log_evidence_at(key_fresh, self.origin.model, self.state.theta)
        return EvidenceCheck(fresh, self.replay(key_replay, num_replicates=num_replicates))

    def replay(self, key, *, num_particles: int | None = None, num_replicates: int = 8) -> Evidence:
        """The evidence at the end of this fit's recorded path, run again with fresh particles.

        Of JALA-EM: Scoring has no path of weights. Unlike `path_log_evidence` it is unbiased for Z:
        the path is now fixed in advance.
        """
        num_particles = self.log_weights.shape[-1] if num_particles is None else num_particles
        return replay(self.origin, self.state, key, num_particles, num_replicates)

    def expectation(self, fn: Callable[[Any], Tree]) -> Tree:
        """The posterior mean of `fn(x)`, x one latent configuration; grouped: one a group."""
        arguments.check_callable("fn", fn, "of x")
        weights = self.weights

        def mean(values):
            w = weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
            # A particle of weight zero may hold anything.
            return jnp.sum(jnp.where(w > 0, w * values, 0.0), axis=weights.ndim - 1)

        checks.traced("fn", fn, {"x": trees.shapes(self.particles, weights.ndim)})
        mapped = jax.vmap(fn) if weights.ndim == 1 else jax.vmap(jax.vmap(fn))
        return jax.tree.map(mean, mapped(self.particles))

    def deterministic(self) -> Tree:
        """The `numpyro.deterministic` sites of a NumPyro model at every particle."""
        if self.origin is None or isinstance(self.state, SavedState):
            raise ValueError("deterministic sites need the fit itself, not a result from a file.")
        model = self.origin.model
        theta = model.constrained(self.state.theta)  # the one that the particles belong to
        return derived_at(model, theta, self.state.particles)

    def resample(self, key, num_samples: int) -> Tree:
        """Equally weighted draws from the particles, (num_samples, ...); grouped (G, ...)."""
        arguments.check_key(key)
        num_samples = arguments.check_count("num_samples", num_samples)
        weights = self.weights
        if weights.ndim == 1:
            index = draw_ancestors(key, systematic, weights, num_samples)
            return jax.tree.map(lambda leaf: leaf[index], self.particles)
        keys = jax.random.split(key, weights.shape[0])
        draw = partial(draw_ancestors, scheme=systematic, num_samples=num_samples)
        index = jax.vmap(lambda k, w: draw(k, weights=w))(keys, weights)
        return jax.tree.map(lambda leaf: jax.vmap(lambda x, i: x[i])(leaf, index), self.particles)

    def theta_average(self, last: float = 0.5) -> Tree:
        """theta averaged over the last fraction of the steps: less noise, same mean."""
        expected = "a fraction of the steps, above 0 and up to 1"
        arguments.check_number("last", last, expected, lambda number: 0 < number <= 1)
        rows = self.history["ess"].shape[0]
        first = min(rows - 1, round(rows * (1 - last)))
        if "theta" not in self.history:
            raise ValueError(
                "there is no average of theta: it is so large that the history has its norm only."
            )
        return jax.tree.map(lambda leaf: leaf[first:].mean(axis=0), self.history["theta"])

    def summary(self) -> Summary:
        """A table of the fit for reading: a string, shown as HTML in a notebook.

        `summary().to_frame()` is a pandas DataFrame of theta, its errors and 95% interval. Errors
        that nobody asked for yet (`standard_errors()`) are not computed for it.
        """
        from jalax._export.fit_summary import summarise

        return summarise(self)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, ax: Any = None, prior: Any = None) -> np.ndarray:
        """The fit in four panels: theta, log-evidence, effective sample size, posterior.

        The panel of the evidence is left out where the path carries none. The posterior is that
        of the first latents, with 50% and 90% intervals.

        Args:
            ax: matplotlib axes, one for each panel; by default those of a new figure.
            prior: as in `plot_posterior`.

        Returns:
            The axes, an array with one for each panel.
        """
        from jalax._export.plots import plot_fit

        return plot_fit(self, ax, prior)

    def plot_posterior(
        self, names: Sequence[str] | None = None, ax: Any = None, prior: Any = None
    ) -> np.ndarray:
        """The posterior density of some latents, with its mean and 90% interval.

        Args:
            names: which: numbers ("x[2]"; of a grouped model the group comes first) or whole
                arrays ("x"); by default the first four numbers.
            ax: matplotlib axes, one for each number; by default those of a new figure.
            prior: log_joint does not tell the prior of x, so it is shown only if it is given:
                draws shaped like `particles`, or `fn(key, theta, data) -> x`, one draw (of one
                group), as for `jalax.FromSampler`.

        Returns:
            The axes, an array with one for each number.
        """
        from jalax._export.plots import plot_posterior

        return plot_posterior(self, names, ax, prior)

    def to_arviz(
        self,
        key: jax.Array | None = None,
        num_samples: int | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
    ) -> Any:
        """An `arviz.InferenceData` of the latents, the weighted particles, the path and the data.

        Its groups: `posterior` (equally weighted draws, one chain, in random order),
        `weighted_posterior` (the particles and their unnormalised log-weights), `sample_stats`
        (`lp` is log p_theta(x, y); `particle` says which one a draw is), `fit` (the history, theta
        and its errors), `constant_data` and, where the model can tell it apart, `observed_data`;
        where it can simulate, `posterior_predictive`: observations drawn again given each draw.
        A latent that is an array has the name "x", such data "data". Arrays of a grouped
        model have an axis "group". A result from a file has no `lp`, and data only with its model.

        Args:
            key: for the draws; by default a child of the fit's, so that it is always the same.
            num_samples: how many draws; by default as many as there are particles.
            dims: names for the axes of an array, without chain, draw and group.
            coords: labels along an axis.
        """
        from jalax._export.arviz import to_arviz

        return to_arviz(self, key, num_samples, dims, coords)

    def report(self, path: str | os.PathLike) -> None:
        """Write the fit as one HTML page that needs nothing else: tables, figures, checks.

        Of `jalax.mixed` it has the residuals in four panels, too.

        Args:
            path: a file name ending in .html, in a directory that exists. A file of that name is
                replaced.
        """
        from jalax._export.report import write_report

        write_report(self, self.summary(), path, self.latents, self._report_panels())

    def _report_panels(self) -> dict[str, Callable[[Any], None]]:
        """What else to draw, by title."""
        return {}

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one file, read back by `jalax.load`.

        The model's functions are not in it. Of `jalax.mixed` the formula and the columns it uses
        are, so that `jalax.load` builds the model again.
        """
        saving.save(self, path, self._model_section)
