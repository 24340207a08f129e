"""What holds for any tree, shape, dtype, chunk size, threshold and weight.

JALAX_HYPOTHESIS=thorough looks at fifty times as many examples, see tests/profiles.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

import algorithms as table
import jalax
from jalax._model.types import Cloud
from jalax._particles import resampling, trees, weight_math
from jalax._runtime import files
from jalax._runtime.options import canonical
from profiles import examples

# ---------------------------------------------------------------- weights, against plain NumPy


SIZES = st.sampled_from([7, 1, 2, 40])  # few: each is compiled


def log_weights(groups: int, largest: float = 1e30):
    """(G, N) in float64, from underflow to overflow of the exponential, dead particles included."""
    number = st.floats(-largest, largest) | st.floats(-50, 50) | st.just(-np.inf)
    return SIZES.flatmap(lambda n: hnp.arrays(np.float64, (groups, n), elements=number))


@jax.jit
def _known(a):
    w = weight_math.normalise(a)
    return w, weight_math.effective_sample_size(w), weight_math.log_mean_exp(a)


@given(log_weights(3))
@examples(60)
def test_weights_are_numpys(a):
    with jax.enable_x64(True), np.errstate(all="ignore"):
        w, ess, mean = (np.asarray(part) for part in _known(a))
        alive = np.isfinite(a).any(axis=1)
        e = np.exp(a - np.where(alive, a.max(axis=1), 0.0)[:, None])
        expected = e / np.where(alive, e.sum(axis=1), 1.0)[:, None]
        np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(w.sum(axis=1), alive, rtol=1e-12)
        assert (ess[~alive] == 0).all()
        assert (ess[alive] >= 1 - 1e-9).all()
        assert (ess[alive] <= np.isfinite(a[alive]).sum(axis=1) * (1 + 1e-9)).all()
        expected = logsumexp(a, axis=1) - np.log(a.shape[1])
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-12)


@given(log_weights(2, largest=1e6), st.floats(-1e6, 1e6))
@examples(60)
def test_a_constant_added_to_all_log_weights(a, shift):
    """It adds to the log of their mean, and changes no weight."""
    with jax.enable_x64(True):
        w, _, mean = (np.asarray(part) for part in _known(a))
        w_shifted, _, mean_shifted = (np.asarray(part) for part in _known(a + shift))
    np.testing.assert_allclose(mean_shifted, mean + shift, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(w_shifted, w, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- resampling

SCHEMES = {
    name: getattr(jalax.resampling, name)
    for name in ("systematic", "stratified", "multinomial", "residual")
}
WRONG = {"everyone": lambda key, weights, num: jnp.arange(num)}


@st.composite
def clouds(draw, groups=1):
    """Log-weights of particles some of which are dead, but not all of a group."""
    n = draw(SIZES)
    number = st.floats(-800, 800) | st.floats(-3, 3) | st.just(-np.inf)
    a = draw(hnp.arrays(np.float64, (groups, n), elements=number))
    assume(np.isfinite(a).any(axis=1).all())
    return a


@functools.partial(jax.jit, static_argnames="name")
def _ancestors(key, a, name):
    w = weight_math.normalise(a)[0]
    return w, resampling.draw_ancestors(key, (SCHEMES | WRONG)[name], w, w.shape[0])


@functools.partial(jax.jit, static_argnames="name")
def _many_ancestors(keys, a, name):
    w = weight_math.normalise(a)[0]
    return w, jax.vmap(lambda k: resampling.draw_ancestors(k, SCHEMES[name], w, 7))(keys)


@pytest.mark.parametrize("name", SCHEMES)
@given(a=clouds(), seed=st.integers(0, 2**31 - 1))
@examples(8)
def test_the_dead_have_no_children(name, a, seed):
    with jax.enable_x64(True):
        w, found = (np.asarray(part) for part in _ancestors(jax.random.key(seed), a, name))
    assert found.shape == w.shape
    assert (w[found] > 0).all()


@given(a=clouds())
@examples(8)
def test_the_dead_have_no_children_whatever_the_scheme_says(a):
    """Rounding in its sums may make a scheme choose one that has no weight."""
    with jax.enable_x64(True):
        w, found = (np.asarray(part) for part in _ancestors(jax.random.key(0), a, "everyone"))
    assert (w[found] > 0).all()
    np.testing.assert_array_equal(found[w > 0], np.flatnonzero(w > 0))


@given(
    a=clouds() | st.integers(0, 99).map(lambda s: np.random.default_rng(s).normal(size=(1, 40))),
    seed=st.integers(0, 2**31 - 1),
)
@examples(40)
def test_systematic_gives_each_its_share_rounded_up_or_down(a, seed):
    with jax.enable_x64(True):
        w, found = (np.asarray(part) for part in _ancestors(jax.random.key(seed), a, "systematic"))
    share = w * len(w)
    counts = np.bincount(found, minlength=len(w))
    assert (counts >= np.floor(share - 1e-9)).all()
    assert (counts <= np.ceil(share + 1e-9)).all()


@pytest.mark.parametrize("name", SCHEMES)
@given(a=hnp.arrays(np.float64, (1, 7), elements=st.floats(-4, 4) | st.just(-np.inf)))
@examples(2)
def test_children_are_as_many_as_the_weight_says_on_average(name, a):
    """Within 5 standard errors of a multinomial's, the noisiest scheme."""
    assume(np.isfinite(a).any())
    replicates = 4000
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(7), replicates)
        w, found = (np.asarray(part) for part in _many_ancestors(keys, a, name))
    mean = np.bincount(found.ravel(), minlength=7) / replicates
    error = np.sqrt(7 * w * (1 - w) / replicates)
    assert (np.abs(mean - 7 * w) <= 5 * error + 1e-9).all()


@given(
    a=clouds(groups=3),
    base=hnp.arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)),
    threshold=st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    seed=st.integers(0, 2**31 - 1),
)
@examples(30)
def test_resampling_keeps_the_evidence_of_every_group(a, base, threshold, seed):
    """Whatever the threshold; and what is cached at the particles goes with them."""
    groups, n = a.shape
    label = np.arange(groups * n, dtype=float).reshape(a.shape)
    with jax.enable_x64(True):
        cloud = resampling.Weighted(
            {"x": jnp.asarray(label)}, (jnp.asarray(-label),), jnp.asarray(a), jnp.asarray(base)
        )
        after, any_low = _resample(jax.random.key(seed), threshold, cloud)
        w, ess, open_segment = (np.asarray(part) for part in _known(a))
        now = np.asarray(after.log_evidence_base) + np.asarray(_known(after.log_weights)[2])
    np.testing.assert_allclose(now, base + open_segment, rtol=1e-12, atol=1e-9)
    low = ess < threshold * n
    assert bool(any_low) == low.any()
    kept, cached = np.asarray(after.particles["x"]), np.asarray(after.cached[0])
    np.testing.assert_array_equal(cached, -kept)
    np.testing.assert_array_equal(kept[~low], label[~low])
    np.testing.assert_array_equal(np.asarray(after.log_weights)[~low], a[~low])
    assert (np.asarray(after.log_weights)[low] == 0).all()
    assert (kept // n == np.arange(groups)[:, None]).all()  # nobody leaves the group
    assert (w.ravel()[kept[low].astype(int)] > 0).all()


@jax.jit
def _resample(key, threshold, cloud):
    return resampling.resample_low(key, jalax.systematic, threshold, cloud)


# ---------------------------------------------------------------- trees

# Names that look like paths, like the names of a file's own arrays, or like nothing at all.
KEYS = (
    "a",
    "b",
    "a/b",
    "x.y",
    "header",
    "file",
    "[0]",
    "é",
    "a\0b",
    "",
    "\udc80",
    "../up",
    "theta:0",
)
SHAPES = ((2,), (), (1, 3), (2, 1, 2))


def any_tree(leaves, most=4):
    """Nested dicts, lists and tuples; the first example is not the simplest one."""
    pair = st.tuples(leaves, leaves)
    nested = st.recursive(
        leaves | pair,
        lambda inside: (
            st.lists(inside, min_size=1, max_size=3)
            | st.tuples(inside)
            | st.dictionaries(st.sampled_from(KEYS), inside, min_size=1, max_size=3)
        ),
        max_leaves=most,
    )
    return st.fixed_dictionaries({"a/b": leaves, "x": st.tuples(nested)}) | nested


def arrays(dtypes=("float32", "float64", "float16", "int32", "bool")):
    shapes = st.sampled_from([*SHAPES, (0,), (3, 0)])
    return st.sampled_from(dtypes).flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@given(any_tree(arrays() | st.just(None), most=8))
@example({"a/b": np.zeros(1), "a": {"b": np.ones(1)}})
@examples(60)
def test_a_tree_packed_and_unpacked_is_itself(tree):
    stored = {}
    skeleton = json.loads(json.dumps(files.pack("tree", tree, stored)))
    back = files.unpack(skeleton, dict(stored))
    same(back, tree)
    assert len(stored) == len(jax.tree.leaves(tree))


@given(tree=any_tree(arrays(), most=8), brief=st.booleans())
@examples(40)
def test_a_tree_written_and_read_is_itself(tmp_path_factory, tree, brief):
    if brief:
        tree = [tree, np.asarray(jnp.arange(3, dtype=jnp.bfloat16))]
    path, stored = tmp_path_factory.mktemp("tree") / "tree.npz", {}
    meta = {"tree": files.pack("tree", tree, stored)}
    files.write(path, "tree", meta, stored)
    header, content = files.read(path, "tree")
    same(files.unpack(header["tree"], content), tree)


@jax.jit
def _ravelled(particles):
    flat = trees.ravel_particles(particles)
    return flat, trees.unravel_particles(flat, particles), trees.dot(particles, particles)


@given(
    tree=any_tree(st.sampled_from(SHAPES)),
    lead=st.sampled_from([(2, 3), (1, 1)]),
    double=st.booleans(),
)
@examples(4)
def test_particles_ravelled_and_unravelled_are_themselves(tree, lead, double):
    rng = np.random.default_rng(0)
    dtype = np.float64 if double else np.float32
    with jax.enable_x64(double):
        particles = of_shapes(
            tree, lambda shape: jnp.asarray(rng.normal(size=(*lead, *shape)), dtype)
        )
        flat, back, norms = _ravelled(particles)
        assert flat.shape == (*lead, sum(math.prod(shape) for shape in shapes_of(tree)))
        same(back, particles)
        np.testing.assert_allclose(norms, jnp.sum(flat**2, axis=-1), rtol=1e-5)


def is_shape(node):
    return isinstance(node, tuple) and all(isinstance(n, int) for n in node)


def of_shapes(tree, make):
    """A tree of shapes as one of arrays."""
    return jax.tree.map(make, tree, is_leaf=is_shape)


def shapes_of(tree):
    return jax.tree.leaves(tree, is_leaf=is_shape)


# ---------------------------------------------------------------- every algorithm, on any tree


def log_joint(theta, x, data):
    """Of any two trees: every number of either has a gradient."""
    t, z = ravel_pytree(theta)[0], ravel_pytree(x)[0]
    return (
        -0.5 * jnp.sum((z - jnp.mean(t)) ** 2)
        - 0.1 * jnp.sum(jnp.cosh(z - data))
        - 0.5 * jnp.sum((t - 0.3) ** 2)
    )


@dataclasses.dataclass
class Problem:
    theta: object  # trees of shapes
    latent: object
    dtypes: tuple[str, str]
    grouped: bool
    num: int

    @property
    def double(self):
        return "float64" in self.dtypes

    def model(self):
        zeros = [
            of_shapes(tree, lambda shape, dtype=dtype: jnp.full(shape, 0.1, dtype))
            for tree, dtype in zip((self.theta, self.latent), self.dtypes, strict=True)
        ]
        if self.grouped:
            data = jnp.array([0.3, -0.2])
            return jalax.GroupedModel(log_joint, zeros[1], data, theta=zeros[0])
        return jalax.Model(log_joint, zeros[1], jnp.array(0.3), theta=zeros[0])

    def particles(self):
        rng, lead = np.random.default_rng(0), (2, self.num) if self.grouped else (self.num,)
        dtype = self.dtypes[1]
        return of_shapes(
            self.latent, lambda shape: jnp.asarray(rng.normal(size=(*lead, *shape)), dtype)
        )

    def algorithm(self, name):
        chosen = table.ALGORITHMS[name]
        if name == "JALAEM-dense":  # a matrix over the latent, which has another size here
            size = sum(math.prod(shape) for shape in shapes_of(self.latent))
            matrix = 0.5 * np.eye(size) + 0.1
            return dataclasses.replace(chosen, preconditioner=matrix)
        if name == "JALAEM-exact":  # a diagonal, shaped like the latent
            diagonal = of_shapes(self.latent, lambda shape: np.full(shape, 0.4))
            return dataclasses.replace(chosen, preconditioner=diagonal)
        return chosen


def problems(dtypes):
    # Below 32 bits the numbers are too coarse for a weight.
    return st.builds(
        Problem,
        theta=any_tree(st.sampled_from(SHAPES)),
        latent=any_tree(st.sampled_from(SHAPES)),
        dtypes=st.sampled_from(dtypes),
        grouped=st.booleans(),
        num=st.sampled_from([8, 5]),
    )


MIXED = (
    ("float32", "float32"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float64", "float64"),
)


def describe(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", table.ALGORITHMS)
@given(problem=problems(MIXED))
@examples(2)
def test_a_step_keeps_any_tree_shape_and_dtype(name, problem):
    with jax.enable_x64(problem.double):
        model, algorithm = problem.model(), canonical(problem.algorithm(name))
        particles = problem.particles()
        if not problem.grouped:
            particles = jax.tree.map(lambda leaf: leaf[None], particles)
        zeros = jnp.zeros((2 if problem.grouped else 1, problem.num), problem.dtypes[1])
        state = jax.eval_shape(
            algorithm.init, jax.random.key(0), model, model.theta, Cloud(particles, zeros, None)
        )
        after, info = jax.eval_shape(algorithm.step, jax.random.key(0), model, state)
        assert jax.tree.structure(state) == jax.tree.structure(after)
        assert describe(state) == describe(after)
        assert describe(after.theta) == describe(model.theta)
        assert describe(after.particles) == describe(particles)
        assert all(leaf.shape == () for leaf in info)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("JALAEM", "SOUL") else [pytest.mark.slow])
        for name in table.ALGORITHMS
        if name != "Scoring"  # it takes no start, and 16 points at least; see test_contract.py
    ],
)
@given(
    problem=problems([("float32", "float32"), ("float64", "float64"), ("float64", "float32")]),
    chunk=st.sampled_from([3, 1, 7, 12]),
    stop=st.sampled_from([5, 1, 11]),
)
@examples(1)
def test_chunks_files_and_checkpoints_change_nothing(tmp_path_factory, name, problem, chunk, stop):
    folder = tmp_path_factory.mktemp("fit")

    with jax.enable_x64(problem.double):

        def fit(num_steps=12, **options):
            return jalax.fit(
                problem.model(),
                key=jax.random.key(3),
                algorithm=problem.algorithm(name),
                start=jalax.Given(problem.particles(), log_evidence=-1.0),
                num_steps=num_steps,
                **options,
            )

        whole = fit()
        model = problem.model()
        assert describe(whole.theta) == describe(model.theta)
        assert describe(whole.particles) == describe(problem.particles())
        assert all(len(leaf) == 12 for leaf in jax.tree.leaves(whole.history))

        other = fit(chunk_size=chunk)
        same(other.state, whole.state)
        same(other.history, whole.history)

        keep = jalax.checkpoint(folder / "checkpoint.npz", every=2)
        fit(num_steps=stop, callbacks=[keep])
        resumed = fit(callbacks=[keep])
        same(resumed.state, whole.state)
        same(resumed.history, whole.history)

        whole.save(folder / "result.npz")
        loaded = jalax.load(folder / "result.npz")
        for field in ("theta", "free", "particles", "log_weights", "history"):
            same(getattr(loaded, field), getattr(whole, field))
        for field in ("status", "message", "num_steps", "seconds", "path_value", "relative"):
            assert getattr(loaded, field) == getattr(whole, field)
        same(
            [loaded.state.arrays[field] for field in loaded.state.names],
            jax.tree.leaves(whole.state),
        )
