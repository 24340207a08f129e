"""Compiled programs on disk, found again without being traced.

JAX's persistent cache knows a program by its lowered text: a new process has to trace and lower
every program before it finds that it is there, nearly 3 s of an automatic fit of the Wisconsin
model (two cores). Here a program is known by what it is made of: the function, the structure and
the types of its arguments, the compiler's options, JAX's switches, and jalax's own source.

That holds only where all code is jalax's, JAX's or optax's. A function of the user's may read
anything while it is traced, a file for example, and could be answered with an old program: models
with such functions are left to JAX's cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import os
import pickle
import platform
import stat
import sys
import threading
import types
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jalax._runtime import files
from jalax._runtime.function_keys import Static

# Packages whose code is in the key, by version or, jalax's own, by its text.
KNOWN = ("jalax", "jax", "optax", "numpy", "builtins", "collections")

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Keep programs there, for as long as it is the folder of JAX's cache too."""
    global _folder
    _folder = folder


# Switches under which JAX does more than to run a program, or elsewhere.
_SPECIAL = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_default_device")


def _is_on(switches: dict[str, Any]) -> bool:
    return (
        switches["jax_compilation_cache_dir"] == str(_folder)
        and switches["jax_enable_compilation_cache"]
        and not any(switches[name] for name in _SPECIAL)
        and jax.process_count() == 1
        and jax.sharding.get_abstract_mesh().empty
    )


class Kept:
    """One program for arguments of one kind, used like a jitted function: on disk, or put there."""

    def __init__(self, path: Path, structure: Any, static: Sequence[str], program: Any):
        self.path, self.structure, self.static, self.program = path, structure, static, program
        self._shapes, self._payload = _read(path)  # of the result; None: not on disk
        self._compiled: Any = None
        self._lowered: Any = None
        self._lock = threading.Lock()

    def __call__(self, *args, **kwargs):
        while self._compiled is None:  # a second time if what is on disk cannot be loaded
            self.lower(*args, **kwargs).compile()
        moving, others = _moving(self.program, self.static, args, kwargs)
        return self._compiled(*moving, **others)

    def eval_shape(self, *args, **kwargs) -> Any:
        """Shapes of the result."""
        return self._shapes if self._is_there() else self.program.eval_shape(*args, **kwargs)

    def lower(self, *args, **kwargs) -> Kept:
        """Nothing, if it is there. What Python has to do is done here, and not by `compile`."""
        if not self._is_there():
            self._shapes = self.program.eval_shape(*args, **kwargs)
            self._lowered = self.program.lower(*args, **kwargs)
        return self

    def compile(self) -> None:
        """Load the program, or compile it and put it there."""
        with self._lock:
            if self._compiled is not None:
                return
            if self._payload is not None:
                self._compiled = _load(self._payload, self.structure, self._shapes)
                self._payload = None
            else:
                with _Hits() as hits:
                    self._compiled = self._lowered.compile()
                # XLA leaves functions out when it writes a program that was itself read.
                if not hits.seen:
                    _save(self.path, self._shapes, self._compiled)

    def _is_there(self) -> bool:
        return self._compiled is not None or self._payload is not None


class _Hits:
    """Whether this thread finds programs in JAX's own cache."""

    def __enter__(self) -> _Hits:
        self.seen, self.thread = False, threading.get_ident()
        jax.monitoring.register_event_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_listener(self._listen)

    def _listen(self, event: str, **kwargs: str | int) -> None:
        del kwargs
        if event.endswith("/cache_hits") and threading.get_ident() == self.thread:
            self.seen = True


def _load(payload: bytes, structure: Any, shapes: Any) -> Any:
    """None if this machine's XLA does not take it."""
    _find_lapack()
    devices = jax.devices()[:1]
    try:
        from jax.experimental import serialize_executable

        return serialize_executable.deserialize_and_load(
            payload, structure, jax.tree.structure(shapes), execution_devices=devices
        )
    except (ImportError, RuntimeError, ValueError):
        return None


def _save(path: Path, shapes: Any, compiled: Any) -> None:
    """If it cannot be written, the next process compiles again."""
    unable = ImportError, AttributeError, NotImplementedError, TypeError, ValueError
    with contextlib.suppress(OSError, *unable):
        from jax.experimental import serialize_executable

        payload, _, _ = serialize_executable.serialize(compiled)
        _write(path, pickle.dumps((shapes, payload)))


@functools.cache
def _find_lapack() -> None:
    """JAX does so when it lowers a program that needs it; one that is only loaded would crash."""
    jax.jit(jax.numpy.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def find(
    function: Callable, options: dict, static: Sequence[str], args: tuple, kwargs: dict, seen: dict
) -> Kept | None:
    """The program for these arguments; `seen` are those of this function that were asked for.

    None: nothing is kept, or not this one, because it contains code that is not known.
    """
    if _folder is None:
        return None
    config = getattr(jax.config, "values", {})
    if not config or not _is_on(config):
        return None
    leaves, structure = jax.tree.flatten(_moving(function, static, args, kwargs))
    fixed = _fixed(function, static, args, kwargs)
    kinds = tuple(_kind(leaf) for leaf in leaves)
    switches = tuple((name, _plain(value)) for name, value in config.items())
    met = _folder, fixed, structure, kinds, switches
    if met not in seen:
        name = _name_of(function, options, fixed, structure, kinds, switches)
        seen[met] = None if name is None else _kept(name, function, options, static, structure)
    return seen[met]


def _kept(name: str, function: Callable, options: dict, static: Sequence[str], structure) -> Kept:
    assert _folder is not None

    # Under a name of its own: JAX's cache would answer with an equal program that it has read.
    @functools.wraps(function)
    def named(*args, **kwargs):
        return function(*args, **kwargs)

    named.__name__ = f"{function.__name__}_{name[:16]}"
    program = jax.jit(named, compiler_options=options, static_argnames=static)
    return Kept(_folder / "programs" / _world() / name, structure, static, program)


def _name_of(function, options, fixed, structure, kinds, switches) -> str | None:
    """A digest of all that the program is made of, but `_world`."""
    if None in kinds:
        return None
    try:
        made_of = describe(function), describe(fixed), _describe_structure(structure)
    except _Unknown:
        return None
    tuned = [(n, v) for n, v in switches if "cache" not in n]
    text = repr((made_of, sorted(options.items()), kinds, tuned))
    return hashlib.sha256(text.encode()).hexdigest()


def _moving(function: Callable, static: Sequence[str], args: tuple, kwargs: dict) -> tuple:
    """The arguments that are traced."""
    given = zip(_parameters(function), args, strict=False)
    others = {name: value for name, value in kwargs.items() if name not in static}
    return tuple(value for name, value in given if name not in static), others


def _fixed(function: Callable, static: Sequence[str], args: tuple, kwargs: dict) -> tuple:
    """The arguments that are a part of the program."""
    given = [*zip(_parameters(function), args, strict=False), *kwargs.items()]
    return tuple(sorted(item for item in given if item[0] in static))


def _plain(switch: Any) -> Any:
    return switch if isinstance(switch, (bool, int, float, str, type(None))) else str(switch)


@functools.cache
def _parameters(function: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _kind(leaf: Any) -> Hashable:
    """Shape and type of an argument; None if it does not lie on the first device."""
    if isinstance(leaf, jax.Array) and leaf.devices() != {jax.devices()[0]}:
        return None
    like = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return like.shape, str(like.dtype), like.weak_type


@functools.cache
def _world() -> str:
    """A digest of everything else a program depends on: code, versions, machine."""
    digest = hashlib.sha256()
    source = Path(__file__).parent
    for file in sorted(source.rglob("*.py")):
        digest.update(str(file.relative_to(source)).encode() + file.read_bytes())
    device = jax.devices()[0]
    parts = [
        *(importlib.metadata.version(name) for name in ("jax", "jaxlib", "optax", "numpy")),
        sys.version,
        platform.machine(),
        _processor(),
        os.environ.get("XLA_FLAGS", ""),
        device.platform,
        device.device_kind,
        device.client.platform_version,
        str(os.cpu_count()),
    ]
    digest.update(repr(parts).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What this processor can do: a folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


# --- what a program is made of ----------------------------------------------------------------


class _Unknown(Exception):
    """Code or data of a kind that does not have a name in every process."""


def describe(value: Any) -> str:
    """The same text in every process for the same value, and another one for any other."""
    if isinstance(value, Static):
        return describe(value.function)
    if value is type(None):
        return "NoneType"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (np.ndarray, jax.Array)):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    if type(value) in (tuple, list):
        return f"{type(value).__name__} [{', '.join(map(describe, value))}]"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{describe(type(value))} {describe(list(value))}"
    if type(value) is dict:
        return describe([list(item) for item in value.items()])
    if isinstance(value, functools.partial):
        return f"partial {describe([value.func, value.args, value.keywords])}"
    if isinstance(value, types.MethodType):
        return f"method {describe([value.__func__, value.__self__])}"
    name = _name(value)
    if name is not None:
        return name
    if isinstance(value, types.FunctionType):
        return _describe_inner(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[f.name, getattr(value, f.name)] for f in dataclasses.fields(value)]
        return f"{describe(type(value))} {describe(fields)}"
    raise _Unknown(value)


def _describe_inner(function: types.FunctionType) -> str:
    """A function made by another one: where it is written, and what it was given."""
    # A wrapper takes over the name and the module of what it wraps, but not its globals.
    module = function.__globals__.get("__name__", "")
    if not _is_known(module) or function.__globals__ is not vars(sys.modules[module]):
        raise _Unknown(function)
    code = function.__code__
    where = module, code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_code
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # an empty cell: defined later, or never
        raise _Unknown(function) from None
    given = [*cells, function.__defaults__, function.__kwdefaults__]
    return f"{where} {describe(given)}"


def _name(value: Any) -> str | None:
    """Module and name, if it is found under them."""
    module, name = (getattr(value, x, None) for x in ("__module__", "__qualname__"))
    if not (isinstance(module, str) and isinstance(name, str) and _is_known(module)):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def _is_known(module: str) -> bool:
    return module.split(".")[0] in KNOWN


def _describe_structure(tree: Any) -> str:
    data = tree.node_data()
    if data is None:
        return "*"
    kind, static = data
    inner = ", ".join(map(_describe_structure, tree.children()))
    return f"{describe(kind)} {describe(static)} ({inner})"


# --- files ------------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as file:
        file.write(hashlib.sha256(content).digest() + content)


def _read(path: Path) -> tuple[Any, bytes | None]:
    """Shapes and program; a file that is not whole, or not this user's, is none."""
    try:
        with open(path, "rb") as file:
            found = file.read() if _is_mine(os.fstat(file.fileno())) else b""
    except OSError:
        return None, None
    digest, content = found[:32], found[32:]
    if hashlib.sha256(content).digest() != digest:
        return None, None
    return pickle.loads(content)


def _is_mine(status: os.stat_result) -> bool:
    """Written by this user, and by nobody else: it holds machine code."""
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
