"""Slow tests: the mark `slow_cases` cannot go stale, and five shares are all of them, once each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiers

TESTS = Path(tiers.__file__).parent

CONFTEST = """
from tiers import pytest_addoption, pytest_collection_modifyitems, pytest_pycollect_makeitem
"""

# Its own settings, or pytest would look for others in the folders above.
SETTINGS = """
[pytest]
markers =
    slow:
    slow_cases:
"""

MARKED = """
import pytest

@pytest.fixture(params=["float32", "float64"])
def precision(request):
    pass

@pytest.mark.slow_cases("float64-a", "float32-b")
@pytest.mark.parametrize("name", ["a", "b"])
def test_some(name, precision):
    pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_all(number):
    pass

def test_none():
    pass
"""


@pytest.fixture
def collected(tmp_path):
    """A function: run pytest in a folder with these tests; the output, or the ids alone."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    # Plugins of the environment take long to import, and the one under test needs none.
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def collect(source, *arguments, rc=0):
        (tmp_path / "test_it.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        text = done.stdout + done.stderr
        assert done.returncode == rc, text
        return text if rc else [line for line in text.splitlines() if "::" in line]

    return collect


def test_the_cases_named_are_slow(collected):
    slow = collected(MARKED, "--collect-only", "-m", "slow", "-k", "some")
    assert sorted(slow) == ["test_it.py::test_some[float32-b]", "test_it.py::test_some[float64-a]"]
    fast = collected(MARKED, "--collect-only", "-m", "not slow", "-k", "some")
    assert sorted(fast) == ["test_it.py::test_some[float32-a]", "test_it.py::test_some[float64-b]"]


@pytest.mark.parametrize(
    ("arguments", "rc"),
    [
        ([], 2),
        (["-k", "none"], 2),
        (["test_it.py::test_some[float64-a]"], 4),
        (["-p", "xdist", "-n", "1"], 1),
    ],
    ids=["all", "-k", "one", "xdist"],
)
def test_a_case_that_is_not_there_is_an_error(collected, arguments, rc):
    """Whatever is asked for of that file, and in a worker of pytest-xdist too."""
    stale = MARKED.replace("float32-b", "float32-c")
    message = "test_some has no case 'float32-c', which its slow_cases name."
    assert message in collected(stale, *arguments, rc=rc)


def test_a_test_without_cases_has_none_that_are_slow(collected):
    source = MARKED + '\n@pytest.mark.slow_cases("a")\ndef test_one():\n    pass\n'
    assert "test_one has no case 'a'" in collected(source, rc=2)


def test_the_shares_are_all_slow_tests_once_each(collected):
    slow = collected(MARKED, "--collect-only", "-m", "slow")
    shares = [collected(MARKED, "--collect-only", f"--slow-share={k}") for k in range(5)]
    assert sorted(test for share in shares for test in share) == sorted(slow)
    assert len(slow) == 42
    assert all(shares)
    assert "invalid choice: 5" in collected(MARKED, "--slow-share=5", rc=4)


def test_a_test_stays_in_its_share():
    """As computed once, in another process with another seed of Python's hash."""
    ids = [f"tests/a/test_b.py::test_c[{k}]" for k in range(10)]
    assert [tiers.share_of(test) for test in ids] == [1, 2, 4, 1, 2, 2, 1, 2, 1, 2]


def script(wish, folder=TESTS):
    return subprocess.run(
        [sys.executable, str(folder / "tiers.py")],
        env=os.environ | {"SHARE": wish, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("wish", ["0", "3"])
def test_the_share_asked_for(wish):
    done = script(wish)
    assert (done.returncode, done.stdout) == (0, f"{wish}\n")
    assert f"share {wish} of 0..4 (as asked), repeat with SHARE={wish} make" in done.stderr


@pytest.mark.parametrize("wish", ["5", "-1", "all", "1.0", "03"])
def test_a_share_that_is_not_there(wish):
    done = script(wish)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"SHARE must be one of 0..4, it is {wish!r}.\n"


def test_the_share_of_a_commit(tmp_path):
    (tmp_path / "tiers.py").write_bytes((TESTS / "tiers.py").read_bytes())
    done = script("", tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert "(no git commit to choose by)" in done.stderr
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, timeout=60)
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True)
    done = script("", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{int(head, 16) % 5}\n")
    assert "(by the commit)" in done.stderr
