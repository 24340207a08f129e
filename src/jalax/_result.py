"""FitResult: what a fit hands back."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jalax import _store, _weights
from jalax._evidence import Evidence, log_evidence_at
from jalax._finish import Uncertainty, as_dict, from_dict, names_of, uncertainty_at
from jalax._replay import replay
from jalax._resampling import draw_ancestors, systematic
from jalax._tree import Tree
from jalax._types import State, Status


@dataclasses.dataclass(frozen=True)
class SavedState:
    """The leaves of a state read from a file; `fit(..., state=...)` finds their structure."""

    names: list[str]
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class EvidenceCheck:
    """Two estimates of one evidence: they should agree within errors."""

    fresh: Evidence
    replayed: Evidence

    @property
    def difference(self) -> float:
        return self.replayed.value - self.fresh.value

    @property
    def error(self) -> float:
        return float(np.hypot(self.fresh.error, self.replayed.error))

    @property
    def agrees(self) -> bool:
        """Within 4 errors; the replayed one has few degrees of freedom."""
        return bool(abs(self.difference) <= 4 * self.error)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """The outcome of `jalax.fit`.

    Attributes:
        theta: the estimate, on the model's own scale: of an automatic fit averaged and improved by
            a scoring step with fresh particles, else the parameters after the last step.
        particles: weighted particles of the posterior of x, (N, ...); grouped (G, N, ...).
        log_weights: their unnormalised log-weights, (N,); grouped (G, N).
        history: one row a step: "theta" (a tree like theta), "ess" (lowest over groups, before
            resampling), "mean_log_joint", "grad_norm", "resampled", "dead" and, from JALA-EM,
            "log_evidence" (of the path; relative to theta_0 if the start had none), its rough
            "log_evidence_error" and "phase" (0 moving, 1 averaging, 2 done).
        status: how the fit ended, a `jalax.Status`.
        message: the same in a sentence.
        state: what `fit(..., state=...)` continues from.
        algorithm: its name.
        seconds: wall-clock time, compilation included.
    """

    theta: Tree
    particles: Tree
    log_weights: jax.Array
    history: dict[str, Any]
    status: Status
    message: str
    state: State | SavedState
    algorithm: str
    seconds: float
    path_value: float | None  # the evidence carried along the path; None: there is none
    relative: bool  # ... relative to that at theta_0, which the start did not know
    evidence_reason: str  # why path_log_evidence is None
    free: Tree = None  # theta on the optimiser's scale
    origin: Any = None  # the model, algorithm and start in memory; None when read from a file
    saved_evidence: Evidence | None = None  # of the finish, or read from a file
    saved_uncertainty: Uncertainty | None = None
    labels: tuple[str, ...] | None = None  # names for the numbers of theta, where the model has any

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each number of theta."""
        return names_of(self.theta) if self.labels is None else self.labels

    @property
    def weights(self) -> jax.Array:
        """Normalised weights, summing to one over the particles (of each group)."""
        return _weights.normalise(self.log_weights)

    @property
    def ess(self) -> jax.Array:
        """Effective sample size of the particles (of each group)."""
        return _weights.effective_sample_size(self.weights)

    @property
    def gradient_bias(self) -> float:
        """sqrt(G) / N: about how far weights of N particles take theta off, in standard errors.

        Each of G groups is off by about 1/N of its own scale, in the same direction, and a
        standard error is sqrt(G) of these. Of an automatic fit the scoring steps at the end,
        with more and fresh particles, take it out again.
        """
        groups = self.log_weights.shape[0] if self.log_weights.ndim == 2 else 1
        return float(np.sqrt(groups) / self.log_weights.shape[-1])

    @property
    def path_log_evidence(self) -> float | None:
        """log p_theta(y) at the last theta, carried along the path from the start.

        Biased upwards by O(1/N) a step, because theta follows the particles it weighs. None,
        with a warning that says why, where there is none.
        """
        if self.path_value is None or self.relative:
            warnings.warn(self.evidence_reason, stacklevel=2)
            return None
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
        key = jax.random.fold_in(self.origin.key, 1)
        return log_evidence_at(key, self.origin.model, self.free)

    @property
    def log_evidence(self) -> float | None:
        """log p_theta(y) at theta, from fresh particles.

        None, with a warning that says why, from an algorithm without evidence.
        """
        if self.evidence is None:
            reason = self.evidence_reason or "the file this result was read from holds no evidence."
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
            raise ValueError("this result was read from a file, which holds no standard errors.")
        if self.status == Status.DIVERGED:
            raise ValueError("the fit diverged: there are no standard errors.")
        key = jax.random.fold_in(self.origin.key, 2)
        return uncertainty_at(key, self.origin.model, self.free, 0.05)

    def standard_errors(self) -> Tree:
        """Of theta, a tree like it; NaN at a boundary or where theta is not identified.

        From Louis' observed information at theta, by the delta method on the user's scale.
        """
        return self._like_theta(self.uncertainty.errors(self.uncertainty.covariance))

    def simulation_errors(self) -> Tree:
        """The Monte-Carlo error of theta, a tree like it: how another key would change it."""
        return self._like_theta(self.uncertainty.errors(self.uncertainty.simulation))

    def confidence_intervals(self, level: float = 0.95) -> Tree:
        """(low, high) for every number of theta, a tree like it with a last axis of two.

        Wald intervals on the optimiser's scale, mapped to the user's where each number is mapped
        by itself (a positive one stays positive), else on the user's scale.
        """
        from scipy.special import ndtri

        if not 0 < level < 1:
            raise ValueError(f"level is a probability between 0 and 1, got {level}.")
        q = float(ndtri(0.5 + level / 2))
        known = self.uncertainty
        each_by_itself = np.count_nonzero(known.jacobian) <= len(known.names)
        if self.origin is None or not each_by_itself:
            errors = known.errors(known.covariance)
            middle = np.asarray(ravel_pytree(self.theta)[0], float)
            low, high = middle - q * errors, middle + q * errors
        else:
            flat, unravel = ravel_pytree(self.free)
            errors = np.sqrt(np.diagonal(known.covariance))

            def mapped(t):
                theta = self.origin.model.constrained(unravel(jnp.asarray(t, flat.dtype)))
                return np.asarray(ravel_pytree(theta)[0], float)

            ends = mapped(flat - q * errors), mapped(flat + q * errors)
            low, high = np.minimum(*ends), np.maximum(*ends)
        return jax.tree.map(
            lambda a, b: jnp.stack([a, b], axis=-1), self._like_theta(low), self._like_theta(high)
        )

    def _like_theta(self, numbers: np.ndarray) -> Tree:
        flat, unravel = ravel_pytree(self.theta)
        return unravel(jnp.asarray(numbers, flat.dtype))

    def evidence_check(self, key, *, num_replicates: int = 8) -> EvidenceCheck:
        """A fresh estimate at the path's last theta against the path replayed."""
        if isinstance(self.state, SavedState):
            raise ValueError("evidence_check needs the fit itself, not a result from a file.")
        key_fresh, key_replay = jax.random.split(key)
        fresh = log_evidence_at(key_fresh, self.origin.model, self.state.theta)
        return EvidenceCheck(fresh, self.replay(key_replay, num_replicates=num_replicates))

    def replay(self, key, *, num_particles: int | None = None, num_replicates: int = 8) -> Evidence:
        """The evidence at the end of this fit's recorded path, run again with fresh particles.

        Unlike `path_log_evidence` it is unbiased for Z: the path is now fixed in advance.
        """
        num_particles = num_particles or self.log_weights.shape[-1]
        return replay(self.origin, key, num_particles, num_replicates)

    def expectation(self, fn: Callable[[Any], Tree]) -> Tree:
        """The posterior mean of `fn(x)`, x one latent configuration; grouped: one a group."""
        weights = self.weights

        def mean(values):
            w = weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
            # A particle of weight zero may hold anything.
            return jnp.sum(jnp.where(w > 0, w * values, 0.0), axis=weights.ndim - 1)

        mapped = jax.vmap(fn) if weights.ndim == 1 else jax.vmap(jax.vmap(fn))
        return jax.tree.map(mean, mapped(self.particles))

    def resample(self, key, num_samples: int) -> Tree:
        """Equally weighted draws from the particles, (num_samples, ...); grouped (G, ...)."""
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
        if not 0 < last <= 1:
            raise ValueError(f"last is a fraction of the steps, in (0, 1], got {last}.")
        rows = self.history["ess"].shape[0]
        first = min(rows - 1, round(rows * (1 - last)))
        return jax.tree.map(lambda leaf: leaf[first:].mean(axis=0), self.history["theta"])

    def summary(self) -> str:
        """A table of the fit for reading."""
        rows = len(self.history.get("ess", ()))
        shape = self.log_weights.shape
        particles = f"{shape[-1]} particles" + (f" x {shape[0]} groups" if len(shape) == 2 else "")
        lines = [f"{self.algorithm}: {rows} steps, {particles}, {self.seconds:.1f} s"]
        lines.append(f"status: {self.status} ({self.message})")
        lines += self._theta_lines()
        lines.append("  " + self._evidence_line())
        if len(shape) == 2 and self.gradient_bias > 0.25:
            lines.append(f"  {'bias of a gradient':<24} sqrt(G)/N = {self.gradient_bias:.2f} s.e.")
        if rows:
            ess, dead = float(jnp.min(self.ess)), int(self.history["dead"].sum())
            lines.append(
                f"  {'ess':<24} {ess:.1f} of {shape[-1]}" + (f", {dead} died" * (dead > 0))
            )
        return "\n".join(lines)

    def _theta_lines(self) -> list[str]:
        """Estimates, with their errors where these are known already."""
        if self.saved_uncertainty is None:
            return [
                f"  {jax.tree_util.keystr(path, simple=True, separator='.') or 'theta':<24} "
                f"{_numbers(np.asarray(leaf))}"
                for path, leaf in jax.tree_util.tree_leaves_with_path(self.theta)
            ]
        values = np.asarray(ravel_pytree(self.theta)[0], float)
        known = self.saved_uncertainty
        names = self.names
        errors, simulation = known.errors(known.covariance), known.errors(known.simulation)
        lines = [f"  {'':<24} {'estimate':>12} {'std. error':>12} {'simulation':>12}"]
        for row in list(zip(names, values, errors, simulation, strict=True))[:30]:
            numbers = " ".join(f"{'-' if np.isnan(v) else format(v, '.5g'):>12}" for v in row[1:])
            lines.append(f"  {row[0]:<24} {numbers}")
        return lines

    def _evidence_line(self) -> str:
        if self.saved_evidence is not None:
            evidence = self.saved_evidence
            doubt = "".join(f"\n  {'':<24} not to be trusted: {m}" for m in evidence.messages)
            return f"{'log evidence':<24} {evidence.value:12.4f} {evidence.error:12.2g}{doubt}"
        if self.path_value is None:
            return f"{'log evidence':<24} none: {self.evidence_reason}"
        if self.relative:
            return f"{'log Z / Z_0 (path)':<24} {self.path_value:.3f}, relative to theta_0"
        return f"{'log evidence (path)':<24} {self.path_value:.3f}"

    def __repr__(self) -> str:
        return self.summary()

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one file, read back by `jalax.load`."""
        from jalax._checkpoint import flatten_state

        arrays: dict[str, np.ndarray] = {}
        meta = {name: getattr(self, name) for name in (*_PLAIN, "labels")}
        for name in _TREES:
            meta[name] = _store.pack(name, getattr(self, name), arrays)
        if isinstance(self.state, SavedState):
            arrays.update(self.state.arrays)
            meta["state"] = self.state.names
        else:
            meta["state"] = flatten_state(self.state, arrays)
        evidence = self.__dict__.get("evidence", self.saved_evidence)  # if it was ever asked for
        known = self.__dict__.get("uncertainty", self.saved_uncertainty)
        if known is not None:
            meta["uncertainty"] = as_dict(known)
        if evidence is not None:
            meta["evidence"] = dataclasses.asdict(evidence) | {"groups": evidence.groups.tolist()}
        _store.write(path, "result", meta, arrays)


_TREES = ("theta", "free", "particles", "log_weights", "history")
_PLAIN = (
    "status",
    "message",
    "algorithm",
    "seconds",
    "path_value",
    "relative",
    "evidence_reason",
)


def load(path: str | os.PathLike, like: FitResult | None = None) -> FitResult:
    """Read what `FitResult.save` wrote.

    Args:
        path: the file.
        like: a result of the same model; needed only where theta or the latent are containers
            other than dict, list and tuple.
    """
    header, arrays = _store.read(path, "result")
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    plain["status"] = Status(plain["status"])
    labels = header.get("labels")
    trees = {}
    for name in _TREES:
        trees[name] = _store.unpack(header[name], arrays, getattr(like, name, None))
    for name in ("theta", "free", "particles", "log_weights"):
        trees[name] = jax.tree.map(jnp.asarray, trees[name])
    names = header["state"]
    state = SavedState(names, {name: arrays[name] for name in names})
    evidence = header.get("evidence")
    if evidence is not None:
        evidence["groups"] = np.array(evidence["groups"])
        evidence = Evidence(**evidence | {"messages": tuple(evidence["messages"])})
    known = header.get("uncertainty")
    return FitResult(
        **trees,
        **plain,
        state=state,
        saved_evidence=evidence,
        saved_uncertainty=None if known is None else from_dict(known),
        labels=None if labels is None else tuple(labels),
    )


def _numbers(values: np.ndarray) -> str:
    if values.size == 1:
        return f"{values.item():.5g}"
    shown = " ".join(f"{value:.5g}" for value in values.ravel()[:6])
    return shown + (f" ... ({values.size} in all)" if values.size > 6 else "")
