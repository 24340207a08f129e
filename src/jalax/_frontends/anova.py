r"""anova: nested fits against each other, by the likelihood ratio.

A variance is tested at the edge of its range, where the ratio is no chi-square: with many
independent groups it is half one with a degree of freedom less (Self and Liang 1987), and where
nothing is known it is found by simulation, the parametric bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from jalax._export.after_fit import anova_summary
from jalax._export.tables import Summary, frame_of_rows
from jalax._fit.compare import observations
from jalax._fit.result import FitResult
from jalax._fit.simulation import fit_to, model_of
from jalax._frontends.mixed import MixedResult
from jalax._frontends.mixed_rows import with_responses
from jalax._runtime import arguments, files
from jalax.models._design import Design
from jalax.models._formula import Block
from jalax.models._mixed import MixedDesign

MANY_GROUPS = 20  # independent groups, from which on the law of large numbers is trusted


@dataclasses.dataclass(frozen=True)
class AnovaRow:
    """One fit, tested against the one before it.

    Attributes:
        name: its formula, or its place.
        num_parameters: how many numbers of theta were estimated.
        log_likelihood: log p_theta(y) at its maximum.
        error: its simulation error.
        aic, bic: Akaike's and Schwarz's criteria; bic is NaN where the number of rows is not known.
        ratio: twice the rise of the log-likelihood; NaN in the first row.
        ratio_error: its simulation error.
        degrees_of_freedom: of the ratio: one number, or two with half the weight each.
        p_value: NaN in the first row, and where a bootstrap is needed and no key was given.
        method: how it was found.
    """

    name: str
    num_parameters: int
    log_likelihood: float
    error: float
    aic: float
    bic: float
    ratio: float = np.nan
    ratio_error: float = np.nan
    degrees_of_freedom: tuple[int, ...] = ()
    p_value: float = np.nan
    method: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Anova:
    """Nested fits, the smallest first: `jalax.anova`.

    Attributes:
        rows: one `AnovaRow` a fit.
        notes: how p values were found.
    """

    rows: tuple[AnovaRow, ...]
    notes: tuple[str, ...]

    def summary(self) -> Summary:
        """A table: a string, shown as HTML in a notebook."""
        return anova_summary(self)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row a fit."""
        return frame_of_rows(self.rows)


class _Law(NamedTuple):
    """What the likelihood ratio is compared with: chi-squares in equal parts; none: simulate."""

    degrees_of_freedom: tuple[int, ...]
    method: str


def anova(*results: FitResult, key: jax.Array | None = None, num_simulated: int = 200) -> Anova:
    """Test nested fits of the same data by the likelihood ratio.

    Of mixed models (`jalax.mixed`) it is known which parameters are variances, tested at the edge
    of their range. One more variance over many independent groups: half chi-square 0 and half
    chi-square 1, with its covariances to effects that are there already one or more degrees of
    freedom each. Otherwise (crossed factors, few groups, several variances) the law is simulated
    from the smaller fit, where a key is given.

    Args:
        results: two or more fits; they are put in the order of their numbers of parameters.
        key: `jax.random.key(seed)`, for the parametric bootstrap where one is needed.
        num_simulated: data sets of the bootstrap, each of which is fitted twice.

    Returns:
        An `Anova`: print it, or `to_frame()`.

    >>> import jax, jalax
    >>> data = jalax.datasets.sleepstudy().to_frame()
    >>> fits = [jalax.mixed(f"reaction ~ {x} + (1|subject)", data, key=jax.random.key(0))
    ...         for x in ("1", "days")]
    >>> table = jalax.anova(*fits)
    >>> abs(table.rows[1].ratio - 116.46) < 0.05  # lme4's
    True
    """
    if len(results) < 2:
        raise ValueError(f"anova tests two or more fits against each other, got {len(results)}.")
    for result in results:
        if not isinstance(result, FitResult):
            raise TypeError(f"anova takes FitResults, got {type(result).__name__}.")
    if key is not None:
        arguments.check_key(key)
    num_simulated = arguments.check_count("num_simulated", num_simulated, 20)
    _check_same_data(results)
    _check_restricted(results)
    fits = sorted(results, key=lambda fit: fit.num_parameters)
    rows, notes = [_row(fits[0], 1)], []
    for k in range(1, len(fits)):
        smaller, larger = fits[k - 1], fits[k]
        law = _law(smaller, larger)
        row = _row(larger, k + 1)
        ratio = 2 * (row.log_likelihood - rows[-1].log_likelihood)
        error = 2 * float(np.hypot(row.error, rows[-1].error))
        if law.degrees_of_freedom:
            p_value, method = _tail(ratio, law.degrees_of_freedom), law.method
        elif key is None:
            p_value, method = np.nan, f"{law.method}: pass key= for the parametric bootstrap"
        else:
            key_pair = jax.random.fold_in(key, k)
            simulated = simulated_ratios(smaller, larger, key_pair, num_simulated)
            p_value = (1 + int((simulated >= ratio).sum())) / (1 + simulated.size)
            method = f"{law.method}: parametric bootstrap, {simulated.size} data sets"
        freedom = law.degrees_of_freedom or (row.num_parameters - rows[-1].num_parameters,)
        tested: dict[str, Any] = {
            "ratio": ratio,
            "ratio_error": error,
            "p_value": p_value,
            "method": method,
        }
        rows.append(dataclasses.replace(row, degrees_of_freedom=freedom, **tested))
        notes.append(f"{row.name}: {method}")
    return Anova(tuple(rows), tuple(notes))


def _row(fit: FitResult, place: int) -> AnovaRow:
    evidence = fit.evidence
    if evidence is None:
        raise ValueError(f"fit {place} has no evidence: {fit.evidence_reason}")
    mixed = fit.mixed if isinstance(fit, MixedResult) else None
    name = str(place) if mixed is None else mixed.design.formula
    num, value = fit.num_parameters, evidence.value
    rows = np.nan if mixed is None else float(np.log(mixed.num_rows))
    return AnovaRow(name, num, value, evidence.error, 2 * num - 2 * value, num * rows - 2 * value)


def _check_same_data(results: tuple[FitResult, ...]) -> None:
    marks = []
    for result in results:
        mixed = result.mixed if isinstance(result, MixedResult) else None
        if mixed is not None:
            marks.append(("rows", repr(mixed.family), files.fingerprint(_observed(mixed.design))))
        else:
            marks.append(
                ("data", "", files.fingerprint(observations(model_of(result, "anova").data)))
            )
    if any(mark[0] != marks[0][0] or mark[2] != marks[0][2] for mark in marks):
        raise ValueError(
            "these fits have different observations: a likelihood ratio compares models of the "
            "same rows and the same response."
        )
    if any(mark[1] != marks[0][1] for mark in marks):
        raise ValueError(
            "these fits have different families: neither is nested in the other. Compare them by "
            "AIC, or by jalax.compare."
        )


def _observed(design: Design) -> tuple[np.ndarray | None, ...]:
    return design.y, design.size, design.weights, design.precision, design.frequencies


def _check_restricted(results: tuple[FitResult, ...]) -> None:
    """A restricted likelihood has the units of the fixed effects that it integrates out."""
    designs = [result.mixed for result in results if isinstance(result, MixedResult)]
    restricted = [mixed for mixed in designs if mixed is not None and mixed.restricted is not None]
    if not restricted:
        return
    X = restricted[0].design.X
    if len(restricted) < len(results) or not all(
        np.array_equal(mixed.design.X, X) for mixed in restricted
    ):
        raise ValueError(
            "REML fits are compared with REML fits of the same fixed effects only, because their "
            "likelihood has these integrated out: fit all of them again without "
            "likelihood=jalax.REML() (what lme4's anova does by itself)."
        )


def _tail(ratio: float, degrees_of_freedom: tuple[int, ...]) -> float:
    """P(mixture >= ratio); chi-square 0 is a point at zero."""
    from scipy.special import chdtrc

    ratio = max(ratio, 0.0)
    tails = [float(ratio <= 0) if d == 0 else float(chdtrc(d, ratio)) for d in degrees_of_freedom]
    return sum(tails) / len(tails)


def _law(smaller: FitResult, larger: FitResult) -> _Law:
    more = larger.num_parameters - smaller.num_parameters
    if more <= 0:
        raise ValueError(
            "these fits have equally many parameters: neither is nested in the other. Compare them "
            "by AIC, or by jalax.compare."
        )
    if not isinstance(smaller, MixedResult) or not isinstance(larger, MixedResult):
        return _Law(
            (more,), f"chi-square {more}, if no number of theta is at the edge of its range"
        )
    added = _added(smaller, larger)
    if added.variances == 0:
        return _Law((more,), f"chi-square {more}")
    assert larger.mixed is not None
    if added.variances > 1:
        return _Law((), f"{added.variances} variances at the edge of their range")
    if larger.mixed.outer is None:
        return _Law((), "a variance at the edge of its range, of crossed factors")
    if added.groups < MANY_GROUPS:
        return _Law((), f"a variance at the edge of its range, with {added.groups} groups")
    both = more - 1, more
    return _Law(both, f"half chi-square {both[0]}, half {both[1]} (a variance)")


class _Added(NamedTuple):
    variances: int
    groups: int


def _added(smaller: MixedResult, larger: MixedResult) -> _Added:
    """What the larger fit has more, once it is clear that the smaller is nested in it."""
    assert smaller.mixed is not None
    assert larger.mixed is not None
    a, b = smaller.mixed.design, larger.mixed.design
    small, large = (of.X.reshape(-1, of.X.shape[-1]) for of in (a, b))
    reached = large @ np.linalg.lstsq(large, small, rcond=None)[0] if large.size else 0 * small
    nested = small.shape == reached.shape
    nested = nested and np.allclose(reached, small, atol=1e-6 * (1 + np.abs(small).max(initial=0)))
    nested = nested and np.allclose(a.offset, b.offset)
    left = [(block, set(block.effects)) for block in b.blocks]  # not in the smaller one
    for block in a.blocks:
        wanted = set(block.effects)
        holders = [
            effects
            for other, effects in left
            if other.factor == block.factor and _holds(larger.mixed, other, smaller.mixed, block)
        ]
        holder = next((effects for effects in holders if wanted <= effects), None)
        nested = nested and holder is not None
        if holder is not None:
            holder -= wanted
    # Tails mean nothing without a variance: they count as one more, so that the law is simulated.
    laws = larger.mixed.placed
    variances = sum(len(e) + laws[o.name].law.has_tails for o, e in left if e)
    if not nested:
        raise ValueError(
            f"{a.formula!r} is not nested in {b.formula!r}: its fixed or random effects, or "
            "their covariances, are not all there. Compare them by AIC, or by jalax.compare."
        )
    return _Added(variances, larger.log_weights.shape[0] if larger.mixed.outer is not None else 1)


def _holds(larger: MixedDesign, block: Block, smaller: MixedDesign, other: Block) -> bool:
    """Whether the covariance of a block has that of the other in it."""
    (law, known, _), (inner, inner_known, _) = larger.placed[block.name], smaller.placed[other.name]
    same = known.keys() == inner_known.keys()
    same = same and all(np.array_equal(known[name], inner_known[name]) for name in known)
    return same and law.holds(inner)


def simulated_ratios(smaller: Any, larger: Any, key: jax.Array, num: int) -> np.ndarray:
    """The likelihood ratio of data simulated from the smaller of two fits of `jalax.mixed`.

    Of fits that arrived only.
    """
    key_data, key_a, key_b = jax.random.split(key, 3)
    rows = smaller.simulate(key_data, num)
    heights = []
    for fit, key_fits in ((smaller, key_a), (larger, key_b)):
        assert fit.mixed is not None
        model = model_of(fit, "the parametric bootstrap")
        new = with_responses(fit.mixed, model.data, rows)
        ends = fit_to(fit, model, new, fit.theta, key_fits)
        known = [end.known_evidence for end in ends]
        heights.append(np.array([np.nan if e is None else e.value for e in known]))
    ratios = 2 * (heights[1] - heights[0])
    return ratios[np.isfinite(ratios)]
