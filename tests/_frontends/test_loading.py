"""Mixed models in files: every number and table comes back, the model too, and no code is run."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import types
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri

import jalax
from jalax._frontends import mixed_files
from jalax._frontends.mixed_latents import mixed_latents
from jalax._runtime import files
from jalax._runtime.files import FileError
from jalax.models._design import parse
from jalax.models._mixed import build

KEY = jax.random.key(0)
FORMULA = "yield_ ~ 1 + (1|batch)"
DATA = jalax.datasets.dyestuff().to_frame()


@pytest.fixture(scope="module")
def result():
    """Five yields of each of six batches: all that is asked here has a closed form."""
    return jalax.mixed(FORMULA, DATA.assign(other=1.0), key=KEY)


@pytest.fixture(scope="module")
def path(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("fits") / "fit.npz"
    result.save(path)
    return path


@pytest.fixture(scope="module")
def loaded(path):
    return jalax.load(path)


def assert_same_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(x, y)


def assert_same(a, b):
    for name in ("theta", "free", "particles", "log_weights", "history"):
        assert_same_trees(getattr(a, name), getattr(b, name))
    assert a.summary() == b.summary()
    assert (a.aic, a.bic, a.log_evidence) == (b.aic, b.bic, b.log_evidence)
    assert a.coef() == b.coef()
    assert a.num_observations == b.num_observations == 30
    np.testing.assert_array_equal(a.vcov(), b.vcov())
    assert_same_trees(a.confidence_intervals(0.9), b.confidence_intervals(0.9))
    for name, frame in a.random_effects().items():
        pd.testing.assert_frame_equal(frame, b.random_effects()[name])
    pd.testing.assert_frame_equal(a.latents().to_frame(), b.latents().to_frame())


# ---------------------------------------------------------------- there and back


def test_a_mixed_fit_comes_back_whole(result, loaded):
    assert type(loaded) is jalax.results.MixedResult
    assert "Random effects" in loaded.summary()
    assert_same(loaded, result)


def test_the_model_is_built_again(result, loaded):
    before, now = result.origin.model, loaded.origin.model
    assert_same_trees(now.data, before.data)
    assert_same_trees(now.latent, before.latent)
    assert now.log_joint == before.log_joint
    assert now.outside.groups == before.outside.groups
    assert loaded.origin.algorithm == result.origin.algorithm
    for name in ("key", "fit_key"):
        a, b = (jax.random.key_data(getattr(one.origin, name)) for one in (loaded, result))
        np.testing.assert_array_equal(a, b)
    assert sorted(loaded.mixed.design.frame.columns) == [
        "batch",
        "yield_",
    ]  # `other` is none of the formula's


def test_an_evidence_that_was_not_saved_is_computed(result, path, tmp_path):
    bare = dataclasses.replace(result, saved_evidence=None, saved_uncertainty=None)
    bare.save(tmp_path / "bare.npz")
    loaded = jalax.load(tmp_path / "bare.npz")
    assert loaded.known_evidence is None
    assert "Random effects" not in loaded.summary()
    assert loaded.log_evidence == bare.log_evidence  # by the same key and model
    assert loaded.log_evidence == pytest.approx(result.log_evidence, abs=0.01)


def test_the_start_and_the_path_are_not_in_a_file(loaded):
    with pytest.raises(ValueError, match="replay needs the fit itself"):
        loaded.replay(KEY)
    with pytest.raises(ValueError, match="evidence_check needs the fit itself"):
        loaded.evidence_check(KEY)


def test_a_loaded_fit_can_be_compared_and_continued(result, loaded):
    table = jalax.compare({"a": loaded, "b": result})
    assert table.rows[0].difference == table.rows[1].difference == 0.0
    again = jalax.fit(loaded.origin.model, key=KEY, algorithm=loaded.origin.algorithm)
    assert_same_trees(again.theta, result.theta)


def test_a_loaded_fit_is_exported_without_lp(loaded, tmp_path):
    loaded.report(tmp_path / "fit.html")
    page = (tmp_path / "fit.html").read_text()
    assert "jax.random.key(0)" in page
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ArviZ says when it is imported
        exported = loaded.to_arviz()
    assert "lp" not in exported.sample_stats
    assert exported.observed_data["y"].shape == (6, 5)


def test_saving_it_again_changes_nothing(loaded, result, tmp_path):
    loaded.save(tmp_path / "again.npz")
    assert_same(jalax.load(tmp_path / "again.npz"), result)


def test_copies(result):
    for other in (copy.copy(result), copy.deepcopy(result)):
        assert type(other) is jalax.results.MixedResult
        assert_same(other, result)


CHILD = """
import json, pickle, sys
with open(sys.argv[1], "rb") as file:
    result = pickle.load(file)
print(json.dumps({"kind": type(result).__name__, "summary": str(result.summary()),
                  "groups": result.origin.model.num_groups}))
"""


def test_a_pickle_in_another_process(result, tmp_path):
    content = pickle.dumps(result)
    assert_same(pickle.loads(content), result)
    (tmp_path / "fit.pickle").write_bytes(content)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "fit.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {"kind": "MixedResult", "summary": result.summary(), "groups": 6}


# ---------------------------------------------------------------- the numbers


def closed_form(theta):
    """Posterior means, their common standard deviation and the shrinkage, of balanced batches."""
    between, within = float(theta["sd"]["batch"][0]) ** 2, float(theta["sigma"]) ** 2 / 5
    means = DATA.groupby("batch").yield_.mean() - float(theta["beta"][0])
    shrinkage = between / (between + within)
    return shrinkage * means, np.sqrt(within * shrinkage), shrinkage


def test_latents_are_random_effects_with_their_shrinkage(result):
    means, sd, shrinkage = closed_form(result.theta)
    found, num = result.latents(), result.log_weights.shape[-1]
    assert found.names == tuple(f"Intercept | batch[{label}]" for label in means.index)
    assert np.all(np.abs(found.mean - means) < found.mc_error)
    np.testing.assert_allclose(found.sd, sd, rtol=1 / np.sqrt(2 * num))
    np.testing.assert_allclose(found.shrinkage, shrinkage, atol=(1 - shrinkage) * 2 / np.sqrt(num))
    q = ndtri(0.975)
    np.testing.assert_allclose(found.high, means + q * sd, atol=0.2 * sd)
    frame = found.to_frame()
    assert list(frame.columns) == ["mean", "sd", "lower", "upper", "mc_error", "shrinkage"]
    effects = result.random_effects()["batch"]
    np.testing.assert_allclose(frame["mean"], effects["Intercept"], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(frame["sd"], effects["Intercept sd"], rtol=1e-2)
    assert "shrinkage" in repr(found)


def log_likelihood(t):
    """Of beta, sd and sigma: five yields of a batch are Gaussian with the same correlations."""
    y = np.array([rows.to_numpy() for _, rows in DATA.groupby("batch").yield_]) - t[0]
    within, between = t[2] ** 2, t[1] ** 2
    total = within + 5 * between
    square = np.sum((y - y.mean(axis=1, keepdims=True)) ** 2) / within
    square += 5 * np.sum(y.mean(axis=1) ** 2) / total
    return -0.5 * (30 * np.log(2 * np.pi) + 6 * (4 * np.log(within) + np.log(total)) + square)


def test_vcov_is_on_the_users_scale(result):
    """Against the inverse of the Hessian by differences, in the deviations themselves."""
    at = np.asarray(ravel_pytree(result.theta)[0], float)
    steps = np.diag(at * [1e-3, 1e-2, 1e-2])
    hessian = np.zeros((3, 3))
    for i, a in enumerate(steps):
        for j, b in enumerate(steps):
            four = [log_likelihood(at + s * a + t * b) * s * t for s in (-1, 1) for t in (-1, 1)]
            hessian[i, j] = sum(four) / (4 * a[i] * b[j])
    exact = np.linalg.inv(-hessian)
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    np.testing.assert_allclose(result.vcov() / scale, exact / scale, atol=0.02)
    errors = np.asarray(ravel_pytree(result.standard_errors())[0], float)
    np.testing.assert_allclose(np.sqrt(np.diag(result.vcov())), errors, rtol=1e-6)


def test_coef_has_the_fixed_effects(result):
    assert result.coef() == {"Intercept": float(result.theta["beta"][0])}


# ---------------------------------------------------------------- columns of every kind

ROWS = 24
RNG = np.random.default_rng(0)
LETTERS = RNG.permutation(np.tile(["b", "a", "ü", "10"], 6))
COLUMNS = {
    "float64": RNG.normal(size=ROWS),
    "float32": RNG.normal(size=ROWS).astype(np.float32),
    "int8": RNG.integers(0, 5, ROWS).astype(np.int8),
    "uint64": RNG.integers(0, 5, ROWS).astype(np.uint64),
    "bool": RNG.random(ROWS) < 0.5,
    "nullable": pd.array(RNG.integers(0, 5, ROWS), dtype="Int64"),
    "nullable bool": pd.array(RNG.random(ROWS) < 0.5, dtype="boolean"),
    "text": pd.Series(LETTERS),
    "objects": np.array(LETTERS, object),
    "string": pd.array(LETTERS, dtype="string"),
    "numbers as objects": np.array(RNG.integers(0, 4, ROWS).tolist(), object),
    "categories": pd.Categorical(LETTERS),
    "ordered": pd.Categorical(LETTERS, categories=["ü", "10", "b", "a"], ordered=True),
    "spare": pd.Categorical(LETTERS, categories=["ü", "z", "10", "b", "a"]),
    "numeric categories": pd.Categorical(RNG.integers(0, 4, ROWS), categories=[3, 0, 1, 2]),
}


def through_a_file(section, arrays, tmp_path):
    files.write(tmp_path / "columns.npz", "result", {"mixed": section}, arrays)
    header, arrays = files.read(tmp_path / "columns.npz", "result")
    return mixed_files._frame(header["mixed"]["columns"], arrays)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_as_it_was(name, tmp_path):
    frame, arrays = pd.DataFrame({"y": RNG.normal(size=ROWS), "c": COLUMNS[name]}), {}
    section = {"columns": mixed_files.pack_columns(frame, arrays)}
    found = through_a_file(section, arrays, tmp_path)
    pd.testing.assert_frame_equal(found, frame)
    if name in ("text", "ordered", "numeric categories"):
        designs = [build("y ~ 1 + (1|c)", one, "gaussian")[1].design for one in (found, frame)]
        assert designs[0].blocks[0].labels == designs[1].blocks[0].labels
        np.testing.assert_array_equal(designs[0].blocks[0].index, designs[1].blocks[0].index)


def nested_frame():
    """Two rooms in each of four schools, but three in the last."""
    school = np.array([*"aabbccddd"]).repeat(3)
    room = np.array([*"121212123"]).repeat(3)
    y = np.random.default_rng(2).normal(size=27)
    return pd.DataFrame({"y": y, "x": np.arange(27.0), "school": school, "room": room})


def test_latents_of_nested_factors_have_their_levels_and_no_padding():
    model, design = build("y ~ 1 + (1 + x|school/room)", nested_frame(), "gaussian")
    shapes = {name: leaf.shape for name, leaf in model.latent.items()}
    assert shapes == {"school": (1, 2), "school:room": (3, 2)}
    particles = {}
    for name, levels in design.levels.items():  # an effect has the number of its level, and a half
        values = levels[:, None, :, None] + np.array([0.0, 0.5])
        particles[name] = np.broadcast_to(values, (4, 8, *shapes[name]))
    names = ("school", "school:room")
    theta = {"sd": dict.fromkeys(names, np.ones(2)), "cor": dict.fromkeys(names, np.zeros(1))}
    weights = np.full((4, 8), 1 / 8)
    fitted = types.SimpleNamespace(weights=weights, particles=particles, theta=theta)
    found = mixed_latents(fitted, design, 0.95)
    assert len(found) == 2 * (4 + 9)
    assert found.names[:2] == ("Intercept | school[a]", "x | school[a]")
    assert found.names[-1] == "x | school:room[d:3]"
    schools = np.arange(4)
    np.testing.assert_array_equal(found.mean[:8], np.stack([schools, schools + 0.5], 1).ravel())
    rooms = np.unique(design.design.blocks[1].index)  # some labels have no row
    assert rooms.size == 9
    np.testing.assert_array_equal(found.mean[8:], np.stack([rooms, rooms + 0.5], axis=1).ravel())
    np.testing.assert_array_equal(found.shrinkage, 1.0)  # nothing varies


@pytest.mark.parametrize("formula", ["y ~ x + (1|school/room)", "y ~ 1 + (x||school) + (1|room)"])
def test_nested_and_crossed_models_are_built_again(formula):
    """Of groups with padding, and of one joint latent with its structure."""
    frame, arrays = nested_frame(), {}
    model, design = build(formula, frame, "gaussian")
    section = mixed_files.pack(design, arrays)
    lead = (model.num_groups, 5) if model.grouped else (5,)
    particles = jax.tree.map(lambda leaf: np.zeros((*lead, *leaf.shape)), model.latent)
    fields = {"labels": model.outside.labels, "theta": model.theta, "free": model.theta}
    fields |= {"particles": particles, "log_weights": np.zeros(lead)}
    again, other = mixed_files.unpack(section, arrays, fields)
    assert type(again) is type(model)
    assert_same_trees(again.data, model.data)
    assert_same_trees(other.levels, design.levels)
    if not model.grouped:
        np.testing.assert_array_equal(again.structure.rows, model.structure.rows)
        np.testing.assert_array_equal(again.structure.cols, model.structure.cols)


def test_only_the_columns_of_the_formula_are_kept():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(1, 2, (8, 7)), columns=list("abcdefg"), index=range(7, 15))
    frame["e"], frame["a"], frame["b"] = list("uuvvuuvv"), np.arange(8), np.full(8, 9)
    found = parse("p(a, b) ~ log(c) + (d||e) + offset(f)", frame).frame
    assert list(found.columns) == list("abcdef")
    assert found.index.tolist() == list(range(7, 15))
    frame.loc[7, "a"] = 5
    assert found.loc[7, "a"] == 0


def test_a_column_that_no_file_holds_is_said(result, tmp_path):
    """The numbers are saved all the same; a pickle has the model, too."""
    times = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(30), unit="D")
    design = result.mixed.design
    design = design._replace(frame=design.frame.assign(when=times))
    odd = dataclasses.replace(result, mixed=result.mixed._replace(design=design))
    with pytest.warns(UserWarning, match=r"column 'when' holds datetime64.*neither numbers, text"):
        odd.save(tmp_path / "fit.npz")
    loaded = jalax.load(tmp_path / "fit.npz")
    assert type(loaded) is jalax.FitResult
    assert_same_trees(loaded.theta, result.theta)
    with pytest.warns(UserWarning, match="column 'when'"):
        content = pickle.dumps(odd)
    other = pickle.loads(content)
    assert other.origin.model.num_groups == 6


# ---------------------------------------------------------------- older files, and broken ones


def changed(path, change):
    """A file beside it with another header or arrays, and the right checksum."""
    header, arrays = files.read(path, "result")
    change(header, arrays)
    for name in ("format", "kind", "bfloat16"):
        header.pop(name)
    other = path.parent / "changed.npz"
    files.write(other, "result", header, arrays)
    return other


def test_a_file_of_an_older_version_is_a_plain_result(path, result):
    def older(header, arrays):
        for name in ("mixed", "origin"):
            del header[name]

    loaded = jalax.load(changed(path, older))
    assert type(loaded) is jalax.FitResult
    assert_same_trees(loaded.particles, result.particles)
    assert loaded.log_evidence == result.log_evidence
    assert loaded.origin is None


def column(header, name):
    return next(one for one in header["mixed"]["columns"] if one["name"] == name)


def formula(text):
    def change(header, arrays):
        header["mixed"]["formula"] = text

    return change


def shorter(header, arrays):
    name = column(header, "yield_")["values"]["leaf"]
    arrays[name] = arrays[name][:-1]


def no_such_label(header, arrays):
    name = column(header, "batch")
    name["kind"], name["dtype"], name["texts"] = "text", "object", ["only one"]


def with_holes(header, arrays):
    arrays[column(header, "yield_")["values"]["leaf"]][3] = np.nan


def another_model(header, arrays):
    header["mixed"]["formula"] = "yield_ ~ 0 + (1|batch)"


def two_of_one_name(header, arrays):
    column(header, "yield_")["name"] = "batch"


def nested(header, arrays):
    one = column(header, "batch")
    one["categories"] = {"kind": "categories", "categories": one.get("categories")}
    one["kind"], one["ordered"] = "categories", False


def put(*keys, value):
    """Another value under these keys of the header."""

    def change(header, arrays):
        node = header
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value

    return change


BROKEN = {
    "code": (formula("yield_ ~ os.system('touch x') + (1|batch)"), "calls os.system"),
    "import": (formula("yield_ ~ __import__('os').system('touch x') + (1|batch)"), "cannot be"),
    "columns": (formula("yield_ ~ x + (1|batch)"), "there is no column 'x'"),
    "syntax": (formula("yield_ ~ + * (1|batch)"), "cannot be"),
    "huge": (formula("yield_ ~ {9**(9**9)} + (1|batch)"), "has a power"),
    "lengths": (shorter, "its columns differ in length: .*30.*29|.*29.*30"),
    "labels": (no_such_label, "it has no|refers to labels that it does not have"),
    "holes": (with_holes, "missing value"),
    "model": (another_model, "make another model than its numbers are of"),
    "names": (two_of_one_name, "or it is there twice"),
    "nested": (nested, "it has no|is of the kind"),
    "family": (put("mixed", "family", "name", value="nonsense"), "its family is"),
    "link": (put("mixed", "family", "link", value="none"), "its family is"),
    "no family": (put("mixed", "family", value=3), "its family is"),
    "no section": (put("mixed", value=[1]), "damaged"),
    "no columns": (put("mixed", "columns", value=3), "damaged"),
    "no column": (put("mixed", "columns", value=["a"]), "damaged"),
    "no origin": (put("origin", value=7), "damaged"),
    "key": (put("origin", "key", "data", value=[-1, 3]), "its key is"),
    "kind of key": (put("origin", "key", "impl", value="../x"), "damaged"),
    "start": (put("origin", "start", value=3), "its start is 3"),
    "algorithm": (put("origin", "algorithm", "text", value=None), "its algorithm's text is None"),
    "theta": (put("origin", "theta_0", value={"dict": {}}), "its theta at the start is not like"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_was_tampered_with_is_refused(path, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change, message = BROKEN[name]
    with pytest.raises(FileError, match=message) as caught:
        jalax.load(changed(path, change))
    assert "changed.npz" in str(caught.value)
    assert os.listdir(tmp_path) == []  # nothing was run


def test_a_file_cut_in_the_middle_is_refused(path, tmp_path):
    raw = path.read_bytes()
    (tmp_path / "half.npz").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FileError, match=r"half\.npz is truncated"):
        jalax.load(tmp_path / "half.npz")


def test_without_pandas_the_file_is_not_to_blame(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="formulas need pandas: pip install"):
        jalax.load(path)


def test_an_algorithm_with_options_of_the_users_is_known_by_its_text(result, tmp_path):
    algorithm = jalax.Scoring(num_measurements=9).canonical()
    origin = dataclasses.replace(result.origin, algorithm=algorithm)
    dataclasses.replace(result, origin=origin).save(tmp_path / "fit.npz")
    loaded = jalax.load(tmp_path / "fit.npz")
    assert repr(loaded.origin.algorithm).startswith("Scoring(num_measurements=9")
    assert loaded.origin.algorithm.finds_its_particles
    assert loaded.origin.algorithm.gives_evidence
    with pytest.raises(ValueError, match=r"options of its algorithm, Scoring\(num_measurements=9"):
        jalax.fit(loaded.origin.model, key=KEY, algorithm=loaded.origin.algorithm)


def places(tree, here=()):
    """The path of every node of a JSON value but the root."""
    nodes = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in nodes:
        yield (*here, key)
        if isinstance(value, dict | list):
            yield from places(value, (*here, key))


ANYTHING = (None, True, 0, -1, 2.5, 1e308, "", "x", [], [1], {}, {"leaf": "x"}, {"list": [None]})


@pytest.mark.parametrize("section", ["mixed", "origin"])
def test_anything_in_any_place_is_refused_or_fine(path, section):
    """Whatever stands there: a FileError, or a result that serves as one."""
    header, _ = files.read(path, "result")
    rng, refused = np.random.default_rng(0), 0
    every = list(places(header[section], (section,)))
    for place in every:
        value = ANYTHING[rng.integers(len(ANYTHING))]
        try:
            jalax.load(changed(path, put(*place, value=value))).summary()
        except FileError:
            refused += 1
    assert len(every) / 2 < refused
