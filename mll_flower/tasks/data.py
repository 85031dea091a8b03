"""The data sets of the tasks, as NumPy arrays.

Every data set comes as float32 images of shape (rows, channels, height, width) with int64 labels
that start at 0. Pixels are first brought to [0, 1] (digits: / 16, uint8: / 255). With
``scaling="standard"`` the channels of the torchvision sets are then normalised with their published
means and standard deviations; digits and ``npz:`` data have no published ones and stay as they are.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

Scaling = Literal["standard", "unit"]
_Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
_EMNIST_REBUILT = (90_807, 10_400)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows of one data set.

    Parameters
    ----------
    name : str
        The name it was asked for by.
    label : str
        What results on it are labelled with. It follows from the rows that were found: a set whose
        row counts are not the published ones is never labelled as the published one.
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


@dataclass(frozen=True)
class _Known:
    """What is published about a data set: its class in torchvision, row counts and pixels."""

    title: str
    torchvision: str
    rows: tuple[int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _emnist(split: str, rows: tuple[int, int], classes: int) -> _Known:
    # One pair of constants (those of the letters) for every split: the splits are drawn from the
    # same pictures, and what is printed for the others differs by less than 0.003.
    return _Known(f"EMNIST {split}", "EMNIST", rows, classes, (0.1722,), (0.3309,))


_KNOWN = {
    "mnist": _Known("MNIST", "MNIST", (60_000, 10_000), 10, (0.1307,), (0.3081,)),
    "fashion-mnist": _Known(
        "Fashion-MNIST", "FashionMNIST", (60_000, 10_000), 10, (0.2860,), (0.3530,)
    ),
    "emnist:letters": _emnist("letters", (124_800, 20_800), 26),
    "emnist:balanced": _emnist("balanced", (112_800, 18_800), 47),
    "emnist:byclass": _emnist("byclass", (697_932, 116_323), 62),
    "emnist:bymerge": _emnist("bymerge", (697_932, 116_323), 47),
    "emnist:digits": _emnist("digits", (240_000, 40_000), 10),
    "emnist:mnist": _emnist("mnist", (60_000, 10_000), 10),
    "cifar10": _Known(
        "CIFAR-10",
        "CIFAR10",
        (50_000, 10_000),
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
}


def known_datasets() -> tuple[str, ...]:
    """Names that `load_dataset` knows; ``npz:PATH`` stands for one's own arrays."""
    return ("digits", "emnist", *_KNOWN, "npz:PATH")


def parse_dataset(name: str) -> str:
    """Check a data set's name without reading any data, and give its full form.

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
    if full == "digits" or full in _KNOWN or (full.startswith("npz:") and len(full) > 4):
        return full
    raise ValueError(f"unknown dataset {name!r}: use one of {', '.join(known_datasets())}")


def npz_path(name: str) -> Path | None:
    """Return the file of a data set ``npz:PATH``; None for any other data set."""
    return Path(name.removeprefix("npz:")).expanduser() if name.startswith("npz:") else None


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
    return name if path is None else f"npz:{(folder / path).absolute()}"


def load_dataset(name: str, data_dir: str | None = None, scaling: Scaling = "standard") -> Dataset:
    """Load a data set from `data_dir`, or download it there when it is missing.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 8x8 digits, embedded, 1,437 / 360 rows), ``mnist``,
        ``fashion-mnist``, ``emnist`` (its letters) or ``emnist:SPLIT``, ``cifar10``, or
        ``npz:PATH``: a file with the arrays x_train, y_train, x_test and y_test, where x is
        (rows, features), (rows, height, width), or images with channels first or last.
    data_dir : str, optional
        A torchvision root (``MNIST/raw/...``); CIFAR-10 may also be there as ``cifar10.npz``.
        Without it the environment variable MLL_FLOWER_DATA says where, and else ``data``.
    scaling : {"standard", "unit"}
        ``standard`` normalises channels by the published mean and standard deviation; ``unit``
        leaves pixels in [0, 1].

    Returns
    -------
    Dataset
        The rows, upright, channels first.

    Raises
    ------
    ValueError
        If the name is not known, or the arrays found are not such a data set.
    FileNotFoundError
        If the files are not there and cannot be downloaded; the message says what was looked for.
    """
    full = parse_dataset(name)
    if scaling not in ("standard", "unit"):
        raise ValueError(f"unknown scaling {scaling!r}: use 'standard' or 'unit'")
    if full == "digits":
        return _digits(name)
    if full.startswith("npz:"):
        path = Path(full[4:]).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"dataset {name!r}: there is no file {path.absolute()}")
        return _assemble(name, path.name, _read_npz(path), None)
    root = Path(data_dir or os.environ.get("MLL_FLOWER_DATA") or "data").expanduser()
    known = _KNOWN[full]
    packed = root / "cifar10.npz"
    if full == "cifar10" and packed.is_file():
        arrays = _read_npz(packed)
    else:
        arrays = _read_torchvision(full, known, root)
    data = _assemble(name, _label(full, known, arrays), arrays, known.classes)
    if scaling == "standard":
        for x in (data.x_train, data.x_test):
            x -= np.asarray(known.mean, np.float32)[:, None, None]
            x /= np.asarray(known.std, np.float32)[:, None, None]
    return data


def _label(full: str, known: _Known, arrays: _Arrays) -> str:
    rows = (len(arrays[0]), len(arrays[2]))
    if rows == known.rows:
        return known.title
    if full == "emnist:letters" and rows == _EMNIST_REBUILT:
        return "EMNIST letters (rebuilt split)"
    return f"{known.title} (another split: {rows[0]:,} / {rows[1]:,} rows)"


def _digits(name: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    # Every fifth row in the order of the labels: each class is split alike, to within one row, and
    # the split hangs on no random number generator.
    test = np.zeros(len(y), dtype=bool)
    test[np.argsort(y, kind="stable")[::5]] = True
    x = images.reshape(-1, 1, 8, 8) / 16
    return _assemble(name, "digits (8x8)", (x[~test], y[~test], x[test], y[test]), 10)


def _read_npz(path: Path) -> _Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive}
    except (zipfile.BadZipFile, EOFError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not an .npz file of np.savez: {error}") from error
    missing = [key for key in _NPZ_KEYS if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no {', '.join(missing)}: save it with "
            "np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    return cast(_Arrays, tuple(arrays[key] for key in _NPZ_KEYS))


def _read_torchvision(full: str, known: _Known, root: Path) -> _Arrays:
    from torchvision import datasets

    make: Callable[..., Any] = getattr(datasets, known.torchvision)
    split = full.partition(":")[2]
    options = {"split": split} if split else {}
    try:
        # download=True downloads only what is not there.
        train, test = (make(root, train=t, download=True, **options) for t in (True, False))
    except (RuntimeError, OSError) as error:
        raise FileNotFoundError(
            f"dataset {full!r}: {_looked_for(full, known)} could be neither read from "
            f"{root.absolute()} nor downloaded ({str(error).strip()}). Put the files there, or set "
            "data-dir (or MLL_FLOWER_DATA) to the folder that holds them, or use dataset 'digits', "
            "which needs none."
        ) from error
    x_train, x_test = np.asarray(train.data), np.asarray(test.data)
    y_train, y_test = np.asarray(train.targets), np.asarray(test.targets)
    if known.torchvision == "EMNIST":  # its files hold pictures with rows and columns swapped
        x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
    if full == "emnist:letters":  # labelled 1..26
        y_train, y_test = y_train.astype(np.int64) - 1, y_test.astype(np.int64) - 1
    return x_train, y_train, x_test, y_test


def _looked_for(full: str, known: _Known) -> str:
    if full == "cifar10":
        return "cifar10.npz or the folder cifar-10-batches-py"
    test, prefix = "t10k", ""
    if known.torchvision == "EMNIST":
        test, prefix = "test", f"emnist-{full.partition(':')[2]}-"
    return (
        f"{known.torchvision}/raw/{prefix}{{train,{test}}}-images-idx3-ubyte and "
        f"{prefix}{{train,{test}}}-labels-idx1-ubyte"
    )


def _assemble(name: str, label: str, arrays: _Arrays, classes: int | None) -> Dataset:
    x_train, y_train, x_test, y_test = arrays
    x_train, x_test = _images(name, x_train), _images(name, x_test)
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


def _images(name: str, x: NDArray[Any]) -> NDArray[np.float32]:
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
        raise ValueError(f"dataset {name!r}: x holds values that are not finite in float32")
    return scaled


def _labels(name: str, y: NDArray[Any], rows: int) -> NDArray[np.int64]:
    if y.size != rows or y.shape[:1] != (rows,) or y.dtype.kind not in "bui":
        raise ValueError(
            f"dataset {name!r}: y has shape {y.shape} and dtype {y.dtype} for {rows} rows of x; "
            "use one whole number a row"
        )
    return y.reshape(rows).astype(np.int64)
