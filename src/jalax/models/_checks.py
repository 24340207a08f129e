"""Input checks of the factories: what was given, what was expected, what to do about it."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._runtime.arrays import as_array


def is_traced(value: Any) -> bool:
    """Inside jit or vmap a value has a shape but no content that a check could look at."""
    return isinstance(value, jax.core.Tracer)


def real_array(name: str, value: Any, *, ndim: int, hint: str = "") -> Any:
    """`value` as a finite real array with `ndim` axes, none of them empty.

    NumPy in float64, so that the factories compute in double precision whatever the dtype of
    the model; a traced array stays one.
    """
    array: Any
    if is_traced(value):
        array = jnp.asarray(value, float)
    else:
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} must be an array of real numbers, got {type(value).__name__} ({error}). "
                "Encode text or categories as numbers first."
            ) from None
    if array.ndim != ndim:
        raise ValueError(
            f"{name} must have {ndim} {'axis' if ndim == 1 else 'axes'}, got shape {array.shape}. "
            + (hint or "Reshape it to the expected number of axes.")
        )
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}): at least one row is needed.")
    if not is_traced(array) and not np.isfinite(array).all():
        count = int(np.sum(~np.isfinite(array)))
        raise ValueError(
            f"{name} has {count} entries that are NaN or infinite. Drop or impute those rows first."
        )
    return array


def same_rows(**arrays: Any) -> None:
    """Every array has the same length."""
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise ValueError(
            f"one row for each observation is expected, but {found}. Check that rows were not "
            "dropped from one of them only, and that nothing is transposed."
        )


def design(X: Any, y: Any) -> tuple[Any, Any]:
    """A design matrix (n, d) and its response (n,)."""
    X = real_array(
        "X", X, ndim=2, hint="Pass one row for each observation; a single feature is x[:, None]."
    )
    y = real_array("y", y, ndim=1, hint="Pass one number for each observation, such as y.ravel().")
    same_rows(X=X, y=y)
    return X, y


def counts(name: str, values: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 upwards."""
    wrong = (values < 0) | (values != np.floor(values))
    if wrong.any():
        raise ValueError(
            f"{name} must hold counts (whole numbers from 0 upwards), found {values[wrong][0]:g}. "
            "Pass counts, not rates or proportions."
        )
    return values


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    """A Python int from `at_least` upwards; 3.0 is no whole number here, it may be a mistake."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}. "
            "Pass for example int(...)."
        ) from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}.")
    return number


def positive(name: str, value: Any) -> Any:
    """A positive finite scalar."""
    if is_traced(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be one positive number, got {value!r}.") from None
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {number:g}.")
    return number


def to_jax(data: dict[str, Any]) -> dict[str, Any]:
    """Every entry as a JAX array, reals in the default float dtype of this moment."""

    def convert(value):
        kind = getattr(value, "dtype", np.dtype(float)).kind
        return as_array(value, float if kind == "f" else None)

    return jax.tree.map(convert, data)
