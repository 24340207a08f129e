"""The catalogue: names, files, references, and what is said when something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jalax
from jalax import problems

DATA = Path(problems.__file__).parent / "data"


def test_a_bad_name_is_answered_in_one_sentence():
    with pytest.raises(ValueError, match=r"^there is no problem 'toenails', only pumps, .*\.$"):
        problems.get("toenails")


@pytest.mark.parametrize("bad", ["lsat", "kidney", "toenail", "insteval"])
def test_a_bad_variant_is_answered_in_one_sentence(bad):
    with pytest.raises(ValueError, match=r"^\w+ must be '\w+' or '\w+', got 'other'\.$"):
        getattr(problems, bad)("other")


def test_a_missing_file_is_answered_in_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"InstEval.csv.gz.*benchmarks/data.*\.$") as error:
        problems.insteval(folder=tmp_path)
    assert "\n" not in str(error.value)


def test_the_files_are_small_and_each_has_a_source():
    files = sorted(path.name for path in DATA.iterdir())
    assert sum((DATA / name).stat().st_size for name in files) < 1.5e6
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert [name for name in files if f"| `{name}` |" not in readme] == ["README.md"]


def test_references_belong_to_the_problems():
    entries = json.loads((DATA / "references.json").read_text(encoding="utf-8"))
    assert set(entries) == set(problems.all())
    for name, entry in entries.items():
        assert entry["strength"] in ("exact", "monte carlo", "laplace"), name
        assert np.isfinite(entry["log_evidence"]), name
        assert entry["error"] >= 0, name
        assert entry["theta_error"] >= 0, name


def test_references_are_those_that_the_programs_computed():
    """Programs without jalax, benchmarks/references; the package has a copy of what they wrote."""
    programs = Path(__file__).parents[2] / "benchmarks" / "references"
    computed = json.loads((programs / "references.json").read_text(encoding="utf-8"))
    entries = json.loads((DATA / "references.json").read_text(encoding="utf-8"))
    for name, entry in computed.items():
        for field in ("theta", "standard_errors", "log_evidence", "error", "theta_error", "method"):
            assert entries[name][field] == entry[field], (name, field)
        assert (programs / Path(entries[name]["source"]).name).exists()


@pytest.mark.parametrize("name", problems.all())
def test_a_problem_is_complete(name):
    problem = problems.get(name)
    assert problem.name == name
    shapes = jax.tree.map(np.shape, problem.theta)
    assert jax.tree.map(np.shape, problem.reference.theta) == shapes
    if problem.reference.standard_errors is not None:
        assert jax.tree.map(np.shape, problem.reference.standard_errors) == shapes
        errors = np.concatenate([np.ravel(e) for e in problem.reference.standard_errors.values()])
        assert (errors[~np.isnan(errors)] > 0).all()
    assert problem.fixed == (not problem.theta)
    count = problem.model.num_groups
    assert problem.structure.startswith(f"{count:,} groups") == problem.model.grouped
    assert "\n" not in problem.title


@pytest.mark.slow
def test_the_evidence_of_a_fixed_theta():
    problem = problems.heart()
    found = jalax.log_evidence(problem.model, problem.theta, key=jax.random.key(0))
    error = np.hypot(found.error, problem.reference.error)
    assert abs(found.value - problem.reference.log_evidence) < 4.5 * error
