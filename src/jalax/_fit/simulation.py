"""New data from a fitted model, and fits to them: the parametric bootstrap."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jalax._evidence.record import FitRecord, is_unsure
from jalax._fit import refitting
from jalax._fit.fit_axes import white_axes
from jalax._model import checks
from jalax._model.model import Model
from jalax._model.types import ARRIVED, Status
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import jit
from jalax._runtime.function_keys import Static

if TYPE_CHECKING:
    from jalax._export.tables import Summary

AT_ONCE = 64  # fits in a block
FEW = 24  # steps; from a theta that is near most need 10 to 16
ENOUGH_POINTS = 256  # of a group: one data set differs from the next by more than their error


def model_of(result: FitRecord, what: str) -> Model:
    if result.origin is None:
        raise ValueError(
            f"{what} needs the model, and this result was read from a file, which does not hold "
            "it: ask the fit itself."
        )
    return result.origin.model


def simulate(result: FitRecord, key: Any, num: int) -> Tree:
    """`FitResult.simulate`."""
    model, num = _can_simulate(result), arguments.check_count("num", num)
    arguments.check_key(key)
    new = new_leaves(key, model, result.theta, num)
    leaves, treedef = jax.tree.flatten(model.data)
    repeated = (
        jnp.broadcast_to(leaf, (num, *leaf.shape)) if drawn is None else drawn
        for leaf, drawn in zip(leaves, new, strict=True)
    )
    return treedef.unflatten(repeated)


def _can_simulate(result: FitRecord) -> Model:
    model = model_of(result, "simulate")
    if model.outside.simulate is None:
        raise ValueError(
            "this model cannot simulate: give it a function that draws new data, "
            "jalax.Model(..., simulate=simulate) with simulate(key, theta, x, data). Models from "
            "formulas and from NumPyro have one."
        )
    return model


def new_leaves(key: Any, model: Model, theta: Tree, num: int) -> list[Any]:
    """For each leaf of the data `num` new ones, with new latents; None where it stays as it is."""
    stays = _unchanged(model, theta)
    drawn = iter(_drawn(key, model, theta, num, tuple(stays), model.outside.simulate))
    return [None if same else next(drawn) for same in stays]


def _unchanged(model: Model, theta: Tree) -> list[bool]:
    """Which leaves of the data `simulate` hands back untouched; they need no copies."""
    data = trees.shapes(model.data, 1) if model.grouped else model.data
    function: Any = model.outside.simulate
    found: list[bool] = []

    def look(key, theta, x, data):
        new = function(key, theta, x, data)
        if jax.tree.structure(new) != jax.tree.structure(data):
            raise ValueError(
                f"simulate must return data like the model's, {trees.describe(data)}, got "
                f"{trees.describe(new)}."
            )
        for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(data), strict=True):
            if jnp.shape(a) != jnp.shape(b):
                raise ValueError(
                    f"simulate must return data like the model's: got {trees.describe(a)} for "
                    f"{trees.describe(b)}."
                )
            found.append(a is b)
        return new

    given = {"key": jax.random.key(0), "theta": theta, "x": None, "data": data}
    checks.traced("simulate", look, given)
    if all(found):
        raise ValueError("simulate returned the data that it was given: nothing is new in them.")
    return found


@jit(static_argnames=("num", "stays", "function"))
def _drawn(
    key, model: Model, theta: Tree, num: int, stays: tuple[bool, ...], function: Static
) -> list[Any]:
    def of_group(key, data):
        new = jax.tree.leaves(function(key, theta, None, data))
        like = jax.tree.leaves(data)
        triples = zip(new, like, stays, strict=True)
        return [jnp.asarray(a, b.dtype) for a, b, same in triples if not same]

    def one(key):
        if not model.grouped:
            return of_group(key, model.data)
        return jax.vmap(of_group)(jax.random.split(key, model.num_groups), model.data)

    return jax.lax.map(one, jax.random.split(key, num), batch_size=min(num, 64))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bootstrap:
    """Fits to data simulated from a fit: `FitResult.bootstrap`.

    Attributes:
        names: of the numbers of theta.
        estimate: (P,): those of the fit itself.
        theta: (num, P): those of the fits to simulated data, on the user's scale.
        log_evidence: (num,): log p at each of them; NaN where there is none.
        status: (num,): how each fit ended.
    """

    names: tuple[str, ...]
    estimate: np.ndarray
    theta: np.ndarray
    log_evidence: np.ndarray
    status: tuple[Status, ...]

    @property
    def usable(self) -> np.ndarray:
        """Which fits have arrived: converged, or at a boundary."""
        good = [status in ARRIVED for status in self.status]
        return np.array(good, bool)

    def standard_errors(self) -> np.ndarray:
        """(P,): the spread of the estimates."""
        return self.theta[self.usable].std(axis=0, ddof=1)

    def bias(self) -> np.ndarray:
        """(P,): the mean of the estimates less the one they were simulated from."""
        return self.theta[self.usable].mean(axis=0) - self.estimate

    def confidence_intervals(self, level: float = 0.95) -> np.ndarray:
        """(P, 2): percentile intervals."""
        level = arguments.check_fraction("level", level)
        ends = np.quantile(self.theta[self.usable], [0.5 - level / 2, 0.5 + level / 2], axis=0)
        return ends.T

    def summary(self) -> Summary:
        """A table: a string, shown as HTML in a notebook."""
        from jalax._export.after_fit import bootstrap_summary

        return bootstrap_summary(self)

    def __repr__(self) -> str:
        return self.summary()

    def to_frame(self) -> Any:
        """A pandas DataFrame of theta, one row a simulated data set."""
        from jalax._export.tables import require_pandas

        return require_pandas().DataFrame(self.theta, columns=list(self.names))


def bootstrap(result: FitRecord, key: Any, num: int) -> Bootstrap:
    """`FitResult.bootstrap`."""
    model, num = _can_simulate(result), arguments.check_count("num", num, 2)
    arguments.check_key(key)
    key_data, key_fits = jax.random.split(key)
    new = new_leaves(key_data, model, result.theta, num)
    fits = fit_to(result, model, new, result.theta, key_fits)
    numbers = [trees.numbers_of(fit.theta) for fit in fits]
    evidences = [fit.known_evidence for fit in fits]
    return Bootstrap(
        names=result.names,
        estimate=trees.numbers_of(result.theta),
        theta=np.stack(numbers),
        log_evidence=np.array([np.nan if e is None else e.value for e in evidences]),
        status=tuple(fit.status for fit in fits),
    )


def fit_to(result: FitRecord, model: Model, new: list[Any], theta: Tree, key: Any) -> list[Any]:
    """The model of a fit, fitted from theta to each of the new data sets.

    Leaves that are None are those of the model's own data. Fits are made in blocks, all by one
    program. A block takes as many steps as its slowest fit: those that are not done after `FEW`
    are left out, and begin again together. So do those that came to a boundary, with white
    latents, where the model can have them.
    """
    leaves, treedef = jax.tree.flatten(model.data)
    num = next(len(drawn) for drawn in new if drawn is not None)
    keys, axes = jax.random.split(key, num), [None if drawn is None else 0 for drawn in new]
    own_axes, many = treedef.unflatten(axes), refitting.many_like(result)
    can_be_white = model.whitened() is not None

    def of_these(which: np.ndarray, white: bool = False, **options: Any) -> list[Any]:
        index = np.resize(which, min(num, AT_ONCE))  # some twice, where the block is not full
        pairs = zip(leaves, new, strict=True)
        data = [leaf if drawn is None else drawn[index] for leaf, drawn in pairs]
        mine, axes = model.replace(data=treedef.unflatten(data)), own_axes
        other = mine.whitened() if white else None
        if other is not None:
            mine, axes = other, white_axes(mine, axes)
        fits = many(mine, theta, key=keys[index], axes={"data": axes}, **options)
        return list(fits)[: which.size]

    def in_blocks(which: np.ndarray, **options: Any) -> list[Any]:
        blocks = (which[k : k + AT_ONCE] for k in range(0, which.size, AT_ONCE))
        return [fit for block in blocks for fit in of_these(block, **options)]

    with warnings.catch_warnings():  # of single fits among hundreds; their statuses are kept
        warnings.simplefilter("ignore")
        if not result.origin.algorithm.finds_its_particles:  # a path takes hundreds of steps
            return in_blocks(np.arange(num))
        points = min(result.log_weights.shape[-1], ENOUGH_POINTS)
        if model.outside.within is not None:  # the result has more, see `Outside.within`
            points = min(points, result.origin.algorithm.default_particles(model))
        fits = in_blocks(np.arange(num), num_steps=FEW, num_particles=points)
        at_end = [fit.status == Status.MAX_STEPS for fit in fits]
        slow = np.flatnonzero([is_unsure(fit) for fit in fits] if can_be_white else at_end)
        again = in_blocks(slow, white=can_be_white, num_particles=points)
        for k, fit in zip(slow, again, strict=True):
            fits[k] = fit
    return fits
