"""docs/troubleshooting.md has every warning and every status, so that a search finds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jalax

SOURCES = Path(jalax.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"

# Warnings whose text is made elsewhere: the argument of warnings.warn, and the functions that make
# it. A new one must be entered here, and its text on the page.
MADE_BY = {
    ("_evidence/log_evidence.py", "f'log_evidence: {message}.'"): [
        ("_evidence/log_evidence.py", "_estimate"),
        ("_evidence/log_evidence.py", "report"),
        ("_evidence/log_evidence.py", "_reference_messages"),
    ],
    ("_fit/choice.py", "f'log_evidence: {found.words}.'"): [
        ("_fit/second_modes.py", "second_modes")
    ],
    ("_fit/conclusion.py", "f'log_evidence: {doubt}.'"): [("_evidence/measured.py", "_doubts")],
    ("_fit/conclusion.py", "message"): [("_fit/conclusion.py", "result_of")],
    ("_fit/conclusion.py", "collapsed"): [("_fit/conclusion.py", "_collapsed")],
    ("_fit/driver.py", "f'{reason}.'"): [
        ("_fit/driver.py", "drive"),
        ("_runtime/failures.py", "memory_advice"),
    ],
    ("_fit/result.py", "self.evidence_reason"): [
        ("_fit/conclusion.py", "_path_evidence"),
        ("_fit/conclusion.py", "_outside_the_support"),
        ("_fit/conclusion.py", "path_is_off"),
    ],
    ("_fit/result.py", "reason"): [("_fit/result.py", "log_evidence")],
    ("_frontends/mixed.py", "design.design.left_out.sentence"): [
        ("models/_kept_rows.py", "sentence")
    ],
    ("models/_mixed.py", "design.design.left_out.sentence"): [("models/_kept_rows.py", "sentence")],
}
# The sentences that come with a status, and with the choice of an algorithm.
SENTENCES = [
    ("_fit/choice.py", "choose"),
    ("_fit/choice.py", "why_not_scoring"),
    ("_fit/choice.py", "_judged"),
    ("_evidence/measured.py", "what_is_wrong"),
    ("_algorithms/scoring.py", "unsuitable"),
    ("_algorithms/scoring.py", "too_many"),
    ("_reference/legs.py", "too_many"),
    ("_algorithms/scoring.py", "advice"),
    ("_algorithms/scoring.py", "without_path_evidence"),
    ("_fit/conclusion.py", "_verdict"),
    ("_fit/driver.py", "drive"),
    ("_fit/driver.py", "advice"),
    ("_fit/agreement.py", "losses"),
    ("_fit/agreement.py", "stop"),
    ("_fit/callbacks.py", "after_chunk"),
]


def functions(name: str, called: str) -> list[ast.FunctionDef]:
    nodes = ast.walk(ast.parse((SOURCES / name).read_text()))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == called]
    assert found, f"{name} has no function {called}: mend the lists of this test"
    return found


def fragments(node: ast.AST) -> Iterator[str]:
    """The fixed parts of the sentences in it: strings of two words or more, no docstrings."""
    docstrings = {id(child.value) for child in ast.walk(node) if isinstance(child, ast.Expr)}
    for child in ast.walk(node):
        if not isinstance(child, ast.Constant) or not isinstance(child.value, str):
            continue
        if id(child) not in docstrings and len(child.value.split()) > 1:
            yield child.value


def plain(text: str) -> str:
    """Without what Markdown and a line break add; a variable part is … on the page."""
    return re.sub(r"\s+", " ", text.replace("`", "").replace("\\|", "|"))


def warning_calls() -> list[tuple[str, ast.expr]]:
    """Every warnings.warn of the sources: the file, and its first argument."""
    calls = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warn"):
                calls.append((path.relative_to(SOURCES).as_posix(), node.args[0]))
    return calls


def is_sentence(argument: ast.expr) -> bool:
    return any(len(part.split()) > 3 for part in fragments(argument))


def missing(*nodes: ast.AST) -> list[str]:
    """The fragments that are not on the page; what joins them to a number is no part of them."""
    text = plain(PAGE.read_text())
    every = [part for node in nodes for part in fragments(node)]
    assert every, "no sentence was found in the source: mend the lists of this test"
    return [part for part in every if plain(part).strip(" .;:(") not in text]


def test_every_warning_is_on_the_page():
    written = [(name, argument) for name, argument in warning_calls() if is_sentence(argument)]
    assert len(written) >= 7
    for name, argument in written:
        assert not missing(argument), name


def test_every_warning_that_is_made_elsewhere_is_on_the_page():
    made = {(name, ast.unparse(a)) for name, a in warning_calls() if not is_sentence(a)}
    assert made == set(MADE_BY)
    for name, called in (place for places in MADE_BY.values() for place in places):
        assert not missing(*functions(name, called)), (name, called)


@pytest.mark.parametrize(("name", "called"), SENTENCES)
def test_the_sentences_of_a_status_are_on_the_page(name, called):
    assert not missing(*functions(name, called))


@pytest.mark.parametrize("status", list(jalax.Status))
def test_every_status_has_a_heading_and_a_row(status):
    text = PAGE.read_text()
    assert re.search(rf"^### {status}$", text, flags=re.MULTILINE)
    assert re.search(rf"^\| \[`{status}`\]\(#", text, flags=re.MULTILINE)
