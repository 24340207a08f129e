"""The data sets: shapes, counts, the standardisation and the stratified split."""

import gzip
import hashlib
import sys
import types

import jax
import numpy as np
import pytest

from jalax import datasets


def test_wisconsin_shape_and_classes():
    data = datasets.wisconsin()
    assert data.features.shape == (683, 9)
    assert data.labels.shape == (683,)
    assert data.features.dtype == data.labels.dtype == np.float64
    assert [(data.labels == label).sum() for label in (0, 1)] == [444, 239]
    assert data.feature_names[0] == "clump_thickness"
    assert len(data.feature_names) == 9


def test_wisconsin_is_standardised_with_the_population_sd():
    features = datasets.wisconsin().features
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(features.std(axis=0, ddof=0), 1, rtol=1e-12)


def test_wisconsin_rows_are_those_of_the_file():
    """Before the standardisation the features are integers from 1 to 10."""
    features = datasets.wisconsin().features
    for column in features.T:
        levels = np.unique(column)
        steps = np.diff(levels) / np.diff(levels).min()
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
        assert levels.size <= 10  # integers from 1 to 10
    # Known facts of the UCI file: malignant cells are thicker, and mean clump thickness is 4.44.
    labels = datasets.wisconsin().labels
    assert (features[labels == 1].mean(axis=0) > features[labels == 0].mean(axis=0)).all()
    thickness = features[:, 0]
    step = np.diff(np.unique(thickness)).min()
    np.testing.assert_allclose(1 + (0 - thickness.min()) / step, 4.4422, atol=1e-4)


@pytest.mark.parametrize("key", [0, 7, jax.random.key(3), jax.random.PRNGKey(3)])
def test_split_is_stratified_and_a_partition(key):
    data = datasets.wisconsin()
    train, test = datasets.train_test_split(data, key)
    assert [(test.labels == label).sum() for label in (0, 1)] == [89, 48]  # 20 % of 444, 239
    assert train.features.shape == (546, 9)
    assert train.feature_names == data.feature_names
    together = np.vstack([train.features, test.features])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(data.features, axis=0))


def test_split_is_reproducible_and_random():
    data = datasets.wisconsin()
    first, again = (datasets.train_test_split(data, 1)[1].features for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = datasets.train_test_split(data, 2)[1].features
    assert not np.array_equal(first, other)
    new, old = jax.random.key(5), jax.random.PRNGKey(5)  # two spellings of one key
    np.testing.assert_array_equal(
        datasets.train_test_split(data, new)[1].features,
        datasets.train_test_split(data, old)[1].features,
    )


def test_cbpp():
    data = datasets.cbpp()
    assert data.herd.shape == data.incidence.shape == data.size.shape == data.period.shape == (56,)
    assert np.unique(data.herd).tolist() == list(range(1, 16))
    assert np.unique(data.period).tolist() == [1, 2, 3, 4]
    assert (data.incidence <= data.size).all()
    assert data.covariates.dtype == np.float64
    np.testing.assert_array_equal(data.covariates[:, 0], 1)
    np.testing.assert_array_equal(data.covariates[:, 1:] @ np.array([1, 2, 3]) + 1, data.period)


def test_sleepstudy_and_dyestuff():
    """Least squares gives lme4's fixed effects where the design is balanced."""
    sleep = datasets.sleepstudy()
    found = np.linalg.lstsq(sleep.covariates, sleep.reaction, rcond=None)[0]
    np.testing.assert_allclose(found, [251.4051048, 10.46728596], rtol=1e-8)
    assert np.unique(sleep.subject, return_counts=True)[1].tolist() == [10] * 18
    dye = datasets.dyestuff()
    assert dye.yield_.mean() == 1527.5
    assert np.unique(dye.batch, return_counts=True)[1].tolist() == [5] * 6
    np.testing.assert_array_equal(dye.covariates, np.ones((30, 1)))


def test_mnist_the_shipped_subset():
    data = datasets.mnist()
    assert data.features.shape == (2500, 784)
    assert data.images.shape == (2500, 28, 28)
    assert data.features.dtype == np.float64
    assert data.features.min() == 0
    assert data.features.max() == 1
    assert data.digits == (2, 4, 7, 9)
    # 2500 shared in proportion to the 6990, 6824, 7293 and 6958 images of the full set.
    assert np.bincount(data.labels).tolist() == [623, 608, 649, 620]
    assert np.unique(data.features, axis=0).shape[0] == 2500
    # A four is open at the top and a nine is closed: their mean pictures differ there.
    mean = [data.images[data.labels == label].mean(axis=0) for label in range(4)]
    four, nine = mean[1], mean[3]
    assert (nine - four)[5:10, 12:16].mean() > 0.2
    # Most images are nearer to the mean of their own digit than to the other three.
    centres = np.stack(mean).reshape(4, -1)
    distance = ((data.features[:, None] - centres) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == data.labels).mean() > 0.85


def test_mnist_classes_follow_the_order_of_the_digits():
    one, other = datasets.mnist((4, 9)), datasets.mnist((9, 4))
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.labels, 1 - other.labels)
    assert np.bincount(one.labels).tolist() == [608, 620]
    assert (one.digits, other.digits) == ((4, 9), (9, 4))


@pytest.mark.parametrize("key", [0, 7, jax.random.key(3)])
def test_mnist_subsample_is_stratified(key):
    everything = datasets.mnist((4, 9))
    some = datasets.mnist((4, 9), 1000, key)
    assert np.bincount(some.labels).tolist() == [495, 505]  # 1000 * 608 / 1228 = 495.1
    known = {row.tobytes(): label for row, label in zip(*_arrays(everything), strict=True)}
    assert all(known[row.tobytes()] == label for row, label in zip(*_arrays(some), strict=True))
    assert len({row.tobytes() for row in some.features}) == 1000  # without replacement
    again = datasets.mnist((4, 9), 1000, key)
    np.testing.assert_array_equal(some.features, again.features)
    assert not np.array_equal(some.features, datasets.mnist((4, 9), 1000, 1).features)


def _arrays(data):
    return data.features, data.labels


def test_mnist_standardised_and_split():
    data = datasets.mnist((2, 7), 100).standardised()
    sd = data.features.std(axis=0)
    np.testing.assert_allclose(data.features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(sd[sd > 0], 1, rtol=1e-12)
    assert (data.features[:, sd == 0] == 0).all()
    assert 100 < (sd == 0).sum() < 500  # the margins are never written on
    train, test = datasets.train_test_split(data, 0)
    assert (train.features.shape, test.features.shape) == ((80, 784), (20, 784))
    assert np.bincount(test.labels).tolist() == [10, 10]
    assert test.digits == (2, 7)


NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx(array):
    """The bytes of an IDX file."""
    lengths = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist():
    """30 training images and 20 test images of noise, three and two of each digit."""
    rng = np.random.default_rng(0)
    sizes = (30, 20)
    images = [rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in sizes]
    labels = [np.arange(n, dtype=np.uint8) % 10 for n in sizes]
    return images[0], labels[0], images[1], labels[1]


def write(folder, arrays, spelling="{}-ubyte"):
    for name, array in zip(NAMES, arrays, strict=True):
        file = folder / spelling.format(name)
        content = idx(array)
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def assert_is(data, arrays):
    images, labels, test_images, test_labels = arrays
    images, labels = np.concatenate([images, test_images]), np.concatenate([labels, test_labels])
    chosen = np.isin(labels, data.digits)
    np.testing.assert_array_equal(np.round(255 * data.images), images[chosen])
    np.testing.assert_array_equal(np.array(data.digits)[data.labels], labels[chosen])


@pytest.mark.parametrize("spelling", ["{}-ubyte", "{}-ubyte.gz"])
def test_mnist_reads_the_four_files(tmp_path, small_mnist, spelling):
    write(tmp_path, small_mnist, spelling)
    assert_is(datasets.mnist(range(10), folder=tmp_path), small_mnist)
    data = datasets.mnist((3, 1), folder=str(tmp_path))
    assert_is(data, small_mnist)
    assert np.bincount(data.labels).tolist() == [5, 5]
    assert data.images[0, 0, 1] == small_mnist[0][1, 0, 1] / 255  # rows stay rows


def test_mnist_reads_npz_files(tmp_path, small_mnist):
    images, labels, test_images, test_labels = small_mnist
    ours, keras = tmp_path / "ours.npz", tmp_path / "keras.npz"
    np.savez(ours, images=np.concatenate([images, test_images]), labels=[*labels, *test_labels])
    np.savez(keras, x_train=images, y_train=labels, x_test=test_images, y_test=test_labels)
    for file in (ours, keras):
        assert_is(datasets.mnist((7, 2), folder=file), small_mnist)


def test_download_of_mnist(tmp_path, small_mnist, monkeypatch):
    """With a pooch of our own, which copies instead of downloading, and checks as pooch does."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    write(source, small_mnist, "{}-ubyte.gz")
    asked = {}

    def retrieve(url, known_hash, fname, path):
        content = (source / url.rpartition("/")[2]).read_bytes()
        asked[url] = known_hash
        if known_hash != f"sha256:{hashlib.sha256(content).hexdigest()}":
            raise ValueError(f"SHA256 hash of downloaded file ({fname}) does not match")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes(content)

    pooch = types.SimpleNamespace(retrieve=retrieve, os_cache=lambda name: tmp_path / name)
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    with pytest.raises(ValueError, match=r"SHA256 hash of downloaded file \(train-images"):
        datasets.download_mnist(target)
    assert asked == {
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz": (
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        )
    }
    sums = {
        name: hashlib.sha256((source / name).read_bytes()).hexdigest()
        for name in (f"{name}-ubyte.gz" for name in NAMES)
    }
    monkeypatch.setattr("jalax.datasets._mnist._SHA256", sums)
    folder = datasets.download_mnist(target)
    assert folder == target
    assert_is(datasets.mnist((0, 5), folder=folder), small_mnist)
