"""The SuperNode's side of its executor: starts it, and again when it ends; hears and tells."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from mll_flower.processes.warm.settings import WarmSettings

STARTED, DONE, FAILED, GONE = "started", "done", "failed", "gone"
"""What the executor says of a task; the last one is said by its end."""

TASK, KILL = "task", "kill"
"""What it is told: that there is a task to take; to end the process of a run."""

_PAUSE = 1.0  # seconds until an executor that has ended is started again

# Not with -m: a spawned process would import that module, as the main one.
_CODE = "from mll_flower.processes.warm.superexec import main; main()"


class ExecutorLink:
    """The executor's process, and the pipe to it.

    Parameters
    ----------
    settings : WarmSettings
        What the executor is given.
    """

    def __init__(self, settings: WarmSettings) -> None:
        self.settings = settings
        self._arguments: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._again_at = float("inf")

    def start(self, command: Sequence[str]) -> None:
        """Start it in the place of the command with which Flower starts its own SuperExec."""
        self._arguments = list(command[1:])
        self._start()

    def _start(self) -> None:
        self._link, theirs = Pipe()
        words = [sys.executable, "-c", _CODE, str(theirs.fileno()), str(os.getpid())]
        words += [*self.settings.words(), *self._arguments]
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        theirs.close()
        self._again_at = float("inf")

    def tell(self, *words: Any) -> None:
        """Tell it something; if it has just ended, that is found later."""
        if self._link is not None:
            try:
                self._link.send(words)
            except OSError:
                self._lose()

    def hear(self) -> list[tuple[Any, ...]]:
        """Return what it has said since the last call; start it again if it has ended."""
        said: list[tuple[Any, ...]] = []
        try:
            while self._link is not None and self._link.poll():
                said.append(self._link.recv())
        except (EOFError, OSError):
            self._lose()
        if self._process is not None and self._process.poll() is not None:
            print(f"The executor has ended ({self._process.returncode})", flush=True)
            self._lose()
            said.append((GONE,))
            self._process = None
            self._again_at = time.monotonic() + _PAUSE
        if time.monotonic() >= self._again_at:
            self._start()
        return said

    def wait(self, seconds: float) -> None:
        """Wait until it says something, at most so many seconds."""
        if self._link is None:
            time.sleep(seconds)
        else:
            wait([self._link], seconds)

    def _lose(self) -> None:
        """Give up the pipe, and the process with it: it can neither be told nor heard."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
