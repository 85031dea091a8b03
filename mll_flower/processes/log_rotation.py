"""Files that grow line by line are cut at a size, and a few of the older parts are kept.

The parts of ``x.log`` are ``x.log.1``, the newest of them, ``x.log.2`` and so on.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 10 << 20
"""Bytes of a log that begins anew."""

KEPT = 3
"""Older parts of a log that are kept."""


def parts(path: Path) -> list[Path]:
    """Return the parts of a file that exist, the oldest first, and the file itself."""
    numbers = [
        part.name.removeprefix(f"{path.name}.") for part in path.parent.glob(f"{path.name}.*")
    ]
    older = sorted((int(n) for n in numbers if n.isdecimal()), reverse=True)
    return [*(_part(path, n) for n in older), *([path] if path.exists() else [])]


def rotate_by_name(path: Path, most: int = MOST_BYTES, kept: int = KEPT) -> None:
    """Make a file that has become too large the newest of its parts.

    For files that their writer opens anew for each line.

    Parameters
    ----------
    path : Path
        The file; it need not exist.
    most : int
        Bytes that it may have.
    kept : int
        Parts that are kept.
    """
    if _is_too_large(path, most):
        _make_room(path, kept)
        path.replace(_part(path, 1))


def rotate_by_copy(path: Path, most: int = MOST_BYTES, kept: int = KEPT) -> None:
    """Copy a file that has become too large to the newest of its parts, and empty it.

    For files that other processes hold open for appending: they go on at the beginning. A line
    that is written between the copy and the cut is lost. On a full disk nothing is done.

    Parameters
    ----------
    path, most, kept
        As in `rotate_by_name`.
    """
    if not _is_too_large(path, most):
        return
    copy = path.with_name(f"{path.name}.part")
    try:
        shutil.copy2(path, copy)
        os.truncate(path, 0)
        _make_room(path, kept)
        copy.replace(_part(path, 1))
    except OSError:
        copy.unlink(missing_ok=True)


def _is_too_large(path: Path, most: int) -> bool:
    try:
        return path.stat().st_size > most
    except OSError:
        return False


def _make_room(path: Path, kept: int) -> None:
    """Count all parts up by one; those beyond the number that is kept are removed."""
    for number in range(kept, 0, -1):
        with suppress(FileNotFoundError):
            if number == kept:
                _part(path, number).unlink()
            else:
                _part(path, number).replace(_part(path, number + 1))


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
