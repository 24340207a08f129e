"""What fits again. Results come before fits, which make them, and know them by this."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jalax._evidence.record import FitRecord
from jalax._fit.callbacks import Callback

_known: dict[str, Callable[..., Any]] = {}


def register(one: Callable[..., Any], many: Callable[..., Any]) -> None:
    """`jalax.fit` and `jalax.fit_many`, said once by the module that has both."""
    _known.update(one=one, many=many)


def one_like(result: FitRecord) -> Callable[..., Any]:
    """`fit` with the algorithm of a fit."""
    return partial(_known["one"], algorithm=_algorithm(result), progress=Callback())


def many_like(result: FitRecord) -> Callable[..., Any]:
    """`fit_many` with the algorithm and the number of particles of a fit."""
    own = result.origin.algorithm
    steps = None if own.stops_by_itself else max(result.num_steps, 1)
    num = result.log_weights.shape[-1]
    asked = {"algorithm": _algorithm(result), "num_steps": steps, "num_particles": num}
    return partial(_known["many"], **asked, progress=Callback())


def _algorithm(result: FitRecord) -> Any:
    """None where the fit had chosen it itself."""
    return None if result.choice else result.origin.algorithm
