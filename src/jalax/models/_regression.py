"""Linear regression with latent weights: Gaussian or Student-t errors (paper 5.2 and 5.3)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jalax._model.model import Model

from . import _checks
from ._gaussian import LOG_2PI, Gaussian, isotropic_log_density

LOG_NU_BOX = (float(np.log(0.2)), float(np.log(5.0)))  # nu in [0.2, 5], as in the paper


def _residual(w: Float[Array, " d"], data: dict[str, Array]) -> Float[Array, " n"]:
    # In full precision: a GPU may otherwise round the factors of a product to TF32, and errors
    # of 1e-3 in a residual are visible in log-weights. With w first, the rows are the last axis of
    # the product over all particles and fits: XLA's CPU sums over the last axis 4 times faster.
    return data["y"] - jnp.matmul(w, data["X"].T, precision="highest")


def _gaussian_log_joint(
    theta: Float[Array, " 2"], w: Float[Array, " d"], data: dict[str, Array]
) -> Float[Array, ""]:
    log_variance, log_precision = theta
    log_likelihood = isotropic_log_density(_residual(w, data), log_variance)
    return log_likelihood + isotropic_log_density(w, -log_precision)


def _gaussian_log_predictive(
    theta: Float[Array, " 2"], w: Float[Array, " d"], data: dict[str, Array]
) -> Float[Array, " n"]:
    log_variance, _ = theta
    return -0.5 * (LOG_2PI + log_variance + _residual(w, data) ** 2 * jnp.exp(-log_variance))


def _student_t_log_predictive(
    theta: Float[Array, " 3"], w: Float[Array, " d"], data: dict[str, Array]
) -> Float[Array, " n"]:
    log_variance, _, log_nu = theta
    scaled = _residual(w, data) * jnp.exp(-0.5 * log_variance)
    return jax.scipy.stats.t.logpdf(scaled, jnp.exp(log_nu)) - 0.5 * log_variance


def _student_t_log_joint(
    theta: Float[Array, " 3"], w: Float[Array, " d"], data: dict[str, Array]
) -> Float[Array, ""]:
    log_variance, log_precision, log_nu = theta
    nu = jnp.exp(log_nu)
    scaled = _residual(w, data) * jnp.exp(-0.5 * (log_variance + log_nu))
    # Gamma((nu+1)/2) / (Gamma(nu/2) sqrt(pi)) = 1 / B(1/2, nu/2); the beta function keeps its
    # digits for large nu, where the difference of two log-gammas loses them.
    constant = -betaln(jnp.full_like(nu, 0.5), nu / 2) - 0.5 * (log_variance + log_nu)
    tails = -0.5 * (nu + 1) * jnp.sum(jnp.log1p(scaled**2))
    return scaled.shape[0] * constant + tails + isotropic_log_density(w, -log_precision)


class GaussianRegression(Model):
    """A `Model` with `exact_log_evidence` and `exact_posterior`; see `gaussian_regression`.

    Both work on the singular values s of X and not on a Cholesky factor of X'X, at the same
    order of cost, because X'X squares the condition number of X: for a polynomial of order 10
    (condition number of X'X: 2e9) in single precision, the log-determinant alone is then off by
    up to .004, and the whole evidence below by .0001.
    """

    log_predictive = staticmethod(_gaussian_log_predictive)

    def exact_log_evidence(self, theta: Float[Array, " 2"]) -> Float[Array, ""]:
        r"""$\log \mathcal{N}(y; 0, \sigma^2 I + \alpha^{-1} X X^\top)$, a sum without cancellation.

        On the left singular vectors of X the covariance is diagonal, $\sigma^2 + s_i^2 / \alpha$;
        on what is orthogonal to them it is $\sigma^2$.
        """
        log_variance, log_precision = theta
        U, s, _ = self._singular(full=False)
        y = self.data["y"]
        along = jnp.matmul(y, U, precision="highest")
        across = y - jnp.matmul(U, along, precision="highest")
        log_variances = jnp.logaddexp(log_variance, 2 * jnp.log(s) - log_precision)
        squares = jnp.sum((along * jnp.exp(-0.5 * log_variances)) ** 2)
        squares += jnp.sum((across * jnp.exp(-0.5 * log_variance)) ** 2)
        log_det = jnp.sum(log_variances) + (y.shape[0] - s.shape[0]) * log_variance
        return -0.5 * (y.shape[0] * LOG_2PI + log_det + squares)

    def exact_posterior(self, theta: Float[Array, " 2"]) -> Gaussian:
        r"""$p_\theta(w \mid y)$, with precision $\alpha I + X^\top X / \sigma^2$."""
        log_variance, log_precision = theta
        num_rows, num_columns = self.data["X"].shape
        # With fewer rows than columns the prior alone holds the other directions of w, and
        # they are needed too.
        U, s, Vt = self._singular(full=num_rows < num_columns)
        along = jnp.matmul(self.data["y"], U, precision="highest")
        shrunk = s * along / (s**2 + jnp.exp(log_variance + log_precision))
        mean = jnp.matmul(shrunk, Vt[: s.shape[0]], precision="highest")
        s = jnp.pad(s, (0, num_columns - s.shape[0]))
        precisions = jnp.exp(log_precision) + s**2 * jnp.exp(-log_variance)
        covariance = jnp.matmul(Vt.T / precisions, Vt, precision="highest")
        return Gaussian(mean, covariance)

    def _singular(self, *, full: bool) -> tuple[Array, Array, Array]:
        """The singular value decomposition of X; theta does not enter, so that neither a
        gradient in theta nor a vmap over it touches this."""
        U, s, Vt = jnp.linalg.svd(self.data["X"], full_matrices=full)
        return U, s, Vt


class StudentTRegression(Model):
    """A `Model` without exact answers; see `student_t_regression`."""

    log_predictive = staticmethod(_student_t_log_predictive)


def gaussian_regression(X: ArrayLike, y: ArrayLike) -> GaussianRegression:
    r"""Bayesian linear regression, $\theta = (\log \sigma^2, \log \alpha)$:

    $$w \sim \mathcal{N}(0, \alpha^{-1} I), \qquad y \mid w \sim \mathcal{N}(X w, \sigma^2 I).$$

    Args:
        X: the features, (n, d). No intercept is added.
        y: the n responses.

    Returns:
        A model whose theta is an array of length 2 (start value (1, 1), the paper's) and whose
        latent is w in R^d, with `exact_log_evidence(theta)` and `exact_posterior(theta)`.

    >>> import jax.numpy as jnp
    >>> from jalax import models
    >>> model = models.gaussian_regression([[1.0], [2.0]], [1.0, 3.0])
    >>> theta = jnp.zeros(2)
    >>> print(f"{model.exact_log_evidence(theta):.4f}")
    -3.6504
    >>> print(f"{model.exact_posterior(theta).mean[0]:.4f}")
    1.1667
    """
    return _gaussian(*_checks.design(X, y))


def polynomial_regression(x: ArrayLike, y: ArrayLike, order: int) -> GaussianRegression:
    r"""`gaussian_regression` on the features $(1, x, \ldots, x^p)$.

    Args:
        x: n numbers.
        y: the n responses.
        order: the order p of the polynomial, from 0 upwards.

    Returns:
        The same kind of model as `gaussian_regression`, with a latent of length p + 1.

    >>> from jalax import models
    >>> model = models.polynomial_regression([0.0, 1.0, 2.0], [1.0, 2.0, 5.0], order=2)
    >>> model.data["X"].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]
    """
    points = _checks.real_array("x", x, ndim=1, hint="Pass one number for each observation.")
    response = _checks.real_array("y", y, ndim=1, hint="Pass one number for each observation.")
    _checks.same_rows(x=points, y=response)
    order = _checks.whole_number("order", order, at_least=0)
    powers = (jnp.vander if _checks.is_traced(points) else np.vander)(points, order + 1, True)
    features = _checks.real_array(f"x to the power of {order}", powers, ndim=2)
    return _gaussian(features, response)


def student_t_regression(X: ArrayLike, y: ArrayLike) -> StudentTRegression:
    r"""Regression with heavy-tailed errors, $\theta = (\log \sigma^2, \log \alpha, \log \nu)$:

    $$w \sim \mathcal{N}(0, \alpha^{-1} I), \qquad
      y_i \mid w \sim \text{Student-t}(x_i^\top w, \sigma^2, \nu).$$

    The paper adds an exponential prior on nu to what it maximises. That prior acts on theta and
    not on w, so that it is no part of $p_\theta(y)$ and is left out here; the paper's box
    $\nu \in [0.2, 5]$ is the projection `student_t_box`.

    Args:
        X: the features, (n, d). No intercept is added.
        y: the n responses.

    Returns:
        A model whose theta is an array of length 3 (start value (1, 1, 1), inside the box) and
        whose latent is w in R^d.

    >>> import jax.numpy as jnp
    >>> from jalax import models
    >>> model = models.student_t_regression([[1.0], [2.0]], [1.0, 3.0])
    >>> log_p = model.log_joint(jnp.zeros(3), jnp.ones(1), model.data)
    >>> print(f"{log_p:.4f}")
    -4.4015
    """
    features, response = _checks.design(X, y)
    data = _checks.to_jax({"X": features, "y": response})
    latent = jnp.zeros(data["X"].shape[1])
    return StudentTRegression(_student_t_log_joint, latent=latent, data=data, theta=jnp.ones(3))


def student_t_box(theta: Float[Array, " 3"]) -> Float[Array, " 3"]:
    r"""The projection of `theta` onto the paper's box, $\log \nu \in [\log 0.2, \log 5]$.

    For the `project` argument of the algorithms, with `student_t_regression`.

    >>> import jax.numpy as jnp
    >>> from jalax import models
    >>> print(jnp.exp(models.student_t_box(jnp.array([0.0, 0.0, 9.0]))).round(3))
    [1. 1. 5.]
    """
    return theta.at[2].set(jnp.clip(theta[2], *LOG_NU_BOX))


def _gaussian(features: Any, response: Any) -> GaussianRegression:
    data = _checks.to_jax({"X": features, "y": response})
    latent = jnp.zeros(data["X"].shape[1])
    return GaussianRegression(_gaussian_log_joint, latent=latent, data=data, theta=jnp.ones(2))
