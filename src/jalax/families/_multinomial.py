"""Categories without an order: logits against the first one."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._family import Family, no_trials
from ._links import LOGIT, Link, Logit


@dataclasses.dataclass(frozen=True, repr=False)
class Multinomial(Family):
    r"""Categories 1..J without an order: $\log P(y = j) / P(y = 1) = \eta_j$.

    Each category but the first has a linear predictor of its own, with its own coefficients and
    random effects; those of one level are correlated across categories. The response is a
    Categorical, whose first category is the baseline. As R's `mclogit::mblogit` and brms'
    `categorical`.

    >>> from jalax import families
    >>> families.Multinomial()
    Multinomial(link=Logit())
    """

    name: ClassVar = "multinomial"
    links: ClassVar = (Logit,)
    has_zero: ClassVar = False
    has_mean: ClassVar = False
    has_order: ClassVar = False

    link: Link = LOGIT

    def check(self, name, y, size):
        no_trials(self, name, size)

    def log_density(self, own, eta, data):
        """eta is (..., J - 1)."""
        known = jnp.concatenate([jnp.zeros_like(eta[..., :1]), eta], axis=-1)
        chosen = data["y"].astype(int)[..., None] == 1 + jnp.arange(known.shape[-1])
        return jnp.sum(jnp.where(chosen, known, 0.0), -1) - jax.nn.logsumexp(known, axis=-1)

    def draw(self, key, own, eta, data):
        known = jnp.concatenate([jnp.zeros_like(eta[..., :1]), eta], axis=-1)
        return 1 + jax.random.categorical(key, known, axis=-1).astype(eta.dtype)

    def probabilities(self, eta: np.ndarray) -> np.ndarray:
        """(..., J): those of the categories."""
        known = np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1)
        shares = np.exp(known - known.max(axis=-1, keepdims=True))
        return shares / shares.sum(axis=-1, keepdims=True)

    def cdf(self, y, eta, own, size):
        raise ValueError(
            "categories without an order have no distribution function, and so no residuals: "
            "compare result.probabilities() with the shares of the categories."
        )
