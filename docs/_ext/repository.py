"""The repository's own files on the site: pages beside docs/, sources, and links to both.

- Markdown outside docs/ (`PAGES`: changelog, results of benchmarks, ...) is copied to
  docs/repository, which Git ignores, and read from there.
- A relative link in any page leads to such a copy, to a page of docs/, or to a coloured source.
- {repo}`tests/project/test_readme.py::test_ten_lines` is such a link too; a file or function that
  is not there is a warning, and so fails the build.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

ROOT = Path(__file__).resolve().parents[2]
COPIES = "repository"
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/*.md", "reliability/*.md")
PAGES += ("experiments/README.md", "experiments/shift.md")
PICTURES = ("experiments/results/*/*.png",)
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", ".json": "json"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#|/)([^)#\s]+)(#[^)]*)?\)")
log = logging.getLogger(__name__)


def copy_pages(app) -> None:
    """Only what has changed, so that Sphinx reads only that again."""
    for pattern in PAGES + PICTURES:
        for source in ROOT.glob(pattern):
            path = source.relative_to(ROOT)
            content = source.read_bytes()
            if path.suffix == ".md" and not content.startswith(b"# "):  # a bare table
                content = f"# {path.with_suffix('').as_posix()}\n\n".encode() + content
            target = Path(app.srcdir) / COPIES / path
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def original(docname: str) -> str:
    """Where a page lies in the repository."""
    copied = docname.startswith(f"{COPIES}/")
    return docname.removeprefix(f"{COPIES}/") if copied else f"docs/{docname}"


def rewrite_links(app, docname: str, content: list[str]) -> None:
    folder = posixpath.dirname(original(docname))
    pages = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}

    def rewritten(found: re.Match) -> str:
        picture, text, link, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, link))
        if picture or path.startswith("../") or not (ROOT / path).exists():
            return found[0]  # as it is: Sphinx finds it, or complains
        if path in pages:
            return f"[{text}](/{COPIES}/{path}{anchor or ''})"
        if path == "README.md":
            return f"[{text}](/index.md)"
        if path.startswith("docs/") and path.endswith((".md", ".py")) and "_ext" not in path:
            return f"[{text}](/{path.removeprefix('docs/')}{anchor or ''})"
        return f"{{repo}}`{text.replace('`', '')} <{path}>`"

    content[0] = LINK.sub(rewritten, content[0])


def lines_of(path: str) -> list[str]:
    return (ROOT / path).read_text(encoding="utf-8").splitlines()


def defined_at(path: str, name: str) -> int | None:
    """The line, from 0, of a function or class."""
    wanted = re.compile(rf"\s*(def|class) {re.escape(name)}\b")
    return next((i for i, line in enumerate(lines_of(path)) if wanted.match(line)), None)


class Repo(SphinxRole):
    def run(self):
        explicit = re.fullmatch(r"(.+?) <([^<>]+)>", self.text, flags=re.DOTALL)
        text, target = explicit.groups() if explicit else (self.text, self.text)
        path, _, test = target.partition("::")
        name = test.split("::")[-1].split("[")[0]  # of Class::method[case] the method
        literal = nodes.inline(text, text) if explicit else nodes.literal(text, text)
        if not (ROOT / path).exists() or (name and defined_at(path, name) is None):
            where = self.get_location()
            log.warning("there is no %s in the repository", target, location=where)
            return [literal], []
        if not (ROOT / path).is_file():
            return [nodes.literal(path, path)], []
        self.env.metadata[self.env.docname].setdefault("sources", set()).add(path)
        up = "../" * self.env.docname.count("/")
        anchor = f"#{name}" if name else ""
        address = f"{up}source/{path}.html{anchor}"
        return [nodes.reference("", "", literal, internal=True, refuri=address)], []


def source_pages(app):
    """One page a source that is linked to, with an anchor at each function and class."""
    paths = set().union(*(meta.get("sources", ()) for meta in app.env.metadata.values()))
    for path in sorted(paths):
        language = LANGUAGES.get(os.path.splitext(path)[1], "text")
        code = "\n".join(lines_of(path)) + "\n"
        rows = app.builder.highlighter.highlight_block(code, language).splitlines()
        for i, line in enumerate(lines_of(path)):
            if name := re.match(r"\s*(?:def|class) (\w+)", line):
                start = rows[i].find("<pre>") + 5 if i == 0 else 0
                rows[i] = f'{rows[i][:start]}<span id="{name[1]}"></span>{rows[i][start:]}'
        body = f"<h1><code>{path}</code></h1>" + "\n".join(rows)
        yield f"source/{path}", {"title": path, "body": body}, "page.html"


def setup(app):
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", rewrite_links)
    app.connect("html-collect-pages", source_pages)
    app.add_role("repo", Repo())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
