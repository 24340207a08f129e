"""The Laplace start, a block of groups at a time, by a program that also tells their log p."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jalax._model.model import Model
from jalax._model.types import Cloud
from jalax._particles.trees import Tree
from jalax._runtime.compilation import LEVEL_1, fold_in, jit
from jalax._runtime.nodes import register_dataclass
from jalax._starts.importance import Laplace


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class InBlocks:
    """As `Laplace`; `size` groups at a time, so that one program serves any number of them."""

    size: int = dataclasses.field(metadata={"static": True})
    num_draws: int = dataclasses.field(metadata={"static": True})

    def __call__(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        return Laplace(num_draws=self.num_draws)(key, model, theta, num_particles)

    def block(
        self, key, model: Model, groups: np.ndarray, theta: Tree, num_particles: int
    ) -> Cloud:
        """Of these groups, `size` of them."""
        part = model.replace(data=jax.tree.map(lambda x: x[groups], model.data), theta=None)
        return _drawn(key, self, part, theta, num_particles)

    def drawn(self, key, model: Model, theta: Tree, num_particles: int) -> Cloud:
        """Of all groups; those that fill the last block up are drawn and left."""
        count = model.num_groups
        index = np.resize(np.arange(count), (-(-count // self.size), self.size))
        clouds = [
            self.block(fold_in(key, k), model, groups, theta, num_particles)
            for k, groups in enumerate(index)
        ]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *clouds)


@jit(LEVEL_1, static_argnames="num_particles")
def _drawn(key, start: InBlocks, part: Model, theta: Tree, num_particles: int) -> Cloud:
    return start(key, part, theta, num_particles)
