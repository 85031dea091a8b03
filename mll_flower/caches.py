"""The folder in which this user's processes keep what they would otherwise make again.

It is private (owner alone, mode 0700), because whoever can write to it can make this user run any
code and train on any data.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_folder(name: str) -> Path | None:
    """Return a folder of the cache; None if there is none that only this user can write.

    Parameters
    ----------
    name : str
        What it is for.
    """
    root = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    try:
        base = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
        folder = base / "mll-flower" / name
        # Both levels: whoever owns the upper one could put another folder in place of the lower.
        for level in (folder.parent, folder):
            level.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.name == "nt":
                continue
            status = level.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                return None
            if stat.S_IMODE(status.st_mode) != 0o700:
                level.chmod(0o700)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder
