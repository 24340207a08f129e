"""Make the pictures in docs/images of a report, a notebook and this site, after `make docs`.

`python docs/screenshots.py` needs Chromium, and the packages nbclient, nbconvert and ipykernel.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SITE = ROOT / "docs" / "_build" / "html"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import chromium  # noqa: E402

DATA = """import jax, jax.numpy as jnp, jalax
from jax.scipy.stats import norm

effect = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # of a treatment at eight sites
error = jnp.array([5.0, 3.0, 6.0, 4.0, 3.0, 4.0, 3.0, 6.0])

def log_joint(theta, x, data):  # x: the true effects, standardised
    effects = theta["mean"] + theta["sd"] * x
    return norm.logpdf(x).sum() + norm.logpdf(data["y"], effects, data["error"]).sum()

model = jalax.Model(log_joint, latent=jnp.zeros(8), data={"y": effect, "error": error},
                    constrain=lambda t: {"mean": t["mean"], "sd": jnp.exp(t["log_sd"])})"""
FIT = """result = jalax.fit(model, {"mean": 0.0, "log_sd": 2.0}, key=jax.random.key(0))
result"""
PLOT = "result.plot();"


def notebook_page(cells: list[str]) -> str:
    """The cells run in a kernel, and the notebook as HTML that asks for nothing from elsewhere."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    os.environ["PYTHONPATH"] = str(ROOT / "src")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    NotebookClient(notebook, timeout=300, coalesce_streams=True).execute()
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
    return exporter.from_notebook_node(notebook)[0]


def save(name: str, picture: bytes) -> None:
    (IMAGES / name).write_bytes(picture)
    print(f"{name}: {len(picture) / 1000:.0f} kB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium.browser() as port:
        report, notebook = Path(folder) / "report.html", Path(folder) / "notebook.html"
        cells = [DATA, FIT, PLOT, f"result.report({str(report)!r})"]
        notebook.write_text(notebook_page(cells), encoding="utf-8")
        for name, page, width, height, colours in (
            ("report-desktop.png", report, 1100, 1500, "light"),
            ("report-phone.png", report, 390, 1900, "light"),
            ("notebook.png", notebook, 1000, 1255, "light"),
            ("site-front.png", SITE / "index.html", 1280, 1700, "light"),
            ("site-gallery.png", SITE / "gallery" / "index.html", 1280, 1500, "light"),
            ("site-example.png", SITE / "gallery" / "cbpp.html", 1280, 2200, "dark"),
            ("site-phone.png", SITE / "quickstart.html", 390, 1500, "light"),
        ):
            options = {"width": width, "height": height, "colours": colours}
            save(name, chromium.visit(port, page.as_uri(), **options).screenshot)


if __name__ == "__main__":
    main()
