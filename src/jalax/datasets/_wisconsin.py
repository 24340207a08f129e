"""Wisconsin Breast Cancer (original), the data of the paper's section 5.1."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

from ._read import columns


@dataclasses.dataclass(frozen=True, eq=False)
class Wisconsin:
    """Breast cancer cytology.

    Attributes:
        features: (n, 9), each column with mean 0 and (population) standard deviation 1 over
            all 683 rows.
        labels: (n,), 0 benign, 1 malignant.
        feature_names: the names of the nine columns.
    """

    features: Float[np.ndarray, "n 9"]
    labels: Float[np.ndarray, " n"]
    feature_names: tuple[str, ...]


def wisconsin() -> Wisconsin:
    """The 683 complete rows of the Wisconsin Breast Cancer data (original), standardised.

    Source: Wolberg and Mangasarian (1990), UCI Machine Learning Repository, CC BY 4.0.

    >>> from jalax import datasets
    >>> data = datasets.wisconsin()
    >>> data.features.shape, int(data.labels.sum())
    ((683, 9), 239)
    """
    table = columns("wisconsin.csv")
    labels = np.array([float(label == "malignant") for label in table.pop("class")])
    raw = np.array(list(table.values()), dtype=np.float64).T
    features = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    return Wisconsin(features, labels, tuple(table))


Data = TypeVar("Data", bound=Any)


def train_test_split(data: Data, key: Array | int, test_fraction: float = 0.2) -> tuple[Data, Data]:
    """A random split that keeps the proportions of the classes (the paper's: 80 to 20).

    The features stay standardised as they are, over all rows, as in the paper.

    Args:
        data: what `wisconsin()` returned, or any dataclass with `features` and `labels`.
        key: a JAX key or an integer seed.
        test_fraction: the share of the test set, between 0 and 1.

    Returns:
        The training set and the test set, rows in their original order.

    >>> import jax
    >>> from jalax import datasets
    >>> train, test = datasets.train_test_split(datasets.wisconsin(), jax.random.key(0))
    >>> len(train.labels), len(test.labels)
    (546, 137)
    """
    if not dataclasses.is_dataclass(data) or not hasattr(data, "labels"):
        raise TypeError(
            "data must be a dataclass with features and labels, such as "
            f"jalax.datasets.wisconsin(), got {type(data).__name__}."
        )
    number = isinstance(test_fraction, (int, float, np.floating))
    if not number or not 0.0 < test_fraction < 1.0:
        raise ValueError(
            f"test_fraction must lie between 0 and 1, got {test_fraction!r}: 0.2 keeps one row in "
            "five for the test."
        )
    generator = _generator(key)
    in_test = np.zeros(data.labels.shape, bool)
    for label in np.unique(data.labels):
        rows = generator.permutation(np.flatnonzero(data.labels == label))
        in_test[rows[: round(test_fraction * rows.size)]] = True
    if in_test.all() or not in_test.any():
        raise ValueError(
            f"test_fraction = {test_fraction} of {in_test.size} rows leaves one of the two sets "
            "empty."
        )
    return _rows(data, ~in_test), _rows(data, in_test)


def _rows(data: Any, chosen: np.ndarray) -> Any:
    return dataclasses.replace(data, features=data.features[chosen], labels=data.labels[chosen])


def _generator(key: Array | int) -> np.random.Generator:
    """NumPy's generator from a JAX key (new or old style) or an integer seed."""
    if isinstance(key, jax.Array):
        is_key = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
        words = np.asarray(jax.random.key_data(key) if is_key else key)
        return np.random.default_rng(words.ravel().tolist())
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0:
        raise TypeError(f"key must be a JAX key or a whole number from 0 upwards, got {key!r}.")
    return np.random.default_rng(key)
