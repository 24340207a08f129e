"""The report and a notebook cell in a real browser. Run with `make test-browser`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chromium
import jalax

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="Chromium is not installed (apt-get install chromium)"
    ),
]
pytest.importorskip("tornado", reason="tornado, which comes with ipykernel, talks to the browser")

# Wider than the window, by how much the page scrolls sideways.
OVERFLOW = "document.scrollingElement.scrollWidth - window.innerWidth"
COUNT = "document.querySelectorAll({!r}).length"
WIDEST = """Math.max(...[...document.querySelectorAll("body *")]
    .filter(e => !e.closest(".jalax-table, pre, svg"))
    .map(e => e.getBoundingClientRect().right))"""


@pytest.fixture(scope="module")
def port():
    with chromium.browser() as port:
        yield port


def log_joint(theta, x, data):
    return -0.5 * jnp.sum((x - theta["a very long name of a parameter <b>"]) ** 2) - 0.5 * jnp.sum(
        (data - x) ** 2
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A fit with errors, evidence and names that are long and have to be escaped."""
    y = np.random.default_rng(0).normal(size=30)
    model = jalax.Model(log_joint, latent=jnp.zeros(30), data=y)
    start = {"a very long name of a parameter <b>": 0.0}
    algorithm = jalax.JALAEM(step_size=0.05)
    fit = {"key": jax.random.key(0), "num_particles": 50, "num_steps": 30}
    result = jalax.fit(model, start, algorithm=algorithm, **fit)
    result.standard_errors()
    assert result.evidence is not None
    path = tmp_path_factory.mktemp("report") / "fit.html"
    result.report(path)
    return path


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_report(port, report, width, height, colours):
    expressions = [
        OVERFLOW,
        WIDEST,
        COUNT.format(".jalax-table table"),
        COUNT.format("figure > svg"),
        COUNT.format(".checks li"),
        "[...document.querySelectorAll('tbody th')].map(e => e.textContent)",
        "[...document.querySelectorAll('figure > svg')].map(e => e.getBoundingClientRect().height)",
        "getComputedStyle(document.body).backgroundColor",
        "window.matchMedia('(max-width: 390px)').matches",
    ]
    seen = chromium.visit(
        port,
        report.as_uri(),
        width=width,
        height=height,
        colours=colours,
        expressions=expressions,
    )
    assert seen.errors == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [report.as_uri()]
    overflow, widest, tables, figures, checks, names, heights, ground, phone = seen.values
    assert overflow <= 0
    assert widest <= width
    assert tables == 2
    assert figures == 8
    assert checks >= 5
    assert names[0] == "a very long name of a parameter <b>"
    assert min(heights) > 150
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 22)"}[colours]
    assert phone == (width == 390)


def test_a_wide_table_scrolls_in_its_own_box(port, report):
    box = "document.querySelector('.jalax-table')"
    seen = chromium.visit(
        port,
        report.as_uri(),
        width=390,
        height=844,
        expressions=[f"{box}.scrollWidth - {box}.clientWidth", f"{box}.clientWidth"],
    )
    hidden, shown = seen.values
    assert hidden > 50
    assert 300 < shown <= 390


def test_the_browser_would_see_what_is_wrong(port, tmp_path):
    """The tests above can fail: a page that scrolls, asks the network and throws."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta name=viewport content='width=device-width'>"
        "<div style='width: 700px'>wide</div><img src='http://127.0.0.1:9/x.png'>"
        "<script>throw new Error('broken')</script>"
    )
    seen = chromium.visit(
        port, page.as_uri(), width=390, height=844, expressions=[OVERFLOW, WIDEST]
    )
    assert seen.requests == [page.as_uri(), "http://127.0.0.1:9/x.png"]
    assert any("broken" in error for error in seen.errors)
    assert any("ERR" in error for error in seen.errors)
    assert seen.values[1] > 390
