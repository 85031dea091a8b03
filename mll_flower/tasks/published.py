"""The data sets that torchvision reads: their sizes, classes, means and standard deviations.

Used by `mll_flower.tasks.data`, which turns the arrays into a ``Dataset``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""x_train, y_train, x_test, y_test as they were read."""

PACKED_CIFAR = "cifar10.npz"
"""CIFAR-10 in one file, in place of torchvision's folder."""

_CIFAR_FOLDER = "cifar-10-batches-py"
# Training and test rows of the rebuilt split of EMNIST letters that docs/reproduction.md uses.
_EMNIST_REBUILT = (90_807, 10_400)


@dataclass(frozen=True)
class PublishedDataset:
    """What is published about a data set.

    Parameters
    ----------
    title : str
        The name that results are labelled with.
    torchvision : str
        Its class in ``torchvision.datasets``.
    rows : tuple of int
        Number of training and of test rows.
    classes : int
        Number of classes.
    mean, std : tuple of float
        Mean and standard deviation of each channel, for pixels in [0, 1].
    """

    title: str
    torchvision: str
    rows: tuple[int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _emnist(split: str, rows: tuple[int, int], classes: int) -> PublishedDataset:
    # The mean and standard deviation of the letters serve for every split: the splits are drawn
    # from the same images, and the values published for the others differ by less than 0.003.
    return PublishedDataset(f"EMNIST {split}", "EMNIST", rows, classes, (0.1722,), (0.3309,))


PUBLISHED = {
    "mnist": PublishedDataset("MNIST", "MNIST", (60_000, 10_000), 10, (0.1307,), (0.3081,)),
    "fashion-mnist": PublishedDataset(
        "Fashion-MNIST", "FashionMNIST", (60_000, 10_000), 10, (0.2860,), (0.3530,)
    ),
    "emnist:letters": _emnist("letters", (124_800, 20_800), 26),
    "emnist:balanced": _emnist("balanced", (112_800, 18_800), 47),
    "emnist:byclass": _emnist("byclass", (697_932, 116_323), 62),
    "emnist:bymerge": _emnist("bymerge", (697_932, 116_323), 47),
    "emnist:digits": _emnist("digits", (240_000, 40_000), 10),
    "emnist:mnist": _emnist("mnist", (60_000, 10_000), 10),
    "cifar10": PublishedDataset(
        "CIFAR-10",
        "CIFAR10",
        (50_000, 10_000),
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
}
"""Full name of a data set -> what is published about it."""


def label_of(name: str, arrays: Arrays) -> str:
    """Return the label of a data set; one with other row counts never gets the published label."""
    title, rows = PUBLISHED[name].title, (len(arrays[0]), len(arrays[2]))
    if rows == PUBLISHED[name].rows:
        return title
    if name == "emnist:letters" and rows == _EMNIST_REBUILT:
        return "EMNIST letters (rebuilt split)"
    return f"{title} (another split: {rows[0]:,} / {rows[1]:,} rows)"


def read_torchvision(name: str, root: Path) -> Arrays:
    """Read a data set from a torchvision root; download it there if it is missing.

    Parameters
    ----------
    name : str
        A key of `PUBLISHED`.
    root : Path
        The folder that holds ``MNIST/raw/...`` and the like.

    Returns
    -------
    tuple of ndarray
        Images upright, labels from 0.

    Raises
    ------
    FileNotFoundError
        If the files are missing and cannot be downloaded; the message names them.
    """
    from torchvision import datasets

    family = PUBLISHED[name].torchvision
    make: Callable[..., Any] = getattr(datasets, family)
    split = name.partition(":")[2]
    options = {"split": split} if split else {}
    created = [root / family / "raw", root / family, root]
    created = [folder for folder in created if not folder.exists()]
    try:
        # download=True downloads only what is missing.
        train, test = (make(root, train=t, download=True, **options) for t in (True, False))
    except (RuntimeError, OSError) as error:
        for folder in created:  # a failed download leaves no empty folders
            with suppress(OSError):
                folder.rmdir()
        raise FileNotFoundError(
            f"dataset {name!r}: {_expected_files(name)} could be neither read from "
            f"{root.absolute()} nor downloaded ({str(error).strip()}). Put the files there, or set "
            "data-dir (or MLL_FLOWER_DATA) to the folder that holds them, or use dataset 'digits', "
            "which needs no files."
        ) from error
    x_train, x_test = np.asarray(train.data), np.asarray(test.data)
    y_train, y_test = np.asarray(train.targets), np.asarray(test.targets)
    return _upright(name, (x_train, y_train, x_test, y_test))


def read_published(name: str, root: Path) -> Arrays:
    """Read a data set from a torchvision root; download it there if it is missing.

    Files of MNIST's format are read without torchvision, which takes seconds and 90 MB to load.

    Parameters
    ----------
    name, root
        As in `read_torchvision`.
    """
    if name == "cifar10" or not is_present(name, root):
        return read_torchvision(name, root)
    x_train, y_train, x_test, y_test = map(_read_idx, published_files(name, root))
    return _upright(name, (x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64)))


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of MNIST's format: two zeros, the type (8: bytes), the shape, the values."""
    content = path.read_bytes()
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if not axes or len(content) != start + math.prod(shape):
        raise ValueError(f"{path} is not a complete file of MNIST's format (idx): get it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _upright(name: str, arrays: Arrays) -> Arrays:
    """Turn images as their files hold them, and number labels from 0."""
    x_train, y_train, x_test, y_test = arrays
    if PUBLISHED[name].torchvision == "EMNIST":  # its files swap rows and columns
        x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
    if name == "emnist:letters":  # labelled 1..26
        y_train, y_test = y_train.astype(np.int64) - 1, y_test.astype(np.int64) - 1
    return x_train, y_train, x_test, y_test


def is_present(name: str, root: Path) -> bool:
    """Return whether the files of a data set are in a torchvision root.

    Parameters
    ----------
    name, root
        As in `read_torchvision`.
    """
    files = published_files(name, root)
    return bool(files) and all(file.is_file() for file in files)


def published_files(name: str, root: Path) -> list[Path]:
    """Return the files of a data set: images and labels to train on, then those of the test.

    Of CIFAR-10: those that are there.
    """
    if name == "cifar10":
        packed = root / PACKED_CIFAR
        return [packed] if packed.is_file() else sorted((root / _CIFAR_FOLDER).glob("*"))
    family, test, prefix = _names(name)
    return [
        root / family / "raw" / f"{prefix}{part}-{kind}-ubyte"
        for part in ("train", test)
        for kind in ("images-idx3", "labels-idx1")
    ]


def _names(name: str) -> tuple[str, str, str]:
    """Return the folder of a data set, the name of its test part, and the prefix of its files."""
    family = PUBLISHED[name].torchvision
    if family == "EMNIST":
        return family, "test", f"emnist-{name.partition(':')[2]}-"
    return family, "t10k", ""


def _expected_files(name: str) -> str:
    if name == "cifar10":
        return f"{PACKED_CIFAR} or the folder {_CIFAR_FOLDER}"
    family, test, prefix = _names(name)
    return (
        f"{family}/raw/{prefix}{{train,{test}}}-images-idx3-ubyte and "
        f"{prefix}{{train,{test}}}-labels-idx1-ubyte"
    )
