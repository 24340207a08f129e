"""group_by: ragged groups as padded arrays, and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax import datasets, models


def ragged(seed=0, num_rows=40):
    rng = np.random.default_rng(seed)
    return {
        "y": rng.normal(size=num_rows),
        "x": rng.normal(size=(num_rows, 2)),
        "count": rng.integers(0, 9, num_rows),
        "school": rng.choice(["north", "south", "east", "west"], num_rows),
    }


def test_every_row_is_found_in_its_group_and_in_order():
    rows = ragged()
    groups = jalax.group_by(rows, "school")
    assert groups.labels.tolist() == ["east", "north", "south", "west"]
    assert groups.data["mask"].shape == (4, groups.sizes.max())
    assert set(groups.data) == {"y", "x", "count", "mask"}
    for i, label in enumerate(groups.labels):
        own = rows["school"] == label
        assert groups.sizes[i] == own.sum() == groups.data["mask"][i].sum()
        for name in ("y", "x", "count"):
            np.testing.assert_array_equal(
                groups.data[name][i][groups.data["mask"][i]], rows[name][own]
            )
            assert not groups.data[name][i][~groups.data["mask"][i]].any()


def test_labels_may_stand_beside_the_data():
    rows = ragged()
    school = rows.pop("school")
    for labels in (school, school.tolist(), school.astype(object)):
        groups = jalax.group_by(rows, labels)
        assert groups.labels.tolist() == ["east", "north", "south", "west"]


def test_a_padded_model_written_by_hand_is_the_factory_s(x64):
    """cbpp: the same log-joint, group by group, as models.random_intercept."""
    cbpp = datasets.cbpp()
    factory = models.random_intercept(
        cbpp.incidence, cbpp.covariates, cbpp.herd, family=models.Binomial(cbpp.size)
    )
    rows = {"y": cbpp.incidence, "n": cbpp.size, "x": cbpp.covariates}
    groups = jalax.group_by(rows, cbpp.herd)
    np.testing.assert_array_equal(groups.labels, factory.groups)

    def log_joint(theta, b, data):
        eta = data["x"] @ theta["beta"] + b
        choose = jax.scipy.special.gammaln(data["n"] + 1.0)
        choose -= jax.scipy.special.gammaln(data["y"] + 1.0)
        choose -= jax.scipy.special.gammaln(data["n"] - data["y"] + 1.0)
        each = choose + data["y"] * eta - data["n"] * jax.nn.softplus(eta)
        prior = -0.5 * b**2 * jnp.exp(-2 * theta["log_sd"]) - theta["log_sd"]
        return jnp.sum(jnp.where(data["mask"], each, 0.0)) + prior - 0.5 * jnp.log(2 * jnp.pi)

    theta = {"beta": jnp.array([-1.0, -0.5, -0.3, 0.2]), "log_sd": jnp.array(-0.4)}
    for i in range(len(groups.labels)):
        mine = jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), groups.data)
        theirs = jax.tree.map(lambda leaf, i=i: leaf[i], factory.data)
        np.testing.assert_allclose(
            log_joint(theta, 0.3, mine), factory.log_joint(theta, 0.3, theirs), rtol=1e-12
        )


class Frame(dict):
    """The part of a DataFrame that group_by looks at (pandas is no dependency of the tests)."""

    @property
    def columns(self):
        return list(self)


class Categorical(np.ndarray):
    class cat:
        categories = ("east", "north", "south", "west", "nowhere")


@pytest.mark.parametrize(
    ("data", "key", "error", "words"),
    [
        ([1.0, 2.0], "school", TypeError, "DataFrame or a dict of arrays, got list"),
        (ragged(), "village", ValueError, "no column 'village'.*'count', 'school'"),
        ({"school": ragged()["school"]}, "school", ValueError, "at least one column"),
        ({**ragged(), "mask": np.ones(40)}, "school", ValueError, "called 'mask'"),
        ({**ragged(), "z": np.ones(7)}, "school", ValueError, "'z' has 7 rows.* 40 group labels"),
        ({**ragged(), "z": 3.0}, "school", ValueError, "'z' is a single number"),
        ({**ragged(), "z": ["a"] * 40}, "school", TypeError, "'z' is not numeric"),
        (ragged(), np.array([1.0, np.nan] * 20), ValueError, "fractions or NaN"),
        (ragged(), ["a", None] * 20, ValueError, "missing labels"),
        (ragged(), np.ones((40, 1)), ValueError, "one label for each observation"),
        (
            Frame(ragged(), school=ragged()["school"].view(Categorical)),
            "school",
            ValueError,
            "group 'nowhere' of column 'school' has no rows",
        ),
    ],
)
def test_bad_input(data, key, error, words):
    with pytest.raises(error, match=words):
        jalax.group_by(data, key)


def log_joint(theta, x, data):
    rows = -0.5 * jnp.sum(jnp.where(data["mask"], (data["y"] - x) ** 2, 0.0))
    return rows - 0.5 * (x - theta) ** 2


def test_a_group_without_rows_is_refused_before_the_fit():
    groups = jalax.group_by({"y": np.arange(5.0)}, [0, 0, 1, 1, 2])
    groups.data["mask"][1] = False
    model = jalax.GroupedModel(log_joint, jnp.zeros(()), groups.data)
    with pytest.raises(ValueError, match="the mask of group 1 is all zero"):
        jalax.fit(model, 0.0, key=jax.random.key(0))


def test_ragged_groups_without_a_mask_are_pointed_to_group_by():
    ragged = np.empty(2, object)
    ragged[:] = [np.arange(2.0), np.arange(3.0)]
    model = jalax.GroupedModel(log_joint, jnp.zeros(()), {"y": ragged})
    with pytest.raises(TypeError, match="pad groups of different length"):
        jalax.fit(model, 0.0, key=jax.random.key(0))
    with pytest.raises(ValueError, match="groups of different length are padded"):
        jalax.GroupedModel(log_joint, jnp.zeros(()), {"y": [np.arange(2.0), np.arange(3.0)]})
