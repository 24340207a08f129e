"""The documentation's sources: names are spelled as in the package, and none is left out.

`make docs` runs the examples; tests/project/test_site.py looks at the site it builds.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import jalax
import jalax.launch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
from docstrings import SPACES  # in this order: an object is documented under its first address

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GALLERY = sorted((DOCS / "gallery").glob("*.py"))
PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "api").glob("*.md"), *(DOCS / "gallery").glob("*.md")])
SOURCES = [*PAGES, *GALLERY, ROOT / "README.md"]

# A dotted name after `jalax.`, in prose or code; file names such as jalax.md are none.
NAME = re.compile(r"(?<![\w./-])jalax\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def resolves(name: str) -> bool:
    """Whether a dotted name leads somewhere; past a function's call it cannot be followed."""
    thing = jalax
    for part in name.split("."):
        fields = getattr(thing, "__dataclass_fields__", {})
        if not hasattr(thing, part):
            return part in fields or part in getattr(thing, "__annotations__", {})
        thing = getattr(thing, part)
    return True


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_are_those_of_the_package(path):
    names = set(NAME.findall(path.read_text(encoding="utf-8")))
    assert {name for name in names if not resolves(name)} == set()


def test_a_misspelt_name_is_seen():
    assert NAME.findall("`jalax.FitResult.log_evidence`, see jalax.md") == [
        "FitResult.log_evidence",
        "md",
    ]
    assert resolves("FitResult.log_evidence")
    assert resolves("FitResult.theta")  # a field without a default
    assert not resolves("FitResult.log_evidense")
    assert not resolves("fitt")


PARTS = ("extend.langevin", "extend.trees", "extend.weight_math")  # modules, with their functions


def public_names() -> dict[str, object]:
    """Every address of every public object."""
    names = {}
    for space in ("", *SPACES, *PARTS):
        module = jalax
        for part in filter(None, space.split(".")):
            module = getattr(module, part)
        for name in dir(module):
            thing = getattr(module, name)
            own = space not in PARTS or getattr(thing, "__module__", None) == module.__name__
            if own and not name.startswith("_") and not inspect.ismodule(thing):
                names[".".join(filter(None, ("jalax", space, name)))] = thing
    return names


def first_addresses() -> set[str]:
    """One address of each public object; what is no class and no function is in the text only."""
    seen: set[int] = set()
    first = set()
    for name, thing in public_names().items():
        known = inspect.isclass(thing) or inspect.isfunction(thing)
        if known and thing is not Any and id(thing) not in seen:
            seen.add(id(thing))
            first.add(name)
    return first


def test_namespaces_are_those_of_the_package():
    """A new one must be entered in docs/_ext/docstrings.py."""
    found = {name for name in dir(jalax) if inspect.ismodule(getattr(jalax, name))}
    assert {name for name in found if not name.startswith("_")} - {"launch", "cli"} == set(SPACES)
    parts = {name for name in dir(jalax.extend) if inspect.ismodule(getattr(jalax.extend, name))}
    assert {f"extend.{name}" for name in parts} == set(PARTS)


def test_the_reference_has_every_public_name_once():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    documented = re.findall(
        r"^\.\. auto(?:class|function|exception):: (\S+?)(?:\(\))?$", text, flags=re.M
    )
    assert len(documented) == len(set(documented))
    assert set(documented) == first_addresses()
    # The other addresses of the same objects are named beside them.
    others = set(public_names()) - set(documented)
    assert {name for name in others if f"`{name}`" not in text} == set()


def test_every_option_of_a_public_function_is_in_its_docstring():
    """Of those that users call; authors read the types, too."""
    missing = []
    for name, thing in public_names().items():
        if inspect.isfunction(thing) and not name.startswith("jalax.extend."):
            doc = thing.__doc__ or ""
            missing += [f"{name}({p})" for p in inspect.signature(thing).parameters if p not in doc]
    assert missing == []


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_an_example_has_a_title_a_card_and_a_check(path):
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^# # (.+)$", text, flags=re.M)
    assert len(titles) == 1
    first = re.search(r"^# # .+\n#\n((?:# .+\n)+)", text, flags=re.M)
    assert first is not None, "a paragraph follows the title"
    assert len(first[1].replace("# ", "")) < 260, "and is short enough for its card"
    assert "$" not in first[1], "and has no formula, which a card cannot show"
    check = re.search(r"^# ##.*\bCheck", text, flags=re.M)
    assert check is not None, "a section compares with an independent answer"
    assert re.search(r"^\s*assert |np.testing", text[check.start() :], flags=re.M)
    index = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    assert index.count(f"\n{path.stem}\n") == 1
    assert index.count(f"gallery/{path.stem}\n") == 1


def test_every_page_is_in_the_navigation():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    api = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    for path in PAGES:
        if path.name != "index.md":
            where = api if path.parent.name == "api" else index
            assert re.search(rf"^{path.stem}$", where, flags=re.M), path
