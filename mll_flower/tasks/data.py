"""The data sets of the tasks, as NumPy arrays.

Every data set becomes float32 images of shape (rows, channels, height, width), or float32 rows of
features, with int64 labels that start at 0. Pixels are first brought to [0, 1] (digits: / 16,
uint8: / 255). With ``scaling="standard"`` the channels of the torchvision sets are then normalised
with their published means and standard deviations; for digits
(scikit-learn's 8x8 images) and a user's own file (``npz:PATH``) none are published, and they stay
as they are.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.published import PUBLISHED, Arrays, label_of, read_torchvision

Scaling = Literal["standard", "unit"]

_NPZ = "npz:"
_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows of one data set.

    Parameters
    ----------
    name : str
        The name under which it was requested.
    label : str
        How results on it are labelled. A set whose row counts are not the published ones never
        gets the published set's label.
    x_train, x_test : ndarray
        float32; (rows, channels, height, width), or (rows, features).
    y_train, y_test : ndarray
        int64 labels in 0 .. classes - 1.
    classes : int
        Number of classes.
    """

    name: str
    label: str
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x_train.shape[1:]


def known_datasets() -> tuple[str, ...]:
    """Return the names that `load_dataset` knows; ``npz:PATH`` stands for a file of your own."""
    return ("digits", "emnist", *PUBLISHED, f"{_NPZ}PATH")


def parse_dataset(name: str) -> str:
    """Check a data set's name without reading any data, and return its full form.

    Parameters
    ----------
    name : str
        One of `known_datasets`.

    Returns
    -------
    str
        The name, with ``emnist`` written out as ``emnist:letters``.

    Raises
    ------
    ValueError
        If the name is not known.
    """
    full = "emnist:letters" if name == "emnist" else name
    if full == "digits" or full in PUBLISHED or (full.startswith(_NPZ) and full != _NPZ):
        return full
    raise ValueError(f"unknown dataset {name!r}: use one of {', '.join(known_datasets())}")


def npz_path(name: str) -> Path | None:
    """Return the file of a data set ``npz:PATH``; None for any other data set."""
    return Path(name.removeprefix(_NPZ)).expanduser() if name.startswith(_NPZ) else None


def absolute_dataset(name: str, folder: Path) -> str:
    """Make the path of a data set ``npz:PATH`` absolute; other names stay as they are.

    Parameters
    ----------
    name : str
        The data set's name.
    folder : Path
        Where a relative path starts.
    """
    path = npz_path(name)
    return name if path is None else f"{_NPZ}{(folder / path).absolute()}"


def load_dataset(name: str, data_dir: str | None = None, scaling: Scaling = "standard") -> Dataset:
    """Load a data set from `data_dir`, or download it there if it is missing.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 8x8 digits, embedded, 1,437 / 360 rows), ``mnist``,
        ``fashion-mnist``, ``emnist`` (its letters) or ``emnist:SPLIT``, ``cifar10``, or
        ``npz:PATH``: a file with the arrays x_train, y_train, x_test and y_test, where x is
        (rows, features), (rows, height, width), or images with channels first or last.
    data_dir : str, optional
        A torchvision root (``MNIST/raw/...``), which may also hold CIFAR-10 as ``cifar10.npz``.
        The default is the environment variable MLL_FLOWER_DATA, or ``data`` if it is not set.
    scaling : {"standard", "unit"}
        ``standard`` normalises channels by the published mean and standard deviation; ``unit``
        leaves pixels in [0, 1].

    Returns
    -------
    Dataset
        The rows; images are upright, with channels first.

    Raises
    ------
    ValueError
        If the name is not known, or the arrays found cannot be a data set.
    FileNotFoundError
        If the files are missing and cannot be downloaded; the message names them.
    """
    full = parse_dataset(name)
    if scaling not in ("standard", "unit"):
        raise ValueError(f"unknown scaling {scaling!r}: use 'standard' or 'unit'")
    if full == "digits":
        return _digits(name)
    path = npz_path(full)
    if path is not None:
        if not path.is_file():
            raise FileNotFoundError(f"dataset {name!r}: the file {path.absolute()} does not exist")
        return _assemble(name, path.name, _read_npz(path), None)
    root = Path(data_dir or os.environ.get("MLL_FLOWER_DATA") or "data").expanduser()
    known = PUBLISHED[full]
    packed = root / "cifar10.npz"
    if full == "cifar10" and packed.is_file():
        arrays = _read_npz(packed)
    else:
        arrays = read_torchvision(full, root)
    data = _assemble(name, label_of(full, arrays), arrays, known.classes)
    if scaling == "standard":
        for x in (data.x_train, data.x_test):
            x -= np.asarray(known.mean, np.float32)[:, None, None]
            x /= np.asarray(known.std, np.float32)[:, None, None]
    return data


def _digits(name: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    # Every fifth row in the order of the labels is a test row: each class is split in the same
    # proportion, to within one row, and no random number generator is needed.
    test = np.zeros(len(y), dtype=bool)
    test[np.argsort(y, kind="stable")[::5]] = True
    x = images.reshape(-1, 1, 8, 8) / 16
    return _assemble(name, "digits (8x8)", (x[~test], y[~test], x[test], y[test]), 10)


def _read_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive}
    except (zipfile.BadZipFile, EOFError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not an .npz file as np.savez writes them: {error}") from error
    missing = [key for key in _NPZ_KEYS if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no {', '.join(missing)}: save it with "
            "np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    return cast(Arrays, tuple(arrays[key] for key in _NPZ_KEYS))


def _assemble(name: str, label: str, arrays: Arrays, classes: int | None) -> Dataset:
    """Check the arrays of a data set and bring them to the form that all data sets have."""
    x_train, y_train, x_test, y_test = arrays
    x_train, x_test = _examples(name, x_train), _examples(name, x_test)
    y_train, y_test = _labels(name, y_train, len(x_train)), _labels(name, y_test, len(x_test))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"dataset {name!r}: training examples have shape {x_train.shape[1:]} and test examples "
            f"{x_test.shape[1:]}; they must be the same"
        )
    low = min(int(y_train.min()), int(y_test.min()))
    high = max(int(y_train.max()), int(y_test.max()))
    if low < 0 or (classes is not None and high >= classes):
        raise ValueError(
            f"dataset {name!r}: labels run from {low} to {high}; they must be whole numbers from 0"
            + (f" to {classes - 1}" if classes else "")
        )
    return Dataset(name, label, x_train, y_train, x_test, y_test, classes or max(high + 1, 2))


def _examples(name: str, x: NDArray[Any]) -> NDArray[np.float32]:
    if x.ndim not in (2, 3, 4) or len(x) == 0 or x.dtype.kind not in "buif":
        raise ValueError(
            f"dataset {name!r}: x has shape {x.shape} and dtype {x.dtype}; use numbers of shape "
            "(rows, features), (rows, height, width), (rows, channels, height, width) or "
            "(rows, height, width, channels), with at least one row"
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)  # channels last; a reshape would mix pixels and channels
    scaled = np.array(x, dtype=np.float32, order="C")
    if x.dtype == np.uint8:
        scaled /= 255
    if not np.isfinite(scaled).all():
        raise ValueError(
            f"dataset {name!r}: x holds values that are not finite in float32: remove or replace "
            "NaN, infinity and very large numbers"
        )
    return scaled


def _labels(name: str, y: NDArray[Any], rows: int) -> NDArray[np.int64]:
    if y.size != rows or y.shape[:1] != (rows,) or y.dtype.kind not in "bui":
        raise ValueError(
            f"dataset {name!r}: y has shape {y.shape} and dtype {y.dtype} for {rows} rows of x; "
            "use one whole number per row"
        )
    return y.reshape(rows).astype(np.int64)
