"""Processes of a deployment: started, watched, and ended with all that they started.

Flower's commands start processes of their own, some in sessions of their own. So a process
is ended together with everything that was seen to descend from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

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


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    # Descendants ever seen, with their start times: a process id may be given out again.
    family: dict[int, str] = field(default_factory=dict)


class Processes:
    """The processes that this one has started.

    Used as a context manager, it ends all of them on the way out.
    """

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()

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
        self, name: str, words: Sequence[str], env: Mapping[str, str], log: Path | None = None
    ) -> int:
        """Start a process under a name that is free; return its id.

        Parameters
        ----------
        name : str
            What it is called in messages.
        words : Sequence[str]
            The command.
        env : Mapping[str, str]
            Its environment; ``PATH`` finds the command.
        log : Path, optional
            Where its output is appended; otherwise it goes where ours goes.
        """
        with self._lock:
            if name in self._children:
                raise ValueError(f"{name} runs already: stop it first")
            stream: IO[Any] | None = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                stream = log.open("ab")
            try:
                # A session of its own: a Ctrl-C in the terminal is ours to handle.
                process = subprocess.Popen(
                    words,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT if stream else None,
                    start_new_session=True,
                )
            finally:
                if stream is not None:
                    stream.close()
            self._children[name] = _Child(process)
            return process.pid

    def is_running(self, name: str) -> bool:
        """Whether a process was started under this name and has not ended."""
        with self._lock:
            child = self._children.get(name)
            return child is not None and child.process.poll() is None

    def ended(self) -> list[Ended]:
        """Say which processes have ended by themselves since the last call.

        What such a process has left behind is ended, too.
        """
        with self._lock:
            self._watch()
            gone = {n: c for n, c in self._children.items() if c.process.poll() is not None}
            for name, child in gone.items():
                del self._children[name]
                _end([child])
        return [Ended(name, child.process.returncode) for name, child in gone.items()]

    def stop(self, name: str) -> None:
        """End one process and what it has started."""
        with self._lock:
            child = self._children.pop(name, None)
        if child is not None:
            child.family.update(_descendants([child.process.pid]))
            _end([child])

    def end(self) -> None:
        """End all processes and what they have started; none is left behind."""
        with self._lock:
            self._watch()
            children = list(self._children.values())
            self._children.clear()
        _end(children)

    def _watch(self) -> None:
        for child in self._children.values():
            known = [p for p, start in child.family.items() if _start_time(p) == start]
            child.family.update(_descendants([child.process.pid, *known]))


def _end(children: Sequence[_Child]) -> None:
    for word in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if child.process.poll() is None:
                _signal(os.killpg, child.process.pid, word)
            for pid, start in child.family.items():
                if _start_time(pid) == start:
                    _signal(os.kill, pid, word)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if not any(_alive(child) for child in children):
                break
            time.sleep(0.05)
    for child in children:
        child.process.wait()


def _signal(send: Any, pid: int, word: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(pid, word)
        send(pid, signal.SIGCONT)  # a frozen process must wake up to end


def _alive(child: _Child) -> bool:
    running = child.process.poll() is None
    return running or any(_start_time(pid) == start for pid, start in child.family.items())


def _descendants(roots: Sequence[int]) -> dict[int, str]:
    """Return the processes that descend from these, with their start times (Linux only).

    Elsewhere nothing is found, and Flower's processes end by themselves when their parent
    has gone.
    """
    found: dict[int, str] = {}
    parents: dict[int, tuple[int, str]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                fields = _stat(int(name))
                if fields:
                    parents[int(name)] = int(fields[1]), fields[19]
    wanted = set(roots)
    while True:
        more = {p: s for p, (up, s) in parents.items() if up in wanted and p not in wanted}
        if not more:
            return found
        found.update(more)
        wanted.update(more)


def _start_time(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else None


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
