"""Data of the user's own, as arrays: from a function, a Hugging Face data set, image folders.

Used by `mll_flower.tasks.data`, which turns the arrays into a ``Dataset``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.own_code import call
from mll_flower.tasks.published import Arrays

_FORMS = (
    "give (x_train, y_train, x_test, y_test), or a pair (train, test) of torch data sets or of "
    "(x, y) pairs"
)


def call_loader(reference: str, code_dir: str, data_dir: str) -> Arrays:
    """Call a function of the user's that gives a data set.

    Parameters
    ----------
    reference, code_dir
        As in `mll_flower.tasks.own_code.find`.
    data_dir : str
        Given to the function if it has a parameter of that name.

    Returns
    -------
    tuple of ndarray
        x_train, y_train, x_test, y_test. torch data sets are read once, row by row.
    """
    result = call("dataset", reference, code_dir, data_dir=data_dir)
    if not isinstance(result, Sequence) or len(result) not in (2, 4):
        raise ValueError(f"dataset={reference!r} gives a {_kind(result)}: {_FORMS}")
    if len(result) == 4:
        x_train, y_train, x_test, y_test = map(_array, result)
    else:
        x_train, y_train = _pair(reference, "train", result[0])
        x_test, y_test = _pair(reference, "test", result[1])
    arrays = x_train, y_train, x_test, y_test
    for name, array in zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True):
        if array.ndim == 0 or array.dtype.kind not in "buif":
            raise ValueError(
                f"dataset={reference!r}: {name} has shape {array.shape} and dtype {array.dtype}; "
                f"{_FORMS}, with numbers in them"
            )
    return arrays


def stack_rows(name: str, rows: Sequence[Any], what: str = "row") -> NDArray[Any]:
    """Stack examples, which must have one shape.

    Parameters
    ----------
    name : str
        The data set, for messages.
    rows : sequence
        Arrays, tensors, numbers or images.
    what : str
        What the rows are, for messages.
    """
    arrays = [_array(row) for row in rows]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"{name}: {what} {number} has shape {array.shape} and {what} 0 {arrays[0].shape}: "
                "all must have one shape; resize or pad them"
            )
    return np.stack(arrays)


def _pair(reference: str, name: str, part: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return x and y of one of the two parts that a loader gave."""
    where = f"dataset={reference!r}, {name}"
    tensors = getattr(part, "tensors", part)  # a TensorDataset has its rows in one piece
    if isinstance(tensors, tuple | list) and len(tensors) == 2:
        x, y = map(_array, tensors)
        return x, y
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__"):
        raise ValueError(
            f"{where} is a {_kind(part)}: {_FORMS}; a torch data set must be map-style, with "
            "__len__ and __getitem__"
        )
    if len(part) == 0:
        raise ValueError(f"{where} has no rows")
    rows = [part[row] for row in range(len(part))]
    if not isinstance(rows[0], tuple | list) or len(rows[0]) != 2:
        raise ValueError(f"{where}: row 0 is a {_kind(rows[0])}: a row must be a pair (x, y)")
    return stack_rows(where, [x for x, _ in rows]), stack_rows(where, [y for _, y in rows])


def _array(value: Any) -> NDArray[Any]:
    """Return an array, a tensor or an image as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.empty((), dtype=object)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, Sequence):
        return f"{kind} of {len(value)}"
    if isinstance(value, Mapping):
        return f"{kind} with the keys {', '.join(map(str, value))}"
    return kind


def read_image_folder(name: str, root: Path) -> tuple[Arrays, int]:
    """Read ``train/CLASS/*`` and ``test/CLASS/*`` below a folder, through torchvision.

    Returns
    -------
    arrays : tuple of ndarray
        uint8 images (rows, height, width, 3) and int64 labels in the order of the classes' names.
    classes : int
        Number of classes.
    """
    from torchvision.datasets import ImageFolder

    parts = []
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise ValueError(
                f"dataset {name!r}: the folder {root / split} does not exist: put images into "
                "train/CLASS/ and test/CLASS/ below the folder that you name"
            )
        try:
            parts.append(ImageFolder(str(root / split)))
        except (FileNotFoundError, RuntimeError) as error:
            raise ValueError(f"dataset {name!r}: {root / split}: {error}") from None
    train, test = parts
    if train.classes != test.classes:
        raise ValueError(
            f"dataset {name!r}: train/ has the classes {', '.join(train.classes)} and test/ "
            f"{', '.join(test.classes)}: both need a folder per class"
        )
    shape: tuple[int, ...] | None = None
    arrays: list[NDArray[Any]] = []
    for part in parts:
        images = []
        for path, _ in part.samples:
            image = np.asarray(part.loader(path))
            shape = shape or image.shape
            if image.shape != shape:
                raise ValueError(
                    f"dataset {name!r}: {path} has {image.shape[1]}x{image.shape[0]} pixels and "
                    f"{train.samples[0][0]} {shape[1]}x{shape[0]}: resize all images to one size"
                )
            images.append(image)
        arrays += [np.stack(images), np.asarray(part.targets, dtype=np.int64)]
    return (arrays[0], arrays[1], arrays[2], arrays[3]), len(train.classes)
