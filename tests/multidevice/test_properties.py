"""Whatever the number of particles, the threshold and the mesh: eight devices, the answers of one.

JALAX_HYPOTHESIS=thorough looks at fifty times as many examples, see tests/profiles.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import algorithms as table
import jalax
from jalax._particles import exchange, trees
from profiles import examples

sys.path.insert(0, str(Path(__file__).parent))
import fits

# Each with the devices over which particles and groups are spread.
MESHES = ((4, 2), (8, 1), (2, 4), (1, 8), (2, 2))


def mesh_of(particles: int, groups: int) -> jax.sharding.Mesh:
    return jax.make_mesh(
        (groups, particles),
        ("groups", "particles"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[: groups * particles],
    )


@given(
    shape=st.sampled_from(MESHES),
    block=st.integers(3, 6),  # particles a device
    threshold=st.sampled_from([0.8, 0.5, 1.0, 0.0]),
    scheme=st.sampled_from([jalax.systematic, jalax.resampling.multinomial]),
    seed=st.integers(0, 1000),
)
@examples(1)
def test_a_fit_on_a_mesh_is_the_fit_on_one_device(shape, block, threshold, scheme, seed):
    num = block * shape[0]
    algorithm = jalax.JALAEM(step_size=0.05, resample_below=threshold, resample=scheme)
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        lead = (fits.GROUPS, num)
        start = {"a": jnp.array(rng.normal(size=(*lead, 2))), "b": jnp.array(rng.normal(size=lead))}

        def fit(mesh):
            return jalax.fit(
                fits.model("grouped"),
                table.theta(),
                key=jax.random.key(seed),
                algorithm=algorithm,
                start=jalax.Given(start),
                num_steps=20,
                mesh=mesh,
            )

        one, many = fits.numbers(fit(None)), fits.numbers(fit(mesh_of(*shape)))
        for name, value in one.items():
            np.testing.assert_allclose(many[name], value, rtol=0, atol=1e-8, err_msg=name)


@given(data=st.data(), shape=st.sampled_from(MESHES), block=st.integers(1, 3))
@examples(4)
def test_any_ancestors_are_gathered_across_devices(data, shape, block):
    """To the bit, however far away an ancestor is."""
    num, groups = block * shape[0], fits.GROUPS
    ancestors = data.draw(
        st.lists(st.integers(0, num - 1), min_size=groups * num, max_size=groups * num)
    )
    index = jnp.array(ancestors).reshape(groups, num)
    tree = {"x": jnp.arange(groups * num * 2.0).reshape(groups, num, 2)}
    layout = jalax.runtime.Layout(mesh_of(*shape), particles="particles", groups="groups")
    found = jax.jit(lambda t, i: exchange.gather(layout, t, i))(tree, index)
    np.testing.assert_array_equal(found["x"], trees.gather(tree, index)["x"])
