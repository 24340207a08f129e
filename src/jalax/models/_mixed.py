r"""Mixed models by formula: fixed effects, random effects in one or several factors.

$$b_k \sim \mathcal{N}(0, \Sigma_{f(k)}), \qquad
  \eta = X \beta + o + \sum_f Z_f b_f, \qquad y \mid b \sim \text{family}(\eta).$$

Where all grouping factors are nested in one, its levels are independent groups; where they are
crossed, all random effects are one joint latent. Latents are the random effects or, where
$\Sigma$ comes near a singular one, white: $b = \Lambda x$ with $\Lambda \Lambda' = \Sigma$.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model.groups import Slots, by_group, local_levels
from jalax._model.model import GroupedModel, Model, Outside
from jalax.families._catalogue import find
from jalax.families._continuous import Gaussian
from jalax.families._family import HOST, Family
from jalax.families._multinomial import Multinomial
from jalax.families._ordinal import Ordinal
from jalax.families._zeros import WithZeros

from . import _checks, _density, _effects
from . import _nested as nested
from ._categories import per_category
from ._contrasts import Contrasts, check
from ._covariances import Covariance, Placed
from ._density import Blocks, Theta
from ._design import NOTHING, Asked, Design, parse
from ._effects import COVARIANCE, WHITE, Laws
from ._first_theta import first_theta
from ._formula import Block
from ._kept_rows import Drop, Missing
from ._places import places_of, structure_of
from ._r_words import named_options
from ._restricted import (
    REML,
    Compressed,
    check_restricted,
    compressed,
    plus_restricted,
    root_of,
    shapes_of,
)


class MixedDesign(NamedTuple):
    """What a fitted mixed model is reported by."""

    design: Design
    family: Family
    outer: str | None  # the factor whose levels are the groups; None: one joint latent
    levels: dict[str, np.ndarray]  # block: (G, L) or (L,), level of each latent row; -1: none
    placed: dict[str, Placed]  # block: the law of its random effects, and what that knows
    restricted: Compressed | None = None  # of REML, columns X and y less the offset
    slots: Slots | None = None  # where the rows stand in their groups, if not in their order

    @property
    def num_rows(self) -> int:
        """With all copies of a group that occurs several times."""
        times = self.design.frequencies
        return self.design.y.size if times is None else round(times.sum())

    @property
    def laws(self) -> Laws:
        return tuple((block.name, self.placed[block.name].law) for block in self.design.blocks)


DROP = Drop()
FREQUENCIES = "frequency"  # an entry of the data


@named_options("jalax.models.mixed")
def mixed(
    formula: str,
    data: Any,
    *,
    family: Any = "gaussian",
    dispersion: str | None = None,
    zero: str | None = None,
    weights: Any = None,
    precision_weights: Any = None,
    frequencies: Any = None,
    offset: str | None = None,
    contrasts: Mapping[str, Contrasts] | None = None,
    covariances: Mapping[str, Covariance] | None = None,
    subset: Any = None,
    missing: Missing = DROP,
    likelihood: REML | None = None,
) -> Model:
    """A mixed model from a formula; see `jalax.mixed`, which also fits it.

    The arguments are as there: formula, data, family, dispersion, zero, weights,
    precision_weights, frequencies, offset, contrasts, covariances, subset, missing and likelihood.

    >>> from jalax import datasets, models
    >>> model = models.mixed("yield_ ~ 1 + (1|batch)", datasets.dyestuff().to_frame())
    >>> model.num_groups, sorted(model.theta)
    (6, ['beta', 'cor', 'sd', 'sigma'])
    """
    asked = Asked(
        dispersion=dispersion,
        zero=zero,
        weights=weights,
        precision_weights=precision_weights,
        frequencies=frequencies,
        offset=offset,
        contrasts=check(contrasts),
        covariances=covariances,
        subset=subset,
        missing=missing,
        likelihood=likelihood,
    )
    model, design = build(formula, data, family, asked)
    if design.design.left_out is not None:
        warnings.warn(design.design.left_out.sentence, stacklevel=3)
    return model


def rebuilt(mixed: MixedDesign) -> Model:
    """The model of a fit, made again."""
    design = mixed.design
    model, _ = build(design.formula, design.frame, unwrapped(mixed.family), design.asked)
    return model


def unwrapped(family: Family) -> Family:
    """The family that was asked for."""
    return family.family if isinstance(family, WithZeros) else family


def build(
    formula: str, data: Any, family: Any, asked: Asked = NOTHING
) -> tuple[Model, MixedDesign]:
    family = find(family)
    kinds = isinstance(family, Ordinal), isinstance(family, Multinomial)
    design = parse(formula, data, asked, *kinds)
    if isinstance(family, Multinomial):
        design = per_category(design)
    if asked.zero is not None:
        family = WithZeros(family)
    if asked.dispersion is not None and family.dispersion is None:
        raise ValueError(f"{family!r} has no parameter that a formula for dispersion is about.")
    rows = _rows(design, family)
    outer = None if _effects.has_joint_levels(design) else outer_factor(design.blocks)
    _check_frequencies(asked, outer)
    groups, index = (1, np.zeros(design.y.size, int)) if outer is None else _groups(design, outer)
    latent, levels = {}, {}
    for block in design.blocks:
        local, known = local_levels(block.index, index, groups)
        rows["Z"][block.name], rows["level"][block.name] = block.matrix, beside(local, design)
        latent[block.name] = jnp.zeros((known.shape[1], len(block.effects)))
        levels[block.name] = known if outer is not None else known[0]
    names = tuple((block.name, latent[block.name].shape[0]) for block in design.blocks)
    found = MixedDesign(design, family, outer, levels, _placed(design, levels))
    laws = found.laws
    log_joint: Any = functools.partial(_density.log_joint, family, names, laws)
    if asked.likelihood is not None:
        found = found._replace(restricted=_restricted(found, rows, index, latent))
        log_joint = functools.partial(plus_restricted, log_joint, *_of_X(found, latent))
    if (pieces := _pieces(found, names, log_joint)) is not None:
        log_joint = functools.partial(nested.log_joint, pieces)
        latent = {name: latent[name] for name, levels_of in names if levels_of == 1}
        found = found._replace(slots=nested.slots(pieces.chain, rows["level"], index))
    theta = first_theta(design, family, found.placed)
    constrain = functools.partial(_density.constrain, family, laws)
    options: dict[str, Any] = {"theta": theta, "constrain": constrain}
    model: Model
    if outer is None:
        model = _joint(found, rows, log_joint, latent, options)
    else:
        grouped = jax.tree.map(lambda leaf: by_group(leaf, index, groups, found.slots), rows)
        if pieces is not None:
            grouped["parent"] = nested.parents(pieces.chain, rows["level"], index)
        grouped |= _frequencies(design, index, outer)
        model = GroupedModel(log_joint, latent, _checks.to_jax(grouped), **options)
    simulate = functools.partial(_density.simulate, family, names, laws)
    model.outside = Outside(
        unconstrain=functools.partial(_density.unconstrain, family, laws),
        labels=_labels(found, theta),
        groups=None if outer is None else _group_labels(design, outer),
        observed=("y", "size"),
        simulate=simulate if can_simulate(design) else None,
        switch=WHITE,
        white=functools.partial(_effects.random_effects, laws),
        within=None if pieces is None else functools.partial(nested.drawn, pieces),
        finer=None if pieces is None else functools.partial(nested.finer, pieces),
        units=None if pieces is None else functools.partial(nested.num_levels, pieces),
        frequencies=None if design.frequencies is None else FREQUENCIES,
    )
    if not all(law.is_normal for _, law in laws):  # these have lighter tails
        model = model.whitened() or model
    return model, found


def _joint(
    found: MixedDesign, rows: dict, log_joint: Callable, latent: dict, options: dict[str, Any]
) -> Model:
    """All random effects as one latent, with the pairs of them that meet."""
    beside_rows = _effects.known_arrays(found.placed)
    arrays = _checks.to_jax(rows | ({COVARIANCE: beside_rows} if beside_rows else {}))
    pairs = _effects.joint_pairs(latent, found.placed)
    structure = structure_of(latent, rows["level"], pairs)
    return Model(log_joint, latent, arrays, structure=structure, **options)


def _check_frequencies(asked: Asked, outer: str | None) -> None:
    if asked.frequencies is not None and (outer is None or asked.likelihood is not None):
        raise ValueError(
            "frequencies= are those of independent groups, fitted by maximum likelihood; this "
            "formula has no such groups, or likelihood= is there: repeat the rows."
        )


def _frequencies(design: Design, group: np.ndarray, outer: str) -> dict[str, np.ndarray]:
    """Of each group, from those of its rows."""
    if (times := design.frequencies) is None:
        return {}
    of_groups = np.zeros(group.max() + 1)
    of_groups[group] = times
    if other := np.flatnonzero(of_groups[group] != times).tolist():
        raise ValueError(
            f"frequencies= says how often a whole group occurs, and rows of one group of {outer!r} "
            f"have {of_groups[group[other[0]]]:g} and {times[other[0]]:g}: of single rows use "
            "weights=."
        )
    return {FREQUENCIES: of_groups}


def _pieces(found: MixedDesign, names: Blocks, whole: Callable) -> nested.Pieces | None:
    """Of a model whose inner factors are integrated out level by level; None: they are latents."""
    plain = all(law.is_normal and not law.is_joint for _, law in found.laws)
    plain = plain and not _effects.known_arrays(found.placed) and found.restricted is None
    if found.outer is None or not plain or found.design.predictors is not None:
        return None
    if not (chain := nested.chain_of(found.design.blocks, dict(names))):
        return None
    outer = tuple((name, levels) for name, levels in names if levels == 1)
    laws = tuple((name, law) for name, law in found.laws if name in dict(outer))
    return nested.Pieces(
        whole=whole,
        prior=functools.partial(_density.log_prior, laws),
        predictor=functools.partial(_density.outer_predictor, outer, laws),
        rows=functools.partial(_density.row_densities, found.family),
        effects=functools.partial(_effects.of_white, found.laws),
        chain=chain,
    )


def with_all_effects(model: Model, mixed: MixedDesign) -> Model:
    """The model with the random effects of all factors as its latents."""
    if model.outside.within is None:
        return model
    shapes = ((b.name, mixed.levels[b.name].shape[-1], len(b.effects)) for b in mixed.design.blocks)
    latent = {name: jnp.zeros((levels, size)) for name, levels, size in shapes}
    return model.replace(latent=latent)


def _restricted(found: MixedDesign, rows: dict, group: np.ndarray, latent: dict) -> Compressed:
    design = found.design
    check_restricted(design.asked.likelihood, found.family, design.dispersion is not None, latent)
    for name, (law, known, _) in found.placed.items():
        if law.is_joint or known or not law.is_normal:
            raise ValueError(
                f"REML is for normal random effects whose levels are independent, not for those of "
                f"covariances={{{name!r}: ...}}: leave likelihood= out."
            )
    z = np.concatenate([rows["Z"][name] for name in sorted(latent)], axis=1)
    columns = np.column_stack([design.X, design.y - design.offset])
    return compressed(
        columns, design.precisions, z, places_of(latent, rows["level"]), group, latent
    )


def _of_X(found: MixedDesign, latent: dict) -> tuple[Compressed, Callable]:
    """What REML needs of the fixed effects' columns, and theta to the root of Sigma."""
    assert found.restricted is not None
    root = functools.partial(_density.from_white, found.laws)
    columns = found.restricted.of_first(found.design.X.shape[1])
    return columns, functools.partial(root_of, shapes_of(latent), root)


def _placed(design: Design, levels: dict[str, np.ndarray]) -> dict[str, Placed]:
    """Of independent groups there is none whose law asks for its levels."""
    labels = {
        block.name: [block.labels[i] for i in np.ravel(levels[block.name]) if i >= 0]
        for block in design.blocks
    }
    return _effects.placed_blocks(design, labels)


def can_simulate(design: Design) -> bool:
    """Not where times are censored, since it is not known when the others would have been.

    Nor where a row counts otherwise than once: it would stand for several responses.
    """
    censored = design.response.event is not None and not design.response.event.all()
    counts = design.weights, design.frequencies
    return not censored and all(each is None or bool((each == 1).all()) for each in counts)


def _rows(design: Design, family: Family) -> dict[str, Any]:
    y, size, event = design.y, design.size, design.response.event
    family.check(design.response.name, y, size)
    if event is not None and not hasattr(family, "survival"):
        raise ValueError(
            f"{design.response.name} has censored times, which family={family.name!r} cannot have: "
            "use 'weibull', 'exponential' or 'lognormaltime'."
        )
    rows: dict[str, Any] = {"X": design.X, "Z": {}, "level": {}, "y": y}
    rows |= {"offset": beside(design.offset, design), "mask": np.ones(y.shape, bool)}
    if hasattr(family, "survival"):
        rows["event"] = np.ones_like(y) if event is None else event
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            rows[f"X of {what}"] = side.X
    if design.weights is not None:
        rows["weight"] = design.weights
    if design.precision is not None:
        if not isinstance(family, Gaussian):
            raise ValueError(
                f"precision_weights divide the variance of a Gaussian response, not of {family!r}: "
                "weights= says how often a row counts, of any family."
            )
        rows["precision"] = design.precision
    if size is not None:
        rows["size"] = size
    return rows | family.constants(y, size, HOST)


def beside(column: np.ndarray, design: Design) -> np.ndarray:
    """One value a row, the same for all linear predictors of that row."""
    return column[:, None] if design.predictors is not None else column


def outer_factor(blocks: tuple[Block, ...]) -> str | None:
    """The factor that every other one is nested in; None: they are crossed."""
    for block in blocks:
        if all(nested.is_nested(other.index, block.index) for other in blocks):
            return block.factor
    return None


def _groups(design: Design, outer: str) -> tuple[int, np.ndarray]:
    block = next(block for block in design.blocks if block.factor == outer)
    return len(block.labels), block.index


def _group_labels(design: Design, outer: str) -> tuple[str, ...]:
    return next(block.labels for block in design.blocks if block.factor == outer)


def _labels(mixed: MixedDesign, theta: Theta) -> tuple[str, ...]:
    """A name for each number of theta, whose parts are in the order of the alphabet."""
    design = mixed.design
    known = {"beta": list(design.fixed)} | _effects.labels_of(design, mixed.placed)
    for what, side in (("dispersion", design.dispersion), ("zero", design.zero)):
        if side is not None:
            known[what] = [f"{what} {name}" for name in side.names]
    if design.response.categories is not None:
        labels = design.response.categories
        known["thresholds"] = [f"{a}|{b}" for a, b in itertools.pairwise(labels)]
    return tuple(name for part in sorted(theta) for name in known.get(part, [part]))
