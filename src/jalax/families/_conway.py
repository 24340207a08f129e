"""Counts that vary less than Poisson's, or more: the law of Conway and Maxwell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _conway_curve, _conway_law, _conway_tables
from ._family import Family
from ._links import LOG, Link, Log
from ._parameters import Above
from ._peaks import remainder

# Of the scale. Below, log p has steps in eta at small means, finer than the knots of the curves.
LEAST = 0.1


@dataclasses.dataclass(frozen=True, repr=False)
class ConwayMaxwellPoisson(Family):
    r"""Counts with $p(y) \propto (m^y / y!)^{1 / \phi}$ and mean $\mu = e^\eta$; `scale` is $\phi$.

    glmmTMB's `compois`. The variance is about $\mu \phi$: with $\phi < 1$ counts vary less than
    Poisson's. m follows from the mean. $\phi$ is above 0.1: counts with a variance below a tenth of
    their mean are nearly all the same.

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
        return {"scale": Above(LEAST, 1.0)}

    def constants(self, y, size, xp):
        return {"remainder": remainder(y, xp)}

    def log_density(self, own, eta, data):
        y, remainder_of_y, nu = data["y"], data["remainder"], 1 / jnp.asarray(own["scale"])
        if nu.ndim == 0:
            return _conway_curve.log_p(y, remainder_of_y, eta, nu)
        return _conway_law.log_p(y, remainder_of_y, *_law(own, eta))

    def draw(self, key, own, eta, data):
        return _conway_law.draw(key, *_law(own, eta))

    def variance(self, mean, own, size):
        return _conway_tables.variance(mean, own["scale"])

    def cdf(self, y, eta, own, size):
        return _conway_tables.cdf(np.floor(y), eta, own["scale"])


def _law(own, eta: Array) -> tuple[Array, Array]:
    nu = jnp.broadcast_to(1 / jnp.asarray(own["scale"], eta.dtype), eta.shape)
    return _conway_law.location(eta, nu), nu
