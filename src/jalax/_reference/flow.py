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
posterior wholly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jalax._particles import trees
from jalax._reference import points

MOST_NUMBERS = 5_000  # of a flow: beyond, each point would cost more by it than by log p


class Flow(NamedTuple):
    """J of one group. All zeros, it changes nothing."""

    mode: Float[Array, " D"]
    shift: Float[Array, "P D"]  # a
    turn: Float[Array, "P D D"]  # B

    def moved(self, x: Float[Array, "N D"], by: Float[Array, " P"]) -> Float[Array, "N D"]:
        """x + J(x) times a change of theta."""
        turn = jnp.einsum("p,pde->de", by, self.turn)
        return x + by @ self.shift + (x - self.mode) @ turn.T

    def steadied(
        self, scores: Float[Array, "N P"], x: Float[Array, "N D"], slopes: Float[Array, "N D"]
    ) -> Float[Array, "N P"]:
        """s^J from s and the x-gradients of log p."""
        turned = jnp.einsum("nd,pde,ne->np", slopes, self.turn, x - self.mode)
        return scores + slopes @ self.shift.T + turned + jnp.einsum("pdd->p", self.turn)


def is_worth_it(latents: int, parameters: int) -> bool:
    """Up to three latents a lattice has little noise that could be taken out."""
    return latents > points.LATTICE_UP_TO and parameters * latents**2 <= MOST_NUMBERS


def flow_of(
    density: Callable,
    theta: Float[Array, " P"],
    mode: Float[Array, " D"],
    root: Float[Array, "D D"],
    wanted: Bool[Array, ""] | bool,
) -> Flow:
    """Of log p = density(theta, x) around its mode, with R R^T = P; zeros if it is not wanted."""
    gradient = jax.grad(density, argnums=1)

    def found(_: Flow) -> Flow:
        covariance = root @ root.T
        shift = covariance @ jax.jacfwd(gradient)(theta, mode)

        def curvature(by):
            return jax.jacfwd(gradient, argnums=1)(theta + by, mode + shift @ by)

        bend = jax.jacfwd(curvature)(jnp.zeros_like(theta))
        turn = jnp.einsum("de,efp->pdf", covariance, bend) / 2
        fine = jnp.all(jnp.isfinite(shift)) & jnp.all(jnp.isfinite(turn))
        return Flow(mode, jnp.where(fine, shift.T, 0.0), jnp.where(fine, turn, 0.0))

    shift = jnp.zeros((theta.size, mode.size), mode.dtype) + 0 * mode
    none = Flow(mode, shift, shift[:, :, None] + 0 * mode)
    return trees.run_if(jnp.asarray(wanted), found, none)
