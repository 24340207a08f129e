"""fit_many: every fit of a batch is the fit one would have made alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from shared_models import pair

Y = np.array([0.5, 1.5, 4.0])
RNG = np.random.default_rng(0)
PARTICLES = RNG.normal(1.0, 0.7, size=(8, 3))
KEYS = jax.random.split(jax.random.key(5), 3)


def model(data=Y, kind=jalax.Model):
    return kind(pair, latent=jnp.zeros(3), data=data)


def jala_em(step_size=0.05, learning_rate=0.05):
    optimizer = jalax.Optax(optax.sgd, learning_rate=learning_rate)
    return jalax.JALAEM(step_size=step_size, optimizer=optimizer, resample_below=0.9)


def arguments(**changes):
    return {
        "model": model(),
        "theta": 0.3,
        "key": KEYS,
        "algorithm": jala_em(),
        "start": jalax.Given(PARTICLES, log_evidence=-7.0),
        "num_steps": 12,
        "chunk_size": 5,
        **changes,
    }


def assert_close(many, alone):
    assert many.status == alone.status
    assert many.algorithm == alone.algorithm
    for name in ("theta", "particles", "log_weights", "history", "state"):
        a, b = getattr(many, name), getattr(alone, name)
        assert jax.tree.structure(a) == jax.tree.structure(b), name
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(
        np.nan if many.path_value is None else many.path_value,
        np.nan if alone.path_value is None else alone.path_value,
        rtol=1e-9,
    )


STEP_SIZES = np.array([0.01, 0.05, 0.1])
RATES = np.array([0.01, 0.05, 0.2])
THETAS = np.array([-0.5, 0.3, 1.0])
DATA = RNG.normal(1.0, 1.0, size=(3, 3))
STARTS = RNG.normal(size=(3, 8, 3))

# What leads with the fit axis, and the same for fit number i alone.
CASES = {
    "key": ({}, lambda i: {}),
    "theta": ({"theta": THETAS, "axes": {"theta": 0}}, lambda i: {"theta": THETAS[i]}),
    "start": (
        {
            "start": jalax.Given(STARTS, log_evidence=np.arange(3.0)),
            "axes": {"start": 0},
        },
        lambda i: {"start": jalax.Given(STARTS[i], log_evidence=float(i))},
    ),
    "part of the start": (
        {
            "start": jalax.Given(STARTS, log_evidence=-7.0),
            "axes": {"start": jalax.Given(0, None, None)},
        },
        lambda i: {"start": jalax.Given(STARTS[i], log_evidence=-7.0)},
    ),
    "everything": (
        {
            "model": model(DATA),
            "theta": THETAS,
            "algorithm": jala_em(STEP_SIZES, RATES),
            "start": jalax.Given(STARTS, log_evidence=np.arange(3.0)),
            "axes": dict.fromkeys(("data", "theta", "step_size", "optimizer", "start"), 0),
        },
        lambda i: {
            "model": model(DATA[i]),
            "theta": THETAS[i],
            "algorithm": jala_em(STEP_SIZES[i], RATES[i]),
            "start": jalax.Given(STARTS[i], log_evidence=float(i)),
        },
    ),
}


@pytest.mark.parametrize("name", ["key", "everything"])
def test_every_fit_is_the_fit_alone(x64, name):
    changes, alone = CASES[name]
    many = jalax.fit_many(**arguments(**changes))
    assert len(many) == 3
    for i in range(3):
        assert_close(many[i], jalax.fit(**arguments(key=KEYS[i], **alone(i))))
    thetas = [float(result.theta) for result in many]
    assert len(set(thetas)) == 3  # they do differ
    np.testing.assert_array_equal(many.theta, thetas)
    np.testing.assert_array_equal(many.path_log_evidence, [r.path_log_evidence for r in many])
    assert many.status == ["max_steps"] * 3


@pytest.mark.parametrize("name", ["theta", "start", "part of the start"])
def test_every_axis_alone(x64, name):
    """With one key for all, what differs between the fits is the axis."""
    changes, alone = CASES[name]
    same = jax.random.clone(KEYS[jnp.zeros(3, int)])
    many = jalax.fit_many(**arguments(key=same, **changes))
    for i in range(3):
        assert_close(many[i], jalax.fit(**arguments(key=KEYS[0], **alone(i))))
    assert len({float(result.theta) for result in many}) == 3


def test_one_key_is_split_over_the_fits(x64):
    split = jax.random.split(jax.random.key(5), 3)
    many = jalax.fit_many(**arguments(key=jax.random.key(5)), num_fits=3)
    same = jalax.fit_many(**arguments(key=split))
    np.testing.assert_array_equal(many.theta, same.theta)


@pytest.fixture(scope="module")
def mixed():
    """Groups, constraints, and trees mapped leaf by leaf: many, alone, and run.theta."""

    def split(theta):
        return {"m": theta["v"][0], "s": jnp.exp(theta["v"][1]), "fixed": theta["fixed"]}

    def tree_joint(theta, x, data):
        prior = -0.5 * jnp.sum((x - theta["m"]) ** 2) - theta["s"] ** 2 - theta["fixed"] ** 2
        return prior - data["w"] * jnp.sum((data["y"] - x) ** 2)

    with jax.enable_x64(True):
        y, w = RNG.normal(size=(3, 2, 3)), np.array([0.1, 0.2])  # fit, group, latent; group
        thetas, seen = RNG.normal(size=(3, 2)), []
        grouped = jalax.GroupedModel(
            tree_joint, jnp.zeros(3), data={"y": y[0], "w": w}, constrain=split
        )
        options = {
            "algorithm": jalax.PGD(step_size=0.02),
            "start": jalax.Given(RNG.normal(size=(2, 6, 3))),
        }
        many = jalax.fit_many(
            **arguments(
                model=grouped.replace(data={"y": y, "w": w}),
                theta={"v": thetas, "fixed": 0.1},
                axes={"theta": {"v": 0, "fixed": None}, "data": {"y": 0, "w": None}},
                callbacks=[jalax.stop_when(lambda run: seen.append(run.theta))],
                **options,
            )
        )
        alone = [
            jalax.fit(
                **arguments(
                    model=grouped.replace(data={"y": y[i], "w": w}),
                    theta={"v": thetas[i], "fixed": 0.1},
                    key=KEYS[i],
                    **options,
                )
            )
            for i in range(3)
        ]
    return many, alone, seen


def test_groups_and_trees_mapped_leaf_by_leaf(mixed):
    many, alone, _ = mixed
    for i in range(3):
        assert_close(many[i], alone[i])
    assert many[0].particles.shape == (2, 6, 3)
    assert many.theta["s"].shape == (3,)
    assert len(set(many.theta["m"].tolist())) == 3
    assert np.isnan(many.path_log_evidence).all()  # PGD has none


def test_callbacks_see_the_constrained_theta_of_each_fit(mixed):
    many, _, seen = mixed
    for name in ("m", "s", "fixed"):
        np.testing.assert_allclose(seen[-1][name], many.theta[name], rtol=1e-12)


def test_the_chunk_size_does_not_matter(x64):
    one, all_ = (jalax.fit_many(**arguments(chunk_size=n)) for n in (1, 100))
    np.testing.assert_array_equal(one.theta, all_.theta)
    np.testing.assert_array_equal(one[2].history["ess"], all_[2].history["ess"])


def test_a_fit_of_many_can_be_continued_alone(x64):
    whole = jalax.fit_many(**arguments())
    first = jalax.fit_many(**arguments(num_steps=5))
    rest = jalax.fit(**arguments(key=KEYS[1], state=first[1].state, num_steps=7))
    np.testing.assert_allclose(rest.theta, whole[1].theta, rtol=1e-9)
    np.testing.assert_allclose(rest.path_value, whole[1].path_value, rtol=1e-9)


# ---------------------------------------------------------------- divergence and callbacks


def test_a_fit_that_diverges_leaves_the_others_alone(x64):
    """The second fit overflows float64 after some 90 steps, in the middle of a chunk."""
    sizes = np.array([0.01, 1e3, 0.1])
    options = {"num_steps": 150, "chunk_size": 40}
    broken = jalax.fit_many(
        **arguments(algorithm=jala_em(step_size=sizes), axes={"step_size": 0}, **options)
    )
    assert broken.status == ["max_steps", "diverged", "max_steps"]
    for i in (0, 2):
        alone = arguments(key=KEYS[i], algorithm=jala_em(step_size=sizes[i]), **options)
        assert_close(broken[i], jalax.fit(**alone))
        assert len(broken[i].history["ess"]) == 150
    alone = jalax.fit(**arguments(key=KEYS[1], algorithm=jala_em(step_size=1e3), **options))
    assert alone.status == "diverged"
    done = int(broken[1].state.step)
    assert 0 < done == int(alone.state.step) < 150
    assert len(broken[1].history["ess"]) == done
    assert np.isfinite(broken[1].history["theta"]).all()
    assert np.isfinite(float(broken[1].theta))
    np.testing.assert_array_equal(np.isnan(broken.path_log_evidence), [False, True, False])
    assert f"step {done}" in broken[1].message
    with pytest.warns(UserWarning, match="diverged"):
        assert broken[1].path_log_evidence is None


def test_all_diverged(x64):
    many = jalax.fit_many(**arguments(algorithm=jala_em(step_size=1e3), num_steps=500))
    assert many.status == ["diverged"] * 3
    assert all(0 < len(r.history["ess"]) < 500 for r in many)


def test_callbacks_see_all_fits(x64):
    seen = []

    def enough(run):
        seen.append((run.step, np.shape(run.theta), run.history["ess"].shape))
        return "enough" if run.step >= 10 else False

    many = jalax.fit_many(**arguments(callbacks=[jalax.stop_when(enough)]))
    assert seen == [(5, (3,), (3, 5)), (10, (3,), (3, 10))]
    assert many.status == ["stopped"] * 3
    assert [result.message for result in many] == ["enough"] * 3
    assert [len(result.history["ess"]) for result in many] == [10] * 3


def test_results_are_a_sequence(x64):
    many = jalax.fit_many(**arguments())
    assert [result.theta for result in many] == [many[i].theta for i in range(3)]
    assert len(many[1:]) == 2
    text = repr(many)
    for i in range(3):
        assert f"[{i}] JALAEM: 12 steps" in text
