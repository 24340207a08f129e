"""Tables, figures, ArviZ and the report: what they show are the numbers of the result."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._evidence.uncertainty import Uncertainty
from jalax._export import tables
from jalax._export.tables import MAX_ROWS, Summary, Table

Y = np.array([0.5, 1.5, 4.0, 2.0, -1.0])
KEY = jax.random.key(0)


def prior(key, theta, data):
    return theta + jax.random.normal(key, (5,))


def fit(model, theta=0.0, algorithm=None, **changes):
    algorithm = jalax.JALAEM(step_size=0.05) if algorithm is None else algorithm
    arguments = {"key": KEY, "num_particles": 50, "num_steps": 30, **changes}
    return jalax.fit(model, theta, algorithm=algorithm, **arguments)


@pytest.fixture(scope="module")
def result():
    return fit(jalax.models.hierarchical_normal(Y), start=jalax.FromSampler(prior))


@pytest.fixture(scope="module")
def grouped():
    rng = np.random.default_rng(1)
    labels = np.repeat(["b & b", "a", "<i>"], 4)
    model = jalax.models.linear_mixed(rng.normal(size=12), np.ones((12, 1)), labels)
    start = jalax.Given(rng.normal(size=(3, 20, 1)))
    return fit(model, model.theta, start=start, num_particles=None, num_steps=5)


@pytest.fixture(scope="module")
def pgd():
    start = jalax.Given(np.random.default_rng(0).normal(1.0, 1.0, size=(50, 5)))
    algorithm = jalax.PGD(step_size=0.05)
    model = jalax.models.hierarchical_normal(Y)
    return fit(model, algorithm=algorithm, start=start, num_particles=None)


def with_errors(result, names=None):
    """Two numbers of theta with known errors: 1 +- 0.5 and 100 +- 10, no others computed."""
    names = ("a", "b") if names is None else names
    theta = dict(zip(names, (jnp.array(1.0), jnp.array(100.0)), strict=True))
    known = Uncertainty(
        tuple(names), np.diag([0.25, 100.0]), np.diag([0.01, 1.0]), 7.0, np.zeros((0, 2)), np.eye(2)
    )
    rows = jax.tree.map(lambda leaf: np.linspace(0, float(leaf), 30), theta)
    return dataclasses.replace(
        result,
        theta=theta,
        free=theta,
        history={**result.history, "theta": rows},
        saved_uncertainty=known,
        origin=None,
    )


@pytest.fixture(autouse=True)
def _agg():
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


# ---------------------------------------------------------------- tables


def test_text_is_aligned_and_numbers_are_formatted():
    numbers = Table("Effects", ("estimate", "p"), [("one", (1.5, "<0.1")), ("three", (np.nan, 12))])
    facts = Table("", ("",), [("a longer name", ("text",))])
    assert Summary.of(["top"], [numbers, facts], ["below"]).splitlines() == [
        "top",
        "Effects",
        "                 estimate     p",
        "  one                 1.5  <0.1",
        "  three                 -    12",
        "  a longer name  text",
        "below",
    ]


def test_a_row_must_have_a_cell_for_each_column():
    with pytest.raises(ValueError, match="row 'a' has 1 cells for 2 columns"):
        Table("", ("x", "y"), [("a", (1.0,))])


def test_long_tables_say_how_many_are_left_out():
    rows = [(f"b{i}", (float(i),)) for i in range(MAX_ROWS + 12)]
    summary = Summary.of([], [Table("", ("estimate",), rows)])
    assert "... and 12 more" in summary
    assert "... and 12 more" in summary._repr_html_()
    assert f"b{MAX_ROWS}" not in summary
    assert len(summary.to_frame()) == MAX_ROWS + 12


def test_a_summary_is_a_string_and_survives_copies():
    summary = Summary.of(["top"], [Table("", ("x",), [("a", (1.0,))])])
    assert isinstance(summary, str)
    assert "top" in summary
    for other in (copy.deepcopy(summary), pickle.loads(pickle.dumps(summary))):
        assert other == summary
        assert other._repr_html_() == summary._repr_html_()
    assert repr(summary) == str(summary)


def test_html_is_well_formed_and_escaped():
    evil = "<script>alert('x')</script> & \"co\""
    table = Table(evil, ("", evil), [(evil, (evil, 1.0))])
    html = Summary.of([evil], [table], [evil])._repr_html_()
    assert "<script>" not in html
    tree = ElementTree.fromstring(html)
    texts = [part for part in tree.itertext() if part.strip()]
    assert texts.count(evil) == 6
    assert len(tree.findall(".//table/tbody/tr/td")) == 2


def test_rich_shows_the_same_cells():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    console.print(Summary.of(["[red]top"], [Table("", ("x",), [("[bold]name", (0.12345678,))])]))
    printed = console.file.getvalue()
    for part in ("[red]top", "[bold]name", "0.12346"):
        assert part in printed


def test_frame_of_a_fit_with_errors(result):
    frame = with_errors(result).summary().to_frame()
    assert list(frame.index) == ["a", "b"]
    expected = {
        "estimate": [1.0, 100.0],
        "std_error": [0.5, 10.0],
        "simulation_error": [0.1, 1.0],
        "lower": [1 - 1.959964 * 0.5, 100 - 19.59964],
        "upper": [1 + 1.959964 * 0.5, 100 + 19.59964],
    }
    assert list(frame.columns) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(frame[name], values, rtol=1e-5)


def test_a_summary_computes_nothing(result):
    one = dataclasses.replace(result)
    frame = one.summary().to_frame()
    assert np.isnan(frame["std_error"]).all()
    assert frame.loc["theta", "estimate"] == pytest.approx(float(result.theta))
    assert not {"evidence", "uncertainty"} & set(vars(one))


def test_a_notebook_shows_the_table(result):
    html = with_errors(result, ("a<b>", "c"))._repr_html_()
    tree = ElementTree.fromstring(html)
    cells = [cell.text for cell in tree.findall(".//table")[0].iter("td")]
    assert cells == ["1", "0.5", "0.1", "0.020018", "1.98", "100", "10", "1", "80.4", "119.6"]
    assert tree.find(".//table/tbody/tr/th").text == "a<b>"


def row(name, **changes):
    plain = {
        "log_evidence": -10.0,
        "error": 0.1,
        "difference": 0.0,
        "difference_error": 0.0,
        "num_theta": 2,
        "ess": 0.9,
        "k_hat": 0.2,
        "probability": None,
        "warnings": (),
    }
    return jalax._fit.compare.Row(name=name, **plain | changes)


def comparison():
    worse = {"log_evidence": -13.0, "difference": -3.0, "difference_error": 0.2}
    rows = (row("a<b>"), row("_c$d$", **worse, warnings=("k-hat is large",)))
    return jalax.Comparison(rows, "plug-in", "A note.")


def test_comparison_table():
    found = comparison()
    assert "a<b>" not in found._repr_html_()
    tree = ElementTree.fromstring(found._repr_html_())
    cells = [cell.text for cell in tree.findall(".//tbody/tr")[1].iter("td")]
    assert cells == ["-13.00 +- 0.10", "-3.00 +- 0.20", "2", "0.90", "0.20"]
    assert "_c$d$: not to be trusted: k-hat is large" in str(found)
    assert found.summary().to_frame().loc["_c$d$", "difference"] == -3.0
    probable = dataclasses.replace(found, rows=(row("x", probability=0.75),))
    assert "0.750" in str(probable)
    assert "probability" not in str(found)


def test_comparison_plot():
    ax = comparison().plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a<b>", r" _c\$d\$"]
    trusted, doubted = ax.containers
    np.testing.assert_allclose(trusted.lines[0].get_xydata()[:, 0], [0.0])
    np.testing.assert_allclose(doubted.lines[0].get_xydata()[:, 0], [-3.0])
    (bar,) = doubted.lines[2][0].get_segments()
    np.testing.assert_allclose(bar[:, 0], [-3.4, -2.6])
    ax.figure.canvas.draw()


# ---------------------------------------------------------------- plots


def line(ax, label):
    (found,) = [one for one in ax.get_lines() if one.get_label() == label]
    return found


def test_plot_shows_the_history(result):
    axes = result.plot(prior=prior)
    assert len(axes) == 4
    steps = np.arange(1, 31)
    np.testing.assert_array_equal(line(axes[0], "theta").get_xdata(), steps)
    np.testing.assert_array_equal(line(axes[0], "theta").get_ydata(), result.history["theta"])
    np.testing.assert_allclose(
        line(axes[1], "along the path").get_ydata(), result.history["log_evidence"], rtol=1e-6
    )
    np.testing.assert_allclose(line(axes[2], "ESS / N").get_ydata(), result.history["ess"] / 50)
    marked = line(axes[2], "resampled").get_xdata()
    np.testing.assert_array_equal(marked, steps[result.history["resampled"]])
    assert len(marked) > 0
    means = line(axes[3], "posterior: mean, 50%, 90%").get_xdata()
    np.testing.assert_allclose(means, result.expectation(lambda x: x), rtol=1e-4)
    before = line(axes[3], "prior").get_xdata()
    np.testing.assert_allclose(before, float(result.theta), atol=5 / np.sqrt(2000))
    axes[0].figure.canvas.draw()


def test_the_end_of_theta_has_its_interval(result):
    axes = with_errors(result).plot()
    bars = [bar.lines[2][0].get_segments()[0][:, 1] for bar in axes[0].containers]
    np.testing.assert_allclose(bars, [[0.020018, 1.979982], [80.40036, 119.59964]], rtol=1e-5)


def test_lines_differ_in_more_than_colour(result):
    names = tuple("abcdefgh")
    theta = dict.fromkeys(names, jnp.array(1.0))
    rows = dict.fromkeys(names, np.ones(30))
    one = dataclasses.replace(result, theta=theta, history={**result.history, "theta": rows})
    lines = one.plot()[0].get_lines()
    looks = {(x.get_linestyle(), x.get_marker()) for x in lines}
    assert len(looks) == len({x.get_color() for x in lines}) == 8


def test_an_algorithm_without_evidence_has_no_panel_of_it(pgd):
    assert [ax.get_title(loc="left") for ax in pgd.plot()] == [
        "theta",
        "effective sample size",
        "posterior",
    ]


def test_plots_of_groups_name_them(grouped):
    labelled = dataclasses.replace(grouped)
    labelled.origin.model.groups = np.array(["a", "b & b", "<i>"])
    try:
        ax = labelled.plot()[3]
        shown = [label.get_text() for label in ax.get_yticklabels()]
        assert shown == ["x[a, 0]", "x[b & b, 0]", "x[<i>, 0]"]
    finally:
        del labelled.origin.model.groups
    means = line(grouped.plot()[3], "posterior: mean, 50%, 90%").get_xdata()
    np.testing.assert_allclose(means, grouped.expectation(lambda x: x[0]), rtol=1e-4)


def test_a_loaded_and_a_continued_fit_plot_too(result, tmp_path):
    result.save(tmp_path / "result.npz")
    loaded = jalax.load(tmp_path / "result.npz")
    np.testing.assert_array_equal(
        line(loaded.plot()[0], "theta").get_ydata(), result.history["theta"]
    )
    draws = np.random.default_rng(0).normal(7.0, 1.0, size=(100, 5))
    found = line(loaded.plot(prior=draws)[3], "prior").get_xdata()
    np.testing.assert_allclose(found, draws.mean(axis=0), rtol=1e-6)
    more = fit(jalax.models.hierarchical_normal(Y), state=result.state, num_particles=None)
    assert line(more.plot()[0], "theta").get_xdata()[0] == 31


def test_a_fit_of_one_step_plots_without_a_warning(result):
    first = jax.tree.map(lambda leaf: leaf[:1], result.history)
    first["log_evidence_error"] = np.zeros(1)
    axes = dataclasses.replace(result, history=first).plot()
    axes[0].figure.canvas.draw()
    assert line(axes[0], "theta").get_ydata() == result.history["theta"][0]


def test_given_axes_are_used_and_nothing_else_is_touched(result):
    import matplotlib
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    current = plt.figure()
    before = dict(matplotlib.rcParams)
    axes = Figure().subplots(2, 2)
    assert list(result.plot(ax=axes)) == list(axes.ravel())
    mine = Figure().subplots()
    assert list(result.plot_posterior(["x[1]"], ax=mine)) == [mine]
    other = Figure().subplots()
    assert comparison().plot(ax=other) is other
    assert plt.gcf() is current
    assert plt.get_fignums() == [current.number]
    assert not current.axes
    assert dict(matplotlib.rcParams) == before


def test_posterior_density(result):
    (ax,) = result.plot_posterior(["x[2]"], prior=prior)
    found = line(ax, "posterior")
    grid, density = found.get_data()
    mass = np.trapezoid(density, grid)
    mean = np.trapezoid(grid * density, grid)
    assert mass == pytest.approx(1.0, abs=0.01)
    assert mean == pytest.approx(float(result.expectation(lambda x: x[2])), abs=0.01)
    grid, density = line(ax, "prior").get_data()
    assert np.trapezoid(grid * density, grid) == pytest.approx(float(result.theta), abs=0.12)
    assert [ax.get_xlabel() for ax in result.plot_posterior()] == [f"x[{i}]" for i in range(4)]
    assert len(result.plot_posterior(["x"])) == 5


def test_one_particle_with_all_the_weight(result):
    log_weights = jnp.full(50, -jnp.inf).at[3].set(0.0)
    one = dataclasses.replace(result, log_weights=log_weights)
    (ax,) = one.plot_posterior(["x[0]"])
    grid, density = line(ax, "posterior").get_data()
    assert grid[np.argmax(density)] == pytest.approx(float(result.particles[3, 0]))


def test_names_are_no_formulas(result):
    one = with_errors(result, ("_hidden", "a$b$^"))
    axes = one.plot()
    axes[0].figure.canvas.draw()
    shown = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert shown == [" _hidden", r"a\$b\$^"]


# ---------------------------------------------------------------- ArviZ


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ArviZ says when it is imported
        return pytest.importorskip("arviz", exc_type=ImportError)


def test_groups_of_inference_data(result, arviz):
    data = result.to_arviz()
    assert set(data.groups()) == {
        *("posterior", "sample_stats", "weighted_posterior", "fit", "constant_data")
    }
    weighted = data.weighted_posterior
    np.testing.assert_array_equal(weighted["x"], result.particles)
    np.testing.assert_array_equal(weighted["log_weight"], result.log_weights)
    np.testing.assert_array_equal(data.constant_data["y"], np.float32(Y))
    path = data.fit
    np.testing.assert_array_equal(path["theta"][:, 0], result.history["theta"])
    np.testing.assert_array_equal(path["ess"], result.history["ess"])
    np.testing.assert_array_equal(path["resampled"], result.history["resampled"])
    assert path["parameter"].values.tolist() == ["theta"]
    assert path.attrs["status"] == "max_steps"


def test_draws_are_resampled_particles(result, arviz):
    data = result.to_arviz(jax.random.key(3), num_samples=400)
    draws, index = data.posterior["x"].values, data.sample_stats["particle"].values
    assert draws.shape == (1, 400, 5)
    np.testing.assert_array_equal(draws[0], np.asarray(result.particles)[index[0]])
    counts = np.bincount(index[0], minlength=50)
    assert np.all(np.abs(counts - 400 * np.asarray(result.weights)) <= 1.0)  # systematic
    assert not np.all(np.diff(index[0]) >= 0)  # and in random order
    model, theta = jalax.models.hierarchical_normal(Y), result.theta
    expected = [float(model.log_joint(theta, x, model.data)) for x in draws[0, :5]]
    np.testing.assert_allclose(data.sample_stats["lp"][0, :5], expected, rtol=1e-5)
    again = result.to_arviz(jax.random.key(3), num_samples=400)
    assert again.posterior.equals(data.posterior)
    assert result.to_arviz().posterior.sizes["draw"] == 50


def test_errors_of_theta_in_inference_data(result, arviz):
    data = with_errors(result).to_arviz()
    assert data.fit["std_error"].sel(parameter="b") == 10.0
    assert data.fit["estimate"].values.tolist() == [1.0, 100.0]
    assert data.fit["theta"].shape == (30, 2)


def test_groups_have_their_axis_and_labels(grouped, arviz):
    data = grouped.to_arviz(dims={"x": ["effect"]}, coords={"effect": ["intercept"]})
    assert data.posterior["x"].dims == ("chain", "draw", "group", "effect")
    index = data.sample_stats["particle"]
    assert index.dims == ("chain", "draw", "group")
    for group in range(3):
        np.testing.assert_array_equal(
            data.posterior["x"].values[0, :, group],
            np.asarray(grouped.particles)[group, index.values[0, :, group]],
        )
    np.testing.assert_array_equal(
        data.weighted_posterior["log_weight"].values.T, grouped.log_weights
    )
    assert data.constant_data["y"].dims[0] == "group"
    assert data.posterior["effect"].values.tolist() == ["intercept"]
    named = grouped.to_arviz(coords={"group": ["a", "b", "c"]})
    assert named.posterior["group"].values.tolist() == ["a", "b", "c"]
    assert named.constant_data["group"].values.tolist() == ["a", "b", "c"]


def test_netcdf_round_trip(grouped, arviz, tmp_path):
    data = grouped.to_arviz(coords={"group": ["b & b", "a", "<i>"]})
    data.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    again = arviz.from_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    assert set(again.groups()) == set(data.groups())
    for name in data.groups():
        assert again[name].equals(data[name]), name
        assert dict(again[name].attrs) == dict(data[name].attrs)
        for variable in data[name]:
            assert again[name][variable].dtype == data[name][variable].dtype


def test_arviz_opens_it_without_a_warning(result, grouped, arviz):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # ArviZ 0.23 with matplotlib 3.11 says this of any data.
        warnings.filterwarnings("ignore", "Passing a dict or None as alias_mapping")
        for one in (result, grouped):
            data = one.to_arviz(num_samples=200)
            axes = arviz.plot_trace(data)
            assert axes.shape == (1, 2)
            table = arviz.summary(data, kind="stats", round_to="none")
            draws = data.posterior["x"].values
            np.testing.assert_allclose(table["mean"], draws[0].mean(axis=0).ravel(), rtol=1e-4)
            arviz.summary(data)
            shown = arviz.plot_posterior(data)
            assert np.size(shown) >= draws[0, 0].size


def test_names_that_axes_have_are_changed(result, arviz):
    particles = {"draw": result.particles, "a/b": result.particles[:, 0]}
    one = dataclasses.replace(result, particles=particles, origin=None)
    data = one.to_arviz()
    assert set(data.posterior.data_vars) == {"draw_", "a_b"}
    assert "lp" not in data.sample_stats


# ---------------------------------------------------------------- report


def page_of(result, tmp_path):
    result.report(tmp_path / "fit.html")
    return (tmp_path / "fit.html").read_text(encoding="utf-8")


def test_report_is_one_page_with_everything(result, tmp_path):
    page = page_of(with_errors(result, ("<a>", "b$c$")), tmp_path)
    assert page.count("<svg") == page.count("</svg>") == 8
    assert "&lt;a&gt;" in page
    assert not re.search(r"<a>|<script|@import|<iframe|<img", page)
    assert re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href")) == []
    assert "119.6" in page
    assert "0.100 of its standard error" not in page  # it is 0.2: sqrt(0.01 / 0.25)
    assert "0.200 of its standard error" in page
    assert "read from a file" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    for figure in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(figure)


def test_report_says_how_it_was_made(result, pgd, tmp_path):
    page = page_of(result, tmp_path)
    assert "hierarchical_normal" in page or "HierarchicalNormal" in page
    assert "JALAEM(step_size=0.05" in page
    data = np.asarray(jax.random.key_data(jax.random.split(KEY)[1])).tolist()
    assert str(data) in page or "key = jax.random.key(0)" in page
    assert f"<dt>jax</dt><dd>{jax.__version__}</dd>" in page
    assert "num_steps=30" in page
    assert "No particle died" in page
    assert "PGD gives no evidence" in page_of(pgd, tmp_path)


def test_report_warns_in_words(result, tmp_path):
    history = {**result.history, "dead": np.ones(30, int)}
    evidence = jalax.Evidence(
        *(-5.0, 0.1, 7.0, "importance", 0.83, 0.02, 800, 8, 1, np.array([-5.0])),
        ("the tails are <missed>",),
    )
    log_weights = jnp.zeros(50).at[0].set(20.0)
    one = dataclasses.replace(
        result, history=history, saved_evidence=evidence, log_weights=log_weights
    )
    page = page_of(one, tmp_path)
    doubts = re.findall(r'<li class="look"><b>look</b><span>(.*?)</span>', page)
    assert any("k-hat" in text and "0.83" in text for text in doubts)
    assert any("The tails are &lt;missed&gt;." in text for text in doubts)
    assert any("effective sample size of 1.0 out of 50" in text for text in doubts)
    assert any("30 particles died" in text for text in doubts)


def test_report_of_a_fit_without_steps(result, tmp_path):
    empty = dataclasses.replace(
        result, history={}, status=jalax.Status.DIVERGED, message="it broke"
    )
    page = page_of(empty, tmp_path)
    assert "There are no steps to show" in page
    assert "It broke." in page


def test_a_report_is_written_whole_or_not_at_all(result, tmp_path, monkeypatch):
    target = tmp_path / "fit.html"
    target.write_text("before")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        result.report(target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["fit.html"]


def test_report_leaves_pyplot_alone(result, tmp_path):
    """It must work on a server, where a figure of pyplot's would stay open for ever."""
    result.save(tmp_path / "result.npz")
    script = f"""
import sys, jalax
jalax.load({str(tmp_path / "result.npz")!r}).report({str(tmp_path / "fit.html")!r})
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("p", "text"),  # print(signif(p, 4)) and format.pval(p, 4) in R
    [(0.80042, "0.8004"), (0.0012303, "0.00123"), (7.0724e-10, "7.072e-10"), (1e-17, "< 2.2e-16")],
)
def test_p_values_as_r_prints_them(p, text):
    assert tables.as_text(p, "p") == text


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.002, "-123.996"), (0.03, "-124.00"), (0.5, "-124.0"), (7e-6, "-123.9963"), (3.0, "-124.0")],
)
def test_digits_end_where_the_error_begins(error, text):
    assert tables.as_text(-123.9963, tables.decimals(error)) == text


def test_arviz_has_observations_drawn_again():
    """Given x: y ~ N(mu + 3 x, s), so that y - mu - 3 x has variance s^2, and s stays as it is."""

    def log_joint(mu, x, data):
        norm = jax.scipy.stats.norm.logpdf
        return norm(x) + norm(data["y"], mu + 3 * x, data["s"])

    def simulate(key, mu, x, data):
        key_x, key_y = jax.random.split(key)
        x = jax.random.normal(key_x) if x is None else x
        return data | {"y": mu + 3 * x + data["s"] * jax.random.normal(key_y)}

    y, s = jnp.linspace(-4.0, 4.0, 5), jnp.array([0.5, 1.0, 2.0, 1.0, 0.5])
    model = jalax.GroupedModel(log_joint, 0.0, {"y": y, "s": s}, simulate=simulate)
    quiet = jalax.callbacks.Callback()
    result = jalax.fit(model, 0.0, key=jax.random.key(0), progress=quiet)
    data = result.to_arviz(jax.random.key(1), num_samples=2000)
    assert list(data.posterior_predictive) == ["y"]
    left = data.posterior_predictive["y"] - 3 * data.posterior["x"] - float(result.theta)
    assert left.dims == ("chain", "draw", "group")
    z = left.values[0] / np.asarray(s)
    assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(2000)
    assert np.abs((z**2).mean(axis=0) - 1).max() < 4.5 * np.sqrt(2 / 2000)
