"""The problems by name."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ._crossed import crossed_120, crossed_1000
from ._electricity import electricity
from ._finpines import finpines
from ._guimmun import guimmun
from ._heart import heart
from ._insteval import insteval
from ._kidney import kidney
from ._lsat import lsat
from ._orange import orange
from ._pound_dollar import pound_dollar
from ._problem import Problem
from ._pumps import pumps
from ._salamander import salamander
from ._seeds import seeds
from ._spatial import spatial
from ._theophylline import theophylline
from ._toenail import toenail
from ._verbagg import verbagg
from ._wine import wine

_ALL: dict[str, Callable[[], Problem]] = {
    "pumps": pumps,
    "seeds": seeds,
    "orange": orange,
    "wine": wine,
    "lsat_rasch": functools.partial(lsat, "rasch"),
    "lsat_2pl": functools.partial(lsat, "2pl"),
    "kidney": kidney,
    "kidney_gamma": functools.partial(kidney, "gamma"),
    "toenail": toenail,
    "toenail_visit": functools.partial(toenail, "visit"),
    "salamander": salamander,
    "theophylline": theophylline,
    "guimmun": guimmun,
    "electricity": electricity,
    "pound_dollar": pound_dollar,
    "spatial": spatial,
    "finpines": finpines,
    "heart": heart,
    "verbagg": verbagg,
    "insteval": insteval,
    "insteval_binary": functools.partial(insteval, "binary"),
    "crossed_120": crossed_120,
    "crossed_1000": crossed_1000,
}


def all() -> dict[str, Callable[[], Problem]]:
    """The problems by name, each a function without arguments that builds it.

    >>> from jalax import problems
    >>> len(problems.all())
    23
    """
    return dict(_ALL)


def get(name: str) -> Problem:
    """The problem of that name.

    Args:
        name: one of `jalax.problems.all()`.

    >>> from jalax import problems
    >>> problems.get("pumps").structure
    '10 groups of 1 latent'
    """
    if name not in _ALL:
        raise ValueError(f"there is no problem {name!r}, only {', '.join(_ALL)}.")
    return _ALL[name]()
