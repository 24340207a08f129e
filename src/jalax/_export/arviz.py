"""A fit as ArviZ's InferenceData."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jalax._evidence.record import FitRecord, SavedState
from jalax._export.fit_summary import FRAME_COLUMNS, theta_numbers
from jalax._export.latents import group_labels, leaf_names
from jalax._export.versions import version_of
from jalax._model import evaluation
from jalax._particles.resampling import draw_ancestors, systematic
from jalax._runtime import arguments
from jalax._runtime.compilation import Jit, jit

RESERVED = ("chain", "draw", "group", "particle", "step", "parameter", "log_weight")

Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]


def to_arviz(
    result: FitRecord,
    key: Any = None,
    num_samples: int | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Any:
    """`FitResult.to_arviz`."""
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ: pip install 'jalax[arviz]'.") from error
    num_samples = result.log_weights.shape[-1] if num_samples is None else num_samples
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"num_samples is a positive number of draws, got {num_samples!r}.")
    if key is not None:
        arguments.check_key(key)
    named = _Named(result, dims or {}, coords or {})
    index = _ancestors(result, key, num_samples)
    groups: dict[str, Any] = {
        "posterior": named.dataset(_posterior(result, index, named)),
        "sample_stats": named.dataset(_sample_stats(result, index)),
        "weighted_posterior": named.dataset(_weighted(result, named)),
        "fit": named.dataset(_path(result), _facts(result)),
    }
    observed, constant = _data(result, named)
    predicted = _predictive(result, index, key, named)
    for name, variables in (
        ("observed_data", observed),
        ("constant_data", constant),
        ("posterior_predictive", predicted),
    ):
        if variables:
            groups[name] = named.dataset(variables)
    named.check_all_used()
    return arviz.InferenceData(**groups)


class _Named:
    """Names of axes and their labels, as the user gave them or by default."""

    def __init__(self, result: FitRecord, dims: Mapping, coords: Mapping):
        self.dims, self.grouped = dims, result.log_weights.ndim == 2
        self.coords = {name: np.asarray(labels) for name, labels in coords.items()}
        labels = group_labels(result)
        if labels is not None:
            self.coords.setdefault("group", np.asarray(labels))
        self.coords["parameter"] = np.asarray(result.names)
        if len(result.history.get("ess", ())):
            from jalax._export.plots import steps_of

            self.coords["step"] = steps_of(result)
        self.seen: dict[str, tuple[str, ...]] = {}
        self.used: set[str] = {"parameter", "step", "group"}

    def axes(self, name: str, rest: int, dims: Mapping | None = None) -> tuple[str, ...]:
        """Names for the axes of one array, behind those of draws."""
        default = [f"{name}_dim_{i}" for i in range(rest - self.grouped)]
        own = list((self.dims if dims is None else dims).get(name, default))
        if self.grouped and len(own) == rest - 1:
            own = ["group", *own]
        if len(own) != rest:
            raise ValueError(
                f"dims[{name!r}] names {len(own)} axes, and {name} has {rest - self.grouped} "
                f"{'besides its groups' if self.grouped else 'besides the draws'}."
            )
        self.seen[name] = tuple(own)
        return tuple(own)

    def dataset(self, variables: Variables, facts: Mapping[str, Any] | None = None) -> Any:
        import xarray

        sizes: dict[str, int] = {}
        for name, (axes, values) in variables.items():
            for axis, size in zip(axes, values.shape, strict=True):
                if sizes.setdefault(axis, size) != size:
                    raise ValueError(
                        f"the axis {axis!r} has {sizes[axis]} entries in one array and {size} in "
                        f"{name!r}: give them different dims."
                    )
        coords = {}
        for axis, size in sizes.items():
            labels = self.coords.get(axis, np.arange(size))
            if len(labels) != size:
                raise ValueError(f"coords[{axis!r}] has {len(labels)} labels for {size} entries.")
            coords[axis] = labels
            self.used.add(axis)
        made_by = {
            "inference_library": "jalax",
            "inference_library_version": version_of("jalax"),
            "creation_library": "jalax",
        }
        return xarray.Dataset(variables, coords, made_by | dict(facts or {}))

    def check_all_used(self) -> None:
        """A misspelt name would be dropped in silence."""
        for kind, given, known in (
            ("dims", self.dims, self.seen),
            ("coords", self.coords, self.used),
        ):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(
                    f"{kind} has an entry for {unknown[0]!r}; known are {', '.join(sorted(known))}."
                )


def _arrays(tree: Any, alone: str = "x") -> dict[str, np.ndarray]:
    """The arrays of a tree by names that a file can hold and no axis has."""
    out: dict[str, np.ndarray] = {}
    for name, leaf in zip(leaf_names(tree, alone), jax.tree.leaves(tree), strict=True):
        name = name.replace("/", "_")
        while name in RESERVED or name in out:
            name += "_"
        out[name] = np.asarray(leaf)
    return out


def _ancestors(result: FitRecord, key: Any, num: int) -> np.ndarray:
    """Which particle each draw is, (num,) or (G, num), in random order.

    Systematic resampling leaves them sorted, which ArviZ would take for a chain that hardly moves.
    """
    if key is None:
        run_key = jax.random.key(0) if result.origin is None else result.origin.key
        key = jax.random.fold_in(run_key, 4)
    weights = result.weights

    def one(key, weights):
        key_resample, key_order = jax.random.split(key)
        index = draw_ancestors(key_resample, systematic, weights, num)
        return jax.random.permutation(key_order, index)

    if weights.ndim == 1:
        return np.asarray(one(key, weights))
    return np.asarray(jax.vmap(one)(jax.random.split(key, weights.shape[0]), weights))


def _draws(leaf: np.ndarray, index: np.ndarray) -> np.ndarray:
    """(1, draws, ...) or (1, draws, G, ...)."""
    if index.ndim == 1:
        return leaf[index][None]
    return np.swapaxes(leaf[np.arange(len(index))[:, None], index], 0, 1)[None]


def _posterior(result: FitRecord, index: np.ndarray, named: _Named) -> Variables:
    out: Variables = {}
    for name, leaf in _arrays(result.particles).items():
        draws = _draws(leaf, index)
        out[name] = (("chain", "draw", *named.axes(name, draws.ndim - 2)), draws)
    return out


def _weighted(result: FitRecord, named: _Named) -> Variables:
    """The particles as they are; of groups (particle, group, ...), like the draws."""
    out: Variables = {}
    grouped = named.grouped
    for name, leaf in _arrays(result.particles).items():
        values = np.swapaxes(leaf, 0, 1) if grouped else leaf
        out[name] = (("particle", *named.axes(name, values.ndim - 1)), values)
    log_weights = np.asarray(result.log_weights)
    out["log_weight"] = (("particle", "group")[: log_weights.ndim], log_weights.T)
    return out


def _sample_stats(result: FitRecord, index: np.ndarray) -> Variables:
    axes = ("chain", "draw", "group")
    out: Variables = {"particle": (axes[: index.ndim + 1], index.T[None])}
    state: Any = result.state
    if result.origin is None or isinstance(state, SavedState):
        return out
    lp = np.asarray(_log_joint(result.origin.model, result.free, state.particles))
    lp = lp if index.ndim == 2 else lp[0]
    drawn = _draws(lp, index)
    return out | {"lp": (axes[:2], drawn.sum(axis=-1) if index.ndim == 2 else drawn)}


_log_joint = Jit(evaluation.log_joint)


def _path(result: FitRecord) -> Variables:
    """The history, one row a step, and theta with its errors."""
    numbers = theta_numbers(result)
    out: Variables = {name: (("parameter",), numbers[:, i]) for i, name in enumerate(FRAME_COLUMNS)}
    for name, record in result.history.items():
        if name == "step":
            continue  # it is the coordinate
        if name == "theta":
            rows = [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(record)]
            out["theta"] = (("step", "parameter"), np.concatenate(rows, axis=1))
        else:
            out[name] = (("step",), np.asarray(record))
    return out


def _predictive(result: FitRecord, index: np.ndarray, key: Any, named: _Named) -> Variables:
    """Observations drawn again, given each draw of the latents; {} where the model cannot."""
    if result.origin is None or result.origin.model.outside.simulate is None:
        return {}
    model = result.origin.model
    told = model.outside.observed
    key = jax.random.fold_in(result.origin.key, 6) if key is None else jax.random.fold_in(key, 1)
    drawn = jax.tree.map(lambda leaf: _draws(np.asarray(leaf), index)[0], result.particles)
    new = _arrays(_replicated(key, model, result.theta, drawn, model.outside.simulate), "data")
    old = _arrays(model.data, "data")
    out: Variables = {}
    for name, values in new.items():
        drawn_again = not np.array_equal(values, np.broadcast_to(old[name], values.shape))
        if drawn_again and (told is None or name in told):
            out[name] = (("chain", "draw", *named.seen[name]), values[None])
    return out


@jit(static_argnames="function")
def _replicated(key, model: Any, theta: Any, drawn: Any, function: Any) -> Any:
    """Data for each draw, (draws, ...); grouped (draws, G, ...)."""
    num = jax.tree.leaves(drawn)[0].shape[0]

    def one(pair):
        key, x = pair
        if not model.grouped:
            return function(key, theta, x, model.data)
        keys = jax.random.split(key, model.num_groups)
        return jax.vmap(lambda k, x, d: function(k, theta, x, d))(keys, x, model.data)

    return jax.lax.map(one, (jax.random.split(key, num), drawn), batch_size=min(num, 64))


def _facts(result: FitRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "algorithm": result.algorithm,
        "status": str(result.status),
        "message": result.message,
        "sampling_time": result.seconds,
    }
    evidence = result.known_evidence
    if evidence is not None:
        facts |= {"log_evidence": evidence.value, "log_evidence_error": evidence.error}
        facts["log_evidence_warnings"] = "; ".join(evidence.messages)
    return facts


def _data(result: FitRecord, named: _Named) -> tuple[Variables, Variables]:
    """(observed, constant): a model that knows what was observed says so, else all is constant."""
    if result.origin is None:
        return {}, {}
    model = result.origin.model
    told = model.outside.observed
    observed = set() if told is None else set(told)
    parts: tuple[Variables, Variables] = ({}, {})
    latents = _arrays(result.particles)
    # dims of a latent are not meant for data of the same name.
    dims = {name: axes for name, axes in named.dims.items() if name not in latents}
    for name, values in _arrays(model.data, "data").items():
        axes = named.axes(name, values.ndim, dims)
        parts[0 if name in observed else 1][name] = (axes, values)
    return parts
