"""What the benchmarks share: timing in rounds, the machine, tables, and files.

Contenders are timed in rounds, each once a round, so that a busy machine slows all of them alike;
what is reported is the median over the rounds of a ratio inside a round. Compilation is the first
call less the second, and is never part of another number.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
Row = dict[str, Any]


def quick() -> bool:
    """`--quick`: small sizes and few rounds, to see that a benchmark runs; writes nothing."""
    return "--quick" in sys.argv


def seconds(run: Callable[[], Any]) -> float:
    """Of one call, to the end of what it computes."""
    import jax

    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def compile_seconds(run: Callable[[], Any]) -> float:
    """Of the first call, less the second."""
    first = seconds(run)
    return max(0.0, first - seconds(run))


def in_rounds(runs: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, np.ndarray]:
    """Seconds of every run in every round. Call each once before: compilation would count."""
    found: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(seconds(run))
    return {name: np.array(values) for name, values in found.items()}


def ratio(above: np.ndarray, below: np.ndarray) -> float:
    """The median over the rounds of the ratio inside a round."""
    return float(np.median(above / below))


def upper_half(sizes: Sequence[int]) -> list[int]:
    """Of the range, in logs: below it what does not depend on the size hides the growth."""
    middle = (sizes[0] * sizes[-1]) ** 0.5
    return [size for k, size in enumerate(sizes) if size >= middle or k >= len(sizes) - 2]


def exponent(values: Mapping[int, float]) -> float:
    """b of value ~ size^b, by least squares in log-log."""
    slope, _ = np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)
    return float(slope)


def commit() -> str:
    """The commit measured; a plus: with changes to src."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(HERE.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "-s", "--", "src") else "")


def machine(*packages: str) -> Row:
    """Where and with what it was measured."""
    import jax

    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", *packages)}
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        **versions,
        "commit": commit(),
    }


def number(value: Any) -> str:
    """Three figures; whole numbers as they are."""
    if value is None:
        return "-"
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, (int, np.integer)) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; a row may leave columns of the first out."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(number(row.get(column)) for column in columns) + " |")
    return "\n".join(lines)


def write(
    name: str, parts: Sequence[str | Sequence[Row]], folder: Path = HERE, **found: Any
) -> None:
    """NAME.md of texts and tables in this order, NAME.json of `found`, in the script's folder."""
    about = found["machine"]
    head = f"`python {folder.name}/{name}.py`: " + ", ".join(f"{k} {v}" for k, v in about.items())
    texts = [part if isinstance(part, str) else table(part) for part in parts]
    page = "\n\n".join([head + ".", *texts]) + "\n"
    print(page, flush=True)
    if not quick():
        (folder / f"{name}.md").write_text(page)
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
