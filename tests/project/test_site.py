"""The documentation site as `make docs` built it, in a real browser. Run with `make test-browser`.

Every page: no error, nothing asked for from elsewhere, formulas and pictures there, no sideways
scrolling on a phone. The search finds things, also when the site is opened from a folder. Every
link leads somewhere.
"""

from __future__ import annotations

import functools
import html.parser
import http.server
import json
import threading
import urllib.parse
from pathlib import Path

import pytest

import chromium

SITE = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"
FILES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
GALLERY = [path for path in FILES if path.startswith("gallery/") and path != "gallery/index.html"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="Chromium is not installed (apt-get install chromium)"
    ),
]

OVERFLOW = "document.scrollingElement.scrollWidth - window.innerWidth"
NOT_RENDERED = """[...document.querySelectorAll(".math")]
    .filter(e => !e.querySelector(".katex") || e.querySelector(".katex-error"))
    .map(e => e.textContent)"""
BROKEN_PICTURES = """Promise.all([...document.images].map(
    e => { e.loading = "eager"; return e.decode().then(() => "", () => e.src); }))
    .then(all => all.filter(src => src))"""
RESULTS = """new Promise(done => {
    const look = () => {
        const found = [...document.querySelectorAll("#search-results li a")].map(e => e.href);
        const summary = document.querySelector("#search-results .search-summary");
        if (found.length && summary && /\\d/.test(summary.textContent)) done(found);
        else setTimeout(look, 100);
    };
    look();
    setTimeout(() => done([]), 15000);
})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    """The site behind a web server of its own."""
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def port():
    with chromium.browser() as port:
        yield port


def elsewhere(requests: list[str], home: str) -> list[str]:
    return [url for url in requests if not url.startswith((home, "data:", "blob:"))]


def test_the_site_is_there():
    assert SITE.is_dir(), "make docs builds it"
    assert "index.html" in FILES
    assert len(GALLERY) >= 14


@pytest.mark.parametrize("page", FILES)
def test_page_on_a_phone(port, address, page):
    look = [OVERFLOW, NOT_RENDERED, BROKEN_PICTURES]
    seen = chromium.visit(port, address + page, width=390, height=844, expressions=look)
    assert seen.errors == []
    assert elsewhere(seen.requests, address) == []
    overflow, formulas, pictures = seen.values
    assert overflow <= 0
    assert formulas == []
    assert pictures == []


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("page", ["index.html", "mathematics.html", *GALLERY[:2]])
def test_page_from_a_folder(port, page, colours):
    home = SITE.as_uri() + "/"
    background = "getComputedStyle(document.body).backgroundColor"
    look = [OVERFLOW, NOT_RENDERED, BROKEN_PICTURES, background]
    options = {"width": 1280, "height": 900, "colours": colours, "expressions": look}
    seen = chromium.visit(port, home + page, **options)
    assert seen.errors == []
    assert elsewhere(seen.requests, home) == []
    assert seen.values[0] <= 0
    assert seen.values[1:3] == [[], []]
    red = int(seen.values[3].split("(")[1].split(",")[0])
    assert red > 200 if colours == "light" else red < 60


@pytest.mark.parametrize("place", ["server", "folder"])
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("log_evidence", "api/evidence.html"),
        ("boundary", "troubleshooting.html"),
        ("lme4", "mixed-models.html"),
    ],
)
def test_search(port, address, place, words, page):
    home = address if place == "server" else SITE.as_uri() + "/"
    url = f"{home}search.html?q={words}"
    seen = chromium.visit(port, url, width=1280, height=900, expressions=[RESULTS])
    assert seen.errors == []
    assert any(found.split("#")[0].split("?")[0] == home + page for found in seen.values[0])


def test_a_page_that_is_wrong_is_seen(port, tmp_path):
    page = tmp_path / "wrong.html"
    page.write_text(
        "<div style='width:2000px'>wide</div><span class='math'>x</span><img src='no.png'>"
        "<script>console.error('oh')</script><script src='http://127.0.0.1:9/x.js'></script>"
    )
    look = [OVERFLOW, NOT_RENDERED, BROKEN_PICTURES]
    seen = chromium.visit(port, page.as_uri(), width=390, height=844, expressions=look)
    overflow, formulas, pictures = seen.values
    assert overflow > 100
    assert formulas == ["x"]
    assert len(pictures) == 1
    assert seen.errors != []
    assert elsewhere(seen.requests, tmp_path.as_uri()) == ["http://127.0.0.1:9/x.js"]


class Links(html.parser.HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, page: str):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed((SITE / page).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)


def test_every_link_leads_somewhere():
    pages = {page: Links(page) for page in FILES}
    broken, outside = [], set()
    for page, found in pages.items():
        for link in found.links:
            if link.startswith("data:"):
                continue
            if urllib.parse.urlsplit(link).scheme:
                outside.add(link)
                continue
            path, _, anchor = link.partition("#")
            path = urllib.parse.unquote(path.split("?")[0])
            target = (SITE / page).parent.joinpath(path).resolve() if path else SITE / page
            name = target.relative_to(SITE.resolve()).as_posix() if path else page
            anchors = pages[name].anchors if name in pages else {anchor}
            if not target.is_file() or (anchor and anchor not in anchors):
                broken.append((page, link))
    assert broken == []
    assert all(link.startswith(("https://", "http://127.0.0.1", "mailto:")) for link in outside)


@pytest.mark.parametrize("page", GALLERY)
def test_an_example_has_a_picture_and_its_notebook(page):
    text = (SITE / page).read_text(encoding="utf-8")
    assert "_images/" in text
    notebooks = [link for link in Links(page).links if link.endswith(".ipynb")]
    assert len(notebooks) == 1
    notebook = json.loads((SITE / page).parent.joinpath(notebooks[0]).read_text(encoding="utf-8"))
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any("import jalax" in "".join(source) for source in code)
    script = (SITE.parents[1] / page).with_suffix(".py").read_text(encoding="utf-8")
    assert len(code) == script.count("\n# %%\n")
