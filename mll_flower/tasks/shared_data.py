"""Hold a large data set once per machine, however many processes use it: `shared`.

The first process that reads a data set writes its arrays, as they are trained on, to this user's
cache. All processes map these files into their memory, so that they share the same pages, which
the system keeps as it keeps any file. A later run starts faster: nothing is decoded again.

An entry is a folder with one ``.npy`` file per array. Its name is a digest of everything that
decides the arrays: the data set's name and options, the size and the times of its files, and the
source code that reads them. It is written under another name and renamed when it is complete. A
folder per machine, because machines may share a home: none removes what another one maps.

Without a private cache folder, without room on its disk, or if the files changed while they were
read, a process keeps the arrays in its own memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.caches import private_folder
from mll_flower.tasks.dataset import Dataset

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_ABOUT = "about.json"
_SMALLEST = 8 << 20  # bytes below which sharing saves nothing worth a file
_MOST = 4 << 30  # bytes that this machine's entries may take, with the newest always kept
_SPARE = 1 << 30  # bytes that must stay free on the disk
_UNUSED = 14 * 24 * 3600.0  # seconds after which an unused entry is removed
_UNFINISHED, _GIVEN_UP = "part-", 3600.0  # name of an entry in the making; seconds it may take
# The modules beside this one whose code decides the arrays.
_READERS = ("data.py", "dataset.py", "own_data.py", "published.py", "shared_data.py")


def shared(
    read: Callable[[], Dataset], name: str, options: Sequence[Any], files: Sequence[Path]
) -> Dataset:
    """Return a data set whose arrays all processes of this machine share.

    Parameters
    ----------
    read : callable
        Reads it from its source.
    name : str
        The name under which it is requested.
    options : sequence
        Everything besides the files that decides what ``read`` gives.
    files : sequence of Path
        The files that it reads. If there are none, or they are small, nothing is shared.

    Returns
    -------
    Dataset
        A process may write into the arrays: the others do not see that.
    """
    before = _states(files)
    if sum(state[1] for state in before) < _SMALLEST // 16:  # zipped files may be far smaller
        return read()
    folder = _machine_folder()
    if folder is None:
        return read()
    entry = folder / _key(options, before)
    with _only_one(entry):
        found = _open(entry)
        if found is None:
            data = read()
            arrays = [getattr(data, key) for key in _ARRAYS]
            if sum(a.nbytes for a in arrays) < _SMALLEST or _states(files) != before:
                return data
            found = _open(entry) if _write(entry, data) else data
    return replace(found or data, name=name)


def _states(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Return what changes if a file does; empty if one cannot be found."""
    try:
        return [
            (str(file.absolute()), s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            for file in files
            for s in (file.stat(),)
        ]
    except OSError:
        return []


def _key(options: Sequence[Any], states: Sequence[Any]) -> str:
    text = json.dumps([_code(), list(options), states])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """Return a digest of the code that makes the arrays."""
    digest = hashlib.sha256()
    for name in _READERS:
        digest.update((Path(__file__).parent / name).read_bytes())
    with suppress(metadata.PackageNotFoundError):  # it decodes the images of a folder
        digest.update(metadata.version("pillow").encode())
    return digest.hexdigest()


def _machine_folder() -> Path | None:
    folder = private_folder("data")
    if folder is None:
        return None
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in platform.node()) or "machine"
    folder /= name
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder


@contextmanager
def _only_one(entry: Path) -> Iterator[None]:
    """Let one process at a time read a data set: the others then find it in the cache."""
    with ExitStack() as stack:
        # Without locks, such as on some network disks, several processes read it, and one wins.
        with suppress(ImportError, OSError):
            import fcntl

            file = stack.enter_context(entry.with_suffix(".lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(entry: Path) -> Dataset | None:
    """Map the arrays of an entry; None if it does not exist or is not complete."""
    try:
        about = json.loads((entry / _ABOUT).read_text())
        arrays = {key: _mapped(entry / f"{key}.npy") for key in _ARRAYS}
        os.utime(entry)  # it is in use
    except (OSError, ValueError):
        return None
    return Dataset(name="", label=about["label"], classes=about["classes"], **arrays)


def _mapped(path: Path) -> NDArray[Any]:
    # Copy on write, because torch wants arrays that can be written; a plain array, because memmap
    # makes every slice a little slower.
    return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))


def _write(entry: Path, data: Dataset) -> bool:
    """Write an entry; return whether it can be opened now."""
    part = None
    size = sum(getattr(data, key).nbytes for key in _ARRAYS)
    try:
        _make_room(entry.parent, size)
        if shutil.disk_usage(entry.parent).free < size + _SPARE:
            return False
        part = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=entry.parent))
        for key in _ARRAYS:
            with (part / f"{key}.npy").open("wb") as file:
                np.save(file, getattr(data, key), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())  # or a crash of the machine could leave zeros
        (part / _ABOUT).write_text(json.dumps({"label": data.label, "classes": data.classes}))
        shutil.rmtree(entry, ignore_errors=True)  # one that could not be opened
        part.rename(entry)
    except OSError:  # a full disk, or another process was faster
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        return entry.is_dir()
    return True


def _make_room(folder: Path, size: int) -> None:
    """Remove entries that nobody has used for long, and the oldest if there are too many."""
    now = time.time()
    for other in folder.parent.glob("*/*"):
        with suppress(OSError):
            limit = _GIVEN_UP if other.name.startswith(_UNFINISHED) else _UNUSED
            if now - other.stat().st_mtime > limit:
                shutil.rmtree(other) if other.is_dir() else other.unlink()
    # Processes that map a file which is removed keep it: it goes when the last of them ends.
    entries = {path: path.stat().st_mtime for path in folder.iterdir() if path.is_dir()}
    sizes = {path: sum(f.stat().st_size for f in path.iterdir()) for path in entries}
    for path in sorted(entries, key=entries.__getitem__):
        if sum(sizes.values()) + size <= _MOST:
            break
        if not path.name.startswith(_UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]
