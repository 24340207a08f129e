"""`gallery-cards`: a link, the first picture and the first paragraph of each example named."""

from __future__ import annotations

from pathlib import Path

import jupytext
from docutils import nodes
from docutils.parsers.rst import Directive

NOTEBOOKS = "_build/notebooks"


class cards(nodes.General, nodes.Element):
    """Stands for the cards until the examples have been read."""


class GalleryCards(Directive):
    has_content = True

    def run(self):
        return [cards(documents=[line.strip() for line in self.content if line.strip()])]


def card(app, document: str, here: str) -> nodes.Element:
    """A paragraph with one link around everything."""
    doctree = app.env.get_doctree(document)
    title = next(doctree.findall(nodes.title)).astext()
    first = next(doctree.findall(nodes.paragraph)).astext()
    address = app.builder.get_relative_uri(here, document)
    link = nodes.reference("", "", internal=True, refuri=address)
    picture = next(doctree.findall(nodes.image), None)
    if picture is None:
        raise ValueError(f"{document} has no picture for its card in the gallery.")
    image = picture.deepcopy()
    image["alt"] = title
    link += image
    link += nodes.strong(title, title)
    link += nodes.inline(first, first)
    return nodes.paragraph("", "", link)


def fill(app, doctree, here) -> None:
    for place in list(doctree.findall(cards)):
        box = nodes.container(classes=["gallery-cards"])
        box += [card(app, document, here) for document in place["documents"]]
        place.replace_self(box)


def write_notebooks(app) -> None:
    """Every script as a notebook, to be downloaded; written again only if it has changed."""
    folder = Path(app.srcdir) / NOTEBOOKS
    folder.mkdir(parents=True, exist_ok=True)
    for script in (Path(app.srcdir) / "gallery").glob("*.py"):
        notebook = jupytext.read(script)
        for i, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{i}"  # not a random one
        target, text = folder / f"{script.stem}.ipynb", jupytext.writes(notebook, fmt="ipynb")
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def offer_downloads(app, docname, content) -> None:
    """A last cell in every example: itself as a script and as a notebook."""
    folder, _, name = docname.rpartition("/")
    if folder == "gallery" and name != "index":
        content[0] += (
            "\n# %% [markdown]\n# ---\n"
            f"# This page as a {{download}}`Python script <{name}.py>`, or as a\n"
            f"# {{download}}`notebook </{NOTEBOOKS}/{name}.ipynb>`.\n"
        )


def setup(app):
    app.add_node(cards)
    app.connect("builder-inited", write_notebooks)
    app.connect("source-read", offer_downloads)
    app.add_directive("gallery-cards", GalleryCards)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
