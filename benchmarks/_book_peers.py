"""The book's problems by R's packages: their seconds, and how far they are from the exact log p.

A call, from `problem.peers`, has a process of its own and a limit of seconds for each of its two
fits. What is not installed is said in a row's words, and nothing else depends on it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPT = HERE / "book_peers.R"
NO_R = "R is not installed (Debian: r-base-core, r-cran-lme4, r-cran-glmmtmb, r-cran-ordinal)."
# The table that a problem's calls are about, where it is not NAME.csv.gz.
TABLES = {
    "toenail_visit": "toenail",
    "salamander": "salamander_mating",
    "guimmun": "guImmun",
    "verbagg": "VerbAgg",
    "insteval": "InstEval",
    "insteval_binary": "InstEval",
}
FOLDERS = (HERE.parent / "src" / "jalax" / "problems" / "data", HERE / "data")
Row = dict[str, Any]


def table_of(name: str) -> Path:
    file = f"{TABLES.get(name, name)}.csv.gz"
    found = next((folder / file for folder in FOLDERS if (folder / file).exists()), None)
    if found is None:
        raise FileNotFoundError(f"{file} is in neither {FOLDERS[0]} nor {FOLDERS[1]}.")
    return found


def run(name: str, calls: dict[str, str], exact: float, limit: float) -> list[Row]:
    """A row for each call: seconds, log-likelihood, its distance from `exact`; or why not."""
    rows = []
    for label, call in calls.items():
        row: Row = {"peer": label, "call": call}
        rscript = shutil.which("Rscript")
        if rscript is None:
            rows.append(row | {"failed": NO_R})
            continue
        package = label.partition(",")[0]
        row |= said_by([rscript, str(SCRIPT), str(table_of(name)), package, call], 2 * limit)
        if "failed" not in row and row.get("first", limit + 1) > limit:
            row["failed"] = f"no answer in {limit:g} s."
        elif "log_likelihood" in row:
            row["log_p_off"] = row["log_likelihood"] - exact
        rows.append(row)
    return rows


def said_by(command: list[str], limit: float) -> Row:
    """The numbers that the script has printed when it ends, or is ended after `limit` seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        output = done.stdout
        if done.returncode != 0 and "book failed" not in output:
            last = done.stderr.strip().splitlines()[-1:] or ["no words"]
            output += f"book failed R ended with status {done.returncode}: {last[0]}\n"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
    found: Row = {}
    for line in output.splitlines():
        if line.startswith("book "):
            _, name, value = line.split(maxsplit=2)
            found[name] = value.strip() if name in ("failed", "version") else float(value)
    return found
