"""Functions as compile-time keys: twins are equal, and nothing that differs is."""

from __future__ import annotations

import functools
import operator
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax._fit import loop
from jalax._model import checks
from jalax._runtime import function_keys
from jalax._runtime.function_keys import Static

SCALE = 1.0
TABLE = np.arange(4.0)
SETTINGS = {"a": 1.0}


def same(one, other):
    """Equal as keys (and then with equal hashes)."""
    first, second = Static(one), Static(other)
    if first == second:
        assert hash(first) == hash(second)
        assert {first: 1}[second] == 1
    return first == second


def helper(x):
    return x * SCALE


def scaled(x):
    return helper(x) + 1


def reads_table(x):
    return x + TABLE[0]


def reads_settings(x):
    return x + SETTINGS["a"]


def inner_reads_scale(x):
    def inner(y):
        return y * SCALE

    return inner(x)


def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


def closing_over(value):
    return lambda x: (x, value)


def with_default(value):
    return lambda x, y=value: (x, y)


def with_keyword_default(value):
    return lambda x, *, y=value: (x, y)


def closing_over_three(a, b, c):
    return lambda x: a(x) + b(x) * c(x)


MAKERS = {
    "closure": closing_over,
    "default": with_default,
    "keyword default": with_keyword_default,
    "partial": lambda value: functools.partial(closing_over, value),
    "partial keyword": lambda value: functools.partial(closing_over, value=value),
    "nested closure": lambda value: closing_over(closing_over(value)),
    "inside a dict": lambda value: closing_over({"a": [value, (value,)]}),
}


# ---------------------------------------------------------------- equal


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    "value",
    [1.0, "text", None, (1, 2), [1, 2], {"a": 1}, np.arange(3), np.zeros((0, 2)), np.array(2.0)],
    ids=repr,
)
def test_a_function_made_again_is_equal(maker, value):
    copy = value.copy() if isinstance(value, (np.ndarray, list, dict)) else value
    assert same(MAKERS[maker](value), MAKERS[maker](copy))


def test_the_same_jax_array_is_equal():
    array = jnp.arange(3.0)
    assert same(closing_over(array), closing_over(array))


def test_a_redefined_function_is_equal():
    """What running a notebook cell twice does."""
    source = "def f(theta, x):\n    g = lambda y: y * a\n    return g(x) + theta"
    one, two = {"a": 1.0}, {"a": 1.0}
    exec(source, one)
    exec(source, two)
    assert one["f"] is not two["f"]
    assert same(one["f"], two["f"])


def test_an_attribute_is_not_taken_for_a_global_of_its_name():
    """jax.scipy.stats.t reads no global t, and a script may well have one that changes."""
    one, two = {"jax": jax, "t": 1.0}, {"jax": jax, "t": 2.0}
    for names in (one, two):
        exec("def f(theta, x): return jax.scipy.stats.t.logpdf(x, theta)", names)
    assert same(one["f"], two["f"])
    for names in (one, two):
        exec("def g(theta, x): return x * t", names)
    assert not same(one["g"], two["g"])


def test_a_function_is_equal_to_itself_and_to_its_static():
    for function in (scaled, factorial, inner_reads_scale, jnp.exp, optax.adam, len):
        assert same(function, function)
        assert Static.of(Static(function)) == Static(function)


def test_bound_methods():
    class Scale:
        def __init__(self, scale):
            self.scale = scale

        def apply(self, x):
            return self.scale * x

        def other(self, x):
            return self.scale + x

    one, two = Scale(1.0), Scale(2.0)
    assert same(one.apply, one.apply)
    assert not same(one.apply, two.apply)
    assert not same(one.apply, one.other)


# ---------------------------------------------------------------- not equal


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 2.0),
        (1, 1.0),
        (1, True),
        ("a", "b"),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        (np.arange(3), np.arange(1, 4)),
        (np.arange(3), np.arange(3.0)),
        (np.zeros(4), np.zeros((2, 2))),
        (np.float32(1), np.float64(1)),
        (closing_over(1), closing_over(2)),
        (None, 0),
    ],
    ids=lambda value: getattr(value, "__qualname__", repr(value)),
)
def test_another_value_is_another_function(maker, one, other):
    assert not same(MAKERS[maker](one), MAKERS[maker](other))


def test_another_jax_array_is_another_function():
    assert not same(closing_over(jnp.arange(3.0)), closing_over(jnp.arange(1.0, 4.0)))


def test_other_code_is_another_function():
    assert not same(lambda x: x + 1, lambda x: x + 2)
    assert not same(lambda x: x + 1, lambda x: x - 1)
    assert not same(scaled, helper)
    assert not same(functools.partial(helper, 1), helper)
    assert not same(functools.partial(helper, 1), functools.partial(scaled, 1))


@pytest.mark.parametrize("function", [helper, scaled, inner_reads_scale])
def test_another_global_is_another_function(monkeypatch, function):
    """Read directly, by a helper, or by a function defined inside."""
    before = Static(function)
    assert before == Static(function)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert before != Static(function)


def test_another_helper_is_another_function(monkeypatch):
    before = Static(scaled)
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert before != Static(scaled)


def test_content_changed_in_place_is_another_function(monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", TABLE.copy())
    monkeypatch.setitem(globals(), "SETTINGS", dict(SETTINGS))
    before = Static(reads_table), Static(reads_settings)
    assert before == (Static(reads_table), Static(reads_settings))
    TABLE[2] = 7.0
    SETTINGS["a"] = 2.0
    assert before[0] != Static(reads_table)
    assert before[1] != Static(reads_settings)

    array = np.zeros(3)
    closed = Static(closing_over(array))
    array[1] = 1.0
    assert closed != Static(closing_over(array))


def test_functions_of_the_same_code_met_several_times():
    one, two = closing_over(1), closing_over(2)
    patterns = [(one, two, one), (one, two, two), (one, one, two), (two, one, one)]
    keys = {Static(closing_over_three(*pattern)) for pattern in patterns}
    assert len(keys) == len(patterns)


def test_object_arrays_have_a_key():
    array = np.array([None, "a"], object)
    assert same(closing_over(array), closing_over(array))


def test_static_calls_the_function_and_has_its_name():
    assert Static(lambda x, y=1: x + y)(2, y=3) == 5
    assert repr(Static(scaled)) == "scaled"


# ---------------------------------------------------------------- recompilation


class Counter:
    """Counts the Python calls of log_joint; as a key it is itself, whatever it has counted."""

    def __init__(self):
        self.calls = 0


def make_log_joint(counter, shift=0.0):
    """Two counters and two shifts make three keys: one more, and jalax warns of a fourth."""

    def log_joint(theta, x, data):
        counter.calls += 1
        return -0.5 * jnp.sum((x - theta) ** 2) - 0.5 * jnp.sum((data - x - shift) ** 2)

    return log_joint


class Fits:
    """Runs fits and counts what they compile."""

    def __init__(self):
        self.counter = Counter()

    def __call__(self, *, y=(0.5, 1.5, 4.0), shift=0.0, seed=0, **changes):
        arguments = {
            "theta": 0.0,
            "key": jax.random.key(0),
            "algorithm": jalax.PGD(step_size=0.05),
            "num_steps": 5,
            **changes,
        }
        particles = np.random.default_rng(seed).normal(size=(6, 3))
        model = jalax.Model(make_log_joint(self.counter, shift), jnp.zeros(3), np.array(y))
        return float(jalax.fit(model, start=jalax.Given(particles), **arguments).theta)

    def compiled_by(self, **changes):
        """(programs, calls of log_joint, whether the result changed) of one more fit."""
        programs, calls = loop.run_chunk.cache_size(), self.counter.calls
        changed = self(**changes) != self.first
        return loop.run_chunk.cache_size() - programs, self.counter.calls - calls, changed


@pytest.fixture(scope="module")
def plain():
    fits = Fits()
    fits.first = fits()
    assert fits.counter.calls == 1
    return fits


SAME_PROGRAM = {
    "again": ({}, False),
    "data": ({"y": (1.0, 2.0, 3.0)}, True),
    "step size": ({"algorithm": jalax.PGD(step_size=0.1)}, True),
    "step size as an integer": ({"algorithm": jalax.PGD(step_size=1)}, True),
    "step size as an array": ({"algorithm": jalax.PGD(step_size=np.float64(0.1))}, True),
    "theta": ({"theta": 1.0}, True),
    "theta as an array": ({"theta": np.array(1.0)}, True),
    "key": ({"key": jax.random.key(1)}, True),
    "particles": ({"seed": 1}, True),
    "number of steps": ({"num_steps": 90}, True),
    "chunk size": ({"chunk_size": 2}, False),
}


@pytest.mark.parametrize("name", SAME_PROGRAM)
def test_numbers_do_not_recompile(plain, name):
    """Each fit re-creates log_joint, as a loop or a notebook does."""
    changes, differs = SAME_PROGRAM[name]
    assert plain.compiled_by(**changes) == (0, 0, differs)


def test_another_value_in_the_closure_recompiles(plain):
    programs, calls, changed = plain.compiled_by(shift=0.5)
    assert programs == 1
    assert calls > 0
    assert changed


def test_another_shape_recompiles(plain):
    programs, calls, _ = plain.compiled_by(y=(1.0,))  # broadcasts
    assert programs == 1
    assert calls == 1


def test_a_ready_made_optimizer_made_again_does_not_recompile(plain):
    def pgd(rate, step_size=0.05):
        return jalax.PGD(step_size=step_size, optimizer=optax.adam(rate))

    assert plain.compiled_by(algorithm=pgd(1e-2)) == (1, 0, True)
    assert plain.compiled_by(algorithm=pgd(1e-2)) == (0, 0, True)
    assert plain.compiled_by(algorithm=pgd(1e-2, step_size=0.1)) == (0, 0, True)


def test_a_number_of_optax_does_not_recompile(plain):
    def pgd(rate, **options):
        optimizer = jalax.Optax(optax.adam, learning_rate=rate, **options)
        return jalax.PGD(step_size=0.05, optimizer=optimizer)

    assert plain.compiled_by(algorithm=pgd(1e-2)) == (1, 0, True)
    assert plain.compiled_by(algorithm=pgd(1e-2)) == (0, 0, True)
    assert plain.compiled_by(algorithm=pgd(5e-2)) == (0, 0, True)
    assert plain.compiled_by(algorithm=pgd(np.float32(0.1))) == (0, 0, True)
    assert plain(algorithm=pgd(1e-2)) != plain(algorithm=pgd(5e-2))


def test_a_schedule_made_again_does_not_recompile(plain):
    def pgd(rate):
        schedule = jalax.Schedule(lambda step, rate: rate / (1 + step), rate=rate)
        return jalax.PGD(step_size=schedule)

    assert plain.compiled_by(algorithm=pgd(0.1)) == (1, 0, True)
    assert plain.compiled_by(algorithm=pgd(0.2)) == (0, 0, True)
    assert plain(algorithm=pgd(0.1)) != plain(algorithm=pgd(0.2))


def test_the_options_of_jala_em_do_not_recompile():
    fits = Fits()

    def options(**changes):
        return {
            "algorithm": jalax.JALAEM(
                **{
                    "step_size": 0.05,
                    "preconditioner": np.ones(3),
                    "project": lambda theta: jnp.clip(theta, -5.0, 5.0),
                    **changes,
                }
            )
        }

    fits.first = fits(**options())
    assert fits.counter.calls == 1
    assert fits.compiled_by(**options()) == (0, 0, False)
    assert fits.compiled_by(**options(resample_below=1.0), num_steps=20) == (0, 0, True)
    assert fits.compiled_by(**options(preconditioner=np.array([2.0, 1.0, 0.5]))) == (0, 0, True)
    assert fits.compiled_by(**options(step_size=0.5)) == (0, 0, True)


def test_a_function_traced_after_its_globals_changed_does_not_poison_its_twin():
    """Model(f) while a = 1, fit while a = 2; then, with a = 1 again, a new model means a = 1."""
    source = """
def log_joint(theta, x, data):
    return -0.5 * jnp.sum((x - a * theta) ** 2) - 0.5 * jnp.sum((x - 1.0) ** 2)
"""
    names = {"jnp": jnp, "a": 1.0}
    exec(source, names)
    particles = np.random.default_rng(0).normal(size=(6, 3))

    def run(model):
        algorithm, start = jalax.PGD(step_size=0.05), jalax.Given(particles)
        key = jax.random.key(0)
        fit = jalax.fit(model, 0.5, key=key, algorithm=algorithm, start=start, num_steps=1)
        return float(fit.theta)

    def by_hand(a):
        return 0.5 + 0.05 * np.mean(np.sum(a * (particles - a * 0.5), axis=1))

    early = jalax.Model(names["log_joint"], jnp.zeros(3))
    names["a"] = 2.0
    run(early)  # whichever of the two it takes
    for a in (1.0, 2.0):
        names["a"] = a
        again = jalax.Model(names["log_joint"], jnp.zeros(3))
        np.testing.assert_allclose(run(again), by_hand(a), rtol=1e-5)


# ---------------------------------------------------------------- the warning


def make_quadratic(shift):
    return lambda theta, x, data: -jnp.sum((x - theta - shift) ** 2)


def fourth_time(make):
    """Three compilations in silence (warnings are errors), and the fourth."""
    for value in range(3):
        function_keys.traced_once(Static(make(float(value))), None)
    function_keys.traced_once(Static(make(0.0)), None)  # known: not a compilation
    return make(3.0)


def test_the_fourth_compilation_of_one_function_warns():
    function = fourth_time(make_quadratic)
    model = jalax.Model(function, jnp.zeros(3))
    with pytest.warns(UserWarning, match=r"fourth time.*data=") as seen:
        checks.check_log_joint(model, jnp.array(0.0))  # where a fit meets log_joint first
    assert len(seen) == 1
    function_keys.traced_once(Static(make_quadratic(4.0)), None)  # said once


def test_other_functions_are_counted_apart():
    for value in range(5):
        names = {}
        exec(f"def log_joint(theta, x, data):\n    return {value}.0", names)
        assert isinstance(names["log_joint"], types.FunctionType)
        function_keys.traced_once(Static(names["log_joint"]), None)


def test_objects_without_fields_are_told_apart_by_their_type():
    """A checkpoint of a probit model is not one of a logit model."""
    from jalax import families

    links = families.Logit(), families.Probit()
    marks = [
        Static(functools.partial(operator.add, families.Binomial(link=link))).fingerprint()
        for link in (*links, links[0])
    ]
    assert marks[0] == marks[2] != marks[1]
