"""Partitions of the user's own: a function, or a file with the rows of each worker."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.own_code import call, is_reference

_SUFFIXES = (".json", ".npz")


def is_own_partition(spec: str) -> bool:
    """Return whether a partition is a function or a file of the user's."""
    return is_reference(spec) or spec.endswith(_SUFFIXES)


def partition_file(spec: str, code_dir: str) -> Path | None:
    """Return the file that holds the rows of each worker; None for a function or a name."""
    if is_reference(spec) or not spec.endswith(_SUFFIXES):
        return None
    return Path(code_dir, Path(spec).expanduser())


def own_partition(
    spec: str, code_dir: str, labels: NDArray[Any], hub_of: NDArray[Any], seed: int
) -> list[NDArray[np.int64]]:
    """Return the rows of each worker as the user's function or file gives them.

    Parameters
    ----------
    spec, code_dir : str
        ``module:function`` or ``file.py:function``, called with what it has parameters for
        (``labels``, ``hub_of``, ``seed``); or a file: ``.json`` with a list of lists, or ``.npz``
        with one array per worker, in their order, as ``np.savez(path, *rows)`` writes them.
    labels, hub_of, seed
        As in `mll_flower.tasks.partitions.partition`.

    Returns
    -------
    list of ndarray
        The rows of each worker, in the order given. They may overlap, and rows may be left out.

    Raises
    ------
    ValueError
        If they are not one list of existing rows per worker, none of them empty.
    """
    path = partition_file(spec, code_dir)
    if path is None:
        offered = {"labels": labels, "hub_of": hub_of, "seed": seed}
        parts = call("partition", spec, code_dir, **offered)
    else:
        parts = _read(spec, path)
    workers = len(hub_of)
    if not isinstance(parts, Sequence | np.ndarray) or len(parts) != workers:
        count = f"{len(parts)} lists" if hasattr(parts, "__len__") else f"a {type(parts).__name__}"
        raise ValueError(
            f"partition={spec!r} gives {count} for {workers} workers: give one list of rows per "
            "worker, in their order"
        )
    return [_rows(spec, worker, part, len(labels)) for worker, part in enumerate(parts)]


def _read(spec: str, path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"partition={spec!r}: the file {path.absolute()} does not exist")
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text())
        with np.load(path, allow_pickle=False) as archive:
            return [archive[name] for name in archive.files]
    except (zipfile.BadZipFile, EOFError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"partition={spec!r}: {path} cannot be read ({error}): write a JSON list of lists, or "
            "np.savez(path, *rows)"
        ) from error


def _rows(spec: str, worker: int, part: Any, total: int) -> NDArray[np.int64]:
    rows = np.asarray(part) if not isinstance(part, str) else np.empty(0)
    if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "ui":
        raise ValueError(
            f"partition={spec!r}: worker {worker} has rows of shape {rows.shape} and dtype "
            f"{rows.dtype}: give it a list of whole numbers, at least one"
        )
    if rows.min() < 0 or rows.max() >= total:
        raise ValueError(
            f"partition={spec!r}: worker {worker} has rows from {rows.min()} to {rows.max()}: the "
            f"training set has the rows 0 to {total - 1}"
        )
    return rows.astype(np.int64)
