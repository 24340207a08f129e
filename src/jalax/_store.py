"""Files: an npz with a version and a checksum, written atomically, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jalax._processes import blocks, to_host
from jalax._tree import Tree

FORMAT = 1


class FileError(ValueError):
    """A file that is not what it should be; the message says which and why."""


def write(path: str | os.PathLike, kind: str, meta: dict, arrays: dict[str, np.ndarray]) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees all or nothing."""
    path = Path(path)
    header = json.dumps({"format": FORMAT, "kind": kind, **meta})
    content = {**arrays, "header": np.array(header)}
    content["checksum"] = np.array(_checksum(content))
    handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **content)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays, or a `FileError` that names the file and the reason."""
    path = Path(path)
    try:
        with open(path, "rb") as handle:
            file = np.load(handle, allow_pickle=False)
            content = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib, npy and header errors all mean the same to the user
        raise FileError(f"{path} is truncated or not a jalax file ({error}).") from error
    if not {"header", "checksum"} <= set(content):
        raise FileError(f"{path} is not a jalax file: it has no header and checksum.")
    expected = str(content.pop("checksum"))
    if _checksum(content) != expected:
        raise FileError(f"{path} is damaged: its content does not match its checksum.")
    header = json.loads(str(content.pop("header")))
    if header["format"] > FORMAT:
        raise FileError(
            f"{path} was written by a newer jalax (file format {header['format']}, this one reads "
            f"{FORMAT}): update jalax."
        )
    if header["kind"] != kind:
        raise FileError(f"{path} holds a jalax {header['kind']}, not a {kind}.")
    return header, content


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
    """Of an array wherever it is, or of a number."""
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
    """Store a leaf under a name of its own: keys of the user's dicts may look like paths."""
    unique = f"{name}:{len(arrays)}"
    arrays[unique] = to_host(leaf)
    return unique


def unpack(skeleton: Any, arrays: dict[str, np.ndarray], like: Tree = None) -> Tree:
    """The inverse of `pack`; `like` gives the structure of containers that are not standard."""
    if skeleton is None:
        return None
    if "leaf" in skeleton:
        return arrays[skeleton["leaf"]]
    if "dict" in skeleton:
        return {k: unpack(v, arrays, _child(like, k)) for k, v in skeleton["dict"].items()}
    for kind in (list, tuple):
        if kind.__name__ in skeleton:
            items = skeleton[kind.__name__]
            return kind(unpack(v, arrays, _child(like, i)) for i, v in enumerate(items))
    leaves = [arrays[name] for name in skeleton["leaves"]]
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
