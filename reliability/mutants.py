"""Plant the classic mistakes one at a time, and see that the tests catch every one.

    python reliability/mutants.py [--jobs 2] [NAME ...]    # writes mutants.md and mutants.json

Each mistake is an edit of one place (_mutants.py), made in a copy of src. The tests of `make test`
then run against the copy: first the files where it should show, and if they all pass, the rest.
A mistake that no test sees is a hole in the tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "benchmarks")]

from _mutants import MUTANTS, Mutant  # noqa: E402

# A mistake changes few programs: the others are compiled once for all of them.
PROGRAMS = ROOT / ".pytest_cache" / "programs"
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


def planted(mutant: Mutant, source: str) -> str:
    """The source with the mistake in it."""
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(
            f"{mutant.name!r}: the text to replace occurs {found} times in {mutant.file}; the "
            "source has changed, bring reliability/_mutants.py up to date."
        )
    return source.replace(mutant.old, mutant.new)


def run_tests(folder: Path, *tests: str) -> str | None:
    """The first test that fails against the copy of src in the folder; None: all pass."""
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "JALAX_COMPILE_LEVEL": "0",
        "JALAX_PROGRAMS": str(PROGRAMS),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow and not browser"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    failed = FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
    return failed[1].removeprefix("tests/")


def catch(mutant: Mutant) -> dict[str, Any]:
    """What catches a mistake."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(ROOT / "src" / "jalax", folder / "jalax")
        target = folder / "jalax" / mutant.file
        target.write_text(planted(mutant, target.read_text()))
        caught = None
        for tests in [*(f"tests/{name}" for name in mutant.tests.split()), "tests"]:
            if (caught := run_tests(folder, tests)) is not None:
                break
    row = {
        "mistake": mutant.name,
        "in": mutant.file,
        "caught by": caught or "NOBODY",
        "seconds": round(time.monotonic() - began),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", help="parts of the names of mistakes; default: all")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    for mutant in chosen:  # before anything runs
        planted(mutant, (ROOT / "src" / "jalax" / mutant.file).read_text())
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(catch, chosen))
    minutes = (time.monotonic() - began) / 60
    # A test that fails without the mistake has caught nothing.
    seen = sorted({f"tests/{row['caught by']}" for row in rows if row["caught by"] != "NOBODY"})
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "src" / "jalax", Path(place) / "jalax")
        if (broken := run_tests(Path(place), *seen)) is not None:
            sys.exit(f"{broken} fails with nothing planted: mend that first.")
    missed = [row["mistake"] for row in rows if row["caught by"] == "NOBODY"]
    text = (
        f"{len(rows)} mistakes planted one at a time, {len(rows) - len(missed)} caught, in one run "
        f"of {minutes:.0f} minutes with {options.jobs} at a time."
    )
    if not options.names:
        from _common import machine, write

        write("mutants", [text, rows], HERE, machine=machine(), rows=rows)
    print(text, *missed, sep="\n")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
