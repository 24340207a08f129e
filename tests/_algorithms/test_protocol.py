"""What drivers ask of an algorithm is what `Algorithm` declares, and its author needs no more.

JALA-EM behind a wrapper that forwards those members, and has no others, is JALA-EM to the bit; and
an algorithm outside the package (tests/momentum_pgd.py) is written with public names only.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms as table
import jalax
import momentum_pgd
from jalax.extend import Algorithm

KEY = jax.random.key(5)
MEMBERS = [name for name in vars(Algorithm) if not name.startswith("__")]
REWRAP = {"canonical", "filled"}  # these return an algorithm


@jalax.extend.register_dataclass
@dataclasses.dataclass(frozen=True)
class Wrapped(Algorithm):
    inner: Any


def forward(name):
    def call(self, *args):
        found = getattr(self.inner, name)(*args)
        return Wrapped(found) if name in REWRAP else found

    if callable(getattr(Algorithm, name)):
        return call
    return property(lambda self: getattr(self.inner, name))


for member in MEMBERS:
    setattr(Wrapped, member, forward(member))


def test_the_wrapper_has_nothing_of_its_own():
    wrapped = Wrapped(jalax.JALAEM())
    assert {"step", "is_done", "estimate", "path_evidence", "after_failure"} <= set(MEMBERS)
    for name in ("step_size", "automatic", "weights", "minibatch", "project", "averaging"):
        assert hasattr(wrapped.inner, name)
        assert not hasattr(wrapped, name)


def identical(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(one, other, equal_nan=True) for one, other in leaves)


def assert_same(a: jalax.FitResult, b: jalax.FitResult):
    assert a.status == b.status
    assert a.message == b.message
    for name in ("theta", "particles", "log_weights", "history", "state"):
        assert identical(getattr(a, name), getattr(b, name)), name
    assert (a.path_value, a.relative) == (b.path_value, b.relative)
    assert a.evidence_reason == b.evidence_reason


PLAIN = jalax.JALAEM(step_size=0.05, optimizer=optax.adam(0.05), resample_below=0.9)
START = jalax.Given(table.particles(16), log_evidence=-1.0)


def both(run):
    """The same with JALA-EM, and behind the wrapper."""
    return run(lambda algorithm: algorithm), run(Wrapped)


def test_an_automatic_fit_and_its_evidence():
    data = jnp.array([0.5, 1.5, 4.0])
    model = jalax.models.hierarchical_normal(data)
    one, other = both(lambda wrap: jalax.fit(model, 0.0, key=KEY, algorithm=wrap(jalax.JALAEM())))
    assert one.status == "converged"
    assert_same(one, other)
    assert identical(one.standard_errors(), other.standard_errors())
    assert one.log_evidence == other.log_evidence
    replays = [fit.replay(KEY, num_replicates=2) for fit in (one, other)]
    assert replays[0].value == replays[1].value


def test_a_fit_that_goes_back():
    """The first step size is far too long here: `after_failure` halves it."""

    def log_joint(theta, x, data):
        return -0.5 * jnp.sum((x - theta) ** 2) - jnp.sum(x**4) - 0 * data

    model = jalax.Model(log_joint, jnp.zeros(2), jnp.zeros(()))
    rule = jalax.options.PowerIteration(fraction=500.0)

    def run(wrap):
        return jalax.fit(
            model, 0.5, key=KEY, algorithm=wrap(jalax.JALAEM(step_size=rule)), num_steps=20
        )

    one, other = both(run)
    assert "went back" in one.evidence_reason or one.status == "diverged"
    assert_same(one, other)


def test_many_fits():
    def run(wrap):
        return jalax.fit_many(
            table.model(), key=KEY, num_fits=3, algorithm=wrap(PLAIN), start=START, num_steps=8
        )

    for one, other in zip(*both(run), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("minibatch", [None, 1])
def test_stopped_and_resumed_from_a_checkpoint(tmp_path, minibatch):
    algorithm = dataclasses.replace(PLAIN, minibatch=minibatch)
    start = jalax.Given(table.particles(16, True), log_evidence=-1.0)

    def run(wrap):
        path = tmp_path / f"{wrap.__name__}.npz"
        for steps in (5, 12):
            result = jalax.fit(
                table.model(grouped=True),
                key=KEY,
                algorithm=wrap(algorithm),
                start=start,
                num_steps=steps,
                callbacks=[jalax.checkpoint(path, every=5)],
            )
        return result

    assert_same(*both(run))


def test_an_algorithm_outside_the_package_uses_public_names_only():
    tree = ast.parse(Path(momentum_pgd.__file__).read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    ours = [module for module in modules if module.split(".")[0] == "jalax"]
    assert "jalax.extend" in ours
    assert not [module for module in ours if "._" in module]
    reached = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    assert not [name for name in reached if name.startswith("_") and name != "_replace"]


def test_momentum_finds_the_maximum():
    """x_i ~ N(theta, 1), y_i ~ N(x_i, 1): the maximum is the mean of y, 2, whatever the width.

    The mean over the tail has an error of its own, from 20 batches; t with 19 degrees of freedom
    is beyond 5 once in 13,000 times.
    """
    model = jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))
    result = jalax.fit(
        model,
        0.0,
        key=KEY,
        algorithm=momentum_pgd.MomentumPGD(step_size=0.1),
        start=jalax.FromSampler(lambda key, theta, data: theta + jax.random.normal(key, (3,))),
        num_particles=100,
        num_steps=4200,
        progress=jalax.callbacks.Callback(),
    )
    batches = result.history["theta"][200:].reshape(20, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(20)
    assert error < 0.02
    assert abs(batches.mean() - 2.0) < 5 * error
