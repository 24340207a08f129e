"""Covariances of random effects: densities, draws and white latents against matrices of NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import jalax
from jalax import covariances as cov
from jalax.models import _covariances
from jalax.models._correlations import NUGGET
from jalax.models._design import Asked
from jalax.models._effects import WHITE, log_prior, random_effects, whiten
from jalax.models._laws import bends, half_steps, own_of
from jalax.models._mixed import build

WEEKS = np.array([1, 2, 4, 10])  # a gap, and 10 is before 2 as text
GROUPS = 5
FRAME = pd.DataFrame(
    {
        "y": np.random.default_rng(0).normal(size=20),
        "x": np.random.default_rng(1).normal(size=20),
        "g": np.repeat([f"g{i}" for i in range(GROUPS)], 4),
        "week": np.tile(WEEKS, GROUPS),
        "w": np.tile([f"w{i}" for i in WEEKS], GROUPS),
        "arm": np.tile(list("abcd"), GROUPS),
    }
)
PLACES = {"g0": (0.0, 0.0), "g1": (1.0, 0.0), "g2": (0.0, 2.0), "g3": (3.0, 1.0), "g4": (2.0, 2.0)}
FAR = np.linalg.norm(
    np.array(list(PLACES.values()))[:, None] - np.array(list(PLACES.values())), axis=2
)
# A child of two founders, its sibling, and a child of the two.
A = np.array(
    [
        [1.0, 0.0, 0.5, 0.5, 0.5],
        [0.0, 1.0, 0.5, 0.5, 0.5],
        [0.5, 0.5, 1.0, 0.5, 0.75],
        [0.5, 0.5, 0.5, 1.0, 0.75],
        [0.5, 0.5, 0.75, 0.75, 1.25],
    ]
)
LAG = np.abs(WEEKS[:, None] - WEEKS)


def matern(t, nu):
    """By Bessel's function."""
    t = np.where(t == 0, 1e-9, t)
    return 2 ** (1 - nu) / special.gamma(nu) * t**nu * special.kv(nu, t)


# Formula, covariances, numbers of theta, and the covariance that these make.
WITHIN = {
    "us": (
        "y ~ x + us(x | g)",
        None,
        {"sd": [1.5, 0.5], "cor": [-0.6]},
        np.array([[2.25, -0.45], [-0.45, 0.25]]),
    ),
    "diag": ("y ~ x + diag(x | g)", None, {"sd": [1.5, 0.5]}, np.diag([2.25, 0.25])),
    "cs": (
        "y ~ x + cs(0 + arm | g)",
        None,
        {"sd": [1.0, 2.0, 0.5, 1.5], "cor": [-0.2]},
        np.outer([1.0, 2.0, 0.5, 1.5], [1.0, 2.0, 0.5, 1.5]) * (1.2 * np.eye(4) - 0.2),
    ),
    "ar1": (
        "y ~ x + ar1(0 + C(week) | g)",
        None,
        {"sd": [1.5], "cor": [-0.7]},
        2.25 * (-0.7) ** LAG,
    ),
    "ar1 of text": (
        "y ~ x + (0 + w | g)",
        {"g": cov.AR1()},
        {"sd": [1.5], "cor": [0.7]},
        2.25 * 0.7 ** LAG[np.ix_([0, 3, 1, 2], [0, 3, 1, 2])],  # w1, w10, w2, w4
    ),
    "exp": (
        "y ~ x + exp(0 + C(week) | g)",
        None,
        {"sd": [1.5], "range": [2.0]},
        2.25 * np.exp(-LAG / 2),
    ),
    "exp in the plane": (
        "y ~ x + exp(0 + arm | g)",
        {"g": cov.Exponential(dict(zip("abcd", PLACES.values(), strict=False)))},
        {"sd": [1.5], "range": [2.0]},
        2.25 * np.exp(-FAR[:4, :4] / 2),
    ),
    "mat": (
        "y ~ x + (0 + C(week) | g)",
        {"g": cov.Matern()},
        {"sd": [1.5], "range": [2.0]},
        2.25 * matern(LAG / 2, 1.5),
    ),
}
JOINT = {
    "ar1": (cov.AR1(), {"cor": [0.7]}, 0.7 ** np.abs(np.arange(5)[:, None] - np.arange(5))),
    "exp on a line": (
        cov.Exponential({"g0": 0.0, "g1": 3.0, "g2": 1.0, "g3": 7.0, "g4": 2.5}),
        {"range": [2.0]},
        np.exp(-np.abs(np.subtract.outer([0, 3, 1, 7, 2.5], [0, 3, 1, 7, 2.5])) / 2),
    ),
    "exp": (cov.Exponential(PLACES), {"range": [2.0]}, np.exp(-FAR / 2)),
    "mat": (cov.Matern(pd.DataFrame(PLACES).T), {"range": [2.0]}, matern(FAR / 2, 1.5)),
    "smooth": (cov.Matern(PLACES, smoothness=2.5), {"range": [2.0]}, matern(FAR / 2, 2.5)),
    "rough": (cov.Matern(PLACES, smoothness=0.5), {"range": [2.0]}, np.exp(-FAR / 2)),
    "known": (cov.Known(A, [f"g{i}" for i in range(5)]), {}, A),
}


def built(formula, covariances=None):
    return build(formula, FRAME, "gaussian", Asked(covariances=covariances))


def theta_of(model, own):
    """theta with the numbers of the block g."""
    parts = {part: {"g": jnp.asarray(value, float)} for part, value in own.items()}
    return model.theta | parts


def agrees(value, expected, precision):
    np.testing.assert_allclose(
        value,
        expected,
        **(
            {"rtol": 1e-8, "atol": 1e-8} if precision == "float64" else {"rtol": 2e-5, "atol": 2e-5}
        ),
    )


def densities(laws, theta, b, known):
    """log p of b; b by way of its white latents, the Jacobian of that, and log p of them."""
    zero = jnp.zeros((), theta["beta"].dtype)

    @jax.jit  # operation by operation this takes a hundred programs
    def found(theta, b):
        def effects(x):
            return random_effects(laws, theta, {"g": x}, known | {WHITE: 1})["g"]

        white = whiten(laws, theta, {"g": b})
        of_white = log_prior(laws, theta, white, known | {WHITE: 1}, zero)
        density = log_prior(laws, theta, {"g": b}, known, zero)
        return density, effects(white["g"]), jax.jacfwd(effects)(white["g"]), of_white

    return found(theta, b)


def check(model, mixed, own, sigma, levels, precision):
    """Density, white latents, the table's matrix, and theta there and back."""
    theta = theta_of(model, own)
    known = model.data if mixed.outer is None else {}
    size = sigma.shape[0] // (levels if mixed.outer is None else 1)
    b = np.random.default_rng(2).normal(size=(levels, size))
    found, again, jacobian, of_white = densities(mixed.laws, theta, jnp.asarray(b, float), known)
    rows = b.reshape(-1, sigma.shape[0])
    if mixed.placed["g"].known.get("distance") is not None:  # what is added in this precision
        sigma = sigma + 2.25 * NUGGET * jnp.finfo(precision).eps * np.eye(levels)
    exact = stats.multivariate_normal(cov=sigma).logpdf(rows).sum()
    agrees(found, exact, precision)
    agrees(again, b, precision)
    flat = np.asarray(jacobian, float).reshape(b.size, b.size)
    agrees(of_white - np.linalg.slogdet(flat)[1], exact, precision)
    law, arrays, _ = mixed.placed["g"]
    agrees(law.covariance(own_of(theta, "g"), arrays), sigma, precision)
    back = model.constrained(model.unconstrained(theta))
    for part, value in own.items():
        agrees(back[part]["g"], value, precision)


@pytest.mark.slow_cases(*(f"float64-{name}" for name in WITHIN if name != "us"))
@pytest.mark.parametrize("name", WITHIN)
def test_effects_of_a_level(name, precision):
    formula, asked, own, sigma = WITHIN[name]
    model, mixed = built(formula, asked)
    assert model.num_groups == GROUPS
    check(model, mixed, own, sigma, 3, precision)


@pytest.mark.parametrize("name", JOINT)
def test_levels_that_depend_on_each_other(name, precision):
    covariance, own, correlation = JOINT[name]
    model, mixed = built("y ~ x + (1 | g)", {"g": covariance})
    assert mixed.outer is None
    check(model, mixed, {"sd": [1.5]} | own, 2.25 * correlation, GROUPS, precision)


@pytest.mark.parametrize("name", ["cs", "ar1", "exp", "exp in the plane"])
def test_draws_of_a_level(name):
    formula, asked, own, sigma = WITHIN[name]
    model, mixed = built(formula, asked)
    law, num = mixed.placed["g"].law, 100_000
    own = own_of(theta_of(model, own), "g")
    drawn = jax.jit(lambda key, own: law.draw(key, own, num, {}))(jax.random.key(0), own)
    b = np.asarray(drawn, float)
    scale = np.sqrt(np.outer(np.diagonal(sigma), np.diagonal(sigma)))
    # A covariance of so many draws has a standard error of at most 1.4 / sqrt(num) in this scale.
    np.testing.assert_allclose(np.cov(b.T) / scale, sigma / scale, atol=4.5 * 1.42 / np.sqrt(num))


@pytest.mark.parametrize("name", ["ar1", "exp", "known"])
def test_draws_of_joint_levels(name):
    covariance, own, correlation = JOINT[name]
    model, mixed = built("y ~ x + (1 | g)", {"g": covariance})
    (law, known, _), num = mixed.placed["g"], 100_000
    own = own_of(theta_of(model, {"sd": [1.5]} | own), "g")
    keys = jax.random.split(jax.random.key(0), num)
    b = jax.jit(jax.vmap(lambda key: law.draw(key, own, GROUPS, known)))(keys)
    found = np.cov(np.asarray(b, float)[:, :, 0].T) / 2.25
    np.testing.assert_allclose(found, correlation, atol=4.5 * 1.77 / np.sqrt(num))


@pytest.mark.parametrize("name", JOINT)
def test_the_structure_is_that_of_the_hessian(name, x64):
    covariance, own, _ = JOINT[name]
    model, _ = built("y ~ x + (1 | g)", {"g": covariance})
    theta = theta_of(model, {"sd": [1.5]} | own)
    for white in (model, model.whitened()):
        hessian = jax.hessian(lambda x, m=white: m.log_joint(theta, {"g": x[:, None]}, m.data))
        found = np.abs(np.asarray(jax.jit(hessian)(jnp.arange(5.0)))) > 1e-10
        allowed = model.structure.matrix().toarray() > 0
        assert not (found & ~allowed).any()
        assert (found == allowed).all()


def test_heavy_tails(precision):
    """scipy's multivariate t, and white latents, which are bent."""
    sigma = np.array([[2.25, -0.45], [-0.45, 0.25]])
    b = 3 * np.random.default_rng(0).normal(size=(3, 2))
    for df in (3.5, None):
        model, mixed = built("y ~ x + (x | g)", {"g": cov.StudentT(df=df)})
        own = {"sd": [1.5, 0.5], "cor": [-0.6]} | ({} if df else {"tails": [3.5]})
        found, again, jacobian, of_white = densities(
            mixed.laws, theta_of(model, own), jnp.asarray(b, float), {}
        )
        exact = stats.multivariate_t(shape=sigma, df=3.5).logpdf(b).sum()
        agrees(found, exact, precision)
        agrees(again, b, precision)
        log_volume = np.linalg.slogdet(np.asarray(jacobian, float).reshape(6, 6))[1]
        agrees(of_white, exact + log_volume, precision)
        labels = ["cor Intercept, x | g", "scale Intercept | g", "scale x | g", "sigma"]
        assert list(model.outside.labels[2:]) == labels + ([] if df else ["df | g"])


def test_the_bend_is_smooth_at_zero(x64):
    """log sinh(r) / r and log cosh(r), and their derivatives, where the series takes over."""
    r = np.array([1e-8, 0.1, 0.31622, 0.31623, 1.0, 20.0])
    found = np.array(jax.jit(bends)(jnp.asarray(r**2)))
    np.testing.assert_allclose(found, [np.log(np.sinh(r) / r), np.log(np.cosh(r))], atol=1e-8)
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda s: jnp.stack(bends(s)))))(jnp.asarray(r**2)).T
    exact = [(r / np.tanh(r) - 1) / (2 * r**2), np.tanh(r) / (2 * r)]
    np.testing.assert_allclose(slopes[:, 1:], np.array(exact)[:, 1:], atol=1e-6)
    assert jax.jit(jax.grad(lambda s: bends(s)[0]))(0.0) == pytest.approx(1 / 6)


def test_draws_have_heavy_tails():
    model, mixed = built("y ~ x + (1 | g)", {"g": cov.StudentT(df=3.0)})
    own = own_of(theta_of(model, {"sd": [2.0]}), "g")
    law = mixed.placed["g"].law
    drawn = jax.jit(lambda key, own: law.draw(key, own, 20_000, {}))(jax.random.key(0), own)
    b = np.asarray(drawn, float)
    assert stats.kstest(b[:, 0] / 2, stats.t(df=3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_ratios_of_gamma_functions_keep_their_digits(num):
    """In float32 gammaln(1e6) has an error of one."""
    a = np.array([0.25, 1.0, 3.0, 40.0, 1e6])
    exact = special.gammaln(a + num / 2) - special.gammaln(a)
    steps = jax.jit(half_steps, static_argnums=1)
    np.testing.assert_allclose(steps(jnp.asarray(a), num), exact, rtol=2e-6, atol=2e-7)
    with jax.enable_x64(True):
        found = steps(jnp.asarray(a[:4]), num)
        np.testing.assert_allclose(found, exact[:4], rtol=1e-10, atol=1e-10)


def test_a_week_without_rows_counts_and_order_is_that_of_numbers():
    _, mixed = built("y ~ x + (0 + w | g)", {"g": cov.AR1()})
    assert dict(mixed.placed["g"].law.constants)["gap"] == (1.0, 2.0, 6.0)


def test_an_ordered_categorical_has_its_order():
    order = ["d", "b", "a", "c"]
    ordered = FRAME.assign(arm=pd.Categorical(FRAME.arm, categories=order, ordered=True))
    _, mixed = build("y ~ x + ar1(0 + arm | g)", ordered, "gaussian")
    assert dict(mixed.placed["g"].law.constants)["gap"] == (1.0, 1.0, 1.0)
    assert mixed.design.blocks[0].effects == tuple(f"arm[{one}]" for one in order)


def pedigree(num, seed=0):
    """The relationships of animals with two random parents among those before them (Henderson)."""
    rng = np.random.default_rng(seed)
    related = np.zeros((num, num))
    for i in range(num):
        a, b = rng.choice(i, 2, replace=False) if i > 4 else (-1, -1)
        if a >= 0:
            related[i, :i] = related[:i, i] = 0.5 * (related[a, :i] + related[b, :i])
        related[i, i] = 1.0 if a < 0 else 1 + 0.5 * related[a, b]
    return related


def test_the_inverse_of_a_pedigree_is_sparse():
    """An animal meets its parents, its children, and those it has children with."""
    num = 60
    frame = pd.DataFrame({"y": np.arange(num * 1.0), "animal": [f"a{i:02}" for i in range(num)]})
    related = cov.Known(pedigree(num), frame.animal)
    model = jalax.models.mixed("y ~ 1 + (1 | animal)", frame, covariances={"animal": related})
    assert model.structure.rows.size <= num + 3 * num  # of 60 * 61 / 2
    exact = np.linalg.inv(pedigree(num))
    np.testing.assert_allclose(model.data["covariance"]["animal"]["precision"], exact, atol=1e-5)


def test_theta_of_formulas_without_covariances_is_as_it_was():
    model, _ = built("y ~ x + (x | g)")
    assert sorted(model.theta) == ["beta", "cor", "sd", "sigma"]
    assert "covariance" not in model.data


def test_a_file_holds_them():
    for covariance in (JOINT[name][0] for name in JOINT):
        again = _covariances.read(_covariances.written(covariance))
        assert repr(again) == repr(covariance)
        known = [
            built("y ~ x + (1 | g)", {"g": one})[1].placed["g"].known for one in (covariance, again)
        ]
        jax.tree.map(np.testing.assert_array_equal, *known)
    assert _covariances.read(_covariances.written(cov.StudentT(df=3.0))).df == 3.0


TEXT = {"g": cov.Known(A, [f"g{i}" for i in range(5)])}
REFUSED = {
    "an unknown name": ("y ~ foo(x | g)", None, "there is no covariance foo(x | g): in a formula"),
    "glmmTMB's others": ("y ~ toep(0 + arm | g)", None, "write us(...)"),
    "a matrix in the formula": ("y ~ propto(1 | g)", None, "jalax.covariances.Known"),
    "two bars": ("y ~ ar1(x || g)", None, "write diag(x | g)"),
    "no dict": ("y ~ (x | g)", cov.AR1(), "a dict from the names of blocks"),
    "no such block": ("y ~ (x | g)", {"h": cov.AR1()}, "those of 'g'"),
    "a class": ("y ~ (x | g)", {"g": cov.AR1}, "must be an object: AR1()"),
    "a name": ("y ~ (x | g)", {"g": "ar1"}, "must be an object of jalax.covariances"),
    "both": ("y ~ ar1(0 + arm | g)", {"g": cov.Diagonal()}, "leave one of them out"),
    "one effect, numeric": ("y ~ ar1(0 + week | g)", None, "write ar1(0 + C(f) | g)"),
    "cs of one": ("y ~ cs(1 | g)", None, "leave cs out"),
    "an intercept": ("y ~ ar1(arm | g)", None, "write ar1(0 + f | g)"),
    "no order": ("y ~ ar1(0 + arm | g)", None, "an ordered Categorical"),
    "no whole steps": ("y ~ ar1(0 + C(x) | g)", None, "not at whole steps"),
    "no coordinates": ("y ~ exp(0 + arm | g)", None, "which are no coordinates"),
    "a place is missing": (
        "y ~ (1 | g)",
        {"g": cov.Exponential({"g0": 1.0})},
        "no entry for the level 'g1'",
    ),
    "the same place": (
        "y ~ (1 | g)",
        {"g": cov.Exponential(dict.fromkeys(PLACES, 1.0))},
        "are at the same place",
    ),
    "a row is missing": ("y ~ (1 | arm)", {"arm": TEXT["g"]}, "no row for the level 'a'"),
    "several effects": ("y ~ (x | g)", TEXT, "write (1 | g) + (0 + x | g)"),
    "twins": (
        "y ~ (1 | g)",
        {"g": cov.Known(np.ones((5, 5)), [f"g{i}" for i in range(5)])},
        "must be positive definite",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name):
    formula, asked, sentence = REFUSED[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        jalax.models.mixed(formula, FRAME, covariances=asked)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cov.StudentT(df=0), "must be positive"),
        (lambda: cov.Matern(smoothness=1.0), "0.5, 1.5 or 2.5"),
        (lambda: cov.Exponential([1, 2]), "a dict from the labels"),
        (lambda: cov.Exponential({"a": (1, 2), "b": 3}), "equally many numbers"),
        (lambda: cov.Exponential({"a": np.nan}), "finite"),
        (lambda: cov.Known(np.eye(2)), "needs the label of each row"),
        (lambda: cov.Known(np.eye(2), ["a"]), "for 1 labels"),
        (lambda: cov.Known(np.eye(2), ["a", "a"]), "'a' twice"),
        (lambda: cov.Known([[1, 2], [0, 1]], ["a", "b"]), "symmetric"),
    ],
)
def test_objects_are_checked(make, sentence):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert sentence in str(caught.value)


def test_many_levels_in_the_plane_are_refused():
    rows = 2001
    frame = pd.DataFrame({"y": np.arange(rows), "g": np.arange(rows)})
    places = cov.Exponential({str(i): (i, i % 7) for i in range(rows)})
    with pytest.raises(ValueError, match=r"2,001 levels.* for up to 2,000"):
        jalax.models.mixed("y ~ 1 + (1 | g)", frame, covariances={"g": places})
    line = cov.Exponential({str(i): i for i in range(rows)})
    model = jalax.models.mixed("y ~ 1 + (1 | g)", frame, covariances={"g": line})
    assert model.structure.rows.size == 2 * rows - 1
