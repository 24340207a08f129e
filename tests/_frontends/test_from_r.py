"""docs/from-r.md: every model of its table can be built, and what follows a fit is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jalax

PAGE = Path(__file__).parents[2] / "docs" / "from-r.md"
CELLS = re.findall(
    r"```\{code-cell\} python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


def table(name):
    """The list of that name, as it stands in a cell."""
    (cell,) = [cell for cell in CELLS if cell.startswith(f"{name} = [")]
    return ast.literal_eval(ast.parse(cell).body[0].value)


@pytest.fixture(scope="module")
def names():
    """What the first cell makes: tables of data."""
    found = {"mixed": jalax.models.mixed}
    exec(CELLS[0], found)
    return found


def test_there_are_many():
    assert len(table("MODELS")) + len(table("AFTER")) >= 30


@pytest.mark.parametrize("here", [here for _, here in table("MODELS")])
def test_a_model_of_the_table_is_built(here, names):
    assert isinstance(eval(here, names), jalax.Model)


@pytest.mark.parametrize("here", [here for _, here in table("AFTER")])
def test_what_follows_a_fit_is_there(here):
    for node in ast.walk(ast.parse(here)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = jalax.results.MixedResult if node.value.id == "m" else None
            home = jalax if node.value.id == "jalax" else home
            fields = getattr(home, "__dataclass_fields__", {})
            assert home is None or hasattr(home, node.attr) or node.attr in fields, here


@pytest.mark.parametrize("here", table("REFUSED"))
def test_what_is_refused_is_refused(here, names):
    with pytest.raises((TypeError, ValueError)):
        eval(here, names)
