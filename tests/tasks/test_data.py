"""Data sets: their names, the embedded digits, and arrays from ``.npz`` files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mll_flower.tasks.data import (
    absolute_dataset,
    known_datasets,
    load_dataset,
    npz_path,
    parse_dataset,
)

RNG = np.random.default_rng(0)


def save_npz(path: Path, x: np.ndarray, y: np.ndarray) -> str:
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return f"npz:{path}"


def test_every_class_of_the_digits_is_split_in_the_same_proportion() -> None:
    digits = load_dataset("digits")
    assert digits.x_train.shape == (1437, 1, 8, 8)
    assert digits.x_test.shape == (360, 1, 8, 8)
    assert (digits.x_train.dtype, digits.y_train.dtype) == (np.float32, np.int64)
    assert digits.classes == 10
    assert digits.input_shape == (1, 8, 8)
    train, test = np.bincount(digits.y_train), np.bincount(digits.y_test)
    assert np.all(np.abs(test - (train + test) / 5) < 1)
    both = np.concatenate([digits.x_train, digits.x_test]).reshape(1797, 64)
    rows = np.column_stack([both, np.concatenate([digits.y_train, digits.y_test])])
    x, y = load_digits(return_X_y=True)
    expected = np.column_stack([x / 16, y])
    np.testing.assert_array_equal(
        rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)].astype(np.float32)
    )
    np.testing.assert_array_equal(digits.x_train, load_dataset("digits").x_train)


def test_npz_takes_features_grey_images_and_both_channel_orders(tmp_path: Path) -> None:
    y = np.array([0, 1, 2, 1])
    flat = RNG.normal(size=(4, 6))
    found = load_dataset(save_npz(tmp_path / "flat.npz", flat, y))
    np.testing.assert_allclose(found.x_train, flat, rtol=1e-6)
    assert (found.input_shape, found.classes, found.label) == ((6,), 3, "flat.npz")

    grey = RNG.integers(0, 256, (4, 5, 7)).astype(np.uint8)
    found = load_dataset(save_npz(tmp_path / "grey.npz", grey, y))
    np.testing.assert_allclose(found.x_train[:, 0], grey / 255, rtol=1e-6)

    first = RNG.integers(0, 256, (4, 3, 5, 7)).astype(np.uint8)
    last = first.transpose(0, 2, 3, 1)
    for name, x in (("first", first), ("last", last)):
        found = load_dataset(save_npz(tmp_path / f"{name}.npz", x, y[:, None]))
        np.testing.assert_allclose(found.x_train, first / 255, rtol=1e-6)
        np.testing.assert_array_equal(found.y_train, y)


def test_npz_float_images_are_not_scaled(tmp_path: Path) -> None:
    x = np.full((3, 4, 4), 200.0)
    assert load_dataset(save_npz(tmp_path / "a.npz", x, np.arange(3))).x_train.max() == 200


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 4)), np.array([-1, 0, 1]), "labels run from -1 to 1"),
        (np.zeros((3, 4)), np.array(["a", "b", "c"]), "one whole number per row"),
        (np.zeros((3, 4)), np.zeros((3, 2), int), "one whole number per row"),
        (np.zeros((3, 4)), np.array([0.5, np.nan, 1]), "y holds values that are not finite"),
        (np.zeros((3, 4)), np.arange(4), "one whole number per row"),
        (np.full((3, 4), np.nan), np.arange(3), "not finite"),
        (np.zeros(3), np.arange(3), r"x has shape \(3,\)"),
        (np.array([["a"]] * 3), np.arange(3), "dtype <U1"),
    ],
)
def test_npz_that_cannot_be_a_dataset_is_refused(
    tmp_path: Path, x: np.ndarray, y: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(save_npz(tmp_path / "bad.npz", x, y))


def test_npz_with_missing_arrays_or_different_shapes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, x_train=np.zeros((2, 3)), y_train=np.zeros(2, int))
    with pytest.raises(ValueError, match="has no x_test, y_test"):
        load_dataset(f"npz:{path}")
    y = np.zeros(2, int)
    np.savez(path, x_train=np.zeros((2, 3)), y_train=y, x_test=np.zeros((2, 4)), y_test=y)
    with pytest.raises(ValueError, match=r"\(3,\) and test examples \(4,\)"):
        load_dataset(f"npz:{path}")
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"not an \.npz file"):
        load_dataset(f"npz:{tmp_path / 'single.npy'}")
    path.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match=r"not an \.npz file"):
        load_dataset(f"npz:{path}")
    with pytest.raises(FileNotFoundError, match=r"none\.npz does not exist"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}")


def test_unknown_names_are_refused() -> None:
    assert parse_dataset("emnist") == "emnist:letters"
    assert parse_dataset("npz:a.npz") == "npz:a.npz"
    for bad in ("mnits", "npz:", "emnist:all", ""):
        with pytest.raises(ValueError, match="use one of digits, emnist, mnist"):
            load_dataset(bad)
    with pytest.raises(ValueError, match="unknown scaling"):
        load_dataset("digits", scaling="other")  # type: ignore[arg-type]


def test_the_parser_takes_every_known_name() -> None:
    full = {name: parse_dataset(name) for name in known_datasets()}
    assert full.pop("emnist") == "emnist:letters"
    assert all(parsed == name for name, parsed in full.items())


def test_npz_paths(tmp_path: Path) -> None:
    assert npz_path("digits") is None
    assert npz_path("npz:a/b.npz") == Path("a/b.npz")
    assert npz_path("npz:~/b.npz") == Path.home() / "b.npz"
    assert absolute_dataset("mnist", tmp_path) == "mnist"
    assert absolute_dataset("npz:a.npz", tmp_path) == f"npz:{tmp_path / 'a.npz'}"
    assert absolute_dataset("npz:/x/a.npz", tmp_path) == "npz:/x/a.npz"


def test_names_can_be_checked_without_torch() -> None:
    code = (
        "import sys, mll_flower.tasks as t; t.parse_dataset('mnist'); t.parse_partition('iid');"
        "t.known_models(); assert not {'torch', 'datasets', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 7, 1000], r"3 different labels \(0, 7, 1000\) that run to 1000 .* 1,001 outputs"),
        ([0, 10**9], r"number them from 0 to 1 .* or give classes=1000000001"),
    ],
)
def test_labels_with_large_gaps_are_refused(tmp_path, labels, message):
    y = np.resize(labels, 12)
    arrays = {"x_train": np.zeros((12, 2)), "y_train": y, "x_test": np.zeros((12, 2)), "y_test": y}
    np.savez(tmp_path / "gaps.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_dataset(f"npz:{tmp_path / 'gaps.npz'}")
    if max(labels) == 1000:
        assert load_dataset(f"npz:{tmp_path / 'gaps.npz'}", classes=1001).classes == 1001
