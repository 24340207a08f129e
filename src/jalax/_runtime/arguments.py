"""Sentences about single arguments that are not what they should be."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def level_of_user() -> int:
    """The `stacklevel` with which a warning of the calling function points at the user's line."""
    package = str(Path(__file__).parents[1])
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def check_key(key: Any, num_fits: int | None = None) -> None:
    """A typed key, or an array of `num_fits` of them."""
    if key is None:
        raise TypeError("a key is missing: pass key=jax.random.key(0), with a seed of your own.")
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "key must be a typed JAX key, jax.random.key(seed); an old-style key from "
            "jax.random.PRNGKey is brought over by jax.random.wrap_key_data(key). "
            f"Got {type(key).__name__}."
        )
    if num_fits is None and key.shape != ():
        raise ValueError(
            f"key must be one key, got {key.shape} of them: pass key[0], or use jalax.fit_many for "
            "one fit a key."
        )
    if key.shape not in ((), (num_fits,)):
        raise ValueError(
            f"key must be one key, or an array of one a fit, ({num_fits},); got {key.shape}."
        )


def check_count(name: str, value: Any, least: int = 1) -> int:
    if value is None:
        raise ValueError(f"{name} is missing: pass {name}=..., a whole number.")
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def check_number(
    name: str, value: Any, expected: str = "a finite number", holds: Callable = math.isfinite
) -> Any:
    """One number that is as expected; of a tracer there is nothing to look at."""
    if isinstance(value, jax.core.Tracer):
        return value
    sentence = f"{name} must be {expected}, got {{}}."
    try:
        if isinstance(value, (str, bool)) or np.shape(value) != ():
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(sentence.format(repr(value))) from None
    if not holds(number):
        raise ValueError(sentence.format(f"{number:g}"))
    return number


def check_positive(name: str, value: Any) -> Any:
    """A number above 0; infinity is one."""
    return check_number(name, value, "a positive number", lambda number: number > 0)


def check_fraction(name: str, value: Any, what: str = "a number", ends: bool = False) -> Any:
    """A number between 0 and 1, with or without the two."""
    if ends:
        return check_number(name, value, f"{what} from 0 to 1", lambda number: 0 <= number <= 1)
    return check_number(name, value, f"{what} between 0 and 1", lambda number: 0 < number < 1)


def check_callable(name: str, value: Any, call: str) -> None:
    """A function, which is called like `call`."""
    if not callable(value) or isinstance(value, type):
        raise TypeError(f"{name} must be a function {call}, got {value!r}.")
