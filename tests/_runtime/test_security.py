"""No code out of data: nothing is unpickled or evaluated, downloads are pinned, HTML is escaped."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import hashlib
import re
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax import datasets
from jalax._evidence.log_evidence import Evidence
from jalax._export.tables import Summary, Table
from jalax.datasets import _mnist

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for name in ("src", "experiments", "benchmarks") for path in (ROOT / name).rglob("*.py")
)

# ---------------------------------------------------------------- the source

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
DOWNLOADS = {"requests", "urllib.request", "urllib3", "httpx", "aiohttp", "ftplib", "http.client"}
NEVER = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp"),
    *("yaml.load", "yaml.unsafe_load", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("pd.read_pickle", "pandas.read_pickle", "pd.eval", "pandas.eval"),
}


def name_of(node):
    """a.b.c of an expression; empty where it has no such name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def wrong_in_call(node):
    name, given = name_of(node.func), {word.arg: word.value for word in node.keywords}

    def is_given(word, value):
        return isinstance(given.get(word), ast.Constant) and given[word].value is value

    if name in NEVER:
        yield name
    if name.split(".")[-1] in ("extractall", "read_pickle"):
        yield name
    reads = name in ("np.load", "numpy.load", "np.lib.format.read_array", "jnp.load")
    if (reads or "allow_pickle" in given) and not is_given("allow_pickle", False):
        yield f"{name} without allow_pickle=False"
    if "shell" in given and not is_given("shell", False):
        yield f"{name} with a shell"
    if name.endswith("retrieve") and "known_hash" not in given:
        yield f"{name} without a checksum"


def wrong_in(source):
    """(line, what) of everything that has no place in the package."""
    for node in ast.walk(ast.parse(source)):
        found = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or "", *(f"{node.module}.{name}" for name in modules)]
            found = [m for m in modules if m.split(".")[0] in PICKLES or m in (DOWNLOADS | NEVER)]
        elif isinstance(node, ast.Call):
            found = list(wrong_in_call(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.findall(r"\b(?:http|ftp)://\S+", node.value)
        yield from ((node.lineno, what) for what in found)


BAD = (
    "import pickle",
    "from pickle import loads",
    "import os, marshal as m",
    "from urllib.request import urlopen",
    "from os import system",
    "eval(text)",
    "exec(text)",
    "__import__(name)",
    "os.system('ls')",
    "subprocess.run(command, shell=True)",
    "subprocess.run(command, shell=flag)",
    "np.load(path)",
    "np.load(path, allow_pickle=True)",
    "np.lib.format.read_array(file)",
    "np.save(path, x, allow_pickle=True)",
    "yaml.load(text)",
    "tempfile.mktemp()",
    "archive.extractall()",
    "pooch.retrieve(url, fname=name)",
    "url = 'http://example.org/data.gz'",
    "frame = pd.read_pickle(path)",
)


@pytest.mark.parametrize("source", BAD)
def test_the_search_finds(source):
    assert list(wrong_in(source))


def test_the_search_lets_pass():
    source = """
import subprocess, numpy as np
np.load(path, allow_pickle=False)
subprocess.run(["ls"], shell=False)
model.eval(x)
jax.jit(f).lower(x).compile()
url = "https://example.org/data.gz"
"""
    assert list(wrong_in(source)) == []


def test_the_source_has_none_of_it():
    assert len(SOURCES) > 100
    found = {
        (str(path.relative_to(ROOT)), what)
        for path in SOURCES
        for _, what in wrong_in(path.read_text())
    }
    assert found == set()


# ---------------------------------------------------------------- downloads


def test_downloads_are_over_https_and_pinned():
    assert _mnist._URL.startswith("https://")
    assert len(_mnist._SHA256) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in _mnist._SHA256.values())
    # There is no other place that downloads anything.
    places = [path.name for path in SOURCES if "retrieve(" in path.read_text()]
    assert places == ["_mnist.py"]


def test_a_download_with_another_checksum_is_refused(tmp_path, monkeypatch):
    """With a pooch of our own, which hands out other bytes, and checks as pooch does."""
    content, asked = b"not MNIST", []

    def retrieve(url, known_hash, fname, path):
        asked.append(url)
        algorithm, _, digest = known_hash.partition(":")
        if hashlib.new(algorithm, content).hexdigest() != digest:
            raise ValueError(f"{algorithm} hash of downloaded file ({fname}) does not match")
        (path / fname).write_bytes(content)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    with pytest.raises(ValueError, match="sha256 hash of downloaded file"):
        datasets.download_mnist(tmp_path)
    assert [url.partition(":")[0] for url in asked] == ["https"]
    assert list(tmp_path.iterdir()) == []


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_mnist, "_LARGEST", 10_000)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(bytes(20_000)))
    with pytest.raises(ValueError, match=r"train-images.* larger than 10000 bytes"):
        datasets.mnist(folder=tmp_path)


def test_an_npz_bomb_or_pickle_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mnist.npz"
    np.savez(path, images=np.array([{}], object), labels=np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match=r"mnist\.npz is cut short or damaged .*allow_pickle"):
        datasets.mnist(folder=path)
    monkeypatch.setattr(_mnist, "_LARGEST", 10_000)
    np.savez_compressed(path, images=np.zeros((100, 784), np.uint8), labels=np.zeros(100, np.uint8))
    with pytest.raises(ValueError, match=r"mnist\.npz .*more than 10000"):
        datasets.mnist(folder=path)


# ---------------------------------------------------------------- HTML

EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onload='alert(3)",
    "</style></svg></title><script>",
    "<!-- ",
    "]]>&lt;b&gt;&amp;",
    "{style}",
    "$<b>$",
)


class Reader(HTMLParser):
    """The tags of a page, their attributes and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def assert_harmless(page, shown):
    """No tag and no attribute but those of jalax, and all that is shown is there to be read."""
    read = Reader(page)
    assert not read.tags & {"script", "img", "iframe", "object", "embed"}
    assert not {name for name in read.attributes if name.startswith("on")}
    assert [raw for raw in (EVIL[0], EVIL[1], EVIL[3]) if raw in page] == []
    missing = [name for name in shown if name not in read.text]
    assert missing == []


def test_summaries_escape_everything():
    rows = [(name, (name, 1.0)) for name in EVIL]
    summary = Summary.of(EVIL, [Table(name, (name, "b"), rows) for name in EVIL], EVIL)
    assert_harmless(summary._repr_html_(), EVIL)


@pytest.fixture(scope="module")
def result():
    """A fit whose every name, label and message is hostile."""

    def log_joint(theta, x, data):
        near = sum(jnp.sum((leaf - theta[EVIL[0]]) ** 2) for leaf in x.values())
        return -0.5 * near - 0.5 * jnp.sum((data - x[EVIL[0]]) ** 2) - theta[EVIL[1]] ** 2

    log_joint.__name__ = log_joint.__qualname__ = EVIL[0]
    latent = {name: jnp.zeros(()) for name in EVIL[:4]}
    theta = dict.fromkeys(EVIL[:4], 0.1)
    model = jalax.GroupedModel(log_joint, latent, jnp.array([0.3, 0.2]), theta=theta)
    object.__setattr__(model, "groups", EVIL[:2])
    start = jalax.Given(
        {name: jnp.array(np.random.default_rng(0).normal(size=(2, 8))) for name in EVIL[:4]}
    )
    fitted = jalax.fit(
        model,
        key=jax.random.key(0),
        algorithm=jalax.PGD(step_size=0.05),
        start=start,
        num_steps=4,
        progress=jalax.callbacks.Callback(),
    )
    evidence = Evidence(
        -3.0, 0.1, 7.0, EVIL[0], 0.2, 0.9, 9, 8, 1, np.array([-1.0, -2.0]), tuple(EVIL)
    )
    return dataclasses.replace(
        fitted, message=" ".join(EVIL), algorithm=EVIL[0], saved_evidence=evidence, labels=EVIL[:4]
    )


def test_a_result_in_a_notebook_is_escaped(result):
    assert_harmless(result._repr_html_(), [EVIL[0], " ".join(EVIL)])


def test_a_report_is_escaped(result, tmp_path):
    path = tmp_path / "report.html"
    result.report(path)
    page = path.read_text()
    assert_harmless(page, [" ".join(EVIL), *EVIL[:4]])
    assert page.count("<style") == page.count("</style>")
    assert "default-src 'none'" in page  # and if something were missed, no script may run
    # In the figures too: names of theta in the legend, of latents and groups on the axes.
    figures = page[page.index("<figure>") :]
    assert figures.count("&lt;script&gt;alert(1)") >= 2
    assert not re.findall(r"(?:href|src)=\"(?!#|data:)[^\"]*\"", page)
