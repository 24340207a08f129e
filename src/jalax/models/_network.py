"""A two-layer Bayesian neural network without biases (paper 5.4)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from jalax._model.model import Model

from . import _checks
from ._gaussian import isotropic_log_density
from ._rows import sum_over_rows


def _log_likelihood(
    x: dict[str, Array], images: Float[Array, "n d"], labels: Int[Array, " n"]
) -> Float[Array, " n"]:
    # The weights first: products in this order come out as the next ones want them.
    logits = _output_layer(_product(x["w"], images.T), x["v"])
    # A product with indicators and not a gather, whose derivative is a slow scatter.
    one_hot = jax.nn.one_hot(labels, logits.shape[0], axis=0, dtype=logits.dtype)
    return jnp.sum(logits * one_hot, axis=0) - jax.nn.logsumexp(logits, axis=0)


@jax.checkpoint
def _output_layer(hidden: Float[Array, "h n"], v: Float[Array, "c h"]) -> Float[Array, "c n"]:
    """v tanh(hidden). The tanh is taken again on the way back, inside the products that need it:
    on a GPU it costs less than to write it to memory and read it (7 % of a step)."""
    return _product(v, jnp.tanh(hidden))


def _product(a: Float[Array, "i j"], b: Float[Array, "j k"]) -> Float[Array, "i k"]:
    """As JAX has it: TF32 on a GPU, which is faster, and a network's density says no more."""
    return jnp.matmul(a, b, precision="default")


def _log_joint(
    theta: dict[str, Array],
    x: dict[str, Array],
    data: dict[str, Array],
    data_batch: int | None = None,
) -> Float[Array, ""]:
    log_prior = isotropic_log_density(x["w"], 2 * theta["alpha"])
    log_prior += isotropic_log_density(x["v"], 2 * theta["beta"])
    rows = data["images"], data["labels"]
    return sum_over_rows(lambda part: _log_likelihood(x, *part), rows, data_batch) + log_prior


class NeuralNetwork(Model):
    """A `Model` with predictive probabilities; see `neural_network`."""

    @staticmethod
    def log_predictive(
        theta: dict[str, Array], x: dict[str, Array], data: dict[str, Array]
    ) -> Float[Array, " n"]:
        """log p(label_i | image_i, x) of each image; see `jalax.lppd`."""
        del theta
        return _log_likelihood(x, data["images"], data["labels"])

    @staticmethod
    def predictive_probability(
        x: dict[str, Array], images: ArrayLike, labels: ArrayLike
    ) -> Float[Array, " n"]:
        """p(label_i | image_i, x) of each image under one particle x; vmap it over particles."""
        array = jnp.asarray(images, x["w"].dtype)
        flat = array.reshape(array.shape[0], -1)
        return jnp.exp(_log_likelihood(x, flat, jnp.asarray(labels)))


def neural_network(
    images: ArrayLike,
    labels: ArrayLike,
    num_hidden: int = 40,
    num_classes: int | None = None,
    *,
    data_batch: int | None = None,
) -> NeuralNetwork:
    r"""Classification by a tanh network, $\theta = (\alpha, \beta)$:

    $$w_{hd} \sim \mathcal{N}(0, e^{2\alpha}), \quad v_{ch} \sim \mathcal{N}(0, e^{2\beta}), \quad
      p(l_i = c \mid w, v) = \operatorname{softmax}(v \tanh(w f_i))_c.$$

    Args:
        images: the features f, (n, ...); the axes after the first are flattened.
        labels: n classes, whole numbers from 0 upwards.
        num_hidden: the number of hidden units.
        num_classes: the number of classes; None takes it from the labels, all of which must
            then occur.
        data_batch: how many images to work on at a time; see `sum_over_rows`.

    Returns:
        A model whose theta is {"alpha", "beta"} (start value 0, the paper's), the log standard
        deviations of the two layers, and whose latent is {"w": (num_hidden, d),
        "v": (num_classes, num_hidden)}, with `predictive_probability(x, images, labels)`.

    >>> import jax.numpy as jnp
    >>> from jalax import models
    >>> images, labels = jnp.ones((3, 2, 2)), [0, 1, 1]
    >>> model = models.neural_network(images, labels, num_hidden=5)
    >>> model.latent["w"].shape, model.latent["v"].shape
    ((5, 4), (2, 5))
    >>> model.predictive_probability(model.latent, images, labels).tolist()
    [0.5, 0.5, 0.5]
    """
    num_hidden = _checks.whole_number("num_hidden", num_hidden, at_least=1)
    if data_batch is not None:
        data_batch = _checks.whole_number("data_batch", data_batch, at_least=1)
    ndim = max(2, np.ndim(images))
    hint = "Pass one row of features for each image."
    checked = _checks.real_array("images", images, ndim=ndim, hint=hint)
    flat = checked.reshape(checked.shape[0], -1)
    if _checks.is_traced(labels):
        raise TypeError("labels are traced: build the network outside of jit and vmap.")
    classes = _checks.real_array("labels", labels, ndim=1, hint="Pass one class for each image.")
    _checks.same_rows(images=flat, labels=classes)
    num_classes = _check_classes(classes, num_classes)
    data = _checks.to_jax({"images": flat, "labels": classes.astype(np.int32)})
    latent = {
        "w": jnp.zeros((num_hidden, flat.shape[1])),
        "v": jnp.zeros((num_classes, num_hidden)),
    }
    theta = {"alpha": jnp.zeros(()), "beta": jnp.zeros(())}
    log_joint = _log_joint if data_batch is None else partial(_log_joint, data_batch=data_batch)
    return NeuralNetwork(log_joint, latent=latent, data=data, theta=theta)


def _check_classes(labels: np.ndarray, num_classes: int | None) -> int:
    """The number of classes, once the labels agree with it."""
    recode = "Recode them with labels = np.unique(labels, return_inverse=True)[1]."
    wrong = (labels < 0) | (labels != np.floor(labels))
    if wrong.any():
        raise ValueError(
            f"labels must be the classes 0, 1, ..., found {labels[wrong][0]:g}. {recode}"
        )
    found = np.unique(labels).astype(int)
    if num_classes is None:
        if not np.array_equal(found, np.arange(found.size)):
            raise ValueError(
                f"labels must be the classes 0, 1, ... without a gap, found {found.tolist()[:12]}. "
                + recode
            )
        num_classes = max(2, found.size)
    num_classes = _checks.whole_number("num_classes", num_classes, at_least=2)
    if found[-1] >= num_classes:
        raise ValueError(
            f"labels must lie below num_classes = {num_classes}, found {found[-1]}. {recode}"
        )
    return num_classes
