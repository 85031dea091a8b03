"""Data sets of Hugging Face, ``hf:NAME_OR_FOLDER``, as arrays.

A folder is read without network: one that ``save_to_disk`` wrote, or one with CSV, JSON, Parquet or
image files, as ``datasets.load_dataset`` reads them. A name is downloaded from the Hub, like
flwr-datasets does, which uses the same library.

Columns and splits are found by themselves where that is clear, and named after a ``#`` otherwise:
``hf:adult#x=age+hours,y=income,test=validation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.own_data import stack_rows
from mll_flower.tasks.published import Arrays

PREFIX = "hf:"

_OPTIONS = ("x", "y", "train", "test", "config")
_LABELS = ("label", "labels", "target", "y", "class")
_TESTS = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class Source:
    """What ``hf:...`` names.

    Parameters
    ----------
    path : str
        Name on the Hub, or a folder.
    options : Mapping
        What follows the ``#``: columns ``x`` (joined by +) and ``y``, splits ``train`` and
        ``test``, and ``config``, one of several configurations of a data set on the Hub.
    """

    path: str
    options: Mapping[str, str]


def parse(name: str) -> Source:
    """Read ``hf:PATH#key=value,...``; no data are needed."""
    path, _, text = name.removeprefix(PREFIX).partition("#")
    options = {}
    for pair in filter(None, text.split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in _OPTIONS or not value:
            raise ValueError(
                f"dataset {name!r}: {pair!r} after the # is not known: use "
                f"{', '.join(f'{key}=...' for key in _OPTIONS)} with commas between them"
            )
        options[key] = value
    if not path:
        raise ValueError(f"dataset {name!r} names nothing: write hf:NAME or hf:FOLDER")
    return Source(path, options)


def absolute(name: str, folder: Path) -> str:
    """Make the path of a folder absolute; a name on the Hub stays as it is."""
    source = parse(name)
    path = folder / Path(source.path).expanduser()
    if not path.is_dir():
        return name
    options = name.partition("#")[1:]
    return PREFIX + str(path.absolute()) + "".join(options)


def read_hugging_face(name: str) -> tuple[Arrays, int | None]:
    """Read a data set.

    Returns
    -------
    arrays : tuple of ndarray
        x_train, y_train, x_test, y_test.
    classes : int, optional
        Number of classes if the data set says so.
    """
    source = parse(name)
    splits = _load(name, source)
    train = _split(name, splits, source.options.get("train", "train"))
    wanted = source.options.get("test") or next((t for t in _TESTS if t in splits), "test")
    test = _split(name, splits, wanted)
    y, x = _columns(name, train.features, source.options)
    x_train, x_test = (_examples(name, part, x) for part in (train, test))
    feature = train.features[y]
    classes = getattr(feature, "num_classes", None)
    y_train, y_test = (_values(name, part, y) for part in (train, test))
    if y_train.dtype.kind == "U":  # names of classes are numbered in their order
        names, y_train = np.unique(y_train, return_inverse=True)
        unseen = sorted(set(y_test.tolist()) - set(names.tolist()))
        if unseen:
            raise ValueError(f"dataset {name!r}: {wanted} has classes that train lacks: {unseen}")
        y_test, classes = np.searchsorted(names, y_test), len(names)
    return (x_train, y_train, x_test, y_test), classes


def _load(name: str, source: Source) -> Any:
    import datasets

    folder = Path(source.path).expanduser()
    if source.path[:1] in (".", "/", "~") and not folder.is_dir():
        raise ValueError(f"dataset {name!r}: the folder {folder.absolute()} does not exist")
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(
                str(folder) if folder.is_dir() else source.path, source.options.get("config")
            )
    except Exception as error:  # of the network, of files, of the library: there are many kinds
        text = " ".join(str(error).split())[:500]
        raise ValueError(
            f"dataset {name!r} could not be loaded ({type(error).__name__}: {text}). Check the "
            "name and the network, or give a folder that holds it"
        ) from error
    return found if isinstance(found, dict) else {"train": found}


def _split(name: str, splits: Mapping[str, Any], wanted: str) -> Any:
    if wanted not in splits:
        raise ValueError(
            f"dataset {name!r} has the splits {', '.join(splits)} and no {wanted!r}: name yours "
            "after a #, as in #train=SPLIT,test=SPLIT"
        )
    return splits[wanted]


def _columns(
    name: str, features: Mapping[str, Any], options: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the column of the targets and the columns of the examples."""
    listed = ", ".join(f"{column} ({_type(features[column])})" for column in features)
    given = [options["y"]] if "y" in options else []
    given += options["x"].split("+") if "x" in options else []
    for column in given:
        if column not in features:
            raise ValueError(f"dataset {name!r} has no column {column!r}; it has {listed}")
    classes = [column for column in features if _type(features[column]) == "ClassLabel"]
    named = [column for column in _LABELS if column in features]
    candidates = given[:1] if "y" in options else (classes if len(classes) == 1 else named[:1])
    if not candidates:
        raise ValueError(
            f"dataset {name!r}: which column holds the targets is not clear; name it after a #, "
            f"as in #y=COLUMN. The columns are {listed}"
        )
    y = candidates[0]
    if "x" in options:
        return y, options["x"].split("+")
    images = [column for column in features if _type(features[column]) == "Image"]
    if len(images) == 1:
        return y, images
    rest = [column for column in features if column != y]
    unfit = [column for column in rest if not _is_number(features[column])]
    if len(images) > 1 or unfit or not rest:
        raise ValueError(
            f"dataset {name!r}: which columns hold the examples is not clear (one with images, or "
            f"others with numbers alone); name them after a #, as in #x=COLUMN+COLUMN. The "
            f"columns are {listed}"
        )
    return y, rest


def _type(feature: Any) -> str:
    kind = type(feature).__name__
    return str(feature.dtype) if kind == "Value" else kind


def _is_number(feature: Any) -> bool:
    inner = feature
    while hasattr(inner, "feature"):  # a list of numbers
        inner = inner.feature
    dtype = str(getattr(inner, "dtype", ""))
    return dtype.startswith(("int", "uint", "float", "bool"))


def _examples(name: str, part: Any, columns: list[str]) -> NDArray[Any]:
    if len(columns) == 1 and _type(part.features[columns[0]]) == "Image":
        images = list(part[columns[0]])
        mode = "L" if all(image.mode in ("L", "1") for image in images) else "RGB"
        where = f"dataset {name!r}, column {columns[0]!r}"
        return stack_rows(where, [image.convert(mode) for image in images], "image")
    parts = [_values(name, part, column) for column in columns]
    for column, x in zip(columns, parts, strict=True):
        if x.dtype.kind not in "buif":
            raise ValueError(
                f"dataset {name!r}: column {column!r} holds {x.dtype}: examples must be numbers or "
                "images; name other columns after a #, as in #x=COLUMN+COLUMN"
            )
    if len(parts) == 1 and parts[0].ndim > 1:
        return parts[0]
    wide = [x.reshape(len(x), -1).astype(np.float32) for x in parts]
    return np.concatenate(wide, axis=1)


def _values(name: str, part: Any, column: str) -> NDArray[Any]:
    values = part.with_format("numpy")[column][:]
    array = np.asarray(values) if not isinstance(values, list) else None
    if array is None or array.dtype == object:  # rows of different lengths, or text
        array = stack_rows(f"dataset {name!r}, column {column!r}", list(part[column]))
    return array
