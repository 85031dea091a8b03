"""A small process that outlives this one by a moment and ends whatever it has left behind.

Nothing of ours runs any more after ``kill -9``. So a second process waits at a pipe whose other end
is open in this one alone: when this one dies, however that happens, the pipe closes, and the second
process ends every process that was started here and removes the temporary folders. It knows them
by a variable in their environment, which all their descendants inherit, also those in sessions of
their own and those whose parents have ended.

This file is also the program of that second process. It imports the standard library and psutil
alone, so that it starts at once and needs little memory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_PATIENCE = 3.0  # seconds that processes without a parent have to end by themselves
_LIMIT = 30.0  # seconds after which a process that cannot be killed is given up
_PREFIX = "mll-flower-"
_OWNER = "owner.json"


class Watchdog:
    """Ends what this process has started, if this process dies before it does so itself."""

    def __init__(self) -> None:
        self._folders: list[Path] = []
        # One variable per watchdog: a process may be in the care of several, one inside another.
        self.mark = f"MLL_FLOWER_TREE_{uuid.uuid4().hex}"
        command = [sys.executable, "-P", __file__, self.mark]
        # Its own session: a Ctrl-C in the terminal, or the terminal's end, must not reach it. No
        # output, because whoever reads ours would wait for its end.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def marked(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment by which the watchdog knows a process and its descendants."""
        return {**env, self.mark: "1"}

    def temporary_folder(self) -> Path:
        """Make a temporary folder that is removed at the end, whoever brings that about."""
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._folders.append(folder)
        self._send(str(folder))
        # For `sweep`, in case the watchdog dies as well.
        owner = {"pid": os.getpid(), "started": _start_time(os.getpid()), "mark": self.mark}
        (folder / _OWNER).write_text(json.dumps(owner))
        return folder

    def dismiss(self) -> None:
        """Remove the temporary folders and end the watchdog: all processes have ended."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._send(None)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _send(self, message: str | None) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # someone has killed the watchdog: the next sweep will do its work
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


def sweep() -> None:
    """End and remove what earlier processes have left behind that died together with watchdogs."""
    for folder in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            # Others may write to this place: nothing of theirs is believed.
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            owner = json.loads((folder / _OWNER).read_text())
            if _start_time(owner["pid"]) == owner["started"]:
                continue
            end_marked(str(owner["mark"]))
            shutil.rmtree(folder, ignore_errors=True)


def end_marked(mark: str, patience: float = _PATIENCE) -> None:
    """End all processes with a mark in their environment, and all their descendants."""
    members: dict[psutil.Process, None] = {}
    asked: set[psutil.Process] = set()
    start = time.monotonic()
    while True:
        # In every turn: what is asked to end may still start something.
        _adopt(members, mark)
        alive = [process for process in members if _is_alive(process)]
        waited = time.monotonic() - start
        if not alive or waited > _LIMIT:
            return
        for process in alive:
            with suppress(psutil.Error):
                if waited > patience:
                    process.kill()
                elif process not in asked:
                    process.terminate()
                    process.resume()  # a frozen process must wake up to end
                    asked.add(process)
        time.sleep(0.1)


def _adopt(members: dict[psutil.Process, None], mark: str) -> None:
    """Add the processes with the mark, and all that descend from a member."""
    # By descent as well: some programs overwrite their environment with a title of their own.
    parents: dict[psutil.Process, int] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            parents[process] = process.ppid()
            if process not in members and mark in process.environ():
                members[process] = None
    while True:
        pids = {process.pid for process in members if _is_alive(process)}
        found = [p for p, parent in parents.items() if parent in pids and p not in members]
        if not found:
            return
        members.update(dict.fromkeys(found))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _start_time(pid: int) -> float | None:
    """Return when a process was started; None if no process has this id."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _wait_for_death(mark: str) -> None:
    """Wait until the other end of our input is closed; then end and remove what is left."""
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)
    folders: list[str] = []
    for line in sys.stdin.buffer:
        message: Any = json.loads(line)
        if message is None:
            return
        folders.append(message)
    end_marked(mark)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_for_death(sys.argv[1])
