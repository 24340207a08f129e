"""A generator network: one latent a picture, theta the network (Kuntz, Lim and Johansen, 2023)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import GroupedModel

from . import _checks
from ._gaussian import isotropic_log_density

Theta = dict[str, Any]


def _picture(theta: Theta, x: Float[Array, " k"]) -> Float[Array, " d"]:
    for i, (weight, bias) in enumerate(zip(theta["weights"], theta["biases"], strict=True)):
        x = jnp.matmul(jnp.tanh(x) if i else x, weight, precision="highest") + bias
    return x


def _log_joint(theta: Theta, x: Float[Array, " k"], data: dict[str, Array]) -> Float[Array, ""]:
    noise = isotropic_log_density(data["picture"] - _picture(theta, x), 2 * theta["log_sd"])
    return noise + isotropic_log_density(x, jnp.zeros((), x.dtype))


class Generator(GroupedModel):
    """A `GroupedModel` that can draw; see `generator`."""

    @staticmethod
    def picture(theta: Theta, x: Float[Array, " k"]) -> Float[Array, " d"]:
        """The flattened picture that the network makes of one latent."""
        return _picture(theta, x)


def generator(
    pictures: ArrayLike, num_latents: int = 10, hidden: Sequence[int] = (64,), *, seed: int = 0
) -> Generator:
    r"""A network that generates pictures, $\theta = (W, b, \log \sigma)$, one group a picture:

    $$x_i \sim \mathcal{N}(0, I_k), \qquad
      y_i \mid x_i \sim \mathcal{N}(f_{W,b}(x_i), \sigma^2 I),$$

    f a network with tanh between its layers. Its thousands of weights have no standard errors;
    the theta-step is an optax optimiser, and `JALAEM(minibatch=...)` visits some pictures a step.

    Args:
        pictures: y, (n, ...); the axes after the first are flattened.
        num_latents: k.
        hidden: units of each hidden layer; none, (), is probabilistic principal components.
        seed: of the first weights, normal with variance one over the number of inputs.

    Returns:
        A grouped model whose theta is {"weights": [...], "biases": [...], "log_sd": scalar} and
        whose latent is x of one picture; `picture(theta, x)` draws.

    >>> import numpy as np
    >>> from jalax import models
    >>> model = models.generator(np.zeros((5, 8, 8)), num_latents=3, hidden=(16,))
    >>> [weight.shape for weight in model.theta["weights"]], model.num_groups
    ([(3, 16), (16, 64)], 5)
    """
    hint = "Pass one picture a row."
    checked = _checks.real_array("pictures", pictures, ndim=max(2, np.ndim(pictures)), hint=hint)
    flat = checked.reshape(checked.shape[0], -1)
    first = _checks.whole_number("num_latents", num_latents, at_least=1)
    if not isinstance(hidden, Iterable) or isinstance(hidden, str):
        raise TypeError(f"hidden must be a tuple of whole numbers, such as (64,), got {hidden!r}.")
    between = [_checks.whole_number("hidden", units, at_least=1) for units in hidden]
    sizes = [first, *between, flat.shape[1]]
    rng = np.random.default_rng(_checks.whole_number("seed", seed, at_least=0))
    weights = [rng.normal(size=pair) / np.sqrt(pair[0]) for pair in itertools.pairwise(sizes)]
    biases = [np.zeros(units) for units in sizes[1:]]
    biases[-1] = flat.mean(axis=0)
    log_sd = np.log(max(float(flat.std()), 1e-3))
    theta = {"weights": weights, "biases": biases, "log_sd": log_sd}
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), theta)
    data = _checks.to_jax({"picture": flat})
    return Generator(_log_joint, latent=jnp.zeros(first), data=data, theta=theta)
