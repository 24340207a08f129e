"""Every bad input in one table: the call, the exact error, and the whole of its message.

A row that goes through a fit is answered before the first step of its loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpyro.distributions import constraints
from scipy import sparse
from typer.testing import CliRunner

import jalax
import numpyro_models as examples
from jalax import datasets, models
from jalax._model import checks
from jalax._runtime.files import FileError
from jalax._runtime.options import canonical
from jalax.cli import app
from numpyro_models import COUNTS, SCHOOLS, SIGMA, positive

KEY = jax.random.key(0)
OLD_KEY = jax.random.PRNGKey(0)


@dataclasses.dataclass(frozen=True)
class Row:
    """`…` in the message stands for what varies with the machine or a version."""

    id: str
    call: Callable[[], Any]
    message: str
    error: type[BaseException] = ValueError


def pattern(message: str) -> re.Pattern:
    return re.compile(".*".join(re.escape(part) for part in message.split("…")), re.DOTALL)


def message_of(error: BaseException) -> str:
    """As the user sees it: the notes are part of it (but not what JAX says of its tracebacks)."""
    notes = [note for note in getattr(error, "__notes__", ()) if "JAX has removed" not in note]
    return "\n".join([str(error), *notes])


class Watch(jalax.callbacks.Callback):
    """Knows whether a loop was entered."""

    begun = 0

    def begin(self, run):
        Watch.begun += 1


# ---------------------------------------------------------------- what the rows break

Y = np.array([0.5, 1.5, 4.0])
DATA = {"y": Y, "height": 0.0}
NAN_INSIDE = np.array([1.0, np.nan, 2.0])
PARTICLES = np.random.default_rng(0).normal(size=(8, 3))
WIDE = np.ones((3, 8))
ONES, THREE, GROUPS = np.ones((3, 2)), [1.0, 2.0, 3.0], [1, 1, 2]


def log_joint(theta, x, data):
    prior = -0.5 * jnp.sum((x - theta) ** 2)
    return prior - 0.5 * jnp.sum((data["y"] - x) ** 2) + data["height"]


def log_joint_of_group(theta, x, data):
    return -0.5 * (x - theta) ** 2 - 0.5 * data["scale"] * (data["y"] - x) ** 2


def model_of(log_joint, data=DATA, latent=None, **options):
    return jalax.Model(log_joint, jnp.zeros(3) if latent is None else latent, data, **options)


def grouped_of(data):
    return jalax.GroupedModel(log_joint_of_group, jnp.zeros(()), data)


MODEL = model_of(log_joint)
GROUPED = grouped_of({"y": jnp.asarray(Y), "scale": jnp.ones(3)})
SIMPLE = models.hierarchical_normal(Y)
ANSWERS = models.item_response([[0, 1], [1, 0], [1, 1]])


def jala_em(**options):
    return jalax.JALAEM(**{"step_size": 0.05, **options})


def arguments(**changes):
    return {
        "model": MODEL,
        "theta": 0.0,
        "key": KEY,
        "algorithm": jala_em(),
        "start": jalax.Given(PARTICLES),
        "num_steps": 3,
        **changes,
    }


def fit(how=jalax.fit, callbacks=(), **changes):
    return how(**arguments(**changes), callbacks=[Watch(), *callbacks])


def automatic(model, theta=None, **changes):
    """Nothing but the model and a key."""
    return jalax.fit(model, theta, **{"key": KEY, "callbacks": [Watch()], **changes})


KEYS = jax.random.split(jax.random.key(5), 3)


def many(**changes):
    return fit(jalax.fit_many, **{"key": KEYS, **changes})


def sampled(**changes):
    """A start without a number of its own."""
    return fit(**{"start": jalax.FromSampler(prior), **changes})


def prior(key, theta, data):
    return theta + jax.random.normal(key, (3,))


def log_prior(theta, x, data):
    return jnp.sum(jax.scipy.stats.norm.logpdf(x, theta, 1.0))


def in_64_bits(call):
    def inside():
        with jax.enable_x64(True):
            return call()

    return inside


@contextlib.contextmanager
def missing(name):
    """A package that is not installed."""
    with mock.patch.dict(sys.modules, {name: None}):
        yield


def without(name, call):
    def inside():
        with missing(name):
            return call()

    return inside


# --- results


@functools.cache
def fitted(algorithm="JALAEM", first=0.5, height=0.0, **options):
    """A fit of three steps; of other data it compiles nothing new."""
    data = {"y": np.array([first, 1.5, 4.0]), "height": height}
    algorithm = getattr(jalax, algorithm)(step_size=0.05)
    return jalax.fit(**arguments(model=model_of(log_joint, data), algorithm=algorithm), **options)


def from_file():
    fitted().save("result.npz")
    return jalax.load("result.npz")


def absolute_from_file():
    """A fit that knew its evidence along the path, and was not asked for a fresh one."""
    start = jalax.Given(PARTICLES, log_evidence=-7.0)
    jalax.fit(**arguments(start=start)).save("absolute.npz")
    return jalax.load("absolute.npz")


EVIDENCE = jalax.Evidence(
    *(-5.0, 0.1, 7.0, "importance", 0.2, 0.5, 800, 8, 1, np.array([-5.0]), ())
)


def with_evidence(result):
    return dataclasses.replace(result, saved_evidence=EVIDENCE)


def two(**changes):
    return {"a": with_evidence(fitted()), "b": with_evidence(fitted(**changes))}


def diverged():
    return dataclasses.replace(fitted(), status=jalax.Status.DIVERGED, message="it broke")


def of_groups():
    origin = dataclasses.replace(fitted().origin, model=GROUPED)
    return dataclasses.replace(fitted(), origin=origin)


def with_model(model):
    return dataclasses.replace(fitted(), origin=dataclasses.replace(fitted().origin, model=model))


def to_arviz(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ArviZ says when it is imported
        import arviz  # noqa: F401
    return fitted().to_arviz(**options)


class Pair(NamedTuple):
    first: Any
    second: Any


def saved_pair():
    """A file whose theta is a container that is not stored."""
    dataclasses.replace(fitted(), theta=Pair(jnp.zeros(()), jnp.ones(2))).save("pair.npz")
    return "pair.npz"


def cut_in_half():
    fitted().save("half.npz")
    content = Path("half.npz").read_bytes()
    Path("half.npz").write_bytes(content[: len(content) // 2])
    return "half.npz"


def written(name, text=""):
    Path(name).write_text(text)
    return name


# --- data sets


def idx(array):
    """The bytes of an IDX file."""
    lengths = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


DIGITS = "digits/t10k-images-idx3-ubyte.gz"


def mnist_with(damage):
    """Four files of noise, 10 and 20 images, the last of them as `damage` makes it."""
    Path("digits").mkdir()
    rng = np.random.default_rng(0)
    for part, num in (("train", 10), ("t10k", 20)):
        images = rng.integers(0, 256, (num, 28, 28), dtype=np.uint8)
        labels = np.arange(num) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            Path(f"digits/{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    damage(Path(DIGITS), images)
    return datasets.mnist(folder="digits")


def npz_without_images():
    np.savez("ours.npz", pictures=np.zeros(3))
    return datasets.mnist(folder="ours.npz")


def npz_cut_short():
    np.savez("keras.npz", images=np.zeros((10, 28, 28), np.uint8), labels=np.arange(10))
    Path("keras.npz").write_bytes(Path("keras.npz").read_bytes()[:-100])
    return datasets.mnist(folder="keras.npz")


# --- formulas and groups


def intercept(y, family, groups=GROUPS):
    return models.random_intercept(y, ONES, groups, family=family)


ROWS = 12
FRAME = pd.DataFrame(
    {
        "y": np.arange(ROWS) ** 1.5 % 4,
        "count": np.arange(ROWS) % 5,
        "yes": np.arange(ROWS) % 2,
        "trials": 3,
        "x": np.arange(ROWS) % 7 / 2,
        "arm": ["a", "b", "c"] * 4,
        "school": np.repeat(["n", "s", "e"], 4),
        "one": "same",
        "zero": 0.0,
        "constant": 1.5,
    }
)


def mixed(formula, data=FRAME, **options):
    return jalax.mixed(formula, data, **{"key": KEY, "callbacks": [Watch()], **options})


# --- transport, tuning, groups


def quartic(t, x):
    """One density for all rows: it would be compiled anew for each."""
    return sum(-(1 - t) * z**2 / 2 - t * z**4 for z in jax.tree.leaves(x))


POINTS = np.linspace(-1.0, 1.0, 10)


def transport(**changes):
    usual = {"log_density": quartic, "schedule": np.linspace(0, 1, 4), "particles": POINTS}
    return jalax.transport(**{**usual, "key": KEY, "step_size": 0.05, **changes})


RNG = np.random.default_rng(0)
REGRESSION = models.gaussian_regression(RNG.normal(size=(41, 3)), RNG.normal(size=41))


def tune(step_size=(0.1, 0.2), **changes):
    usual = {"model": REGRESSION, "key": KEY, "rows": ("X", "y"), "num_steps": 30}
    algorithm = jalax.PGD(step_size=np.array(step_size))
    return jalax.tune(**{**usual, "algorithm": algorithm, **changes})


def diverging():
    start = jalax.FromSampler(lambda key, theta, data: jax.random.normal(key, (3,)))
    return tune((1e3, 1e4), start=start, num_particles=4, num_steps=200)


TABLE = {
    "y": np.arange(40.0),
    "count": np.arange(40) % 9,
    "school": np.array(["north", "south", "east", "west"] * 10),
}


class Frame(dict):
    """The part of a DataFrame that group_by looks at."""

    @property
    def columns(self):
        return list(self)


class Categorical(np.ndarray):
    class cat:
        categories = ("east", "north", "south", "west", "nowhere")


def masked(theta, x, data):
    rows = -0.5 * jnp.sum(jnp.where(data["mask"], (data["y"] - x) ** 2, 0.0))
    return rows - 0.5 * (x - theta) ** 2


def masked_group():
    data = jalax.group_by({"y": np.arange(5.0)}, [0, 0, 1, 1, 2]).data
    data["mask"][1] = False
    return jalax.GroupedModel(masked, jnp.zeros(()), data)


def ragged_array():
    ragged = np.empty(2, object)
    ragged[:] = [np.arange(2.0), np.arange(3.0)]
    return ragged


# --- log-joints


def raising(theta, x, data):
    raise RuntimeError("no such table")


def raising_prior(theta):
    raise RuntimeError("no such prior")


def two_arguments(theta, x):
    return 0.0


def far_off(value):
    """Two of eight particles where log_joint is `value`."""
    particles = PARTICLES.copy()
    particles[[2, 5], 0] = 100.0

    def broken(theta, x, data):
        return jnp.where(x[0] > 50, data["bad"], log_joint(theta, x, data))

    return {
        "model": model_of(broken, {**DATA, "bad": value}),
        "start": jalax.Given(particles),
    }


def one_group_off():
    particles = np.zeros((3, 8))
    particles[1, 4] = np.nan
    return particles


def cone(theta, x, data):
    """The norm has a value at 0, and no derivative: no particle can be moved."""
    return -jnp.linalg.norm(x) - 0.5 * theta**2


def wall(theta, x, data):
    """An exponential latent, whose density is -inf below zero."""
    inside = jnp.log(theta) - theta * x - 0.5 * (data - x) ** 2
    return jnp.where(x > 0, inside, -jnp.inf)


def wall_at(centre, **changes):
    particles = centre + np.linspace(-1, 1, 51)
    model = jalax.Model(wall, latent=1.0, data=0.5)
    return fit(model=model, theta=1.0, start=jalax.Given(particles), **changes)


def gamma_poisson(theta, x, data):
    prior = jax.scipy.stats.gamma.logpdf(x, theta["shape"], scale=1 / theta["rate"])
    return prior + jax.scipy.stats.poisson.logpmf(data, x)


def rates(**options):
    theta = {"shape": 2.0, "rate": 0.8}
    model = jalax.GroupedModel(gamma_poisson, latent=1.0, data=COUNTS, theta=theta)
    return jalax.Constrained(model, **{"theta": constraints.positive, **options})


PLAIN = jalax.Model(
    lambda theta, x, data: jnp.sum(theta * x["p"]) + x["extra"],
    {"p": np.ones(3) / 3, "extra": 0.5},
    theta=np.array([1.0, 2.0, 3.0]),
)


# --- NumPyro models


def with_latent(body):
    """A model with one parameter, one latent and one observed site, and something else."""

    def model(y):
        m = numpyro.param("m", 0.0)
        body(y)
        x = numpyro.sample("x", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    return lambda: jalax.from_numpyro(model, (SCHOOLS,))


def subsampled(y):
    with numpyro.plate("rows", 8, subsample_size=4) as rows:
        numpyro.sample("part", dist.Normal(0.0, 1.0), obs=y[rows])


def direct(y):
    numpyro.sample("y", dist.Normal(numpyro.param("m", 0.0), 1.0), obs=y)


def schools():
    return jalax.from_numpyro(examples.eight_schools, (8, SIGMA), {"y": SCHOOLS})


def in_plate(likelihood, m=0.0):
    """A latent in each member of plate g; `likelihood(x, y)` is the observed distribution."""

    def model(y):
        value = numpyro.param("m", m)
        with numpyro.plate("g", 8):
            x = numpyro.sample("x", dist.Normal(value, 1.0))
            numpyro.sample("y", likelihood(x, y), obs=y)

    return lambda: jalax.from_numpyro(model, (SCHOOLS,), groups="g")


def outside_the_plate(y):
    m = numpyro.param("m", 0.0)
    numpyro.plate("g", 8)
    x = numpyro.sample("x", dist.Normal(m, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def closed_over(c):
    m = numpyro.param("m", 0.0)
    with numpyro.plate("g", 8):
        x = numpyro.sample("x", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.asarray(SCHOOLS))


def with_spread(y, spread):
    m = numpyro.param("m", 0.0)
    with numpyro.plate("g", len(y)):
        x = numpyro.sample("x", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(x, jnp.sum(spread)), obs=y)


LONG_ROWS = (np.arange(35.0) % 4, np.repeat(np.arange(5), 7), 5)


def grouped_numpyro(fn, *args, groups="g"):
    return jalax.from_numpyro(fn, args, groups=groups)


# --- the command


def command(*words):
    """What it prints, its frames left out, as the error."""
    done = CliRunner().invoke(app, list(words))
    if done.exit_code:
        raise SystemExit(" ".join(re.sub(r"[^\w\s'\-:,.()]", " ", done.output).split()))


# ---------------------------------------------------------------- THE table

NOT_FINITE = (
    "-inf means a hard constraint, which breaks the weights: map the latent to an unconstrained "
    "scale, for example by jalax.Constrained; NaN or +inf: check the start particles, theta and "
    "the data for values outside the model's domain."
)
NO_KEY = "a key is missing: pass key=jax.random.key(0), with a seed of your own."
NOT_TYPED = (
    "key must be a typed JAX key, jax.random.key(seed); an old-style key from jax.random.PRNGKey "
    "is brought over by jax.random.wrap_key_data(key). Got {}."
)
NO_THETA = (
    "theta is missing: pass a start value, jalax.fit(model, theta_0, ...), or give the model one "
    "with theta=."
)
NO_MODEL = "model must be a jalax.Model or jalax.GroupedModel, got {}."
NO_MESH = (
    "mesh must be a jalax.runtime.Layout, or a mesh with axes called 'particles', 'groups', 'data' "
    "or 'fits'; got str."
)
FLOAT = (
    "{0} must be floating point to be differentiated, got {1}: write 0.0 for 0, or use "
    "{0}.astype(float)."
)
NO_GROUPS = (
    "the latents of a grouped model belong to its own groups and say nothing about others: lppd "
    "and tune need a jalax.Model."
)
SAME_ROWS = (
    "one row for each observation is expected, but {}. Check that rows were not dropped from one "
    "of them only, and that nothing is transposed."
)
APART = (
    "the members of plate 'g' do not add up to the model: log p is … in whole and … as a sum "
    "over groups. An array may be as long as the plate and yet not hold one entry for each "
    "member, a parameter may be indexed by the member, a site may depend on other members, or "
    "the model reads arrays that are not among its arguments."
)
HINT = (
    "Rows in long format, picked by an index, are arranged by jalax.group_by into arrays "
    "(groups, rows) with a mask: put the rows into a plate inside this one, dim=-1, with this "
    "one at dim=-2. Otherwise leave groups= out."
)
NOT_A_SCALAR = "for one latent configuration x=float32[3]: sum the terms, jnp.sum(...)."
LEAVES = (
    "every data leaf of a GroupedModel must lead with the group axis, all of the same length; found"
)
REPEAT = (
    "Groups of different length are padded by jalax.group_by; repeat shared values along a leading "
    "axis, for example with jnp.broadcast_to."
)
OTHER_STATE = (
    "state= does not fit JALAEM on this model: it comes from another algorithm, optimiser, "
    "model or number of groups."
)
STATE_OF_ANOTHER = (
    "holds the state of another algorithm or model: pass the model and the algorithm that it was "
    "fitted with."
)
IN_LOG_JOINT = "raised inside log_joint(theta, x, data) for"
IN_SAMPLER = (
    "raised inside the sampler(key, theta, data) for key=key<fry>[], theta=float32[], "
    "data={height: float32[], y: float32[3]}"
)
OF_DATA = "x=float32[3], data={height: float32[], y: float32[3]}"
EMPTY_LATENT = (
    "latent is empty: pass an example of one latent configuration x, such as jnp.zeros(9)."
)
AXES = (
    "it knows ['theta', 'data', 'start', 'step_size', 'optimizer', 'preconditioner', "
    "'resample_below', 'weights', 'shift', 'limiter', 'averaging', "
    "'kernel']."
)
KERNEL = "must be jalax.Unadjusted() or jalax.GaussianExact(), got"
SCHEDULE = "schedule must hold t_0, ..., t_K along one leading axis, two or more of them; got"
REFERENCE = (
    "reference must be jalax.references.AtMode(), jalax.references.Modes(...), or a pair "
    "(sampler, log_density) of functions, got"
)
OTHER_DATA = (
    "'a' and 'b' were fitted to different observations; an evidence compares models of the "
    "same data only. If they differ in covariates alone, tell compare what was observed: "
    "observed=lambda data: ..."
)
NO_PREDICTIVE = (
    "this model has no predictive density of its own: pass log_predictive=, a function "
    "(theta, x, data) -> log-density of each observation."
)
COLUMNS = "the data have y, count, yes, trials, x, arm, school, one, zero, constant."
ELSEWHERE = (
    "The full set is read from folder=, and jalax.datasets.download_mnist() fetches such a folder."
)
FOLDER = (
    "Pass a folder with the four files of MNIST, or an .npz file; "
    "jalax.datasets.download_mnist() fetches such a folder."
)
AGAIN = "Fetch the file again, for example by jalax.datasets.download_mnist()."
PLACE = "before the shape of one latent, float32[3]; got"
NO_AXIS = "particles have no particle axis: expected the shape of one latent,"
TREE = (
    "particles must have the tree of the model's latent, float32[3], with a leading particle "
    "axis on every leaf; got"
)
ROWS_OF_DATA = (
    "rows must name the entries of the model's data that lead with the observation axis; got"
)
RECODE = "Recode them with labels = np.unique(labels, return_inverse=True)[1]."
NO_LATENT = "this fit has x[0], x[1], x[2] (3 in all)."
CONSTRAINT = "must come from numpyro.distributions.constraints, such as constraints.positive; got"
DISCRETE = (
    "jalax moves along gradients and takes continuous values only. Sum a discrete variable out."
)
DOCUMENTED = "must be a number, an array, or an object its documentation names, got"
PEERS = ("PGD", "IPLA", "SOUL", "SFLA")

BAD = {
    "log_joint": [
        Row(
            "vector",
            lambda: fit(model=model_of(lambda t, x, d: -((x - t) ** 2))),
            f"log_joint must return a scalar, got float32[3] {NOT_A_SCALAR}",
        ),
        Row(
            "tuple",
            lambda: fit(model=model_of(lambda t, x, d: (x[0], t))),
            f"log_joint must return a scalar, got (float32[], float32[]) {NOT_A_SCALAR}",
        ),
        Row(
            "none",
            lambda: fit(model=model_of(lambda t, x, d: None)),
            f"log_joint must return a scalar, got None {NOT_A_SCALAR}",
        ),
        Row(
            "int",
            lambda: fit(model=model_of(lambda t, x, d: jnp.array(3))),
            "log_joint must return a float, got int32: multiply it by 1.0.",
        ),
        Row(
            "int, 64 bits",
            in_64_bits(lambda: fit(model=model_of(lambda t, x, d: jnp.array(3)))),
            "log_joint must return a float, got int64: multiply it by 1.0.",
        ),
        Row(
            "complex",
            lambda: fit(model=model_of(lambda t, x, d: x[0] * 1j)),
            "log_joint must return a float, got complex64: take its real part.",
        ),
        Row(
            "raising",
            lambda: fit(model=model_of(raising)),
            f"no such table\n{IN_LOG_JOINT} theta=float32[], {OF_DATA}",
            RuntimeError,
        ),
        Row(
            "two arguments",
            lambda: fit(model=model_of(two_arguments)),
            f"two_arguments() takes 2 positional arguments but 3 were given\n{IN_LOG_JOINT} "
            f"theta=float32[], {OF_DATA}",
            TypeError,
        ),
        Row(
            "needs data",
            lambda: fit(model=model_of(log_joint, None)),
            f"'NoneType' object is not subscriptable\n{IN_LOG_JOINT} theta=float32[], "
            "x=float32[3], data=None",
            TypeError,
        ),
        *(
            Row(
                f"{value} at the start",
                lambda value=value: fit(**far_off(value)),
                "log_joint is not finite at the start for 2 of 8 particles (first: particle 2, "
                f"{value}). {NOT_FINITE}",
            )
            for value in (np.nan, -np.inf, np.inf)
        ),
        Row(
            "nan in one group",
            lambda: fit(model=GROUPED, start=jalax.Given(one_group_off())),
            "log_joint is not finite at the start for 1 of 24 particles (first: group 1, particle "
            f"4, nan). {NOT_FINITE}",
        ),
        Row(
            "behind a wall",
            lambda: wall_at(0.5),
            "log_joint is not finite at the start for 13 of 51 particles (first: particle 0, "
            f"-inf). {NOT_FINITE}",
        ),
        Row(
            "no gradient at the start",
            lambda: fit(model=model_of(cone), start=jalax.Given(np.zeros((8, 3)))),
            "the gradient of log_joint in x is not finite at the start for 8 of 8 particles, "
            "though its value is: look for a square root or a norm at zero, or a jnp.where "
            "whose other branch is not finite.",
        ),
        Row(
            "nan in the data",
            lambda: fit(model=model_of(log_joint, {**DATA, "y": NAN_INSIDE})),
            "log_joint is not finite at the start for 8 of 8 particles (first: particle 0, nan). "
            + NOT_FINITE,
        ),
        *(
            Row(
                f"nan in the data, by {algorithm}, which starts at the example",
                lambda algorithm=algorithm: automatic(
                    model_of(log_joint, {**DATA, "y": NAN_INSIDE}),
                    0.0,
                    algorithm=algorithm,
                ),
                "log_joint(theta_0, latent) is nan. data['y'] is not finite either, first in row 1 "
                "(1 of 3 numbers): leave such rows out, or mask them.",
            )
            for algorithm in (jalax.Scoring(), jalax.JALAEM())
        ),
        Row(
            "nan in the data of a group",
            lambda: automatic(grouped_of({"y": NAN_INSIDE, "scale": np.ones(3)}), 0.0),
            "log_joint(theta_0, latent) is nan in group 1 (1 such of 3 groups). data['y'] is not "
            "finite either, first in group 1 (1 of 3 numbers): leave such rows out, or mask them.",
        ),
        Row(
            "nan at theta_0",
            lambda: automatic(model_of(lambda t, x, d: log_joint(jnp.log(t - 1), x, d)), 0.0),
            "log_joint(theta_0, latent) is nan. "
            + NOT_FINITE.replace("the start particles, theta", "theta_0, latent"),
        ),
        Row(
            "a key that theta has not",
            lambda: automatic(model_of(lambda t, x, d: log_joint(t["m"], x, d)), {"mu": 0.0}),
            "log_joint asks for 'm', which is not among the keys of theta ('mu'), data ('height', "
            "'y').",
        ),
    ],
    "model": [
        Row("function", lambda: fit(model=log_joint), NO_MODEL.format("function"), TypeError),
        Row("class", lambda: fit(model=jalax.Model), NO_MODEL.format("type"), TypeError),
        Row(
            "log_joint a number",
            lambda: jalax.Model(3.0, jnp.zeros(3)),
            "log_joint must be a function log_joint(theta, x, data), got <class 'float'>.",
            TypeError,
        ),
        Row("latent empty", lambda: jalax.Model(log_joint, {}), EMPTY_LATENT),
        Row("latent None", lambda: jalax.Model(log_joint, None), EMPTY_LATENT),
        Row(
            "constrain by name",
            lambda: model_of(log_joint, constrain="exp"),
            "constrain must be a function of theta or None, got <class 'str'>.",
            TypeError,
        ),
        Row(
            "latent int",
            lambda: fit(model=model_of(log_joint, latent=[0])),
            FLOAT.format("latent[0]", "int32"),
            TypeError,
        ),
        Row(
            "latent text",
            lambda: fit(model=model_of(log_joint, latent="x")),
            "latent must be a float array, got str.",
            TypeError,
        ),
        Row(
            "replace",
            lambda: MODEL.replace(log_joint=log_joint),
            "replace takes latent, data, theta, group_batch, particle_batch, layout, plan, held, "
            "structure, not ['log_joint'].",
            TypeError,
        ),
        Row(
            "structure text",
            lambda: MODEL.replace(structure="tridiagonal"),
            "structure must be a pair (rows, cols) of integer arrays, a scipy.sparse matrix or a "
            "boolean matrix, got str.",
            TypeError,
        ),
        *(
            Row(
                f"structure of another size {k}",
                lambda given=given: MODEL.replace(structure=given),
                f"structure has shape {np.shape(given)}, and the latent has 3 numbers: it must be "
                "(3, 3), in the order of jax.flatten_util.ravel_pytree(latent).",
            )
            for k, given in enumerate([np.eye(4), np.ones(3), sparse.eye_array(3, 4)])
        ),
        Row(
            "structure of floats",
            lambda: jalax.Model(log_joint, jnp.zeros(3), structure=([1, 2], [0.0, 1.0])),
            "the cols of structure must be integers, got float64: they are positions in the "
            "ravelled latent.",
            TypeError,
        ),
        *(
            Row(
                f"structure with {place}",
                lambda place=place: MODEL.replace(structure=([place, 0], [0, 1])),
                "the rows of structure must lie in 0..2, the latent having 3 numbers; found "
                f"{place}.",
            )
            for place in (3, -1)
        ),
        Row(
            "structure of two lengths",
            lambda: MODEL.replace(structure=([1, 2], [0])),
            "structure=(rows, cols) must be two arrays of the same length, got shapes (2,) and "
            "(1,).",
        ),
        Row(
            "structure of groups",
            lambda: ANSWERS.replace(structure=([1], [0])),
            "structure= is for a jalax.Model, whose latent is one large one; the latents of "
            "different groups of a jalax.GroupedModel never meet, and those of one group are taken "
            "as dense.",
        ),
        *(
            Row(
                f"particle_batch {size}",
                lambda size=size: MODEL.replace(particle_batch=size),
                f"particle_batch must be a positive number of particles, or None, got {size!r}.",
            )
            for size in (0, -1, 2.0, True, "4")
        ),
        Row(
            "particle_batch of fit",
            lambda: fit(particle_batch=2.0),
            "particle_batch must be a positive number of particles, or None, got 2.0.",
        ),
        Row(
            "particle_batch of groups",
            lambda: ANSWERS.replace(particle_batch=3),
            "particle_batch= is for models without groups; a jalax.GroupedModel saves memory "
            "with group_batch=, the number of groups to work on at a time.",
        ),
        *(
            Row(
                f"group_batch {size}",
                lambda size=size: ANSWERS.replace(group_batch=size),
                f"group_batch must be a positive number of groups, or None, got {size!r}.",
            )
            for size in (0, 2.5)
        ),
        Row(
            "group_batch of fit",
            lambda: automatic(ANSWERS, group_batch=0),
            "group_batch must be a positive number of groups, or None, got 0.",
        ),
        Row(
            "group_batch without groups",
            lambda: SIMPLE.replace(group_batch=2),
            "group_batch= is for models whose latents fall into groups, a jalax.GroupedModel; "
            "this is a HierarchicalNormal. Use particle_batch= here.",
        ),
        Row("mesh", lambda: fit(mesh="gpu"), NO_MESH, TypeError),
        Row(
            "layout",
            lambda: jalax.runtime.Layout(None),
            "a Layout needs a mesh of devices, such as jax.make_mesh((8,), ('devices',)); got "
            "NoneType.",
            TypeError,
        ),
    ],
    "theta": [
        Row("int", lambda: fit(theta=0), FLOAT.format("theta", "int32"), TypeError),
        Row(
            "int, 64 bits",
            in_64_bits(lambda: fit(theta=0)),
            FLOAT.format("theta", "int64"),
            TypeError,
        ),
        Row(
            "int leaf",
            lambda: fit(theta={"a": 0.0, "b": jnp.arange(2)}),
            FLOAT.format("theta['b']", "int32"),
            TypeError,
        ),
        Row("bool", lambda: fit(theta=True), FLOAT.format("theta", "bool"), TypeError),
        Row("complex", lambda: fit(theta=1j), FLOAT.format("theta", "complex64"), TypeError),
        Row("text", lambda: fit(theta="zero"), "theta must be a float array, got str.", TypeError),
        Row(
            "objects",
            lambda: fit(theta=np.array([None, 1.0])),
            "theta must be a float array, got ndarray of object.",
            TypeError,
        ),
        Row(
            "nan",
            lambda: fit(theta=np.nan),
            "the start value theta is not finite: nan. Pass finite numbers.",
        ),
        Row(
            "inf leaf",
            lambda: fit(theta=[0.0, np.inf]),
            "the start value theta[1] is not finite: inf. Pass finite numbers.",
        ),
        Row("missing", lambda: fit(theta=None), NO_THETA),
        Row(
            "empty",
            lambda: fit(theta={}),
            "theta is empty: there is nothing to fit. In a NumPyro model turn a "
            "hyper-parameter into numpyro.param; for the evidence alone use "
            "jalax.log_evidence, to move particles jalax.transport.",
        ),
        Row(
            "another shape",
            lambda: fit(theta=np.zeros(2)),
            f"…\n{IN_LOG_JOINT} theta=float32[2], {OF_DATA}",
            TypeError,
        ),
        Row(
            "another tree",
            lambda: fit(theta={"a": 0.0}),
            f"…\n{IN_LOG_JOINT} theta={{a: float32[]}}, {OF_DATA}",
            TypeError,
        ),
        Row(
            "the model's own",
            lambda: fit(model=model_of(log_joint, theta=1), theta=None),
            FLOAT.format("theta", "int32"),
            TypeError,
        ),
        Row(
            "outside project",
            lambda: fit(algorithm=jala_em(project=lambda t: jnp.maximum(t, 0.5))),
            "the start value theta = 0.0 lies outside the constraints; project moves it to "
            "0.5. Start inside: pass project(theta_0).",
        ),
        Row(
            "project to another tree",
            lambda: fit(algorithm=jala_em(project=lambda t: {"a": t})),
            "project must return a tree like theta, float32[]; it returned {a: float32[]}.",
        ),
        Row(
            "project to another shape",
            lambda: fit(algorithm=jala_em(project=lambda t: jnp.stack([t, t]))),
            "project must return a tree like theta; theta has shape (), and project returned (2,).",
        ),
    ],
    "data": [
        Row(
            "scalar beside groups",
            lambda: grouped_of({"y": Y, "scale": 1.0}),
            f"{LEAVES} ['scale']: a scalar, ['y']: 3. {REPEAT}",
        ),
        Row(
            "lengths of groups",
            lambda: grouped_of({"y": Y, "scale": np.ones(4)}),
            f"{LEAVES} ['scale']: 4, ['y']: 3. {REPEAT}",
        ),
        Row(
            "list of numbers",
            lambda: grouped_of([1.0, 2.0]),
            f"{LEAVES} [0]: a scalar, [1]: a scalar. {REPEAT}",
        ),
        Row("text for groups", lambda: grouped_of("abc"), f"{LEAVES} data: a scalar. {REPEAT}"),
        Row(
            "none for groups",
            lambda: grouped_of(None),
            "a GroupedModel needs data with at least one array, whose first axis counts the "
            "groups; without data use jalax.Model.",
        ),
        Row(
            "no groups",
            lambda: grouped_of({"y": np.zeros(0)}),
            "a GroupedModel needs at least one group; its data has none.",
        ),
        Row(
            "ragged list",
            lambda: grouped_of({"y": [np.arange(2.0), np.arange(3.0)]}),
            f"{LEAVES} ['y'][0]: 2, ['y'][1]: 3. {REPEAT}",
        ),
        Row(
            "ragged array",
            lambda: fit(model=grouped_of({"y": ragged_array()})),
            "data['y'] is not numeric (ndarray, object): data is traced, so it must hold "
            "arrays; put settings into the log_joint function itself, and pad groups of "
            "different length with jalax.group_by.",
            TypeError,
        ),
        Row(
            "group without rows",
            lambda: automatic(masked_group(), 0.0),
            "the mask of group 1 is all zero (1 such of 3 groups): a group without rows tells "
            "nothing. Leave it out; jalax.group_by makes none.",
        ),
        *(
            Row(
                name,
                lambda given=given: fit(model=model_of(log_joint, {**DATA, "kind": given})),
                f"data['kind'] is not numeric ({kind}): data is traced, so it must hold arrays; "
                "put settings into the log_joint function itself, and pad groups of different "
                "length with jalax.group_by.",
                TypeError,
            )
            for name, given, kind in (
                ("string", "probit", "str, <U6"),
                ("strings", np.array(["a", "b", "c"]), "ndarray, <U1"),
                ("object", object(), "object, object"),
                ("objects", np.array([None, 1.0]), "ndarray, object"),
                ("dates", np.array(["2020-01-01"], "M8[D]"), "ndarray, datetime64[D]"),
            )
        ),
        *(
            Row(
                name,
                lambda large=large: fit(model=model_of(log_joint, {**DATA, "id": large})),
                f"data['id'] has integers that do not fit into {kind}; enable 64 bits with "
                "jax.config.update('jax_enable_x64', True) or pass floats.",
            )
            for name, large, kind in (
                ("int64", np.array([1, 2**40]), "int32"),
                ("just above int32", np.array([2**31]), "int32"),
                ("just below int32", np.array([-(2**31) - 1]), "int32"),
                ("uint64", np.uint64(2**63), "uint32"),
                ("Python int", 2**40, "int32"),
            )
        ),
    ],
    "group_by": [
        Row(
            "list",
            lambda: jalax.group_by([1.0, 2.0], "school"),
            "group_by takes a DataFrame or a dict of arrays, got list.",
            TypeError,
        ),
        Row(
            "no such column",
            lambda: jalax.group_by(TABLE, "village"),
            "there is no column 'village'; the data have ['count', 'school', 'y'].",
        ),
        Row(
            "labels only",
            lambda: jalax.group_by({"school": TABLE["school"]}, "school"),
            "group_by needs at least one column besides the group labels.",
        ),
        Row(
            "called mask",
            lambda: jalax.group_by({**TABLE, "mask": np.ones(40)}, "school"),
            "a column is called 'mask', the name of the mask of real rows: rename it.",
        ),
        Row(
            "lengths",
            lambda: jalax.group_by({**TABLE, "z": np.ones(7)}, "school"),
            "column 'z' has 7 rows, and there are 40 group labels.",
        ),
        Row(
            "number",
            lambda: jalax.group_by({**TABLE, "z": 3.0}, "school"),
            "column 'z' is a single number: pass one value for each row.",
        ),
        Row(
            "text",
            lambda: jalax.group_by({**TABLE, "z": ["a"] * 40}, "school"),
            "column 'z' is not numeric (<U1): encode text or categories as numbers first, or "
            "leave the column out.",
            TypeError,
        ),
        Row(
            "nan labels",
            lambda: jalax.group_by(TABLE, [1.0, np.nan] * 20),
            "the group labels must be integers or strings, found fractions or NaN. Drop "
            "observations without a group, and check that this is not a covariate.",
        ),
        Row(
            "missing labels",
            lambda: jalax.group_by(TABLE, ["a", None] * 20),
            "the group labels have missing labels. Drop those observations first.",
        ),
        Row(
            "labels in rows",
            lambda: jalax.group_by(TABLE, np.ones((40, 1))),
            "the group labels must be one label for each observation, got shape (40, 1).",
        ),
        Row(
            "no labels",
            lambda: jalax.group_by(TABLE, None),
            "the group labels must be one label for each observation, got shape ().",
        ),
        Row(
            "no rows",
            lambda: jalax.group_by({"y": [], "g": []}, "g"),
            "the group labels must be one label for each observation, got shape (0,).",
        ),
        Row(
            "empty category",
            lambda: jalax.group_by(
                Frame(TABLE, school=TABLE["school"].view(Categorical)), "school"
            ),
            "group 'nowhere' of column 'school' has no rows, and an empty group has nothing to "
            "tell: drop it, data['school'].cat.remove_unused_categories().",
        ),
    ],
    "start": [
        *(
            Row(
                name,
                lambda given=given: fit(start=given),
                "start must be an object such as jalax.Given(particles) or jalax.FromSampler(fn), "
                f"got {shown}.",
                TypeError,
            )
            for name, given, shown in (
                ("class", jalax.Given, "<class 'jalax._starts.given.Given'>"),
                ("by name", "prior", "'prior'"),
                ("particles", PARTICLES, "array(…)"),
                ("function", prior, "<function prior at …>"),
            )
        ),
        Row(
            "given scalar",
            lambda: fit(start=jalax.Given(1.0)),
            f"{NO_AXIS} float32[3], with 1 leading axis, got float32[].",
        ),
        Row(
            "given none",
            lambda: fit(start=jalax.Given(None)),
            f"{NO_AXIS} float32[3], with 1 leading axis, got None.",
        ),
        Row(
            "no axis",
            lambda: fit(start=jalax.Given(PARTICLES[0])),
            f"particles must lead with the axes (particles,) {PLACE} float32[3].",
        ),
        Row(
            "wrong shape",
            lambda: fit(start=jalax.Given(PARTICLES[:, :2])),
            f"particles must lead with the axes (particles,) {PLACE} float32[8, 2].",
        ),
        Row(
            "too many axes",
            lambda: fit(start=jalax.Given(PARTICLES[:, None])),
            f"particles must lead with the axes (particles,) {PLACE} float32[8, 1, 3].",
        ),
        Row(
            "dict",
            lambda: fit(start=jalax.Given({"x": PARTICLES})),
            f"{TREE} {{x: float32[8, 3]}}.",
        ),
        Row("tuple", lambda: fit(start=jalax.Given((PARTICLES,))), f"{TREE} (float32[8, 3],)."),
        Row(
            "ints",
            lambda: fit(start=jalax.Given(np.ones((8, 3), int))),
            "particles must be floating point, got int32: use .astype(float).",
        ),
        Row(
            "one axis for groups",
            lambda: fit(model=GROUPED, start=jalax.Given(np.ones(8))),
            f"{NO_AXIS} float32[], with 2 leading axes, got float32[8].",
        ),
        *(
            Row(
                f"{shape} for groups",
                lambda shape=shape: fit(model=GROUPED, start=jalax.Given(np.ones(shape))),
                "particles must lead with the axes (3 groups, particles) before the shape of one "
                f"latent, float32[]; got float32{list(shape)}.",
            )
            for shape in ((8, 3), (2, 8), (1, 3, 8))
        ),
        Row(
            "log_weights of another length",
            lambda: fit(start=jalax.Given(PARTICLES, np.zeros(7))),
            "log_weights must be one number a particle, shape (8,) (grouped models: (1, 8)), "
            "got (7,).",
        ),
        *(
            Row(
                f"log_weights {value}",
                lambda value=value: fit(start=jalax.Given(PARTICLES, np.full(8, value))),
                "the start's log_weights have a NaN or +inf, or are all -inf: check them, or leave "
                "them out.",
            )
            for value in (np.nan, -np.inf, np.inf)
        ),
        Row(
            "log_evidence shape",
            lambda: fit(start=jalax.Given(PARTICLES, log_evidence=np.zeros(2))),
            "log_evidence must be a number, or one a group, (1,), got (2,).",
        ),
        Row(
            "log_evidence nan",
            lambda: fit(start=jalax.Given(PARTICLES, log_evidence=np.nan)),
            "the start's log_evidence is not finite: [nan].",
        ),
        Row(
            "sampler of another shape",
            lambda: sampled(start=jalax.FromSampler(lambda k, t, d: jax.random.normal(k, (4, 3)))),
            "the sampler must return one latent configuration, shaped like float32[3]; got "
            "float32[4, 3].",
        ),
        Row(
            "sampler of another tree",
            lambda: sampled(start=jalax.FromSampler(lambda k, t, d: (prior(k, t, d),))),
            "the sampler must return one latent configuration, shaped like float32[3]; got "
            "(float32[3],).",
        ),
        Row(
            "sampler of ints",
            lambda: sampled(start=jalax.FromSampler(lambda k, t, d: jnp.arange(3))),
            "the sampler must return floats like float32[3], got int32: use .astype(float).",
        ),
        Row(
            "sampler of nan",
            lambda: sampled(start=jalax.FromSampler(lambda k, t, d: jnp.full(3, jnp.nan))),
            "log_joint is not finite at the start for 100 of 100 particles (first: particle 0, "
            f"nan). {NOT_FINITE}",
        ),
        *(
            Row(
                f"{number!r} particles",
                lambda number=number: sampled(num_particles=number),
                f"num_particles must be a whole number of at least 2, got {number!r}.",
            )
            for number in (1, 0, -3, 2.0, True, "8")
        ),
        *(
            Row(
                f"one particle for {name}",
                lambda name=name: fit(
                    algorithm=getattr(jalax, name)(step_size=0.1),
                    start=jalax.Given(PARTICLES[:1]),
                ),
                "num_particles must be a whole number of at least 2, got 1.",
            )
            for name in ("JALAEM", "PGD", "IPLA")
        ),
        Row(
            "no particle for SFLA",
            lambda: fit(algorithm=jalax.SFLA(step_size=0.1), start=jalax.Given(np.zeros((0, 3)))),
            "num_particles must be a whole number of at least 1, got 0.",
        ),
        Row(
            "num_particles twice",
            lambda: fit(num_particles=9),
            "the number of particles is given more than once: num_particles = 9, the particles "
            "of the start = 8.",
        ),
        Row(
            "num_inner twice",
            lambda: fit(algorithm=jalax.SOUL(step_size=0.1, num_inner=5)),
            "the number of particles is given more than once: the particles of the start = 8, "
            "SOUL.num_inner = 5.",
        ),
        Row(
            "log_weights inf in a group",
            lambda: fit(
                model=GROUPED, start=jalax.Given(np.zeros((3, 8)), np.diag([0, 0, np.inf]) @ WIDE)
            ),
            "the start's log_weights have a NaN or +inf, or are all -inf in group 2: check them, "
            "or leave them out.",
        ),
        *(
            Row(
                f"given {name} as text",
                lambda name=name: fit(start=jalax.Given(**{"particles": PARTICLES, name: "x"})),
                f"Given.{name} {DOCUMENTED} 'x'.",
                TypeError,
            )
            for name in ("particles", "log_weights", "log_evidence")
        ),
        *(
            Row(
                f"{name} of {given!r}",
                lambda make=make, given=given: fit(start=make(given)),
                f"{name} must be a function (key, theta, data) -> x, got {given!r}.",
                TypeError,
            )
            for name, make in (
                ("FromSampler.fn", jalax.FromSampler),
                ("ULA.fn", lambda fn: jalax.ULA(fn=fn)),
            )
            for given in (3, None)
        ),
        Row(
            "sampler of two arguments",
            lambda: sampled(start=jalax.FromSampler(lambda key, theta: prior(key, theta, None))),
            f"…<lambda>() takes 2 positional arguments but 3 were given\n{IN_SAMPLER}",
            TypeError,
        ),
        Row(
            "log_density a number",
            lambda: sampled(start=jalax.FromSampler(prior, 3.0)),
            "FromSampler.log_density must be a function (theta, x, data) -> log q, got 3.0.",
            TypeError,
        ),
        Row(
            "log_density a vector",
            lambda: sampled(start=jalax.FromSampler(prior, lambda t, x, d: x)),
            f"log_density must return a scalar, got float32[3] {NOT_A_SCALAR}",
        ),
        Row(
            "log_density raising",
            lambda: sampled(start=jalax.FromSampler(prior, raising)),
            "no such table\nraised inside log_density(theta, x, data) for theta=float32[], "
            f"{OF_DATA}",
            RuntimeError,
        ),
        *(
            Row(
                f"{name} {value!r}",
                lambda start=start: fit(start=start),
                f"{name} must be a whole number of at least {least}, got {value!r}.",
            )
            for name, least, value, start in (
                ("ULA.num_steps", 1, 0, jalax.ULA(fn=prior, num_steps=0)),
                ("ULA.num_steps", 1, -1, jalax.ULA(fn=prior, num_steps=-1)),
                ("Laplace.num_draws", 1, -1, jalax.Laplace(num_draws=-1)),
                ("Laplace.num_draws", 1, 20.5, jalax.Laplace(num_draws=20.5)),
                ("Tempered.pilot_particles", 2, 0, jalax.Tempered(pilot_particles=0)),
                ("Tempered.max_temperatures", 2, 0, jalax.Tempered(max_temperatures=0)),
                ("MALA.num_moves", 1, 0, jalax.Tempered(moves=jalax.references.MALA(num_moves=0))),
            )
        ),
        Row(
            "ULA step_size",
            lambda: fit(start=jalax.ULA(fn=prior, step_size=-1.0)),
            "ULA.step_size must be positive and finite, got -1.0.",
        ),
        *(
            Row(
                f"Tempered cess {cess}",
                lambda cess=cess: fit(start=jalax.Tempered(cess=cess)),
                f"Tempered.cess must be a number between 0 and 1, got {cess}.",
            )
            for cess in (-1, 0, 1, 2)
        ),
        Row(
            "Tempered moves",
            lambda: fit(start=jalax.Tempered(moves="MALA")),
            "Tempered.moves must be jalax.references.MALA() or jalax.references.JALA(), got "
            "'MALA'.",
            TypeError,
        ),
        Row(
            "Tempered reference",
            lambda: fit(start=jalax.Tempered(reference="prior")),
            f"{REFERENCE} 'prior'.",
            TypeError,
        ),
        Row("Importance", lambda: fit(start=jalax.Importance(3)), f"{REFERENCE} 3.", TypeError),
        Row(
            "Importance of a class",
            lambda: fit(start=jalax.Importance(jalax.references.AtMode)),
            f"{REFERENCE} <class 'jalax._reference.references.AtMode'>.",
            TypeError,
        ),
        Row(
            "Laplace degrees of freedom",
            lambda: fit(start=jalax.Laplace(degrees_of_freedom=0)),
            "Laplace.degrees_of_freedom must be a positive number, got 0.",
        ),
    ],
    "algorithm": [
        *(
            Row(
                name,
                lambda given=given: fit(algorithm=given),
                f"algorithm must be an object such as jalax.JALAEM(step_size=...), got {shown}.",
                TypeError,
            )
            for name, given, shown in (
                ("class", jalax.JALAEM, "<class 'jalax._algorithms.jala_em.JALAEM'>"),
                ("by name", "JALAEM", "'JALAEM'"),
                ("function", prior, "<function prior at …>"),
            )
        ),
        *(
            Row(
                f"{name} step_size {size}",
                lambda name=name, size=size: fit(algorithm=getattr(jalax, name)(step_size=size)),
                f"{name}.step_size must be positive and finite, got {np.float32(size)}.",
            )
            for name in ("JALAEM", *PEERS)
            for size in (0.0, -0.5, np.nan, np.inf)
        ),
        *(
            Row(
                f"{name} step_size of {length}",
                lambda name=name, length=length: fit(
                    algorithm=getattr(jalax, name)(step_size=np.full(length, 0.05))
                ),
                f"{name}.step_size must be one number, got an array of shape ({length},); to try "
                "several, use jalax.fit_many with axes=.",
            )
            for name in ("JALAEM", *PEERS)
            for length in (1, 3)
        ),
        *(
            Row(
                f"{name} without step_size",
                lambda name=name: fit(algorithm=getattr(jalax, name)()),
                f"{name}.step_size is missing: pass a positive number or a schedule, "
                f"{name}.step_size=...",
            )
            for name in PEERS
        ),
        Row(
            "step_size text",
            lambda: fit(algorithm=jala_em(step_size="0.05")),
            f"JALAEM.step_size {DOCUMENTED} '0.05'.",
            TypeError,
        ),
        Row(
            "step_size 2 of the exact kernel",
            lambda: fit(algorithm=jala_em(step_size=2.0, kernel=jalax.GaussianExact())),
            "JALAEM.step_size must be below 2 with kernel=jalax.GaussianExact(), whose noise has "
            "variance h (2 - h), got 2.0: take 1 or less, or kernel=jalax.Unadjusted().",
        ),
        Row(
            "kernel a class",
            lambda: fit(algorithm=jala_em(kernel=jalax.GaussianExact)),
            f"JALAEM.kernel {KERNEL} Schedule(GaussianExact, {{}}).",
            TypeError,
        ),
        Row(
            "kernel a number",
            lambda: fit(algorithm=jala_em(kernel=None)),
            f"JALAEM.kernel {KERNEL} None.",
            TypeError,
        ),
        Row(
            "kernel of auto_step_size",
            lambda: jalax.options.auto_step_size(SIMPLE, 0.0, key=KEY, kernel="exact"),
            f"kernel {KERNEL} 'exact'.",
            TypeError,
        ),
        Row(
            "step_size function",
            lambda: fit(algorithm=jala_em(step_size=lambda step: -0.5)),
            "JALAEM.step_size must be positive and finite, got -0.5.",
        ),
        Row(
            "step_size schedule",
            lambda: fit(algorithm=jala_em(step_size=jalax.Schedule(lambda step, a: a, a=0))),
            "JALAEM.step_size must be positive and finite, got 0.0.",
        ),
        *(
            Row(
                name,
                lambda name=name: fit(algorithm=jalax.JALAEM(**{name: 0.5})),
                f"JALAEM.{name} must be a jalax.options.{name.capitalize()}, got Array(0.5, "
                "dtype=float32).",
                TypeError,
            )
            for name in ("shift", "limiter", "averaging")
        ),
        *(
            Row(
                f"resample_below {below}",
                lambda below=below: fit(algorithm=jala_em(resample_below=below)),
                "JALAEM.resample_below must be a fraction of the particles, from 0 to 1, got "
                f"{below}.",
            )
            for below in (-0.5, 1.5, np.nan, 50)
        ),
        Row(
            "resample_below text",
            lambda: fit(algorithm=jala_em(resample_below="half")),
            f"JALAEM.resample_below {DOCUMENTED} 'half'.",
            TypeError,
        ),
        Row(
            "resample by name",
            lambda: fit(algorithm=jala_em(resample="systematic")),
            "JALAEM.resample must be a function such as jalax.systematic, got 'systematic'.",
            TypeError,
        ),
        Row(
            "weights above one",
            lambda: fit(algorithm=jala_em(weights=jalax.weights.TemperedWeights(1.5))),
            "TemperedWeights.ess is a fraction of the particles, above 0 and below 1, got 1.5.",
        ),
        Row(
            "weights below resample_below",
            lambda: fit(algorithm=jala_em(weights=jalax.weights.TemperedWeights(0.25))),
            "TemperedWeights(ess=0.25) keeps the ESS at this fraction of N, and "
            "resample_below=0.5 would resample at every step: set it to 0.25 or less.",
        ),
        Row(
            "weights number",
            lambda: fit(algorithm=jala_em(weights=0.5)),
            "JALAEM.weights must be jalax.weights.ExactWeights(), "
            "jalax.weights.TemperedWeights(...) or jalax.weights.ClippedWeights(), got "
            "Array(0.5, dtype=float32).",
            TypeError,
        ),
        Row(
            "weights text",
            lambda: fit(algorithm=jala_em(weights=jalax.weights.TemperedWeights("x"))),
            "TemperedWeights.ess must be a number, got 'x'.",
            TypeError,
        ),
        *(
            Row(
                f"preconditioner {shown}",
                lambda given=given: fit(algorithm=jala_em(preconditioner=given)),
                "preconditioner must be shaped like one latent, float32[3] (a diagonal), or be a "
                "(3, 3) matrix over the ravelled latent, each optionally with a leading axis of 1 "
                f"group(s); got {shown}.",
            )
            for given, shown in (
                (np.ones(4), "float32[4]"),
                (np.ones((2, 3)), "float32[2, 3]"),
                ({"x": np.ones(3)}, "{x: float32[3]}"),
            )
        ),
        *(
            Row(
                f"preconditioner {name}",
                lambda given=given: fit(algorithm=jala_em(preconditioner=np.array(given))),
                message,
            )
            for name, given, message in (
                (
                    "not symmetric",
                    [[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]],
                    "a dense preconditioner must be symmetric; two entries differ by 0.5: pass "
                    "(P + P.T) / 2.",
                ),
                (
                    "indefinite",
                    np.diag([1.0, -1.0, 1.0]),
                    "a dense preconditioner must be positive definite; its least eigenvalue is -1.",
                ),
                (
                    "indefinite, too",
                    np.ones((3, 3)) - 2 * np.eye(3),
                    "a dense preconditioner must be positive definite; its least eigenvalue is -2.",
                ),
                (
                    "NaN matrix",
                    np.full((3, 3), np.nan),
                    "a preconditioner must be positive and finite; this one has NaN or inf.",
                ),
                (
                    "zero",
                    [1.0, 0.0, 1.0],
                    "a diagonal preconditioner must be positive in every entry, found 0.",
                ),
                (
                    "negative",
                    [1.0, -2.0, 1.0],
                    "a diagonal preconditioner must be positive in every entry, found -2.",
                ),
                (
                    "NaN",
                    [1.0, np.nan, 1.0],
                    "a preconditioner must be positive and finite; this one has NaN or inf.",
                ),
                (
                    "inf",
                    [1.0, np.inf, 1.0],
                    "a preconditioner must be positive and finite; this one has NaN or inf.",
                ),
            )
        ),
        *(
            Row(
                f"{name} optimizer {shown}",
                lambda name=name, given=given: fit(
                    algorithm=getattr(jalax, name)(step_size=0.1, optimizer=given)
                ),
                "optimizer must be an optax transformation such as optax.adam(0.05) or "
                f"jalax.Optax(optax.adam, learning_rate=0.05), got {shown}.",
                TypeError,
            )
            for name in ("JALAEM", "PGD", "SOUL")
            for given, shown in (
                (0.05, "0.05"),
                ("adam", "'adam'"),
                (optax.adam, "<function adam at …>"),
                (np.ones(3), "array([1., 1., 1.])"),
            )
        ),
        *(
            Row(
                f"SFLA {name} {value}",
                lambda name=name, value=value: fit(
                    algorithm=jalax.SFLA(step_size=0.1, **{name: value})
                ),
                f"SFLA.{name} must be positive and finite, got {np.float32(value)}.",
            )
            for name in ("epsilon", "beta")
            for value in (0.0, -1.0, np.nan)
        ),
        *(
            Row(
                f"SFLA without {name}",
                lambda name=name: fit(algorithm=jalax.SFLA(step_size=0.1, **{name: None})),
                f"SFLA.{name} is missing: pass a positive number or a schedule, SFLA.{name}=...",
            )
            for name in ("epsilon", "beta")
        ),
        Row(
            "SFLA epsilon text",
            lambda: fit(algorithm=jalax.SFLA(step_size=0.1, epsilon="x")),
            f"SFLA.epsilon {DOCUMENTED} 'x'.",
            TypeError,
        ),
        *(
            Row(
                f"SOUL num_inner {number}",
                lambda number=number: fit(algorithm=jalax.SOUL(step_size=0.1, num_inner=number)),
                f"SOUL.num_inner must be 2 or more, got {number}.",
            )
            for number in (1, 0)
        ),
        *(
            Row(
                f"minibatch {size}",
                lambda size=size: automatic(ANSWERS, algorithm=jalax.JALAEM(minibatch=size)),
                f"JALAEM.minibatch must be a number of groups, 1 to 3, got {size}.",
            )
            for size in (0, 1.5, 99)
        ),
        Row(
            "minibatch without groups",
            lambda: automatic(SIMPLE, algorithm=jalax.JALAEM(minibatch=2)),
            "JALAEM.minibatch is a number of groups: it needs a jalax.GroupedModel, and this "
            "model has one joint latent.",
        ),
        Row(
            "rule of a step size",
            lambda: jalax.options.auto_step_size(SIMPLE, 0.0, key=KEY, rule=0.1),
            "rule must be jalax.options.PilotStep() or jalax.options.PowerIteration(), got 0.1.",
            TypeError,
        ),
        Row(
            "rule without a key",
            lambda: jalax.options.auto_step_size(SIMPLE, 0.0),
            NO_KEY,
            TypeError,
        ),
        Row(
            "rule without a model",
            lambda: jalax.options.auto_step_size(log_joint, 0.0, key=KEY),
            NO_MODEL.format("function"),
            TypeError,
        ),
        Row(
            "rule with a preconditioner",
            lambda: jalax.options.auto_step_size(SIMPLE, 0.0, key=KEY, preconditioner=np.ones(7)),
            "preconditioner must be shaped like one latent, float32[3] (a diagonal), or be a "
            "(3, 3) matrix over the ravelled latent, each optionally with a leading axis of 1 "
            "group(s); got float32[7].",
        ),
        *(
            Row(
                shown,
                lambda option=option: fit(algorithm=jalax.JALAEM(**option)),
                message,
            )
            for shown, option, message in (
                (
                    "PilotStep cess 2",
                    {"step_size": jalax.options.PilotStep(cess=2)},
                    "PilotStep.cess must be a number between 0 and 1, got 2.",
                ),
                (
                    "PilotStep cess 0",
                    {"step_size": jalax.options.PilotStep(cess=0)},
                    "PilotStep.cess must be a number between 0 and 1, got 0.",
                ),
                (
                    "PowerIteration fraction",
                    {"step_size": jalax.options.PowerIteration(fraction=-1.0)},
                    "PowerIteration.fraction must be a positive number, got -1.",
                ),
                (
                    "PowerIteration num_iterations",
                    {"step_size": jalax.options.PowerIteration(num_iterations=0)},
                    "PowerIteration.num_iterations must be a whole number of at least 1, got 0.",
                ),
                (
                    "Averaging tolerance",
                    {"averaging": jalax.options.Averaging(tolerance=-1.0)},
                    "Averaging.tolerance must be a number of standard errors, 0 or more, got -1.",
                ),
                (
                    "Averaging min_steps",
                    {"averaging": jalax.options.Averaging(min_steps=-1)},
                    "Averaging.min_steps must be a whole number of at least 0, got -1.",
                ),
                (
                    "Limiter cess",
                    {"limiter": jalax.options.Limiter(cess=2)},
                    "Limiter.cess must be a number from 0 to 1, got 2.",
                ),
                (
                    "Shift fraction",
                    {"shift": jalax.options.Shift(np.nan)},
                    "Shift.fraction must be a finite number, got nan.",
                ),
                (
                    "ObservedInformation clip",
                    {"optimizer": jalax.options.ObservedInformation(clip=-1)},
                    "ObservedInformation.clip must be a number from 0 to 1, got -1.",
                ),
            )
        ),
        Row(
            "Limiter cess text",
            lambda: fit(algorithm=jala_em(limiter=jalax.options.Limiter(cess="x"))),
            "Limiter.cess must be a number from 0 to 1, got 'x'.",
            TypeError,
        ),
        Row(
            "project by name",
            lambda: fit(algorithm=jala_em(project="positive")),
            "JALAEM.project must be a function of theta, got 'positive'.",
            TypeError,
        ),
        Row(
            "resample_below array",
            lambda: fit(algorithm=jala_em(resample_below=np.array([0.5, 0.9]))),
            "JALAEM.resample_below must be a fraction of the particles, from 0 to 1, got "
            "Array([0.5, 0.9], dtype=float32).",
            TypeError,
        ),
        Row(
            "resample to floats",
            lambda: fit(algorithm=jala_em(resample=lambda key, weights, num: weights)),
            "JALAEM.resample must return num_samples whole numbers, the ancestors; for 8 it "
            "returned float32[8].",
            TypeError,
        ),
        Row(
            "resample of two arguments",
            lambda: fit(algorithm=jala_em(resample=lambda key, weights: weights)),
            "…<lambda>() takes 2 positional arguments but 3 were given\nraised inside "
            "JALAEM.resample(key, weights, num_samples)",
            TypeError,
        ),
        Row(
            "schedule of a number",
            lambda: jalax.Schedule(3),
            "Schedule takes a function (step, **parameters) -> number, got 3.",
            TypeError,
        ),
        Row(
            "schedule of other arguments",
            lambda: fit(algorithm=jala_em(step_size=jalax.Schedule(lambda step: 0.1, rate=0.5))),
            "…<lambda>() got an unexpected keyword argument 'rate'\nraised inside "
            "JALAEM.step_size, a schedule, which is called as function(step, rate)",
            TypeError,
        ),
        Row(
            "schedule of nothing",
            lambda: fit(algorithm=jala_em(step_size=lambda step: None)),
            "JALAEM.step_size must be a positive number or a schedule, got None at step 0.",
            TypeError,
        ),
        Row(
            "step_size a rule for PGD",
            lambda: fit(algorithm=jalax.PGD(step_size=jalax.options.PilotStep())),
            "PGD.step_size must be a positive number or a schedule, got PilotStep(cess=0.95).",
            TypeError,
        ),
        Row(
            "step_size a class",
            lambda: fit(algorithm=jalax.JALAEM(step_size=jalax.options.PilotStep)),
            "JALAEM.step_size must be a number, a schedule or an object, got <class "
            "'jalax._algorithms.step_size.PilotStep'>.",
            TypeError,
        ),
        *(
            Row(
                f"{name} optimizer ObservedInformation",
                lambda name=name: fit(
                    algorithm=getattr(jalax, name)(
                        step_size=0.1, optimizer=jalax.options.ObservedInformation()
                    )
                ),
                f"{name}.optimizer must be an optax transformation such as optax.adam(0.05), got "
                "ObservedInformation(clip=0.005), which is for jalax.JALAEM.",
                TypeError,
            )
            for name in ("PGD", "SOUL")
        ),
        Row(
            "Optax of a number",
            lambda: jalax.Optax(3),
            "Optax takes a function that makes an optimiser, such as optax.adam, got 3.",
            TypeError,
        ),
        *(
            Row(
                f"{name} Optax of an unknown option",
                lambda name=name: fit(
                    algorithm=getattr(jalax, name)(
                        step_size=0.1, optimizer=jalax.Optax(optax.adam, rate=0.1)
                    )
                ),
                "adam() got an unexpected keyword argument 'rate'\nraised inside adam, given rate "
                "by jalax.Optax",
                TypeError,
            )
            for name in ("JALAEM", "PGD", "SOUL")
        ),
        Row(
            "rule a class",
            lambda: jalax.options.auto_step_size(
                SIMPLE, 0.0, key=KEY, rule=jalax.options.PilotStep
            ),
            "rule must be jalax.options.PilotStep() or jalax.options.PowerIteration(), got <class "
            "'jalax._algorithms.step_size.PilotStep'>.",
            TypeError,
        ),
        Row(
            "rule with a wrong number",
            lambda: jalax.options.auto_step_size(
                SIMPLE, 0.0, key=KEY, rule=jalax.options.PilotStep(cess=2)
            ),
            "PilotStep.cess must be a number between 0 and 1, got 2.",
        ),
        *(
            Row(
                f"rule with {number} particles",
                lambda number=number: jalax.options.auto_step_size(
                    SIMPLE, 0.0, key=KEY, num_particles=number
                ),
                f"num_particles must be a whole number of at least 2, got {number}.",
            )
            for number in (0, 2.5)
        ),
    ],
    "counts and key": [
        *(
            Row(
                f"{name} {number!r}",
                lambda name=name, number=number: fit(**{name: number}),
                f"{name} must be a whole number of at least 1, got {number!r}.",
            )
            for name in ("num_steps", "chunk_size", "record")
            for number in (0, -1, 2.5, 10.0, True, "10")
        ),
        Row(
            "num_steps missing",
            lambda: fit(num_steps=None),
            "num_steps is missing: pass num_steps=..., a whole number.",
        ),
        Row("key missing", lambda: fit(key=None), NO_KEY, TypeError),
        Row("old key", lambda: fit(key=OLD_KEY), NOT_TYPED.format("ArrayImpl"), TypeError),
        Row("seed", lambda: fit(key=0), NOT_TYPED.format("int"), TypeError),
        Row(
            "key of numbers",
            lambda: fit(key=np.zeros(2, np.uint32)),
            NOT_TYPED.format("ndarray"),
            TypeError,
        ),
        Row(
            "three keys",
            lambda: fit(key=KEYS),
            "key must be one key, got (3,) of them: pass key[0], or use jalax.fit_many for one fit "
            "a key.",
        ),
        *(
            Row(
                f"checkpoint every {every}",
                lambda every=every: jalax.checkpoint("file.npz", every=every),
                f"checkpoint's every must be a whole number of at least 1, got {every}.",
            )
            for every in (0, -5, 2.5)
        ),
        Row(
            "unknown argument",
            lambda: fit(steps=3),
            "fit() got an unexpected keyword argument 'steps'",
            TypeError,
        ),
    ],
    "callbacks": [
        *(
            Row(
                f"{how.__name__} {name}",
                lambda how=how, given=given: how(**arguments(key=KEYS[0]), callbacks=given),
                f"callbacks must be a list such as [jalax.time_limit(60)], got {shown}.",
                TypeError,
            )
            for how in (jalax.fit, jalax.fit_many)
            for name, given, shown in (
                ("one callback", jalax.time_limit(3), "time_limit(seconds=3)"),
                ("None", None, "None"),
                ("text", "bar", "'bar'"),
            )
        ),
        *(
            Row(
                f"{how.__name__} {name}",
                lambda how=how, given=given: how(**arguments(key=KEYS[0]), callbacks=[given]),
                "callbacks must hold objects such as jalax.time_limit(60) or "
                f"jalax.stop_when(function), got {shown}.",
                TypeError,
            )
            for how in (jalax.fit, jalax.fit_many)
            for name, given, shown in (
                ("a function", prior, "<function prior at …>"),
                ("a class", Watch, "<class '….Watch'>"),
            )
        ),
        *(
            Row(
                f"progress {value}",
                lambda value=value: fit(progress=value),
                "progress must be a callback, None (a progress bar) or jalax.callbacks.Callback() "
                f"(nothing is shown), got {value}.",
                TypeError,
            )
            for value in (True, False)
        ),
        *(
            Row(
                f"time_limit {seconds!r}",
                lambda seconds=seconds: jalax.time_limit(seconds),
                f"time_limit's seconds must be a number, 0 or more, got {seconds!r}.",
                error,
            )
            for seconds, error in (
                (-1, ValueError),
                (np.nan, ValueError),
                ("1h", TypeError),
                (None, TypeError),
                (True, TypeError),
            )
        ),
        Row(
            "stop_when",
            lambda: jalax.stop_when(3),
            "stop_when's fn must be a function (run) -> bool, got 3.",
            TypeError,
        ),
        Row(
            "checkpoint",
            lambda: jalax.checkpoint(3),
            "checkpoint's path must be a file name, got 3.",
            TypeError,
        ),
    ],
    "state and files": [
        Row("another algorithm", lambda: fit(state=fitted("PGD").state), OTHER_STATE),
        Row(
            "another optimiser",
            lambda: fit(algorithm=jala_em(optimizer=optax.sgd(0.1)), state=fitted().state),
            OTHER_STATE,
        ),
        Row(
            "another model",
            lambda: fit(
                model=model_of(log_joint, {**DATA, "y": np.ones(4)}, jnp.zeros(4)),
                state=fitted().state,
            ),
            OTHER_STATE,
        ),
        Row(
            "a result",
            lambda: fit(state=fitted()),
            "state must be the state of a FitResult, got FitResult: pass result.state.",
            TypeError,
        ),
        Row(
            "a dict",
            lambda: fit(state=fitted().state._asdict()),
            "state must be the state of a FitResult, got dict.",
            TypeError,
        ),
        Row(
            "a file of another algorithm",
            lambda: fit(algorithm=jalax.PGD(step_size=0.05), state=from_file().state),
            f"state= {STATE_OF_ANOTHER}",
            FileError,
        ),
        Row(
            "a file of another model",
            lambda: fit(
                model=model_of(log_joint, {**DATA, "y": np.ones(4)}, jnp.zeros(4)),
                state=from_file().state,
            ),
            f"state= {STATE_OF_ANOTHER}",
            FileError,
        ),
        Row("a file, and no theta", lambda: fit(theta=None, state=from_file().state), NO_THETA),
        Row(
            "load nothing", lambda: jalax.load("nothing.npz"), "…: 'nothing.npz'", FileNotFoundError
        ),
        Row(
            "load text",
            lambda: jalax.load(written("notes.txt", "theta = 0.3\n")),
            "notes.txt is truncated or not a jalax file (…).",
            FileError,
        ),
        Row(
            "load half",
            lambda: jalax.load(cut_in_half()),
            "half.npz is truncated or not a jalax file (…).",
            FileError,
        ),
        Row(
            "load a folder",
            lambda: jalax.load("."),
            ". is truncated or not a jalax file (…).",
            FileError,
        ),
        Row(
            "load a container",
            lambda: jalax.load(saved_pair()),
            "pair.npz: the file holds a Pair, whose structure is not stored: pass "
            "jalax.load(path, like=...) a tree of the same structure.",
            FileError,
        ),
        Row(
            "load like another",
            lambda: jalax.load(saved_pair(), like=fitted()),
            "pair.npz: like= does not fit the file, which holds a Pair of 2 arrays; like= has 1.",
            FileError,
        ),
        Row(
            "pickle a lambda",
            lambda: pickle.dumps(with_model(model_of(lambda theta, x, data: 0.0))),
            "…<lambda> cannot be pickled: it is a lambda, or was made inside of another function, "
            "and another process would not find it. Move it to the top level of a module that can "
            "be imported, or use result.save(path), which keeps the numbers without the model.",
            TypeError,
        ),
        Row(
            "compile into a file",
            lambda: jalax.runtime.compilation_cache(written("file")),
            "compiled programs cannot be kept in 'file', which is no folder and cannot be made "
            "one (File exists): pass another folder.",
        ),
        Row(
            "compile into a number",
            lambda: jalax.runtime.compilation_cache(3),
            "folder must be a path or None, got int.",
            TypeError,
        ),
    ],
    "fit_many": [
        Row(
            "theta",
            lambda: many(theta=np.zeros(4), axes={"theta": 0}),
            "the fit axes differ in length: key: 3, theta: 4.",
        ),
        Row(
            "num_fits",
            lambda: many(num_fits=4),
            "the fit axes differ in length: num_fits: 4, key: 3.",
        ),
        Row(
            "step_size",
            lambda: many(algorithm=jala_em(step_size=np.ones(2)), axes={"step_size": 0}),
            "the fit axes differ in length: key: 3, algorithm.step_size: 2.",
        ),
        Row("unknown axis", lambda: many(axes={"stepsize": 0}), f"axes names ['stepsize']; {AXES}"),
        Row("static axis", lambda: many(axes={"resample": 0}), f"axes names ['resample']; {AXES}"),
        Row(
            "axis of a number",
            lambda: many(axes={"step_size": 0}),
            "axes says that algorithm.step_size leads with the fit axis, but it is a scalar.",
        ),
        Row(
            "axis 1",
            lambda: many(axes={"data": 1}),
            "axes takes 0, the leading axis, or None; got 1: move that axis to the front.",
        ),
        Row(
            "how many",
            lambda: many(key=KEY),
            "how many fits? Pass num_fits=, an array of keys, or axes=.",
        ),
        Row(
            "none",
            lambda: many(key=KEY, num_fits=0),
            "num_fits must be a whole number of at least 1, got 0.",
        ),
        Row(
            "two and a half",
            lambda: many(key=KEY, num_fits=2.5),
            "num_fits must be a whole number of at least 1, got 2.5.",
        ),
        Row("no key", lambda: many(key=None, num_fits=3), NO_KEY, TypeError),
        Row("old key", lambda: many(key=OLD_KEY), NOT_TYPED.format("ArrayImpl"), TypeError),
        Row(
            "keys in rows",
            lambda: many(key=KEYS.reshape(3, 1)),
            "key must be one key, or an array of one a fit, (3,); got (3, 1).",
        ),
        Row(
            "start",
            lambda: many(start=3.0),
            "start must be an object such as jalax.Given(particles) or jalax.FromSampler(fn), "
            "got 3.0.",
            TypeError,
        ),
        Row(
            "num_steps",
            lambda: many(num_steps=None),
            "num_steps is missing: pass num_steps=..., a whole number.",
        ),
        Row("theta int", lambda: many(theta=0), FLOAT.format("theta", "int32"), TypeError),
        Row("theta missing", lambda: many(theta=None), NO_THETA),
        Row("model", lambda: many(model=3), NO_MODEL.format("int"), TypeError),
        Row("mesh", lambda: many(mesh="gpu"), NO_MESH, TypeError),
        Row(
            "num_particles twice",
            lambda: many(num_particles=5),
            "the number of particles is given more than once: num_particles = 5, the particles "
            "of the start = 8.",
        ),
        Row(
            "checkpoint",
            lambda: many(callbacks=[jalax.checkpoint("fit.npz")]),
            "checkpoint works with jalax.fit; jalax.fit_many has no checkpoints.",
        ),
        Row(
            "one step size",
            lambda: many(
                algorithm=jala_em(step_size=np.array([0.5, -0.5, 0.5])), axes={"step_size": 0}
            ),
            "JALAEM.step_size must be positive and finite, got -0.5.\nin fit number 1 of fit_many",
        ),
        Row(
            "one theta",
            lambda: many(theta=np.array([0.0, 0.0, np.nan]), axes={"theta": 0}),
            "the start value theta is not finite: nan. Pass finite numbers.\n"
            "in fit number 2 of fit_many",
        ),
        Row(
            "one data set",
            lambda: many(
                model=model_of(
                    log_joint, {"y": np.where(np.eye(3) > 0, np.inf, Y), "height": np.zeros(3)}
                ),
                axes={"data": 0},
            ),
            "log_joint is not finite at the start for 8 of 8 particles (first: particle 0, -inf). "
            + NOT_FINITE,
        ),
        Row(
            "axes by name",
            lambda: many(axes="theta"),
            "axes must be a dict such as {'theta': 0}, got 'theta'.",
            TypeError,
        ),
        *(
            Row(
                f"axes {name} {given!r}",
                lambda name=name, given=given: many(axes={name: given}),
                f"axes[{name!r}] is not 0, nor a tree like {name}, {shown}; got {given!r}.",
            )
            for name, given, shown in (
                ("theta", "first", "float32[]"),
                ("theta", 0.5, "float32[]"),
                ("data", {"z": 0}, "{height: float32[], y: float32[3]}"),
            )
        ),
        Row(
            "axis of nothing",
            lambda: many(start=jalax.Laplace(), axes={"start": 0}),
            "axes says that start leads with the fit axis, but it holds no array: "
            "Laplace(degrees_of_freedom=None, num_draws=None).",
        ),
        Row(
            "start as text",
            lambda: many(start=jalax.Given("x")),
            f"Given.particles {DOCUMENTED} 'x'.",
            TypeError,
        ),
    ],
    "evidence": [
        *(
            Row(
                f"error {error}",
                lambda error=error: jalax.log_evidence(SIMPLE, 0.0, key=KEY, error=error),
                f"error must be a positive number, the standard error asked for, got {error:g}.",
            )
            for error in (0.0, -1.0, np.nan)
        ),
        Row(
            "few particles",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, num_particles=3),
            "num_particles must be a whole number of at least 25, got 3.",
        ),
        Row(
            "one replicate",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, num_replicates=1),
            "num_replicates must be a whole number of at least 2, got 1.",
        ),
        Row("no key", lambda: jalax.log_evidence(SIMPLE, 0.0), NO_KEY, TypeError),
        Row(
            "no model",
            lambda: jalax.log_evidence(log_joint, 0.0, key=KEY),
            NO_MODEL.format("function"),
            TypeError,
        ),
        Row(
            "no theta",
            lambda: jalax.log_evidence(MODEL, key=KEY),
            "theta is missing: pass that at which you want the evidence, "
            "jalax.log_evidence(model, theta, ...), or give the model one with theta=.",
        ),
        Row(
            "theta int",
            lambda: jalax.log_evidence(SIMPLE, 0, key=KEY),
            FLOAT.format("theta", "int32"),
            TypeError,
        ),
        Row(
            "theta nan",
            lambda: jalax.log_evidence(SIMPLE, np.nan, key=KEY),
            "the start value theta is not finite: nan. Pass finite numbers.",
        ),
        Row(
            "vector",
            lambda: jalax.log_evidence(model_of(lambda t, x, d: x), 0.0, key=KEY),
            f"log_joint must return a scalar, got float32[3] {NOT_A_SCALAR}",
        ),
        Row(
            "reference a number",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, reference=3.0),
            f"{REFERENCE} 3.0.",
            TypeError,
        ),
        Row(
            "reference by one function",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, reference=(prior,)),
            f"{REFERENCE} (<function prior at …>,).",
            TypeError,
        ),
        Row(
            "reference of another shape",
            lambda: jalax.log_evidence(
                SIMPLE, 0.0, key=KEY, reference=(lambda k, t, d: jnp.zeros(4), log_prior)
            ),
            "the sampler must return one latent configuration, shaped like float32[3]; got "
            "float32[4].",
        ),
        Row(
            "modes of another shape",
            lambda: jalax.log_evidence(
                SIMPLE, 0.0, key=KEY, reference=jalax.references.Modes(np.zeros((2, 4)))
            ),
            "Modes.first must be shaped like float32[3] with a leading axis, got float32[2, 4].",
        ),
        Row(
            "mesh", lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, mesh="gpu"), NO_MESH, TypeError
        ),
        Row(
            "replay of a file",
            lambda: from_file().replay(KEY),
            "replay needs the fit itself, and this result was read from a file.",
        ),
        Row(
            "replay given particles",
            lambda: fitted().replay(KEY),
            "replay needs a start that can be drawn afresh (jalax.Laplace, Tempered, "
            "FromSampler with a log_density); this fit went on from a state or had its "
            "particles given.",
        ),
        Row(
            "replay some steps",
            lambda: fitted(record=2).replay(KEY),
            "replay needs theta at every step, and this fit kept only some of them: fit with "
            "record=1.",
        ),
        Row(
            "check of a file",
            lambda: from_file().evidence_check(KEY),
            "evidence_check needs the fit itself, not a result from a file.",
        ),
        Row(
            "error text",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, error="small"),
            "error must be a positive number, the standard error asked for, got 'small'.",
            TypeError,
        ),
        *(
            Row(
                f"max_particles {number}",
                lambda number=number: jalax.log_evidence(
                    SIMPLE, 0.0, key=KEY, max_particles=number
                ),
                f"max_particles must be a whole number of at least 1, got {number}.",
            )
            for number in (0, -5)
        ),
        Row(
            "moves by name",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, moves="MALA"),
            "moves must be jalax.references.MALA() or jalax.references.JALA(), got 'MALA'.",
            TypeError,
        ),
        Row(
            "kernel of moves",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, moves=jalax.references.JALA(kernel=2)),
            f"JALA.kernel {KERNEL} 2.",
            TypeError,
        ),
        Row(
            "moves with a wrong target",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, moves=jalax.references.JALA(target=2)),
            "JALA.target must be a number between 0 and 1, got 2.",
        ),
        *(
            Row(
                f"{name} with {freedom!r} degrees of freedom",
                lambda make=make, freedom=freedom: jalax.log_evidence(
                    SIMPLE, 0.0, key=KEY, reference=make(freedom)
                ),
                f"{name}.degrees_of_freedom must be a positive number, got {freedom!r}.",
                error,
            )
            for name, make in (
                ("AtMode", jalax.references.AtMode),
                ("Modes", lambda freedom: jalax.references.Modes(np.zeros((2, 3)), freedom)),
            )
            for freedom, error in ((0, ValueError), (-1, ValueError), ("few", TypeError))
        ),
        Row(
            "reference a class",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, reference=jalax.references.AtMode),
            f"{REFERENCE} <class 'jalax._reference.references.AtMode'>.",
            TypeError,
        ),
        Row(
            "modes of no rows",
            lambda: jalax.log_evidence(
                SIMPLE, 0.0, key=KEY, reference=jalax.references.Modes(np.zeros((0, 3)))
            ),
            "Modes.first must be shaped like float32[3] with a leading axis, got float32[0, 3].",
        ),
        Row(
            "reference swapped",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, reference=(log_prior, prior)),
            "…\nraised inside log_density(theta, x, data) for theta=float32[], x=float32[3], "
            "data={y: float32[3]}",
            TypeError,
        ),
        Row(
            "reference density a vector",
            lambda: jalax.log_evidence(SIMPLE, 0.0, key=KEY, reference=(prior, lambda t, x, d: x)),
            f"log_density must return a scalar, got float32[3] {NOT_A_SCALAR}",
        ),
        Row(
            "nan everywhere",
            lambda: jalax.log_evidence(
                model_of(lambda t, x, d: jnp.sum(x) * jnp.nan), 0.0, key=KEY
            ),
            "log_joint is nan at the mode, which is searched from the model's example latent: "
            "check latent, theta and the data for values outside the model's domain.",
        ),
        *(
            Row(
                f"interval {level!r}",
                lambda level=level: EVIDENCE.interval(level),
                f"level must be a number between 0 and 1, got {level!r}.",
                error,
            )
            for level, error in ((2, ValueError), (-0.5, ValueError), ("95%", TypeError))
        ),
        *(
            Row(
                f"replay {name} {number}",
                lambda name=name, number=number: fitted().replay(KEY, **{name: number}),
                f"{name} must be a whole number of at least 2, got {number}.",
            )
            for name in ("num_replicates", "num_particles")
            for number in (1, 0, -1, 2.5)
        ),
        Row("replay without a key", lambda: fitted().replay(None), NO_KEY, TypeError),
        Row("check without a key", lambda: fitted().evidence_check(None), NO_KEY, TypeError),
        Row(
            "check with an old key",
            lambda: fitted().evidence_check(OLD_KEY),
            NOT_TYPED.format("ArrayImpl"),
            TypeError,
        ),
    ],
    "compare": [
        Row("none", lambda: jalax.compare({}), "compare needs two or more fits by name, got []."),
        Row(
            "one fit",
            lambda: jalax.compare({"a": fitted()}),
            "compare needs two or more fits by name, got ['a'].",
        ),
        Row(
            "a number",
            lambda: jalax.compare({"a": fitted(), "b": 3}),
            "compare takes FitResults; 'b' is of type int.",
            TypeError,
        ),
        Row("other observations", lambda: jalax.compare(two(first=0.0)), OTHER_DATA),
        Row(
            "other data, all of it observed",
            lambda: jalax.compare(two(height=1.0), observed=lambda data: data),
            OTHER_DATA,
        ),
        Row(
            "no evidence",
            lambda: jalax.compare({"a": with_evidence(fitted()), "b": fitted("PGD")}),
            "the fit 'b' has no evidence: PGD gives no evidence: its particles have no "
            "weights. Use jalax.JALAEM.",
        ),
        Row(
            "from a file",
            lambda: jalax.compare({"a": fitted(), "b": from_file()}),
            "the fit 'b' was read from a file, which does not hold its model: compare fits of "
            "this session.",
        ),
        Row(
            "prior of others",
            lambda: jalax.compare(two(), theta_log_prior={"b": lambda theta: 0.0}),
            "theta_log_prior has no entry for 'a'.",
        ),
        Row(
            "mesh",
            lambda: jalax.compare({"a": fitted(), "b": fitted()}, mesh="gpu"),
            NO_MESH,
            TypeError,
        ),
        *(
            Row(
                f"results {type(given).__name__}",
                lambda given=given: jalax.compare(given),
                f"results must be a dict {{name: FitResult}}, got {type(given).__name__}.",
                TypeError,
            )
            for given in ([1, 2], None)
        ),
        Row(
            "prior by name",
            lambda: jalax.compare(two(), theta_log_prior="flat"),
            "theta_log_prior must be a function of theta, or a dict of them by name, got 'flat'.",
            TypeError,
        ),
        Row(
            "prior a vector",
            lambda: jalax.compare(two(), theta_log_prior=lambda theta: jnp.stack([theta, theta])),
            "theta_log_prior must return a scalar, got float32[2] for theta=float32[]: sum the "
            "terms, jnp.sum(...).",
        ),
        Row(
            "prior of another tree",
            lambda: jalax.compare(two(), theta_log_prior=raising_prior),
            "no such prior\nraised inside theta_log_prior(theta) for theta=float32[]",
            RuntimeError,
        ),
        Row(
            "observed by name",
            lambda: jalax.compare(two(), observed="y"),
            "observed must be a function of a model's data, got 'y'.",
            TypeError,
        ),
        Row(
            "no such fit",
            lambda: jalax.compare(two()).log_bayes_factor("a", "c"),
            "there is no fit 'c' here, only ['a', 'b'].",
        ),
    ],
    "result": [
        *(
            Row(
                f"theta_average {last}",
                lambda last=last: fitted().theta_average(last),
                f"last must be a fraction of the steps, above 0 and up to 1, got {last}.",
            )
            for last in (0, 1.5, -0.1, np.nan)
        ),
        *(
            Row(
                f"level {level}",
                lambda level=level: fitted().confidence_intervals(level),
                f"level must be a number between 0 and 1, got {level}.",
            )
            for level in (95, 2, 1, 0, -0.5, np.nan)
        ),
        Row(
            "level of latents",
            lambda: fitted().latents(level=95),
            "level must be a number between 0 and 1, got 95.",
        ),
        Row(
            "errors of a divergence",
            lambda: diverged().standard_errors(),
            "the fit diverged: there are no standard errors. result.message says what to try.",
        ),
        Row(
            "errors of a file",
            lambda: from_file().standard_errors(),
            "this result was read from a file, which holds no standard errors: ask for "
            "result.standard_errors() before saving.",
        ),
        Row(
            "errors of many parameters",
            lambda: dataclasses.replace(fitted(), free=jnp.zeros(310)).standard_errors(),
            "standard errors need the information about all parameters, a dense matrix: theta "
            "has 310 numbers, and the limit is 300.",
        ),
        Row(
            "deterministic",
            lambda: fitted().deterministic(),
            "this model has no numpyro.deterministic site; they come with jalax.from_numpyro.",
        ),
        Row(
            "deterministic of a file",
            lambda: from_file().deterministic(),
            "deterministic sites need the fit itself, not a result from a file.",
        ),
        Row("lppd", lambda: jalax.lppd(fitted(), DATA), NO_PREDICTIVE),
        Row(
            "lppd of groups",
            lambda: jalax.lppd(of_groups(), DATA, log_predictive=log_joint),
            NO_GROUPS,
            TypeError,
        ),
        Row(
            "theta_average text",
            lambda: fitted().theta_average("half"),
            "last must be a fraction of the steps, above 0 and up to 1, got 'half'.",
            TypeError,
        ),
        Row(
            "level text",
            lambda: fitted().confidence_intervals("95%"),
            "level must be a number between 0 and 1, got '95%'.",
            TypeError,
        ),
        *(
            Row(
                f"resample {number}",
                lambda number=number: fitted().resample(KEY, number),
                f"num_samples must be a whole number of at least 1, got {number}.",
            )
            for number in (-1, 0, 2.5)
        ),
        Row("resample without a key", lambda: fitted().resample(None, 5), NO_KEY, TypeError),
        Row(
            "resample with an old key",
            lambda: fitted().resample(OLD_KEY, 5),
            NOT_TYPED.format("ArrayImpl"),
            TypeError,
        ),
        Row(
            "expectation of a number",
            lambda: fitted().expectation(3),
            "fn must be a function of x, got 3.",
            TypeError,
        ),
        Row(
            "expectation of an entry",
            lambda: fitted().expectation(lambda x: x["a"]),
            "…\nraised inside fn(x) for x=float32[3]",
            TypeError,
        ),
        Row(
            "lppd of a number",
            lambda: jalax.lppd(3, DATA),
            "result must be a FitResult, got int.",
            TypeError,
        ),
        Row(
            "lppd by name",
            lambda: jalax.lppd(fitted(), DATA, log_predictive="x"),
            "log_predictive must be a function (theta, x, data), got 'x'.",
            TypeError,
        ),
        Row(
            "lppd of one number",
            lambda: jalax.lppd(fitted(), DATA, log_predictive=log_joint),
            "log_predictive must return one log-density for each observation, shape (n,), got "
            "float32[]: do not sum them.",
        ),
        Row(
            "lppd of other data",
            lambda: jalax.lppd(fitted(), {"z": Y}, log_predictive=lambda t, x, d: d["y"]),
            "log_predictive asks for 'y', which is not among the keys of data ('z').",
        ),
    ],
    "transport": [
        Row("no key", lambda: transport(key=None), NO_KEY, TypeError),
        Row("a kernel", lambda: transport(kernel=1.0), f"kernel {KERNEL} 1.0.", TypeError),
        Row(
            "step_size 3 of the exact kernel",
            lambda: transport(step_size=3.0, kernel=jalax.GaussianExact()),
            "step_size must be below 2 with kernel=jalax.GaussianExact(), whose noise has variance "
            "h (2 - h), got 3.0: take 1 or less, or kernel=jalax.Unadjusted().",
        ),
        Row("a number for the schedule", lambda: transport(schedule=0.5), f"{SCHEDULE} float32[]."),
        Row("one density", lambda: transport(schedule=np.array([0.5])), f"{SCHEDULE} float32[1]."),
        Row(
            "lists in the schedule",
            lambda: transport(schedule=[0.0, 0.5, 1.0]),
            f"{SCHEDULE} [float32[], float32[], float32[]].",
        ),
        Row(
            "lengths in the schedule",
            lambda: transport(schedule={"a": np.zeros(4), "b": np.zeros(3)}),
            f"{SCHEDULE} {{a: float32[4], b: float32[3]}}.",
        ),
        Row(
            "particle axis",
            lambda: transport(particles=0.5),
            "particles must lead with the particle axis (N, ...), got float32[].",
        ),
        Row(
            "one particle",
            lambda: transport(particles=POINTS[:1]),
            "the number of particles must be a whole number of at least 2, got 1.",
        ),
        Row(
            "numbers of particles",
            lambda: transport(particles={"a": POINTS, "b": POINTS[:5]}),
            "particles must lead with the axes (particles,) before the shape of one latent, "
            "{a: float32[], b: float32[]}; got {a: float32[10], b: float32[5]}.",
        ),
        Row(
            "particle nan",
            lambda: transport(particles=np.append(POINTS, np.nan)),
            "log_joint is not finite at the start for 1 of 11 particles (first: particle 10, nan). "
            + NOT_FINITE,
        ),
        Row(
            "vector",
            lambda: transport(particles=np.ones((10, 2))),
            "log_density must return a scalar, got float32[2] for one latent configuration "
            "x=float32[2]: sum the terms, jnp.sum(...).",
        ),
        Row(
            "step_size 0",
            lambda: transport(step_size=0.0),
            "step_size must be positive and finite, got 0.0.",
        ),
        Row(
            "step_size None",
            lambda: transport(step_size=None),
            "step_size is missing: pass a positive number or a schedule, step_size=...",
        ),
        Row(
            "preconditioner",
            lambda: transport(preconditioner=np.ones(3)),
            "preconditioner must be shaped like one latent, float32[] (a diagonal), or be a "
            "(1, 1) matrix over the ravelled latent, each optionally with a leading axis of 1 "
            "group(s); got float32[3].",
        ),
        Row(
            "log_weights",
            lambda: transport(log_weights=np.zeros(3)),
            "log_weights must be one number a particle, shape (10,) (grouped models: (1, 10)), "
            "got (3,).",
        ),
        Row(
            "error of systematic resampling",
            lambda: jalax.results.Transport(*[None] * 7, multinomial=False).log_evidence_error(),
            "the genealogy gives an error for multinomial resampling only: pass "
            "resample=jalax.resampling.multinomial, or run replicates with several keys.",
        ),
        *(
            Row(
                f"resample_below {below!r}",
                lambda below=below: transport(resample_below=below),
                f"resample_below must be a fraction of the particles, from 0 to 1, got {below!r}.",
                error,
            )
            for below, error in ((2, ValueError), (-1, ValueError), ("half", TypeError))
        ),
        Row(
            "resample by name",
            lambda: transport(resample="systematic"),
            "resample must be a function such as jalax.systematic, got 'systematic'.",
            TypeError,
        ),
        Row(
            "log_density a number",
            lambda: transport(log_density=3),
            "log_density must be a function (t, x) -> scalar, got 3.",
            TypeError,
        ),
        Row(
            "log_density raising",
            lambda: transport(log_density=lambda t, x: t["a"]),
            "…\nraised inside log_density(t, x) for t=float32[], x=float32[]",
            TypeError,
        ),
        *(
            Row(
                f"{name} text",
                lambda name=name: transport(**{name: "x"}),
                f"{name} must hold numbers, got 'x'.",
                TypeError,
            )
            for name in ("schedule", "particles", "step_size", "preconditioner")
        ),
        Row(
            "particles None",
            lambda: transport(particles=None),
            "particles must lead with the particle axis (N, ...), got None.",
        ),
        Row(
            "no particles",
            lambda: transport(particles=POINTS[:0]),
            "the number of particles must be a whole number of at least 2, got 0.",
        ),
        Row(
            "preconditioner automatic",
            lambda: transport(preconditioner=jalax.options.InverseHessian()),
            "the preconditioner of transport is fixed in advance: pass a diagonal or a matrix, got "
            "InverseHessian().",
            TypeError,
        ),
    ],
    "models": [
        Row(
            "rows",
            lambda: models.gaussian_regression(ONES, [1.0, 2.0]),
            "one row for each observation is expected, but X has 3, y has 2. Check that rows "
            "were not dropped from one of them only, and that nothing is transposed.",
        ),
        Row(
            "feature without its axis",
            lambda: models.student_t_regression(THREE, THREE),
            "X must have 2 axes, got shape (3,). Pass one row for each observation; a single "
            "feature is x[:, None].",
        ),
        Row(
            "y in columns",
            lambda: models.gaussian_regression(ONES, ONES),
            "y must have 1 axis, got shape (3, 2). Pass one number for each observation, such "
            "as y.ravel().",
        ),
        Row(
            "nan",
            lambda: models.gaussian_regression(ONES * np.nan, THREE),
            "X has 6 entries that are NaN or infinite. Drop or impute those rows first.",
        ),
        Row(
            "inf",
            lambda: models.hierarchical_normal([1.0, np.inf]),
            "y has 1 entries that are NaN or infinite. Drop or impute those rows first.",
        ),
        Row(
            "empty",
            lambda: models.hierarchical_normal([]),
            "y is empty (shape (0,)): at least one row is needed.",
        ),
        Row(
            "none",
            lambda: models.hierarchical_normal(None),
            "y must have 1 axis, got shape (). Pass one number for each observation.",
        ),
        Row(
            "text",
            lambda: models.hierarchical_normal(["a", "b"]),
            "y must be an array of real numbers, got list (…). Encode text or categories as "
            "numbers first.",
            TypeError,
        ),
        Row(
            "complex",
            lambda: models.hierarchical_normal([1j, 2.0]),
            "y must be an array of real numbers, got list (…). Encode text or categories as "
            "numbers first.",
            TypeError,
        ),
        Row(
            "logistic labels",
            lambda: models.logistic_regression(ONES, [1, 2, 1]),
            "y must hold the labels 0 and 1, found 2. Encode the classes first, for example "
            "with (y == positive_class).",
        ),
        Row(
            "logistic -1 and 1",
            lambda: models.logistic_regression(ONES, [1, -1, 1]),
            "y must hold the labels 0 and 1, found -1. Encode the classes first, for example "
            "with (y == positive_class).",
        ),
        *(
            Row(
                f"logistic prior_variance {value}",
                lambda value=value: models.logistic_regression(
                    ONES, [1, 0, 1], prior_variance=value
                ),
                f"prior_variance must be positive and finite, got {value:g}.",
            )
            for value in (0.0, -1.0, np.nan, np.inf)
        ),
        *(
            Row(
                f"logistic prior_variance {value}",
                lambda value=value: models.logistic_regression(
                    ONES, [1, 0, 1], prior_variance=value
                ),
                f"prior_variance must be one positive number, got {value!r}.",
                TypeError,
            )
            for value in ("wide", [1, 2])
        ),
        Row(
            "logistic data_batch",
            lambda: models.logistic_regression(ONES, [1, 0, 1], data_batch=0),
            "data_batch must be at least 1, got 0.",
        ),
        Row(
            "order -1",
            lambda: models.polynomial_regression(THREE, THREE, -1),
            "order must be at least 0, got -1.",
        ),
        Row(
            "order 2.0",
            lambda: models.polynomial_regression(THREE, THREE, 2.0),
            "order must be an integer, got 2.0 of type float. Pass for example int(...).",
            TypeError,
        ),
        Row(
            "polynomial rows",
            lambda: models.polynomial_regression(THREE, [1.0, 2.0], 1),
            SAME_ROWS.format("x has 3, y has 2"),
        ),
        Row(
            "network digits",
            lambda: models.neural_network(ONES, [4, 9, 4]),
            f"labels must be the classes 0, 1, ... without a gap, found [4, 9]. {RECODE}",
        ),
        Row(
            "network classes",
            lambda: models.neural_network(ONES, [0, 1, 2], num_classes=2),
            f"labels must lie below num_classes = 2, found 2. {RECODE}",
        ),
        Row(
            "network of one class",
            lambda: models.neural_network(ONES, [0, 0, 0], num_classes=1),
            "num_classes must be at least 2, got 1.",
        ),
        Row(
            "network without units",
            lambda: models.neural_network(ONES, [0, 1, 1], num_hidden=0),
            "num_hidden must be at least 1, got 0.",
        ),
        Row(
            "network images",
            lambda: models.neural_network(THREE, [0, 1, 1]),
            "images must have 2 axes, got shape (3,). Pass one row of features for each image.",
        ),
        Row(
            "network fractions",
            lambda: models.neural_network(ONES, [0, 0.5, 1]),
            f"labels must be the classes 0, 1, ..., found 0.5. {RECODE}",
        ),
        Row(
            "network labels",
            lambda: models.neural_network(ONES, [0, 1]),
            "one row for each observation is expected, but images has 3, labels has 2. Check "
            "that rows were not dropped from one of them only, and that nothing is transposed.",
        ),
        Row(
            "network data_batch",
            lambda: models.neural_network(ONES, [0, 1, 1], data_batch=1.5),
            "data_batch must be an integer, got 1.5 of type float. Pass for example int(...).",
            TypeError,
        ),
        Row(
            "intercept successes",
            lambda: intercept([1, 5, 1], models.Binomial(4)),
            "y must not exceed size, but in row 1 there are 5 successes out of 4 trials. "
            "size counts all trials, successes and failures together.",
        ),
        Row(
            "intercept negative",
            lambda: intercept([1, -1, 1], models.Poisson()),
            "y must hold counts (whole numbers from 0 upwards), found -1. Pass counts, not "
            "rates or proportions.",
        ),
        Row(
            "intercept proportions",
            lambda: intercept([0.5, 1, 1], models.Binomial(4)),
            "y must hold counts (whole numbers from 0 upwards), found 0.5. Pass counts, "
            "not rates or proportions.",
        ),
        Row(
            "intercept size",
            lambda: intercept([0, 0, 0], models.Binomial(2.5)),
            "size must hold counts (whole numbers from 0 upwards), found 2.5. Pass counts, "
            "not rates or proportions.",
        ),
        Row(
            "intercept sizes",
            lambda: intercept([0, 1, 1], models.Binomial([4, 4])),
            SAME_ROWS.format("size has 2, y has 3"),
        ),
        Row(
            "intercept exposure",
            lambda: intercept([0, 1, 1], models.Poisson(0.0)),
            "exposure must be positive, found 0. Drop observations that were never "
            "exposed; exposure is t itself, not its logarithm.",
        ),
        Row(
            "intercept family by name",
            lambda: intercept([0, 1, 1], "binomial"),
            "family must be an object such as jalax.models.Binomial(size) or "
            "jalax.models.Poisson(), got 'binomial'.",
            TypeError,
        ),
        Row(
            "intercept family not called",
            lambda: intercept([0, 1, 1], models.Binomial),
            "family must be an object such as jalax.models.Binomial(size) or "
            "jalax.models.Poisson(), got <class 'jalax.models._families.Binomial'>.",
            TypeError,
        ),
        Row(
            "intercept groups",
            lambda: intercept([0, 1, 1], models.Poisson(), [1, 1]),
            SAME_ROWS.format("y has 3, covariates has 3, groups has 2"),
        ),
        Row(
            "intercept nan group",
            lambda: intercept([0, 1, 1], models.Poisson(), [1, np.nan, 2]),
            "groups must be integers or strings, found fractions or NaN. Drop observations "
            "without a group, and check that this is not a covariate.",
        ),
        Row(
            "intercept missing group",
            lambda: intercept([0, 1, 1], models.Poisson(), ["a", None, "b"]),
            "groups have missing labels. Drop those observations first.",
        ),
        Row(
            "intercept no groups",
            lambda: intercept([0, 1, 1], models.Poisson(), []),
            "groups must be one label for each observation, got shape (0,).",
        ),
        Row(
            "linear covariates",
            lambda: models.linear_mixed(THREE, THREE, GROUPS),
            "covariates must have 2 axes, got shape (3,). Pass one row for each observation; a "
            "lone intercept is np.ones((n, 1)).",
        ),
        Row(
            "linear random",
            lambda: models.linear_mixed(THREE, ONES, GROUPS, random=np.ones((2, 1))),
            SAME_ROWS.format("y has 3, covariates has 3, groups has 3, random has 2"),
        ),
        Row(
            "factors",
            lambda: models.factor_analysis(np.ones((5, 3)), 3),
            "num_factors must be smaller than the 3 variables of y, got 3.",
        ),
        Row(
            "no factors",
            lambda: models.factor_analysis(np.ones((5, 3)), 0),
            "num_factors must be at least 1, got 0.",
        ),
        Row(
            "factors of a row",
            lambda: models.factor_analysis(np.ones(5), 1),
            "y must have 2 axes, got shape (5,). Pass one row for each observation, one column "
            "for each variable.",
        ),
        Row(
            "answers",
            lambda: models.item_response([[1, 2], [0, 1]]),
            "y must hold answers, 1 (right), 0 (wrong) or NaN (none), found 2.",
        ),
        Row(
            "answers in text",
            lambda: models.item_response([["a", "b"]]),
            "y must hold answers, 1, 0 or NaN for none, got ….",
            TypeError,
        ),
        Row(
            "answers in a row",
            lambda: models.item_response([1, 0, 1]),
            "y must have 2 axes, got shape (3,). Pass one row a person, one column an item.",
        ),
        Row(
            "item without answers",
            lambda: models.item_response([[1, np.nan], [0, np.nan]]),
            "item 1 has no answer at all (1 such): leave it out.",
        ),
        Row(
            "person without answers",
            lambda: models.item_response([[np.nan, np.nan], [0, 1]]),
            "person 0 has no answer at all (1 such): leave it out.",
        ),
        Row(
            "generator latents",
            lambda: models.generator(ONES, 0),
            "num_latents must be at least 1, got 0.",
        ),
        Row(
            "generator hidden",
            lambda: models.generator(ONES, 2, (0,)),
            "hidden must be at least 1, got 0.",
        ),
        Row(
            "generator pictures",
            lambda: models.generator(THREE, 2),
            "pictures must have 2 axes, got shape (3,). Pass one picture a row.",
        ),
        Row(
            "order True",
            lambda: models.polynomial_regression(THREE, THREE, True),
            "order must be an integer, got True of type bool. Pass for example int(...).",
            TypeError,
        ),
        Row(
            "generator hidden a number",
            lambda: models.generator(ONES, 2, 8),
            "hidden must be a tuple of whole numbers, such as (64,), got 8.",
            TypeError,
        ),
        Row(
            "generator seed",
            lambda: models.generator(ONES, 2, seed="a"),
            "seed must be an integer, got 'a' of type str. Pass for example int(...).",
            TypeError,
        ),
    ],
    "mixed": [
        Row("no column", lambda: mixed("y ~ z + (1|school)"), f"there is no column 'z'; {COLUMNS}"),
        Row(
            "no factor",
            lambda: mixed("y ~ x + (1|klass)"),
            f"there is no column 'klass'; {COLUMNS}",
        ),
        Row(
            "one level",
            lambda: mixed("y ~ x + (1|one)"),
            "the grouping factor 'one' has one level, 'same': a variance between groups needs "
            "at least two.",
        ),
        Row(
            "no latent",
            lambda: mixed("y ~ x"),
            "'y ~ x' has no random effect, such as (1|group): there is no latent to integrate "
            "out. Add one, or fit a generalised linear model, which needs no jalax.",
        ),
        Row(
            "no response",
            lambda: mixed("x + (1|school)"),
            "'x + (1|school)' has no response: write 'y ~ x + (1|school)'.",
        ),
        Row("syntax", lambda: mixed("y ~ x + (1|"), "the formula 'y ~ x + (1|' cannot be read: …"),
        Row(
            "two tildes",
            lambda: mixed("y ~ x ~ (1|school)"),
            "the formula 'y ~ x ~ (1|school)' cannot be read: …",
        ),
        Row(
            "family",
            lambda: mixed("y ~ x + (1|school)", family="gama"),
            "family must be one of gaussian, …, got 'gama' (did you mean 'gamma'?).",
        ),
        Row(
            "not counts",
            lambda: mixed("y ~ x + (1|school)", family="poisson"),
            "family='poisson' needs counts, whole numbers from 0 upwards; 'y' has 2.82843. For "
            "measurements use family='gaussian' or 'gamma'.",
        ),
        Row(
            "not 0 and 1",
            lambda: mixed("count ~ x + (1|school)", family="bernoulli"),
            "family='bernoulli' needs a response of 0 and 1, or p(successes, trials); 'count' "
            "has 2.",
        ),
        Row(
            "trials",
            lambda: mixed("p(yes, trials) ~ 1 + (1|school)", family="poisson"),
            "p(yes, trials) is a count out of trials: use family='binomial' or 'betabinomial', not "
            "'poisson'.",
        ),
        Row(
            "too many",
            lambda: mixed("p(count, trials) ~ 1 + (1|school)", family="binomial"),
            "the part 'p(count, trials) ~ 1' of the formula cannot be evaluated on these data: "
            "'successes' cannot be greater than 'trials'. Compute it before, as a column of the "
            "data.",
        ),
        Row(
            "text",
            lambda: mixed("arm ~ x + (1|school)"),
            "the response 'arm' is not numeric: encode it as numbers first, a yes or no as 1 or 0; "
            "of ordered categories use family='ordinal'.",
        ),
        Row(
            "dependent",
            lambda: mixed("y ~ x + I(2 * x) + (1|school)"),
            "the fixed effects Intercept, x, I(2 * x) are linearly dependent: leave one out (a "
            "constant column repeats the intercept).",
        ),
        Row(
            "zero",
            lambda: mixed("y ~ zero + (1|school)"),
            "the fixed effect 'zero' is zero in every row: leave it out.",
        ),
        Row(
            "constant",
            lambda: mixed("constant ~ x + (1|school)"),
            "the response 'constant' is 1.5 in every row: nothing varies.",
        ),
        Row(
            "function",
            lambda: mixed("y ~ frob(x) + (1|school)"),
            "the formula 'y ~ frob(x) + (1|school)' calls frob. A formula may call log, …; "
            "compute anything else before, as a column of the data.",
        ),
        Row(
            "offset of text",
            lambda: mixed("y ~ x + offset(arm) + (1|school)"),
            "the part 'x + offset(arm)' of the formula: offset(arm) needs numbers, and column "
            "'arm' holds text or categories: leave the function out, or make the column numbers "
            "before.",
        ),
        Row(
            "missing values",
            lambda: mixed(
                "y ~ x + (1|school)",
                FRAME.assign(x=FRAME.x.where(FRAME.x < 2)),
                missing=jalax.missing.Refuse(),
            ),
            "column 'x' has 4 missing value(s): drop those rows (data.dropna(subset=['x'])) or "
            "impute them first.",
        ),
        Row("no rows", lambda: mixed("y ~ x + (1|school)", FRAME[:0]), "the data have no rows."),
        Row(
            "list",
            lambda: mixed("y ~ x + (1|school)", [1, 2]),
            "data must be a pandas or polars DataFrame or a dict of columns, got list: make one by "
            "pandas.DataFrame(data).",
            TypeError,
        ),
        Row(
            "no formula",
            lambda: mixed(None),
            "formula must be a string such as 'y ~ x + (1|group)', got NoneType; it comes first, "
            "and the data follow.",
            TypeError,
        ),
        Row("no key", lambda: mixed("y ~ x + (1|school)", key=None), NO_KEY, TypeError),
        Row(
            "num_steps",
            lambda: mixed("y ~ x + (1|school)", num_steps=0),
            "num_steps must be a whole number of at least 1, got 0.",
        ),
        Row(
            "no pandas",
            without("pandas", lambda: mixed("y ~ x + (1|school)", {"y": [1.0]})),
            "formulas need pandas: pip install 'jalax[mixed]'.",
            ImportError,
        ),
    ],
    "numpyro": [
        Row(
            "discrete",
            with_latent(lambda y: numpyro.sample("k", dist.Bernoulli(0.5))),
            "site 'k' is latent and discrete (BernoulliProbs): jalax moves x along gradients, "
            "and does not enumerate. Sum it out, for example a component label with "
            "dist.MixtureSameFamily, or condition on it with obs=.",
        ),
        Row(
            "sphere",
            with_latent(lambda y: numpyro.sample("s", dist.ProjectedNormal(jnp.ones(3)))),
            "…cannot handle spherical sample site 's'.…",
        ),
        Row(
            "subsample",
            with_latent(subsampled),
            "plate 'rows' has subsample_size=4: from_numpyro takes all of the data. Leave it "
            "out; jalax.JALAEM(minibatch=...) subsamples groups.",
        ),
        Row(
            "mutable",
            with_latent(lambda y: numpyro.primitives.mutable("s", {"v": 1.0})),
            "site 's' is numpyro.mutable, a state that changes as the model runs: a "
            "log-density has none. Write it as numpyro.param or as an argument.",
        ),
        Row(
            "no start",
            with_latent(lambda y: numpyro.param("b")),
            "numpyro.param('b') has no start value: pass one, numpyro.param('b', 0.0).",
        ),
        Row(
            "start outside",
            with_latent(lambda y: numpyro.param("b", -1.0, constraint=positive)),
            "the start value of numpyro.param('b') = -1.0 is outside its constraint, ….",
        ),
        Row(
            "integers",
            with_latent(lambda y: numpyro.param("b", 1, constraint=constraints.positive_integer)),
            f"the constraint of numpyro.param('b') is discrete, …: {DISCRETE}",
        ),
        Row(
            "no latent",
            lambda: jalax.from_numpyro(direct, (SCHOOLS,)),
            "this model has no unobserved numpyro.sample site: there is nothing to integrate "
            "out, and its likelihood can be maximised directly (numpyro.infer.SVI with an "
            "empty guide).",
        ),
        Row(
            "nothing observed",
            lambda: jalax.from_numpyro(examples.eight_schools, (8, SIGMA)),
            "this model has no observed site, only the latent ['obs', 'theta']: pass the data, "
            "which its numpyro.sample takes as obs=, in args= or kwargs=.",
        ),
        Row(
            "no function",
            lambda: jalax.from_numpyro(3),
            "fn must be a function with NumPyro statements, got int.",
            TypeError,
        ),
        Row(
            "args",
            lambda: jalax.from_numpyro(examples.gamma_poisson, COUNTS),
            "args must be a tuple of arguments, got ndarray; for one argument write args=(y,).",
            TypeError,
        ),
        Row(
            "too few args",
            lambda: jalax.from_numpyro(examples.eight_schools, (8,)),
            "missing a required argument: 'sigma'\nraised for the args and kwargs given to "
            "jalax.from_numpyro",
            TypeError,
        ),
        Row(
            "kwargs",
            lambda: jalax.from_numpyro(examples.gamma_poisson, (COUNTS,), {"z": 1}),
            "got an unexpected keyword argument 'z'\nraised for the args and kwargs given to "
            "jalax.from_numpyro",
            TypeError,
        ),
        Row(
            "data frame",
            lambda: jalax.from_numpyro(examples.eight_schools, (8, pd.DataFrame({"s": SIGMA}))),
            "argument ['sigma'] is a DataFrame: pass the columns the model uses as arrays, for "
            "example frame['y'].to_numpy().",
            TypeError,
        ),
        Row(
            "text",
            lambda: jalax.from_numpyro(examples.eight_schools, (8, np.array(["a", "b"]))),
            "argument ['sigma'] is an array of <U1, not of numbers: encode labels as whole "
            "numbers first, for example by np.unique(labels, return_inverse=True).",
            TypeError,
        ),
        Row(
            "size as an array",
            lambda: jalax.from_numpyro(examples.eight_schools, (jnp.array(8), SIGMA, SCHOOLS)),
            "…\njalax traces the arrays among the arguments of a NumPyro model: pass what the "
            "model needs as a number (a count, the size of a plate) as a Python number, and do "
            "not let shapes depend on the values of arrays.",
            jax.errors.TracerBoolConversionError,
        ),
        Row(
            "not installed",
            without("numpyro", schools),
            "this needs NumPyro, which is not installed: pip install 'jalax[numpyro]'.",
            ImportError,
        ),
        Row(
            "theta outside",
            lambda: automatic(schools(), {"mu": 0.0, "tau": -1.0}),
            "theta['tau'] = -1.0 is outside its constraint, ….",
        ),
        Row(
            "theta entries",
            lambda: automatic(schools(), {"mu": 0.0}),
            "theta must be a dict with an entry for each numpyro.param, ['mu', 'tau']; got ['mu'].",
        ),
        Row(
            "theta list",
            lambda: automatic(schools(), [0.0, 1.0]),
            "theta must be a dict with an entry for each numpyro.param, ['mu', 'tau']; got list.",
        ),
        Row(
            "theta shape",
            lambda: automatic(schools(), {"mu": jnp.zeros(2), "tau": 1.0}),
            "theta['mu'] must have shape (), got (2,).",
        ),
        Row(
            "nothing to fit",
            lambda: automatic(jalax.from_numpyro(examples.no_param, (SCHOOLS,))),
            "theta is empty: there is nothing to fit. In a NumPyro model turn a hyper-parameter "
            "into numpyro.param; for the evidence alone use jalax.log_evidence, to move particles "
            "jalax.transport.",
        ),
        Row(
            "long rows",
            lambda: grouped_numpyro(examples.long_rows, *LONG_ROWS),
            "the observed site 'obs' is not inside the plate 'g', so that the members of this "
            f"plate are not independent groups. {HINT}",
        ),
        Row(
            "no plate",
            lambda: grouped_numpyro(examples.long_rows, *LONG_ROWS, groups="h"),
            "groups='h' is not a plate of this model; its plates are ['g', 'rows'].",
        ),
        Row(
            "global latent",
            lambda: grouped_numpyro(outside_the_plate, SCHOOLS),
            "the latent site 'x' is not inside the plate 'g', so that the members of this "
            f"plate are not independent groups. {HINT}",
        ),
        Row(
            "indexed parameter",
            in_plate(lambda x, y: dist.Normal(x, 1.0), jnp.zeros(8)),
            f"{APART} {HINT}",
        ),
        Row("chain", in_plate(lambda x, y: dist.Normal(jnp.cumsum(x), 1.0)), f"{APART} {HINT}"),
        Row("closure", lambda: grouped_numpyro(closed_over, np.ones(8)), f"{APART} {HINT}"),
        Row(
            "no array",
            lambda: grouped_numpyro(closed_over, 1.0),
            "no array among the arguments has an axis of length 8, the size of plate 'g': each "
            f"group needs data of its own, passed in args= or kwargs=. {HINT}",
        ),
        Row(
            "as long", lambda: grouped_numpyro(with_spread, SCHOOLS, np.ones(8)), f"{APART} {HINT}"
        ),
        Row(
            "shape",
            in_plate(lambda x, y: dist.Normal(x.reshape(8), 1.0)),
            "the model cannot be run on one member of plate 'g' alone (…). Its arrays are cut "
            "along their first axis of the plate's length, and the plate gets size one; shapes "
            f"must follow from the arrays and the plate. {HINT}",
        ),
        Row(
            "kwargs a list",
            lambda: jalax.from_numpyro(examples.gamma_poisson, (COUNTS,), [1]),
            "kwargs must be a dict of arguments, got list.",
            TypeError,
        ),
        Row(
            "raising",
            lambda: jalax.from_numpyro(lambda y: raising(y, None, None), (COUNTS,)),
            "no such table\nraised inside the NumPyro model, for the args and kwargs given",
            RuntimeError,
        ),
    ],
    "constrained": [
        Row(
            "nothing",
            lambda: jalax.Constrained(PLAIN),
            "Constrained was given no constraint: pass theta= or latent=, or both.",
        ),
        Row(
            "no entry",
            lambda: jalax.Constrained(PLAIN, latent={"q": constraints.positive}),
            "latent has no entry 'q'; it has ['extra', 'p'].",
        ),
        Row(
            "by name",
            lambda: jalax.Constrained(PLAIN, latent={"p": "positive"}),
            f"the constraint of latent['p'] {CONSTRAINT} 'positive'.",
            TypeError,
        ),
        Row(
            "class",
            lambda: jalax.Constrained(PLAIN, theta=constraints.interval),
            f"the constraint of theta {CONSTRAINT} <class …>.",
            TypeError,
        ),
        Row(
            "another tree",
            lambda: jalax.Constrained(PLAIN, latent=[constraints.real]),
            "the constraints of latent are not a tree like it: tuple of 1 for "
            "{extra: float32[], p: float32[3]}.",
        ),
        Row(
            "discrete",
            lambda: jalax.Constrained(PLAIN, latent={"extra": constraints.positive_integer}),
            f"the constraint of latent['extra'] is discrete, …: {DISCRETE}",
        ),
        Row(
            "sphere",
            lambda: jalax.Constrained(PLAIN, latent={"p": constraints.sphere}),
            "NumPyro has no map from the real numbers onto the constraint of latent['p'], "
            "Sphere(): choose another parametrisation.",
        ),
        Row(
            "latent outside",
            lambda: jalax.Constrained(PLAIN, latent={"extra": constraints.interval(2.0, 3.0)}),
            "latent['extra'] = 0.5 is outside its constraint, Interval….",
        ),
        Row(
            "theta outside",
            lambda: jalax.Constrained(PLAIN, theta=constraints.simplex),
            "theta = [1. 2. 3.] is outside its constraint, Simplex().",
        ),
        Row(
            "no model",
            lambda: jalax.Constrained(gamma_poisson, latent=constraints.positive),
            "Constrained takes a jalax.Model or jalax.GroupedModel, got function.",
            TypeError,
        ),
        Row(
            "twice",
            lambda: jalax.Constrained(rates(), latent=constraints.positive),
            "this model has constraints already; give all of them to one jalax.Constrained.",
        ),
        Row(
            "mapped already",
            lambda: jalax.Constrained(
                jalax.Model(wall, 1.0, 0.5, constrain=jnp.exp), theta=constraints.positive
            ),
            "this model maps theta already, by constrain=: leave that out, or leave theta= out.",
        ),
        Row(
            "start outside",
            lambda: automatic(rates(), {"shape": 3.0, "rate": -1.0}),
            "theta['rate'] = -1.0 is outside its constraint, ….",
        ),
        Row(
            "start at the edge",
            lambda: automatic(rates(), {"shape": 3.0, "rate": 0.0}),
            "the start value theta['rate'] is outside or at the edge of its constraint: "
            "{'rate': Array(0., dtype=float32), 'shape': Array(3., dtype=float32)}.",
        ),
    ],
    "tune": [
        Row("no key", lambda: tune(key=None), NO_KEY, TypeError),
        Row("groups", lambda: tune(model=ANSWERS), NO_GROUPS, TypeError),
        Row("rows", lambda: tune(rows=("x",)), f"{ROWS_OF_DATA} ['x'], the data have ['X', 'y']."),
        Row("no rows", lambda: tune(rows=()), f"{ROWS_OF_DATA} [], the data have ['X', 'y']."),
        Row(
            "rows of a number",
            lambda: tune(
                model=models.logistic_regression(ONES, [0, 1, 1]), rows=("X", "prior_variance")
            ),
            "the entries named by rows differ in length: {'X': (3,), 'prior_variance': ()}.",
        ),
        Row("no such option", lambda: tune(sweep=("rate",)), "PGD has no option 'rate' to sweep."),
        Row("folds", lambda: tune(num_folds=50), "41 observations cannot be cut into 50 folds."),
        Row(
            "one fold",
            lambda: tune(num_folds=1),
            "num_folds must be a whole number of at least 2, got 1.",
        ),
        Row(
            "one candidate",
            lambda: tune(0.1),
            "the options ['step_size'] must hold arrays of candidates of one length, got "
            "lengths [()]. For an optimiser write jalax.Optax(optax.sgd, learning_rate=array).",
        ),
        Row("no predictive density", lambda: tune(model=MODEL, rows=("y",)), NO_PREDICTIVE),
        Row(
            "num_steps",
            lambda: tune(num_steps=0),
            "num_steps must be a whole number of at least 1, got 0.",
        ),
        Row(
            "a bad candidate",
            lambda: tune((0.5, -0.5)),
            "PGD.step_size must be positive and finite, got -0.5.\nin fit number 3 of fit_many",
        ),
        Row(
            "all diverge",
            diverging,
            "every candidate diverged on some fold: try smaller step sizes, or a start nearer "
            "to the posterior.",
        ),
        *(
            Row(
                f"{name} as text",
                lambda name=name, text=text: tune(**{name: text}),
                f"{name} is a list of names, got the string {text!r}: [{text!r}].",
                TypeError,
            )
            for name, text in (("rows", "X"), ("sweep", "step_size"))
        ),
        *(
            Row(
                f"{name} {number!r}",
                lambda name=name, number=number: tune(**{name: number}),
                f"{name} must be a whole number of at least 1, got {number!r}.",
            )
            for name in ("every", "patience")
            for number in (0, -1, "x")
        ),
        Row(
            "min_gain",
            lambda: tune(min_gain=np.nan),
            "min_gain must be a finite number, got nan.",
        ),
        Row(
            "class",
            lambda: tune(algorithm=jalax.PGD),
            "algorithm must be an object such as jalax.JALAEM(step_size=...), got <class "
            "'jalax._algorithms.pgd.PGD'>.",
            TypeError,
        ),
        Row(
            "predictive density of one number",
            lambda: tune(log_predictive=lambda t, x, d: jnp.sum(d["y"])),
            "log_predictive must return one log-density for each observation, shape (n,), got "
            "float32[]: do not sum them.",
        ),
    ],
    "plots and tables": [
        Row(
            "no steps",
            lambda: dataclasses.replace(diverged(), history={}).plot(),
            "this fit has no steps to plot, its history is empty (status diverged: it broke).",
        ),
        Row(
            "one panel",
            lambda: fitted().plot(ax=Figure().subplots()),
            "plot draws 4 panels (theta, log evidence, effective sample size, posterior), and "
            "ax= holds 1: pass axes for each, for example plt.subplots(2, 2)[1].",
        ),
        Row(
            "prior of a file",
            lambda: from_file().plot(prior=prior),
            "this result was read from a file, which does not hold its model: pass draws of "
            "the prior, shaped like result.particles, in the place of a function.",
        ),
        Row(
            "no such latent",
            lambda: fitted().plot_posterior(["z"]),
            f"there is no latent 'z'; {NO_LATENT}",
        ),
        Row("a number", lambda: fitted().plot_posterior([3]), f"there is no latent 3; {NO_LATENT}"),
        Row(
            "names as a string",
            lambda: fitted().plot_posterior("x"),
            "names is a list of names, got the string 'x': ['x'].",
            TypeError,
        ),
        Row(
            "one axis for two",
            lambda: fitted().plot_posterior(["x[0]", "x[1]"], ax=Figure().subplots()),
            "plot_posterior draws 2 latents (x[0], x[1]), and ax= holds 1 axes: pass one for "
            "each, or fewer names.",
        ),
        Row(
            "prior shape",
            lambda: fitted().plot_posterior(prior=np.zeros((10, 4))),
            "the draws of prior= must have the shapes of result.particles, with any number of "
            "draws on axis 0: got (10, 4) for (8, 3).",
        ),
        Row(
            "prior tree",
            lambda: fitted().plot_posterior(prior={"x": np.zeros((10, 3))}),
            "the draws of prior= must be a tree like result.particles, float32[8, 3]; got "
            "{x: float32[10, 3]}.",
        ),
        *(
            Row(
                f"arviz {number!r} samples",
                lambda number=number: to_arviz(num_samples=number),
                f"num_samples is a positive number of draws, got {number!r}.",
            )
            for number in (0, 2.0, True)
        ),
        Row(
            "arviz dims",
            lambda: to_arviz(dims={"z": ["a"]}),
            "dims has an entry for 'z'; known are height, x, y.",
        ),
        Row(
            "arviz axes",
            lambda: to_arviz(dims={"x": ["a", "b"]}),
            "dims['x'] names 2 axes, and x has 1 besides the draws.",
        ),
        Row(
            "arviz coords",
            lambda: to_arviz(coords={"q": [1]}),
            "coords has an entry for 'q'; known are chain, draw, group, parameter, particle, "
            "step, x_dim_0, y_dim_0.",
        ),
        Row(
            "arviz labels",
            lambda: to_arviz(coords={"x_dim_0": [1, 2]}),
            "coords['x_dim_0'] has 2 labels for 3 entries.",
        ),
        Row(
            "no arviz",
            without("arviz", lambda: fitted().to_arviz()),
            "to_arviz needs ArviZ: pip install 'jalax[arviz]'.",
            ImportError,
        ),
        Row(
            "no pandas",
            without("pandas", lambda: fitted().summary().to_frame()),
            "to_frame needs pandas: pip install 'jalax[pandas]'.",
            ImportError,
        ),
        Row(
            "no pandas for a comparison",
            without("pandas", lambda: jalax.compare(two()).to_frame()),
            "to_frame needs pandas: pip install 'jalax[pandas]'.",
            ImportError,
        ),
        Row(
            "report as text",
            lambda: fitted().report("fit.txt"),
            "a report is an HTML page, named something.html; got 'fit.txt'.",
        ),
        Row(
            "report nowhere",
            lambda: fitted().report("none/fit.html"),
            "there is no directory 'none': make it first.",
            FileNotFoundError,
        ),
        Row(
            "no names",
            lambda: fitted().plot_posterior([]),
            "names is empty: name at least one latent, or leave names= out.",
        ),
        Row("arviz key", lambda: to_arviz(key=3), NOT_TYPED.format("int"), TypeError),
    ],
    "datasets": [
        *(
            Row(
                f"test_fraction {fraction}",
                lambda fraction=fraction: datasets.train_test_split(
                    datasets.wisconsin(), 0, fraction
                ),
                f"test_fraction must lie between 0 and 1, got {fraction}: 0.2 keeps one row in "
                "five for the test.",
            )
            for fraction in (0.0, 1.0, -0.1, 20.0, np.nan)
        ),
        *(
            Row(
                f"digits {digits!r}",
                lambda digits=digits: datasets.mnist(digits),
                f"digits are different whole numbers from 0 to 9, such as (4, 9), got {digits!r}.",
            )
            for digits in ((), (4, 4), (4, 10), (-1,), (4.0, 9.0), "49")
        ),
        Row(
            "digits not shipped",
            lambda: datasets.mnist((2, 3)),
            f"there are no images of [3], only of [2, 4, 7, 9]. {ELSEWHERE}",
        ),
        Row(
            "too many images",
            lambda: datasets.mnist((4, 9), 1229),
            "num_images must lie between 2 (one a digit) and 1228 (all there are), got 1229. "
            f"{ELSEWHERE}",
        ),
        Row(
            "one image for two",
            lambda: datasets.mnist((4, 9), 1),
            "num_images must lie between 2 (one a digit) and 1228 (all there are), got 1. "
            f"{ELSEWHERE}",
        ),
        Row(
            "no folder",
            lambda: datasets.mnist(folder="nowhere"),
            "nowhere holds neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz. "
            f"{FOLDER}",
            FileNotFoundError,
        ),
        Row(
            "other arrays",
            npz_without_images,
            "ours.npz must hold images and labels, or x_train, y_train, x_test and y_test: ….",
        ),
        Row("half of an archive", npz_cut_short, "keras.npz is cut short or damaged (…)."),
        Row(
            "half of a file",
            lambda: mnist_with(lambda file, _: file.write_bytes(file.read_bytes()[:-200])),
            f"digits/t10k-images-idx3-ubyte.gz is cut short or damaged (…). {AGAIN}",
        ),
        Row(
            "another checksum",
            lambda: mnist_with(
                lambda file, _: file.write_bytes(
                    file.read_bytes()[:-8] + bytes(4) + file.read_bytes()[-4:]
                )
            ),
            "digits/t10k-images-idx3-ubyte.gz is cut short or damaged (CRC check failed 0x0 != "
            f"…). {AGAIN}",
        ),
        Row(
            "a byte short",
            lambda: mnist_with(
                lambda file, images: file.write_bytes(gzip.compress(idx(images)[:-1]))
            ),
            "digits/t10k-images-idx3-ubyte.gz should hold 15680 bytes after its header, and "
            f"holds 15679: it is cut short or damaged. {AGAIN}",
        ),
        Row(
            "a web page",
            lambda: mnist_with(
                lambda file, _: file.write_bytes(gzip.compress(b"<html>not found</html>"))
            ),
            "digits/t10k-images-idx3-ubyte.gz is no IDX file of bytes: it begins with b'<htm'. "
            f"{AGAIN}",
        ),
        Row(
            "an image short",
            lambda: mnist_with(
                lambda file, images: file.write_bytes(gzip.compress(idx(images[:-1])))
            ),
            "the t10k files in digits: expected images of 28 x 28 bytes and one label each, "
            "found uint8[19, 28, 28] and labels [20].",
        ),
        Row(
            "a file missing",
            lambda: mnist_with(lambda file, _: file.unlink()),
            f"digits holds neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte.gz. {FOLDER}",
            FileNotFoundError,
        ),
        Row(
            "no pooch",
            without("pooch", datasets.download_mnist),
            "downloading MNIST needs pooch: pip install pooch.",
            ImportError,
        ),
        Row(
            "test_fraction text",
            lambda: datasets.train_test_split(datasets.wisconsin(), 0, "a"),
            "test_fraction must lie between 0 and 1, got 'a': 0.2 keeps one row in five for the "
            "test.",
        ),
        Row(
            "test_fraction of no row",
            lambda: datasets.train_test_split(datasets.wisconsin(), 0, 1e-9),
            "test_fraction = 1e-09 of 683 rows leaves one of the two sets empty.",
        ),
        Row(
            "split of a number",
            lambda: datasets.train_test_split(3, 0),
            "data must be a dataclass with features and labels, such as "
            "jalax.datasets.wisconsin(), got int.",
            TypeError,
        ),
        *(
            Row(
                f"split with key {key!r}",
                lambda key=key: datasets.train_test_split(datasets.wisconsin(), key),
                f"key must be a JAX key or a whole number from 0 upwards, got {key!r}.",
                TypeError,
            )
            for key in ("a", -1, None)
        ),
    ],
    "cli": [
        Row(
            "no such command",
            lambda: command("demonstrate"),
            "Usage: …No such command 'demonstrate'.",
            SystemExit,
        ),
        Row(
            "no such experiment",
            lambda: command("reproduce", "nothing"),
            "Usage: …'nothing' is not one of 'logistic', 'error-model', 'model-order', "
            "'neural-network', 'theory'.",
            SystemExit,
        ),
        Row(
            "no experiment",
            lambda: command("reproduce"),
            "Usage: …Missing argument …logistic, error-model, model-order, neural-network, theory…",
            SystemExit,
        ),
        Row(
            "seed",
            lambda: command("demo", "--seed", "one"),
            "Usage: …Invalid value for '--seed': …valid int…",
            SystemExit,
        ),
    ],
}

ROWS_OF_ALL = {f"{topic}: {row.id}": row for topic, rows in BAD.items() for row in rows}

# What Python, formulae and typer say, in some of their versions without a full stop.
NOT_SENTENCES = {
    "counts and key: unknown argument",
    "state and files: load nothing",
    "cli: no experiment",
    "cli: seed",
}


def is_advice(error: BaseException) -> bool:
    """At least a sentence, or it says in notes where it came from."""
    text = str(error)
    return text != message_of(error) or (len(text) >= 20 and text.endswith("."))


def test_rows_have_names_of_their_own():
    assert len(ROWS_OF_ALL) == sum(len(rows) for rows in BAD.values())
    assert set(ROWS_OF_ALL) >= NOT_SENTENCES


@pytest.mark.parametrize("name", ROWS_OF_ALL)
def test_bad_input(name, tmp_path, monkeypatch):
    row = ROWS_OF_ALL[name]
    monkeypatch.chdir(tmp_path)
    Watch.begun = 0
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (the type is looked at below)
        row.call()
    text = message_of(caught.value)
    assert caught.type is row.error, f"{caught.type.__name__}: {text}"
    assert pattern(row.message).fullmatch(text), text
    assert Watch.begun == 0, "the loop had begun"
    assert is_advice(caught.value) or name in NOT_SENTENCES, text


# ---------------------------------------------------------------- what is answered with a warning


def unnormalised(theta, x, data):
    return -0.5 * jnp.sum((x / 2) ** 2)


WARNED = [
    Row(
        "float32 cannot resolve log_joint",
        lambda: fit(model=model_of(log_joint, {**DATA, "height": 1e7})),
        "log_joint is about 99999… in size, which float32 resolves too coarsely: rounding alone "
        "may move a log-weight by 2. For an evidence use 64 bits, "
        "jax.config.update('jax_enable_x64', True), or leave constants that do not depend on x out "
        "of log_joint and add them to the evidence.",
        UserWarning,
    ),
    Row(
        "a wall beside the particles",
        lambda: wall_at(1.1),
        "log_joint is -inf at 23.5% of the points up to twice as far out as the start particles, a "
        "hard constraint: particles that run into it die, which biases the weights. Put the latent "
        "on an unconstrained scale, for example by jalax.Constrained.",
        UserWarning,
    ),
    Row(
        "a reference that is not normalised",
        lambda: jalax.log_evidence(
            SIMPLE,
            0.0,
            key=KEY,
            reference=(lambda key, t, data: 2 * jax.random.normal(key, (3,)), unnormalised),
        ),
        "log_evidence: the reference's log_density is not the normalised density of its sampler "
        "(its integral over the draws comes out as …): the evidence is off by a factor.",
        UserWarning,
    ),
    Row(
        "evidence of PGD",
        lambda: fitted("PGD").log_evidence,
        "PGD gives no evidence: its particles have no weights. Use jalax.JALAEM.",
        UserWarning,
    ),
    Row(
        "path evidence of PGD",
        lambda: fitted("PGD").path_log_evidence,
        "PGD gives no evidence: its particles have no weights. Use jalax.JALAEM.",
        UserWarning,
    ),
    Row(
        "relative evidence",
        lambda: fitted().path_log_evidence,
        "the start gave no log_evidence at theta_0, so the evidence is known only relative to it: "
        "see history['log_evidence'], or pass log_evidence= to jalax.Given.",
        UserWarning,
    ),
    Row(
        "relative evidence of a file",
        lambda: from_file().log_evidence,
        "the file this result was read from holds no evidence: ask for result.log_evidence before "
        "saving.",
        UserWarning,
    ),
    Row(
        "evidence of a file",
        lambda: absolute_from_file().log_evidence,
        "the file this result was read from holds no evidence: ask for result.log_evidence before "
        "saving.",
        UserWarning,
    ),
]


@pytest.mark.parametrize("row", WARNED, ids=[row.id for row in WARNED])
def test_bad_input_that_is_warned_of(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(row.error) as seen:
        answer = row.call()
    (warning,) = seen
    text = str(warning.message)
    assert warning.category is row.error
    assert pattern(row.message).fullmatch(text), text
    assert len(text) >= 20
    assert text.endswith(".")
    assert warning.filename == __file__  # it points at the caller's line
    assert (answer is None) == ("evidence of" in row.id or "relative" in row.id)


# ---------------------------------------------------------------- at the edge, and accepted


def test_the_arguments_the_rows_break_are_good():
    Watch.begun = 0
    assert fit().status == "max_steps"
    assert Watch.begun == 1


@pytest.mark.parametrize("how", [fit, pytest.param(many, marks=pytest.mark.slow)])
def test_a_start_takes_a_pair_of_functions_as_its_reference(how):
    how(start=jalax.Importance((prior, log_prior)), algorithm=jalax.PGD(step_size=0.1))


def test_sfla_takes_a_single_particle():
    sfla, start = jalax.SFLA(step_size=0.01), jalax.Given(PARTICLES[:1])
    assert fit(algorithm=sfla, start=start).particles.shape == (1, 3)


def test_integer_data_that_32_bits_can_hold():
    counts = np.array([2**31 - 1, -(2**31), 0])
    prepared = checks.prepare_model(model_of(log_joint, {"n": counts})).data["n"]
    assert prepared.dtype == jnp.int32
    np.testing.assert_array_equal(prepared, counts)


def test_a_start_inside_the_constraints():
    project = jala_em(project=lambda t: jnp.maximum(t, 0.5))
    canonical(project).check_theta(jnp.array(0.7))


@pytest.mark.parametrize("below", [0, 1])
def test_resample_below_at_its_ends(below):
    result = fit(algorithm=jala_em(resample_below=below))
    assert list(result.history["resampled"]) == [bool(below)] * 3


def test_counts_may_be_numpy_integers():
    assert len(fit(num_steps=np.int64(3)).history["ess"]) == 3


@pytest.mark.slow_cases("10000000.0-64")
@pytest.mark.parametrize(("height", "bits"), [(1e3, 32), (1e7, 64)])
def test_no_warning_where_log_joint_is_resolved(height, bits):
    """Warnings are errors here."""
    with jax.enable_x64(bits == 64):
        result = fit(model=model_of(log_joint, {**DATA, "height": height}))
    assert result.status == "max_steps"


def test_four_densities_may_be_transported():
    """Warnings are errors here: each has a code of its own, and none is compiled four times."""
    densities = [
        lambda t, x: -((1 - t) * x**2) / 2,
        lambda t, x: -((1 - t) * x**2) / 3,
        lambda t, x: -((1 - t) * x**2) / 4,
        lambda t, x: -((1 - t) * x**2) / 5,
    ]
    for density in densities:
        with pytest.raises(ValueError, match="step_size"):  # which is looked at after the density
            transport(log_density=density, step_size=0.0)
