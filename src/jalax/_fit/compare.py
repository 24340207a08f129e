"""compare: models side by side, by their evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from jalax._evidence.log_evidence import Evidence
from jalax._evidence.record import ComparisonRecord, Row
from jalax._fit.result import FitResult
from jalax._model import checks, sharding
from jalax._model.information import LIMIT, moments
from jalax._model.model import Model
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments, files, layouts
from jalax._runtime.compilation import jit
from jalax._runtime.layouts import Layout
from jalax._starts.importance import Laplace

if TYPE_CHECKING:
    from jalax._export.tables import Summary


@dataclasses.dataclass(frozen=True)
class Comparison(ComparisonRecord):
    """Models ordered by evidence, best first.

    Attributes:
        rows: one `Row` a model.
        kind: "plug-in": the evidence at the maximising theta of each model; "full": with theta
            integrated out under the declared prior (Laplace's approximation).
        note: what the numbers allow to be said.
    """

    def log_bayes_factor(self, first: str, second: str) -> tuple[float, float]:
        """log evidence of `first` over `second`, and its standard error."""
        by_name = {row.name: row for row in self.rows}
        for name in (first, second):
            if name not in by_name:
                raise ValueError(f"there is no fit {name!r} here, only {list(by_name)}.")
        a, b = by_name[first], by_name[second]
        return a.log_evidence - b.log_evidence, float(np.hypot(a.error, b.error))

    def summary(self) -> Summary:
        """The models in a table: a string, shown as HTML in a notebook."""
        from jalax._export.comparison import summarise

        return summarise(self)

    def __repr__(self) -> str:
        return self.summary()

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row a model."""
        from jalax._export.tables import frame_of_rows

        return frame_of_rows(self.rows)

    def plot(self, ax: Any = None) -> Any:
        """Differences in log-evidence to the best model, with two standard errors.

        Args:
            ax: matplotlib axes to draw on; by default those of a new figure.

        Returns:
            The axes.
        """
        from jalax._export.comparison import plot_compare

        return plot_compare(self, ax)


def observations(data: Tree) -> Tree:
    """What two models must share to be compared: data["y"] where there is one, else all data.

    Sorted, and without padding where the data have a mask: how rows are laid out in groups is a
    matter of the model.
    """
    if not isinstance(data, Mapping) or "y" not in data:
        return data
    y, mask = np.asarray(data["y"]), data.get("mask")
    if mask is None or np.shape(mask) != y.shape:
        return data["y"]
    return np.sort(y[np.asarray(mask, bool)])


def compare(
    results: Mapping[str, FitResult],
    *,
    theta_log_prior: Callable[[Tree], Any] | Mapping[str, Callable[[Tree], Any]] | None = None,
    observed: Callable[[Tree], Tree] = observations,
    mesh: Mesh | Layout | None = None,
) -> Comparison:
    r"""Compare fitted models by their evidence.

    The plug-in evidence $\log p_{\hat\theta}(y)$ is a maximised one: between models with
    different numbers of theta it favours the larger, and no probabilities are given. Under a
    declared prior on theta it is integrated out by Laplace's method,
    $\log p_{\hat\theta}(y) + \log \pi(\hat\theta) + \frac12 g^\top I^{-1} g
      + \frac p2 \log 2\pi - \frac12 \log\det I$, with $I$ Louis' information plus the curvature
    of the prior and $g$ its gradient (the fit maximises the likelihood, not the posterior).

    Args:
        results: fits by name.
        theta_log_prior: a normalised log prior density on theta (on the optimiser's scale), one
            function for all or one a name. Fits that have one of their own, from
            `jalax.fit(..., log_prior=function)`, are compared under it.
        observed: picks the observations out of a model's data; fits with different ones are
            refused. By default `data["y"]` where there is such an entry, else all of it.
        mesh: where evidences that are not known yet are estimated, as in `jalax.log_evidence`; by
            default where each fit was.

    Returns:
        A `Comparison`: print it, `plot()`, `to_frame()`, `log_bayes_factor(a, b)`.
    """
    if not isinstance(results, Mapping):
        raise TypeError(
            f"results must be a dict {{name: FitResult}}, got {type(results).__name__}."
        )
    arguments.check_callable("observed", observed, "of a model's data")
    if len(results) < 2:
        raise ValueError(f"compare needs two or more fits by name, got {list(results)}.")
    marks = _marks(results, observed)
    own_priors = _own_priors(results, theta_log_prior)
    if theta_log_prior is not None:
        for name, result in results.items():
            log_prior = _prior(theta_log_prior, name)
            checks.check_scalar("theta_log_prior", log_prior, {"theta": result.free})
    evidences = _evidences(results, marks, mesh)
    values = {name: evidence.value for name, evidence in evidences.items()}
    if theta_log_prior is not None:
        for name, result in results.items():
            values[name] += _laplace_correction(name, result, _prior(theta_log_prior, name))
    if own_priors:
        values = {name: result.full_log_evidence for name, result in results.items()}
    sizes = {name: trees.size(_origin(r, name).theta_0) for name, r in results.items()}
    full = theta_log_prior is not None or own_priors
    fair = full or len(set(sizes.values())) == 1
    order = sorted(values, key=values.__getitem__, reverse=True)
    best = order[0]
    total = sum(np.exp(value - values[best]) for value in values.values())
    rows = []
    for name in order:
        difference, evidence = values[name] - values[best], evidences[name]
        error = 0.0 if name == best else float(np.hypot(evidence.error, evidences[best].error))
        rows.append(
            Row(
                name=name,
                log_evidence=values[name],
                error=evidence.error,
                difference=difference,
                difference_error=error,
                num_theta=sizes[name],
                ess=evidence.ess,
                k_hat=evidence.k_hat,
                probability=float(np.exp(difference) / total) if fair else None,
                warnings=evidence.messages,
            )
        )
    if full:
        kind, note = "full", "theta integrated out under the declared prior, by Laplace's method."
    elif fair:
        kind = "plug-in"
        note = "Evidence at each model's own theta; equal numbers of theta, equal prior odds."
    else:
        kind = "plug-in"
        note = (
            "Evidence at each model's own theta, which favours more parameters: no probabilities. "
            "To integrate theta out declare a prior, compare(results, theta_log_prior=function), "
            "or theta_log_prior={name: function} where theta differs."
        )
    return Comparison(tuple(rows), kind, note)


def _own_priors(results: Mapping[str, FitResult], theta_log_prior: Any) -> bool:
    """Whether the fits have priors on theta, all of them or none."""
    with_prior = {
        name: _origin(result, name).model.outside.log_prior is not None
        for name, result in results.items()
    }
    if any(with_prior.values()) and theta_log_prior is not None:
        name = next(name for name, has in with_prior.items() if has)
        raise ValueError(
            f"the fit {name!r} has a log_prior of its own: leave theta_log_prior= out, and its own "
            "is used."
        )
    if len(set(with_prior.values())) > 1:
        a, b = (next(name for name, has in with_prior.items() if has is h) for h in (True, False))
        raise ValueError(
            f"the fit {a!r} has a log_prior, and {b!r} has none: fit both with one, "
            "jalax.fit(..., log_prior=function), or neither."
        )
    return all(with_prior.values())


def _origin(result: FitResult, name: str) -> Any:
    if result.origin is None:
        raise ValueError(
            f"the fit {name!r} was read from a file, which does not hold its model: compare fits "
            "of this session."
        )
    return result.origin


def _marks(results: Mapping[str, FitResult], observed: Callable[[Tree], Tree]) -> dict[str, Any]:
    """What was observed, as a fingerprint."""
    marks = {}
    for name, result in results.items():
        if not isinstance(result, FitResult):
            kind = type(result).__name__
            raise TypeError(f"compare takes FitResults; {name!r} is of type {kind}.")
        data = observed(_origin(result, name).model.data)
        marks[name] = files.fingerprint(data)
    return marks


def _evidences(
    results: Mapping[str, FitResult], marks: dict[str, Any], mesh: Any
) -> dict[str, Evidence]:
    """The evidence of every fit, once it is clear that they can be compared."""
    first = next(iter(marks))
    for name, mark in marks.items():
        if mark != marks[first]:
            raise ValueError(
                f"{first!r} and {name!r} were fitted to different observations; an evidence "
                "compares models of the same data only. If they differ in covariates alone, tell "
                "compare what was observed: observed=lambda data: ..."
            )
    _check_likelihoods(results)
    evidences = {}
    for name, result in results.items():
        evidence = _evidence_on(mesh, result)
        if evidence is None:
            raise ValueError(f"the fit {name!r} has no evidence: {result.evidence_reason}")
        evidences[name] = evidence
    return evidences


def _check_likelihoods(results: Mapping[str, FitResult]) -> None:
    """What is integrated out under a flat prior has units, and must be the same."""
    marks = {name: result.likelihood_mark for name, result in results.items()}
    first = next(iter(marks))
    for name, mark in marks.items():
        if mark != marks[first]:
            raise ValueError(
                f"{first!r} and {name!r} have other weights of their rows, or one of them is a "
                "REML fit and the other is none, or one of other fixed effects, about which a "
                "restricted likelihood tells nothing: fit both with the same weights and without "
                "likelihood=jalax.REML()."
            )


def _evidence_on(mesh: Any, result: FitResult) -> Evidence | None:
    """Its evidence; estimated on the mesh, and kept with the result, where it is not known yet."""
    known = result.saved_evidence is not None or "evidence" in result.__dict__
    if mesh is not None and not known:
        model = sharding.lay_out(result.origin.model, layouts.as_layout(mesh))
        there = dataclasses.replace(result, origin=dataclasses.replace(result.origin, model=model))
        result.__dict__["evidence"] = there.evidence
    return result.evidence


def _prior(theta_log_prior: Any, name: str) -> Callable[[Tree], Any]:
    found = theta_log_prior
    if isinstance(theta_log_prior, Mapping):
        if name not in theta_log_prior:
            raise ValueError(f"theta_log_prior has no entry for {name!r}.")
        found = theta_log_prior[name]
    arguments.check_callable("theta_log_prior", found, "of theta, or a dict of them by name")
    return found


def _information_of(result: FitResult, origin: Any, theta: Tree) -> np.ndarray:
    """Louis' information about theta: that of the fit's own end, which drew particles until it was
    known to half a per cent; from one cloud where there is none (a boundary, another algorithm)."""
    known = result.saved_uncertainty
    if known is not None and np.isfinite(known.covariance).all():
        return np.linalg.inv(known.covariance)
    return np.asarray(_louis(jax.random.fold_in(origin.key, 2), origin.model, theta), float)


@jit()
def _louis(key, model: Model, theta: Tree) -> Any:
    """The observed information about theta."""
    cloud = Laplace()(key, model, theta, 2000)
    return moments(model, theta, cloud.particles, cloud.log_weights).observed


def _laplace_correction(name: str, result: FitResult, log_prior: Callable[[Tree], Any]) -> float:
    """log prior + (p/2) log 2 pi - (1/2) log det I, with the gradient term of the docstring."""
    origin = _origin(result, name)
    flat, unravel = ravel_pytree(result.free)
    if flat.size > LIMIT:
        raise ValueError(
            f"{name!r} has {flat.size} parameters, more than the {LIMIT} whose information is held."
        )

    def prior(t):
        return log_prior(unravel(t))

    louis = _information_of(result, origin, unravel(flat))
    information = louis - np.asarray(jax.hessian(prior)(flat), float)
    sign, log_det = np.linalg.slogdet(information)
    if not sign > 0:
        raise ValueError(
            f"the information about theta in {name!r} is not positive definite: theta is at a "
            "boundary, or not identified even under this prior."
        )
    gradient = np.asarray(jax.grad(prior)(flat), float)
    shift = gradient @ np.linalg.solve(information, gradient) / 2
    size = flat.size / 2 * np.log(2 * np.pi)
    return float(prior(flat) + shift + size - log_det / 2)
