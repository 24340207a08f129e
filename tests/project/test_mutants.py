"""The mistakes of `make mutants` can still be planted: each edits one place of the source."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest
from _mutants import MUTANTS

import jalax

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_planted(mutant):
    source = (Path(jalax.__file__).parent / mutant.file).read_text()
    changed = mutants.planted(mutant, source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    for name in mutant.tests.split():
        file, _, test = name.partition("::")
        assert not test or f"def {test}(" in (ROOT / "tests" / file).read_text()
        assert (ROOT / "tests" / file).exists()


def test_a_mistake_that_does_not_fit_the_source_is_said():
    with pytest.raises(ValueError, match=r"occurs 0 times.*bring reliability"):
        mutants.planted(MUTANTS[0], "nothing")
