"""Eight devices give the answers of one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jalax
from jalax._fit import begin, loop
from jalax._model import checks, sharding
from jalax._model.types import Cloud
from jalax._particles import exchange, trees
from jalax._runtime import layouts
from jalax._runtime.options import canonical

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fits
from _traffic import Collective, collectives

KEY = jax.random.key(1)
PLAIN = jalax.JALAEM(step_size=2e-3, resample_below=0.95)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def mesh(*names: str, shape: tuple[int, ...] | None = None, kind: AxisType = AxisType.Auto):
    return jax.make_mesh(shape or (8,), names, axis_types=(kind,) * len(names))


@functools.cache
def alone(name: str, kind: str) -> dict[str, np.ndarray]:
    return fits.numbers(fits.fit(name, kind))


@functools.cache
def wisconsin() -> jalax.Model:
    data = jalax.datasets.wisconsin()
    return jalax.models.logistic_regression(data.features[:680], data.labels[:680])


@functools.cache
def logistic_alone() -> jalax.FitResult:
    return logistic(None)


def logistic(where, model: jalax.Model | None = None, **options) -> jalax.FitResult:
    return jalax.fit(
        wisconsin() if model is None else model,
        key=KEY,
        algorithm=PLAIN,
        num_particles=48,
        num_steps=50,
        mesh=where,
        **options,
    )


def assert_same(one: jalax.FitResult, other: jalax.FitResult) -> None:
    np.testing.assert_allclose(other.history["theta"], one.history["theta"], rtol=0, atol=1e-8)
    assert one.path_value is not None
    assert other.path_value is not None
    assert abs(other.path_value - one.path_value) < 1e-8


def fast_and_slow() -> list:
    """`make test` has the defaults, and PGD for those without weights, with groups spread."""
    fast = [("JALAEM", "plain"), *((name, "grouped") for name in ("JALAEM", "Scoring"))]
    assert set(fast) <= set(fits.CASES)
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in fits.CASES if case not in fast]
    return [*fast, *slow]


@pytest.mark.parametrize(("name", "kind"), fast_and_slow())
def test_every_algorithm(name, kind):
    result = fits.fit(name, kind, fits.mesh_for(kind))
    for key, value in fits.numbers(result).items():
        np.testing.assert_allclose(value, alone(name, kind)[key], rtol=0, atol=1e-8, err_msg=key)
    if name == "JALAEM":
        assert result.history["resampled"].any()  # and so particles were exchanged
    shard = result.state.particles["a"].addressable_shards[0].data
    assert shard.size == result.state.particles["a"].size // 8


def test_single_precision_over_few_steps():
    """No resampling, which would turn a rounding error into another ancestor."""
    chosen = jalax.JALAEM(step_size=0.05, resample_below=0.0)
    with jax.enable_x64(False):
        one = fits.fit_with(chosen, "plain", None, num_steps=10)
        other = fits.fit_with(chosen, "plain", fits.mesh_for("plain"), num_steps=10)
        for key in ("m", "s"):
            np.testing.assert_allclose(
                other.history["theta"][key], one.history["theta"][key], rtol=0, atol=2e-6
            )
        assert other.path_value == pytest.approx(one.path_value, abs=1e-5)


@pytest.mark.slow
def test_data_over_devices():
    other = logistic(mesh("data"))
    assert_same(logistic_alone(), other)
    rows = other.origin.model.data["X"]
    assert rows.addressable_shards[0].data.shape == (85, 9)


@pytest.mark.slow
def test_particles_and_data_with_slices_and_blocks():
    data = jalax.datasets.wisconsin()
    sliced = jalax.models.logistic_regression(data.features[:680], data.labels[:680], data_batch=40)
    where = mesh("particles", "data", shape=(2, 4))
    assert_same(logistic_alone(), logistic(where, sliced, particle_batch=8))


@pytest.mark.slow
def test_an_axis_for_each_leaf():
    layout = jalax.runtime.Layout(mesh("d"), data={"X": "d", "y": None, "prior_variance": None})
    other = logistic(layout)
    assert_same(logistic_alone(), other)
    assert other.origin.model.data["X"].sharding.spec == PartitionSpec("d")
    assert other.origin.model.data["y"].sharding.spec == PartitionSpec()


@pytest.mark.slow
def test_data_that_is_on_another_mesh_is_brought_over():
    where = NamedSharding(mesh("rows"), PartitionSpec("rows"))
    model = wisconsin()
    model = model.replace(data=model.data | {"X": jax.device_put(model.data["X"], where)})
    assert_same(logistic_alone(), logistic(mesh("particles"), model))


def test_explicit_axes():
    assert_same(logistic_alone(), logistic(mesh("particles", kind=AxisType.Explicit)))


def test_data_that_is_on_a_mesh_stays_there():
    explicit = mesh("rows", kind=AxisType.Explicit)

    def put(leaf):
        spec = PartitionSpec("rows") if leaf.ndim else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(explicit, spec))

    model = wisconsin()
    model = model.replace(data=jax.tree.map(put, model.data))
    with jax.set_mesh(explicit):
        other = logistic(None, model)
        assert other.evidence is not None  # estimated inside of the user's mesh
    assert_same(logistic_alone(), other)
    assert other.origin.model.data["X"].sharding.spec == PartitionSpec("rows")


def test_groups_in_batches():
    where = mesh("groups", "particles", shape=(4, 2))
    other = fits.numbers(fits.fit("PGD", "grouped", where, group_batch=4))
    np.testing.assert_allclose(
        other["theta.m"], alone("PGD", "grouped")["theta.m"], rtol=0, atol=1e-8
    )


@pytest.mark.slow
def test_minibatches_of_groups():
    chosen = jalax.JALAEM(step_size=0.05, minibatch=4)
    where = mesh("groups", "particles", shape=(4, 2))
    one, other = (fits.fit_with(chosen, "grouped", place, num_steps=60) for place in (None, where))
    np.testing.assert_allclose(
        other.history["theta"]["m"], one.history["theta"]["m"], rtol=0, atol=1e-8
    )


@pytest.mark.slow
def test_an_automatic_fit():
    """Scoring, whose points lie where they can, and JALA-EM, whose particles spread evenly.

    Of 500 particles, the usual number, the next one that spreads evenly over 8 is 504.
    """
    one = jalax.fit(wisconsin(), key=KEY)
    assert_same_end(one, jalax.fit(wisconsin(), key=KEY, mesh=mesh("particles")))
    assert_same_end(one, jalax.fit(wisconsin(), key=KEY, mesh=mesh("data")))
    chosen = {"key": KEY, "algorithm": jalax.JALAEM()}
    one = jalax.fit(wisconsin(), **chosen, num_particles=504)
    other = jalax.fit(wisconsin(), **chosen, mesh=mesh("particles"))
    assert other.log_weights.shape == (504,)
    assert_same_end(one, other)


def assert_same_end(one: jalax.FitResult, other: jalax.FitResult) -> None:
    assert float(other.theta) == pytest.approx(float(one.theta), abs=1e-8)
    assert other.log_evidence == pytest.approx(one.log_evidence, abs=1e-8)
    assert other.standard_errors() == pytest.approx(float(one.standard_errors()), abs=1e-8)


@pytest.mark.slow
def test_many_fits():
    """Eleven on eight devices: the last ones are made up, and not returned."""
    options = {"key": KEY, "num_fits": 11, "algorithm": PLAIN, "num_particles": 20, "num_steps": 30}
    one = jalax.fit_many(wisconsin(), **options)
    other = jalax.fit_many(wisconsin(), mesh=mesh("fits"), **options)
    assert len(other) == 11
    np.testing.assert_allclose(other.theta, one.theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(other.path_log_evidence, one.path_log_evidence, rtol=0, atol=1e-8)


def test_many_fits_of_many_data():
    rng = np.random.default_rng(0)
    y = jnp.array(rng.normal(size=(10, 3)))
    model = jalax.models.hierarchical_normal(y[0]).replace(data={"y": y})
    options = {"key": KEY, "axes": {"data": 0}, "algorithm": jalax.PGD(step_size=0.1)}
    start = jalax.Given(jnp.array(rng.normal(size=(20, 3))))
    one, other = (
        jalax.fit_many(model, 0.0, start=start, num_steps=20, mesh=where, **options)
        for where in (None, mesh("fits"))
    )
    assert np.ptp(one.theta) > 0.1
    np.testing.assert_allclose(other.theta, one.theta, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_evidence_and_comparison():
    one = jalax.log_evidence(wisconsin(), 0.5, key=KEY)
    other = jalax.log_evidence(wisconsin(), 0.5, key=KEY, mesh=mesh("particles"))
    assert other.value == pytest.approx(one.value, abs=1e-8)
    results = {"here": logistic(None), "there": logistic(mesh("particles"))}
    table = jalax.compare(results, mesh=mesh("particles"))
    by_name = {row.name: row.log_evidence for row in table.rows}
    assert by_name["here"] == pytest.approx(by_name["there"], abs=1e-8)
    assert by_name["here"] == pytest.approx(logistic_alone().log_evidence, abs=1e-8)


def test_a_checkpoint_goes_on_on_other_devices(tmp_path):
    path = tmp_path / "fit.npz"
    where = mesh("particles", "data", shape=(2, 4))
    logistic(mesh("particles"), callbacks=[jalax.checkpoint(path)])
    whole = {"algorithm": PLAIN, "num_particles": 48, "num_steps": 80, "key": KEY}
    one = jalax.fit(wisconsin(), **whole)
    copy = tmp_path / "copy.npz"
    copy.write_bytes(path.read_bytes())
    for file, place in ((path, None), (copy, where)):
        resumed = jalax.fit(wisconsin(), mesh=place, callbacks=[jalax.checkpoint(file)], **whole)
        assert_same(one, resumed)


def test_a_state_goes_on_on_other_devices():
    options = {"algorithm": PLAIN, "key": KEY, "num_steps": 30}
    spread = jalax.fit(wisconsin(), num_particles=48, mesh=mesh("particles"), **options)
    here = jalax.fit(wisconsin(), state=spread.state, **options)
    back = jalax.fit(wisconsin(), state=here.state, mesh=mesh("particles"), **options)
    one = jalax.fit(wisconsin(), num_particles=48, **{**options, "num_steps": 90})
    np.testing.assert_allclose(back.theta, one.theta, rtol=0, atol=1e-8)


@pytest.mark.parametrize("order", ["sorted", "reversed", "random", "one", "itself"])
def test_exchanged_particles_are_the_ancestors(order):
    rng = np.random.default_rng(3)
    ancestors = {
        "sorted": np.sort(rng.integers(0, 64, (2, 64)), axis=1),
        "reversed": np.tile(np.arange(64)[::-1], (2, 1)),
        "random": rng.integers(0, 64, (2, 64)),
        "one": np.full((2, 64), 63),
        "itself": np.tile(np.arange(64), (2, 1)),
    }[order]
    layout = layouts.as_layout(mesh("groups", "particles", shape=(2, 4)))
    tree = {"x": jnp.array(rng.normal(size=(2, 64, 3))), "n": jnp.arange(128).reshape(2, 64)}
    got = jax.jit(lambda t, a: exchange.gather(layout, t, a))(tree, jnp.array(ancestors))
    jax.tree.map(np.testing.assert_array_equal, got, trees.gather(tree, ancestors))


def test_systematic_ancestors_are_near():
    """Whence the little traffic: half of the particles effective, and nobody travels far."""
    rng = np.random.default_rng(4)
    far = []
    for seed in range(50):
        log_weights = rng.normal(size=6400) * 0.83  # an ESS of half of them
        weights = np.exp(log_weights) / np.exp(log_weights).sum()
        ancestors = jalax.systematic(jax.random.key(seed), jnp.array(weights), 6400)
        far.append(int(exchange.farthest(ancestors[None], 6400 // 64)))
    assert max(far) <= 4  # of 63


def step_traffic(model: jalax.Model, algorithm, where, num: int) -> list[Collective]:
    """What one step of the compiled loop sends."""
    model = checks.prepare_model(model)
    theta = checks.prepare_theta(None, model)
    model = sharding.lay_out(model, layouts.as_layout(where))
    algorithm = canonical(algorithm).filled(theta).canonical()
    shape = (model.num_groups, num)
    x = jax.tree.map(lambda leaf: jnp.ones((*shape, *leaf.shape)), model.latent)
    state = begin.first_state(KEY, algorithm, model, theta, Cloud(x, jnp.zeros(shape), None))
    inputs = KEY, algorithm, model, state
    program = loop.run_chunk.version(inputs).lower(*inputs, np.int32(9), capacity=128)
    return collectives(program.compile().as_text())


@pytest.mark.parametrize("algorithm", [PLAIN, jalax.PGD(step_size=1e-3), jalax.JALAEM()])
def test_traffic_of_particles(algorithm):
    """A few sums each step; never all particles, not even in a resampling."""
    found = step_traffic(wisconsin(), algorithm, mesh("particles"), 800)
    particles = 800 * 9 * 8
    each = [c for c in found if not c.rare]
    assert 0 < sum(c.bytes for c in each) < 600  # bytes
    assert all(c.bytes < particles / 4 for c in found)
    passed = [c for c in found if c.kind == "collective-permute"]
    if algorithm is PLAIN:  # one passing in each direction: particles, gradients and log p
        assert sum(c.bytes for c in passed) == 2 * (800 // 8) * (2 * 9 + 1) * 8


def test_traffic_of_data():
    """log p and its gradient at each particle, once a step."""
    found = step_traffic(wisconsin(), PLAIN, mesh("data"), 160)
    assert sum(c.bytes for c in found if not c.rare) == 160 * (9 + 1) * 8


@pytest.mark.parametrize("algorithm", [PLAIN, jalax.JALAEM()])
def test_traffic_of_groups(algorithm):
    found = step_traffic(fits.model("grouped"), algorithm, mesh("groups"), 100)
    assert 0 < sum(c.bytes for c in found) < 1000


@pytest.mark.slow
def test_one_program_for_all_chunks():
    before = loop.run_chunk.cache_size()
    logistic(jalax.runtime.Layout(mesh("odd"), particles="odd"), chunk_size=7)
    assert loop.run_chunk.cache_size() - before == 1


@pytest.mark.parametrize(
    ("where", "options", "says"),
    [
        (lambda: "particles", {}, "mesh must be a jalax.runtime.Layout"),
        (lambda: mesh("x"), {}, "whose names do not say what they carry"),
        (lambda: jalax.runtime.Layout(mesh("x"), particles="y"), {}, "has no axis 'y'"),
        (lambda: jalax.runtime.Layout(mesh("x"), particles="x", data="x"), {}, "carries one thing"),
        (lambda: jalax.runtime.Layout("x", particles="x"), {}, "needs a mesh"),
        (lambda: mesh("groups"), {}, "is for a jalax.GroupedModel"),
        (lambda: mesh("fits"), {}, "is for jalax.fit_many"),
        (lambda: mesh("particles"), {"num_particles": 50}, "use num_particles=56"),
        (lambda: jalax.runtime.Layout(mesh("x", shape=(3,)), data="x"), {}, "678 or 681 of them"),
    ],
)
def test_what_cannot_be_laid_out(where, options, says):
    with pytest.raises((ValueError, TypeError), match=says):
        jalax.fit(wisconsin(), key=KEY, algorithm=PLAIN, num_steps=1, mesh=where(), **options)


def test_what_cannot_be_laid_out_elsewhere():
    with pytest.raises(ValueError, match="spreads whole fits"):
        jalax.fit_many(wisconsin(), key=KEY, num_fits=2, mesh=mesh("particles"))
    with pytest.raises(ValueError, match="spread by its groups"):
        fits.fit("PGD", "grouped", mesh("data"))
    with pytest.raises(ValueError, match="5 or 10 of them"):
        fits.fit("PGD", "grouped", jalax.runtime.Layout(mesh("x", shape=(5,)), groups="x"))


@pytest.mark.slow
def test_a_singular_fit_climbs_again_on_a_mesh():
    """Random slopes whose maximum has a correlation of one, see test_singular.py."""
    rng = np.random.default_rng(9)
    group, x = np.repeat(np.arange(12), 6), np.tile(np.arange(6.0), 12)
    b = (rng.normal(size=(12, 2)) * [3.0, 0.4])[group]
    y = 10 + 2 * x + b[:, 0] + b[:, 1] * x + 2 * rng.normal(size=72)
    model = jalax.models.mixed("y ~ x + (x|g)", {"y": y, "x": x, "g": group.astype(str)})
    quiet = jalax.callbacks.Callback()
    one, many = (
        jalax.fit(model, key=KEY, mesh=where, progress=quiet)
        for where in (None, mesh("groups", shape=(4,)))
    )
    assert many.status == one.status == "boundary"
    assert many.origin.model.is_white
    assert many.log_evidence == pytest.approx(one.log_evidence, abs=1e-3)
