"""Options of the algorithms as data: step sizes, schedules, optimisers.

Numbers are traced, so that another step size or learning rate does not recompile and can
be swept with `fit_many`; functions are static, under a key that recognises their twins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._runtime.arrays import as_array
from jalax._runtime.function_keys import Static

Tree = Any


@jax.tree_util.register_pytree_with_keys_class
class Schedule:
    """A number that changes with the step: `function(step, **parameters)`.

    The function is static, the parameters are traced.

    >>> decay = Schedule(lambda step, first, rate: first * rate**step, first=0.1, rate=0.5)
    >>> float(decay(2))
    0.025
    """

    def __init__(self, function: Callable, **parameters):
        if not callable(function):
            raise TypeError(
                f"Schedule takes a function (step, **parameters) -> number, got {function!r}."
            )
        self.function = Static.of(function)
        self.parameters = parameters

    def __call__(self, step):
        return self.function(step, **self.parameters)

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self.parameters))
        children = [(jax.tree_util.GetAttrKey(n), self.parameters[n]) for n in names]
        return children, (self.function, names)

    @classmethod
    def tree_unflatten(cls, aux, children):
        schedule = object.__new__(cls)
        schedule.function, names = aux
        schedule.parameters = dict(zip(names, children, strict=True))
        return schedule

    def __repr__(self) -> str:
        return f"Schedule({self.function!r}, {self.parameters})"


def as_schedule(number: Any) -> Any:
    """A function of the step becomes a `Schedule`, a number a strongly typed array."""
    if callable(number) and not isinstance(number, Schedule):
        return Schedule(number)
    return jax.tree.map(strong_float, number)


def value_at(number: Any, step) -> Any:
    """A constant, or a schedule at this step."""
    return number(step) if isinstance(number, Schedule) else number


@jax.tree_util.register_pytree_with_keys_class
class Optax:
    """An optax optimiser whose float options are traced: `Optax(optax.adam, learning_rate=0.05)`.

    Unlike a ready-made `optax.adam(0.05)`, which is accepted too, another learning rate does
    not compile again and can be swept along an axis of `fit_many`.
    """

    def __init__(self, factory: Callable, **options):
        if not callable(factory):
            raise TypeError(
                f"Optax takes a function that makes an optimiser, such as optax.adam, got "
                f"{factory!r}."
            )
        self.factory = Static.of(factory)
        numbers = {
            name: value
            for name, value in options.items()
            if isinstance(value, (float, jax.Array, np.ndarray, np.floating))
        }
        self.numbers = numbers
        self.others = {
            name: Static.of(value) if callable(value) else value
            for name, value in options.items()
            if name not in numbers
        }

    def init(self, theta: Tree) -> Tree:
        return self._build().init(theta)

    def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
        return self._build().update(gradient, state, theta)

    def _build(self):
        return self.factory(**self.numbers, **self.others)

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self.numbers))
        children = [(jax.tree_util.GetAttrKey(n), self.numbers[n]) for n in names]
        return children, (self.factory, names, tuple(sorted(self.others.items())))

    @classmethod
    def tree_unflatten(cls, aux, children):
        optimizer = object.__new__(cls)
        optimizer.factory, names, others = aux
        optimizer.numbers = dict(zip(names, children, strict=True))
        optimizer.others = dict(others)
        return optimizer

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in {**self.numbers, **self.others}.items())
        return f"Optax({self.factory!r}, {options})"


def adam(learning_rate: float) -> Optax:
    """Adam whose rate may change on the way, as `jalax.callbacks.held_out` does.

    Args:
        learning_rate: at first; it is in the optimiser's state.
    """
    return Optax(_adam, learning_rate=learning_rate)


def _adam(learning_rate: Any) -> Any:
    import optax

    return optax.inject_hyperparams(optax.adam)(learning_rate=learning_rate)


def as_optimizer(optimizer: Any) -> Optax | None:
    """None, `Optax`, `ObservedInformation`, or an optax transformation under a static key."""
    if optimizer is None or isinstance(optimizer, Optax) or hasattr(optimizer, "direction"):
        return optimizer
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        return Optax(_ReadyMade(Static.of(optimizer.init), Static.of(optimizer.update)))
    raise TypeError(
        "optimizer must be an optax transformation such as optax.adam(0.05) or "
        f"jalax.Optax(optax.adam, learning_rate=0.05), got {optimizer!r}."
    )


def check_optimizer(optimizer: Any) -> None:
    """Build it once, without its numbers, so that a wrong option is found before the fit."""
    if not isinstance(optimizer, Optax):
        return
    shown = ", ".join([*optimizer.numbers, *optimizer.others])
    try:
        jax.eval_shape(lambda given: given._build() and None, optimizer)
    except Exception as error:
        error.add_note(f"raised inside {optimizer.factory!r}, given {shown} by jalax.Optax")
        raise


@dataclasses.dataclass(frozen=True)
class _ReadyMade:
    init: Static
    update: Static

    def __call__(self) -> _ReadyMade:
        return self


def descend(optimizer: Optax, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
    """theta_{k+1} = OPT(theta_k, g_k); the gradient is that of U, which is minimised."""
    updates, state = optimizer.update(gradient, state, theta)
    return jax.tree.map(lambda t, u: (t + u).astype(t.dtype), theta, updates), state


def canonical(algorithm: Any, convert: Callable | None = None) -> Any:
    """The same algorithm (or start) with arrays for numbers and comparable functions.

    What comes back can be passed through jit and vmap; equal options share a compilation.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.metadata.get("static"):
            changes[field.name] = Static.of(value) if callable(value) else value
        elif field.name == "optimizer":
            changes[field.name] = jax.tree.map(strong_float, as_optimizer(value))
        else:
            try:
                kept = as_schedule(value) if convert is None else jax.tree.map(convert, value)
            except (TypeError, ValueError) as error:
                name = f"{type(algorithm).__name__}.{field.name}"
                raise TypeError(_not_numbers(name, value)) from error
            changes[field.name] = kept
    return dataclasses.replace(algorithm, **changes)


def _not_numbers(name: str, value: Any) -> str:
    """A sentence for an option that is no number, or for the part of it that is none."""
    known = dataclasses.is_dataclass(value) and not isinstance(value, type)
    parts = vars(value) if known else {}
    for part, given in parts.items():
        if isinstance(given, str):
            return f"{type(value).__name__}.{part} must be a number, got {given!r}."
    kinds = "a number, an array, or an object its documentation names"
    return f"{name} must be {kinds}, got {value!r}."


def strong_float(leaf: Any) -> jax.Array:
    """A float array with a dtype of its own: Python numbers would be weakly typed."""
    # By way of NumPy, which has no weak types: a conversion in JAX would compile a program.
    array = leaf if isinstance(leaf, jax.Array) else as_array(np.asarray(leaf))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(float)
    return array.astype(array.dtype)


def _at_step_0(name: str, schedule: Schedule) -> Any:
    given = schedule.function.function
    if isinstance(given, type):
        raise TypeError(f"{name} must be a number, a schedule or an object, got {given!r}.")
    try:
        return schedule(0)
    except Exception as error:
        called = ", ".join(["step", *schedule.parameters])
        error.add_note(f"raised inside {name}, a schedule, which is called as function({called})")
        raise


def require_positive(name: str, value: Any) -> None:
    """A sentence for options that must be finite and larger than zero."""
    if value is None:
        raise ValueError(f"{name} is missing: pass a positive number or a schedule, {name}=...")
    first = _at_step_0(name, value) if isinstance(value, Schedule) else value
    if isinstance(first, jax.core.Tracer):  # the caller is traced itself: nothing to look at
        return
    numbers = np.asarray(first)
    if numbers.dtype.kind in "OUS":
        of = " at step 0" if isinstance(value, Schedule) else ""
        raise TypeError(f"{name} must be a positive number or a schedule, got {first!r}{of}.")
    if numbers.shape != ():
        raise ValueError(
            f"{name} must be one number, got an array of shape {numbers.shape}; to try several, "
            "use jalax.fit_many with axes=."
        )
    if not np.all(np.isfinite(numbers)) or np.any(numbers <= 0):
        raise ValueError(f"{name} must be positive and finite, got {numbers}.")
