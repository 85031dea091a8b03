"""Start processes, watch them, and end each with everything that it has started.

Flower's commands start processes of their own, some of them in sessions of their own, and some
outlive their parents. So a process is ended together with every process that was ever seen to
descend from it. psutil tells a process by its id and its start time: an id that the system has
given to another process is never signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil

from mll_flower.processes.log_rotation import rotate_by_copy
from mll_flower.processes.watchdog import Watchdog

PATIENCE = 10.0
"""Seconds that a process has to end by itself before it is killed."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended by itself."""

    name: str
    code: int

    def __str__(self) -> str:
        how = f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"{self.name} has ended ({how})"


def is_alive(process: int | psutil.Process) -> bool:
    """Return whether a process, or the process with this id, runs; a zombie does not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ProcessTree:
    """A process, and everything that was seen to descend from it.

    Parameters
    ----------
    root : subprocess.Popen
        A child of this process that was started in a session of its own and not waited for yet.
    """

    def __init__(self, root: subprocess.Popen[Any]) -> None:
        self.root = root
        # A dictionary for its order: parents come before their children.
        self._members: dict[psutil.Process, None] = {psutil.Process(root.pid): None}
        self._seen_before: set[psutil.Process] = set()

    def end(self, patience: float | None = None) -> None:
        """End the whole tree: ask, and kill what has not ended after ``patience`` seconds."""
        _end([self], PATIENCE if patience is None else patience)

    def alive(self) -> list[psutil.Process]:
        """Return the known processes of the tree that have not ended, parents first."""
        return [process for process in self._members if is_alive(process)]

    def adopt(self, running: Sequence[tuple[psutil.Process, int, int]]) -> None:
        """Add the descendants among all running processes, given with parent and session ids."""
        # The session of a member that has ended still holds those of its children that have not.
        pids = {process.pid for process in self._members}
        pids -= {p.pid for p, _, _ in running if p.pid in pids and p not in self._members}
        while True:
            found = [
                process
                for process, parent, session in running
                if process not in self._members and (parent in pids or session in pids)
            ]
            if not found:
                break
            self._members.update(dict.fromkeys(found))
            pids.update(process.pid for process in found)
        # A process that has ended is forgotten one call later: by then its children are known.
        now = {process for process, _, _ in running if process in self._members}
        root = next(iter(self._members))
        keep = now | self._seen_before | {root}
        self._members = {process: None for process in self._members if process in keep}
        self._seen_before = now


class Processes:
    """The processes that this one has started.

    Used as a context manager, it ends all of them on the way out. If this process dies before
    that, its watchdog ends them.

    Parameters
    ----------
    patience : float, optional
        Seconds that they have to end by themselves before they are killed.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._patience = patience
        self._trees: dict[str, ProcessTree] = {}
        self._logs: set[Path] = set()
        self._lock = threading.RLock()
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path | None = None
    ) -> int:
        """Start a process under a name that is not in use; return its id.

        Parameters
        ----------
        name : str
            What it is called in messages.
        command : Sequence[str]
            The command and its arguments.
        env : Mapping[str, str]
            Its environment; the command is looked up in ``PATH``.
        log : Path, optional
            The file to which its output is appended; without it, output goes where ours goes.
            When it has become large, it begins anew (`mll_flower.processes.log_rotation`).
        """
        with self._lock:
            if name in self._trees:
                raise ValueError(f"{name} runs already: stop it first")
            stream: IO[Any] | None = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                stream = log.open("ab")
            try:
                # A session of its own: a Ctrl-C in the terminal is ours to handle.
                process = subprocess.Popen(
                    command,
                    env=self.marked(env),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT if stream else None,
                    start_new_session=True,
                )
            finally:
                if stream is not None:
                    stream.close()
            self._trees[name] = ProcessTree(process)
            if log is not None:
                self._logs.add(log)
            return process.pid

    def marked(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment whose processes end when this process dies."""
        return self._watched().marked(env)

    def temporary_folder(self) -> Path:
        """Make a temporary folder that is removed when all processes have ended."""
        return self._watched().temporary_folder()

    def is_running(self, name: str) -> bool:
        """Return whether a process was started under this name and has not ended."""
        with self._lock:
            tree = self._trees.get(name)
            return tree is not None and tree.root.poll() is None

    def ended(self) -> list[Ended]:
        """Return the processes that have ended by themselves since the last call.

        What such a process has left behind is ended, too. To find that, call this often: it
        also notes what the running processes have started, and keeps their logs small.
        """
        with self._lock:
            for log in self._logs:
                rotate_by_copy(log)
            _watch(list(self._trees.values()))
            gone = {n: tree for n, tree in self._trees.items() if tree.root.poll() is not None}
            for name, tree in gone.items():
                del self._trees[name]
                tree.end()
        return [Ended(name, tree.root.returncode) for name, tree in gone.items()]

    def stop(self, name: str) -> None:
        """End one process and what it has started."""
        with self._lock:
            tree = self._trees.pop(name, None)
        if tree is not None:
            tree.end()

    def end(self) -> None:
        """End all processes and what they have started, and remove the temporary folders."""
        with self._lock:
            trees = list(self._trees.values())
            self._trees.clear()
            watchdog, self._watchdog = self._watchdog, None
        _end(trees, PATIENCE if self._patience is None else self._patience)
        if watchdog is not None:
            watchdog.dismiss()

    def _watched(self) -> Watchdog:
        with self._lock:
            if self._watchdog is None:
                self._watchdog = Watchdog()
            return self._watchdog


def _watch(trees: Sequence[ProcessTree]) -> None:
    """Look at all processes of the machine once, and let each tree adopt its own."""
    if not trees:
        return
    running: list[tuple[psutil.Process, int, int]] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has just ended, or is hidden from us
            running.append((process, process.ppid(), os.getsid(process.pid)))
    for tree in trees:
        tree.adopt(running)


def _end(trees: Sequence[ProcessTree], patience: float) -> None:
    for request in (signal.SIGTERM, signal.SIGKILL):
        asked: set[psutil.Process] = set()
        end = time.monotonic() + patience
        while True:
            # In every turn: what is asked to end may still start something.
            _watch(trees)
            alive = [process for tree in trees for process in tree.alive()]
            for process in alive:
                if process not in asked:
                    _send(process, request)
                    asked.add(process)
            if not alive or time.monotonic() >= end:
                break
            time.sleep(0.05)
    for tree in trees:
        tree.root.wait()


def _send(process: psutil.Process, request: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(request)
        process.send_signal(signal.SIGCONT)  # a frozen process must wake up to end
