"""Bad input: each a clear sentence, and each before the first step of the loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jalax
from jalax import _checks, _options

Y = np.array([0.5, 1.5, 4.0])
PARTICLES = np.random.default_rng(0).normal(size=(8, 3))
GROUPED_DATA = {"y": jnp.asarray(Y), "scale": jnp.ones(3)}


def log_joint(theta, x, data):
    prior = -0.5 * jnp.sum((x - theta) ** 2)
    return prior - 0.5 * jnp.sum((data["y"] - x) ** 2) + data["height"]


def log_joint_of_group(theta, x, data):
    return -0.5 * (x - theta) ** 2 - 0.5 * data["scale"] * (data["y"] - x) ** 2


DATA = {"y": Y, "height": 0.0}
MODEL = jalax.Model(log_joint, latent=jnp.zeros(3), data=DATA)
GROUPED = jalax.GroupedModel(log_joint_of_group, latent=jnp.zeros(()), data=GROUPED_DATA)


def model_of(log_joint, data=DATA, latent=None):
    return jalax.Model(log_joint, jnp.zeros(3) if latent is None else latent, data)


def jala_em(**options):
    return jalax.JALAEM(**{"step_size": 0.05, **options})


class Watch(jalax.Callback):
    """Knows whether the loop was entered."""

    def __init__(self):
        self.begun = 0

    def begin(self, run):
        self.begun += 1


def arguments(**changes):
    return {
        "model": MODEL,
        "theta": 0.0,
        "key": jax.random.key(0),
        "algorithm": jala_em(),
        "start": jalax.Given(PARTICLES),
        "num_steps": 3,
        **changes,
    }


def refused(error, *words, fit=jalax.fit, callbacks=(), **changes):
    """The fit raises this very error, its text has these words, and no step was taken."""
    watch = Watch()
    with pytest.raises(error) as caught:
        fit(**arguments(**changes), callbacks=[watch, *callbacks])
    text = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert caught.type is error, f"{caught.type.__name__}: {text}"
    assert not [word for word in words if word not in text], text
    assert watch.begun == 0, "the loop had begun"


def test_the_arguments_the_cases_below_break_are_good():
    watch = Watch()
    result = jalax.fit(**arguments(), callbacks=[watch])
    assert result.status == "max_steps"
    assert watch.begun == 1


# ---------------------------------------------------------------- log_joint


def raising(theta, x, data):
    raise RuntimeError("no such table")


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda t, x, d: -((x - t) ** 2), ValueError, ["log_joint", "scalar", "[3]", "jnp.sum"]),
        (lambda t, x, d: (jnp.sum(x), t), ValueError, ["log_joint", "scalar"]),
        (lambda t, x, d: None, ValueError, ["log_joint", "scalar", "None"]),
        (lambda t, x, d: jnp.array(3), ValueError, ["log_joint", "float", "int32"]),
        (lambda t, x, d: jnp.sum(x) * 1j, ValueError, ["log_joint", "float", "complex64"]),
        (raising, RuntimeError, ["no such table", "raised inside log_joint", "x=float32[3]"]),
        (lambda t, x: 0.0, TypeError, ["positional argument", "raised inside log_joint"]),
    ],
    ids=["vector", "tuple", "none", "int", "complex", "raising", "two arguments"],
)
def test_log_joint_of_the_wrong_kind(function, error, words):
    refused(error, *words, model=model_of(function))


@pytest.mark.parametrize("value", [jnp.nan, -jnp.inf, jnp.inf])
def test_log_joint_not_finite_at_the_start(value):
    particles = PARTICLES.copy()
    particles[[2, 5], 0] = 100.0
    broken = model_of(
        lambda t, x, d: jnp.where(x[0] > 50, d["bad"], log_joint(t, x, d)), {**DATA, "bad": value}
    )
    refused(
        ValueError,
        *("not finite at the start", "2 of 8 particles", "particle 2", str(float(value))),
        model=broken,
        start=jalax.Given(particles),
    )


def test_log_joint_not_finite_at_the_start_of_a_group():
    particles = np.zeros((3, 8))
    particles[1, 4] = np.nan
    refused(
        ValueError,
        *("not finite at the start", "1 of 24", "group 1, particle 4"),
        model=GROUPED,
        start=jalax.Given(particles),
    )


def test_gradient_not_finite_at_the_start():
    """The norm has a value at 0, and no derivative: no particle can be moved."""
    cone = model_of(lambda t, x, d: -jnp.linalg.norm(x) - 0.5 * t**2)
    start = jalax.Given(np.zeros((8, 3)))
    refused(ValueError, "gradient", "not finite", "start", model=cone, start=start)


def test_not_a_model():
    refused(TypeError, "jalax.Model", "function", model=log_joint)
    with pytest.raises(TypeError, match=r"log_joint must be a function"):
        jalax.Model(3.0, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"latent is empty"):
        jalax.Model(log_joint, {})
    with pytest.raises(TypeError, match=r"constrain must be a function"):
        jalax.Model(log_joint, jnp.zeros(3), constrain="exp")


def test_integer_latent():
    refused(TypeError, "latent", "floating point", "int32", model=model_of(log_joint, latent=[0]))


# ---------------------------------------------------------------- start and particles


@pytest.mark.parametrize(
    ("particles", "words"),
    [
        (PARTICLES[0], ["particles", "float32[3]"]),
        (PARTICLES[:, :2], ["particles must lead with", "float32[3]", "float32[8, 2]"]),
        (PARTICLES[:, None], ["particles must lead with", "float32[8, 1, 3]"]),
        (1.0, ["no particle axis", "float32[3]"]),
        ({"x": PARTICLES}, ["tree of the model's latent", "{x: float32[8, 3]}"]),
        ((PARTICLES,), ["tree of the model's latent"]),
        (np.ones((8, 3), int), ["particles", "floating point", "int"]),
    ],
    ids=["no axis", "wrong shape", "one axis too many", "scalar", "dict", "tuple", "int"],
)
def test_particles_of_the_wrong_kind(particles, words):
    refused(ValueError, *words, start=jalax.Given(particles))


@pytest.mark.parametrize("shape", [(8,), (8, 3), (2, 8), (1, 3, 8)])
def test_particles_of_groups_of_the_wrong_shape(shape):
    start = jalax.Given(np.ones(shape))
    refused(ValueError, "particles", "axes", f"float32{list(shape)}", model=GROUPED, start=start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log_weights": np.zeros(7)}, ["log_weights", "(8,)", "(7,)"]),
        ({"log_weights": np.full(8, np.nan)}, ["log_weights", "NaN"]),
        ({"log_weights": np.full(8, -np.inf)}, ["log_weights", "-inf"]),
        ({"log_evidence": np.zeros(2)}, ["log_evidence", "(2,)"]),
        ({"log_evidence": np.nan}, ["log_evidence"]),
    ],
    ids=["weights shape", "weights NaN", "weights dead", "evidence shape", "evidence NaN"],
)
def test_given_weights_and_evidence(options, words):
    refused(ValueError, *words, start=jalax.Given(PARTICLES, **options))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, theta, data: jax.random.normal(key, (4, 3)),
        lambda key, theta, data: (jax.random.normal(key, (3,)),),
        lambda key, theta, data: jax.random.randint(key, (3,), 0, 5),
    ],
    ids=["shape", "tree", "int"],
)
def test_sampler_of_the_wrong_kind(draw):
    start = jalax.FromSampler(draw)
    refused(ValueError, "sampler", "float32[3]", "got", start=start, num_particles=4)


@pytest.mark.parametrize("start", [jalax.Given, "prior", PARTICLES, lambda *arguments: None])
def test_start_of_the_wrong_kind(start):
    refused(TypeError, "start must be", "jalax.Given(", start=start)


def prior(key, theta, data):
    return theta + jax.random.normal(key, (3,))


@pytest.mark.parametrize("number", [1, 0, -3, 2.0, True, "8"])
def test_number_of_particles(number):
    start = jalax.FromSampler(prior)
    words = "num_particles", "whole number of at least 2", repr(number)
    refused(ValueError, *words, start=start, num_particles=number)


def test_sfla_takes_a_single_particle_and_the_others_do_not():
    sfla, start = jalax.SFLA(step_size=0.01), jalax.Given(PARTICLES[:1])
    result = jalax.fit(**arguments(algorithm=sfla, start=start))
    assert result.particles.shape == (1, 3)
    refused(ValueError, "at least 1", "got 0", algorithm=sfla, start=jalax.Given(np.zeros((0, 3))))
    for algorithm in (jala_em(), jalax.PGD(step_size=0.1), jalax.IPLA(step_size=0.1)):
        refused(ValueError, "at least 2", "got 1", algorithm=algorithm, start=start)


def test_number_of_particles_given_twice():
    refused(ValueError, "more than once", "num_particles = 9", "= 8", num_particles=9)
    soul = jalax.SOUL(step_size=0.1, num_inner=5)
    refused(ValueError, "more than once", "SOUL.num_inner = 5", "= 8", algorithm=soul)


# ---------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"y": Y, "scale": 1.0},
            ["group axis", "['scale']: a scalar", "['y']: 3", "broadcast_to"],
        ),
        ({"y": Y, "scale": np.ones(4)}, ["group axis", "['scale']: 4", "['y']: 3"]),
        ([1.0, 2.0], ["group axis", "a scalar"]),
        (None, ["data", "first axis counts the groups"]),
    ],
    ids=["scalar leaf", "lengths", "list of numbers", "none"],
)
def test_data_without_the_group_axis(data, words):
    with pytest.raises(ValueError, match=r"GroupedModel") as caught:
        jalax.GroupedModel(log_joint_of_group, jnp.zeros(()), data)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_no_groups_at_all():
    with pytest.raises(ValueError, match=r"group"):
        jalax.GroupedModel(log_joint_of_group, jnp.zeros(()), {"y": np.zeros(0)})


@pytest.mark.parametrize(
    "data",
    [
        {**DATA, "kind": "probit"},
        {**DATA, "kind": np.array(["a", "b", "c"])},
        {**DATA, "kind": object()},
        {**DATA, "kind": np.array([None, 1.0])},
        {**DATA, "kind": np.array(["2020-01-01"], "M8[D]")},
    ],
    ids=["string", "strings", "object", "objects", "dates"],
)
def test_data_that_is_not_numeric(data):
    refused(TypeError, "data['kind']", "not numeric", "traced", model=model_of(log_joint, data))


@pytest.mark.parametrize(
    "large",
    [np.array([1, 2**40]), np.array([2**31]), np.array([-(2**31) - 1]), np.uint64(2**63), 2**40],
    ids=["int64", "just above", "just below", "uint64", "Python int"],
)
def test_integer_data_that_32_bits_cannot_hold(large):
    model = model_of(log_joint, {**DATA, "id": large})
    refused(ValueError, "data['id']", "do not fit", "int32", "jax_enable_x64", model=model)


def test_integer_data_that_32_bits_can_hold():
    counts = np.array([2**31 - 1, -(2**31), 0])
    prepared = _checks.prepare_model(model_of(log_joint, {"n": counts})).data["n"]
    assert prepared.dtype == jnp.int32
    np.testing.assert_array_equal(prepared, counts)


# ---------------------------------------------------------------- theta


@pytest.mark.parametrize(
    ("theta", "error", "words"),
    [
        (0, TypeError, ["theta", "floating point", "int32", "0.0"]),
        ({"a": 0.0, "b": jnp.arange(2)}, TypeError, ["theta['b']", "floating point", "int32"]),
        (True, TypeError, ["theta", "floating point", "bool"]),
        (1j, TypeError, ["theta", "floating point", "complex64"]),
        ("zero", TypeError, ["theta", "float", "str"]),
        (np.nan, ValueError, ["theta", "not finite", "nan"]),
        ([0.0, np.inf], ValueError, ["theta[1]", "not finite", "inf"]),
        (None, ValueError, ["theta is missing", "theta_0"]),
        ({}, ValueError, ["theta is empty", "jalax.transport"]),
    ],
    ids=["int", "int leaf", "bool", "complex", "str", "nan", "inf leaf", "missing", "empty"],
)
def test_theta(theta, error, words):
    refused(error, *words, theta=theta)


def test_the_models_own_theta_is_checked_too():
    model = jalax.Model(log_joint, jnp.zeros(3), DATA, theta=1)
    refused(TypeError, "theta", "floating point", model=model, theta=None)


def test_project_must_leave_the_start_value_where_it_is():
    project = jala_em(project=lambda t: jnp.maximum(t, 0.5))
    refused(ValueError, "outside the constraints", "0.5", "project", algorithm=project)
    _checks.check_projection(_options.canonical(project), jnp.array(0.7))  # inside: no complaint


@pytest.mark.parametrize(
    "project", [lambda t: {"a": t}, lambda t: jnp.stack([t, t])], ids=["tree", "shape"]
)
def test_project_must_return_a_theta(project):
    refused(ValueError, "project", "theta", algorithm=jala_em(project=project))


# ---------------------------------------------------------------- options of the algorithms


@pytest.mark.parametrize("algorithm", ["JALAEM", "PGD", "IPLA", "SOUL", "SFLA"])
@pytest.mark.parametrize(
    ("step_size", "word"),
    [(0.0, "positive"), (-0.1, "positive"), (np.nan, "nan"), (np.inf, "inf")],
)
def test_step_size(algorithm, step_size, word):
    broken = getattr(jalax, algorithm)(step_size=step_size)
    refused(ValueError, f"{algorithm}.step_size", word, algorithm=broken)


@pytest.mark.parametrize("algorithm", ["PGD", "IPLA", "SOUL", "SFLA"])
def test_step_size_of_the_peers_is_not_chosen_for_you(algorithm):
    broken = getattr(jalax, algorithm)()
    refused(ValueError, f"{algorithm}.step_size is missing", algorithm=broken)


@pytest.mark.parametrize("name", ["shift", "limiter", "averaging"])
def test_parts_of_the_automatic_fit_are_objects(name):
    broken = jalax.JALAEM(**{name: 0.5})
    refused(TypeError, f"JALAEM.{name}", f"jalax.{name.capitalize()}", algorithm=broken)


@pytest.mark.parametrize("step_size", [lambda step: -0.1, jalax.Schedule(lambda step, a: a, a=0)])
def test_step_size_by_schedule(step_size):
    refused(ValueError, "JALAEM.step_size", "positive", algorithm=jala_em(step_size=step_size))


@pytest.mark.parametrize("algorithm", ["JALAEM", "PGD", "IPLA", "SOUL", "SFLA"])
@pytest.mark.parametrize("length", [1, 3])  # 3 would go through, one h for each coordinate
def test_step_size_is_one_number(algorithm, length):
    broken = getattr(jalax, algorithm)(step_size=np.full(length, 0.05))
    refused(ValueError, f"{algorithm}.step_size", algorithm=broken)


def test_step_size_as_text():
    refused(TypeError, "step_size", algorithm=jala_em(step_size="0.05"))


@pytest.mark.parametrize("below", [-0.1, 1.5, np.nan, 50])
def test_resample_below(below):
    refused(ValueError, "JALAEM.resample_below", "0 to 1", algorithm=jala_em(resample_below=below))


@pytest.mark.parametrize("below", [0, 1])
def test_resample_below_at_its_ends(below):
    fit = jalax.fit(**arguments(algorithm=jala_em(resample_below=below)))
    assert list(fit.history["resampled"]) == [bool(below)] * 3


def test_resample_by_name():
    algorithm = jala_em(resample="systematic")
    refused(TypeError, "resample", "jalax.systematic", algorithm=algorithm)


@pytest.mark.parametrize(
    ("preconditioner", "words"),
    [
        (np.ones(4), ["preconditioner", "float32[3]", "(3, 3)", "float32[4]"]),
        (np.ones((2, 3)), ["preconditioner", "float32[2, 3]"]),
        ({"x": np.ones(3)}, ["preconditioner", "float32[3]"]),
        (np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]), ["preconditioner", "symmetric"]),
        (np.diag([1.0, -1.0, 1.0]), ["preconditioner", "positive definite"]),
        (np.ones((3, 3)) - 2 * np.eye(3), ["preconditioner", "positive definite"]),
        (np.full((3, 3), np.nan), ["preconditioner"]),
        (np.array([1.0, 0.0, 1.0]), ["preconditioner", "positive"]),
        (np.array([1.0, -2.0, 1.0]), ["preconditioner", "positive"]),
        (np.array([1.0, np.nan, 1.0]), ["preconditioner", "positive"]),
        (np.array([1.0, np.inf, 1.0]), ["preconditioner"]),
    ],
    ids=[
        *("length", "shape", "tree", "not symmetric", "indefinite", "indefinite too", "NaN matrix"),
        *("zero", "negative", "NaN", "inf"),
    ],
)
def test_preconditioner(preconditioner, words):
    refused(ValueError, *words, algorithm=jala_em(preconditioner=preconditioner))


@pytest.mark.parametrize("optimizer", [0.05, "adam", optax.adam, np.ones(3)])
@pytest.mark.parametrize("algorithm", [jalax.JALAEM, jalax.PGD, jalax.SOUL])
def test_optimizer_that_is_none(algorithm, optimizer):
    broken = algorithm(step_size=0.1, optimizer=optimizer)
    refused(TypeError, "optimizer", "optax.adam(0.05)", "jalax.Optax", algorithm=broken)


@pytest.mark.parametrize("algorithm", [jalax.JALAEM, "JALAEM", lambda: None])
def test_algorithm_of_the_wrong_kind(algorithm):
    refused(TypeError, "algorithm", "jalax.JALAEM(step_size=...)", algorithm=algorithm)


@pytest.mark.parametrize("name", ["epsilon", "beta"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, None])
def test_sfla_options(name, value):
    refused(ValueError, f"SFLA.{name}", algorithm=jalax.SFLA(step_size=0.1, **{name: value}))


@pytest.mark.parametrize("num_inner", [1, 0])
def test_soul_options(num_inner):
    soul = jalax.SOUL(step_size=0.1, num_inner=num_inner)
    refused(ValueError, "SOUL.num_inner", "2 or more", algorithm=soul)


# ---------------------------------------------------------------- key, counts, state, callbacks


def test_key():
    refused(TypeError, "key is missing", "jax.random.key(0)", key=None)
    refused(TypeError, "typed", "PRNGKey", "wrap_key_data", key=jax.random.PRNGKey(0))
    refused(TypeError, "typed", "int", key=0)
    refused(TypeError, "typed", "ndarray", key=np.zeros(2, np.uint32))
    refused(ValueError, "key", "(3,)", key=jax.random.split(jax.random.key(0), 3))


@pytest.mark.parametrize("number", [0, -1, 2.5, 10.0, True, "10"])
@pytest.mark.parametrize("name", ["num_steps", "chunk_size"])
def test_counts(name, number):
    words = name, "whole number of at least 1", repr(number)
    refused(ValueError, *words, **{name: number})


def test_num_steps_missing():
    refused(ValueError, "num_steps is missing", num_steps=None)


def test_counts_may_be_numpy_integers():
    assert len(jalax.fit(**arguments(num_steps=np.int64(3))).history["ess"]) == 3


def test_state_of_another_fit():
    pgd = jalax.fit(**arguments(algorithm=jalax.PGD(step_size=0.05)))
    refused(ValueError, "state=", "JALAEM", "another algorithm", state=pgd.state)
    jala = jalax.fit(**arguments())
    sgd = jala_em(optimizer=optax.sgd(0.1))
    refused(ValueError, "state=", "optimiser", algorithm=sgd, state=jala.state)
    refused(TypeError, "state", "FitResult", state=jala)
    refused(TypeError, "state", "dict", state=jala.state._asdict())
    wider = model_of(log_joint, {**DATA, "y": np.append(Y, 1.0)}, jnp.zeros(4))
    refused(ValueError, "state=", "model", model=wider, state=jala.state)


def test_saved_state_of_another_fit(tmp_path):
    jalax.fit(**arguments()).save(tmp_path / "result.npz")
    state = jalax.load(tmp_path / "result.npz").state
    pgd = jalax.PGD(step_size=0.05)
    refused(jalax._store.FileError, "another algorithm", algorithm=pgd, state=state)
    wider = model_of(log_joint, {**DATA, "y": np.append(Y, 1.0)}, jnp.zeros(4))
    refused(jalax._store.FileError, "another", "model", model=wider, state=state)


@pytest.mark.parametrize("every", [0, -5, 2.5])
def test_checkpoint_every(tmp_path, every):
    with pytest.raises(ValueError, match=r"every"):
        jalax.checkpoint(tmp_path / "file.npz", every=every)


# ---------------------------------------------------------------- resolution of float32


def resolution(height):
    return arguments(model=model_of(log_joint, {**DATA, "height": height}))


def test_float32_does_not_resolve_a_large_log_joint():
    with pytest.warns(UserWarning, match=r"float32 resolves too coarsely.*jax_enable_x64") as seen:
        jalax.fit(**resolution(1e7))
    assert len(seen) == 1
    assert seen[0].filename == __file__  # it points at the caller's line


def test_no_warning_where_it_does():
    """Warnings are errors here."""
    assert jalax.fit(**resolution(1e3)).status == "max_steps"
    with jax.enable_x64(True):
        assert jalax.fit(**resolution(1e7)).status == "max_steps"
