"""Files: an npz with a version and a checksum, written atomically, never a pickle.

A checksum finds damage, not malice: whoever writes a file can compute it. So nothing in a file is
taken at its word. Reading takes no more memory than the file is long, and whatever is wrong with
it is a `FileError`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import re
import secrets
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import jax
import jax.numpy as jnp
import numpy as np

from jalax._runtime.processes import blocks, to_host

Tree = Any

FORMAT = 1
MAX_MEMBERS = 100_000  # arrays in a file; a fit has some dozens


class FileError(ValueError):
    """A file that is not what it should be; the message says which and why."""


# --- writing --------------------------------------------------------------------------------------


def write(path: str | os.PathLike, kind: str, meta: dict, arrays: dict[str, np.ndarray]) -> None:
    """An npz of the arrays with a header and a checksum."""
    with replacing(Path(path)) as file:
        dump(file, kind, meta, arrays)


def dump(file: IO[bytes], kind: str, meta: dict, arrays: dict[str, np.ndarray]) -> None:
    """What `write` writes, into a file that is open."""
    content, brief = _as_known(arrays)
    header = json.dumps({"format": FORMAT, "kind": kind, **meta, "bfloat16": brief})
    content["header"] = np.array(header)
    content["checksum"] = np.array(_checksum(content))
    np.savez(file, **content)  # type: ignore[arg-type]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write beside the target, flush to disk, then rename: a reader sees all or nothing."""
    _remove_leftovers(path)
    prefix = f".{path.name}.{_HOST}-{os.getpid()}-{_PROCESS}."
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _as_known(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays with bfloat16, which the npy format does not know, as its bits; and which."""
    brief = [name for name, array in arrays.items() if array.dtype == jnp.bfloat16]
    return arrays | {name: arrays[name].view(np.uint16) for name in brief}, brief


# A temporary file is named after the process that writes it, so that one whose process was killed
# can be told from one that is being written. The last part tells a container's process from its
# predecessor, which had the same host name and often the same number.
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_PROCESS = secrets.token_hex(4)


def _remove_leftovers(path: Path) -> None:
    """What earlier writes to this target left behind when their process of this host was killed."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.{_HOST}-(\d+)-([0-9a-f]{{8}})\.\w+")
    with suppress(OSError):  # tidying up is no reason for a write to fail
        for name in os.listdir(path.parent):
            found = ours.fullmatch(name)
            if found and not _is_alive(int(found[1]), found[2]):
                (path.parent / name).unlink(missing_ok=True)


def _is_alive(pid: int, process: str) -> bool:
    if pid == os.getpid():
        return process == _PROCESS
    if os.name != "posix":  # elsewhere signal 0 is not a question, but ends the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


# --- reading --------------------------------------------------------------------------------------


def read(
    source: str | os.PathLike | bytes, kind: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays, or a `FileError` that names the file and the reason.

    `source` is a path, or the content of a file.
    """
    path = name_of(source)
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(path, "rb") as handle:
            content = _contents(handle)
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib, npy and header errors all mean the same to the user
        raise FileError(f"{path} is truncated or not a jalax file ({error}).") from error
    if not {"header", "checksum"} <= set(content):
        raise FileError(f"{path} is not a jalax file: it has no header and checksum.")
    with interpreting(path):
        expected = _text(content.pop("checksum"))
    if _checksum(content) != expected:
        raise FileError(f"{path} is damaged: its content does not match its checksum.")
    with interpreting(path):
        header = json.loads(_text(content.pop("header")))
        version, found = header["format"], header["kind"]
        if type(version) is not int or type(found) is not str:
            raise TypeError(f"its format is {version!r} and its kind {found!r}")
    if version > FORMAT:
        raise FileError(
            f"{path} was written by a newer jalax (file format {version}, this one reads "
            f"{FORMAT}): update jalax."
        )
    if found != kind:
        raise FileError(f"{path} holds a jalax {found}, not a {kind}.")
    with interpreting(path):
        for name in header.get("bfloat16", ()):
            content[name] = content[name].view(jnp.bfloat16)
    return header, content


def name_of(source: str | os.PathLike | bytes) -> str | Path:
    """What messages call a file."""
    return "a pickled result" if isinstance(source, bytes) else Path(source)


_MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@contextmanager
def interpreting(path: str | os.PathLike) -> Iterator[None]:
    """Errors about what a file says become a `FileError` that names it.

    Its checksum may be right, and its content still not what this version of jalax writes.
    """
    try:
        yield
    except FileError as error:
        if str(path) in str(error):
            raise
        raise FileError(f"{path}: {error}") from error
    except _MISREAD as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            reason = f"it has no {error}"
        elif isinstance(error, RecursionError):
            reason = "its header is nested too deeply"
        raise FileError(
            f"{path} is damaged, or not of a version that this jalax reads: {reason}."
        ) from error


def _contents(handle: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of an npz as `write` makes it: members that are stored, not compressed."""
    size = handle.seek(0, os.SEEK_END)
    with zipfile.ZipFile(handle) as archive:
        members = archive.infolist()
        _check_members(members, size)
        return {info.filename.removesuffix(".npy"): _array(archive, info) for info in members}


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """By the zip's directory alone, before anything is unpacked."""
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"it has {len(members)} members, more than {MAX_MEMBERS}")
    names = {info.filename for info in members}
    if len(names) < len(members):
        raise ValueError("two of its members have the same name")
    for info in members:
        if not info.filename.endswith(".npy"):
            raise ValueError(f"its member {info.filename!r} is no array")
        if info.flag_bits & 0x1:
            raise ValueError(f"its member {info.filename!r} is encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"its member {info.filename!r} is compressed")
    # Members may overlap, so that each would fit into the file and all together would not.
    if sum(info.file_size for info in members) > size:
        raise ValueError("its members are larger than the file")


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One member. NumPy makes room for the shape that a member claims before it reads it."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"its member {info.filename!r} has the npy version {version}")
        shape, _, dtype = _HEADERS[version](member)
        if dtype.hasobject:
            raise ValueError(f"its member {info.filename!r} holds Python objects")
        room = info.file_size - member.tell()
    if dtype.itemsize == 0 or dtype.itemsize * math.prod(shape) != room:
        raise ValueError(f"its member {info.filename!r} is not as long as its shape {shape} says")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _text(array: np.ndarray) -> str:
    if array.dtype.kind != "U" or array.shape != ():
        raise TypeError("its header or checksum is no text")
    return str(array)


# --- content --------------------------------------------------------------------------------------


def _checksum(content: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(content):
        array = np.ascontiguousarray(content[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def fingerprint(tree: Tree) -> str:
    """SHA-256 of a tree's structure and numbers."""
    digest = hashlib.sha256(str(jax.tree.structure(tree)).encode())
    for leaf in jax.tree.leaves(tree):
        digest.update(f"{_dtype(leaf).str}{np.shape(leaf)}".encode())
        for block in blocks(leaf):
            digest.update(np.ascontiguousarray(block).tobytes())
    return digest.hexdigest()


def paths(tree: Tree) -> list[str]:
    """The name, dtype and shape of every leaf."""
    return [
        f"{jax.tree_util.keystr(path)} {_dtype(leaf).name}{list(np.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _dtype(leaf: Any) -> np.dtype:
    """The dtype of an array, wherever it is, or of a number."""
    return np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def pack(name: str, tree: Tree, arrays: dict[str, np.ndarray]) -> Any:
    """Put the leaves of a nested dict, list or tuple into `arrays`; return its skeleton."""
    if tree is None:
        return None
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {k: pack(f"{name}/{k}", v, arrays) for k, v in tree.items()}}
    if type(tree) in (list, tuple):
        items = [pack(f"{name}/{i}", item, arrays) for i, item in enumerate(tree)]
        return {type(tree).__name__: items}
    if isinstance(tree, (jax.Array, np.ndarray, np.generic, int, float)):
        return {"leaf": _put(name, tree, arrays)}
    names = [_put(name, leaf, arrays) for leaf in jax.tree.leaves(tree)]
    return {"other": type(tree).__name__, "leaves": names}  # its leaves alone, see `unpack`


def _put(name: str, leaf: Any, arrays: dict[str, np.ndarray]) -> str:
    """Store a leaf under a name of its own: keys of the user's dicts may look like paths.

    They may also hold what a name in a zip must not, such as a zero byte.
    """
    unique = f"{quote(name, errors='surrogatepass')[:200]}:{len(arrays)}"
    arrays[unique] = to_host(leaf)
    return unique


def unpack(skeleton: Any, arrays: dict[str, np.ndarray], like: Tree = None) -> Tree:
    """The inverse of `pack`; `like` gives the structure of containers that are not standard.

    Each array is taken out of `arrays`: a small file that names one of them a thousand times must
    not become a thousand arrays.
    """
    if skeleton is None:
        return None
    if "leaf" in skeleton:
        return arrays.pop(skeleton["leaf"])
    if "dict" in skeleton:
        return {k: unpack(v, arrays, _child(like, k)) for k, v in skeleton["dict"].items()}
    for kind in (list, tuple):
        if kind.__name__ in skeleton:
            items = skeleton[kind.__name__]
            return kind(unpack(v, arrays, _child(like, i)) for i, v in enumerate(items))
    leaves = [arrays.pop(name) for name in skeleton["leaves"]]
    if like is None:
        raise FileError(
            f"the file holds a {skeleton['other']}, whose structure is not stored: pass "
            "jalax.load(path, like=...) a tree of the same structure."
        )
    structure = jax.tree.structure(like)
    if structure.num_leaves != len(leaves):
        raise FileError(
            f"like= does not fit the file, which holds a {skeleton['other']} of {len(leaves)} "
            f"arrays; like= has {structure.num_leaves}."
        )
    return structure.unflatten(leaves)


def _child(like: Tree, key: Any) -> Tree:
    try:
        return like[key]
    except (TypeError, KeyError, IndexError):
        return None
