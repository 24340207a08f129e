"""What a result was computed with."""

from __future__ import annotations

import platform
from importlib import metadata


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def versions() -> dict[str, str]:
    found = {package: version_of(package) for package in ("jalax", "jax", "jaxlib", "numpy")}
    return found | {"python": platform.python_version()}
