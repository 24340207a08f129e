"""Room for compiled programs in a process that has many.

Linux gives a process some 65,000 mappings of memory, and each compiled program takes a few. When
there are none left, XLA does not say so: the process dies.
"""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import jax

from jalax._runtime import arguments

LIMIT, OURS = Path("/proc/sys/vm/max_map_count"), Path("/proc/self/maps")
FULL = 0.8  # a share of the limit


def share_in_use() -> float:
    """0 where it is not known, as on other systems than Linux."""
    try:
        limit, ours = int(LIMIT.read_text()), OURS.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return 0.0
    return ours / limit


def forget_programs() -> None:
    """What is needed again is compiled again."""
    jax.clear_caches()
    gc.collect()


def make_room() -> None:
    """Forget compiled programs where a few hundred more might be too many."""
    if share_in_use() < FULL:
        return
    forget_programs()
    warnings.warn(
        "this process has compiled so many programs that it was about to run out of memory "
        "mappings (vm.max_map_count), which would have ended it: all of them were forgotten, and "
        "are compiled again when needed. Fits of data of one shape share their programs: pad "
        "groups to one size.",
        stacklevel=arguments.level_of_user(),
    )
