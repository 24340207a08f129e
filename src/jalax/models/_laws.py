r"""The distribution of the random effects of one block, which a mixed model asks a `Law` about.

b has a row a level and a column an effect. White latents are x with b = Lambda x, where neither
a standard deviation of zero nor a correlation of one is singular.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._correlations import Correlation, Known, Nil, divided
from ._gaussian import LOG_2PI
from ._random_effects import draw_effects, effects, log_prior, whitened

Own = dict[str, Any]  # the numbers of theta that a block has, by the part of theta they are in
SD, COR, RANGE, TAILS = "sd", "cor", "range", "tails"
PARTS = (SD, COR, RANGE, TAILS)


def own_of(theta: Mapping[str, Any], name: str) -> Own:
    """Those of the block of that name."""
    return {part: theta[part][name] for part in PARTS if name in theta.get(part, {})}


def with_own(theta: Mapping[str, Any], owns: Mapping[str, Own]) -> dict[str, Any]:
    """theta with these numbers of the blocks."""
    parts: dict[str, Any] = {}
    for name, own in owns.items():
        for part, value in own.items():
            parts.setdefault(part, {})[name] = value
    return dict(theta) | parts


@dataclasses.dataclass(frozen=True)
class Law:
    """Normal effects, correlated within a level; the levels are independent.

    `own` are the block's numbers of theta, as the user sees them, and `known` is what the data
    have for the block. `constants` are what a correlation within a level knows besides theta.
    """

    size: int  # effects of a level
    correlation: Correlation
    shared: bool = False  # one standard deviation for all effects
    constants: tuple[tuple[str, tuple], ...] = ()

    is_joint: ClassVar[bool] = False  # do the levels depend on each other?
    is_normal: ClassVar[bool] = True
    word: ClassVar[str] = "sd"

    # --- theta ----------------------------------------------------------------------------------

    def words(self, effects: tuple[str, ...], over: str) -> dict[str, tuple[str, ...]]:
        """What its numbers are called, by the part of theta, without the block."""
        spread = (over or effects[0],) if self.shared else effects
        words = self.correlation.words(effects, over)
        return {SD: tuple(f"{self.word} {one}" for one in spread), self.correlation.part: words}

    def first(self, sd: np.ndarray, known: Known) -> Own:
        """Where a fit starts; `sd` is one of each effect."""
        sd = np.sqrt(np.mean(sd**2, keepdims=True)) if self.shared else sd
        numbers = self.correlation.first(self._known(known))
        return {SD: sd, COR: np.zeros(0), self.correlation.part: numbers}

    def constrain(self, own: Own) -> Own:
        """From what the optimiser sees."""
        part, inside = self.correlation.part, self.correlation.constrain
        return own | {SD: jnp.exp(own[SD]), part: inside(own[part], self.size)}

    def unconstrain(self, own: Own) -> Own:
        part, outside = self.correlation.part, self.correlation.unconstrain
        return own | {SD: jnp.log(own[SD]), part: outside(own[part], self.size)}

    # --- compiled -------------------------------------------------------------------------------

    def log_prior(self, own: Own, b: Float[Array, "L q"], known: Known) -> Array:
        """log p(b) of all levels."""
        known, value = self._known(known), self._value(own)
        white = self.correlation.flat(value, b / own[SD], known)
        log_sd = jnp.sum(jnp.broadcast_to(jnp.log(own[SD]), (self.size,)))
        log_root = log_sd + self.correlation.log_root(value, self.size, known)
        return self.log_white(own, white, known) - b.shape[0] * log_root

    def log_white(self, own: Own, x: Float[Array, "L q"], known: Known) -> Array:
        """log p of the white latents."""
        return -0.5 * (jnp.sum(x**2) + x.size * LOG_2PI)

    def effects(self, own: Own, x: Float[Array, "L q"], known: Known) -> Float[Array, "L q"]:
        """b from white latents."""
        return own[SD] * self.correlation.spread(self._value(own), x, self._known(known))

    def whitened(self, own: Own, b: Float[Array, "L q"], known: Known) -> Float[Array, "L q"]:
        """The inverse of `effects`; nothing where the covariance has nothing."""
        return self.correlation.flat(self._value(own), divided(b, own[SD]), self._known(known))

    def draw(self, key: Any, own: Own, levels: int, known: Known) -> Float[Array, "L q"]:
        white = jax.random.normal(key, (levels, self.size), own[SD].dtype)
        return self.effects(own, white, known)

    # --- tables ---------------------------------------------------------------------------------

    def covariance(self, own: Own, known: Known) -> np.ndarray:
        """Of the effects of a level or, where these depend on each other, of all levels."""
        sd = np.broadcast_to(np.asarray(own[SD], float), (self.size,))
        known, value = self._known(known), np.asarray(self._value(own), float)
        return self.correlation.matrix(value, self.size, known) * np.outer(sd, sd)

    def variances(self, own: Own, known: Known, levels: int) -> np.ndarray:
        """(levels, q)."""
        return np.broadcast_to(np.diagonal(self.covariance(own, known)), (levels, self.size))

    def of_new_level(self, own: Own, known: Known, name: str) -> np.ndarray:
        """Sigma of a level about which nothing else is known."""
        return self.covariance(own, known)

    def holds(self, other: Law) -> bool:
        """Whether `other`, a law of the same effects, is this one with some numbers held."""
        apart = self.correlation == Nil() and other.size == 1
        return self == other or (apart and other.is_normal and not other.is_joint)

    @property
    def has_tails(self) -> bool:
        """Whether it has a number that means nothing where the standard deviations are zero."""
        return False

    def _value(self, own: Own) -> Any:
        return own[self.correlation.part]

    def _known(self, known: Known) -> Known:
        return {name: np.array(value) for name, value in self.constants}


@dataclasses.dataclass(frozen=True)
class Unstructured(Law):
    """The usual one, by formulas that are written out for a few effects."""

    def log_prior(self, own, b, known):
        return log_prior(own[SD], own[COR], b)

    def effects(self, own, x, known):
        return effects(own[SD], own[COR], x)

    def whitened(self, own, b, known):
        return whitened(own[SD], own[COR], b)

    def draw(self, key, own, levels, known):
        return draw_effects(key, own[SD], own[COR], levels)

    def holds(self, other):
        return other.is_normal and not other.is_joint


@dataclasses.dataclass(frozen=True)
class Joint(Law):
    """One effect a level, and the levels depend on each other.

    Its white latents are b / sd, which are still correlated: b is then a multiple of x, so that
    the same pairs of latents meet in a row of the data.
    """

    is_joint: ClassVar = True

    def log_prior(self, own, b, known):
        return self.log_white(own, b / own[SD], known) - b.shape[0] * jnp.log(own[SD][0])

    def log_white(self, own, x, known):
        return self.correlation.log_density(self._value(own), x[:, 0], known)

    def effects(self, own, x, known):
        return own[SD] * x

    def whitened(self, own, b, known):
        return divided(b, own[SD])

    def draw(self, key, own, levels, known):
        white = jax.random.normal(key, (levels,), own[SD].dtype)
        return own[SD] * self.correlation.spread(self._value(own), white, known)[:, None]

    def covariance(self, own, known):
        value = np.asarray(self._value(own), float)
        return self.correlation.matrix(value, 0, known) * float(own[SD][0]) ** 2

    def variances(self, own, known, levels):
        return np.diagonal(self.covariance(own, known))[:, None]

    def of_new_level(self, own, known, name):
        variances = np.diagonal(self.covariance(own, known))
        if np.ptp(variances) > 1e-6 * variances.max():
            raise ValueError(
                f"the levels of {name!r} differ in variance, by the matrix of "
                "jalax.covariances.Known, so that there is no average over them: use "
                "effects=jalax.predictions.Conditional() or Population()."
            )
        return variances[:1, None]

    def _known(self, known):
        return known


@dataclasses.dataclass(frozen=True)
class HeavyTailed(Law):
    r"""Student's distribution of the effects of a level: $b = \Lambda z / \sqrt{w}$, z normal and
    $w \sim \chi^2_{df} / df$. What stands for standard deviations are scales.

    White latents are bent, too: with $r = |x| / \sqrt{df}$ and $\Lambda^{-1} b = x \sinh(r) / r$
    the density of x falls exponentially. Points and particles can follow it where the data say
    little about a level, which they cannot in Student's tails.
    """

    df: float | None = None  # None: a number of theta

    is_normal: ClassVar = False
    word: ClassVar = "scale"

    def words(self, effects, over):
        known = super().words(effects, over)
        return known if self.df is not None else known | {TAILS: ("df",)}

    def first(self, sd, known):
        own = super().first(sd, known)
        return own if self.df is not None else own | {TAILS: np.full(1, FIRST_DF)}

    def constrain(self, own):
        found = super().constrain(own)
        return found if self.df is not None else found | {TAILS: jnp.exp(own[TAILS])}

    def unconstrain(self, own):
        found = super().unconstrain(own)
        return found if self.df is not None else found | {TAILS: jnp.log(own[TAILS])}

    def log_prior(self, own, b, known):
        df, value = self._df(own, b.dtype), self._value(own)
        square = jnp.sum(self.correlation.flat(value, b / own[SD], known) ** 2, axis=1)
        log_root = jnp.sum(jnp.log(own[SD])) + self.correlation.log_root(value, self.size, known)
        tails = 0.5 * (df + self.size) * jnp.log1p(square / df)
        return jnp.sum(self._constant(df) - tails - log_root)

    def log_white(self, own, x, known):
        # Student's density there, times the derivative of the bend.
        df = self._df(own, x.dtype)
        log_bend, log_cosh = bends(jnp.sum(x**2, axis=1) / df)
        slope = log_cosh + (self.size - 1) * log_bend
        return jnp.sum(self._constant(df) - (df + self.size) * log_cosh + slope)

    def effects(self, own, x, known):
        far = jnp.sum(x**2, axis=1, keepdims=True) / self._df(own, x.dtype)
        log_bend, _ = bends(jnp.minimum(far, MOST_BEND))
        return super().effects(own, x * jnp.exp(log_bend), known)

    def whitened(self, own, b, known):
        straight = super().whitened(own, b, known)
        df = self._df(own, b.dtype)
        far = jnp.sqrt(jnp.sum(straight**2, axis=1, keepdims=True) / df)
        return straight * jnp.where(far > 0, divided(jnp.arcsinh(far), far), 1.0)

    def draw(self, key, own, levels, known):
        key_z, key_w = jax.random.split(key)
        df = self._df(own, own[SD].dtype)
        w = jax.random.gamma(key_w, df / 2, (levels, 1), own[SD].dtype) / (df / 2)
        z = jax.random.normal(key_z, (levels, self.size), own[SD].dtype) / jnp.sqrt(w)
        return super().effects(own, z, known)

    def variances(self, own, known, levels):
        df = float(self._df(own, float))
        factor = df / (df - 2) if df > 2 else np.inf
        return super().variances(own, known, levels) * factor

    def of_new_level(self, own, known, name):
        raise ValueError(
            f"an average over all levels is for normal random effects, and those of {name!r} are "
            "Student's: use effects=jalax.predictions.Conditional() or Population()."
        )

    @property
    def has_tails(self):
        return self.df is None

    def _constant(self, df: Array) -> Array:
        """Of Student's density, the logarithm."""
        return half_steps(df / 2, self.size) - 0.5 * self.size * jnp.log(df * np.pi)

    def _df(self, own, dtype):
        return jnp.asarray(own[TAILS][0] if self.df is None else self.df, dtype)


def bends(s: Array) -> tuple[Array, Array]:
    """log sinh(r) / r and log cosh(r) at r^2 = s: smooth at zero, and finite far out."""
    small = s < 0.1
    r = jnp.sqrt(jnp.where(small, 1.0, s))
    sinh = s / 6 - s**2 / 180 + s**3 / 2835 - s**4 / 37800 + s**5 / 467775
    cosh = s / 2 - s**2 / 12 + s**3 / 45 - 17 * s**4 / 2520 + 31 * s**5 / 14175
    less = jnp.exp(-2 * r)
    log_sinh, log_cosh = (r + jnp.log((1 + sign * less) / 2) for sign in (-1, 1))
    return jnp.where(small, sinh, log_sinh - jnp.log(r)), jnp.where(small, cosh, log_cosh)


FIRST_DF = 5.0
MOST_BEND = 900.0  # beyond, where there is nothing, float32 would overflow
SHIFT = 8  # from here on the series of `_half_step` has 11 digits


def half_steps(a: Array, num: int) -> Array:
    """log Gamma(a + num / 2) - log Gamma(a): gammaln would leave float32 few digits of it."""
    if num % 2 == 0:
        return sum((jnp.log(a + k) for k in range(num // 2)), jnp.zeros_like(a))
    return _half_step(a) + sum(jnp.log(a + 0.5 + k) for k in range(num // 2))


def _half_step(a: Array) -> Array:
    """log Gamma(a + 1/2) - log Gamma(a)."""
    far = a + SHIFT
    series = -1 / (8 * far) + 1 / (192 * far**3) - 1 / (640 * far**5) + 17 / (14336 * far**7)
    before = sum(jnp.log1p(0.5 / (a + k)) for k in range(SHIFT))
    return 0.5 * jnp.log(far) + series - before
