"""group_by: ragged groups as padded arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

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
            padding = groups.data[name][i][~groups.data["mask"][i]]
            assert (padding == rows[name][own][0]).all()


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
