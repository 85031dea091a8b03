"""A data set in memory, and how arrays from any source become one.

Used by `mll_flower.tasks.data`, which finds and reads the sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.published import Arrays


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
        float32; (rows, channels, height, width), or (rows, features). Of a user's own function:
        of any shape, and int64 where it gave whole numbers that are not pixels (uint8).
    y_train, y_test : ndarray
        int64 labels in 0 .. classes - 1, or float32 numbers to predict.
    classes : int
        Number of classes; 0 in regression.
    """

    name: str
    label: str
    x_train: NDArray[np.float32]
    y_train: NDArray[Any]
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x_train.shape[1:]

    @property
    def regression(self) -> bool:
        """Whether the targets are numbers, not classes."""
        return self.classes == 0

    @property
    def outputs(self) -> int:
        """Number of classes, or of targets per row in regression."""
        return self.classes or math.prod(self.y_train.shape[1:])


def assemble(
    name: str, label: str, arrays: Arrays, classes: int | None, as_given: bool = False
) -> Dataset:
    """Check the arrays of a data set and bring them to the form that all data sets have.

    Parameters
    ----------
    name, label : str
        As in `Dataset`.
    arrays : tuple of ndarray
        x_train, y_train, x_test, y_test.
    classes : int, optional
        Number of classes, if that is known.
    as_given : bool
        Whether examples and targets may have any shape, and keep it (pixels aside).
    """
    x_train, y_train, x_test, y_test = arrays
    x_train, x_test = (prepare_examples(name, x, as_given) for x in (x_train, x_test))
    y_train = _targets(name, y_train, len(x_train), as_given)
    y_test = _targets(name, y_test, len(x_test), as_given)
    for what, train, test in (("examples", x_train, x_test), ("targets", y_train, y_test)):
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise ValueError(
                f"dataset {name!r}: training {what} have shape {train.shape[1:]} and test {what} "
                f"{test.shape[1:]}, with dtypes {train.dtype} and {test.dtype}; they must be the "
                "same"
            )
    if y_train.dtype.kind == "f":
        if classes:
            raise ValueError(
                f"dataset {name!r} has {classes} classes and floating-point targets: give whole "
                "numbers as targets, or no number of classes"
            )
        return Dataset(name, label, x_train, y_train, x_test, y_test, 0)
    low = min(int(y_train.min()), int(y_test.min()))
    high = max(int(y_train.max()), int(y_test.max()))
    if low < 0 or (classes is not None and high >= classes):
        raise ValueError(
            f"dataset {name!r}: labels run from {low} to {high}; they must be whole numbers from 0"
            + (f" to {classes - 1}" if classes else "")
        )
    if classes is None:
        _check_gaps(name, np.union1d(y_train, y_test))
    return Dataset(name, label, x_train, y_train, x_test, y_test, classes or max(high + 1, 2))


def _check_gaps(name: str, labels: NDArray[np.int64]) -> None:
    """Refuse labels with large gaps, which would make a model with outputs that nothing uses."""
    outputs = int(labels[-1]) + 1
    # A few classes may be missing from a small data set.
    if outputs > 2 * max(len(labels), 10):
        shown = ", ".join(map(str, labels[:5].tolist())) + (", ..." if len(labels) > 5 else "")
        raise ValueError(
            f"dataset {name!r}: {len(labels)} different labels ({shown}) that run to "
            f"{outputs - 1} would make a model with {outputs:,} outputs: number them from 0 to "
            f"{len(labels) - 1} (np.unique(y, return_inverse=True)), or give classes={outputs}"
        )


def prepare_examples(name: str, x: NDArray[Any], as_given: bool = False) -> NDArray[Any]:
    """Bring examples to the form that those of a data set have.

    Parameters
    ----------
    name : str
        The data set, for messages.
    x : ndarray
        Examples as they are before `assemble`.
    as_given : bool
        As in `assemble`.
    """
    return (_given_examples if as_given else _examples)(name, x)


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
    return _finite(name, "x", scaled)


def _given_examples(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return the examples of a user's function in their own shape; uint8 are pixels."""
    if x.dtype == np.uint8 and x.ndim in (2, 3, 4):
        return _examples(name, x)
    if len(x) == 0:
        raise ValueError(f"dataset {name!r}: x has shape {x.shape}: give at least one row")
    if x.dtype.kind in "ui":
        return np.array(x, dtype=np.int64, order="C")
    return _finite(name, "x", np.array(x, dtype=np.float32, order="C"))


def _targets(name: str, y: NDArray[Any], rows: int, any_shape: bool) -> NDArray[Any]:
    """Return class labels as int64, or numbers to predict as float32."""
    number = y.dtype.kind == "f"
    if y.shape[:1] == (rows,) and y.size == rows and not (number and any_shape):
        y = y.reshape(rows)
    fits = y.ndim == 1 or any_shape or (number and y.ndim == 2)
    if y.shape[:1] != (rows,) or y.size == 0 or not fits or y.dtype.kind not in "buif":
        raise ValueError(
            f"dataset {name!r}: y has shape {y.shape} and dtype {y.dtype} for {rows} rows of x; "
            "use one whole number per row (its class), or floating-point numbers to predict"
        )
    return _finite(name, "y", y.astype(np.float32)) if number else y.astype(np.int64)


def _finite(name: str, what: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise ValueError(
            f"dataset {name!r}: {what} holds values that are not finite in float32: remove or "
            "replace NaN, infinity and very large numbers"
        )
    return values
