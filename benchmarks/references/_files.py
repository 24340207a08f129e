"""What the references share: arguments, reading the data, workers, and the file of results.

Nothing here or in the files beside it imports jalax or jax: a reference that shared code with what
it judges would agree with its mistakes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE / "references.json"
FOLDERS = (ROOT / "src/jalax/problems/data", ROOT / "benchmarks/data")


def arguments(description: str, argv: list[str] | None = None) -> argparse.Namespace:
    """--data, --jobs, --effort (a factor on the number of points), and --out."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="folder of the csv or csv.gz files")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--effort", type=float, default=1.0, help="factor on simulation sizes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results to update")
    return parser.parse_args(argv)


def read(name: str, folder: Path | None = None) -> dict[str, np.ndarray]:
    """The columns of name.csv or name.csv.gz as arrays of strings."""
    folders = FOLDERS if folder is None else (folder,)
    for path in (f / (name + end) for f in folders for end in (".csv", ".csv.gz")):
        if path.exists():
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8", newline="") as file:
                header, *rows = csv.reader(file)
            return dict(zip(header, np.array(rows).T, strict=True))
    raise FileNotFoundError(f"No {name}.csv or {name}.csv.gz in {', '.join(map(str, folders))}.")


def codes(*columns: np.ndarray) -> np.ndarray:
    """0, 1, ... for the distinct combinations of the columns."""
    joined = np.array(["\t".join(row) for row in zip(*columns, strict=True)])
    return np.unique(joined, return_inverse=True)[1]


def parallel(work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> list[Any]:
    """work(task) of each task, in `jobs` processes; one process stays in this one."""
    tasks = list(tasks)
    if jobs <= 1 or len(tasks) == 1:
        return [work(task) for task in tasks]
    # Each worker has a core of its own: threads of the linear algebra would only get in the way.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(tasks))) as pool:
        return pool.map(work, tasks, chunksize=1)


def plain(value: Any) -> Any:
    """Numbers and lists for JSON, in full float64 digits."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def record(name: str, entry: dict[str, Any], options: argparse.Namespace, began: float) -> None:
    """Put one entry into the file of results and print it."""
    entry, out = plain(entry) | {"seconds": round(time.time() - began, 1)}, options.out
    entry["jobs"] = options.jobs
    entry["command"] = f"python benchmarks/references/{name}.py --effort {options.effort:g}"
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    text = json.dumps(dict(sorted((found | {name: entry}).items())), indent=1)
    out.write_text(text + "\n", encoding="utf-8")
    print(name, json.dumps(entry, indent=1), flush=True)
