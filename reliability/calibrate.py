"""Do the error bars cover? `make calibrate`: 200 seeds of each of 15 models.

Six models as one block of 15 latents and as 60 groups, and three of many latents in one block.

    python reliability/calibrate.py --jobs 8
    python reliability/calibrate.py --quick --models poisson-gamma

Every seed draws a data set at the true theta, fits it with `jalax.fit(model, theta_0, key=key)`
and asks two things. Does the 95 % interval of the log-evidence hold the exact log p_theta(y) at
the fitted theta? Does the 95 % interval of each parameter hold the truth? The second depends on
Wald's approximation, which is not jalax's doing, so the same is asked of Wald's interval from the
exact maximum and the exact information, on the same data. No fit is left out: one without an
interval counts as a miss.

Writes calibration.md and calibration.json (with --x64 calibration-64.md and .json) into --out. What
is done is kept in --out/parts, and a run that was interrupted goes on from there, unless the code
has changed since. The exit status is 1 if a row lies outside the joint band.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import _common  # noqa: E402
from _joint_models import JOINT_CASES  # noqa: E402
from _models import CASES, GROUPS, Z95, Case, make_model, maximise  # noqa: E402
from _models import case_of as small_case_of  # noqa: E402

import jalax  # noqa: E402

LEVEL = 0.95
FAR = 1 - 6.8e-6  # 4.5 errors of a normal distribution; of Student's t, as many as it takes
ALL = [*CASES, *JOINT_CASES]
BLOCK = 13  # seeds in one part: what is lost when a run is interrupted
Record = dict[str, Any]
Row = dict[str, Any]


def kinds_of(name: str) -> tuple[str, ...]:
    """The slow ones first."""
    return ("joint",) if name in JOINT_CASES else tuple(reversed(GROUPS))


def case_of(name: str, kind: str) -> Case:
    return JOINT_CASES[name] if kind == "joint" else small_case_of(name, kind)


def size_of(name: str, kind: str) -> int:
    """Latents."""
    return JOINT_CASES[name].latents if kind == "joint" else GROUPS[kind]


def model_of(case: Case, kind: str, y: np.ndarray) -> jalax.Model:
    return case.model(y) if kind == "joint" else make_model(case, kind, y)


# --- one fit ------------------------------------------------------------------------------------


def one_fit(case: Case, kind: str, seed: int) -> Record:
    """What a fit reports and what is exact, as plain numbers."""
    y = case.data(seed, GROUPS.get(kind, 0))
    best = maximise(case, y)
    record = {
        "seed": seed,
        "truth": list(case.truth.values()),
        "maximum": best.theta.tolist(),
        "exact_errors": best.errors.tolist(),
    }
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            record |= fitted(case, kind, y, seed)
        except Exception as error:  # one broken fit must not end a run of hours; it is counted
            record |= broken(case, error)
    record["seconds"] = time.perf_counter() - began
    record["warnings"] = [str(warning.message) for warning in heard]
    return record


def fitted(case: Case, kind: str, y: np.ndarray, seed: int) -> Record:
    result = jalax.fit(
        model_of(case, kind, y),
        case.start,
        key=jax.random.key(seed),
        progress=jalax.callbacks.Callback(),
    )
    theta = flat(result.theta)
    ends = result.confidence_intervals(LEVEL)
    return {
        "status": str(result.status),
        "steps": result.num_steps,
        "theta": theta.tolist(),
        "intervals": np.stack([np.asarray(ends[name], float) for name in case.names]).tolist(),
        "simulation": flat(result.simulation_errors()).tolist(),
        "evidence": result.evidence.value,
        "evidence_interval": list(result.evidence.interval(LEVEL)),
        "evidence_far": list(result.evidence.interval(FAR)),
        "exact_evidence": case.exact(theta, y),
        "route": result.evidence.route,
    }


def broken(case: Case, error: Exception) -> Record:
    """A fit that raised: no number at all, so that it covers nothing."""
    none = [float("nan")] * len(case.names)
    return {
        "status": f"{type(error).__name__}: {error}",
        "steps": 0,
        "theta": none,
        "intervals": [[float("nan")] * 2] * len(case.names),
        "simulation": none,
        "evidence": float("nan"),
        "evidence_interval": [float("nan")] * 2,
        "evidence_far": [float("nan")] * 2,
        "exact_evidence": float("nan"),
        "route": "none",
    }


def flat(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0], float)


# --- parts: blocks of seeds of one model, each in a file ------------------------------------------


class Part(NamedTuple):
    name: str
    kind: str
    first: int
    last: int  # exclusive
    x64: bool

    @property
    def file(self) -> str:
        return (
            f"{self.name}-{self.kind}-{64 if self.x64 else 32}-{self.first:04}-{self.last:04}.json"
        )


def parts_of(names: Sequence[str], seeds: int, x64: bool) -> list[Part]:
    """Block by block and not model by model: workers then compile different models first."""
    return [
        Part(name, kind, first, min(first + BLOCK, seeds), x64)
        for first in range(0, seeds, BLOCK)
        for name in names
        for kind in kinds_of(name)
    ]


def code_hash() -> str:
    """Of what the numbers depend on; git may be missing, or the tree not committed."""
    files = [*sorted((HERE.parent / "src" / "jalax").rglob("*.py")), *HERE.glob("_*models.py")]
    here = "".join(inspect.getsource(function) for function in (one_fit, fitted, broken))
    text = b"".join(file.read_bytes() for file in files) + here.encode()
    return hashlib.sha256(text).hexdigest()[:16]


def run_part(part: Part) -> list[Record]:
    with jax.enable_x64(part.x64):
        case = case_of(part.name, part.kind)
        return [one_fit(case, part.kind, seed) for seed in range(part.first, part.last)]


def load_part(path: Path, code: str) -> list[Record] | None:
    """None if it is not there, or was computed by other code."""
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return found["records"] if found["code"] == code else None


def save_part(path: Path, code: str, records: list[Record]) -> None:
    """Whole or not at all, however the run ends."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"code": code, "records": records}))
    new.replace(path)


def run_all(parts: list[Part], folder: Path, jobs: int) -> dict[Part, list[Record]]:
    """Every part, from its file or computed now."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")  # parts are not for the repository
    code, began = code_hash(), time.perf_counter()
    done = {part: load_part(folder / part.file, code) for part in parts}
    found = {part: records for part, records in done.items() if records is not None}
    todo = [part for part in parts if part not in found]
    print(f"{len(found)} parts of {len(parts)} are there, {len(todo)} to do", flush=True)
    for count, (part, records) in enumerate(computed(todo, jobs, folder / "compiled"), 1):
        save_part(folder / part.file, code, records)
        found[part] = records
        spent = time.perf_counter() - began
        print(f"{count}/{len(todo)} {part.file[:-5]}, {spent:.0f} s", flush=True)
    return found


def computed(parts: list[Part], jobs: int, cache: Path) -> Iterator[tuple[Part, list[Record]]]:
    if jobs == 1:
        for part in parts:
            yield part, run_part(part)
        return
    # A fresh interpreter each: JAX has threads, and a fork would copy their locks.
    fresh = multiprocessing.get_context("spawn")
    cores = fresh.Queue()
    for core in itertools.islice(itertools.cycle(cores_here()), jobs):
        cores.put(core)
    with ProcessPoolExecutor(jobs, fresh, prepare_worker, (cache, cores)) as pool:
        futures = {pool.submit(run_part, part): part for part in parts}
        for future in as_completed(futures):
            yield futures[future], future.result()


def prepare_worker(cache: Path, cores: Any) -> None:
    """A core of its own for each: all of them would have as many threads as there are cores.

    What one has compiled, the others read.
    """
    if (core := cores.get()) is not None:
        os.sched_setaffinity(0, {core})
    on_cpu()
    jalax.runtime.compilation_cache(cache)


def cores_here() -> list[int | None]:
    """None: only Linux can tie a process to a core."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]


def on_cpu() -> None:
    """Small models: a GPU would not help, and several processes would fight for its memory."""
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))


# --- what the records say -----------------------------------------------------------------------


def inside(intervals: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Does (low, high) hold the value? An interval of NaN holds nothing."""
    return (intervals[..., 0] <= values) & (values <= intervals[..., 1])


def width(intervals: np.ndarray) -> float | None:
    widths = intervals[..., 1] - intervals[..., 0]
    widths = widths[np.isfinite(widths)]
    return float(widths.mean()) if widths.size else None


def column(records: list[Record], name: str) -> np.ndarray:
    return np.array([record[name] for record in records], float)


def exact_intervals(records: list[Record]) -> np.ndarray:
    """Wald's, from the exact maximum and the exact information."""
    middle, errors = column(records, "maximum"), column(records, "exact_errors")
    return np.stack([middle - Z95 * errors, middle + Z95 * errors], axis=-1)


def band(trials: int, alpha: float = 1 - LEVEL) -> tuple[int, int]:
    """The number of hits out of `trials` at 95 %, with probability 1 - alpha or more."""
    low, high = stats.binom.ppf([alpha / 2, 1 - alpha / 2], trials, LEVEL)
    return int(low), int(high)


def coverage_rows(name: str, kind: str, records: list[Record]) -> list[Row]:
    """One for the evidence, one for each parameter."""
    about = {"model": name, "kind": kind}
    evidence = column(records, "evidence_interval")
    hits = inside(evidence, column(records, "exact_evidence"))
    far = ~inside(column(records, "evidence_far"), column(records, "exact_evidence"))
    row = {"interval": "evidence", "hits": int(hits.sum()), "width": width(evidence)}
    rows = [about | row | {"far": int(far.sum())}]
    truth, ours = column(records, "truth"), column(records, "intervals")
    exact = exact_intervals(records)
    hit, wald = inside(ours, truth), inside(exact, truth)
    for i, parameter in enumerate(case_of(name, kind).names):
        rows.append(
            about
            | {
                "interval": parameter,
                "hits": int(hit[:, i].sum()),
                "width": width(ours[:, i]),
                "Wald hits": int(wald[:, i].sum()),
                "Wald width": width(exact[:, i]),
                "differ": int((hit[:, i] != wald[:, i]).sum()),
            }
        )
    return [row | {"trials": len(records)} for row in rows]


def judged(rows: list[Row]) -> list[Row]:
    """With the band of each row alone, and the one that holds all rows 95 times in 100."""
    out = []
    for row in rows:
        own, joint = band(row["trials"]), band(row["trials"], (1 - LEVEL) / len(rows))
        verdict = {
            "in band": own[0] <= row["hits"] <= own[1],
            "in joint band": joint[0] <= row["hits"] <= joint[1],
        }
        out.append(row | {"band": list(own), "joint band": list(joint)} | verdict)
    return out


def error_rows(name: str, kind: str, records: list[Record]) -> list[Row]:
    """theta against the exact maximum, in exact standard errors; what jalax says of that error."""
    away = column(records, "theta") - column(records, "maximum")
    errors, simulation = column(records, "exact_errors"), column(records, "simulation")
    widths = np.diff(column(records, "intervals"), axis=-1)[..., 0]
    rows = []
    for i, parameter in enumerate(case_of(name, kind).names):
        known = np.isfinite(away[:, i] / errors[:, i])
        scaled = (away[:, i] / errors[:, i])[known]
        ratio = widths[:, i] / (2 * Z95 * errors[:, i])
        off, error = np.abs(away[:, i]), simulation[:, i]
        rows.append(
            {
                "model": name,
                "kind": kind,
                "parameter": parameter,
                "rms distance": float(np.sqrt(np.mean(scaled**2))) if known.any() else None,
                "largest": float(np.abs(scaled).max()) if known.any() else None,
                "simulation error covers": float((off <= Z95 * error).mean()),
                "beyond 4.5 of them": int((off > 4.5 * error)[known].sum()),
                "standard error / exact": float(np.nanmedian(ratio)),
            }
        )
    return rows


def fit_row(name: str, kind: str, records: list[Record]) -> Row:
    """How the fits ended."""
    statuses = Counter(record["status"] for record in records)
    heard = Counter(kind_of(text) for record in records for text in set(record["warnings"]))
    missing = int(np.isnan(column(records, "intervals")).any(axis=(1, 2)).sum())
    no_maximum = int(np.isnan(column(records, "exact_errors")).any(axis=1).sum())
    return {
        "model": name,
        "kind": kind,
        "latents": size_of(name, kind),
        "status": ", ".join(f"{status} {count}" for status, count in statuses.most_common()),
        "no interval": missing,
        "no exact maximum": no_maximum,
        "tempered evidence": sum(record["route"] == "tempered" for record in records),
        "warnings": "; ".join(f"{text} {count}" for text, count in heard.most_common()) or "none",
        "median steps": int(np.median(column(records, "steps"))),
        "median seconds": float(np.median(column(records, "seconds"))),
    }


def kind_of(warning: str) -> str:
    """A warning without its numbers, short enough for a table."""
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", warning).split("\n")[0].replace("|", "/")[:100]


# --- the page -----------------------------------------------------------------------------------


def shown(row: Row) -> Row:
    """A row of coverages as it is printed."""

    def percent(hits: int | None) -> str:
        return "-" if hits is None else f"{hits / row['trials']:.1%}"

    def ends(name: str) -> str:
        low, high = row[name]
        return f"{percent(low)} to {percent(high)}"

    return {
        "model": row["model"],
        "kind": row["kind"],
        "interval of": row["interval"],
        "coverage": percent(row["hits"]),
        "band": ends("band") + ("" if row["in band"] else " (outside)"),
        "joint band": ends("joint band") + ("" if row["in joint band"] else " (OUTSIDE)"),
        "mean width": row["width"],
        "beyond 4.5 errors": row.get("far"),
        "exact Wald coverage": percent(row.get("Wald hits")),
        "exact Wald width": row.get("Wald width"),
        "they differ on": row.get("differ"),
    }


def verdict(rows: list[Row]) -> str:
    own = sum(row["in band"] for row in rows)
    out = [f"{r['model']} {r['kind']} {r['interval']}" for r in rows if not r["in joint band"]]
    joint = "All are inside the joint band" if not out else f"Outside the joint band: {out}"
    wald = [row for row in rows if "Wald hits" in row]
    ours, exact = (sum(row[name] for row in wald) for name in ("hits", "Wald hits"))
    trials = sum(row["trials"] for row in wald)
    evidence = [row for row in rows if row["interval"] == "evidence"]
    hits, of = (sum(row[name] for row in evidence) for name in ("hits", "trials"))
    return (
        f"{own} of {len(rows)} rows are inside their own 95 % band (about {0.95 * len(rows):.0f} "
        f"are expected, a little more because counts are whole). {joint}. Over all models the "
        f"intervals of the evidence cover {hits / of:.1%}, those of theta {ours / trials:.1%}, "
        f"exact Wald intervals {exact / trials:.1%}. {sum(row['far'] for row in evidence)} of {of} "
        "evidences are more than 4.5 errors off (a t quantile of two-sided 6.8e-6)."
    )


READING = """\
A band holds the coverage of a right 95 % interval with probability 95 % (binomial quantiles); the
joint band holds those of all rows at once with that probability (Bonferroni). Evidence: does the
interval hold the exact log p_theta(y) at the fitted theta? theta: does it hold the truth? Exact
Wald: the interval from the exact maximum and the exact observed information on the same data, in
64 bits, and the number of data sets on which one of the two holds the truth and the other does
not. Beyond 4.5 errors: evidences whose interval of level 1 - 6.8e-6 misses the exact value. A fit
without an interval is a miss."""

DISTANCES = """\
How far theta is from the exact maximum, in exact standard errors, over all data sets; how often
1.96 simulation errors, as jalax reports them, hold that distance; and the median of jalax's
standard error over the exact one."""


def about(commit: str | None) -> Row:
    """Machine and versions; git may be missing where it runs."""
    if shutil.which("git") is None:
        _common.commit = lambda: ""
    found = _common.machine("numpy", "scipy")
    return found | {"commit": commit or found["commit"] or "unknown"}


def write_results(out: Path, found: dict[Part, list[Record]], head: Row) -> list[Row]:
    """The two files, from whatever parts there are."""
    records: dict[tuple[str, str], list[Record]] = {}
    for part in sorted(found):
        records.setdefault((part.name, part.kind), []).extend(found[part])
    order = [(n, k) for n in ALL for k in reversed(kinds_of(n)) if (n, k) in records]
    rows = judged([row for key in order for row in coverage_rows(*key, records[key])])
    distances = [row for key in order for row in error_rows(*key, records[key])]
    fits = [fit_row(*key, records[key]) for key in order]
    words = ", ".join(f"{key} {value}" for key, value in head.items())
    texts = [f"`python reliability/calibrate.py`: {words}.", verdict(rows)]
    texts += [READING, _common.table([shown(row) for row in rows])]
    texts += [DISTANCES, _common.table(distances), "How the fits ended.", _common.table(fits)]
    name = "calibration" if head["bits"] == 32 else "calibration-64"
    (out / f"{name}.md").write_text("\n\n".join(texts) + "\n")
    plain = {"machine": head, "coverage": rows, "distances": distances, "fits": fits}
    (out / f"{name}.json").write_text(json.dumps(plain, indent=1) + "\n")
    return rows


def options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, help="data sets of each model (default 200)")
    parser.add_argument("--models", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="folder (default: that of this file)")
    parser.add_argument("--x64", action="store_true", help="64-bit floats; JAX's default is 32")
    parser.add_argument("--quick", action="store_true", help="4 seeds, into a temporary folder")
    parser.add_argument("--commit", help="what to write as the commit where git is missing")
    chosen = parser.parse_args(words)
    chosen.seeds = chosen.seeds or (4 if chosen.quick else 200)
    if chosen.out is None:
        chosen.out = Path(tempfile.mkdtemp()) if chosen.quick else HERE
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = options(words)
    on_cpu()
    began = time.perf_counter()
    parts = parts_of(chosen.models, chosen.seeds, chosen.x64)
    found = run_all(parts, chosen.out / "parts", chosen.jobs)
    head = about(chosen.commit) | {
        "bits": 64 if chosen.x64 else 32,
        "seeds": chosen.seeds,
        "processes": chosen.jobs,
        "seconds": round(time.perf_counter() - began),
    }
    rows = write_results(chosen.out, found, head)
    print(verdict(rows))
    print(f"written to {chosen.out}")
    return int(not all(row["in joint band"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
