"""Nonsense in, a clear error out: files, formulas and the command line.

Whatever is wrong with a file, it is a FileError that names it, and the file is as it was. A formula
runs no code. JALAX_HYPOTHESIS=thorough looks at fifty times as much, see tests/profiles.py.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import os
import re
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import jalax
import jalax.cli
from jalax._evidence.log_evidence import Evidence
from jalax._evidence.uncertainty import Uncertainty
from jalax._runtime import files
from jalax._runtime.files import FileError
from jalax.models._design import parse
from profiles import examples

# ---------------------------------------------------------------- files: what they are made from


def log_joint(theta, x, data):
    return -0.5 * jnp.sum((x["z"] - theta["m"]) ** 2) - 0.5 * jnp.sum((data - x["z"]) ** 2)


MODEL = jalax.Model(log_joint, {"z": jnp.zeros(2)}, jnp.array([0.5, 1.5]), theta={"m": 0.0})
START = jalax.Given({"z": jnp.array(np.random.default_rng(0).normal(size=(6, 2)))})


def fit(*callbacks, num_steps=4):
    return jalax.fit(
        MODEL,
        key=jax.random.key(0),
        algorithm=jalax.JALAEM(step_size=0.05, resample_below=0.9),
        start=START,
        num_steps=num_steps,
        callbacks=callbacks,
        progress=jalax.callbacks.Callback(),
    )


def load(path):
    """A file that is taken for a result has to serve as one."""
    result = jalax.load(path)
    result.summary()._repr_html_()
    lead = result.log_weights.shape
    assert all(leaf.shape[: len(lead)] == lead for leaf in jax.tree.leaves(result.particles))
    assert len({len(leaf) for leaf in jax.tree.leaves(result.history)}) < 2
    for leaf in jax.tree.leaves((result.theta, result.history)):
        assert np.asarray(leaf).dtype.kind in "biuf"
    return result


def resume(path):
    return fit(jalax.checkpoint(path), num_steps=6)


READERS = {"result": load, "checkpoint": resume}


class Saved(dict):
    """Files by name. Hypothesis shows the arguments of a test that failed, and warns if they are
    long: an error here, which would hide the failure behind a FlakyStrategyDefinition."""

    def __repr__(self):
        return "saved"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a result that has everything a result can have, and of a checkpoint."""
    folder = tmp_path_factory.mktemp("good")
    fit(jalax.checkpoint(folder / "checkpoint"))
    evidence = Evidence(-3.0, 0.1, 7.0, "importance", 0.2, 0.9, 100, 8, 1, np.array([-3.0]), ("a",))
    one = np.eye(1)
    known = Uncertainty(("m",), one, one, 7.0, np.zeros((0, 1)), one)
    result = dataclasses.replace(
        fit(), saved_evidence=evidence, saved_uncertainty=known, labels=("mean",)
    )
    result.save(folder / "result")
    return Saved((name, (folder / name).read_bytes()) for name in READERS)


def content_of(raw):
    # np.load goes by the first bytes, but a zip is read from its end and may have others before it.
    with np.lib.npyio.NpzFile(io.BytesIO(raw), allow_pickle=False) as file:
        content = dict(file)
    del content["checksum"]
    return json.loads(str(content.pop("header"))), content


def file_of(header, arrays):
    """Bytes with the right checksum, which anybody can compute."""
    text = header if isinstance(header, str) else json.dumps(header)
    content = {**arrays, "header": np.array(text)}
    file = io.BytesIO()
    np.savez(file, checksum=np.array(files._checksum(content)), **content)
    return file.getvalue()


def refused_or_fine(folder, kind, raw, *, must_refuse=False):
    """Read it: a FileError with the file's name, and nothing on disk has changed; or it works."""
    path, error = folder / "fit.npz", None
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's about names, NumPy's about invalid values
        try:
            READERS[kind](path)
        except FileError as caught:
            error = str(caught)
    assert os.listdir(folder) == ["fit.npz"]
    if error is None:
        assert not must_refuse, "it was taken for a file of jalax"
        return None
    assert str(path) in error
    assert path.read_bytes() == raw
    return error


kinds = pytest.mark.parametrize("kind", READERS)

values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    values,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(["leaf", "dict", "list", "tuple", "other", "leaves", "a"]),
            inside,
            max_size=3,
        )
    ),
    max_leaves=6,
)

# ---------------------------------------------------------------- files: bytes


@kinds
@given(raw=st.binary(max_size=300), zipped=st.booleans())
@examples(15)
def test_random_bytes(tmp_path_factory, kind, raw, zipped):
    if zipped:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("header.npy", raw)
        raw = file.getvalue()
    refused_or_fine(tmp_path_factory.mktemp("f"), kind, raw, must_refuse=True)


@kinds
@given(data=st.data())
@examples(25)
def test_bytes_changed_lost_or_added(saved, tmp_path_factory, kind, data):
    raw = bytearray(saved[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["change", "cut", "remove", "insert"])):
            case "change":
                raw[place] ^= data.draw(st.integers(1, 255))
            case "cut":
                del raw[max(place, 1) :]
            case "remove":
                del raw[place : place + data.draw(st.integers(1, 20))]
            case "insert":
                raw[place:place] = data.draw(st.binary(min_size=1, max_size=20))
        raw = raw or bytearray(1)
    folder = tmp_path_factory.mktemp("f")
    if refused_or_fine(folder, kind, bytes(raw)) is None and kind == "result":
        # Bytes that carry nothing, such as a date: what was read is what was written.
        assert_same_content((folder / "fit.npz").read_bytes(), saved[kind])


def assert_same_content(raw, expected):
    now, before = content_of(raw), content_of(expected)
    assert now[0] == before[0]
    assert all(np.array_equal(now[1][name], before[1][name]) for name in before[1])


@kinds
def test_bytes_before_the_zip(saved, tmp_path, kind):
    """A zip is read from its end: what stands before it carries nothing."""
    raw = b"\0" + saved[kind]
    assert refused_or_fine(tmp_path, kind, raw) is None
    assert_same_content(raw, saved[kind])


# ---------------------------------------------------------------- files: the zip around them


def npy(array, *, shape=None):
    """The npy format, which may claim another shape."""
    file = io.BytesIO()
    np.save(file, array)
    raw = file.getvalue()
    if shape is not None:
        old = str(array.shape).encode()
        new = shape.encode()
        assert raw.count(old) == 1
        spare = raw.index(b"}") + 1
        head = raw[:spare].replace(old, new) + b" " * (len(raw[:spare]) - 0)
        size = struct.unpack("<H", raw[8:10])[0]
        head = head[: 10 + size - 1].ljust(10 + size - 1) + b"\n"
        raw = head + raw[10 + size :]
    return raw


def archive(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as out:
        warnings.simplefilter("ignore")  # it warns of two members of one name
        for name, raw in members:
            out.writestr(name, raw)
    return file.getvalue()


def members_of(raw):
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        return [(name, file.read(name)) for name in file.namelist()]


def compressed(raw):
    return archive(members_of(raw), zipfile.ZIP_DEFLATED)


def one_compressed(raw):
    """Only the last one: the others are stored."""
    file = io.BytesIO()
    members = members_of(raw)
    with zipfile.ZipFile(file, "w") as out:
        for i, (name, content) in enumerate(members):
            last = i == len(members) - 1
            out.writestr(name, content, zipfile.ZIP_DEFLATED if last else zipfile.ZIP_STORED)
    return file.getvalue()


def bomb(raw):
    """200 MB of zeros in 200 kB, beside all that a file has to have."""
    return archive([*members_of(raw), ("big.npy", npy(np.zeros(25_000_000)))], zipfile.ZIP_DEFLATED)


def twice(raw):
    members = members_of(raw)
    return archive([*members, members[0]])


def encrypted(raw):
    """The flag of the last member, in the directory at the end."""
    place = raw.rindex(b"PK\x01\x02") + 8
    return raw[:place] + bytes([raw[place] | 1]) + raw[place + 1 :]


def larger_than_it_is(raw):
    """The sizes of the last member, in the directory: four gigabytes less one."""
    place = raw.rindex(b"PK\x01\x02") + 20
    return raw[:place] + struct.pack("<II", 2**32 - 2, 2**32 - 2) + raw[place + 8 :]


def overlapping(raw):
    """All entries of the directory but the first lead to the largest member."""
    members = members_of(raw)
    big = npy(np.zeros(10_000))
    raw = bytearray(archive([("big.npy", big), *((name, big) for name, _ in members)]))
    first = raw.index(b"PK\x01\x02")
    end = raw.index(b"PK\x05\x06")
    start = raw.index(b"PK\x03\x04", 1)
    # The other local members are cut out, and the directory says that all are the first.
    directory = bytearray(raw[first:end])
    for found in re.finditer(b"PK\x01\x02", bytes(directory)):
        directory[found.start() + 42 : found.start() + 46] = struct.pack("<I", 0)
    tail = bytearray(raw[end:])
    tail[16:20] = struct.pack("<I", start)
    return bytes(raw[:start] + directory + tail)


def objects(raw):
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    return archive([*members_of(raw), ("more.npy", file.getvalue())])


def huge_shape(raw):
    members = [*members_of(raw), ("more.npy", npy(np.zeros(77), shape="(10000000000000,)"))]
    return archive(members)


def no_array(raw):
    return archive([*members_of(raw), ("../../notes.txt", b"hello")])


ZIPS = {
    compressed: "is compressed",
    one_compressed: "is compressed",
    bomb: "is compressed",
    twice: "the same name",
    encrypted: "is encrypted",
    larger_than_it_is: "larger than the file",
    overlapping: "larger than the file",
    objects: "Python objects",
    huge_shape: "not as long as its shape",
    no_array: "is no array",
}


@kinds
@pytest.mark.parametrize("change", ZIPS, ids=lambda change: change.__name__)
def test_zips_that_no_jalax_writes(saved, tmp_path, kind, change):
    raw = change(saved[kind])
    tracemalloc.start()
    reason = refused_or_fine(tmp_path, kind, raw, must_refuse=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ZIPS[change] in reason
    assert peak < 5 * len(raw) + 20e6  # of which the fit itself takes some


@kinds
def test_too_many_members(saved, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(files, "MAX_MEMBERS", 5)
    reason = refused_or_fine(tmp_path, kind, saved[kind], must_refuse=True)
    assert "more than 5" in reason


# ---------------------------------------------------------------- files: a right checksum


def test_the_checksum_of_these_tests_is_right(saved, tmp_path):
    """Else all that follows would be refused for that, and show nothing."""
    for kind in READERS:
        assert refused_or_fine(tmp_path, kind, file_of(*content_of(saved[kind]))) is None


@kinds
@given(header=anything | st.text(max_size=20))
@example(header="[" * 200_000)
@example(header='{"format": 1, "kind": ' + "[" * 900 + "]" * 900 + "}")
@example(header={"format": "1", "kind": "result"})
@example(header={"format": True, "kind": "checkpoint"})
@example(header={"format": 1, "kind": "result"})
@example(header={"format": 1, "kind": "checkpoint"})
@examples(20)
def test_any_json_as_header(saved, tmp_path_factory, kind, header):
    raw = file_of(header, content_of(saved[kind])[1])
    refused_or_fine(tmp_path_factory.mktemp("f"), kind, raw, must_refuse=True)


def places(tree, here=()):
    """The path of every node of a JSON value but the root."""
    nodes = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in nodes:
        yield (*here, key)
        if isinstance(value, dict | list):
            yield from places(value, (*here, key))


@kinds
@given(data=st.data())
@examples(60)
def test_a_header_changed_in_one_place(saved, tmp_path_factory, kind, data):
    header, arrays = content_of(saved[kind])
    place = data.draw(st.sampled_from(list(places(header))))
    node = header
    for key in place[:-1]:
        node = node[key]
    match data.draw(st.sampled_from(["replace", "remove", "nest", "copy"])):
        case "replace":
            node[place[-1]] = data.draw(anything)
        case "remove":
            del node[place[-1]]
        case "nest":
            value = node[place[-1]]
            for _ in range(data.draw(st.sampled_from([1, 300]))):
                value = {"list": [value]}
            node[place[-1]] = value
        case "copy":
            other = data.draw(st.sampled_from(list(header)))
            node[place[-1]] = copy.deepcopy(header[other])
    refused_or_fine(tmp_path_factory.mktemp("f"), kind, file_of(header, arrays))


@pytest.mark.parametrize("field", ["theta", "particles", "history"])
def test_one_array_named_many_times(saved, tmp_path, field):
    """A short header must not turn one array into thousands."""
    header, arrays = content_of(saved["result"])
    name = next(name for name in arrays if name.startswith(field))
    header[field] = {"dict": {str(i): {"leaf": name} for i in range(1000)}}
    reason = refused_or_fine(tmp_path, "result", file_of(header, arrays), must_refuse=True)
    assert f"it has no {name!r}" in reason


@kinds
@given(data=st.data())
@examples(40)
def test_other_arrays_under_the_names(saved, tmp_path_factory, kind, data):
    header, arrays = content_of(saved[kind])
    one, other = (data.draw(st.sampled_from(sorted(arrays))) for _ in range(2))
    match data.draw(st.sampled_from(["swap", "rename", "remove", "dtype", "shape", "empty"])):
        case "swap":
            arrays[one], arrays[other] = arrays[other], arrays[one]
        case "rename":
            arrays["elsewhere"] = arrays.pop(one)
        case "remove":
            del arrays[one]
        case "dtype":
            dtype = data.draw(st.sampled_from(["U3", "S2", "c16", "M8[s]", "f8", "i1", "V4", "?"]))
            arrays[one] = np.zeros(arrays[one].shape, dtype)
        case "shape":
            arrays[one] = np.stack([arrays[one]] * data.draw(st.integers(1, 2)), axis=-1)
        case "empty":
            arrays[one] = arrays[one].reshape(-1)[:0]
    refused_or_fine(tmp_path_factory.mktemp("f"), kind, file_of(header, arrays))


@pytest.mark.parametrize("read", [jalax.load, lambda path: files.read(path, "result")])
def test_a_file_that_is_not_there(tmp_path, read):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing.npz")
    with pytest.raises(FileError, match="not a jalax file"):
        read(tmp_path)


# ---------------------------------------------------------------- files: what a killed write leaves

KILLED = """
import os, sys
import numpy as np
from jalax._runtime import files

def half(file, **content):
    file.write(b"half")
    file.flush()
    os._exit(9)

np.savez = half
files.write(sys.argv[1], "result", {}, {})
"""


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "fit.npz"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=120, check=False)
    assert done.returncode == 9
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".fit.npz.")
    files.write(tmp_path / "other.npz", "result", {}, {})
    assert sorted(os.listdir(tmp_path)) == [left, "other.npz"]  # of another target
    files.write(path, "result", {}, {})
    assert sorted(os.listdir(tmp_path)) == ["fit.npz", "other.npz"]


def test_what_may_be_in_use_is_left_alone(tmp_path):
    """Files of a process that lives, of another host, of this process, and of the user."""
    host, mine = files._HOST, files._PROCESS
    kept = [
        f".fit.npz.{host}-{os.getppid()}-{mine}.abcdefgh",
        f".fit.npz.{host}-{os.getpid()}-{mine}.abcdefgh",
        f".fit.npz.{'0' * 8}-999999999-{mine}.abcdefgh",
        ".fit.npz.swp",
        ".fit.npz.abcdefgh",
        f"xfit.npz.{host}-999999999-{mine}.abcdefgh",
    ]
    gone = [
        f".fit.npz.{host}-999999999-{mine}.abcdefgh",
        f".fit.npz.{host}-{os.getpid()}-{'0' * 8}.abcdefgh",  # a predecessor with our number
        f".fit.npz.{host}-{'9' * 30}-{mine}.abcdefgh",  # no number of a process
    ]
    for name in (*kept, *gone):
        (tmp_path / name).write_text("")
    files.write(tmp_path / "fit.npz", "result", {}, {})
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "fit.npz"])


# ---------------------------------------------------------------- formulas

RNG = np.random.default_rng(1)
ROWS = 24
DATA = {
    "y": RNG.normal(size=ROWS),
    "x": RNG.normal(size=ROWS),
    "t": RNG.uniform(1, 3, ROWS),
    "k": RNG.integers(0, 5, ROWS),
    "m": np.full(ROWS, 9),
    "arm": np.resize(list("abcab"), ROWS),
    "g": np.repeat(list("uvwxyz"), 4),
    "h": np.tile(["p", "q", "r"], 8),
    "my col": RNG.normal(size=ROWS),
    "my group": np.tile(["p", "q", "r"], 8),
    "yes": RNG.normal(size=ROWS) > 0,
    "one": "same",
    "gap": np.where(np.arange(ROWS) == 3, np.nan, 1.0),
    "far": np.where(np.arange(ROWS) == 3, np.inf, 1.0),
}
GOOD = (
    "y ~ x + (1|g)",
    "y ~ scale(x) + arm + (x|g)",
    "y ~ x + arm + (x||g)",
    "p(k, m) ~ x + (1|g/h)",
    "y ~ poly(x, 2) + offset(log(t)) + (1|g) + (1|h)",
    "y ~ `my col` + (1|`my group`)",
    "y ~ bs(x, df=4) + (0 + x|g)",
    "y ~ C(k) + (1|h)",
    "y ~ {x**2} + (arm|g)",
    "y ~ (x + t)**2 + (1|g)",
    "y ~ T(arm, 'b') + (1|g:h)",
    "y ~ C(arm, Treatment('b')) + np.log(t) + (1|g)",
    "y ~ S(arm) + (scale(x)|g)",
    "yes ~ x + {2**x} + (1|C(k))",
    "y ~ (x + arm)^2 + factor(k) + (x - 1 | g)",
    "cbind(k, m - k) ~ ns(t, 3) + relevel(arm, ref = 'b') + (1 | factor(k))",
    "y ~ C(arm, contr.sum) + poly(x, 2, raw = TRUE) + I(arm == 'a'):x + (1|g)",
)
PIECES = (
    *DATA,
    *("~", "+", "-", "*", "**", "/", "//", ":", "|", "||", "(", ")", "[", "]", "{", "}", ",", "="),
    *("==", "<", "1", "0", "2", "-1", "1.5", "99999999999", "'a'", '"', "`", "None", "True", "."),
    *("log", "poly", "bs", "C", "p", "offset", "I", "np.log", "np.save", "open", "exec", "parse"),
    *("^", "%in%", "factor", "ns", "relevel", "c", "Poly", "TRUE", "2L", "::", "&", "$"),
    *("data.frame", "_", "__class__", "é", "\n", "\0", "\\", "%", "!", "zz", " "),
)


def parses(formula):
    """Matrices without holes, or an error that says which formula, part or column is to blame."""
    error = None
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # NumPy's, about the logarithm of a negative number
        try:
            design = parse(formula, DATA)
        except (ValueError, TypeError) as caught:
            error = str(caught)
    if error is not None:
        assert re.search(r"'.+'|\".+\"|an offset|fixed effects", error, re.DOTALL), error
        return error
    matrices = [design.y, design.X, design.offset, *(block.matrix for block in design.blocks)]
    assert all(matrix.shape[0] == ROWS and np.isfinite(matrix).all() for matrix in matrices)
    assert all(0 <= index < len(b.labels) for b in design.blocks for index in b.index)
    return None


@pytest.mark.parametrize("formula", GOOD)
def test_good_formulas(formula):
    assert parses(formula) is None


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.booleans())
@examples(150)
def test_random_formulas(pieces, with_rest):
    parses(f"y ~ {' '.join(pieces)} + (1|g)" if with_rest else "".join(pieces))


@given(data=st.data(), formula=st.sampled_from(GOOD))
@examples(150)
def test_good_formulas_spoilt(data, formula):
    parts = re.findall(r"\w+|\W", formula)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(parts) - 1))
        piece = data.draw(st.sampled_from([*PIECES, None]))
        if piece is not None and data.draw(st.booleans()):
            parts.insert(place, piece)
        else:
            parts[place] = piece or ""
    parses("".join(parts))


@given(st.text(max_size=30))
@examples(60)
def test_any_text_as_formula(text):
    parses(text)


CODE = (
    "__import__('os').system('touch x')",
    "open('x', 'w')",
    "exec('open(chr(120), chr(119))')",
    "dataclasses.builtins.exec('open(chr(120), chr(119))')",
    "dataclasses.builtins.open('x', 'w')",
    "dataclasses.sys.exit(3)",
    "np.save('x', t)",
    "np.savetxt('x', t)",
    "np.lib.format.open_memmap('x', shape=3)",
    "np.log.reduce(t)",
    "frame.to_csv('x')",
    "I(frame.to_csv('x'))",
    "log(frame.to_csv('x'))",
    "poly(t, degree=frame.to_csv('x'))",
    "t.to_csv('x')",
    "parse('y ~ x', DATA)",
    "{np.save('x', t)}",
    "('x')('w')",
    "log(t)(t)",
    "log[a](t)",
    "`open`('x', 'w')",
)


@pytest.mark.parametrize("code", CODE)
def test_a_formula_runs_no_code(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for formula in (
        f"y ~ x + {code} + (1|g)",
        f"{code} ~ x + (1|g)",
        f"y ~ x + ({code}|g)",
        f"y ~ x + (1|{code})",
    ):
        reason = parses(formula)
        assert reason is not None
        # Before anything is evaluated, or because it cannot be read.
        assert "A formula may call" in reason or "cannot be read" in reason
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "power",
    ["{9**(9**9)}", "{9**9**9**9}", "I(x**10000000)", "(x + t)**99999999", "{(2 + 3)**x**(9*9)}"],
)
def test_powers_that_would_never_end(power):
    assert "has a power" in parses(f"y ~ {power} + (1|g)")


@pytest.mark.parametrize("power", ["{x**2}", "{x**-1.5}", "{2**x}", "{(x + 1)**t}", "(x + t)**3"])
def test_powers_that_are_fine(power):
    reason = parses(f"y ~ {power} + (1|g)")
    assert reason is None or "must be finite" in reason


def test_what_formulae_would_ignore_is_refused():
    assert "from 't' on" in parses("y ~ x + (1|g) t")


def test_a_transformation_may_not_make_holes():
    assert "'log(x)' is nan in row" in parses("y ~ log(x) + (1|g)")
    assert "'log(x)|g' is nan in row" in parses("y ~ 1 + (log(x)|g)")
    assert "response 'log(x)' is nan in row" in parses("log(x) ~ t + (1|g)")
    assert "'far' is inf in row 3" in parses("y ~ far + (1|g)")
    assert "an offset is nan in row" in parses("y ~ t + offset(log(x)) + (1|g)")


# ---------------------------------------------------------------- the command line

WORDS = st.sampled_from(
    [
        *("demo", "reproduce", "theory", "logistic", "error-model", "--out", "--seed", "--trials"),
        *(
            "--quick",
            "--help",
            "-1",
            "0",
            "3",
            "1e3",
            "out",
            "",
            "a file",
            "a file/below",
            "=",
            "--",
        ),
        *("../out", "9" * 30, "nan", "x\0y", "\udc80", "é", "x" * 300, "--seed=3", "--out=here"),
    ]
)


def all_files(folder):
    return {str(p.relative_to(folder)): p.is_dir() or p.read_bytes() for p in folder.rglob("*")}


@given(arguments=st.lists(WORDS, max_size=6))
@example(arguments=["demo", "--out", "a file"])
@example(arguments=["demo", "--seed", "-1"])
@example(arguments=["demo", "--out", "out", "--seed", "3"])
@example(arguments=["reproduce", "theory", "--trials", "0"])
@examples(80)
def test_any_command_line(tmp_path_factory, arguments):
    """The work itself is left out: what it is asked to do, and where, is what counts here."""
    root = tmp_path_factory.mktemp("cli")
    folder = root / "here"
    folder.mkdir()
    (folder / "a file").write_text("kept")
    before, outs = all_files(root), []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(jalax.cli._demo, "run", lambda out, seed: outs.append(out))
        patch.setattr(jalax.cli._reproduce, "run", lambda name, out, **rest: outs.append(out))
        done = CliRunner().invoke(jalax.cli.app, arguments)
        outs = [os.path.relpath(out.resolve(), root.resolve()) for out in outs]
    assert done.exit_code in (0, 1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    assert done.exit_code == 0 or done.output.strip(), "no word about what is wrong"
    after = all_files(root)
    assert {name: after[name] for name in before} == before
    new = {name for name in after if name not in before}
    assert all(any((out + "/").startswith(name + "/") for out in outs) for name in new), new


@pytest.mark.slow
def test_the_demo_writes_into_its_folder_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(jalax.cli.app, ["demo", "--out", "a/b"])
    assert done.exit_code == 0, done.output
    assert sorted(all_files(tmp_path)) == ["a", "a/b", "a/b/wisconsin.png"]
