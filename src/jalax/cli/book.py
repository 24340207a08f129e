"""`jalax book`: the problems of `jalax.problems` by a plain `jalax.fit`, against their references.

Every problem and key has a process of its own (`book_child.py`) and a limit of seconds for each
of its two fits. benchmarks/book.py runs the same, with R's packages beside it, and writes files.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jalax
from jalax.cli.book_verdict import Row, judge, median, verdict, worst

STAGES = ("cold", "again")
CHILD = """
import time
began = time.perf_counter()
import jax, jalax
seconds = time.perf_counter() - began
from jalax.cli import book_child
book_child.main({name!r}, {key}, seconds)
"""


def check_names(names: Sequence[str]) -> list[str]:
    """The names asked for, or all of them; a name that is not in the book is a ValueError."""
    known = list(jalax.problems.all())
    for name in names:
        if name not in known:
            raise ValueError(f"there is no problem {name!r} in the book: {', '.join(known)}.")
    return list(names) or known


def one(name: str, key: int, limit: float, platform: str | None = None) -> Row:
    """A problem with one key, in a process of its own: its stages, and the verdicts on its fits."""
    found: Row = {"name": name, "key": key}
    for stage, content in stages(CHILD.format(name=name, key=key), limit, platform):
        found[stage] = content
    for stage in STAGES:
        answer = found.get(stage)
        if answer is not None:
            found[stage] = answer | judge(answer, found["problem"]["reference"])
        elif "failed" in found:
            found[stage] = {"verdict": f"wrong: {found['failed']['reason']}"}
        else:
            found[stage] = {"verdict": f"no answer in {limit:g} s"}
            if stage == "cold":  # the process was ended: nothing was asked again
                found["again"] = {"verdict": "not asked"}
                break
    return found


def stages(code: str, limit: float, platform: str | None) -> Iterator[tuple[str, Row]]:
    """What a child process says, a stage as it comes; it is ended `limit` seconds after the last.

    The first limit counts from the start of the process, and the problem itself is no answer.
    """
    environment = os.environ | ({"JAX_PLATFORMS": platform} if platform else {})
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # cold is cold,
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # but Python's modules are not compiled again
    with tempfile.TemporaryFile() as errors:
        began = since = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=errors, env=environment
        )
        lines: queue.Queue[tuple[float, str | None]] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        ended = False
        try:
            while True:
                left = since + limit - time.perf_counter()
                try:
                    when, line = lines.get(timeout=max(left, 0.0))
                except queue.Empty:
                    return
                if line is None:
                    ended = True
                    break
                content = json.loads(line)
                stage = content.pop("stage")
                if stage in STAGES:
                    since = when
                yield stage, content | {"process": when - began}
        finally:
            if not ended:
                process.kill()
            status = process.wait()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()
        if status != 0:
            yield "failed", {"reason": _last_words(status, errors)}


def _read(stream: Any, lines: queue.Queue) -> None:
    """Lines with the time at which they came; other prints than the stages' are not meant."""
    for line in stream:
        if line.startswith(b'{"stage"'):
            lines.put((time.perf_counter(), line.decode()))
    lines.put((time.perf_counter(), None))


def _last_words(status: int, errors: Any) -> str:
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"the process ended with {how}" + (f": {said[-1]}" if said else "")


def run(
    names: Sequence[str],
    *,
    keys: int = 3,
    limit: float = 240.0,
    platform: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Every problem with every key, one process at a time; a row a problem.

    What has no answer with one key is not asked with the next: it would only take the time again.
    """
    rows = []
    for name in names:
        found = []
        for key in range(keys):
            found.append(one(name, key, limit, platform))
            cold, again = (found[-1][stage] for stage in STAGES)
            seconds = ", ".join(f"{x['seconds']:.1f} s" for x in (cold, again) if "seconds" in x)
            said = dict.fromkeys((cold["verdict"], again["verdict"]))
            tell(f"{name}, key {key}: {seconds or 'no seconds'}, {'; '.join(said)}")
            if cold["verdict"].startswith("no answer"):
                break
        rows.append(summarised(name, found))
    return rows


def summarised(name: str, found: Sequence[Row]) -> Row:
    """The fits of a problem in one row: medians of seconds, the worst of what is off."""
    about: Row = next((one["problem"] for one in found if "problem" in one), {})
    fits = [one[stage] for one in found for stage in STAGES]
    asked = [fit for fit in fits if fit["verdict"] != "not asked"]
    cold = [one["cold"] for one in found]
    row: Row = {"name": name, "title": about.get("title"), "structure": about.get("structure")}
    row |= {"verdict": verdict(asked), "reference": about.get("reference")}
    row["status"] = ", ".join(dict.fromkeys(fit["status"] for fit in fits if "status" in fit))
    for column in ("log_p_off", "log_p_errors_off", "theta_off", "standard_errors_off"):
        row[column] = worst(asked, column)
    row["log_p_error"] = median([fit.get("log_p_error") for fit in asked])
    row["cold"] = median([seconds(fit) for fit in cold])
    row["again"] = median([seconds(one["again"]) for one in found])
    row["import"] = median([one.get("problem", {}).get("import") for one in found])
    row["process"] = median([fit.get("process") for fit in cold])
    row["programs"] = median([fit.get("programs") for fit in cold])
    row["compile"] = median([fit.get("compile") for fit in cold])
    row["programs_again"] = median([one["again"].get("programs") for one in found])
    row["memory"] = worst(asked, "memory")
    row |= {"published": about.get("published", []), "calls": about.get("peers", {})}
    row["keys"] = len(found)
    return row | {"fits": list(found)}


def seconds(fit: Row) -> float | None:
    """Infinite where there was no answer: to leave these out would make the median faster."""
    return math.inf if fit["verdict"].startswith("no answer") else fit.get("seconds")


COLUMNS = {
    "problem": "name",
    "verdict": "verdict",
    "status": "status",
    "log p off": "log_p_off",
    "in errors": "log_p_errors_off",
    "theta off (s.e.)": "theta_off",
    "s.e. off (%)": "standard_errors_off",
    "cold (s)": "cold",
    "again (s)": "again",
    "import (s)": "import",
    "process (s)": "process",
    "programs": "programs",
    "compiling (s)": "compile",
    "memory (MB)": "memory",
}


def table(rows: Sequence[Row]) -> list[Row]:
    """The columns that are read, in their order; memory in MB."""
    shown = []
    for row in rows:
        line = {title: row.get(column) for title, column in COLUMNS.items()}
        line["memory (MB)"] = None if row.get("memory") is None else round(row["memory"] / 1e6)
        line["programs"] = None if row.get("programs") is None else round(row["programs"])
        shown.append(line)
    return shown


SHOWN = ("problem", "verdict", *list(COLUMNS)[3:9])  # what a terminal has room for


def show(rows: Sequence[Row]) -> None:
    """The table for a terminal; the reasons are in what `run` tells."""
    from rich.console import Console
    from rich.table import Table

    printed = Table(*SHOWN)
    for line in table(rows):
        line["verdict"] = line["verdict"].partition(":")[0].partition(" (")[0]
        printed.add_row(*(cell(line[column]) for column in SHOWN))
    Console().print(printed)


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def succeeded(rows: Sequence[Row]) -> bool:
    """Every row right, or without a reference that could judge it."""
    return all(row["verdict"].startswith(("right", "not judged")) for row in rows)
