"""Which tests are slow, and a fifth of them at a time; conftest.py takes its hooks from here.

`@pytest.mark.slow_cases("float64-grouped-IPLA", ...)` stands beside a test with several
parametrisations and makes these of its cases slow. A case that the test does not have is an error,
or a renamed one would be back in `make test` without a word.

`--slow-share=k` runs the slow tests of one fifth only, k = 0..4. As a script, `python
tests/tiers.py` prints the k of `make test-share`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

SHARES = 5


def pytest_addoption(parser):
    parser.addoption(
        "--slow-share",
        type=int,
        choices=range(SHARES),
        help=f"run one part in {SHARES} of the slow tests and nothing else",
    )


# As soon as the cases are made: here all of them are seen, whatever was asked for by node id, -k,
# -m or --lf, and pytest-xdist reports the error as it does any other.
@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    made = yield
    if isinstance(made, list):
        _mark_slow_cases(collector, name, made)
    return made


def _mark_slow_cases(collector, name, items):
    marks = [mark for item in items for mark in item.iter_markers("slow_cases")]
    if not marks:
        return
    named = {case for mark in marks for case in mark.args}
    cases = {item.callspec.id: item for item in items if hasattr(item, "callspec")}
    for stale in sorted(named - cases.keys()):
        raise collector.CollectError(f"{name} has no case {stale!r}, which its slow_cases name.")
    for case in named:
        cases[case].add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config, items):
    share = config.getoption("slow_share")
    if share is None:
        return
    kept, others = [], []
    for item in items:
        mine = item.get_closest_marker("slow") and share_of(item.nodeid) == share
        (kept if mine else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def share_of(nodeid: str) -> int:
    """The same on every machine and in every process, which Python's own hash is not."""
    return zlib.crc32(nodeid.encode()) % SHARES


# ---------------------------------------------------------------- the share of this run


def chosen_share(wish: str, folder: Path) -> tuple[int, str]:
    """The share asked for, else one that changes from commit to commit; and why this one."""
    if wish:
        if wish not in map(str, range(SHARES)):
            raise ValueError(f"SHARE must be one of 0..{SHARES - 1}, it is {wish!r}.")
        return int(wish), "as asked"
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 0, "no git commit to choose by"
    return int(done.stdout, 16) % SHARES, "by the commit"


def main() -> None:
    try:
        share, why = chosen_share(os.environ.get("SHARE", ""), Path(__file__).parent)
    except ValueError as error:
        sys.exit(str(error))
    # The number alone goes to the standard output, where make reads it.
    print(
        f"slow tests: share {share} of 0..{SHARES - 1} ({why}),"
        f" repeat with SHARE={share} make test-share",
        file=sys.stderr,
    )
    print(share)


if __name__ == "__main__":
    main()
