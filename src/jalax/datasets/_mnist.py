"""MNIST handwritten digits, the data of the paper's section 5.4."""

from __future__ import annotations

import dataclasses
import gzip
import math
import os
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Int

from ._wisconsin import _generator

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
_LARGEST = 2**28  # bytes unpacked; all of MNIST has 55 million
_ELSEWHERE = (
    "The full set is read from folder=, and jalax.datasets.download_mnist() fetches such a folder."
)


@dataclasses.dataclass(frozen=True, eq=False)
class MNIST:
    """Images of handwritten digits.

    Attributes:
        features: (n, 784), the pixels row by row, from 0 (paper) to 1 (ink).
        labels: (n,), the class of each image: its digit's place in `digits`.
        digits: the digits, in the order of their classes.
    """

    features: Float[np.ndarray, "n 784"]
    labels: Int[np.ndarray, " n"]
    digits: tuple[int, ...]

    @property
    def images(self) -> Float[np.ndarray, "n 28 28"]:
        """The features as pictures."""
        return self.features.reshape(-1, 28, 28)

    def standardised(self) -> MNIST:
        """Each pixel with mean 0 and (population) standard deviation 1 over these images.

        A pixel that is the same in all of them becomes 0.
        """
        centred = self.features - self.features.mean(axis=0)
        varies = np.ptp(self.features, axis=0) > 0  # exact, where a standard deviation is rounded
        scale = np.where(varies, centred.std(axis=0), 1.0)
        return dataclasses.replace(self, features=np.where(varies, centred / scale, 0.0))


def mnist(
    digits: Sequence[int] = (2, 4, 7, 9),
    num_images: int | None = None,
    key: Array | int = 0,
    *,
    folder: str | os.PathLike | None = None,
) -> MNIST:
    """Images of some digits of MNIST (LeCun, Cortes and Burges; CC BY-SA 3.0).

    Without `folder` they come from the 2,500 images of the digits 2, 4, 7 and 9 that are
    installed with the package: 623, 608, 649 and 620, the proportions of the full set.

    Args:
        digits: which, in the order of their classes 0, 1, ...
        num_images: how many, drawn without replacement such that every digit keeps its share;
            None: all there are.
        key: a JAX key or an integer seed of that draw.
        folder: a folder with the four files of MNIST (`train-images-idx3-ubyte` and so on,
            gzipped or not), or an .npz file with `images` and `labels`, or with `x_train`,
            `y_train`, `x_test` and `y_test`. Training images come first.

    >>> from jalax import datasets
    >>> data = datasets.mnist((4, 9), 1000)
    >>> data.images.shape, np.bincount(data.labels).tolist()
    ((1000, 28, 28), [495, 505])
    >>> train, test = datasets.train_test_split(data.standardised(), 0)
    >>> test.features.shape
    (200, 784)
    """
    digits = _check_digits(digits)
    if folder is None:
        with (
            resources.files("jalax.datasets").joinpath("data", "mnist_2479.npz").open("rb") as file
        ):
            images, found = _read_npz(file, "mnist_2479.npz")
    else:
        images, found = _read_folder(Path(folder))
    rows = [np.flatnonzero(found == digit) for digit in digits]
    missing = [digit for digit, of_digit in zip(digits, rows, strict=True) if not of_digit.size]
    if missing:
        there = np.unique(found).tolist()
        raise ValueError(f"there are no images of {missing}, only of {there}. {_ELSEWHERE}")
    if num_images is not None:
        rows = _stratified(rows, num_images, key)
    chosen = np.sort(np.concatenate(rows))
    class_of = np.full(256, -1)
    class_of[list(digits)] = np.arange(len(digits))
    return MNIST(images[chosen] / 255.0, class_of[found[chosen]], digits)


def download_mnist(folder: str | os.PathLike | None = None) -> Path:
    """Download the four files of MNIST (12 MB) once, check their sums, and say where they are.

    Needs pooch. `mnist(range(10), folder=download_mnist())` is then all of MNIST.

    Args:
        folder: where to; None: the user's cache.
    """
    try:
        import pooch
    except ImportError as error:
        raise ImportError("downloading MNIST needs pooch: pip install pooch.") from error
    target = pooch.os_cache("jalax") / "mnist" if folder is None else Path(folder)
    for name, sha256 in _SHA256.items():
        pooch.retrieve(_URL + name, known_hash=f"sha256:{sha256}", fname=name, path=target)
    return Path(target)


def _check_digits(digits: Sequence[int]) -> tuple[int, ...]:
    values = np.asarray(list(digits))
    whole = values.size > 0 and np.issubdtype(values.dtype, np.integer)
    if not whole or values.min() < 0 or values.max() > 9 or np.unique(values).size < values.size:
        raise ValueError(
            f"digits are different whole numbers from 0 to 9, such as (4, 9), got {digits!r}."
        )
    return tuple(values.tolist())


def _stratified(rows: list[np.ndarray], num_images: int, key: Array | int) -> list[np.ndarray]:
    """Some rows of each digit, in proportion to how many it has: largest remainders."""
    available = np.array([of_digit.size for of_digit in rows])
    total = int(available.sum())
    if not len(rows) <= num_images <= total:
        raise ValueError(
            f"num_images must lie between {len(rows)} (one a digit) and {total} (all there are), "
            f"got {num_images}. {_ELSEWHERE}"
        )
    share, remainder = np.divmod(available * num_images, total)
    share[np.argsort(-remainder, kind="stable")[: num_images - share.sum()]] += 1
    generator = _generator(key)
    return [generator.permutation(r)[:size] for r, size in zip(rows, share, strict=True)]


def _read_folder(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 784) and digits (n,), both uint8."""
    if path.suffix == ".npz" and path.is_file():
        with path.open("rb") as file:
            return _read_npz(file, str(path))
    parts = [
        _checked(
            _read_idx(_find(path, f"{part}-images", "idx3")),
            _read_idx(_find(path, f"{part}-labels", "idx1")),
            f"the {part} files in {path}",
        )
        for part in ("train", "t10k")
    ]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return images, labels


def _find(folder: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{mark}{kind}-ubyte{gz}" for mark in "-." for gz in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{folder} holds neither {names[0]} nor {names[1]}. Pass a folder with the four files of "
        "MNIST, or an .npz file; jalax.datasets.download_mnist() fetches such a folder."
    )


def _read_idx(path: Path) -> np.ndarray:
    """An array of bytes in the IDX format: 0, 0, 8 (bytes), the number of axes, their lengths."""
    again = "Fetch the file again, for example by jalax.datasets.download_mnist()."
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)  # a few bytes of gzip can be many
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}). {again}") from error
    if len(content) > _LARGEST:
        raise ValueError(f"{path} is larger than {_LARGEST} bytes and so not of MNIST. {again}")
    start = 4 + 4 * content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else math.inf
    if len(content) < start:
        raise ValueError(f"{path} is no IDX file of bytes: it begins with {content[:4]!r}. {again}")
    shape = np.frombuffer(content[4 : int(start)], ">u4").astype(int)
    values = np.frombuffer(content[int(start) :], np.uint8)
    if values.size != shape.prod():
        raise ValueError(
            f"{path} should hold {shape.prod()} bytes after its header, and holds {values.size}: "
            f"it is cut short or damaged. {again}"
        )
    return values.reshape(shape)


def _read_npz(file, name: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            size = sum(member.file_size for member in arrays.zip.infolist())
            if size > _LARGEST:
                raise ValueError(f"{size} bytes, more than {_LARGEST}")
            if "images" in arrays and "labels" in arrays:
                images, labels = arrays["images"], arrays["labels"]
            else:
                parts = [np.concatenate([arrays[f"{x}_train"], arrays[f"{x}_test"]]) for x in "xy"]
                images, labels = parts
    except KeyError as error:
        raise ValueError(
            f"{name} must hold images and labels, or x_train, y_train, x_test and y_test: {error}."
        ) from error
    except Exception as error:  # zip, zlib, npy and shapes that lie
        raise ValueError(f"{name} is cut short or damaged ({error}).") from error
    return _checked(images, labels, name)


def _checked(images: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The images flat, once they are bytes of 28 x 28 pixels with one label each."""
    one_each = labels.ndim == 1 and images.shape[:1] == labels.shape
    if images.dtype != np.uint8 or not one_each or images.size != 784 * labels.size:
        raise ValueError(
            f"{name}: expected images of 28 x 28 bytes and one label each, found "
            f"{images.dtype.name}{list(images.shape)} and labels {list(labels.shape)}."
        )
    return images.reshape(-1, 784), labels
