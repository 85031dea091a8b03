"""A small disk of its own for a folder, which can be full or read-only; needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

import pytest


class SmallDisk:
    """A file system in memory, mounted on a folder until the end of the test.

    Parameters
    ----------
    folder : Path
        Where it is mounted.
    megabytes : int
        Its size.
    """

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        self.folder = folder
        self._mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs"]

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(exist_ok=True)
        mounted = os.geteuid() == 0 and subprocess.run(
            [*self._mount, str(self.folder)], capture_output=True, text=True
        )
        if not mounted or mounted.returncode:
            why = mounted.stderr.strip() if mounted else "needs root"
            pytest.skip(f"no disk can be mounted here: {why}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Use up all that is free."""
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Give it back."""
        (self.folder / "filler").unlink()

    def set_read_only(self, read_only: bool) -> None:
        """Mount it so that nothing can be written, or so that it can; nobody may be writing."""
        kind = "ro" if read_only else "rw"
        subprocess.run(["mount", "-o", f"remount,{kind}", str(self.folder)], check=True)
