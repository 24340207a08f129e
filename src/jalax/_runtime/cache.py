"""Compiled programs on disk, for the next process: opt-in."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def compilation_cache(folder: str | os.PathLike | None = None) -> Path:
    """Keep compiled programs in a folder, so that the next process need not compile them.

    Call it once, before the first fit. It switches on JAX's persistent compilation cache for this
    process, for programs of every size: half of a small fit's are quick to compile. The programs
    of other code that uses JAX are kept, too. The folder may be deleted at any time. A program that
    another process is still writing, or was killed in writing, is compiled again with a warning.

    Programs are run as they are found: use a folder that nobody else can write to.

    Args:
        folder: where; by default `$XDG_CACHE_HOME/jalax`, or `~/.cache/jalax`. It is made if
            it is not there.

    Returns:
        The folder.

    >>> import jax, jalax, tempfile
    >>> from pathlib import Path
    >>> before = jax.config.jax_compilation_cache_dir
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     jalax.runtime.compilation_cache(folder) == Path(folder)
    True
    >>> jax.config.update("jax_compilation_cache_dir", before)  # as it was
    """
    if folder is not None and not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"folder must be a path or None, got {type(folder).__name__}.")
    path = _default_folder() if folder is None else Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"compiled programs cannot be kept in {str(path)!r}, which is no folder and cannot be "
            f"made one ({error.strerror}): pass another folder."
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "jalax"
