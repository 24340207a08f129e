r"""How the points of a group would move with theta to stay on its posterior.

$J_p(x) = a_p + B_p (x - m)$ for each number p of theta: $a_p$ is the derivative of the mode m, and
$B_p = \frac12 P \, d_p \nabla^2_x \log p$ with P the covariance of Laplace's Gaussian, so that the
Gaussian with that mode and curvature moves along. For any field $J_p$, under the posterior,

$$E[\nabla_x \log p \cdot J_p + \nabla \cdot J_p] = 0, \qquad
  E[\nabla_x f \cdot J_p + (f - E f)(\nabla_x \log p \cdot J_p + \nabla \cdot J_p)] = 0$$

(Stein). Added to the score s and, with f = s, to Louis' information, this leaves
$$E[s] = E[s^J], \qquad I = E[-(\nabla_\theta + J \cdot \nabla_x) s] - \mathrm{Cov}[s, s^J], \qquad
  s^J = s + \nabla_x \log p \cdot J + \nabla \cdot J,$$

where $s^J$ is nearly a constant, and a covariance with it nearly free of noise: of a Gaussian
posterior wholly. What is averaged alone, without a covariance, has weights for which all linear and
quadratic fields keep Stein's identity exactly (`calibrated`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jalax._reference import points

MOST_NUMBERS = 5_000  # of a flow: beyond, each point would cost more by it than by log p
ROUNDS = 12  # of conjugate gradients


class Flow(NamedTuple):
    """J of one group."""

    mode: Float[Array, " D"]
    root: Float[Array, "D D"]  # R, with R R^T = P
    shift: Float[Array, "P D"]  # a
    turn: Float[Array, "P D D"]  # B
    informs: Bool[Array, ""]  # the information is taken along it, too, and not only the score

    def moved(self, x: Float[Array, "N D"], by: Float[Array, " P"]) -> Float[Array, "N D"]:
        """x + J(x) times a change of theta."""
        by = jnp.where(self.informs, by, 0.0)
        turn = jnp.einsum("p,pde->de", by, self.turn)
        return x + by @ self.shift + (x - self.mode) @ turn.T

    def steadied(
        self, scores: Float[Array, "N P"], x: Float[Array, "N D"], slopes: Float[Array, "N D"]
    ) -> Float[Array, "N P"]:
        """s^J from s and the x-gradients of log p."""
        size = self.mode.size
        pairs = (slopes[:, :, None] * (x - self.mode)[:, None, :]).reshape(-1, size * size)
        turned = pairs @ self.turn.reshape(-1, size * size).T
        return scores + slopes @ self.shift.T + turned + jnp.einsum("pdd->p", self.turn)

    def calibrated(
        self,
        weights: Float[Array, " N"],
        z: Float[Array, "N D"],
        slopes: Float[Array, "N D"],
        wanted: Bool[Array, ""] | bool,
    ) -> Float[Array, " N"]:
        """Weights near the given ones, at x = m + R z, for which Stein's identity is exact.

        Averages with them are those of a regression on its terms, whose mean is zero. Each half of
        the points has the coefficients of the other: its own would go with its noise.
        """
        terms = _stein_terms(z, slopes @ self.root)
        terms = terms.reshape(2, -1, terms.shape[1])
        if 4 * terms.shape[2] > terms.shape[1]:  # the regression would have a noise of its own
            return weights
        halves = weights.reshape(2, -1)
        total = jnp.sum(halves, axis=1, keepdims=True)
        shares = halves / jnp.where(total > 0, total, 1.0)  # what is not visited has no weight
        means = jnp.einsum("hn,hnk->hk", shares, terms)
        centred = terms - means[:, None]

        def covariance(v):
            return jnp.einsum("hn,hnk->hk", shares * jnp.einsum("hnk,hk->hn", centred, v), centred)

        # Those of a Gaussian are not correlated: few rounds will do, and of zeros none.
        other = jnp.where(self.informs & wanted, means[::-1], 0.0)
        v, _ = jax.scipy.sparse.linalg.cg(covariance, other, maxiter=ROUNDS)
        return (halves * (1 - jnp.einsum("hnk,hk->hn", centred, v))).reshape(-1)


def _stein_terms(z: Float[Array, "N D"], slopes: Float[Array, "N D"]) -> Float[Array, "N K"]:
    r"""$\nabla \log p \cdot J + \nabla \cdot J$ of all constant and linear fields J of z."""
    squares = z[:, :, None] * slopes[:, None, :] + jnp.eye(z.shape[1], dtype=z.dtype)
    pairs = squares[:, *np.triu_indices(z.shape[1])]
    return jnp.concatenate([slopes, pairs], axis=1)


def is_worth_it(latents: int, parameters: int) -> bool:
    """Up to three latents a lattice has little noise that could be taken out."""
    return latents > points.LATTICE_UP_TO and parameters * latents**2 <= MOST_NUMBERS


def flow_of(
    density: Callable,
    theta: Float[Array, " P"],
    mode: Float[Array, " D"],
    root: Float[Array, "D D"],
    informs: Bool[Array, ""] | bool,
) -> Flow:
    """Of log p = density(theta, x) around its mode, with R R^T = P."""
    gradient = jax.grad(density, argnums=1)
    covariance = root @ root.T
    shift = covariance @ jax.jacfwd(gradient)(theta, mode)

    def curvature(by):
        return jax.jacfwd(gradient, argnums=1)(theta + by, mode + shift @ by)

    bend = jax.jacfwd(curvature)(jnp.zeros_like(theta))
    turn = jnp.einsum("de,efp->pdf", covariance, bend) / 2
    fine = jnp.all(jnp.isfinite(shift)) & jnp.all(jnp.isfinite(turn))
    shift, turn = jnp.where(fine, shift.T, 0.0), jnp.where(fine, turn, 0.0)
    return Flow(mode, root, shift, turn, fine & informs)
