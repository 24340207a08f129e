"""Functions as compile-time keys: a re-created lambda is the same function.

`jax.jit` recognises a function by identity, so that a lambda written inside a
loop or a re-run notebook cell compiles anew each time. `Static` compares what a
function *is* instead: its code, the globals it reads, its closure cells and its
defaults. Immutable JAX arrays are compared by identity, NumPy arrays (which can
be changed in place) by their content.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import importlib
import inspect
import operator
import sys
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from jalax._runtime.products import in_full


class Static:
    """A callable that is hashable, and equal to every other spelling of itself."""

    __slots__ = ("_hash", "_token", "function")

    def __init__(self, function: Callable):
        self.function = function
        self._token = _token(function, {})
        self._hash = hash(self._token)

    @classmethod
    def of(cls, function: Callable) -> Static:
        return function if isinstance(function, cls) else cls(function)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._token == other._token

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def fresh(self) -> Static:
        """The same function with its key taken now: what it reads may have changed."""
        return Static(self.function)

    def __copy__(self) -> Static:
        return self

    def __deepcopy__(self, memo: dict) -> Static:
        return self

    def __reduce__(self) -> tuple:
        """By the name under which another process finds the function; its key is taken there."""
        if (name := _importable(self.function)) is not None:
            return _imported, name
        _check_parts(self.function)
        return Static, (self.function,)

    def fingerprint(self) -> str:
        """A digest of the function and the numbers it closes over, the same in every process."""
        return hashlib.sha256(repr(_stable(self._token)).encode()).hexdigest()


def _importable(function: Any) -> tuple[str, str] | None:
    """The module and the name under which an import finds this very function; None: nowhere."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if isinstance(function, functools.partial) or not (module and name):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return (module, name) if found is function else None


def _imported(module: str, name: str) -> Static:
    return Static(operator.attrgetter(name)(importlib.import_module(module)))


def _check_parts(function: Any) -> None:
    """Functions that only this process has are refused; what else there is, pickle will see to."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            if _importable(part) is None:
                _check_parts(part)
    elif isinstance(function, types.FunctionType):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name} cannot be pickled: it is a lambda, or was made inside of another function, "
            "and another process would not find it. Move it to the top level of a module that can "
            "be imported, or use result.save(path), which keeps the numbers without the model."
        )


def _stable(token: Any) -> Any:
    """A token without addresses: values by content, other objects by the name of their type."""
    if isinstance(token, types.CodeType):
        constants = tuple(_stable(c) for c in token.co_consts)
        return "code", token.co_name, token.co_code, token.co_names, constants
    if isinstance(token, _Identity):
        return _stable(token.value) if isinstance(token.value, jax.Array) else type(token.value)
    if isinstance(token, jax.Array):
        return _token(np.asarray(token), {})
    if isinstance(token, Static):
        return token.fingerprint()
    if isinstance(token, tuple):
        return tuple(_stable(item) for item in token)
    if isinstance(token, (str, bytes, int, float, complex, bool, type(None))):
        return token
    if isinstance(token, (type, types.ModuleType)):
        return token.__name__
    if dataclasses.is_dataclass(token):
        fields = tuple(_stable(getattr(token, f.name)) for f in dataclasses.fields(token))
        return type(token).__qualname__, fields
    return getattr(token, "__qualname__", type(token).__qualname__)


class _Identity:
    """Equal only to the very same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


def _token(value: Any, seen: dict[int, int]) -> Hashable:
    """A hashable stand-in for `value` that two equal values share."""
    if isinstance(value, Static):
        return value._token
    if isinstance(value, types.FunctionType):
        return _function_token(value, seen)
    if isinstance(value, types.MethodType):
        return "method", _token(value.__func__, seen), _token(value.__self__, seen)
    if isinstance(value, functools.partial):
        return "partial", _token((value.func, value.args, value.keywords), seen)
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return "ndarray", value.shape, value.dtype.str, digest
    if isinstance(value, jax.Array):
        return _Identity(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_token(item, seen) for item in value)
    if isinstance(value, dict):
        return dict, tuple((key, _token(item, seen)) for key, item in value.items())
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return type(value), value  # with its type, since 1 == 1.0 == True


def _function_token(function: types.FunctionType, seen: dict[int, int]) -> Hashable:
    if id(function) in seen:  # a function that calls itself, or is met twice: which one
        return "seen", seen[id(function)]
    seen[id(function)] = len(seen)
    reads = []
    for name in sorted(_names(function.__code__)):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        # Helpers of the same module are followed, because a notebook may have
        # redefined what they read; those of other modules are taken as they are.
        follow = not isinstance(value, types.FunctionType) or (
            value.__globals__ is function.__globals__
        )
        reads.append((name, _token(value, seen) if follow else _Identity(value)))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_token(cell.cell_contents, seen))
        except ValueError:  # an empty cell: defined later, or never
            cells.append("empty")
    return (
        "function",
        function.__code__,
        tuple(reads),
        tuple(cells),
        _token(function.__defaults__, seen),
        _token(function.__kwdefaults__, seen),
    )


def _names(code: types.CodeType) -> set[str]:
    """Every name the code, or a function defined inside it, may look up globally."""
    # Not code.co_names: it also lists attributes, and jax.scipy.stats.t is no global called t.
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {i.argval for i in dis.get_instructions(code) if i.opname in loads}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


_compilations: dict[types.CodeType, int] = {}


def wrapped(function: Callable, *first: Any) -> Static:
    """`function` with its first arguments; if the first is the user's function, under its name.

    A partial is keyed by its parts, so that the same parts compile once.
    """
    part: Any = functools.partial(function, *first)
    part.__qualname__ = getattr(first[0], "__qualname__", function.__qualname__)
    if callable(first[0]):
        part.__wrapped__ = first[0]
    return Static(part)


@functools.lru_cache(maxsize=256)
def traced_once(log_joint: Static, constrain: Static | None) -> Callable:
    """log_joint(constrain(theta), x, data) whose Python body runs once per set of shapes.

    An inlined jit keeps the recorded operations, and everything that needs the function
    (its value, its gradients, its curvature, a second branch) works on those.
    """
    # Functions under the same decorator share its code: look inside.
    code = getattr(inspect.unwrap(log_joint.function), "__code__", None)
    if code is not None:
        _compilations[code] = _compilations.get(code, 0) + 1
        if _compilations[code] == 4:
            warnings.warn(
                f"{log_joint!r} is being compiled for the fourth time, each time with other values "
                "in its closure or globals. Put arrays into data= (of transport: the schedule), so "
                "that they are traced and one compilation serves them all.",
                stacklevel=2,
            )

    def density(theta, x, data):
        return log_joint(theta if constrain is None else constrain(theta), x, data)

    # From the outside, so that a trace does not depend on where it is called.
    return in_full(jax.jit(density, inline=True))
