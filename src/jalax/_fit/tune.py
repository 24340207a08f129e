"""Predictive scores, and step sizes chosen by them in cross-validation (paper, appendix C.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jalax._fit.callbacks import Callback, Run, Stop
from jalax._fit.choice import checked
from jalax._fit.fit_many import fit_many
from jalax._fit.result import FitResult
from jalax._model import checks
from jalax._model.algorithm import Algorithm
from jalax._model.model import GroupedModel, Model
from jalax._model.types import Start, Status
from jalax._particles import trees
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import Jit

LogPredictive = Callable[[Tree, Tree, Tree], Any]


def lppd(
    result: FitResult, data: Tree, *, log_predictive: LogPredictive | None = None
) -> Float[Array, ""]:
    r"""The log pointwise predictive density of held-out observations, their mean:

    $$\frac1n \sum_{j=1}^n \log \sum_i w^i\, p_\theta(y_j \mid X^i).$$

    Args:
        result: a fit; its particles and weights are used.
        data: the held-out observations, in the form of the model's own data.
        log_predictive: `log_predictive(theta, x, data)`, the log-density of each of n observations
            given ONE latent configuration x, the counterpart of `log_joint`; by default the
            model's own method of that name.

    >>> import jax, jalax
    >>> model = jalax.models.logistic_regression([[1.0], [-1.0], [2.0]], [1, 0, 0])
    >>> fit = jalax.fit(model, key=jax.random.key(0), algorithm=jalax.PGD(step_size=0.1),
    ...                 start=jalax.Laplace(), num_steps=50)
    >>> held_out = jalax.models.logistic_regression([[0.0]], [1]).data
    >>> round(float(jalax.lppd(fit, held_out)), 4)  # without features it is a fair coin
    -0.6931
    """
    if not isinstance(result, FitResult):
        raise TypeError(f"result must be a FitResult, got {type(result).__name__}.")
    model = None if result.origin is None else result.origin.model
    found = _log_predictive(model, log_predictive)
    if isinstance(model, GroupedModel):
        raise TypeError(_NO_GROUPS)
    _check_predictive(found, result.theta, trees.shapes(result.particles, 1), data)
    return _score(found, result.theta, result.particles, result.log_weights, data)


_NO_GROUPS = (
    "the latents of a grouped model belong to its own groups and say nothing about others: lppd "
    "and tune need a jalax.Model."
)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes:
        algorithm: the candidate with the highest mean score.
        best: its number.
        scores: the held-out lppd, (candidates, folds); -inf where a fit diverged.
        num_steps: the steps until each stopped, (candidates, folds).
    """

    algorithm: Algorithm
    best: int
    scores: Float[np.ndarray, "C F"]
    num_steps: np.ndarray


def tune(
    model: Model,
    theta: Tree = None,
    *,
    key: jax.Array | None = None,
    algorithm: Algorithm,
    sweep: Sequence[str] = ("step_size",),
    rows: Sequence[str],
    log_predictive: LogPredictive | None = None,
    num_folds: int = 3,
    start: Start | None = None,
    num_particles: int | None = None,
    num_steps: int = 500,
    every: int = 10,
    patience: int = 10,
    min_gain: float = 1e-5,
    progress: Callback | None = None,
) -> Tuning:
    """Choose step sizes (or any numbers of an algorithm) by cross-validated predictive density.

    All candidates on all folds run as one program (`fit_many`). A fit stops when its held-out
    lppd has not gained `min_gain` over `patience` looks, `every` steps apart; its score is the
    lppd then.

    Args:
        model: its data must be a dict.
        theta: the start value; by default the model's own.
        key: `jax.random.key(seed)`; it draws the folds too.
        algorithm: with arrays of candidates in the options named by `sweep`.
        sweep: the options that lead with the candidate axis, such as `("step_size", "optimizer")`.
        rows: the entries of the model's data that lead with the observation axis.
        log_predictive: as in `jalax.lppd`; by default the model's own.
        num_folds: in how many parts the observations are cut. Every part has the same size; up to
            num_folds - 1 observations are always trained on.
        start: as in `fit`.
        num_particles: as in `fit`.
        num_steps: at most.
        every: steps between two looks at the held-out score.
        patience: looks without a gain before a fit stops.
        min_gain: what counts as a gain.
        progress: as in `fit`.
    """
    arguments.check_key(key)
    assert key is not None
    if isinstance(model, GroupedModel):
        raise TypeError(_NO_GROUPS)
    model = checks.prepare_model(model)
    found = _log_predictive(model, log_predictive)
    num_rows = _num_rows(model, rows)
    num_folds = arguments.check_count("num_folds", num_folds, 2)
    every = arguments.check_count("every", every)
    patience = arguments.check_count("patience", patience)
    min_gain = arguments.check_number("min_gain", min_gain)
    if num_rows < num_folds:
        raise ValueError(f"{num_rows} observations cannot be cut into {num_folds} folds.")
    checked(algorithm)
    candidates = _candidates(algorithm, sweep)
    key_folds, key_fit = jax.random.split(key)
    train, held_out = _folds(key_folds, model.data, rows, num_rows, num_folds, candidates)
    start_value = model.theta if theta is None else theta
    if start_value is not None:
        _check_predictive(found, start_value, model.latent, trees.shapes(held_out, 1))

    early = _EarlyStopping(found, held_out, candidates * num_folds, every, patience, min_gain)
    fit_many(
        model.replace(data=train),
        theta,
        key=key_fit,
        algorithm=_each(algorithm, sweep, lambda leaf: np.repeat(leaf, num_folds, axis=0)),
        axes={"data": {name: 0 if name in rows else None for name in train}}
        | dict.fromkeys(sweep, 0),
        start=start,
        num_particles=num_particles,
        num_steps=num_steps,
        chunk_size=every,
        callbacks=[early],
        progress=progress,
    )
    scores = early.score.reshape(candidates, num_folds)
    if not np.isfinite(scores).all(axis=1).any():
        raise ValueError(
            "every candidate diverged on some fold: try smaller step sizes, or a start nearer to "
            "the posterior."
        )
    best = int(np.argmax(scores.mean(axis=1)))
    return Tuning(
        algorithm=_each(algorithm, sweep, lambda leaf: jnp.asarray(leaf)[best]),
        best=best,
        scores=scores,
        num_steps=early.stopped_at.reshape(candidates, num_folds),
    )


class _EarlyStopping(Callback):
    """Looks at the held-out lppd of every fit after each chunk; all have stopped: the end."""

    def __init__(self, log_predictive, held_out, count: int, every: int, patience: int, gain):
        self._every, self._patience, self._gain = every, patience, gain
        self._best, self._waited = np.full(count, -np.inf), np.zeros(count, int)
        self._stopped = np.zeros(count, bool)
        self.score, self.stopped_at = np.full(count, -np.inf), np.zeros(count, int)
        lanes = jax.vmap(lambda *lane: _score(log_predictive, *lane), in_axes=(0, 0, 0, 0))
        self._look = Jit(lambda *state: lanes(*state, held_out))

    def after_chunk(self, run: Run) -> Stop | None:
        particles = jax.tree.map(lambda leaf: leaf[:, 0], run.state.particles)  # one group
        score = np.asarray(self._look(run.theta, particles, run.state.log_weights[:, 0]))
        score = np.where(np.isnan(score) | run.diverged | (run.retries > 0), -np.inf, score)
        going = ~self._stopped
        self.score[going], self.stopped_at[going] = score[going], run.step
        gained = score >= self._best + self._gain
        self._best = np.maximum(self._best, score)
        self._waited = np.where(gained, 0, self._waited + 1)
        self._stopped |= (self._waited >= self._patience) | (score == -np.inf)
        return Stop(Status.STOPPED, "no fit gains any more") if self._stopped.all() else None


def _score(log_predictive, theta, particles, log_weights, data) -> Float[Array, ""]:
    log_p = jax.vmap(lambda x: log_predictive(theta, x, data))(particles)  # (N, n)
    log_w = log_weights - jax.nn.logsumexp(log_weights)
    alive = jnp.isfinite(log_w)[:, None]  # a particle of weight zero may hold anything
    return jnp.mean(jax.nn.logsumexp(jnp.where(alive, log_p + log_w[:, None], -jnp.inf), axis=0))


def _check_predictive(log_predictive: LogPredictive, theta: Tree, x: Tree, data: Tree) -> None:
    """One number for each observation."""
    given_to = {"theta": theta, "x": x, "data": data}
    out = checks.traced("log_predictive", log_predictive, given_to)
    if len(getattr(out, "shape", ())) != 1:
        raise ValueError(
            "log_predictive must return one log-density for each observation, shape (n,), got "
            f"{trees.describe(out)}: do not sum them."
        )


def _log_predictive(model: Model | None, given: LogPredictive | None) -> LogPredictive:
    found = given or getattr(model, "log_predictive", None)
    if found is None:
        raise ValueError(
            "this model has no predictive density of its own: pass log_predictive=, a function "
            "(theta, x, data) -> log-density of each observation."
        )
    arguments.check_callable("log_predictive", found, "(theta, x, data)")
    return found


def _num_rows(model: Model, rows: Sequence[str]) -> int:
    known = list(model.data) if isinstance(model.data, Mapping) else None
    _refuse_text("rows", rows)
    if known is None or not rows or not set(rows) <= set(known):
        raise ValueError(
            "rows must name the entries of the model's data that lead with the observation axis; "
            f"got {list(rows)}, the data have {known}."
        )
    sizes = {name: jnp.shape(model.data[name])[:1] for name in rows}
    if len(set(sizes.values())) > 1 or () in sizes.values():
        raise ValueError(f"the entries named by rows differ in length: {sizes}.")
    return sizes[rows[0]][0]


def _candidates(algorithm: Algorithm, sweep: Sequence[str]) -> int:
    """How many; every number of the options in `sweep` leads with them."""
    _refuse_text("sweep", sweep)
    sizes = set()
    for name in sweep:
        if not hasattr(algorithm, name):
            raise ValueError(f"{type(algorithm).__name__} has no option {name!r} to sweep.")
        sizes |= {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(getattr(algorithm, name))}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            f"the options {list(sweep)} must hold arrays of candidates of one length, got lengths "
            f"{sorted(sizes)}. For an optimiser write jalax.Optax(optax.sgd, learning_rate=array)."
        )
    return sizes.pop()[0]


def _refuse_text(name: str, value: Any) -> None:
    if isinstance(value, str):
        raise TypeError(f"{name} is a list of names, got the string {value!r}: [{value!r}].")


def _each(algorithm: Any, sweep: Sequence[str], fn: Callable) -> Any:
    changed = {name: jax.tree.map(fn, getattr(algorithm, name)) for name in sweep}
    return dataclasses.replace(algorithm, **changed)


def _folds(key, data, rows, num_rows: int, num_folds: int, candidates: int) -> tuple[Tree, Tree]:
    """Training and held-out data, each row of them a (candidate, fold), folds fastest."""
    size = num_rows // num_folds
    order = np.asarray(jax.random.permutation(key, num_rows))
    held_out = [order[k * size : (k + 1) * size] for k in range(num_folds)]
    train = [np.setdiff1d(order, rows_of_fold) for rows_of_fold in held_out]

    def take(chosen: list[np.ndarray]) -> Any:
        index = np.tile(np.stack(chosen), (candidates, 1))
        return {name: leaf[index] if name in rows else leaf for name, leaf in data.items()}

    def spread(name: str, leaf: Any) -> Any:  # the score is vmapped over everything
        lead = (candidates * num_folds, *jnp.shape(leaf))
        return leaf if name in rows else jnp.broadcast_to(leaf, lead)

    return take(train), {name: spread(name, leaf) for name, leaf in take(held_out).items()}
