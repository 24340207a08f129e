"""New rows are coded like those of the fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jalax.models import _new_rows
from jalax.models._design import parse

RNG = np.random.default_rng(5)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "x": RNG.normal(3, 2, ROWS),
        "t": RNG.uniform(1, 3, ROWS),
        "k": RNG.integers(1, 4, ROWS),
        "arm": RNG.choice(["a", "b", "c"], ROWS),
        "size": pd.Categorical(
            RNG.choice(["low", "mid", "top"], ROWS), ["low", "mid", "top"], ordered=True
        ),
        "school": np.repeat([f"s{i}" for i in range(6)], 10),
        "room": [f"r{i}" for i in np.repeat(np.arange(12), 5)],
        "teacher": np.tile(np.arange(5), 12),
    }
)
FORMULAS = [
    "y ~ x + arm + offset(log(t)) + (x|school)",
    "y ~ poly(x, 2) + center(t) + (scale(x)|school)",
    "y ~ bs(x, df=5) + C(k) + (1|teacher)",
    "y ~ arm * x + size + (arm|school)",
    "y ~ 0 + arm:size + offset(2.5) + (x||school) + (1|teacher)",
    "y ~ S(arm) + T(size, ref='mid') + (1|school/room)",
    "y ~ 1 + (1|school) + (0 + x|school) + (1|C(k))",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_rows_of_the_fit_given_again_are_coded_alike(formula):
    """A few of them, in another order: their own means and levels are others."""
    design = parse(formula, FRAME)
    rows = [7, 3, 3, 51]
    some = FRAME.drop(columns="y").iloc[rows]
    X, offset = _new_rows.fixed_rows(design, some)
    np.testing.assert_allclose(X, design.X[rows], atol=1e-12)
    np.testing.assert_allclose(offset, design.offset[rows], atol=1e-12)
    random = _new_rows.random_rows(design, some)
    assert not random.unknown
    for block in design.blocks:
        np.testing.assert_allclose(random.Z[block.name], block.matrix[rows], atol=1e-12)
        assert random.level[block.name].tolist() == block.index[rows].tolist()


def test_levels_that_are_not_known():
    design = parse("y ~ 1 + (1|school/room) + (1|teacher)", FRAME)
    new = pd.DataFrame(
        {"school": ["s0", "s0", "s9"], "room": ["r0", "r11", "r0"], "teacher": [1.0, 9, 2]}
    )
    found = _new_rows.random_rows(design, new)
    level = {name: [int(i) >= 0 for i in values] for name, values in found.level.items()}
    # r11 has rows, but not in s0. 1.0 is the teacher 1.
    assert level == {
        "school": [True, True, False],
        "school:room": [True, False, False],
        "teacher": [True, False, True],
    }
    assert found.unknown["school"] == ["'s9'"]
    assert found.unknown["school:room"] == ["'s0':'r11'", "'s9':'r0'"]
    assert found.unknown["teacher"] == ["9.0"]


BAD = {
    "no column": (
        {"arm": ["a"]},
        "new_data has no column 'x', which the formula needs; it has arm.",
    ),
    "missing": (
        {"x": [1.0, np.nan], "arm": ["a", "b"], "school": ["s0", "s1"]},
        "column 'x' of new_data has 1 missing value(s): drop those rows, or impute them first.",
    ),
    "level": (
        {"x": [1.0], "arm": ["d"], "school": ["s0"]},
        "'arm' is 'd' in new_data, a level without an effect: the fit had 'a', 'b', 'c'.",
    ),
    "text": (
        {"x": ["one"], "arm": ["a"], "school": ["s0"]},
        "the term 'x' cannot be evaluated on new_data: could not convert string to float: 'one'; "
        "give its columns the kind that they had in the fit.",
    ),
    "infinite": (
        {"x": [1.0, np.inf], "arm": ["a", "a"], "school": ["s0", "s0"]},
        "the fixed effect 'x' is inf in row 1: it must be finite.",
    ),
    "no group": (
        {"x": [1.0], "arm": ["a"]},
        "new_data has no column 'school', which the formula needs; it has x, arm.",
    ),
    "no rows": ({"x": [], "arm": []}, "new_data has no rows."),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows(name):
    data, message = BAD[name]
    design = parse("y ~ x + arm + (1|school)", FRAME)

    def both():
        frame = _new_rows.read(data)
        return _new_rows.fixed_rows(design, frame), _new_rows.random_rows(design, frame)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 (all of the message is looked at)
        both()
    assert str(caught.value) == message


def test_factors_and_covariates():
    design = parse("y ~ arm * scale(x) + C(k) + offset(log(t)) + (1|school)", FRAME)
    known = _new_rows.factors(design)
    assert {name: factor.levels for name, factor in known.items()} == {
        "arm": ["a", "b", "c"],
        "k": [1, 2, 3],
    }
    assert _new_rows.covariates(design) == ["t", "x"]


def test_later_changes_of_the_data_change_nothing():
    frame = FRAME.copy()
    design = parse("y ~ scale(x) + (1|school)", frame)
    frame["x"] = 0.0
    X, _ = _new_rows.fixed_rows(design, FRAME.iloc[:3])
    np.testing.assert_allclose(X, design.X[:3])
