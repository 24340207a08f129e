"""`jalax book`: verdicts by hand, what cannot be had in one sentence, and the smallest problem."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import jalax
from jalax.cli import app
from jalax.cli.book import check_names, one, run, stages, succeeded, summarised
from jalax.cli.book_child import by_name
from jalax.cli.book_verdict import allowed, combined, cost_of_theta, judge

ROOT = Path(__file__).resolve().parents[2]

REFERENCE = {
    "theta": {"a": 1.0, "b": -2.0},
    "standard_errors": {"a": 0.5, "b": 0.25},
    "log_evidence": -100.0,
    "error": 0.03,
    "theta_error": 0.0,
    "method": "by hand",
    "strength": "exact",
}
# At the reference's theta but for 0.1 in a: 0.2 standard errors, and 2 simulation errors.
ANSWER = {
    "status": "converged",
    "theta": {"a": 1.1, "b": -2.0},
    "standard_errors": {"a": 0.55, "b": 0.25},
    "simulation_errors": {"a": 0.05, "b": 0.05},
    "theta_freedom": None,
    "covariance": [[0.25, 0.0], [0.0, 0.0625]],
    "log_evidence": -100.12,
    "error": 0.04,
    "freedom": None,
    "resolution": 0.0,
    "messages": [],
}


def test_a_fit_that_is_right():
    """(0.12 - 0.2^2 / 2) / sqrt(0.03^2 + 0.04^2) = 0.10 / 0.05 = 2 errors."""
    row = judge(ANSWER, REFERENCE)
    assert row["verdict"] == "right"
    assert row["log_p_off"] == pytest.approx(-0.12)
    assert row["log_p_cost"] == pytest.approx(0.02)
    assert row["log_p_error"] == pytest.approx(0.05)
    assert row["log_p_errors_off"] == pytest.approx(2.0)
    assert row["theta_off"] == pytest.approx(0.2)
    assert row["theta_errors_off"] == pytest.approx(2.0, rel=1e-3)
    assert row["theta_worst"] == "a"
    assert row["standard_errors_off"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"log_evidence": -100.3}, "log p 5.6 errors off (allowed 4.5)"),
        ({"log_evidence": -99.7}, "log p 6.4 errors off (allowed 4.5)"),
        ({"simulation_errors": {"a": 0.02, "b": 0.05}}, "a 5.0 errors off (allowed 4.5)"),
        ({"standard_errors": {"a": None, "b": 0.25}}, "no error for a"),
        ({"log_evidence": None, "messages": ["it diverged"]}, "no log p (it diverged)"),
    ],
)
def test_a_fit_that_is_wrong(change, reason):
    assert judge(ANSWER | change, REFERENCE)["verdict"] == f"wrong: {reason}"


def test_a_weak_reference_judges_nothing():
    row = judge(ANSWER | {"log_evidence": -90.0}, REFERENCE | {"strength": "laplace"})
    assert row["verdict"].startswith("not judged")
    assert row["log_p_off"] == pytest.approx(10.0)


def test_few_degrees_of_freedom_allow_more():
    """The t quantile of the normal's probability beyond 4.5, and Welch's degrees."""
    assert 2 * stats.norm.sf(allowed(None)) == pytest.approx(6.8e-6, rel=0.01)
    assert 2 * stats.t.sf(allowed(7.0), 7.0) == pytest.approx(6.8e-6, rel=0.01)
    error, freedom = combined(0.03, 7.0, 0.04)
    assert error == pytest.approx(0.05)
    assert freedom == pytest.approx(7.0 * (5 / 3) ** 4)
    assert combined(0.03, None, 0.04)[1] is None
    off = {"log_evidence": -100.0 - 8 * 0.04, "theta": dict(REFERENCE["theta"]), "freedom": 7.0}
    exact = REFERENCE | {"error": 0.0}
    assert judge(ANSWER | off, exact)["verdict"] == "right"  # 8 errors of 10.5 allowed
    assert judge(ANSWER | off | {"freedom": None}, exact)["verdict"].startswith("wrong: log p 8.0")


def test_the_cost_of_theta_is_what_a_gaussian_likelihood_loses():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 2))
    covariance, apart = root @ root.T, np.array([0.3, -0.2])
    names = dict(zip("ab", apart + np.array([1.0, -2.0]), strict=True))
    answer = {"theta": names, "covariance": covariance.tolist()}
    density = stats.multivariate_normal([0.0, 0.0], covariance)
    lost = density.logpdf([0.0, 0.0]) - density.logpdf(apart)
    assert cost_of_theta(answer, REFERENCE) == pytest.approx(lost)


def test_names_of_theta():
    tree = {"log_sd": 0.5, "beta": np.array([1.0, np.nan])}
    assert by_name(tree) == {"beta.0": 1.0, "beta.1": None, "log_sd": 0.5}
    assert by_name({"log_sd": 0.5, "beta": [1.0, math.nan]}) == by_name(tree)
    assert by_name(2.0) == {"theta": 2.0}
    assert by_name(None) == {}


def test_a_bad_name_is_one_sentence():
    assert check_names([]) == list(jalax.problems.all())
    result = CliRunner().invoke(app, ["book", "pumps", "pumpz"])
    assert result.exit_code == 2
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert "there is no problem 'pumpz' in the book: pumps, " in text
    assert "Traceback" not in text


def test_a_process_that_takes_too_long_is_ended_and_said_so():
    """The limit is shorter than the import of JAX; the next keys are not asked."""
    (asked,) = run(["pumps"], keys=3, limit=0.2)
    assert asked["keys"] == 1
    found = one("pumps", 0, limit=0.2)
    assert found["cold"] == {"verdict": "no answer in 0.2 s"}
    assert found["again"] == {"verdict": "not asked"}
    row = summarised("pumps", [found])
    assert row["verdict"] == "no answer in 0.2 s"
    assert row["cold"] is None
    assert not succeeded([row])


def test_a_fit_without_an_answer_is_no_fast_one():
    """One of three keys: the slower of the other two; two of three: none."""

    def timed(*seconds):
        late, not_asked = {"verdict": "no answer in 9 s"}, {"verdict": "not asked"}
        return [
            {"cold": late if s is None else {"verdict": "right", "seconds": s}, "again": not_asked}
            for s in seconds
        ]

    assert summarised("x", timed(1.0, 3.0, None))["cold"] == 3.0
    assert summarised("x", timed(1.0, 3.0, None))["verdict"] == "1 of 3 no answer in 9 s"
    assert summarised("x", timed(1.0, None, None))["cold"] is None


SLOW_AGAIN = """
import json, time
print("something else")
print(json.dumps({"stage": "cold", "seconds": 1.5}), flush=True)
time.sleep(60)
"""


def test_the_first_fit_survives_a_second_that_takes_too_long():
    assert [(stage, content["seconds"]) for stage, content in stages(SLOW_AGAIN, 5.0, None)] == [
        ("cold", 1.5)
    ]


def test_a_process_that_dies_is_said_so():
    ((stage, content),) = stages("import os; os.kill(os.getpid(), 9)", 60.0, None)
    assert (stage, content["reason"]) == ("failed", "the process ended with signal 9")
    ((_, content),) = stages("raise SystemExit('no room')", 60.0, None)
    assert content["reason"] == "the process ended with status 1: no room"


def test_what_went_wrong_in_a_problem_is_its_row():
    """A name that only the child finds unknown stands for a missing data file."""
    found = one("nothing", 0, limit=60.0)
    assert found["cold"]["verdict"].startswith("wrong: there is no problem 'nothing'")
    assert summarised("nothing", [found])["verdict"] == found["cold"]["verdict"]


def test_without_r_the_row_says_so():
    """benchmarks/_book_peers.py in a process whose PATH has no Rscript."""
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
import _book_peers
print(json.dumps(_book_peers.run("toenail", {"lme4": "glmer(...)"}, 0.0, 1.0)))
"""
    command = [sys.executable, "-c", script, str(ROOT / "benchmarks")]
    environment = os.environ | {"PATH": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    (row,) = json.loads(done.stdout)
    assert row["failed"].startswith("R is not installed")
    assert row["failed"].count("\n") == 0
    assert "first" not in row


@pytest.mark.slow
def test_the_smallest_problem():
    """Through the command, as a user would: alpha and beta of the pumps have a closed form."""
    result = CliRunner().invoke(app, ["book", "pumps", "--keys", "1"])
    assert result.exit_code == 0, result.output
    assert re.search(r"pumps, key 0: [\d.]+ s, [\d.]+ s, right", result.output)
