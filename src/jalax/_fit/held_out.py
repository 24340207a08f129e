"""Training by held-out log p: of a theta so large that it would learn the data by heart.

Its likelihood has no maximum worth finding: log p of groups that the fit does not see rises and
then falls. `held_out` watches it; `Training` is how `fit` goes about it by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jalax._fit.begin import first_state
from jalax._fit.callbacks import Callback, Run, Stop
from jalax._fit.choice import GROUPS_A_STEP, count_held_out
from jalax._model import checks
from jalax._model.model import GroupedModel, Model
from jalax._model.types import State, Status
from jalax._particles.trees import Tree
from jalax._runtime import arguments
from jalax._runtime.compilation import fold_in
from jalax._runtime.processes import to_host
from jalax._starts.in_blocks import InBlocks

MAX_STEPS = 40_000  # of a fit that held-out log p stops, unless it is told otherwise
PARTICLES, DRAWS = 32, 256
PILOT, CLIMB = 20, 40  # steps between two looks
RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)  # of Adam, that a pilot tries
BELOW = 10.0  # what the rate that the pilot finds best, so near theta_0, is divided by
LOWER = 3.0  # what the rate is divided by where held-out log p rises no longer
WORTH = 1.05  # fewer groups that were held out than these are not trained for again
AT_LAST = 0.25  # of the steps with all groups: so many more at a lower rate
# Standard errors of a difference that make it one: of a gain over the best look, of a rise from a
# third of the looks to the next, of a loss since the best look.
NOISE, RISE, AS_GOOD = 0.1, 1.0, 0.5
VISITS = 40  # of each group, after which its particles are drawn anew
FAILURES = 3  # steps from which no weight is left, after which a fit gives up


class Look(NamedTuple):
    """Held-out log p, as seen after a step."""

    step: int
    rate: float  # of the optimiser; NaN where it cannot be told
    log_p: float  #: the mean over the groups
    error: float  #: of that mean, from group to group


class held_out(Callback):
    """Watch log p of data that the fit does not see, and stop where it no longer rises.

    Every so many steps log p of each group of `model` is estimated at the theta of that step, by
    importance sampling from a Student-t on the mode of its latent. The result has the best theta.
    Where the optimiser's learning rate can be changed (`jalax.options.adam`), a fit that no longer
    gains first goes on from the best theta with a third of it.

    `looks` has what was seen: step, learning rate, log p a group, and its standard error.

    Args:
        model: a `jalax.GroupedModel` of the held-out data: the model of the fit with other data.
        every: steps between two looks.
        patience: how many looks without a gain are waited for.
        drops: how often the rate is lowered before the fit ends.
        num_draws: of the importance sampling, in each group.
    """

    def __init__(
        self,
        model: Model,
        *,
        every: int = 40,
        patience: int = 3,
        drops: int = 2,
        num_draws: int = 128,
    ):
        if not isinstance(model, GroupedModel):
            raise TypeError(
                "held_out takes a jalax.GroupedModel of the held-out data, got "
                f"{type(model).__name__}."
            )
        self.model: Model = checks.prepare_model(model)
        self.every = arguments.check_count("held_out's every", every)
        self.patience = arguments.check_count("held_out's patience", patience)
        self.drops = arguments.check_count("held_out's drops", drops, 0)
        draws = arguments.check_count("held_out's num_draws", num_draws, 2)
        self._points = InBlocks(size=model.num_groups, num_draws=draws)
        self.looks: list[Look] = []
        self._forget()
        self._what = "held-out groups"

    def _forget(self) -> None:
        self._best: State | None = None
        self._best_look: Look | None = None
        self._best_groups: np.ndarray = np.zeros(0)
        self._seen: list[tuple[int, np.ndarray]] = []  # log p of each group, in each look
        self._waited = self._dropped = 0

    def begin(self, run: Run) -> None:
        if run.many:
            raise ValueError("held_out watches one fit, not many at once.")
        self.looks, self._from = [], run.step
        self._forget()

    def steps_until_due(self, run: Run) -> int:
        return self.every - (run.step - self._from) % self.every

    def after_chunk(self, run: Run) -> Stop | None:
        if run.diverged.all():
            return self._lowered(run) if self._best is not None else None
        if (run.step - self._from) % self.every:
            return None
        self._look(run)
        # There must be where to go back to.
        return self._lowered(run) if self._best is not None and self._is_over() else None

    def _is_over(self) -> bool:
        return self._waited >= self.patience

    def end(self, run: Run) -> None:
        """However the fit ends: with the best theta."""
        if self._best is not None:
            run.state = self._best._replace(step=run.state.step)

    def _look(self, run: Run) -> None:
        """The state is kept where log p has risen since the best look so far."""
        theta = run.algorithm.estimate(run.state)
        groups = self._log_p(run, theta)
        with np.errstate(invalid="ignore"):  # of groups that are lost
            error = float(np.std(groups) / np.sqrt(groups.size))
        look = Look(run.step, rate_of(run.state), float(np.mean(groups)), error)
        self.looks.append(look)
        self._seen.append((run.step, groups))
        run.note = f"log p of {self._what} {look.log_p:.3f} +/- {error:.3f} a group"
        first = self._best is None
        if np.isfinite(look.log_p) and (first or rises(groups - self._best_groups, NOISE)):
            self._best, self._best_look, self._best_groups = run.state, look, groups
            self._waited = 0
        else:
            self._waited += 1

    def _log_p(self, run: Run, theta: Tree) -> np.ndarray:
        """Of every group. The random numbers are the same at each theta: differences decide."""
        every = np.arange(self.model.num_groups)
        cloud = self._points.block(run.key, self.model, every, theta, PARTICLES)
        log_p = np.asarray(to_host(cloud.log_evidence), float)
        return np.where(np.isfinite(log_p), log_p, -np.inf)

    def _lowered(self, run: Run) -> Stop | None:
        """Back to the best theta with a lower rate, or the end."""
        assert self._best is not None
        self._waited, rate = 0, rate_of(run.state) / LOWER
        if self._dropped == self.drops or not np.isfinite(rate):
            return self._ended(run)
        self._dropped += 1
        self._go_on(run, self._best, rate)
        return None

    def _go_on(self, run: Run, state: State, rate: float) -> None:
        """From an earlier state; steps are counted on, so that the noise of the moves is new."""
        run.diverged = np.zeros_like(run.diverged)
        run.state = with_rate(state._replace(step=run.state.step), rate)

    def _ended(self, run: Run) -> Stop | None:
        best = self._best_look
        assert best is not None
        run.diverged = np.zeros_like(run.diverged)  # where it did, it ends with the best theta
        return Stop(
            Status.STOPPED,
            f"log p of {self.model.num_groups} {self._what} no longer rises: "
            f"{best.log_p:.3f} +/- {best.error:.3f} a group",
        )


class Training(held_out):
    """How `fit` trains a large theta: `held_out` with groups of its own model.

    Learning rates are tried one after the other from theta_0, and it begins there again with a
    tenth of the best. Once held-out log p no longer rises, it begins a last time with all
    groups, and visits each as often as until then (not where nearly all were visited). Where there
    are too few to hold some out it watches log p of all. Particles are drawn anew now and then;
    where all weights are lost, it goes on from the last time that they were, more slowly. A fit
    that goes on from a checkpoint or a state has its rate, tries no others, and ends with the
    best theta.
    """

    def __init__(self, model: Model, key: jax.Array):
        self._held = held_out_groups(key, model.num_groups)
        watched = np.flatnonzero(self._held) if self._held.any() else np.arange(model.num_groups)
        part = model.replace(data=jax.tree.map(lambda x: x[watched], model.data))
        super().__init__(part, drops=0, num_draws=DRAWS)
        if not self._held.any():
            self._what = "groups (too few to hold some out)"

    @property
    def start(self) -> InBlocks:
        """Of few draws: a path of this kind carries no evidence that they could improve."""
        return self._points

    def begin(self, run: Run) -> None:
        super().begin(run)
        self._trials: list[tuple[float, float]] = []  # log p, and the rate
        self._plan: list[tuple[float, int]] = []  # rates, and steps with all groups
        self._message: Stop | None = None  # of the end, once all groups are visited
        self._between = VISITS * int(np.ceil(run.model.num_groups / GROUPS_A_STEP))
        self._redraw = run.step + self._between
        self._first = self._drawn = _without_path(run.state, jnp.asarray(self._held))
        self._failures = 0
        self.every, self._pilots = (PILOT, len(RATES)) if run.step == 0 else (CLIMB, 0)
        self._go_on(run, self._first, RATES[0] if run.step == 0 else rate_of(run.state))

    def after_chunk(self, run: Run) -> Stop | None:
        if len(self._trials) < self._pilots:
            return self._tried(run)
        if run.diverged.all() and self._failures < FAILURES:
            self._back(run)
            return None
        stop = super().after_chunk(run) if self._message is None else self._with_all(run)
        if stop is None and run.step >= self._redraw:
            self._draw_anew(run)
        return stop

    def _tried(self, run: Run) -> Stop | None:
        """The pilot: the next rate, or the best of them."""
        failed = bool(run.diverged.all())
        if not failed and (run.step - self._from) % self.every:
            return None
        if not failed:
            self._look(run)
            failed = not np.isfinite(self.looks[-1].log_p)
        log_p = -np.inf if failed else self.looks[-1].log_p
        self._trials.append((log_p, RATES[len(self._trials)]))
        self._from = run.step
        if len(self._trials) < self._pilots:
            self._go_on(run, self._first, RATES[len(self._trials)])
        elif np.isfinite(max(self._trials)[0]):
            _, rate = max(self._trials)
            self._forget()
            self.every = CLIMB
            self._go_on(run, self._first, rate / BELOW)
        return None

    def end(self, run: Run) -> None:
        """The result stays the best theta that was watched if the groups do not gain by visits.

        Whoever ends the fit, the last steps of all count, those at the lower rate.
        """
        if self._message is not None and not self._plan:
            self._look(run)
        super().end(run)

    def _draw_anew(self, run: Run) -> None:
        """Particles around the modes at this theta: some are caught where a mode has been."""
        self._redraw = run.step + self._between
        key, state = fold_in(fold_in(run.key, run.step), 1), run.state  # that of the step is used
        cloud = self.start.drawn(key, run.model, state.theta, state.log_weights.shape[1])
        fresh = first_state(key, run.algorithm, run.model, state.theta, cloud)
        memory = fresh.memory._replace(optimizer=state.memory.optimizer)
        fresh = fresh._replace(memory=memory, step=state.step)
        run.state = self._drawn = _without_path(fresh, state.memory.held_out)

    def _back(self, run: Run) -> None:
        self._failures += 1
        self._go_on(run, self._drawn, rate_of(run.state) / LOWER)
        self._draw_anew(run)

    def _is_over(self) -> bool:
        """The mean of the last third of the looks is no higher than that of the third before."""
        groups = np.array([groups for _, groups in self._seen])
        third = len(groups) // 3
        if third < self.patience:
            return False
        before, after = groups[-2 * third : -third].mean(axis=0), groups[-third:].mean(axis=0)
        with np.errstate(invalid="ignore"):  # of groups that were lost in both
            return not rises(after - before, RISE)

    def _ended(self, run: Run) -> Stop | None:
        """Then again from theta_0 with all groups, each visited as often."""
        message, look = super()._ended(run), self._best_look
        assert look is not None
        share = self._held.size / np.sum(~self._held)
        steps = int(np.ceil(share * (self._last_as_good() - self._from)))
        at_last = int(np.ceil(AT_LAST * steps))
        if share < WORTH or not self._pilots or steps + at_last > run.last_step - run.step:
            return message
        self._plan = [(look.rate, steps), (look.rate / LOWER, at_last)]
        self._message = message
        self._drawn = _without_path(self._first, jnp.zeros(self._held.size, bool))
        self._next_of_plan(run, self._drawn)
        run.note += ", now with all groups"
        return None

    def _last_as_good(self) -> int:
        """The last step where log p was that of the best one, as far as the groups can tell."""
        as_good = [n for n, groups in self._seen if not rises(self._best_groups - groups, AS_GOOD)]
        return as_good[-1]

    def _next_of_plan(self, run: Run, state: State) -> None:
        rate, steps = self._plan.pop(0)
        self._until = run.step + steps
        self._go_on(run, state, rate)

    def steps_until_due(self, run: Run) -> int:
        if self._message is None:
            return super().steps_until_due(run)
        return max(1, min(self._until, self._redraw) - run.step)

    def _with_all(self, run: Run) -> Stop | None:
        """Both parts of the plan, one after the other."""
        if run.diverged.all():
            run.diverged = np.zeros_like(run.diverged)
            return self._message
        if run.step < self._until:
            return None
        if self._plan:
            self._draw_anew(run)
            self._next_of_plan(run, run.state)
            return None
        return self._message


def rises(gains: np.ndarray, errors: float) -> bool:
    """Whether the mean gain is larger than so many of its standard errors."""
    mean = np.mean(gains)
    if not np.isfinite(mean):
        return bool(mean > 0)
    return bool(mean > errors * np.std(gains) / np.sqrt(gains.size))


def _without_path(state: State, held: jax.Array) -> State:
    """It goes back and on again: an evidence along such a path means nothing."""
    retries = jnp.ones_like(state.memory.retries)
    return state._replace(memory=state.memory._replace(held_out=held, retries=retries))


def rate_of(state: State) -> float:
    """The learning rate in the optimiser's memory; NaN where it has none."""
    return float(getattr(_optimizer(state), "hyperparams", {}).get("learning_rate", np.nan))


def with_rate(state: State, rate: float) -> State:
    optimizer = _optimizer(state)
    old = optimizer.hyperparams["learning_rate"]
    numbers = optimizer.hyperparams | {"learning_rate": jnp.asarray(rate, old.dtype)}
    memory = state.memory._replace(optimizer=optimizer._replace(hyperparams=numbers))
    return state._replace(memory=memory)


def _optimizer(state: State) -> Any:
    return getattr(state.memory, "optimizer", None)


def held_out_groups(key: jax.Array, count: int) -> np.ndarray:
    """Which groups a fit with this key holds out."""
    held = np.zeros(count, bool)
    order = np.asarray(jax.random.permutation(fold_in(key, 3), count))
    held[order[: count_held_out(count)]] = True
    return held
