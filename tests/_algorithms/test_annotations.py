"""The shapes in the annotations, checked by beartype for every row of tests/algorithms.py.

In a process of its own, because the check has to be there before jalax is imported. Nothing is
compiled: shapes are known when a step is traced.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Classes of options are left out: their numbers become arrays on the way into a program.
MODULES = [
    *("jalax._particles", "jalax._model", "jalax._reference"),
    *("jalax._algorithms.minibatches", "jalax._algorithms.peers"),
]

SCRIPT = """
import sys
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook(sys.argv[1:], "beartype.beartype"):
    import jalax
    import algorithms as table
import jax, jax.numpy as jnp
from jalax._model.checks import prepare_theta
from jalax._particles import weight_math
from jalax.extend import Cloud

try:
    weight_math.log_evidence(jnp.zeros(3), jnp.zeros((2, 5)))  # three groups, or two?
    sys.exit("a wrong shape went through: nothing is checked")
except TypeCheckError:
    pass

def trace(algorithm, grouped):
    key, model = jax.random.key(0), table.model(grouped)
    particles = table.particles(16, grouped)
    if not grouped:
        particles = jax.tree.map(lambda leaf: leaf[None], particles)
    cloud = Cloud(particles, jnp.zeros((2 if grouped else 1, 16)), None)
    theta = prepare_theta(None, model)
    algorithm = algorithm.canonical().filled(theta).canonical()
    state = jax.eval_shape(algorithm.init, key, model, theta, cloud)
    jax.eval_shape(algorithm.step, key, model, state)

for bits, grouped in ((32, False), (64, True)):
    with jax.enable_x64(bits == 64):
        for algorithm in table.ALGORITHMS.values():
            trace(algorithm, grouped)
print(2 * len(table.ALGORITHMS), "traced")
"""


def test_every_row_keeps_the_annotated_shapes():
    here = Path(__file__).parents[1]
    command = [sys.executable, "-c", SCRIPT, *MODULES]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "traced"
    assert int(done.stdout.split()[0]) >= 18
