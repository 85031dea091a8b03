"""Published data sets, read from small files that the tests write in the real formats."""

import functools
import gzip
import hashlib
import http.server
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets as tv

from mll_flower.tasks.data import load_dataset
from mll_flower.tasks.published import read_published, read_torchvision

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, prefixes: tuple[str, str], images: np.ndarray, y: np.ndarray) -> None:
    """Write the same rows as training set and as test set."""
    folder.mkdir(parents=True)
    for prefix in prefixes:
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(y))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads go to a closed port of this machine and fail at once."""
    closed = "http://127.0.0.1:1/"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MLL_FLOWER_DATA", raising=False)
    monkeypatch.setattr(tv.MNIST, "mirrors", [closed])
    monkeypatch.setattr(tv.FashionMNIST, "mirrors", [closed])
    monkeypatch.setattr(tv.EMNIST, "url", closed + "gzip.zip")
    monkeypatch.setattr(tv.CIFAR10, "url", closed + "cifar.tar.gz")


@pytest.mark.parametrize(
    ("name", "folder", "mean", "std"),
    [("mnist", "MNIST", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST", 0.2860, 0.3530)],
)
def test_idx_images_are_normalised(
    tmp_path: Path, name: str, folder: str, mean: float, std: float
) -> None:
    images = RNG.integers(0, 256, (10, 28, 28))
    write_idx(tmp_path / folder / "raw", ("train", "t10k"), images, np.arange(10))
    found = load_dataset(name, str(tmp_path))
    assert found.x_train.dtype == np.float32
    np.testing.assert_allclose(found.x_train[:, 0], (images / 255 - mean) / std, atol=1e-5)
    np.testing.assert_array_equal(found.y_test, np.arange(10))
    unit = load_dataset(name, str(tmp_path), scaling="unit")
    np.testing.assert_allclose(unit.x_test[:, 0], images / 255, atol=1e-6)
    assert "another split: 10 / 10 rows" in found.label


def test_data_dir_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "MNIST" / "raw", ("train", "t10k"), np.zeros((3, 28, 28)), np.arange(3))
    monkeypatch.setenv("MLL_FLOWER_DATA", str(tmp_path))
    assert len(load_dataset("mnist").x_train) == 3


@pytest.mark.parametrize("name", ["emnist", "emnist:letters"])
def test_emnist_letters_are_upright_and_labelled_from_0(tmp_path: Path, name: str) -> None:
    upright = np.zeros((26, 28, 28))
    upright[:, :5, :] = 255  # a bar at the top, with a notch at its right end
    upright[:, 5:15, 20:] = 128
    write_idx(
        tmp_path / "EMNIST" / "raw",
        ("emnist-letters-train", "emnist-letters-test"),
        upright.swapaxes(1, 2),
        np.arange(1, 27),
    )
    found = load_dataset(name, str(tmp_path), scaling="unit")
    np.testing.assert_allclose(found.x_train[:, 0], upright / 255, atol=1e-6)
    np.testing.assert_array_equal(found.y_train, np.arange(26))
    assert found.classes == 26
    normal = load_dataset(name, str(tmp_path))
    np.testing.assert_allclose(normal.x_test[:, 0], (upright / 255 - 0.1722) / 0.3309, atol=1e-5)
    assert found.x_train.flags.c_contiguous


def test_other_emnist_splits_keep_their_labels(tmp_path: Path) -> None:
    write_idx(
        tmp_path / "EMNIST" / "raw",
        ("emnist-balanced-train", "emnist-balanced-test"),
        np.zeros((47, 28, 28)),
        np.arange(47),
    )
    found = load_dataset("emnist:balanced", str(tmp_path))
    np.testing.assert_array_equal(found.y_train, np.arange(47))
    assert (found.classes, found.label) == (47, "EMNIST balanced (another split: 47 / 47 rows)")


def test_letters_labelled_from_0_are_refused(tmp_path: Path) -> None:
    write_idx(
        tmp_path / "EMNIST" / "raw",
        ("emnist-letters-train", "emnist-letters-test"),
        np.zeros((26, 28, 28)),
        np.arange(26),
    )
    with pytest.raises(ValueError, match="labels run from -1 to 24"):
        load_dataset("emnist", str(tmp_path))


@pytest.mark.parametrize(
    ("rows", "label"),
    [
        ((124_800, 20_800), "EMNIST letters"),
        ((90_807, 10_400), "EMNIST letters (rebuilt split)"),
        ((88_800, 14_800), "EMNIST letters (another split: 88,800 / 14,800 rows)"),
    ],
)
def test_the_label_follows_from_the_rows_found(
    tmp_path: Path, rows: tuple[int, int], label: str
) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in zip(("train", "test"), rows, strict=True):
        # images of 1x1 pixels, as only the row counts matter here
        images, y = np.zeros((count, 1, 1)), np.ones(count)
        (raw / f"emnist-letters-{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (raw / f"emnist-letters-{part}-labels-idx1-ubyte").write_bytes(idx_bytes(y))
    assert load_dataset("emnist", str(tmp_path)).label == label


def test_cifar10_npz_has_its_channels_in_order(tmp_path: Path) -> None:
    x = np.zeros((10, 32, 32, 3), np.uint8)
    x[..., 0] = 255  # red
    x[:, 0, 31] = (0, 255, 51)  # except for the pixel at the top right
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=np.arange(10), x_test=x, y_test=[0] * 10)
    found = load_dataset("cifar10", str(tmp_path), scaling="unit")
    assert found.x_train.shape == (10, 3, 32, 32)
    assert found.x_train[4, 0, 5, 5] == 1
    assert found.x_train[4, 1, 5, 5] == 0
    np.testing.assert_allclose(found.x_train[4, :, 0, 31], (0, 1, 0.2))
    normal = load_dataset("cifar10", str(tmp_path)).x_test[0, :, 0, 31]
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    np.testing.assert_allclose(normal, (np.array([0, 1, 0.2]) - mean) / std, rtol=1e-5)


def test_cifar10_in_the_folder_of_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = RNG.integers(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    sums = {}
    for name, content in (
        ("data_batch_1", {"data": planes.reshape(4, 3072), "labels": [0, 9, 3, 3]}),
        ("test_batch", {"data": planes[:2].reshape(2, 3072), "labels": [5, 6]}),
        ("batches.meta", {"label_names": ["a"] * 10}),
    ):
        packed = pickle.dumps(content)
        (folder / name).write_bytes(packed)
        sums[name] = hashlib.md5(packed).hexdigest()
    monkeypatch.setattr(tv.CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(tv.CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]}
    monkeypatch.setattr(tv.CIFAR10, "meta", meta)
    found = load_dataset("cifar10", str(tmp_path), scaling="unit")
    np.testing.assert_allclose(found.x_train, planes / 255, rtol=1e-6)
    np.testing.assert_array_equal(found.y_train, [0, 9, 3, 3])
    np.testing.assert_array_equal(found.y_test, [5, 6])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "MNIST/raw/{train,t10k}-images-idx3-ubyte"),
        ("fashion-mnist", "FashionMNIST/raw/"),
        ("emnist", "EMNIST/raw/emnist-letters-{train,test}-images-idx3-ubyte"),
        ("cifar10", "cifar10.npz or the folder cifar-10-batches-py"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name, str(tmp_path))
    message = str(caught.value)
    assert file in message
    assert str(tmp_path) in message
    assert "data-dir" in message


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_missing_files_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: tuple[Path, str]
) -> None:
    folder, url = mirror
    images, y = RNG.integers(0, 256, (5, 28, 28)), np.arange(5)
    resources = []
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", y)):
            packed = gzip.compress(idx_bytes(array))
            name = f"{part}-{kind}-ubyte.gz"
            (folder / name).write_bytes(packed)
            resources.append((name, hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(tv.MNIST, "mirrors", [url])
    monkeypatch.setattr(tv.MNIST, "resources", resources)
    found = load_dataset("mnist", str(tmp_path / "data"), scaling="unit")
    np.testing.assert_allclose(found.x_train[:, 0], images / 255, atol=1e-6)


def test_files_are_read_as_torchvision_reads_them(tmp_path: Path) -> None:
    y = np.arange(1, 27)
    for name, folder, prefixes in (
        ("mnist", "MNIST", ("train", "t10k")),
        ("emnist:letters", "EMNIST", ("emnist-letters-train", "emnist-letters-test")),
    ):
        images = RNG.integers(0, 256, (26, 28, 28))
        write_idx(tmp_path / folder / "raw", prefixes, images, y)
        for ours, theirs in zip(
            read_published(name, tmp_path), read_torchvision(name, tmp_path), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / "raw", ("train", "t10k"), np.zeros((3, 28, 28)), np.arange(3))
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte is not a complete file"):
        load_dataset("mnist", str(tmp_path))
