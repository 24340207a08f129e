"""The command line: help without work, and the whole demonstration (slow)."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from jalax.cli import app
from jalax.cli.demo import REFERENCE_ERROR, REFERENCE_LOG_EVIDENCE, REFERENCE_THETA


def test_help_names_the_demo():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output


@pytest.mark.slow
def test_demo(tmp_path):
    """The numbers it prints are those of the independent reference."""
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "wisconsin.png").stat().st_size > 10_000
    text = " ".join(result.output.split())
    found = re.search(
        r"\(converged\): theta (\S+), standard error (\S+) .*log evidence (\S+) \+- (\S+) \(ref",
        text,
    )
    assert found is not None
    theta, standard, evidence, error = (float(number) for number in found.groups())
    assert abs(theta - REFERENCE_THETA) < 0.02
    assert abs(standard - REFERENCE_ERROR) < 0.02
    assert abs(evidence - REFERENCE_LOG_EVIDENCE) < 4.5 * max(error, 0.01)
