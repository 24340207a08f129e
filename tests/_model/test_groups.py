"""group_by: ragged groups as padded arrays."""

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


def classes(seed=1):
    """Children of classes of schools, whose number of classes differs; rows in no order."""
    rng = np.random.default_rng(seed)
    of_school = {"a": 3, "b": 1, "c": 5}
    kinds = [
        (school, f"{school}{k}") for school, number in of_school.items() for k in range(number)
    ]
    rows = [kinds[k] for k in rng.permutation(np.repeat(np.arange(9), 4))]
    school, label = (np.array(column) for column in zip(*rows, strict=True))
    urban = np.array([1.0 if name == "b" else 0.0 for name in school])
    y, x = rng.normal(size=(2, len(rows)))
    return {"y": y, "x": x, "school": school, "class": label, "urban": urban}


def test_inner_levels_have_a_position_and_a_mask():
    rows = classes()
    groups = jalax.group_by(rows, "school", once="urban", levels="class")
    assert groups.data["urban"].tolist() == [0.0, 1.0, 0.0]
    assert groups.data["class mask"].sum(axis=1).tolist() == [3, 1, 5]
    assert groups.levels["class"][1].tolist() == ["b0", None, None, None, None]
    for i, school in enumerate("abc"):
        own = rows["class"][rows["school"] == school]
        real = groups.data["mask"][i]
        assert groups.levels["class"][i][groups.data["class"][i][real]].tolist() == own.tolist()


def test_latents_of_inner_levels_written_by_hand_are_the_formula_s(x64):
    """Levels that a group has not are those of a prior, whose integral is one."""
    pandas = pytest.importorskip("pandas")
    rows = classes()
    factory = models.mixed("y ~ x + urban + (1|school) + (1|class)", pandas.DataFrame(rows))
    groups = jalax.group_by(rows, "school", once="urban", levels="class")

    def log_joint(theta, x, data):
        beta = theta["beta"]
        eta = (
            beta[0] + beta[1] * data["x"] + beta[2] * data["urban"] + x["u"] + x["v"][data["class"]]
        )
        rows = jax.scipy.stats.norm.logpdf(data["y"], eta, theta["sigma"])
        prior = jax.scipy.stats.norm.logpdf(x["v"], 0.0, theta["sd_class"])
        total = jnp.sum(rows * data["mask"]) + jnp.sum(prior)
        return total + jax.scipy.stats.norm.logpdf(x["u"], 0.0, theta["sd_school"])

    latent = {"u": jnp.zeros(()), "v": jnp.zeros(5)}
    model = jalax.GroupedModel(log_joint, latent, groups.data)
    theta = {"beta": jnp.array([0.3, -0.2, 0.5]), "sigma": 0.9, "sd_class": 0.6, "sd_school": 1.2}
    sd = {"class": jnp.array([0.6]), "school": jnp.array([1.2])}
    cor = {"class": jnp.zeros(0), "school": jnp.zeros(0)}
    of_factory = {"beta": theta["beta"], "sigma": jnp.array(0.9), "sd": sd, "cor": cor}
    # The marginal of Gaussian latents: by Laplace's approximation it is exact.
    mine = jalax.log_evidence(model, theta, key=jax.random.key(0))
    other = jalax.log_evidence(factory, of_factory, key=jax.random.key(0))
    assert float(mine.value) == pytest.approx(float(other.value), abs=1e-6)


def test_what_is_not_the_same_in_a_group_cannot_come_once():
    with pytest.raises(ValueError, match="'x', which is not the same in all rows of group 'a'"):
        jalax.group_by(classes(), "school", once=["x"], levels=["class"])
    with pytest.raises(ValueError, match="levels= names 'room'; the columns are"):
        jalax.group_by(classes(), "school", levels=["room"])
