"""A fit as one HTML page that loads nothing from elsewhere."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from jalax._evidence.record import FitRecord
from jalax._export import plots
from jalax._export.checks import checks
from jalax._export.fit_summary import particles
from jalax._export.latents import chosen_latents
from jalax._export.posterior import Latents
from jalax._export.provenance import algorithm_text, code_to_reproduce, theta_text
from jalax._export.tables import Summary, html_table
from jalax._export.versions import versions
from jalax._particles import trees

Panels = dict[str, Callable[[Any], None]]  # a title, and what draws on an axis
MOST_NUMBERS = 50_000_000  # of particles: with more, the table of the latents would take minutes


def write_report(
    result: FitRecord,
    summary: Summary,
    path: str | os.PathLike,
    latents: Callable[[], Latents],
    more: Panels,
) -> None:
    """`FitResult.report`. Written beside the target and renamed: a reader sees all or nothing."""
    path = Path(path)
    if path.suffix.lower() != ".html":
        raise ValueError(f"a report is an HTML page, named something.html; got {path.name!r}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {str(path.parent)!r}: make it first.")
    page = html_page(result, summary, latents, more)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # A name may hold what is no character, such as half of a surrogate pair.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files for one user only
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)  # there is no way to read it but to set it
    os.umask(mask)
    return mask


def html_page(
    result: FitRecord, summary: Summary, latents: Callable[[], Latents], more: Panels
) -> str:
    sections = {
        "What was fitted": _definitions(_facts(result)),
        "Estimates": "".join(map(html_table, summary.tables)),
        "Checks": _checks(result),
        "Latents": _latents(result, latents),
        "Figures": _figures(result, more),
        "Reproduce": f"<pre>{escape(code_to_reproduce(result))}</pre>{_definitions(versions())}",
    }
    body = "\n".join(
        f"<section><h2>{title}</h2>{content}</section>" for title, content in sections.items()
    )
    title = f"jalax: {escape(result.algorithm)}, {escape(str(result.status))}"
    return PAGE.format(title=title, style=STYLE, heading=escape(summary.heading[0]), body=body)


def _facts(result: FitRecord) -> dict[str, str]:
    origin = result.origin
    unknown = "not known: this result was read from a file"
    return {
        "model": unknown if origin is None else repr(origin.model),
        "algorithm": result.algorithm if origin is None else algorithm_text(origin.algorithm),
        "start": unknown if origin is None else _start(origin),
        "theta at the start": unknown if origin is None else theta_text(origin.theta_0),
        "particles": particles(result),
        "steps": str(result.num_steps),
        "seconds": f"{result.seconds:.1f}, compilation included",
        "status": f"{result.status}: {result.message}",
    }


def _start(origin: Any) -> str:
    if origin.start is None:
        return "went on from a state"
    return getattr(origin.start, "former_name", type(origin.start).__name__)


def _definitions(rows: dict[str, str]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows.items()
    )
    return f"<dl>{items}</dl>"


def _checks(result: FitRecord) -> str:
    words = {True: "fine", False: "look", None: "note"}
    items = "".join(
        f'<li class="{words[check.passed]}"><b>{words[check.passed]}</b>'
        f"<span>{escape(check.text)}</span></li>"
        for check in checks(result)
    )
    return f'<ul class="checks">{items}</ul>'


def _latents(result: FitRecord, latents: Callable[[], Latents]) -> str:
    if trees.size(result.particles) > MOST_NUMBERS:
        return "<p>There are too many for a page: <code>result.latents()</code>.</p>"
    shown = latents().summary()
    notes = "".join(f"<p>{escape(note.strip())}</p>" for note in shown.notes)
    return "".join(map(html_table, shown.tables)) + notes


def _figures(result: FitRecord, more: Panels) -> str:
    drawn: list[tuple[str, Callable[[Any], None]]] = []
    if len(result.history.get("ess", ())):
        for title, draw in plots.panels(result).items():
            drawn.append((title, partial(draw, result=result)))
    else:
        return "<p>There are no steps to show.</p>"
    for latent in chosen_latents(result, None, 4):
        title = f"posterior density of {latent.name}"
        drawn.append((title, partial(plots.posterior_density, latent=latent)))
    drawn += more.items()
    figures = "\n".join(
        f"<figure>{svg(draw, title, i)}<figcaption>{escape(title)}</figcaption></figure>"
        for i, (title, draw) in enumerate(drawn)
    )
    return f'<div class="figures">{figures}</div>'


def svg(draw: Callable[[Any], None], title: str, number: int) -> str:
    """One figure as SVG to stand inside a page, with identifiers of its own."""
    import matplotlib.style
    from matplotlib.figure import Figure  # without pyplot: no window, no current figure

    # Text stays text: it can be read aloud and searched, and follows the page.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "jalax", "font.size": 11}
    with matplotlib.style.context(["default", settings]):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axis = figure.subplots()
        axis.set_facecolor("none")
        draw(axis)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' width="[^"]*pt"', "", re.sub(r' height="[^"]*pt"', "", text, count=1), count=1)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1f{number}-", text)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    return text.replace("<svg", head, 1)


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="jalax">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>jalax fit</h1>
<p>{heading}</p>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { --ink: #1a1a1a; --paper: #ffffff; --soft: #5a5a5a; --line: #d5d5d5; --box: #f5f5f3;
  --fine: #00664b; --look: #a84300; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --soft: #a8a8a8; --line: #3a3a3a; --box: #212121;
    --fine: #4fd1a5; --look: #ff9a5c; }
  figure svg { filter: invert(1) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
.jalax-table { overflow-x: auto; margin: 0.5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.8rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child { padding-left: 0; }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.checks { list-style: none; padding: 0; }
.checks li { display: flex; gap: 0.8rem; padding: 0.25rem 0; }
.checks b { flex: 0 0 2.6rem; color: var(--soft); }
.checks span { min-width: 0; overflow-wrap: anywhere; }
.checks .fine b { color: var(--fine); }
.checks .look b { color: var(--look); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1rem; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 0.9rem; overflow-wrap: anywhere; }
pre { background: var(--box); padding: 0.8rem; overflow-x: auto; font-size: 0.9rem; }
@media (max-width: 30rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dd { margin-bottom: 0.5rem; } }
@media print { section { break-inside: avoid-page; } }
"""
