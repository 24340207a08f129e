"""Formulas as R's users write them: their meaning, column by column."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.interpolate

import jalax
from jalax._frontends import mixed_means
from jalax.contrasts import Helmert, Poly, Sum, Treatment
from jalax.models import _new_rows
from jalax.models._design import Asked, parse
from jalax.models._functions import NaturalSpline
from jalax.models._syntax import translated

RNG = np.random.default_rng(7)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "x": RNG.normal(size=ROWS),
        "z": RNG.normal(size=ROWS),
        "t": RNG.uniform(1, 3, ROWS),
        "k": np.resize([3, 1, 2], ROWS),
        "ill": RNG.integers(0, 4, ROWS),
        "size": 9 + np.resize([0, 1], ROWS),
        "arm": RNG.choice(["a", "b", "c"], ROWS),
        "_odd": RNG.normal(size=ROWS),
        # Neither sorted nor ordered, and with a level that no row has.
        "dose": pd.Categorical(
            np.resize(["mid", "top", "low", "low"], ROWS), ["none", "mid", "low", "top"]
        ),
        "g": np.repeat(list("uvwxyz"), 10),
        "h": np.tile(list("pq"), 30),
    }
)
ONE = np.ones(ROWS)


def columns(written, **asked):
    return parse(f"{written} + (1|g)", FRAME, Asked(**asked))


def of(name):
    return FRAME[name].to_numpy()


def dummies(name, levels):
    return np.column_stack([of(name) == level for level in levels]).astype(float)


# ---------------------------------------------------------------- words

SAME = [
    ("y ~ I(x^2)", [ONE, of("x") ** 2]),
    ("y ~ x + I(arm == 'b')", [ONE, of("x"), of("arm") == "b"]),
    ('y ~ I(arm != "b")', [ONE, of("arm") != "b"]),
    ("y ~ (x + z)^2", [ONE, of("x"), of("z"), of("x") * of("z")]),
    (
        "y ~ (x + z + t)^2 - x:z",
        [ONE, of("x"), of("z"), of("t"), *(of("t") * FRAME[["x", "z"]].T.to_numpy())],
    ),
    ("y ~ x - 1", [of("x")]),
    ("y ~ x + 0", [of("x")]),
    ("y ~ -1 + x", [of("x")]),
    ("y ~ factor(k)", [ONE, *dummies("k", [2, 3]).T]),
    ("y ~ as.factor(k)", [ONE, *dummies("k", [2, 3]).T]),
    ("y ~ factor(arm, levels = c('c', 'a', 'b'))", [ONE, *dummies("arm", "ab").T]),
    ("y ~ relevel(arm, ref = 'b')", [ONE, *dummies("arm", "ac").T]),
    ("y ~ relevel(dose, ref = 'top')", [ONE, *dummies("dose", ["mid", "low"]).T]),
    ("y ~ dose", [ONE, *dummies("dose", ["low", "top"]).T]),
    ("y ~ 0 + dose", [*dummies("dose", ["mid", "low", "top"]).T]),
    ("y ~ C(dose)", [ONE, *dummies("dose", ["low", "top"]).T]),
    ("y ~ poly(x, 2, raw = TRUE)", [ONE, of("x"), of("x") ** 2]),
    ("y ~ poly(x, degree = 2, raw = T)", [ONE, of("x"), of("x") ** 2]),
    ("y ~ base::log(t)", [ONE, np.log(of("t"))]),
    ("y ~ x %in% z", [ONE, of("x") * of("z")]),
    ("y ~ I(1e2 * x + 2L)", [ONE, 100 * of("x") + 2]),
    ("y ~ _odd", [ONE, of("_odd")]),
]


@pytest.mark.parametrize(("written", "expected"), SAME, ids=[written for written, _ in SAME])
def test_what_r_writes_means_what_it_means_there(written, expected):
    design = columns(written)
    np.testing.assert_allclose(design.X, np.column_stack(expected).astype(float), atol=1e-12)
    some = FRAME.iloc[[7, 3, 3, 51]].astype({"dose": object})
    np.testing.assert_allclose(
        _new_rows.fixed_rows(design, some).X, design.X[[7, 3, 3, 51]], atol=1e-12
    )


def test_a_dot_is_every_other_column():
    some = ["y", "x", "arm", "t", "g"]
    design = parse("y ~ . + (1|g)", FRAME[some])
    assert design.fixed == ("Intercept", "x", "arm[b]", "arm[c]", "t")
    assert design.formula == "y ~ (x + arm + t) + (1|g)"
    weighted = FRAME[some].assign(x=1.0)
    design = parse("log(t) ~ .^2 - arm:y + (1|g)", weighted, Asked(weights="x"))
    assert design.fixed == ("Intercept", "y", "arm[b]", "arm[c]")
    with pytest.raises(ValueError, match="no other column"):
        parse("y ~ . + (1|g)", FRAME[["y", "g"]])


@pytest.mark.parametrize(
    ("bar", "effects"),
    [
        ("(x - 1 | g)", ("x",)),
        ("(x + 0|g)", ("x",)),
        ("(0 + x|g)", ("x",)),
        ("(x + 1|g)", ("Intercept", "x")),
        ("( 1 | g )", ("Intercept",)),
        ("(factor(k) | g)", ("Intercept", "factor(k)[2]", "factor(k)[3]")),
        ("(dose | factor(k))", ("Intercept", "dose[low]", "dose[top]")),
    ],
)
def test_intercepts_of_random_effects(bar, effects):
    (block,) = parse(f"y ~ 1 + {bar}", FRAME).blocks
    assert block.effects == effects


def test_the_levels_of_a_grouping_factor_keep_their_order():
    (block,) = parse("y ~ 1 + (1|dose)", FRAME).blocks
    assert block.labels == ("mid", "low", "top")
    assert [block.labels[i] for i in block.index] == FRAME["dose"].tolist()
    (block,) = parse("y ~ 1 + (1|factor(k))", FRAME).blocks
    assert (block.name, block.labels) == ("factor(k)", ("1", "2", "3"))


def test_new_levels_of_a_factor_in_a_formula():
    design = parse("y ~ relevel(arm, ref = 'b') + (1|factor(k))", FRAME)
    new = _new_rows.read({"arm": ["a", "c"], "k": [2, 9]})
    np.testing.assert_array_equal(_new_rows.fixed_rows(design, new).X, [[1, 1, 0], [1, 0, 1]])
    found = _new_rows.random_rows(design, new)
    assert found.level["factor(k)"].tolist() == [1, -1]
    assert found.unknown == {"factor(k)": ["9"]}
    with pytest.raises(ValueError, match="is 'd' in new_data, a level without an effect"):
        _new_rows.fixed_rows(design, _new_rows.read({"arm": ["d"], "k": [1]}))


def test_columns_that_two_terms_share_are_coded_in_each():
    """formulae's (a + b)**2 and a/b share a, which may be coded otherwise in the interaction."""
    design = columns("y ~ arm/h")  # as in R: h within each arm
    assert design.fixed == ("Intercept", "arm[b]", "arm[c]", *(f"arm[{a}]:h[q]" for a in "abc"))
    np.testing.assert_array_equal(design.X[:, 3], (of("arm") == "a") & (of("h") == "q"))
    design = columns("y ~ 0 + (arm + h)^2")
    assert design.fixed == (*(f"arm[{a}]" for a in "abc"), "h[q]", "arm[b]:h[q]", "arm[c]:h[q]")
    some = FRAME.iloc[[3, 9]]
    np.testing.assert_array_equal(_new_rows.fixed_rows(design, some).X, design.X[[3, 9]])


@pytest.mark.parametrize(
    "written", ["cbind(ill, size - ill)", "cbind(ill, I(size - ill))", "p(ill, size)"]
)
def test_successes_and_failures(written):
    design = columns(f"{written} ~ x")
    np.testing.assert_array_equal(design.y, FRAME["ill"])
    np.testing.assert_array_equal(design.size, FRAME["size"])


def test_an_event_may_be_a_comparison():
    event = columns("Surv(t, arm == 'a') ~ x").response.event
    np.testing.assert_array_equal(event, of("arm") == "a")


def test_a_translation_is_translated_into_itself():
    for written in (*(written for written, _ in SAME), "y ~ C(arm, contr.sum) + (x - 1|g)"):
        once = translated(written)
        assert translated(once) == once


# ---------------------------------------------------------------- codings

# R: contr.treatment(4), contr.sum(4), contr.helmert(4), contr.poly(4).
CODED = {
    Treatment(): [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
    Sum(): [[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]],
    Helmert(): [[-1, -1, -1], [1, -1, -1], [0, 2, -1], [0, 0, 3]],
    Poly(): [
        [-0.6708204, 0.5, -0.2236068],
        [-0.2236068, -0.5, 0.6708204],
        [0.2236068, -0.5, -0.6708204],
        [0.6708204, 0.5, 0.2236068],
    ],
}


@pytest.mark.parametrize("coding", CODED, ids=repr)
def test_the_codings_are_those_of_r(coding):
    np.testing.assert_allclose(coding.matrix(list("abcd")), CODED[coding], atol=5e-8)


def test_polynomials_of_many_levels_are_orthonormal():
    matrix = Poly().matrix(list(range(60)))
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(59), atol=1e-10)
    np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-10)
    assert (matrix[-1] > 0).all()  # as in R
    assert Poly().labels(list("abcdef")) == [".L", ".Q", ".C", "^4", "^5"]


@pytest.mark.parametrize(
    ("coding", "names"),
    [
        (Helmert(), ("dose[1]", "dose[2]")),
        (Sum(), ("dose[mid]", "dose[low]")),
        (Poly(), ("dose[.L]", "dose[.Q]")),
        (Treatment("low"), ("dose[mid]", "dose[top]")),
    ],
    ids=repr,
)
def test_contrasts_code_the_fixed_effects(coding, names):
    levels = ["mid", "low", "top"]
    design = columns("y ~ dose", contrasts={"dose": coding})
    assert design.fixed == ("Intercept", *names)
    rows = [levels.index(level) for level in FRAME["dose"]]
    np.testing.assert_allclose(design.X[:, 1:], coding.matrix(levels)[rows])
    new = _new_rows.fixed_rows(design, _new_rows.read({"dose": ["top", "mid"]})).X
    np.testing.assert_allclose(new[:, 1:], coding.matrix(levels)[[2, 0]])
    kind = type(coding).__name__
    if kind != "Treatment":
        written = columns(f"y ~ C(dose, {kind})")
        np.testing.assert_array_equal(written.X, design.X)
        written = columns(f"y ~ C(dose, contr.{kind.lower()})")
        np.testing.assert_array_equal(written.X, design.X)


def test_without_an_intercept_each_level_has_a_column():
    """As in R, whatever the contrasts."""
    design = columns("y ~ 0 + dose", contrasts={"dose": Helmert()})
    np.testing.assert_array_equal(design.X, dummies("dose", ["mid", "low", "top"]))
    assert design.fixed == ("dose[mid]", "dose[low]", "dose[top]")


def test_the_reference_levels_are_named():
    assert columns("y ~ dose + arm + x").codings == "reference levels: dose mid, arm a"
    assert columns("y ~ 0 + dose + arm").codings == "reference levels: arm a"
    assert columns("y ~ relevel(arm, ref='c')").codings == (
        "reference levels: relevel(arm, ref='c') c"
    )
    coded = columns("y ~ dose * arm", contrasts={"dose": Helmert()})
    assert coded.codings == "reference levels: arm a; contrasts: dose Helmert"
    assert columns("y ~ x").codings == ""


CODINGS = [{}, {"dose": Helmert()}, {"dose": Sum(), "arm": Poly()}, {"arm": Treatment("b")}]


@pytest.mark.parametrize("contrasts", CODINGS, ids=repr)
def test_marginal_means_are_the_same_under_any_coding(contrasts):
    """Of the saturated model by least squares they are means of cell means, by hand."""
    design = columns("y ~ dose * arm", contrasts=contrasts)
    beta = np.linalg.lstsq(design.X, design.y, rcond=None)[0]
    fit = SimpleNamespace(mixed=SimpleNamespace(design=design))
    cells = FRAME.groupby(["dose", "arm"], observed=True)["y"].mean().unstack()
    for factor, axis in (("dose", 1), ("arm", 0)):
        labels, means, _ = mixed_means._weights(fit, factor)
        by_hand = cells.mean(axis=axis)
        assert labels == list(by_hand.index)
        np.testing.assert_allclose(means @ beta, by_hand, atol=1e-10)


def test_a_factor_inside_a_comparison_is_a_factor():
    design = columns("y ~ I(arm == 'b') + x")
    fit = SimpleNamespace(mixed=SimpleNamespace(design=design))
    labels, means, _ = mixed_means._weights(fit, "arm")
    assert labels == ["a", "b", "c"]
    np.testing.assert_allclose(means[:, 1], [0, 1, 0])
    assert list(_new_rows.factors(columns("y ~ T(arm, ref='b')"))) == ["arm"]


# ---------------------------------------------------------------- splines


def test_the_natural_spline_of_r():
    """R: ns(women$height, df = 5)[1:3, ]"""
    found = NaturalSpline()(np.arange(58.0, 73.0), 5)[:3]
    expected = [
        [0, 0, 0, 0, 0],
        [7.592323e-03, 0, -8.670223e-02, 2.601067e-01, -1.734045e-01],
        [6.073858e-02, 0, -1.503044e-01, 4.509132e-01, -3.006088e-01],
    ]
    np.testing.assert_allclose(found, expected, atol=5e-8)


def test_natural_splines_are_all_of_them():
    """The span is that of the truncated powers of Hastie, Tibshirani and Friedman (5.4)."""
    x, inner = of("x"), np.quantile(of("x"), [0.25, 0.5, 0.75])
    basis = np.column_stack([ONE, NaturalSpline()(x, 4)])
    knots = np.array([x.min(), *inner, x.max()])

    def d(k):
        cubes = np.maximum(x - knots[k], 0) ** 3 - np.maximum(x - knots[-1], 0) ** 3
        return cubes / (knots[-1] - knots[k])

    powers = np.column_stack([ONE, x, *(d(k) - d(len(knots) - 2) for k in range(3))])
    for one, other in ((basis, powers), (powers, basis)):
        fitted = one @ np.linalg.lstsq(one, other, rcond=None)[0]
        np.testing.assert_allclose(fitted, other, atol=1e-9)


def test_new_rows_of_a_spline_have_the_knots_of_the_fit():
    """Inside a cubic spline, which SciPy finds from the values alone; outside straight lines."""
    spline = NaturalSpline()
    grid = np.linspace(0.0, 4.0, 81)
    spline(grid, knots=(1.0, 2.5))
    known = np.array([0.0, 1.0, 2.5, 4.0])
    natural = scipy.interpolate.CubicSpline(known, spline(known), bc_type="natural")
    new = np.array([0.3, 2.4999, 3.9, 1.0])
    np.testing.assert_allclose(spline(new), natural(new), atol=1e-12)
    beyond = np.array([-2.0, 5.0])
    lines = [natural(0.0) - 2 * natural(0.0, 1), natural(4.0) + natural(4.0, 1)]
    np.testing.assert_allclose(spline(beyond), lines, atol=1e-12)


def test_splines_in_a_formula():
    design = columns("y ~ ns(x, 3) * h")
    assert design.fixed[1:4] == ("ns(x, 3)[0]", "ns(x, 3)[1]", "ns(x, 3)[2]")
    np.testing.assert_allclose(design.X[:, 1:4], NaturalSpline()(of("x"), 3))
    np.testing.assert_allclose(columns("y ~ splines::ns(x, df = 3)").X, design.X[:, :4])
    with_ends = columns("y ~ ns(x, knots = c(0, 1), Boundary.knots = c(-2, 2))")
    expected = NaturalSpline()(of("x"), knots=(0, 1), boundary_knots=(-2, 2))
    np.testing.assert_allclose(with_ends.X[:, 1:], expected)
    assert columns("y ~ 0 + ns(x, 3, intercept = TRUE)").X.shape == (ROWS, 3)


# ---------------------------------------------------------------- after a fit


@pytest.mark.slow
def test_a_fit_is_the_same_under_any_coding(tmp_path):
    """Also one that was saved: the coefficients are others, and all that they say is not."""
    effect = FRAME["dose"].map({"mid": 0.0, "low": 1.0, "top": 2.0}).astype(float)
    school = FRAME["g"].map({name: float(i) for i, name in enumerate("uvwxyz")})
    frame = FRAME.assign(y=FRAME["y"] + effect + school)
    key = jax.random.key(0)
    usual = jalax.mixed("y ~ dose + x + (1|g)", frame, key=key)
    contrasts = {"dose": Helmert()}
    coded = jalax.mixed("y ~ dose + x + (1|g)", frame, contrasts=contrasts, key=key)
    coded.save(tmp_path / "coded.npz")
    again = jalax.load(tmp_path / "coded.npz")
    assert again.mixed.design.asked.contrasts == contrasts
    assert "contrasts: dose Helmert" in again.summary()
    assert "reference levels: dose mid" in usual.summary()
    new = {"dose": ["top", "low"], "x": [0.0, 1.0], "g": ["u", "z"]}
    error = 5 * float(np.max(usual.simulation_errors()["beta"])) + 1e-3
    np.testing.assert_allclose(coded.log_evidence, usual.log_evidence, atol=0.01)
    tables = (
        lambda m: m.marginal_means("dose"),
        lambda m: m.contrasts("dose"),
        lambda m: m.predict(new),
    )
    for table in tables:
        expected = table(usual)
        for found in (table(coded), table(again)):
            np.testing.assert_allclose(found["estimate"], expected["estimate"], atol=error)
            np.testing.assert_allclose(found["std. error"], expected["std. error"], rtol=0.02)
