"""The data sets of the tasks, as NumPy arrays.

Every data set becomes float32 images of shape (rows, channels, height, width), or float32 rows of
features, with int64 labels that start at 0, or float32 numbers to predict (regression). Examples
that a function of the user's gives keep their shape. Pixels are first brought to [0, 1]
(digits: / 16, uint8: / 255). With ``scaling="standard"`` the channels of the torchvision sets are
then normalised with their published means and standard deviations; for digits (scikit-learn's 8x8
images) and a user's own data none are published, and they stay as they are.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Literal, cast

import numpy as np

from mll_flower.tasks import hugging_face
from mll_flower.tasks.dataset import Dataset, assemble
from mll_flower.tasks.own_code import is_reference
from mll_flower.tasks.own_data import call_loader, read_image_folder
from mll_flower.tasks.published import (
    PACKED_CIFAR,
    PUBLISHED,
    Arrays,
    is_present,
    label_of,
    published_files,
    read_published,
    read_torchvision,
)
from mll_flower.tasks.shared_data import shared

__all__ = ["Dataset", "known_datasets", "load_dataset", "parse_dataset"]

Scaling = Literal["standard", "unit"]

_NPZ = "npz:"
_IMAGES = "image-folder:"
_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


def known_datasets() -> tuple[str, ...]:
    """Return the names that `load_dataset` knows; those from ``npz:PATH`` on are of your own."""
    own = (f"{_NPZ}PATH", f"{_IMAGES}PATH", f"{hugging_face.PREFIX}NAME_OR_FOLDER")
    return ("digits", "emnist", *PUBLISHED, *own, "module:function", "file.py:function")


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
    if full.startswith(hugging_face.PREFIX):
        hugging_face.parse(full)
        return full
    if full == "digits" or full in PUBLISHED:
        return full
    for prefix in (_NPZ, _IMAGES):
        if full.startswith(prefix) and full != prefix:
            return full
    if is_reference(full):
        return full
    raise ValueError(f"unknown dataset {name!r}: use one of {', '.join(known_datasets())}")


def npz_path(name: str) -> Path | None:
    """Return the file of a data set ``npz:PATH``; None for any other data set."""
    return Path(name.removeprefix(_NPZ)).expanduser() if name.startswith(_NPZ) else None


def own_folder(name: str) -> Path | None:
    """Return the folder of a data set ``image-folder:PATH``; None for any other data set."""
    return Path(name.removeprefix(_IMAGES)).expanduser() if name.startswith(_IMAGES) else None


def names_a_path(name: str) -> bool:
    """Return whether a data set is a file or folder on the machine that made its path absolute."""
    return (
        npz_path(name) is not None
        or own_folder(name) is not None
        or (
            name.startswith(hugging_face.PREFIX)
            and Path(hugging_face.parse(name).path).is_absolute()
        )
    )


def is_own_function(name: str) -> bool:
    """Return whether a data set comes from a function of the user's: ``module:function``."""
    prefixes = (_NPZ, _IMAGES, hugging_face.PREFIX)
    return not name.startswith(prefixes) and name not in PUBLISHED and is_reference(name)


def absolute_dataset(name: str, folder: Path) -> str:
    """Make the path in a data set's name absolute; other names stay as they are.

    A function's file stays relative too: it is looked for in ``code-dir``.

    Parameters
    ----------
    name : str
        The data set's name.
    folder : Path
        Where a relative path starts.
    """
    if name.startswith(hugging_face.PREFIX):
        return hugging_face.absolute(name, folder)
    for prefix, path in ((_NPZ, npz_path(name)), (_IMAGES, own_folder(name))):
        if path is not None:
            return f"{prefix}{(folder / path).absolute()}"
    return name


def load_dataset(
    name: str,
    data_dir: str | None = None,
    scaling: Scaling = "standard",
    code_dir: str = "",
    classes: int = 0,
) -> Dataset:
    """Load a data set from `data_dir`, or download it there if it is missing.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 8x8 digits, embedded, 1,437 / 360 rows), ``mnist``,
        ``fashion-mnist``, ``emnist`` (its letters) or ``emnist:SPLIT``, ``cifar10``;
        ``npz:PATH``: a file with the arrays x_train, y_train, x_test and y_test, where x is
        (rows, features), (rows, height, width), or images with channels first or last;
        ``image-folder:PATH``: images in train/CLASS/ and test/CLASS/;
        ``hf:NAME_OR_FOLDER``: see `mll_flower.tasks.hugging_face`;
        ``module:function`` or ``file.py:function``: see `mll_flower.tasks.own_data.call_loader`.
        Whole numbers as targets are classes, floating-point numbers are to be predicted.
    data_dir : str, optional
        A torchvision root (``MNIST/raw/...``), which may also hold CIFAR-10 as ``cifar10.npz``.
        The default is the environment variable MLL_FLOWER_DATA, or ``data`` if it is not set.
    scaling : {"standard", "unit"}
        ``standard`` normalises channels by the published mean and standard deviation; ``unit``
        leaves pixels in [0, 1].
    code_dir : str
        The folder in which functions of the user's are looked for.
    classes : int
        Number of classes of the user's own data, if their labels need not show it: the largest
        label may be missing. 0: the largest label and 1, or what the data set says.

    Returns
    -------
    Dataset
        The rows; images are upright, with channels first. The processes of a machine share the
        memory of a large set (`mll_flower.tasks.shared_data`).

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
    root = _root(data_dir)

    def read() -> Dataset:
        return _read(name, full, root, scaling, code_dir, classes)

    return shared(read, name, [full, scaling, classes], _files(full, root))


def _files(full: str, root: Path) -> list[Path]:
    """Return the files that decide a data set; empty if it depends on more than files."""
    path, folder = npz_path(full), own_folder(full)
    if path is not None:
        return [path]
    if folder is not None:
        return [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return published_files(full, root) if full in PUBLISHED else []


def _read(
    name: str, full: str, root: Path, scaling: Scaling, code_dir: str, classes: int
) -> Dataset:
    """Read a data set from its source."""
    if full == "digits":
        return _digits(name)
    path = npz_path(full)
    if path is not None:
        if not path.is_file():
            raise FileNotFoundError(f"dataset {name!r}: the file {path.absolute()} does not exist")
        return assemble(name, path.name, _read_npz(path), classes or None)
    if is_own_function(full):
        arrays = call_loader(full, code_dir, str(root))
        return assemble(name, full, arrays, classes or None, as_given=True)
    folder = own_folder(full)
    if folder is not None:
        arrays, found = read_image_folder(name, folder)
        return assemble(name, folder.name, arrays, classes or found)
    if full.startswith(hugging_face.PREFIX):
        label = Path(hugging_face.parse(full).path).name
        arrays, stated = hugging_face.read_hugging_face(full)
        return assemble(name, label, arrays, classes or stated)
    known = PUBLISHED[full]
    packed = root / PACKED_CIFAR
    if full == "cifar10" and packed.is_file():
        arrays = _read_npz(packed)
    else:
        arrays = read_published(full, root)
    data = assemble(name, label_of(full, arrays), arrays, known.classes)
    if scaling == "standard":
        for x in (data.x_train, data.x_test):
            x -= np.asarray(known.mean, np.float32)[:, None, None]
            x /= np.asarray(known.std, np.float32)[:, None, None]
    return data


def is_published(name: str) -> bool:
    """Return whether a data set is read from files in ``data-dir``."""
    return name == "emnist" or name in PUBLISHED


def find_published(name: str, data_dir: str | None = None) -> None:
    """Make sure that the files of a published data set exist; download them if they do not.

    Before a run's processes start: they then find the files, and need not download them together.
    Other data sets are left alone.

    Parameters
    ----------
    name, data_dir
        As in `load_dataset`.

    Raises
    ------
    FileNotFoundError
        If the files are missing and cannot be downloaded; the message names them.
    """
    full, root = parse_dataset(name), _root(data_dir)
    if full in PUBLISHED and not is_present(full, root):
        read_torchvision(full, root)


def _root(data_dir: str | None) -> Path:
    return Path(data_dir or os.environ.get("MLL_FLOWER_DATA") or "data").expanduser()


def _digits(name: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    # Every fifth row in the order of the labels is a test row: each class is split in the same
    # proportion, to within one row, and no random number generator is needed.
    test = np.zeros(len(y), dtype=bool)
    test[np.argsort(y, kind="stable")[::5]] = True
    x = images.reshape(-1, 1, 8, 8) / 16
    return assemble(name, "digits (8x8)", (x[~test], y[~test], x[test], y[test]), 10)


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
