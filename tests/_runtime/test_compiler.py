"""The compiler under jalax: a program it gets wrong must not be one of ours.

XLA's library of CPU kernels ("ynn"), which adds up since jaxlib 0.10.2, returns wrong sums for some
programs: jax issue 39103, and the score below, which jaxlib 0.11.2 still gets wrong. See
`compilation.known_options`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jalax
from jalax._model import information
from jalax._runtime import compilation

RANDOM = np.random.default_rng(0)
Y = RANDOM.normal(1.0, 1.0, (15, 4))
X = RANDOM.normal(size=(1, 500, 15))


def log_joint(theta, x, y):
    """Normal observations whose log-variances x are the latents: d/dtheta is in `exact`."""
    return jnp.sum(jax.vmap(lambda x, y: -0.5 * jnp.sum((y - theta) ** 2 * jnp.exp(-x)))(x, y))


def test_the_scores_of_a_model_that_xla_gets_wrong():
    model = jalax.Model(log_joint, jnp.zeros(15), jnp.asarray(Y, jnp.float32))
    theta, particles = jnp.asarray(0.5, jnp.float32), jnp.asarray(X, jnp.float32)
    found = compilation.Jit(information._scores)(model, theta, particles)[0, :, 0]
    exact = np.einsum("ij,ni->n", Y - 0.5, np.exp(-X[0]))
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-2)


INLINED = {"_runtime/function_keys.py", "_fit/loop.py"}  # parts of other programs
TRIES = {"_particles/gpu_kernel.py"}  # compares a kernel with XLA's numbers, on a GPU
MOVES = {"_runtime/processes.py"}  # copies arrays, and adds nothing up


def test_programs_are_compiled_with_care():
    source = Path(jalax.__file__).parent
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if "jax.jit(" in file.read_text() or "(jax.jit" in file.read_text()
    }
    assert found == {"_runtime/compilation.py"} | INLINED | TRIES | MOVES


EVERYTHING = """
import gc, glob, os, sys
import jax, jax.numpy as jnp
import jalax
from jalax import models
from jalax._runtime import compilation

key = jax.random.key(0)
data = jalax.datasets.cbpp()
family = models.Binomial(data.size)
grouped = models.random_intercept(data.incidence, data.covariates, data.herd, family=family)
result = jalax.fit(grouped, key=key)
result.summary(), result.standard_errors(), result.expectation(lambda x: x)
model = models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))
a, b = (jalax.fit(model, theta, key=key, algorithm=jalax.JALAEM()) for theta in (0.0, 0.5))
a.replay(key, num_replicates=2)
prior = lambda t: jax.scipy.stats.norm.logpdf(t, 0.0, 3.0)
jalax.compare({"a": a, "b": b}, theta_log_prior=prior)
jalax.log_evidence(model, 0.5, key=key, num_particles=100)
jalax.fit(model, 0.0, key=key, start=jalax.Tempered())
jalax.fit_many(model, 0.0, key=key, num_fits=2)
jalax.fit(model, 0.0, key=key, algorithm=jalax.PGD(step_size=0.1), num_steps=5)
path = lambda t, x: -(1 - t) * jnp.sum(x**2) / 2 - t * jnp.sum(x**4)
start = jax.random.normal(key, (100, 3))
jalax.transport(path, jnp.linspace(0, 1, 5), start, key=key, step_size=0.05)

theirs = jax.jit(lambda x, y: jnp.exp(x @ y) + 1)
theirs(jnp.ones((300, 300)), jnp.ones((300, 300))).block_until_ready()
ours = {f"jit_{o.function.__name__}" for o in gc.get_objects() if type(o) is compilation.Jit}
for file in glob.glob(sys.argv[1] + "/*after_optimizations.txt"):
    name = os.path.basename(file).split(".")[1]
    print(name, name in ours, "__ynn_fusion" in open(file).read())
"""


def test_steps_as_xla_compiles_them_for_everybody():
    """The flags of `make test` save time. Here are the steps of JALA-EM without them."""
    steps = "test_jala_em and identity-False"
    golden = Path(__file__).parents[1] / "_algorithms" / "test_golden.py"
    command = [sys.executable, "-m", "pytest", str(golden), "-k", steps, "-q", "-p"]
    done = subprocess.run(
        [*command, "no:cacheprovider"],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 2


@pytest.mark.slow
def test_no_program_of_ours_uses_the_library(tmp_path):
    """It is switched on for everybody, every program is written out, and ours are without it."""
    flags = [
        "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE,"
        "LIBRARY_FUSION_TYPE_ELTWISE",
        f"--xla_dump_to={tmp_path}",
        "--xla_dump_hlo_as_text",
    ]
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING, str(tmp_path)],
        env={**os.environ, "XLA_FLAGS": " ".join(flags)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split() for line in done.stdout.splitlines()]
    with_library = {name for name, _, used in found if used == "True"}
    ours = {name for name, is_ours, _ in found if is_ours == "True"}
    assert any(name.startswith("jit__lambda") for name in with_library)  # `theirs`: it is on
    assert {"jit_chunk", "jit__weighted_draws", "jit__transport"} <= ours
    assert not ours & with_library
    # A log_joint on its own, outside of a program of ours, would be compiled without care.
    assert not [name for name, *_ in found if "density" in name]
