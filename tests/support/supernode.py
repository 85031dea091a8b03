"""A SuperNode of real processes, connected to the SuperLink in this process."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from mll_flower.processes.flower_environment import flower_environment, free_port
from mll_flower.processes.process_tree import is_alive
from tests.support.deployment import COMMAND, heed_ctrl_c, running_in
from tests.support.superlink import InProcessSuperLink

QUICK = ("--preload", "mailbox,no_such_module")
"""Preloads what nothing else imports, quickly; and something that does not exist."""


class SuperNode:
    """A SuperNode; a context manager, which ends all of its processes.

    Parameters
    ----------
    folder : Path
        A folder of its own, which its processes have in their environment.
    superlink : InProcessSuperLink
        What it connects to.
    settings : Sequence[str]
        Options of ``mll-flower supernode``.
    command : Sequence[str], optional
        Started instead of ``mll-flower supernode``; given the settings and ``--``.
    """

    def __init__(
        self,
        folder: Path,
        superlink: InProcessSuperLink,
        settings: Sequence[str] = QUICK,
        command: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self.log = folder / "supernode.log"
        words = [*command, *settings, "--"] if command else [COMMAND, "supernode", *settings]
        words += ["--insecure", "--superlink", superlink.address]
        words += ["--host", "127.0.0.1", "--port", str(free_port())]
        heed_ctrl_c()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words,
                env=flower_environment(folder / "home"),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> SuperNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for process in running_in(self.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def find(self, text: str) -> list[psutil.Process]:
        """Return its processes that have a text in their command."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in found if is_alive(p) and text in " ".join(p.cmdline())]

    def output(self) -> str:
        """Return what its processes have written."""
        return self.log.read_text()

    def wait_until_nothing_is_left(self, timeout: float = 20.0) -> None:
        """Wait until none of its processes is left."""
        wait_for(lambda: not running_in(self.folder), timeout, lambda: str(running_in(self.folder)))


def wait_for(
    condition: Callable[[], bool], timeout: float = 30.0, about: Callable[[], str] = str
) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not within {timeout:g} s: {about()}"
        time.sleep(0.05)
