"""Covariances in a formula, `ar1(0 + week | g)`, and by the names of the blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._covariances import (
    AR1,
    CompoundSymmetry,
    Covariance,
    Diagonal,
    Exponential,
    Unstructured,
)
from ._formula import Block
from ._wrappers import wrapped_terms

WRAPPERS: dict[str, type[Covariance]] = {
    cls.kind: cls for cls in (Unstructured, Diagonal, CompoundSymmetry, AR1, Exponential)
}
# What glmmTMB and others have besides, and what to write.
OTHERS = {
    "ou": "write exp(...), the same process",
    "mat": "pass covariances={'g': jalax.covariances.Matern()}",
    "gau": "a Gaussian correlation is too smooth for a likelihood; pass "
    "covariances={'g': jalax.covariances.Matern(smoothness=2.5)}",
    "propto": "pass covariances={'g': jalax.covariances.Known(matrix, labels)}",
    "gr": "pass covariances={'g': jalax.covariances.Known(matrix, labels)}",
    "vm": "pass covariances={'g': jalax.covariances.Known(matrix, labels)}",
    "equalto": "pass covariances={'g': jalax.covariances.Known(matrix, labels)}, and hold the "
    "standard deviation by fixed=",
    "toep": "write us(...), which has these correlations among others, or ar1(...)",
    "hetar1": "write us(...), or ar1(...) with one standard deviation",
    "homcs": "write cs(...), whose standard deviations may differ, or (1 | g) + (1 | g:f)",
    "homdiag": "write (1 | g:f), which has one standard deviation for all levels of f",
    "rr": "there are no factors of reduced rank: write us(...)",
}


def check_wrappers(formula: str) -> None:
    """Refuse a name around a bar term that is no covariance."""
    for name, term in wrapped_terms(formula):
        if name is None:
            continue
        if name not in WRAPPERS:
            known = ", ".join(WRAPPERS)
            what = OTHERS.get(name, f"in a formula there are {known}")
            raise ValueError(f"there is no covariance {name}{term}: {what}.")
        if "||" in term:
            raise ValueError(
                f"{name}{term} has a covariance and '||', which says that there is none: write "
                f"diag{term.replace('||', '|')}, or one bar."
            )


def covariances_of(
    blocks: Sequence[Block], names: Sequence[str | None], asked: Any
) -> dict[str, Covariance]:
    """The covariance of each block; `names` are those around the terms they come from."""
    by_name = _checked(asked, [block.name for block in blocks])
    found: dict[str, Covariance] = {}
    for block, name in zip(blocks, names, strict=True):
        given = by_name.get(block.name)
        if name is None:
            found[block.name] = given or Unstructured()
            continue
        if given is not None and given.kind != name:
            raise ValueError(
                f"the block {block.name!r} has {name}(...) in the formula and {given!r} in "
                "covariances: leave one of them out."
            )
        found[block.name] = given or WRAPPERS[name]()
        if found[block.name].is_joint(block):
            raise ValueError(
                f"{name}({block.effects[0]} | {block.factor}) has one effect, and {name} is about "
                f"the correlation of several: write {name}(0 + C(f) | {block.factor}) with a "
                "factor or a number f. For levels that depend on each other leave it out of the "
                f"formula, and pass covariances={{{block.name!r}: {found[block.name]!r}}}."
            )
    return found


def _checked(asked: Any, names: list[str]) -> Mapping[str, Covariance]:
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise TypeError(
            "covariances must be a dict from the names of blocks to objects of jalax.covariances, "
            f"such as {{{names[0]!r}: jalax.covariances.AR1()}}, got {type(asked).__name__}."
        )
    for name, covariance in asked.items():
        if name not in names:
            raise ValueError(
                f"covariances has {name!r}, and the random effects of the formula are those of "
                f"{', '.join(map(repr, names))}."
            )
        if isinstance(covariance, type) and issubclass(covariance, Covariance):
            raise TypeError(
                f"the covariance of {name!r} must be an object: {covariance.__name__}(), not "
                f"{covariance.__name__}."
            )
        if not isinstance(covariance, Covariance):
            raise TypeError(
                f"the covariance of {name!r} must be an object of jalax.covariances, such as "
                f"AR1() or Diagonal(), got {covariance!r}."
            )
    return asked
