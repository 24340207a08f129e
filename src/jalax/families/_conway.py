"""Counts that vary less than Poisson's, or more: the law of Conway and Maxwell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _conway_law, _conway_tables
from ._family import Family
from ._links import LOG, Link, Log
from ._parameters import Positive
from ._peaks import remainder


@dataclasses.dataclass(frozen=True, repr=False)
class ConwayMaxwellPoisson(Family):
    r"""Counts with $p(y) \propto (m^y / y!)^{1 / \phi}$ and mean $\mu = e^\eta$; `scale` is $\phi$.

    glmmTMB's `compois`. The variance is about $\mu \phi$: with $\phi < 1$ counts vary less than
    Poisson's. m follows from the mean.

    >>> from jalax import families
    >>> families.ConwayMaxwellPoisson()
    ConwayMaxwellPoisson(link=Log())
    """

    name: ClassVar = "conwaymaxwellpoisson"
    links: ClassVar = (Log,)
    dispersion: ClassVar = "scale"

    link: Link = LOG

    @property
    def own(self):
        return {"scale": Positive()}

    def constants(self, y, size, xp):
        return {"remainder": remainder(y, xp)}

    def log_density(self, own, eta, data):
        return _conway_law.log_p(data["y"], data["remainder"], *_law(own, eta))

    def draw(self, key, own, eta, data):
        return _conway_law.draw(key, *_law(own, eta))

    def variance(self, mean, own, size):
        return _conway_tables.variance(mean, own["scale"])

    def cdf(self, y, eta, own, size):
        return _conway_tables.cdf(np.floor(y), eta, own["scale"])


def _law(own, eta: Array) -> tuple[Array, Array]:
    nu = jnp.broadcast_to(1 / jnp.asarray(own["scale"], eta.dtype), eta.shape)
    return _conway_law.location(eta, nu), nu
