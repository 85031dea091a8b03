"""A hub or a worker runs once: whoever has locked its state folder, and nobody else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO

from mll_flower.deployment.hub_state import LOCK_FILE, make_private

try:
    import fcntl
except ImportError:  # not on Windows, where no lock is taken
    fcntl = None  # type: ignore[assignment]


NO_SPACE = os.strerror(errno.ENOSPC)
"""What the system says of a full disk."""

_LEAST_FREE = 1 << 20  # bytes on disk, without which nothing can be started


class SiteRuns(ValueError):
    """A hub or a worker that runs already; the text says in which process."""


def lock_site(folder: Path, what: str) -> IO[str]:
    """Make a site's state folder, and lock it until the file that is returned is closed.

    The lock ends with the process that has taken it, however that ends.

    Parameters
    ----------
    folder : Path
        State folder of the hub or worker.
    what : str
        What it is called in messages.

    Raises
    ------
    SiteRuns
        If another process has locked it.
    OSError
        If the folder cannot be written, or its disk is full; the text names it.
    """
    try:
        make_private(folder)
        file = (folder / LOCK_FILE).open("a+")
        if is_full(folder):
            raise OSError(errno.ENOSPC, NO_SPACE)
    except OSError as error:
        raise OSError(
            f"{what}: its state folder {folder} cannot be written ({error.strerror}): mend the "
            "disk or its permissions, or give another folder with --state"
        ) from None
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise SiteRuns(
                f"{what} runs already on this machine (process {holder}): end that one first"
            ) from None
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder is full."""
    return shutil.disk_usage(folder).free < _LEAST_FREE
