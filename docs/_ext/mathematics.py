"""Formulas by KaTeX, whose files lie in _static/katex: nothing is fetched from elsewhere."""

from __future__ import annotations

from docutils import nodes


def visit_inline(writer, node) -> None:
    start = writer.starttag(node, "span", "", CLASS="math notranslate nohighlight")
    writer.body.append(f"{start}{writer.encode(node.astext())}</span>")
    raise nodes.SkipNode


def visit_block(writer, node) -> None:
    start = writer.starttag(node, "div", CLASS="math notranslate nohighlight")
    writer.body.append(f"{start}{writer.encode(node.astext())}</div>\n")
    raise nodes.SkipNode


def add_files(app, pagename, templatename, context, doctree) -> None:
    """Only pages with a formula load the 300 kB."""
    if doctree is not None and app.env.get_domain("math").has_equations(pagename):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js")
        app.add_js_file("formulas.js")


def setup(app):
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "katex"
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
