"""The README's code works as pasted, and gives the answer it promises."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_ten_lines(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    names: dict = {}
    exec(compile(blocks[0], str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert "status: converged" in printed
    assert "std. error" in printed
    assert "+-" in printed
    result, y = names["result"], np.asarray(names["y"])
    theta, spread = result.theta, np.sqrt(y.var() - 1)
    assert abs(theta["mean"] - y.mean()) < 0.02
    assert abs(np.exp(theta["log_sd"]) - spread) < 0.02
    errors = result.standard_errors()
    assert abs(errors["mean"] - np.sqrt(y.var() / 50)) < 0.03 * errors["mean"]
    sd = jnp.sqrt(jnp.exp(2 * theta["log_sd"]) + 1)
    exact = jnp.sum(jax.scipy.stats.norm.logpdf(y, theta["mean"], sd))
    assert abs(result.path_log_evidence - exact) < 1.0
    assert abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error + 1e-3


def test_two_commands_and_their_targets():
    makefile = (README.parent / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README.read_text()
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_file_the_readme_names_is_there():
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
