"""The README's code works as pasted, and gives the answer it promises."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jalax

README = Path(__file__).parents[2] / "README.md"


def run(block: int, names: dict) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    exec(compile(blocks[block], str(README), "exec"), names)


def test_the_ten_lines(capsys):
    names: dict = {}
    run(0, names)
    printed = capsys.readouterr().out
    assert "chosen because 50 groups have 1 latent each" in printed
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
    assert abs(result.log_evidence - exact) < 4.5 * result.log_evidence_error + 1e-3


def test_the_model_you_already_have(capsys):
    names: dict = {"jax": jax, "jnp": jnp, "jalax": jalax}
    run(1, names)
    printed = capsys.readouterr().out
    assert "Random effects" in printed
    assert "period[4]" in printed
    sd = names["result"].theta["sd"]["herd"][0]
    assert abs(sd - 0.6475) < 4.5 * names["result"].simulation_errors()["sd"]["herd"][0]  # lme4
    run(2, names)
    result, y = names["result"], np.asarray(names["y"])
    errors = result.simulation_errors()
    assert abs(result.theta["mean"] - y.mean()) < 4.5 * errors["mean"]
    assert abs(result.theta["sd"] - np.sqrt(y.var() - 400)) < 4.5 * errors["sd"]


def test_two_commands_and_their_targets():
    makefile = (README.parent / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README.read_text()
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_file_the_readme_names_is_there():
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
