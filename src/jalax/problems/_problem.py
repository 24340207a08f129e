"""What a problem of the book is: a model, its data, and the answer known from elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Literal

import jax
import numpy as np

from jalax._model.model import Model
from jalax._particles.trees import Tree
from jalax.models._mixed import mixed

Strength = Literal["exact", "monte carlo", "laplace"]


@dataclasses.dataclass(frozen=True)
class Published:
    """What a package or a paper prints.

    Attributes:
        log_evidence: with the constants of the model's, converted where the source leaves some
            out (`method` says so); None where none is printed.
        method: how it was computed, "Laplace (glmmTMB)".
        source: who says so.
    """

    log_evidence: float | None
    method: str
    source: str


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """The answer.

    Attributes:
        theta: the maximum likelihood estimate, in the form of the model's theta; of a problem
            that fixes theta, that theta. NumPy arrays in float64.
        standard_errors: of the same form, NaN where one is not known; None: none is.
        log_evidence: log p_theta(y) at `theta`.
        error: its standard error; 0: exact to the digits given.
        theta_error: how far `theta` may be from the maximum, in standard errors; 0: exact to the
            digits given.
        method: how it was computed.
        source: which program computed it.
        strength: "exact", "monte carlo", or "laplace", which is too weak to test log p with.
    """

    theta: Tree
    standard_errors: Tree | None
    log_evidence: float
    error: float
    theta_error: float
    method: str
    source: str
    strength: Strength


@dataclasses.dataclass(frozen=True)
class Formula:
    """A model in the words of `jalax.mixed`; a call returns the model.

    `jalax.mixed(formula.text, formula.frame(), family=formula.family, key=key)` fits it. Its theta
    is that of `jalax.mixed`: standard deviations, not their logarithms.

    Attributes:
        text: the formula.
        family: "gaussian" or "binomial".
        frame: a function without arguments that returns the pandas DataFrame.
    """

    text: str
    family: str
    frame: Callable[[], Any]

    def __call__(self) -> Model:
        return mixed(self.text, self.frame(), family=self.family)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A problem of the book.

    Attributes:
        name: as in `jalax.problems.get(name)`.
        title: one line.
        model: a `jalax.Model` or `jalax.GroupedModel`.
        theta: a start value that knows nothing of the answer.
        reference: the answer.
        published: what others print.
        structure: of the latents, "294 groups of 1 latent".
        data: where the data come from, and their terms.
        fixed: theta is given, and only the evidence is asked for (`jalax.log_evidence`).
        formula: the same model for `jalax.mixed`, where it can be written so.
        peers: the call in R that fits it, by package; the table is called `data` there.
    """

    name: str
    title: str
    model: Model
    theta: Tree
    reference: Reference
    published: tuple[Published, ...]
    structure: str
    data: str
    fixed: bool = False
    formula: Formula | None = None
    peers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def reference(name: str) -> Reference:
    """The entry of data/references.json."""
    entry = dict(_references()[name])
    for leaves in ("theta", "standard_errors"):
        if entry[leaves] is not None:
            entry[leaves] = {key: _numbers(value) for key, value in entry[leaves].items()}
    known = {field.name for field in dataclasses.fields(Reference)}
    return Reference(**{key: value for key, value in entry.items() if key in known})


@functools.cache
def _references() -> dict[str, dict]:
    file = resources.files("jalax.problems").joinpath("data", "references.json")
    return json.loads(file.read_text(encoding="utf-8"))


def _numbers(value: Any) -> np.ndarray:
    """null becomes NaN."""
    return np.array(value, dtype=np.float64)


def floats(theta: dict[str, Any]) -> dict[str, jax.Array]:
    """A start value in the default float dtype of this moment."""
    return {name: jax.numpy.asarray(value, dtype=float) for name, value in theta.items()}
